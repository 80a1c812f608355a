"""Language converter strategy: the target's tag biases what the last encoder layers read.

h becomes h + e before each of them, with e the vector of the target language's tag. There are no
parameters. The authors' layout is `Data.instruction = '5'`: the source starts with its own tag, the
target with its own, which is trained as a prediction and forced in translation.

Source: Sun et al. 2024 ("Language Converter Strategy"); that e is added before every converter
layer and scaled as embedded tokens are is our reading, their encoder was not found (language-layers
spec 2.5).
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from flax import linen as nn
from jaxtyping import Array

from mnmt_jax.config.sections import Model
from mnmt_jax.design.fields import Amount
from mnmt_jax.design.layouts import SOURCE
from mnmt_jax.design.method import Method
from mnmt_jax.design.plan import Kind, Layer, Plan, Sublayer
from mnmt_jax.errors import UserError
from mnmt_jax.model.context import PositionInfo


@dataclasses.dataclass(frozen=True)
class LCS(Method, name="lcs"):
    """The bias of the target's tag.

    Attributes:
        languages: codes of all languages, in the order of the vocabulary's tags; () takes the
            vocabulary's.
        first: layer that is biased first, counted from 1; 0 leaves two of the first stage's.
        inject: before `each` layer of the first stage from that one on, or `once`.
        scaled: multiply the tag's vector as embedded tokens are (`Model.embedding_scale`).
    """

    languages: tuple[str, ...] = ()
    first: Amount = 0
    inject: Literal["each", "once"] = "each"
    scaled: bool = True

    languages_field = "languages"

    def edit(self, plan: Plan, config: Model) -> Plan:
        """Return the plan with the bias.

        Raises:
            UserError: if there are no languages or no such layer.
        """
        languages = self.known_languages()
        count = plan.layout.stages[0].layers
        first = self.first or max(count - 1, 1)
        if first > count:
            raise UserError(
                f"LCS.first={first}: the first stage of layout '{plan.layout.name}' has {count} "
                "layers; choose one of them"
            )
        scale = 1.0 if self.scaled or not config.embedding_scale else config.embed**-0.5
        kind = TagBias(tags=len(languages), scale=scale)
        bias = Sublayer("tag_bias", kind, roles=(SOURCE,))
        last = first if self.inject == "once" else count

        def edited(number: int, layer: Layer) -> Layer:
            return (bias, *layer) if first <= number <= last else layer

        return plan.with_layers(edited)


@dataclasses.dataclass(frozen=True)
class TagBias(Kind):
    """Adds the vector of the target language's tag.

    Attributes:
        tags: number of the vocabulary's languages.
        scale: of the vector.
    """

    tags: int = 0
    scale: float = 1.0

    has_dropout = True  # it has no dropout
    component = "lcs"
    languages = ("target_lang",)

    def module(self, config: Model) -> nn.Module:
        """Return a module without parameters."""
        del config
        return _Nothing()

    def change(self, module: Any, states: Array, place: PositionInfo) -> Array:
        """Return the vector at every position."""
        del module
        return (place.tag("target_lang") * self.scale).astype(states.dtype)


class _Nothing(nn.Module):
    """Has no parameters."""
