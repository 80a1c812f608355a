"""What a run minimises: the model, its loss on a micro-batch, and the optimizer that uses it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from mnmt_jax.config.sections import Config
from mnmt_jax.design.generated_batch import GeneratedBatch
from mnmt_jax.design.layout import Layout
from mnmt_jax.design.method import all_objectives
from mnmt_jax.design.objective import Batch, Objective, Player, States
from mnmt_jax.design.views import View
from mnmt_jax.distributed.sharding import batch_shards
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.model.flops import Sentence, forward_flops, train_flops
from mnmt_jax.model.forward_passes import ForwardPasses
from mnmt_jax.model.network import Network, build_model
from mnmt_jax.model.trainable_params import EVERYTHING, Owned, Trainable
from mnmt_jax.training.losses import NLL_TOKENS, LossSums, Sums, chunked_token_loss
from mnmt_jax.training.optimizer import Schedule, make_optimizer, make_schedule

# Tokens whose logits exist at one time, per shard of the batch: 18 rows of 256. Every chunk reads
# and writes the gradient of the whole table. On a CPU logits should stay in its cache: with 512
# tokens an update of a small model with 8,000 pieces ran 1.15 times as fast as with 4,608.
LOSS_CHUNK = 4608
CPU_LOSS_CHUNK = 512


@dataclasses.dataclass(frozen=True, eq=False)
class PlayerUpdate:
    """A player's part of an update.

    Attributes:
        name: of the player; empty for the one that has the cross entropy.
        trainable: which parameters it moves.
        optimizer: from `make_optimizer`.
        objectives: what it minimises, for the last player besides the cross entropy.
        steps: its updates within one update of the run.
    """

    name: str
    trainable: Trainable
    optimizer: optax.GradientTransformation
    objectives: tuple[Objective, ...]
    steps: int = 1

    @classmethod
    def of(cls, player: Player, config: Config) -> PlayerUpdate:
        """Returns the turn of a player of a run."""
        optimizer = dataclasses.replace(config.optimizer, **dict(player.optimizer))
        return cls(
            player.name,
            Owned(owns=player.owns),
            make_optimizer(optimizer, config.train.steps),
            player.objectives,
            player.steps,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Learner:
    """What `train_step` needs besides state and batch: structure and constants of a run.

    Attributes:
        model: the network.
        optimizer: from `make_optimizer`.
        schedule: the optimizer's, for the record.
        label_smoothing: of the loss.
        chunk: tokens, over all devices, whose logits exist at one time.
        seed: of dropout.
        trainable: which parameters train.
        objectives: what is minimised besides the cross entropy.
        before: turns of players that move before the rest.
        derived: what is made of each micro-batch and learnt beside it.
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

    @classmethod
    def from_config(cls, config: Config, vocab_size: int, mesh: jax.sharding.Mesh) -> Learner:
        """Builds the learner that a configuration describes.

        Raises:
            UserError: if a method does not fit the layout or the data, or the model cannot be
                built.
        """
        model = build_model(config.model, vocab_size)
        for method in config.methods:
            method.check(config, model.plan)
        derived = tuple(
            each for method in config.methods for each in method.generated_batches(config)
        )
        _check_names(all_objectives(config.methods), derived, model.layout)
        return cls(
            model,
            make_optimizer(config.optimizer, config.train.steps),
            make_schedule(config.optimizer, config.train.steps),
            config.optimizer.label_smoothing,
            _loss_chunk(mesh) * batch_shards(mesh),
            config.train.seed,
            Trainable.from_config(config.model, config.optimizer),
            tuple(objective for method in config.methods for objective in method.objectives()),
            tuple(
                PlayerUpdate.of(each, config)
                for method in config.methods
                for each in method.players()
            ),
            derived,
        )

    @property
    def player_updates(self) -> tuple[PlayerUpdate, ...]:
        """Returns all players' parts of an update, in order."""
        rest = PlayerUpdate("", self.trainable, self.optimizer, self.objectives)
        return (*self.before, rest)

    @property
    def sums(self) -> tuple[str, ...]:
        """The names of what an update reports."""
        terms = [objective.name for turn in self.player_updates for objective in turn.objectives]
        made = [
            name for each in self.generated_batches for name in (each.name, f"{each.name}_tokens")
        ]
        chosen = () if self.model.layout.grows else (NLL_TOKENS,)
        return (*LossSums._fields, *chosen, *terms, *made)

    @property
    def views(self) -> tuple[View, ...]:
        """The views that objectives read."""
        reads = [
            each for turn in self.player_updates for one in turn.objectives for each in one.reads
        ]
        views = (each.view for each in reads if isinstance(each, States) and each.view)
        return tuple(dict.fromkeys(views))

    def init_optimizers(self, params: Any) -> Any:
        """Returns the state of the optimizer; of several players' by name.

        Raises:
            UserError: if two players own one parameter.
        """
        owned = [name for turn in self.before for name in turn.trainable.names(params)]
        for name in owned:
            if owned.count(name) > 1:
                raise UserError(f"two players own '{name}'; only one may move it")
        states = {
            turn.name: turn.optimizer.init(turn.trainable.split(params)[0])
            for turn in self.player_updates
        }
        return states if self.before else states[""]

    def train_flops(self, pair: Sentence, views: Mapping[View, float]) -> float:
        """Counts the FLOPs that training on one sentence pair needs; see `mnmt_jax.model.flops`.

        Args:
            pair: its lengths.
            views: tokens of the source of each view that objectives read. A derived batch counts
                as pairs whose source is as long as their target, decoded once and trained on.
        """
        model = self.model
        objectives = [objective for turn in self.player_updates for objective in turn.objectives]
        reads = [each for one in objectives for each in one.reads]
        sizes = model.config, model.layout, model.vocab_size
        own = train_flops(
            *sizes,
            pair,
            trainable=self.trainable,
            reads=[each for each in reads if isinstance(each, States)],
            views=views,
        )
        like = Sentence(pair.target, pair.target)
        made = forward_flops(*sizes, like) + train_flops(*sizes, like, trainable=self.trainable)
        return own + len(self.generated_batches) * made

    def warnings(self, step: int, metrics: Mapping[str, float]) -> dict[str, str]:
        """Return what objectives say of their metrics, by the objective's name.

        Args:
            step: number of updates done.
            metrics: means since the last log, by objective.
        """
        lines = {}
        for objective in (one for turn in self.player_updates for one in turn.objectives):
            if objective.warning and (line := objective.warning(step, metrics[objective.name])):
                lines[objective.name] = line
        return lines

    @property
    def is_plain(self) -> bool:
        """Whether it learns the cross entropy alone."""
        return not (self.objectives or self.before or self.generated_batches)

    def plain(self) -> Learner:
        """Returns the learner of the cross entropy alone, which validation measures.

        A validation batch is of one direction, where InstruCL's term of the authors' form is 0.
        """
        return dataclasses.replace(self, objectives=(), before=(), generated_batches=())


def _loss_chunk(mesh: jax.sharding.Mesh) -> int:
    """Return the tokens of a shard whose logits exist at one time."""
    return CPU_LOSS_CHUNK if mesh.devices.flat[0].platform == "cpu" else LOSS_CHUNK


def _check_names(
    objectives: tuple[Objective, ...], derived: tuple[GeneratedBatch, ...], layout: Layout
) -> None:
    """Checks that the names differ and that there is what is read.

    Raises:
        UserError: otherwise.
    """
    terms: tuple[Objective | GeneratedBatch, ...] = (*objectives, *derived)
    names = [*LossSums._fields, "loss", *(each.name for each in terms)]
    names += [f"{each.name}_tokens" for each in derived]
    for each in terms:
        if names.count(each.name) > 1:
            raise UserError(f"objective '{each.name}': the name is taken; choose another")
    for objective in objectives:
        for read in objective.reads:
            if isinstance(read, States) and read.ended and read.layer not in layout.ends:
                raise UserError(
                    f"objective '{objective.name}' reads what a stage ends with after layer "
                    f"{read.layer}; stages end with layers {join_names(list(map(str, layout.ends)))}"
                )
            if isinstance(read, States) and read.layer not in layout.layers_with(read.role):
                raise UserError(
                    f"objective '{objective.name}' reads '{read.role}' after layer {read.layer}, "
                    f"which layout '{layout.name}' does not have; choose another layer"
                )


def batch_loss(
    learner: Learner,
    params: Any,
    batch: Batch,
    rng: Array | None = None,
    step: Array | None = None,
) -> tuple[Array, Sums]:
    """Computes what one micro-batch adds to the loss.

    Where a layout fills masks, labels below 0 are of positions that are not asked for. The loss is
    then divided by all tokens, as Graformer's authors do (Sun et al. 2021), and `nll` by those
    asked for.

    Args:
        learner: the run's constants.
        params: of the model.
        batch: arrays [rows, length], those of the views that objectives read too.
        rng: of dropout; None is without.
        step: number of updates done, for scheduled objectives; None is after their schedules.

    Returns:
        The sum to differentiate, and the sums to report.
    """
    forward = _passes(learner, learner.objectives, params, batch, rng)
    tables = [params[head.table] for head in learner.model.plan.heads]
    layout = learner.model.layout
    present = batch[f"{layout.generated}_segment_ids"] != 0
    labels = batch[f"{layout.generated}_labels"]
    sums = chunked_token_loss(
        list(zip(forward.features, tables, strict=True)),
        labels,
        present & (labels >= 0),
        label_smoothing=learner.label_smoothing,
        chunk=learner.chunk,
    )
    found = sums._asdict()
    if not layout.grows:
        found |= {"tokens": present.sum(dtype=jnp.float32), NLL_TOKENS: sums.tokens}
    terms = {each.name: each.term(forward, step) for each in learner.objectives}
    return sum(terms.values(), sums.smoothed), found | terms


def player_loss(
    learner: Learner,
    turn: PlayerUpdate,
    params: Any,
    batch: Batch,
    rng: Array | None = None,
    step: Array | None = None,
) -> tuple[Array, Sums]:
    """Computes what one micro-batch adds to what a player minimises; as `batch_loss`."""
    if not turn.name:
        return batch_loss(learner, params, batch, rng, step)
    forward = _passes(learner, turn.objectives, params, batch, rng)
    terms = {each.name: each.term(forward, step) for each in turn.objectives}
    present = batch[f"{learner.model.layout.generated}_segment_ids"] != 0
    tokens = present.sum(dtype=jnp.float32)
    return sum(terms.values(), jnp.zeros((), jnp.float32)), terms | {"tokens": tokens}


def _passes(
    learner: Learner,
    objectives: tuple[Objective, ...],
    params: Any,
    batch: Batch,
    rng: Array | None,
) -> ForwardPasses:
    reads = tuple(each for one in objectives for each in one.reads)
    return ForwardPasses(learner.model, params, batch, rng, reads)
