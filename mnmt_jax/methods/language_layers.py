"""Language-specific layers: CLL, in every decoder layer FCLL, in one of them half of SD.

Beside the feed-forward of a layer stands one for each target language but the centre's, smaller and
scaled by a learnt number: norm(x + drop(ffn(x)) + drop_q(t_l branch_l(x))).

Source: third paper, section 3, equations 2 and 3; initialisation and where the dropout stands are
in the authors' code alone (language-layers spec 2.1).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Literal, Self

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from mnmt_jax.config.sections import Model
from mnmt_jax.design.fields import Count, Rate, Width
from mnmt_jax.design.layout import Stage
from mnmt_jax.design.method import Method, Rows
from mnmt_jax.design.plan import Layer, Lengths, Maps, Plan
from mnmt_jax.distributed.sharding import platform
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.model import modules
from mnmt_jax.model.context import PositionInfo
from mnmt_jax.model.dropout import Dropout
from mnmt_jax.model.intermediates import ENTERED, record
from mnmt_jax.model.language_routing import Branches, choose_routing, route
from mnmt_jax.model.modules import ACTIVATIONS, uniform_fan_in
from mnmt_jax.model.param_patterns import matches
from mnmt_jax.model.sublayers import FeedForward

_FIRST_SCALE = 0.1
_BRANCH = "mlp/branch"  # where the parameters of branches are


@dataclasses.dataclass(frozen=True)
class LanguageLayers(Method, name="language_layers"):
    """A feed-forward of its own for each target language, beside the shared one.

    Attributes:
        languages: codes of all languages, in the order of the vocabulary's tags; () takes the
            vocabulary's.
        without: those of them that have none: the centre, e.g. `('en',)`.
        layers: that have them, counted from 1 through all stages; () is every layer that the
            target passes.
        mlp: hidden width of each.
        dropout: rate on what they give, after the scale.
        routing: key of `mnmt_jax.model.language_routing.ROUTINGS`, all of which compute the same; `auto` is
            the fastest for the number of languages and the devices.
        off: leave what they give out, as in the paper's Table 9; parameters stay.
        frozen: languages whose branches do not train, when others are added to a trained model.
        frozen_scales: whether their scales do not either, as the paper has it; in the authors' code
            they train.
    """

    languages: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    layers: tuple[Count, ...] = ()
    mlp: Width = 1024
    dropout: Rate = 0.3
    routing: Literal["auto", "one_hot", "gather", "loop", "ragged"] = "auto"
    off: bool = False
    frozen: tuple[str, ...] = ()
    frozen_scales: bool = True

    languages_field = "languages"
    code_fields = ("without", "frozen")

    def edit(self, plan: Plan, config: Model) -> Plan:
        """Return the plan with the branches.

        Raises:
            UserError: if there are no languages or no such layers.
        """
        self.known_languages()  # raises if there are none
        for field in ("without", "frozen"):
            if unknown := [code for code in getattr(self, field) if code not in self.languages]:
                raise UserError(
                    f"LanguageLayers.{field} names {join_names(unknown)}; LanguageLayers.languages are "
                    f"{join_names(self.languages)}"
                )
        if not any(slot >= 0 for slot in self.slots):
            raise UserError(
                f"LanguageLayers.without={self.without!r}: no language has a branch; leave one out"
            )
        layout = plan.layout
        if wrong := [number for number in self.layers if number > layout.layers]:
            raise UserError(
                f"LanguageLayers.layers={self.layers}: the model has {layout.layers} layers, not "
                f"{wrong[0]}"
            )
        kind = LanguageMLP(config.mlp, slots=self.slots, settings=self)
        chosen = self.layers or layout.layers_with(layout.generated)
        return plan.with_layers(
            lambda number, layer: _exchanged(layer, kind) if number in chosen else layer
        )

    def with_language(self, language: str) -> Self:
        """Return it with a branch for the language, and the branches before it frozen.

        Source: third paper, section 4.4.
        """
        before = tuple(code for code in self.languages if code not in self.without)
        return dataclasses.replace(super().with_language(language), frozen=before)

    def resize_param(self, name: str, array: np.ndarray) -> np.ndarray | None:
        """Return a parameter of the branches with one more: the mean of those that are there.

        Source: third paper, Appendix A, of the layers. That a new scale is the mean of the scales
        is inferred; 0.1, the first value of a scale, would be the alternative.
        """
        if not matches(_BRANCH, name):
            return None
        mean = array.mean(axis=0, keepdims=True, dtype=np.float64)
        return np.concatenate([array, mean.astype(array.dtype)])

    def frozen_rows(self) -> tuple[Rows, ...]:
        """Return the slots of the frozen languages."""
        frozen = [
            slot
            for code, slot in zip(self.languages, self.slots, strict=True)
            if code in self.frozen
        ]
        slots = tuple(slot for slot in frozen if slot >= 0)
        names = ("first", "second", "scale") if self.frozen_scales else ("first", "second")
        return tuple((f"{_BRANCH}/{name}", slots) for name in names) if slots else ()

    @property
    def slots(self) -> tuple[int, ...]:
        """Of each language, the branch that it takes; -1 is none."""
        having = [code for code in self.languages if code not in self.without]
        return tuple(having.index(code) if code in having else -1 for code in self.languages)


@dataclasses.dataclass(frozen=True)
class LanguageMLP(FeedForward):
    """A shared feed-forward, and beside it the branch of each position's target language.

    Parameters: `wi` and `wo` as those of a feed-forward; `branch/first` and `branch/second`,
    `kernel` [slots, in, out] and `bias` [slots, out] each; `branch/scale` [slots].

    Attributes:
        slots: of each language of the vocabulary; -1 is none.
        settings: of the method.
    """

    slots: tuple[int, ...] = ()
    settings: LanguageLayers = LanguageLayers()

    has_dropout = True
    languages = ("target_lang",)
    inner: ClassVar = {"branch": "language_mlp"}
    axes: ClassVar = {
        "branch/first/kernel": ("slot", "embed", "mlp"),
        "branch/first/bias": ("slot", "mlp"),
        "branch/second/kernel": ("slot", "mlp", "embed"),
        "branch/second/bias": ("slot", "channel"),
        "branch/scale": ("slot",),
    }

    def module(self, config: Model) -> LanguageFeedForward:
        """Return the shared layers and the branches."""
        activation = self.activation or config.activation
        return LanguageFeedForward(config, self.hidden, config.dropout, activation, self)

    def change(self, module: Any, states: Array, place: PositionInfo) -> Array:
        """Return the change of states, the dropout of both in it."""
        record(module, place, ENTERED, states)
        shared = super().change(module, states, place)
        own = module.branched(states, place)
        return shared if self.settings.off else shared + own

    def entries(self, names: Any, path: tuple[str, ...], theirs: str) -> Iterator[Any]:
        """Yield how the parameters are stored in AdapNonCenter's fairseq.

        Raises:
            UserError: if it has no such model: there one language at most has no branch.
        """
        if len(self.settings.without) > 1:
            raise UserError(
                f"LanguageLayers.without={self.settings.without!r}: AdapNonCenter's models have "
                "one centre at most"
            )
        yield from super().entries(names, path, theirs)
        yield from names.slots(
            (*path, "branch"),
            tuple(f"{theirs}language_specific{number}" for number in (1, 2)),
            (self.count, self.settings.mlp),
        )
        yield names.vector((*path, "branch", "scale"), f"{theirs}information_weights", self.count)

    def unused_elsewhere(self, config: Model) -> int:
        """Return the size of the centre's branch, which the authors allocate and never use."""
        hidden = self.settings.mlp
        return 2 * config.embed * hidden + hidden + config.embed

    def activate(self, config: Model) -> Callable[[Array], Array]:
        """Return the activation of the shared layers and the branches."""
        return ACTIVATIONS[self.activation or config.activation]

    @property
    def count(self) -> int:
        """Number of branches."""
        return max(self.slots) + 1

    def matmuls(self, config: Model, stage: Stage, roles: Sequence[str], lengths: Lengths) -> Maps:
        """Yield the shared layers and those of one branch, as for a language that has one."""
        yield from super().matmuls(config, stage, roles, lengths)
        positions = sum(lengths[role] for role in roles)
        yield "branch/first", positions, (config.embed, self.settings.mlp)
        yield "branch/second", positions, (self.settings.mlp, config.embed)


class LanguageFeedForward(modules.FeedForward):
    """A feed-forward with branches beside it; see `LanguageMLP` for the parameters."""

    kind: Any = None  # a `LanguageMLP`

    def setup(self) -> None:
        """Create the shared layers, which are named as without branches, and the branches."""
        super().setup()
        self.branch = Branch(self.config, self.kind)
        self.drop_branch = Dropout(self.kind.settings.dropout)

    def branched(
        self, states: Float[Array, "batch length embed"], place: PositionInfo
    ) -> Float[Array, "batch length embed"]:
        """Return what the branches change, with the dropout of theirs."""
        own = self.branch(states, place)
        return self.drop_branch(own, deterministic=place.deterministic)


class Branch(nn.Module):
    """The scaled branch of each position's target language; 0 where it has none.

    Parameters: as in `LanguageMLP`.
    """

    config: Model
    kind: LanguageMLP

    def setup(self) -> None:
        """Create the branches."""
        embed, hidden, count = self.config.embed, self.kind.settings.mlp, self.kind.count
        self.first = Stacked((count, embed, hidden))
        self.second = Stacked((count, hidden, embed))
        self.scale = self.param(
            "scale", nn.initializers.constant(_FIRST_SCALE), (count,), jnp.float32
        )

    def __call__(
        self, states: Float[Array, "batch length embed"], place: PositionInfo
    ) -> Float[Array, "batch length embed"]:
        """Return t_l branch_l(states)."""
        slots = jnp.asarray((*self.kind.slots, -1))[place.language("target_lang")]
        own = route(
            states,
            slots,
            Branches(*self.first(), *self.second()),
            self.kind.activate(self.config),
            routing=self._routing(),
        )
        # What has no branch is 0 already: it takes the first's scale, whose gradient is then 0.
        scale = self.scale[jnp.maximum(slots, 0)][..., None]
        return (own * scale).astype(states.dtype)

    def _routing(self) -> str:
        chosen = self.kind.settings.routing
        return choose_routing(self.kind.count, platform()) if chosen == "auto" else chosen


class Stacked(nn.Module):
    """Parameters of one linear layer per slot: `kernel` [slots, in, out] and `bias` [slots, out].

    First values are the authors': Xavier-uniform weights, PyTorch's Linear default for biases.
    """

    shape: tuple[int, int, int]

    @nn.compact
    def __call__(self) -> tuple[Float[Array, slots in out], Float[Array, " slots out"]]:
        """Return both."""
        slots, fan_in, out = self.shape
        kernel = self.param("kernel", _stacked_xavier, self.shape, jnp.float32)
        bias = self.param("bias", uniform_fan_in(fan_in), (slots, out), jnp.float32)
        return kernel, bias


_stacked_xavier = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", batch_axis=(0,))


def _exchanged(layer: Layer, kind: LanguageMLP) -> Layer:
    """Return a layer with its feed-forward exchanged.

    Raises:
        UserError: if it has none.
    """
    if not any(isinstance(each.kind, FeedForward) and each.name == "mlp" for each in layer):
        names = join_names([each.name for each in layer])
        raise UserError(f"language_layers: a layer of {names} has no 'mlp' to stand beside")
    return tuple(
        dataclasses.replace(each, kind=kind) if each.name == "mlp" else each for each in layer
    )
