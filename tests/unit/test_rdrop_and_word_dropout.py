"""R-Drop and word dropout: changed batches, the divergence, learning, meshes and resuming."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.config.sections import Mesh
from mnmt_jax.design.generated_batch import Batch, BatchChange, GenerationModel
from mnmt_jax.distributed.sharding import jit_with_mesh, make_mesh, place_batch
from mnmt_jax.errors import UserError
from mnmt_jax.methods.back_translation import BackTranslation
from mnmt_jax.methods.instructcl import InstruCL
from mnmt_jax.methods.rdrop import RDrop, mean_divergence
from mnmt_jax.methods.tpdm import TPDM
from mnmt_jax.methods.word_dropout import WordDropout
from mnmt_jax.model.flops import Sentence
from mnmt_jax.model.forward_passes import ForwardPasses
from mnmt_jax.training.gradients import sum_gradients
from mnmt_jax.training.learner import Learner, _changed, batch_loss
from mnmt_jax.training.state import make_init
from mnmt_jax.training.train_step import train_step
from mnmt_jax.vocabulary.special_ids import PAD_ID, UNK_ID
from tests import method_setting
from tests.made_run import make_cache, train_and_continue
from tests.method_setting import CODES, VOCABULARY
from tests.random_params import STRONG, random_params
from tests.unit.test_unlikelihood import setting

FIRST_TAG = VOCABULARY.size - len(CODES)
METHODS = {"rdrop": RDrop(), "word_dropout": WordDropout(source=0.4, target=0.3)}


def configure(folder="", *methods, **changes):
    model = {"dropout": 0.3} | changes.pop("model", {})
    return method_setting.configure(folder, *methods, model=model, **changes)


def learner_of(*methods, **changes) -> Learner:
    return method_setting.learner_of(configure("", *methods, **changes))


def batch_of(repeats: int = 1):
    """Return the batch of register models in the tests of unlikelihood; rows times `repeats`."""
    return {name: jnp.tile(array, (repeats, 1)) for name, array in setting()[-1].items()}


def test_changes_of_batches_read_the_prefix_of_the_run():
    """A tag at the start of the target is part of what is not generated."""
    learner, lengths = learner_of(METHODS["word_dropout"]), []

    def change(model: GenerationModel) -> Batch:
        lengths.append(model.prefix_length)
        return {}

    learner = dataclasses.replace(learner, prefix_length=2, batch_changes=(BatchChange(change),))
    _changed(learner, {}, batch_of(), None)
    assert lengths == [2]


def test_word_dropout_replaces_pieces_of_inputs_at_its_rates():
    learner = learner_of(METHODS["word_dropout"])
    params, batch = random_params(learner.model, 3, STRONG), batch_of(60)
    noisy = jax.device_get(_changed(learner, params, batch, jax.random.key(1)))
    changed = {name for name in batch if (np.asarray(batch[name]) != noisy[name]).any()}
    assert changed == {"source_tokens", "target_tokens"}
    for role, rate in (("source", 0.4), ("target", 0.3)):
        before, after = np.asarray(batch[f"{role}_tokens"]), noisy[f"{role}_tokens"]
        is_piece = (before > UNK_ID) & (before < FIRST_TAG)
        is_replaced = before != after
        assert (after[is_replaced] == UNK_ID).all() and not is_replaced[~is_piece].any()
        assert (before[~is_piece] > PAD_ID).any()
        assert is_replaced.sum() / is_piece.sum() == pytest.approx(rate, abs=0.04)
    again = jax.device_get(_changed(learner, params, batch, jax.random.key(2)))
    assert (again["source_tokens"] != noisy["source_tokens"]).any()
    assert _changed(learner.plain(), params, batch, jax.random.key(1)) is batch


@pytest.mark.parametrize(
    ("methods", "model", "player", "count"),
    [((BackTranslation(),), (), -1, 2), ((), (TPDM(layer=1),), 0, 1)],
)
def test_changes_of_batches_reach_generated_pairs_and_players(methods, model, player, count):
    """A generated source, which is a translation, has another width than the real one."""
    learner = learner_of(*methods, model={"methods": model}, data={"max_segments": 1})
    widths = []

    def change(model: GenerationModel) -> Batch:
        widths.append(model.batch["source_tokens"].shape[1])
        return {}

    learner = dataclasses.replace(learner, batch_changes=(BatchChange(change),))
    update = learner.player_updates[player]
    split = update.trainable.split(random_params(learner.model, 3))
    stacked = {name: array[None] for name, array in batch_of().items()}
    gradients = functools.partial(sum_gradients, learner, update)
    jax.eval_shape(gradients, split, stacked, jax.random.key(0), jnp.int32(0))
    assert len(widths) == len({*widths}) == count
    assert widths[0] == stacked["source_tokens"].shape[-1]


def test_the_divergence_equals_the_sum_of_two_by_definition():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(6, 2, 5)).astype(np.float32)
    p = np.exp(logits.astype(np.float64))
    p /= p.sum(axis=-1, keepdims=True)
    expected = np.zeros((3, 2))
    for pair in range(3):
        first, second = p[2 * pair], p[2 * pair + 1]
        kl = (first * np.log(first / second)).sum(-1) + (second * np.log(second / first)).sum(-1)
        expected[pair] = kl / 2
    np.testing.assert_allclose(mean_divergence(jnp.asarray(logits)), expected, rtol=1e-5)


def test_the_loss_is_that_of_two_passes_with_their_divergence():
    """The sums equal those of the logits of the repeated rows, computed outside."""
    learner = dataclasses.replace(learner_of(RDrop(2.0)), chunk=7)
    params, batch, rng = random_params(learner.model, 3, STRONG), batch_of(), jax.random.key(5)
    loss, sums = batch_loss(learner, params, batch, rng)
    twice = {name: jnp.repeat(array, 2, axis=0) for name, array in batch.items()}
    passes = ForwardPasses(learner.model, params, twice, rng)
    logits = passes.features[0] @ params["embedding"].T
    valid = np.asarray(batch["target_segment_ids"]) != 0
    divergence = 2.0 * np.asarray(mean_divergence(logits))[valid].sum()
    _, plain = batch_loss(learner.plain(), params, twice, rng)
    assert float(sums["tokens"]) == 2 * valid.sum()
    assert float(sums["rdrop"]) == pytest.approx(divergence, rel=1e-4) and divergence > 1
    assert float(sums["smoothed"]) == pytest.approx(float(plain["smoothed"]), rel=1e-5)
    assert float(loss) == pytest.approx(float(plain["smoothed"]) + divergence, rel=1e-4)
    pair = Sentence(8, 8)
    assert learner.train_flops(pair, {}) == 2 * learner.plain().train_flops(pair, {})


def train_on_one_batch(*methods, updates=120, dropout=0.3):
    """Return the learner and the parameters after some updates on the batch."""
    optimizer = {"learning_rate": 1e-2, "warmup_steps": 1, "label_smoothing": 0.0}
    learner = learner_of(*methods, model={"embed": 32, "dropout": dropout}, optimizer=optimizer)
    batch = batch_of()
    state = make_init(learner, batch, 0)()
    step = jax.jit(functools.partial(train_step, learner))
    for _ in range(updates):
        state, _ = step(state, {name: array[None] for name, array in batch.items()})
    return learner, state.params


def divergence_after_training(weight: float) -> tuple[float, float]:
    """Train; return the mean divergence without weight, and the cross entropy."""
    learner, params = train_on_one_batch(RDrop(weight))
    measured = dataclasses.replace(learner, objectives=RDrop(1.0).objectives())
    _, sums = batch_loss(measured, params, batch_of(), jax.random.key(9))
    return float(sums["rdrop"] / sums["tokens"]), float(sums["nll"] / sums["tokens"])


def test_incomplete_inputs_are_understood_after_training_with_word_dropout():
    losses, noisy, sizes = [], METHODS["word_dropout"], {"embed": 32, "dropout": 0.0}
    for methods in ((), (noisy,)):
        _, params = train_on_one_batch(*methods, updates=240, dropout=0.0)
        _, sums = batch_loss(
            learner_of(noisy, model=sizes), params, batch_of(20), jax.random.key(9)
        )
        losses.append(float(sums["nll"] / sums["tokens"]))
    assert losses[1] < 0.6 * losses[0]


def test_passes_with_different_dropout_agree_after_training():
    (apart, plain_nll), (together, nll) = map(divergence_after_training, (0.0, 5.0))
    assert together < 0.5 * apart
    assert nll < 2.5 and plain_nll < 2.5  # log 60 is 4.1


@pytest.mark.parametrize("name", METHODS)
def test_a_mesh_computes_the_gradients_of_one_device(name):
    learner = learner_of(METHODS[name])
    params, batch = random_params(learner.model, 3), batch_of(4)
    stacked = {key: array.reshape(3, 8, -1) for key, array in batch.items()}
    results = []
    for mesh in (make_mesh(Mesh(), jax.devices()[:1]), make_mesh(Mesh(fsdp=2, tensor=2))):
        placed = place_batch(jax.device_get(stacked), mesh, leading=1)

        def gradients(params, batch, learner=learner):
            update = learner.player_updates[-1]
            return sum_gradients(learner, update, (params, {}), batch, jax.random.key(2))

        results.append(jax.device_get(jit_with_mesh(mesh, gradients)(params, placed)))
    (expected, expected_sums), (actual, sums) = results
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), *((actual, expected))
    )
    for key, value in expected_sums.items():
        assert float(sums[key]) == pytest.approx(float(value), rel=1e-4), key


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("regularized"))


def test_a_stopped_run_continues_bit_for_bit(cache, tmp_path, one_device, kept_programs):
    config = configure(
        cache,
        *METHODS.values(),
        train={"steps": 4, "log_every": 1, "eval_every": 2, "save_every": 2},
    )
    lines = train_and_continue(config, tmp_path)
    assert lines and all(line["rdrop"] > 0 for line in lines)


@pytest.mark.parametrize(
    ("methods", "model", "message"),
    [
        ((RDrop(),), {"dropout": 0.0}, "set Model.dropout, for example to 0.3"),
        ((RDrop(), InstruCL(layer=1)), {}, "every row, which 'instructcl' does not expect"),
        ((RDrop(), BackTranslation()), {}, "every row, which 'back_translation' does not expect"),
        ((RDrop(),), {"layout": "masked_lm"}, "'masked_lm' does not predict next tokens"),
        ((WordDropout(),), {"layout": "masked_lm"}, "'masked_lm' masks its inputs already"),
        ((WordDropout(source=0.0, target=0.0),), {}, "target=0 replace nothing; raise one"),
        ((WordDropout(target=0.0),), {"layout": "causal_lm"}, "nothing; set WordDropout.target$"),
    ],
)
def test_runs_that_cannot_use_them_are_refused(methods, model, message):
    with pytest.raises(UserError, match=message):
        learner_of(*methods, model=model)
