"""How states pass the layers of a stage: one after the other, or as a loop if they are many."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from mnmt_jax.config.sections import Model
from mnmt_jax.design.plan import Layer, Plan, StagePlan
from mnmt_jax.distributed.sharding import gather_params, has_mesh
from mnmt_jax.model.block import Block
from mnmt_jax.model.context import Context, Spans
from mnmt_jax.model.intermediates import INTERMEDIATES
from mnmt_jax.model.quantized_weights import as_multiplied

_LOOPED_FROM = 8  # layers of a stage: fewer compile fast, and run faster unrolled
_COLLECTED = "collected"  # parameters, of which a device keeps its part
_ALL_BUT_COLLECTED = jax.checkpoint_policies.save_anything_except_these_names(_COLLECTED)
_UNROLLED = 2  # last layers of a stage, where some roles are dead work that the compiler removes


class LayerOutput(NamedTuple):
    """What a layer made: the states of each role after it, and what the reader keeps."""

    spans: Spans
    keys_values: Any


class NamedLayer(nn.Module):
    """A layer of a model under its name there, without the rest of the model.

    Attributes:
        config: of the model.
        sublayers: of the layer.
        called: its name: patterns of LoRA and the draws of dropout go by it.

    Parameters: the layer's, under `called`.
    """

    config: Model
    sublayers: Layer
    called: str

    @nn.compact
    def __call__(self, spans: Spans, context: Context) -> LayerOutput:
        """Applies the layer; see `Block`."""
        block = nn.remat(Block) if self.config.remat else Block
        layer = block(self.config, self.sublayers, name=self.called)
        return LayerOutput(*layer(spans, context))


@functools.partial(jax.jit, static_argnames=("layer",))
def apply_layer(params: Any, spans: Spans, context: Context, *, layer: NamedLayer) -> LayerOutput:
    """Applies a layer to parameters: its own, or those of one alike.

    A function of its own is traced once for all layers alike; tracing is most of what a deep model
    takes before its first line when its programs are kept.

    Args:
        params: without the layer's name.
        spans: as `Block` takes them.
        context: a deterministic one, since nothing is drawn here.
        layer: whose name counts.
    """
    passed: Any = layer.apply({"params": {layer.called: params}}, spans, context)
    return passed


class LayerStack(nn.Module):
    """What has layers: the model.

    Attributes:
        config: sizes.
        plan: what its stages consist of.

    Parameters: `layer_{i}` counted through all stages.
    """

    config: Model
    plan: Plan

    def create_layers(self) -> None:
        """Creates the layers, in `setup`."""
        block = nn.remat(Block) if self.config.remat else Block
        self.layer = [block(self.config, layer) for _, layer in self.plan.layers()]

    def apply_layers(
        self, part: StagePlan, first: int, spans: Spans, context: Context, *, looped: bool
    ) -> list[LayerOutput]:
        """Runs the layers of a stage, all but the last ones as a loop if they are many.

        Args:
            part: the stage.
            first: number of its first layer.
            spans: what enters it.
            context: of its states.
            looped: False runs them one by one in any case.
        """
        layers = part.stage.layers
        if not part.stage.roles:
            return [LayerOutput(spans, {})] * layers
        count = max(layers - _UNROLLED, 0) if looped and self._can_loop(part, first) else 0
        passed = self._loop(first, count, spans, context) if count else []
        # Drawing parameters asks for no states: joined there is less to trace.
        context = dataclasses.replace(context, joined=self.is_initializing())
        for number in range(first + count, first + layers):
            spans = passed[-1].spans if passed else spans
            passed.append(self.one_layer(number, spans, context))
        return passed

    def one_layer(self, number: int, spans: Spans, context: Context) -> LayerOutput:
        """Runs a layer.

        Args:
            number: counted through all stages.
            spans: what enters it.
            context: of its states.
        """
        drawn = self.is_initializing() or not context.deterministic
        if drawn or self.is_mutable_collection(
            INTERMEDIATES
        ):  # these go by the names of all modules
            return LayerOutput(*self.layer[number](spans, context))
        alone = self._alone(self._first_alike(number))
        return apply_layer(self._layer_params(number), spans, context, layer=alone)

    def _can_loop(self, part: StagePlan, first: int) -> bool:
        count = part.stage.layers
        if self.is_initializing() or count < _LOOPED_FROM or len(set(part.layers)) > 1:
            return False
        if self.is_mutable_collection(INTERMEDIATES):  # a loop hands nothing out
            return False
        layers = (self._layer_params(first + number) for number in range(count))
        return len({jax.tree.structure(layer) for layer in layers}) == 1

    def _loop(self, first: int, count: int, spans: Spans, context: Context) -> list[LayerOutput]:
        """Runs layers as `lax.scan`: the program holds one of them, and compiles in its time.

        Each round gives a layer's parameters the first one's name: so what names decide (LoRA) is
        what it is outside. It collects them, and again for the backward pass.
        """
        layers = [self._layer_params(number) for number in range(first, first + count)]
        stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *layers)
        whole = dataclasses.replace(self.config, remat=False)  # here what is collected goes too
        alone = dataclasses.replace(self._alone(first), config=whole)
        rng = None if context.deterministic else self.make_rng("dropout")
        axes = self.plan.param_axes()

        def apply(own: Any, spans: Spans, rngs: Any) -> LayerOutput:
            own = gather_params(as_multiplied(own, jnp.dtype(self.config.dtype), axes), axes)
            own = checkpoint_name(own, _COLLECTED)
            passed: Any = alone.apply({"params": {alone.called: own}}, spans, context, rngs=rngs)
            return passed

        keeps = None if self.config.remat else _ALL_BUT_COLLECTED
        if self.config.remat or has_mesh():
            # A loop prevents by itself that what is recomputed is taken for what was there.
            apply = jax.checkpoint(apply, policy=keeps, prevent_cse=False)

        def one(spans: Spans, layer: tuple[Any, Array]) -> tuple[Spans, LayerOutput]:
            own, number = layer
            rngs = None if rng is None else {"dropout": jax.random.fold_in(rng, number)}
            passed = apply(own, spans, rngs)
            return passed.spans, passed

        _, every = jax.lax.scan(one, spans, (stacked, jnp.arange(count)))
        return [jax.tree.map(lambda a: a[number], every) for number in range(count)]  # noqa: B023

    def _alone(self, number: int) -> NamedLayer:
        (_, layer), name = [*self.plan.layers()][number], f"layer_{number}"
        return NamedLayer(self.config, layer, name, parent=None)

    def _first_alike(self, number: int) -> int:
        """Returns the first layer that another one's parameters may be given to."""
        layers = [layer for _, layer in self.plan.layers()]
        first = layers.index(layers[number])
        found = {jax.tree.structure(self._layer_params(each)) for each in (number, first)}
        return first if len(found) == 1 else number

    def _layer_params(self, number: int) -> Any:
        return self.variables["params"][f"layer_{number}"]
