"""Language-specific layers: CLL in all decoder layers is FCLL, in a single one it is half of SD.

A layer has, next to its feed-forward, a smaller one for each target language but the centre's,
scaled by a learnt number: norm(x + drop(ffn(x)) + drop_q(t_l branch_l(x))).

Source: Qu and Watanabe 2022, section 3, equations 2 and 3; initialisation and position of the
dropout are in the authors' code alone (language-layers spec 2.1).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, Self

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from mnmt_jax.config.sections import Model
from mnmt_jax.design.fields import Count, Rate, Width
from mnmt_jax.design.layout import Stage
from mnmt_jax.design.method import Method
from mnmt_jax.design.method_hooks import Rows
from mnmt_jax.design.plan import Layer, Lengths, Maps, Plan
from mnmt_jax.distributed.sharding import platform
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.model.context import PositionInfo
from mnmt_jax.model.dropout import Dropout
from mnmt_jax.model.intermediates import BRANCH_INPUT, record
from mnmt_jax.model.language_routing import Branches, choose_routing, route
from mnmt_jax.model.modules import ACTIVATIONS, uniform_fan_in
from mnmt_jax.model.param_patterns import matches
from mnmt_jax.model.sublayers import FeedForward, feed_forward_of

_FIRST_SCALE = 0.1
_BRANCH = "mlp/branch"  # path of the parameters of branches


@dataclasses.dataclass(frozen=True)
class LanguageLayers(Method, name="language_layers"):
    """Separate feed-forward layers per target language, next to the shared one.

    Attributes:
        languages: codes of all languages, in the order of the vocabulary's tags; () uses the
            vocabulary's.
        without: languages without a branch: the centre, e.g. `('en',)`.
        layers: layers with branches, counted from 1 across stages; () means all layers with the
            target.
        mlp: hidden width of a branch.
        dropout: rate on their output, after the scale.
        routing: key of `mnmt_jax.model.language_routing.ROUTINGS`; all compute the same values.
            `auto` is the fastest for the number of languages and the devices.
        off: ignore their output, as in the paper's Table 9; the parameters remain.
        frozen: languages whose branches are not trained, when others are added to a trained model.
        frozen_scales: whether their scales are frozen too, as in the paper; the authors' code
            trains them.
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
    inert_fields = ("dropout", "routing", "frozen", "frozen_scales")

    def edit(self, plan: Plan, config: Model) -> Plan:
        """Return the plan with the branches.

        Raises:
            UserError: if there are no languages or the layers do not exist.
        """
        del config
        self.known_languages()  # raises an error if there are none
        for field in ("without", "frozen"):
            if unknown := [code for code in getattr(self, field) if code not in self.languages]:
                raise UserError(
                    f"LanguageLayers.{field} names {join_names(unknown)}; LanguageLayers.languages "
                    f"are {join_names(self.languages)}"
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
        layer_numbers = self.layers or layout.layers_with(layout.generated)
        return plan.with_layers(
            lambda number, layer: _with_branches(layer, self) if number in layer_numbers else layer
        )

    def with_language(self, language: str) -> Self:
        """Return the method with a branch for the language and the previous branches frozen.

        Source: Qu and Watanabe 2022, section 4.4.
        """
        return dataclasses.replace(super().with_language(language), frozen=self.with_branch)

    def slot_languages(self, name: str) -> tuple[str, ...]:
        """Return the languages with a branch for the parameters of branches."""
        return self.with_branch if matches(_BRANCH, name) else ()

    def resize_param(self, name: str, array: np.ndarray) -> np.ndarray | None:
        """Return a parameter of the branches with another slot: the mean of the present ones.

        Source: Qu and Watanabe 2022, Appendix A, for the layers. That a new scale is the mean of
        the scales is inferred; 0.1, the initial value of a scale, would be the alternative.
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
    def with_branch(self) -> tuple[str, ...]:
        """Languages with a branch, in the order of their slots."""
        return tuple(code for code in self.languages if code not in self.without)

    @property
    def slots(self) -> tuple[int, ...]:
        """Index of the branch of each language; -1 means none."""
        with_branch = self.with_branch
        return tuple(
            with_branch.index(code) if code in with_branch else -1 for code in self.languages
        )

    @property
    def count(self) -> int:
        """Number of branches."""
        return len(self.with_branch)


class LanguageMLP(FeedForward):
    """A shared feed-forward plus the branch of each position's target language.

    Parameters: `wi` and `wo` as those of a feed-forward; `branch/first` and `branch/second`,
    `kernel` [slots, in, out] and `bias` [slots, out] each; `branch/scale` [slots].

    Attributes:
        settings: settings of the method.
    """

    settings: LanguageLayers = LanguageLayers()

    languages = ("target_lang",)
    inner: ClassVar = {"branch": "language_mlp"}
    axes: ClassVar = {
        "branch/first/kernel": ("slot", "embed", "mlp"),
        "branch/first/bias": ("slot", "mlp"),
        "branch/second/kernel": ("slot", "mlp", "embed"),
        "branch/second/bias": ("slot", "channel"),
        "branch/scale": ("slot",),
    }

    def setup(self) -> None:
        """Create the shared layers, named as without branches, and the branches."""
        super().setup()
        self.branch = Branch(self.config, self.settings, self.activation or self.config.activation)
        self.drop_branch = Dropout(self.settings.dropout)

    def change(self, states: Float[Array, "batch length embed"], info: PositionInfo) -> Array:
        """Return the change of the states, including the dropout of both."""
        record(self, info, BRANCH_INPUT, states)
        shared = super().change(states, info)
        branched = self.drop_branch(self.branch(states, info), deterministic=info.deterministic)
        return shared if self.settings.off else shared + branched

    def entries(self, names: Any, path: tuple[str, ...], prefix: str) -> Iterator[Any]:
        """Yield the names of the parameters in AdapNonCenter's fairseq.

        Raises:
            UserError: if more than one language has no branch, which it does not support.
        """
        if len(self.settings.without) > 1:
            raise UserError(
                f"LanguageLayers.without={self.settings.without!r}: AdapNonCenter's models have "
                "one centre at most"
            )
        yield from super().entries(names, path, prefix)
        yield from names.slots(
            (*path, "branch"),
            tuple(f"{prefix}language_specific{number}" for number in (1, 2)),
            (self.settings.count, self.settings.mlp),
        )
        yield names.vector(
            (*path, "branch", "scale"), f"{prefix}information_weights", self.settings.count
        )

    def unused_elsewhere(self) -> int:
        """Return the size of the centre's branch, which the authors allocate but never use."""
        embed, hidden = self.config.embed, self.settings.mlp
        return 2 * embed * hidden + hidden + embed

    def matmuls(self, stage: Stage, roles: Sequence[str], lengths: Lengths) -> Maps:
        """Yield the shared layers and a single branch, as for a language with a branch."""
        yield from super().matmuls(stage, roles, lengths)
        positions = sum(lengths[role] for role in roles)
        yield "branch/first", positions, (self.config.embed, self.settings.mlp)
        yield "branch/second", positions, (self.settings.mlp, self.config.embed)


class Branch(nn.Module):
    """The scaled branch of each position's target language; 0 for languages without a branch.

    Parameters: as in `LanguageMLP`.

    Attributes:
        config: sizes of the model.
        settings: settings of the method.
        activation: key of `mnmt_jax.model.modules.ACTIVATIONS`.
    """

    config: Model
    settings: LanguageLayers
    activation: str

    def setup(self) -> None:
        """Create the branches."""
        embed, hidden, count = self.config.embed, self.settings.mlp, self.settings.count
        self.first = Stacked((count, embed, hidden))
        self.second = Stacked((count, hidden, embed))
        self.scale = self.param(
            "scale", nn.initializers.constant(_FIRST_SCALE), (count,), jnp.float32
        )

    def __call__(
        self, states: Float[Array, "batch length embed"], info: PositionInfo
    ) -> Float[Array, "batch length embed"]:
        """Return t_l branch_l(states)."""
        slots = jnp.asarray((*self.settings.slots, -1))[info.language("target_lang")]
        outputs = route(
            states,
            slots,
            Branches(*self.first(), *self.second()),
            ACTIVATIONS[self.activation],
            routing=self._routing(),
        )
        # Positions without a branch are already 0: they use the first scale, with gradient 0.
        scale = self.scale[jnp.maximum(slots, 0)][..., None]
        return (outputs * scale).astype(states.dtype)

    def _routing(self) -> str:
        routing = self.settings.routing
        return choose_routing(self.settings.count, platform()) if routing == "auto" else routing


class Stacked(nn.Module):
    """Parameters of one linear layer per slot: `kernel` [slots, in, out] and `bias` [slots, out].

    Initialisation as by the authors: Xavier-uniform weights, PyTorch's Linear default for biases.
    """

    shape: tuple[int, int, int]

    @nn.compact
    def __call__(self) -> tuple[Float[Array, slots in out], Float[Array, " slots out"]]:
        """Return the kernel and the bias."""
        slots, fan_in, out = self.shape
        kernel = self.param("kernel", _stacked_xavier, self.shape, jnp.float32)
        bias = self.param("bias", uniform_fan_in(fan_in), (slots, out), jnp.float32)
        return kernel, bias


_stacked_xavier = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", batch_axis=(0,))


def _with_branches(layer: Layer, settings: LanguageLayers) -> Layer:
    """Return a layer with branches beside its feed-forward, which keeps its width and settings.

    Raises:
        UserError: if it has no feed-forward.
    """
    shared = feed_forward_of(layer)
    if shared is None:
        names = join_names([sublayer.name for sublayer in layer])
        raise UserError(f"language_layers: a layer of {names} has no 'mlp'")
    kind = LanguageMLP(
        shared.config,
        shared.hidden,
        shared.component,
        shared.other,
        shared.activation,
        shared.config.dropout if shared.dropout is None else shared.dropout,
        settings,
    )
    return tuple(
        dataclasses.replace(sublayer, kind=kind) if sublayer.name == "mlp" else sublayer
        for sublayer in layer
    )
