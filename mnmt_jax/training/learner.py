"""The learner of a run: the network, the loss of a micro-batch, and the optimizers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from mnmt_jax.config.sections import Config, Model
from mnmt_jax.data.instruction import get_instruction
from mnmt_jax.design.generated_batch import Batch, BatchChange, GeneratedBatch
from mnmt_jax.design.layout import Layout
from mnmt_jax.design.layouts import REGISTER
from mnmt_jax.design.method import all_objectives
from mnmt_jax.design.objective import LogProbs, Objective, Player, States
from mnmt_jax.design.views import View
from mnmt_jax.distributed.sharding import ParamAxes, batch_shards
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.model.flops import Sentence, forward_flops, train_flops
from mnmt_jax.model.forward_passes import ForwardPasses
from mnmt_jax.model.network import Network, build_model
from mnmt_jax.model.rng_offsets import RngOffset
from mnmt_jax.model.trainable_params import EVERYTHING, PlayerParams, Trainable
from mnmt_jax.training.generated_batches import StepModel, change_batch
from mnmt_jax.training.losses import (
    NLL_TOKENS,
    LossSums,
    Sums,
    chunked_token_loss,
    token_count_name,
)
from mnmt_jax.training.optimizer import Schedule, make_optimizer, make_schedule

# Tokens whose logits are in memory at a time, per batch shard: 18 rows of 256. Each chunk reads and
# writes the gradient of the full table. On a CPU the logits should fit in its cache: with 512
# tokens, an update of a small model with 8,000 pieces ran 1.15 times as fast as with 4,608.
LOSS_CHUNK = 4608
CPU_LOSS_CHUNK = 512


@dataclasses.dataclass(frozen=True, eq=False)
class PlayerUpdate:
    """The update of one player.

    Attributes:
        name: name of the player; empty for the player that minimises the cross entropy.
        trainable: parameters that the player updates.
        optimizer: transformation from `make_optimizer`.
        objectives: objectives that it minimises. The unnamed player adds the cross entropy.
        steps: optimizer steps of the player per update of the run.
    """

    name: str
    trainable: Trainable
    optimizer: optax.GradientTransformation
    objectives: tuple[Objective, ...]
    steps: int = 1

    @classmethod
    def of(cls, player: Player, config: Config, param_axes: ParamAxes) -> PlayerUpdate:
        """Return the update of a player under a run's configuration; axes as `make_optimizer`."""
        optimizer = dataclasses.replace(config.optimizer, **dict(player.optimizer))
        return cls(
            player.name,
            PlayerParams(patterns=player.param_patterns),
            make_optimizer(
                optimizer, config.train.steps, param_axes, steps_per_update=player.steps
            ),
            player.objectives,
            player.steps,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Learner:
    """Structure and constants of a run: all that `train_step` needs besides state and batch.

    Attributes:
        model: the network.
        optimizer: transformation from `make_optimizer`.
        schedule: learning rate of the optimizer, for logging.
        label_smoothing: epsilon of the loss.
        chunk: tokens, over all devices, whose logits are in memory at a time.
        seed: seed of dropout.
        trainable: parameters that train.
        objectives: terms that are minimised besides the cross entropy.
        before: updates of the players that precede the unnamed player.
        generated_batches: batches that are generated from each micro-batch and also trained on.
        prefix_length: number of target tokens that are not generated in translation.
        ema_decay: decay of the moving average of the parameters; 0 keeps none.
        batch_changes: changes of each micro-batch before it is trained on.
        allow_unk: whether translations in training may have `<unk>`.
    """

    model: Network
    optimizer: optax.GradientTransformation
    schedule: Schedule
    label_smoothing: float
    chunk: int
    seed: int
    trainable: Trainable = EVERYTHING
    objectives: tuple[Objective, ...] = ()
    before: tuple[PlayerUpdate, ...] = ()
    generated_batches: tuple[GeneratedBatch, ...] = ()
    prefix_length: int = 1
    ema_decay: float = 0.0
    batch_changes: tuple[BatchChange, ...] = ()
    allow_unk: bool = False

    @classmethod
    def from_config(cls, config: Config, vocab_size: int, mesh: jax.sharding.Mesh) -> Learner:
        """Build the learner of a configuration.

        Raises:
            UserError: if a method does not fit the layout or the data, a setting has no effect in
                the layout, or the model cannot be built.
        """
        model = build_model(config.model, vocab_size)
        _check_applies(config.model, model.layout)
        for method in config.methods:
            method.check(config, model.plan)
        generated = tuple(
            spec for method in config.methods for spec in method.generated_batches(config)
        )
        _check_names(all_objectives(config.methods), generated, model.layout)
        axes = model.plan.param_axes()
        return cls(
            model=model,
            optimizer=make_optimizer(config.optimizer, config.train.steps, axes),
            schedule=make_schedule(config.optimizer, config.train.steps),
            label_smoothing=config.optimizer.label_smoothing,
            chunk=_loss_chunk(mesh) * batch_shards(mesh),
            seed=config.train.seed,
            trainable=Trainable.from_config(config.model, config.optimizer),
            objectives=tuple(
                objective for method in config.methods for objective in method.objectives()
            ),
            before=tuple(
                PlayerUpdate.of(player, config, axes)
                for method in config.methods
                for player in method.players()
            ),
            generated_batches=generated,
            prefix_length=get_instruction(config.data.instruction).target_extra,
            ema_decay=config.optimizer.ema_decay,
            batch_changes=tuple(
                change for method in config.methods for change in method.batch_changes()
            ),
            allow_unk=config.decode.allow_unk,
        )

    @property
    def player_updates(self) -> tuple[PlayerUpdate, ...]:
        """The updates of all players, in order."""
        main_update = PlayerUpdate("", self.trainable, self.optimizer, self.objectives)
        return (*self.before, main_update)

    @property
    def all_objectives(self) -> tuple[Objective, ...]:
        """The objectives of all players, in order."""
        return tuple(objective for update in self.player_updates for objective in update.objectives)

    @property
    def sums(self) -> tuple[str, ...]:
        """The names of the sums that an update reports."""
        terms = [objective.name for objective in self.all_objectives]
        generated = [spec.name for spec in self.generated_batches]
        counted = [*(objective.name for objective in self.objectives), *generated]
        counts = map(token_count_name, counted) if generated else ()
        nll_tokens = () if self.model.layout.is_autoregressive else (NLL_TOKENS,)
        return (*LossSums._fields, *nll_tokens, *terms, *generated, *counts)

    @property
    def views(self) -> tuple[View, ...]:
        """The views that objectives read."""
        inputs = [request for objective in self.all_objectives for request in objective.inputs]
        views = (request.view for request in inputs if isinstance(request, States) and request.view)
        return tuple(dict.fromkeys(views))

    def init_optimizers(self, params: Any) -> Any:
        """Return the initial optimizer state; with several players, their states by name.

        Raises:
            UserError: if two players own the same parameter.
        """
        owned = [name for update in self.before for name in update.trainable.names(params)]
        for name in owned:
            if owned.count(name) > 1:
                raise UserError(f"two players own '{name}'; only one may train it")
        states = {
            update.name: update.optimizer.init(update.trainable.split(params)[0])
            for update in self.player_updates
        }
        return states if self.before else states[""]

    def train_flops(self, pair: Sentence, views: Mapping[View, float]) -> float:
        """Count the FLOPs of training on one sentence pair; see `mnmt_jax.model.flops`.

        Args:
            pair: lengths of the pair.
            views: source tokens of each view that objectives read. A generated batch counts as
                pairs whose source is as long as their target, decoded once and trained on, and a
                changed batch whose log-probabilities are read as the pair trained on again,
                without a search that makes it.
        """
        model = self.model
        inputs = [request for objective in self.all_objectives for request in objective.inputs]
        sizes = model.config, model.layout, model.vocab_size
        pair_flops = train_flops(
            *sizes,
            pair,
            trainable=self.trainable,
            requests=[request for request in inputs if isinstance(request, States)],
            views=views,
        )
        generated_pair = Sentence(pair.target, pair.target)
        generated_flops = forward_flops(*sizes, generated_pair) + train_flops(
            *sizes, generated_pair, trainable=self.trainable
        )
        changed = {
            request for request in inputs if isinstance(request, LogProbs) and request.change
        }
        changed_flops = len(changed) * train_flops(*sizes, pair, trainable=self.trainable)
        copies = math.prod(change.copies for change in self.batch_changes)
        return copies * pair_flops + changed_flops + len(self.generated_batches) * generated_flops

    def warnings(self, step: int, metrics: Mapping[str, float]) -> dict[str, str]:
        """Return the warnings of objectives about their metrics, by the objective's name.

        Args:
            step: number of updates done.
            metrics: means since the last log, by objective.
        """
        warnings = {}
        for objective in self.all_objectives:
            if objective.warning and (warning := objective.warning(step, metrics[objective.name])):
                warnings[objective.name] = warning
        return warnings

    def step_model(self, params: Any, batch: Batch, rng: Array | None) -> StepModel:
        """Return the model and a micro-batch, for functions that generate or change batches.

        Args:
            params: parameters of the model.
            batch: arrays [rows, length] of the micro-batch.
            rng: key of the micro-batch; None uses a constant key.
        """
        rng = jax.random.key(0) if rng is None else rng
        return StepModel(self.model, params, batch, rng, self.prefix_length, self.allow_unk)

    @property
    def is_plain(self) -> bool:
        """Whether the cross entropy is the only objective."""
        return not (self.objectives or self.before or self.generated_batches)

    def plain(self) -> Learner:
        """Return the learner of the cross entropy alone, which validation measures.

        A validation batch has one direction, where InstruCL's term in the authors' form is 0.
        """
        return dataclasses.replace(
            self, objectives=(), before=(), generated_batches=(), batch_changes=()
        )


def _loss_chunk(mesh: jax.sharding.Mesh) -> int:
    """Return the tokens per batch shard whose logits are in memory at a time."""
    return CPU_LOSS_CHUNK if mesh.devices.flat[0].platform == "cpu" else LOSS_CHUNK


def _check_applies(model: Model, layout: Layout) -> None:
    """Check that a layout without registers has no number of them.

    Raises:
        UserError: otherwise.
    """
    default = Model.register_factor
    if REGISTER not in layout.embedded_roles() and model.register_factor != default:
        raise UserError(
            f"Model.register_factor={model.register_factor:g}: layout '{layout.name}' has no "
            f"registers; set Model.register_factor={default:g}, or choose a layout that has them"
        )


def _check_names(
    objectives: tuple[Objective, ...], generated: tuple[GeneratedBatch, ...], layout: Layout
) -> None:
    """Check that names are unique and that the layout has all states that objectives read.

    Raises:
        UserError: otherwise.
    """
    terms: tuple[Objective | GeneratedBatch, ...] = (*objectives, *generated)
    names = [*LossSums._fields, "loss", *(term.name for term in terms)]
    if generated:
        names += [token_count_name(term.name) for term in terms]
    for term in terms:
        if names.count(term.name) > 1:
            raise UserError(f"objective '{term.name}': the name is taken; choose another")
    for objective in objectives:
        for request in objective.inputs:
            if not isinstance(request, States):
                continue
            if request.ended and request.layer not in layout.last_layers:
                raise UserError(
                    f"objective '{objective.name}' reads the end of a stage after layer "
                    f"{request.layer}; stages end with layers "
                    f"{join_names(list(map(str, layout.last_layers)))}"
                )
            if request.layer not in layout.layers_with(request.role):
                raise UserError(
                    f"objective '{objective.name}' reads '{request.role}' after layer "
                    f"{request.layer}, which layout '{layout.name}' does not have; choose another "
                    "layer"
                )


def batch_loss(
    learner: Learner,
    params: Any,
    batch: Batch,
    rng: Array | None = None,
    step: Array | None = None,
) -> tuple[Array, Sums]:
    """Compute the loss and the sums of one micro-batch.

    In a layout that fills masks, labels below 0 mark positions without a prediction. The loss is
    then divided by all tokens, as Graformer's authors do (Sun et al. 2021), and `nll` by the
    predicted tokens.

    Args:
        learner: constants of the run.
        params: parameters of the model.
        batch: arrays [rows, length], including those of the views that objectives read.
        rng: key of dropout; None disables dropout.
        step: number of updates done, for scheduled objectives; None means after their schedules.

    Returns:
        The sum to differentiate, and the sums to report.
    """
    batch = _changed(learner, params, batch, rng)
    passes = _forward_passes(learner, learner.objectives, params, batch, rng)
    tables = [params[head.table] for head in learner.model.plan.heads]
    layout = learner.model.layout
    present = batch[f"{layout.generated}_segment_ids"] != 0
    labels = batch[f"{layout.generated}_labels"]
    sums = chunked_token_loss(
        list(zip(passes.features, tables, strict=True)),
        labels,
        present & (labels >= 0),
        label_smoothing=learner.label_smoothing,
        chunk=learner.chunk,
    )
    reported = sums._asdict()
    if not layout.is_autoregressive:
        reported |= {"tokens": present.sum(dtype=jnp.float32), NLL_TOKENS: sums.tokens}
    terms = {objective.name: objective.term(passes, step) for objective in learner.objectives}
    return sum(terms.values(), sums.smoothed), reported | terms


def player_loss(
    learner: Learner,
    update: PlayerUpdate,
    params: Any,
    batch: Batch,
    rng: Array | None = None,
    step: Array | None = None,
) -> tuple[Array, Sums]:
    """Compute the loss of a player on one micro-batch; arguments as in `batch_loss`."""
    if not update.name:
        return batch_loss(learner, params, batch, rng, step)
    batch = _changed(learner, params, batch, rng)
    passes = _forward_passes(learner, update.objectives, params, batch, rng)
    terms = {objective.name: objective.term(passes, step) for objective in update.objectives}
    present = batch[f"{learner.model.layout.generated}_segment_ids"] != 0
    tokens = present.sum(dtype=jnp.float32)
    return sum(terms.values(), jnp.zeros((), jnp.float32)), terms | {"tokens": tokens}


def _changed(learner: Learner, params: Any, batch: Batch, rng: Array | None) -> Batch:
    """Return a micro-batch after `Learner.batch_changes`."""
    for number, spec in enumerate(learner.batch_changes):
        key = None if rng is None else jax.random.fold_in(rng, RngOffset.BATCH_CHANGE)
        model = learner.step_model(params, batch, key)
        batch = {**batch, **change_batch(spec.change, number, model)}
    return batch


def _forward_passes(
    learner: Learner,
    objectives: tuple[Objective, ...],
    params: Any,
    batch: Batch,
    rng: Array | None,
) -> ForwardPasses:
    inputs = tuple(request for objective in objectives for request in objective.inputs)
    changed = {
        request: change_batch(request.change, number, learner.step_model(params, batch, rng))
        for number, request in enumerate(dict.fromkeys(inputs))
        if isinstance(request, LogProbs) and request.change
    }
    return ForwardPasses(
        learner.model, params, batch, rng, inputs, changed=changed, chunk=learner.chunk
    )
