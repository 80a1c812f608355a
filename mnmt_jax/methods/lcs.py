"""Language converter strategy (LCS): target-tag bias of the last encoder layers.

Before each of these layers h becomes h + e, with e the vector of the target language's tag. There
are no parameters. The authors' tags are `Data.instruction = '5'`: source and target each start with
the tag of their language; the target's is trained as a prediction and forced in translation.

Source: Sun et al. 2024 ("Language Converter Strategy"); that e is added before every converter
layer and scaled like embedded tokens is our reading; their encoder was not available
(language-layers spec 2.5).
"""

from __future__ import annotations

import dataclasses
from typing import Literal

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
    """The bias by the target's tag.

    Attributes:
        languages: codes of all languages, in the order of the vocabulary's tags; () uses the
            vocabulary's.
        first: first biased layer, counted from 1; 0 means the last two layers of the first stage.
        inject: before `each` layer of the first stage from that one on, or `once`.
        scaled: whether to scale the tag's vector like embedded tokens (`Model.embedding_scale`).
    """

    languages: tuple[str, ...] = ()
    first: Amount = 0
    inject: Literal["each", "once"] = "each"
    scaled: bool = True

    languages_field = "languages"

    def edit(self, plan: Plan, config: Model) -> Plan:
        """Return the plan with the bias.

        Raises:
            UserError: if there are no languages, the layer does not exist, or the first stage has
                no source.
        """
        languages = self.known_languages()
        if SOURCE not in plan.layout.stages[0].roles:
            raise UserError(
                f"lcs: the first stage of layout '{plan.layout.name}' has no source; leave 'lcs' "
                "out of Model.methods"
            )
        count = plan.layout.stages[0].layers
        first_layer = self.first or max(count - 1, 1)
        if first_layer > count:
            raise UserError(
                f"LCS.first={first_layer}: the first stage of layout '{plan.layout.name}' has "
                f"{count} "
                "layers; choose one of them"
            )
        scale = 1.0 if self.scaled or not config.embedding_scale else config.embed**-0.5
        kind = TagBias(tags=len(languages), scale=scale)
        bias = Sublayer("tag_bias", kind, roles=(SOURCE,))
        last_layer = first_layer if self.inject == "once" else count

        def with_bias(number: int, layer: Layer) -> Layer:
            return (bias, *layer) if first_layer <= number <= last_layer else layer

        return plan.with_layers(with_bias)


class TagBias(nn.Module, Kind):
    """Adds the vector of the target language's tag.

    Attributes:
        tags: number of the vocabulary's languages.
        scale: factor of the vector.
    """

    tags: int = 0
    scale: float = 1.0

    has_dropout = True  # it has no dropout
    component = "lcs"
    languages = ("target_lang",)

    def change(self, states: Array, info: PositionInfo) -> Array:
        """Return the vector at every position."""
        return (info.tag("target_lang") * self.scale).astype(states.dtype)
