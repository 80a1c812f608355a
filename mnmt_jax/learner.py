"""What a run minimises: the model, its loss on a micro-batch, and the optimizer that uses it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from mnmt_jax.config import Config
from mnmt_jax.contrastive import contrastive_loss, tag_states
from mnmt_jax.data.converter import IDENTITY
from mnmt_jax.data.instruction import INSTRUCTIONS, get_instruction
from mnmt_jax.errors import UserError
from mnmt_jax.flops import Sentence, train_flops
from mnmt_jax.layout import Layout
from mnmt_jax.layouts import LANGUAGES, SOURCE, TARGET
from mnmt_jax.losses import ContrastiveSums, LossSums, Sums, chunked_token_loss
from mnmt_jax.model import Translator, build_model
from mnmt_jax.optimizer import Schedule, make_optimizer, make_schedule
from mnmt_jax.sharding import batch_shards
from mnmt_jax.trainable import EVERYTHING, Trainable

Batch = Mapping[str, Any]

_SECOND_PASS = 1  # folded into the rng of the identity pairs' dropout


@dataclasses.dataclass(frozen=True, eq=False)
class Learner:
    """What `train_step` needs besides state and batch: structure and constants of a run.

    Attributes:
        model: has `features`.
        optimizer: from `make_optimizer`.
        schedule: the optimizer's, for the record.
        label_smoothing: of the loss.
        chunk: tokens, over all devices, whose logits exist at one time.
        seed: of dropout.
        trainable: which parameters train.
        contrastive_layer: as in `mnmt_jax.config.Train`; 0 is without the term.
        contrastive_form: as there.
    """

    model: Translator
    optimizer: optax.GradientTransformation
    schedule: Schedule
    label_smoothing: float
    chunk: int
    seed: int
    trainable: Trainable = EVERYTHING
    contrastive_layer: int = 0
    contrastive_form: str = "code"

    @classmethod
    def from_config(cls, config: Config, vocab_size: int, mesh: jax.sharding.Mesh) -> Learner:
        """Builds the learner that a configuration describes.

        Raises:
            UserError: if the contrastive term does not fit the layout or the instruction, or the
                model cannot be built.
        """
        model = build_model(config.model, vocab_size)
        check_contrastive(config, model.layout)
        return cls(
            model,
            make_optimizer(config.optimizer, config.train.steps),
            make_schedule(config.optimizer, config.train.steps),
            config.optimizer.label_smoothing,
            config.train.loss_chunk * batch_shards(mesh),
            config.train.seed,
            Trainable.from_config(config.model, config.optimizer),
            config.train.contrastive_layer,
            config.train.contrastive_form,
        )

    @property
    def sums(self) -> type[Sums]:
        """What `batch_loss` reports."""
        return ContrastiveSums if self.contrastive_layer else LossSums

    def train_flops(self, pair: Sentence, identity: float = 0.0) -> float:
        """Counts the FLOPs that training on one sentence pair needs; see `mnmt_jax.flops`.

        Args:
            pair: its lengths.
            identity: tokens of the identity pair's source, read with a contrastive term alone.
        """
        model = self.model
        return train_flops(
            model.config,
            model.layout,
            model.vocab_size,
            pair,
            trainable=self.trainable,
            contrastive=(self.contrastive_layer, identity),
        )

    def without_contrastive(self) -> Learner:
        """Returns the learner of the cross entropy alone, which validation measures.

        A validation batch is of one direction, where the term of the authors' form is 0.
        """
        return dataclasses.replace(self, contrastive_layer=0)


def check_contrastive(config: Config, layout: Layout) -> None:
    """Checks that the contrastive term has a layer and tags to compare.

    Raises:
        UserError: otherwise; it names the layers or instructions to choose from.
    """
    layer, legal = config.train.contrastive_layer, layout.layers_with(SOURCE)
    if not layer:
        return
    if layer not in legal:
        raise UserError(
            f"Train.contrastive_layer={layer}: layout '{layout.name}' has source states after the "
            f"layers {legal[0]} to {legal[-1]}; choose one of them, or 0 for no contrastive term"
        )
    if get_instruction(config.data.instruction).source_tag != "target":
        fitting = [key for key, row in INSTRUCTIONS.items() if row.source_tag == "target"]
        raise UserError(
            f"Train.contrastive_layer={layer} compares the target's tags in the source, where "
            f"Data.instruction='{config.data.instruction}' has none; choose one of "
            f"{', '.join(fitting)}, or Train.contrastive_layer=0"
        )


def batch_loss(
    learner: Learner, params: Any, batch: Batch, rng: Array | None = None
) -> tuple[Array, Sums]:
    """Computes what one micro-batch adds to the loss.

    Args:
        learner: the run's constants.
        params: of the model.
        batch: arrays [rows, length]; with a contrastive term those of the identity pairs too.
        rng: of dropout; None is without.

    Returns:
        The sum to differentiate, and the sums to report.
    """
    layer = learner.contrastive_layer
    if layer:
        features, states = _apply(learner, params, rng, "features_and_states", batch, layer)
    else:
        features, states = _apply(learner, params, rng, "features", batch), None
    sums = chunked_token_loss(
        features,
        params["embedding"],
        batch[f"{TARGET}_labels"],
        batch[f"{TARGET}_segment_ids"] != 0,
        label_smoothing=learner.label_smoothing,
        chunk=learner.chunk,
    )
    if states is None:
        return sums.smoothed, sums
    # The second pass has dropout of its own, and gradients flow through both.
    second_rng = None if rng is None else jax.random.fold_in(rng, _SECOND_PASS)
    pairs = {k.removeprefix(IDENTITY): v for k, v in batch.items() if k.startswith(IDENTITY)}
    pairs |= dict.fromkeys(LANGUAGES, batch["target_lang"])
    identity = _apply(learner, params, second_rng, "source_states", pairs, layer)
    term = _contrastive_term(learner, batch, states, identity)
    return sums.smoothed + term, ContrastiveSums(*sums, term)


def _apply(learner: Learner, params: Any, rng: Array | None, method: str, *arguments: Any) -> Any:
    """Runs the model: in train mode with an rng of dropout, without dropout otherwise."""
    return learner.model.apply(
        {"params": params},
        *arguments,
        deterministic=rng is None,
        method=method,
        rngs=None if rng is None else {"dropout": rng},
    )


def _contrastive_term(learner: Learner, batch: Batch, states: Array, identity: Array) -> Array:
    """Compares the tags of the batch's sources, by `states`, with those of the identity pairs."""
    tags, segment_ids = batch["target_lang"], batch[f"{SOURCE}_segment_ids"]
    identity_ids = batch[f"{IDENTITY}{SOURCE}_segment_ids"]
    return contrastive_loss(
        tag_states(states, segment_ids, tags.shape[1]),
        tag_states(identity, identity_ids, tags.shape[1]),
        tags.reshape(-1),
        tags.reshape(-1) >= 0,
        source_tokens=(segment_ids != 0).sum(dtype=jnp.float32),
        form=learner.contrastive_form,
    )
