"""The layers of a model: applied one by one, or as a `lax.scan` in deep stages."""

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
from mnmt_jax.model.quantized_weights import cast_kernels
from mnmt_jax.model.rematerialization import save_policy

_LOOPED_FROM = 8  # layers of a stage; fewer layers compile fast, and run faster unrolled
_GATHERED = "gathered"  # checkpoint name of gathered parameters; a device stores its shard only
_ALL_BUT_GATHERED = jax.checkpoint_policies.save_anything_except_these_names(_GATHERED)
_UNROLLED = 2  # last layers of a stage, where the compiler removes the dead work of some roles


class LayerOutput(NamedTuple):
    """States of each role after a layer, and the keys and values of its self-attention."""

    spans: Spans
    keys_values: Any


def _block(config: Model) -> Any:
    """Return the class of a layer, with `Model.remat` if it is set."""
    return nn.remat(Block, policy=save_policy(config)) if config.remat else Block


class NamedLayer(nn.Module):
    """A single layer of a model, under its name there.

    Attributes:
        config: of the model.
        sublayers: of the layer.
        layer_name: the name of the layer, on which LoRA patterns and dropout keys depend.

    Parameters: those of the layer, under `layer_name`.
    """

    config: Model
    sublayers: Layer
    layer_name: str

    @nn.compact
    def __call__(self, spans: Spans, context: Context) -> LayerOutput:
        """Apply the layer; see `Block`."""
        layer = _block(self.config)(self.config, self.sublayers, name=self.layer_name)
        return LayerOutput(*layer(spans, context))


@functools.partial(jax.jit, static_argnames=("layer",))
def apply_layer(params: Any, spans: Spans, context: Context, *, layer: NamedLayer) -> LayerOutput:
    """Apply a layer with its parameters, or with those of an identical layer.

    The function is jitted so that identical layers are traced once: for a deep model with cached
    programs, tracing takes most of the start-up time.

    Args:
        params: without the layer's name.
        spans: as `Block` takes them.
        context: must be deterministic, because no rng is passed.
        layer: gives the name of the layer.
    """
    output: Any = layer.apply({"params": {layer.layer_name: params}}, spans, context)
    return output


class LayerStack(nn.Module):
    """Base of modules with layers: the model.

    Attributes:
        config: sizes.
        plan: sublayers of its stages.

    Parameters: `layer_{i}` counted through all stages.
    """

    config: Model
    plan: Plan

    def create_layers(self) -> None:
        """Create the layers; call it in `setup`."""
        block = _block(self.config)
        self.layer = [block(self.config, layer) for _, layer in self.plan.layers()]

    def apply_layers(
        self, stage_plan: StagePlan, first: int, spans: Spans, context: Context, *, looped: bool
    ) -> list[LayerOutput]:
        """Run the layers of a stage; in a deep stage, all but the last few as a loop.

        Args:
            stage_plan: the stage.
            first: number of its first layer.
            spans: inputs of the stage.
            context: of the states.
            looped: False always runs them one by one.
        """
        layers = stage_plan.stage.layers
        if not stage_plan.stage.roles:
            return [LayerOutput(spans, {})] * layers
        count = max(layers - _UNROLLED, 0) if looped and self._can_loop(stage_plan, first) else 0
        outputs = self._loop(first, count, spans, context) if count else []
        # Initialisation needs no states, and joined spans are faster to trace.
        context = dataclasses.replace(context, joined=self.is_initializing())
        for number in range(first + count, first + layers):
            spans = outputs[-1].spans if outputs else spans
            outputs.append(self.one_layer(number, spans, context))
        return outputs

    def one_layer(self, number: int, spans: Spans, context: Context) -> LayerOutput:
        """Run a layer.

        Args:
            number: counted through all stages.
            spans: inputs of the layer.
            context: of the states.
        """
        needs_rng = self.is_initializing() or not context.deterministic
        # Rngs and intermediates depend on the names of all modules.
        if needs_rng or self.is_mutable_collection(INTERMEDIATES):
            return LayerOutput(*self.layer[number](spans, context))
        named_layer = self._named_layer(self._first_identical(number))
        return apply_layer(self._layer_params(number), spans, context, layer=named_layer)

    def _can_loop(self, stage_plan: StagePlan, first: int) -> bool:
        count = stage_plan.stage.layers
        if self.is_initializing() or count < _LOOPED_FROM or len(set(stage_plan.layers)) > 1:
            return False
        if self.is_mutable_collection(INTERMEDIATES):  # a loop records nothing
            return False
        layers = (self._layer_params(first + number) for number in range(count))
        return len({jax.tree.structure(layer) for layer in layers}) == 1

    def _loop(self, first: int, count: int, spans: Spans, context: Context) -> list[LayerOutput]:
        """Run layers as `lax.scan`: the program contains, and compiles, only one of them.

        Each iteration applies a layer's parameters under the name of the first layer, so that
        choices by name (LoRA) are the same as outside the loop. It gathers the parameters, and
        gathers them again for the backward pass.
        """
        all_params = [self._layer_params(number) for number in range(first, first + count)]
        stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *all_params)
        config = dataclasses.replace(self.config, remat=False)  # the checkpoint below covers it
        named_layer = dataclasses.replace(self._named_layer(first), config=config)
        rng = None if context.deterministic else self.make_rng("dropout")
        axes = self.plan.param_axes()

        def apply(layer_params: Any, spans: Spans, rngs: Any) -> LayerOutput:
            layer_params = gather_params(
                cast_kernels(layer_params, jnp.dtype(self.config.dtype), axes), axes
            )
            layer_params = checkpoint_name(layer_params, _GATHERED)
            output: Any = named_layer.apply(
                {"params": {named_layer.layer_name: layer_params}}, spans, context, rngs=rngs
            )
            return output

        policy = save_policy(self.config) if self.config.remat else _ALL_BUT_GATHERED
        if self.config.remat or has_mesh():
            # `prevent_cse` is not needed inside a scan.
            apply = jax.checkpoint(apply, policy=policy, prevent_cse=False)

        def step(spans: Spans, layer: tuple[Any, Array]) -> tuple[Spans, LayerOutput]:
            layer_params, number = layer
            rngs = None if rng is None else {"dropout": jax.random.fold_in(rng, number)}
            output = apply(layer_params, spans, rngs)
            return output.spans, output

        last, outputs = jax.lax.scan(step, spans, (stacked, jnp.arange(count)))
        layers = [jax.tree.map(lambda a: a[i], outputs) for i in range(count)]  # noqa: B023
        # If the next layer read its input from the stack, the backward loop would read, and add in
        # each iteration, a gradient as large as the stack.
        return [*layers[:-1], layers[-1]._replace(spans=last)]

    def _named_layer(self, number: int) -> NamedLayer:
        (_, layer), name = [*self.plan.layers()][number], f"layer_{number}"
        return NamedLayer(self.config, layer, name, parent=None)

    def _first_identical(self, number: int) -> int:
        """Return the first identical layer, whose trace is reused; else the layer itself."""
        layers = [layer for _, layer in self.plan.layers()]
        first = layers.index(layers[number])
        structures = {jax.tree.structure(self._layer_params(i)) for i in (number, first)}
        return first if len(structures) == 1 else number

    def _layer_params(self, number: int) -> Any:
        return self.variables["params"][f"layer_{number}"]
