"""t5x wrappers of the project's model, loss and optimizer, for `train`, `eval` and `infer`.

Needs t5x and seqio; nothing outside this package imports it.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from clu import metrics as clu_metrics
from flax import traverse_util
from flax.linen import partitioning as flax_partitioning
from jaxtyping import Array
from t5x import metrics as t5x_metrics
from t5x import models, optimizers, trainer

from mnmt_jax.config.sections import Config
from mnmt_jax.data.converter import BatchExtras, make_converter
from mnmt_jax.decoding.scoring import score_labels
from mnmt_jax.decoding.search_settings import length_limit
from mnmt_jax.design.generated_batch import Batch
from mnmt_jax.design.layouts import LANGUAGES, check_translates
from mnmt_jax.distributed.sharding import make_mesh, param_axes_of
from mnmt_jax.errors import UserError
from mnmt_jax.interop.seqio.tasks import registered_vocabulary
from mnmt_jax.interop.seqio.vocabulary import PieceVocabulary
from mnmt_jax.interop.t5x.decoding import SearchDecode
from mnmt_jax.interop.t5x.feature_names import KINDS, our_batch
from mnmt_jax.interop.t5x.features import RoleFeatureConverter
from mnmt_jax.interop.t5x.parsed import parsed_config
from mnmt_jax.model.trainable_params import join
from mnmt_jax.training.learner import Learner, batch_loss
from mnmt_jax.training.losses import reported_sums
from mnmt_jax.vocabulary.language_codes import find_code


def make_model(
    mixture_or_task_name: str, module: str | None = None, decode_fn: Any = None
) -> TranslationModel:
    """Build the model that the parsed gin files describe.

    Args:
        mixture_or_task_name: a name registered with seqio; determines the vocabulary.
        module: module to import first, which registers the name.
        decode_fn: function with t5x's decode-function interface; None searches as configured in
            `Decode`.

    Raises:
        UserError: if the name is not registered or the configuration is wrong.
    """
    if module:
        importlib.import_module(module)
    vocabulary = registered_vocabulary(mixture_or_task_name)
    return TranslationModel(parsed_config(), vocabulary, decode_fn)


class Optimizer(optimizers.OptaxWrapper):
    """The run's optimizer for t5x: state for trainable parameters only, sharded like them."""

    def __init__(self, learner: Learner) -> None:
        """Wrap the learner's optimizer.

        Args:
            learner: learner of the run.
        """
        self._trainable = learner.trainable
        super().__init__(learner.optimizer)

    def init_state(self, params: Any) -> Any:
        """Return the initial state of the trainable parameters."""
        return super().init_state(self._trainable.split(params)[0])

    def apply_gradient(self, hyper_params: Any, params: Any, state: Any, grads: Any) -> Any:
        """Update the trainable parameters; frozen ones are returned unchanged."""
        trainable, frozen = self._trainable.split(params)
        gradients = self._trainable.zero_frozen_rows(self._trainable.split(grads)[0])
        updated_trainable, state = super().apply_gradient(hyper_params, trainable, state, gradients)
        updated_params = join(
            self._trainable.restore_frozen_rows(updated_trainable, trainable), frozen
        )
        return jax.tree.unflatten(
            jax.tree.structure(params), jax.tree.leaves(updated_params)
        ), state

    def derive_logical_axes(self, optimizer: Any, param_logical_axes: Any) -> Any:
        """Return the optimizer state with axes instead of arrays; scalars have none.

        A moment is matched to its parameter by path: its path ends in the parameter's path.
        """
        axes = traverse_util.flatten_dict(flax.core.unfreeze(param_logical_axes))
        state = traverse_util.flatten_dict(flax.core.unfreeze(optimizer.state_dict()["state"]))
        state_axes = {
            path: next((axes[path[i:]] for i in range(len(path)) if path[i:] in axes), None)
            for path in state
        }
        tree = {"target": param_logical_axes, "state": traverse_util.unflatten_dict(state_axes)}
        return optimizer.restore_state(tree)


class TranslationModel(models.BaseTransformerModel):
    """A layout's model for t5x, with the parameters, loss and search of `mnmt_jax`.

    `loss_fn` returns the loss summed over tokens, which is the default of t5x's models.
    `TokenMeanTrainer` divides its gradient by the tokens of all micro-batches, like `train_step`.
    """

    def __init__(self, config: Config, vocabulary: PieceVocabulary, decode_fn: Any = None) -> None:
        """Build the network, the optimizer and the feature converter.

        Args:
            config: configuration of the run.
            vocabulary: vocabulary of the tasks.
            decode_fn: as in `make_model`.
        """
        pieces = vocabulary.vocabulary
        config = config.bind_languages(pieces.languages, find_code)
        learner = Learner.from_config(config, pieces.size, make_mesh(config.mesh))
        if not learner.model.layout.is_autoregressive:
            raise UserError(
                f"Model.layout='{config.model.layout}': t5x's pipeline makes no masks; train with "
                "'mnmt train'"
            )
        check_translates(learner.model.layout)
        if learner.before:
            raise UserError(
                f"t5x's trainer has one optimizer and '{learner.before[0].name}' needs its own; "
                "train with 'mnmt train'"
            )
        if learner.generated_batches:
            raise UserError(
                f"'{learner.generated_batches[0].name}' makes batches with the model inside the "
                "update, which t5x's trainer cannot; train with 'mnmt train'"
            )
        if learner.batch_changes:
            raise UserError(
                "a method of Train.methods changes batches inside the update (word_dropout, "
                "rdrop), which t5x's trainer does not; train with 'mnmt train'"
            )
        converter = make_converter(
            pieces, learner.model.layout, config.data, BatchExtras.of(config)
        )
        self.FEATURE_CONVERTER_CLS = functools.partial(RoleFeatureConverter, converter)
        self._config, self._learner = config, learner
        self._prefix = converter.instruction.target_extra
        super().__init__(
            module=learner.model,
            input_vocabulary=vocabulary,
            output_vocabulary=vocabulary,
            optimizer_def=Optimizer(learner),
            decode_fn=decode_fn or SearchDecode(config.decode, self._prefix),
            label_smoothing=learner.label_smoothing,
        )

    def get_initial_variables(
        self,
        rng: Array,
        input_shapes: Mapping[str, tuple[int, ...]],
        input_types: Mapping[str, Any] | None = None,
    ) -> Any:
        """Initialise the parameters and name their axes.

        Args:
            rng: key of the initialisation.
            input_shapes: array shapes of a batch.
            input_types: ignored; all arrays are int32.
        """
        del input_types
        batch = {name: jnp.zeros(shape, jnp.int32) for name, shape in input_shapes.items()}
        params = self.module.init(rng, our_batch(batch))["params"]
        return flax.core.freeze({"params": params, "params_axes": self._axes(params)})

    def _axes(self, params: Any) -> Any:
        """Return t5x's tree of axis names, from the plan's table."""

        def axis_metadata(path: tuple[str, ...], leaf: Any) -> flax_partitioning.AxisMetadata:
            names = param_axes_of("/".join(path), self.module.plan.param_axes())
            # The sizes of published vocabularies are often not divisible; such an axis is
            # replicated. So are slots, because their width uses the same axis of t5x's mesh.
            shards = self._config.mesh.tensor
            is_replicated = names[0] == "slot" or (leaf.shape[0] % shards and names[0] == "vocab")
            return flax_partitioning.AxisMetadata(
                names=(None, *names[1:]) if is_replicated else names
            )

        flat = traverse_util.flatten_dict(flax.core.unfreeze(params))
        named = {
            (*path[:-1], f"{path[-1]}_axes"): axis_metadata(path, leaf)
            for path, leaf in flat.items()
        }
        return traverse_util.unflatten_dict(named)

    def loss_fn(
        self, params: Any, batch: Batch, dropout_rng: Array | None
    ) -> tuple[Array, dict[str, Any]]:
        """Sum the loss over a batch's target tokens, with the terms of all objectives.

        Args:
            params: parameters of the model.
            batch: from `RoleFeatureConverter`.
            dropout_rng: key of dropout; None disables dropout.

        Returns:
            The sum, and metrics. `loss`, `nll` and the terms of objectives are in nats per target
            token, as in the project's `metrics.jsonl`.
        """
        trainable, frozen = self._learner.trainable.split(params)
        params = join(trainable, jax.lax.stop_gradient(frozen))
        return self._loss(self._learner, params, batch, dropout_rng)

    def eval_fn(self, params: Any, batch: Batch) -> tuple[Array, dict[str, Any]]:
        """Sum the cross entropy alone, without dropout; see `loss_fn`."""
        return self._loss(self._learner.plain(), params, batch, None)

    def _loss(
        self, learner: Learner, params: Any, batch: Batch, rng: Array | None
    ) -> tuple[Array, dict[str, Any]]:
        ours = our_batch(batch)
        total, sums = batch_loss(learner, params, ours, rng)
        totals, count = reported_sums(sums), sums["tokens"]
        fill_fractions = {
            f"non_padding_fraction/{name.removesuffix('_segment_ids')}": clu_metrics.Average(
                total=(ids != 0).sum(dtype=jnp.float32), count=jnp.float32(ids.size)
            )
            for name, ids in ours.items()
            if name.endswith("_segment_ids")
        }
        return total, {
            **{name: clu_metrics.Average(total=sum, count=count) for name, sum in totals.items()},
            "timing/seconds": t5x_metrics.Time(),
            "timing/steps_per_second": t5x_metrics.StepsPerTime.from_model_output(),
            "timing/target_tokens_per_second": t5x_metrics.TimeRate.from_model_output(
                numerator=count
            ),
            **fill_fractions,
        }

    def predict_batch_with_aux(
        self,
        params: Any,
        batch: Batch,
        rng: Array | None = None,
        *,
        num_decodes: int | None = None,
        return_all_decodes: bool = False,
        decoder_params: Mapping[str, Any] | None = None,
    ) -> tuple[Array, dict[str, Array]]:
        """Translate a batch with `prefill`, `step` and the decode function.

        Args:
            params: parameters of the model.
            batch: from `RoleFeatureConverter`; only the trigger and a forced tag of the target are
                read.
            rng: key of sampling.
            num_decodes: hypotheses per sentence; None takes `Decode.beam_size`.
            return_all_decodes: whether to return all hypotheses, best last, or only the best.
            decoder_params: further arguments of the decode function.

        Returns:
            Generated ids with eos, int32 [batch, steps] or [batch, num_decodes, steps], and their
            `scores`.
        """
        ours = our_batch(batch)
        beam = num_decodes or self._config.decode.beam_size
        limits, steps = self._limits(ours["source_segment_ids"])
        names = [f"{role}_{kind}" for role in self.module.layout.static_roles() for kind in KINDS]
        static = {name: ours[name] for name in (*names, *LANGUAGES)}
        cache = self.module.apply(
            {"params": params},
            static,
            beam=beam,
            max_steps=steps + self._prefix - 1,
            method="prefill",
        )
        rows = limits.shape[0]
        prompt = jnp.zeros((rows, steps), jnp.int32)
        prompt = prompt.at[:, : self._prefix].set(ours["target_tokens"][:, : self._prefix])

        def tokens_to_logits(state: Any) -> tuple[Array, Any]:
            tokens = state.cur_token.reshape(rows, beam)
            outputs: Any = self.module.apply({"params": params}, tokens, state.cache, method="step")
            return outputs[0].reshape(rows * beam, -1), outputs[1]

        options: dict[str, Any] = {"eos_id": self.output_vocabulary.eos_id, "decode_rng": rng}
        if isinstance(self.decode_fn, SearchDecode):
            options["max_length"] = limits
        decodes, scores = self.decode_fn(
            inputs=prompt,
            cache=cache,
            tokens_to_logits=tokens_to_logits,
            num_decodes=beam,
            cache_offset=0,
            **options | dict(decoder_params or {}),
        )
        if return_all_decodes:
            return decodes, {"scores": scores}
        return decodes[:, -1], {"scores": scores[:, -1]}

    def _limits(self, source_segment_ids: Array) -> tuple[Array, int]:
        """Return the maximum generated tokens per sentence, and the number of search steps."""
        width = source_segment_ids.shape[1]
        table = np.array(
            [length_limit(self._config.decode, length) for length in range(width + 1)], np.int32
        )
        return jnp.asarray(table)[(source_segment_ids != 0).sum(axis=1)], int(table[-1]) + 1

    def score_batch(self, params: Any, batch: Batch, return_intermediates: bool = False) -> Array:
        """Sum the log-probabilities of the targets, with eos and without forced tags.

        Args:
            params: parameters of the model.
            batch: from `RoleFeatureConverter`, one pair per row.
            return_intermediates: not supported.

        Returns:
            Log-probabilities in nats, float32 [batch].
        """
        if return_intermediates:
            raise NotImplementedError("the model records no intermediate values")
        ours = our_batch(batch)
        scored = (ours["target_segment_ids"] != 0) & (ours["target_positions"] >= self._prefix - 1)
        logits = self._compute_logits(params, ours)
        return score_labels(logits, ours["target_labels"], scored, length_penalty=0.0)

    def _compute_logits(self, params: Any, batch: Batch, dropout_rng: Array | None = None) -> Any:
        del dropout_rng
        return self.module.apply({"params": params}, batch)


class TokenMeanTrainer(trainer.Trainer):
    """t5x's trainer with the gradient divided by the global number of target tokens.

    t5x's trainer adds the gradients of micro-batches and leaves the scale to the model, which does
    not know the token counts of the other micro-batches.
    """

    @functools.cached_property
    def _partitioned_train_step(self) -> Any:
        def train_step(state: Any, batch: Batch) -> tuple[Any, Any]:
            gradients, metrics, _ = trainer.accumulate_grads_microbatched(
                self._model,
                state,
                batch,
                self._get_step_rng(state.step),
                self._num_microbatches,
                self._partitioner.data_partition_spec,
            )
            tokens = jnp.maximum(metrics["loss"].count, 1.0)
            gradients = jax.tree.map(lambda gradient: gradient / tokens, gradients)
            rate = self._learning_rate_fn(state.step)
            return trainer.apply_grads(
                state, gradients, metrics, rate, self._weight_metrics_computer
            )

        rows = self._partitioner.data_partition_spec
        return self._partitioner.partition(
            train_step,
            in_axis_resources=(self._train_state_axes, rows),
            out_axis_resources=(self._train_state_axes, None),
            donate_argnums=(0,),
        )
