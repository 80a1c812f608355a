"""Unlikelihood training: wrong tags, the loss and its gradient, learning and resuming."""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.data.converter import Converter, Example, Lengths
from mnmt_jax.errors import UserError
from mnmt_jax.methods.unlikelihood import Unlikelihood, unlikelihood_loss
from mnmt_jax.model.label_log_probs import label_log_probs
from mnmt_jax.training.generated_batches import change_batch
from mnmt_jax.training.learner import Learner, batch_loss
from mnmt_jax.training.state import make_init
from mnmt_jax.training.train_step import train_step
from tests import method_setting
from tests.made_run import (
    assert_same_gradients_on_a_mesh,
    make_cache,
    train_and_continue,
)
from tests.method_setting import (
    CASES,
    CODES,
    VOCABULARY,
    arrays,
    configure,
    converter_of,
    learner_of,
    random_sides,
    sizes_of,
)
from tests.random_params import STRONG, random_params

LENGTHS = Lengths(source=24, target=20, max_segments=3)
RTOL = 1e-5


def converted(converter: Converter, examples) -> dict[str, jax.Array]:
    return arrays(method_setting.converted(converter, examples, rows=6, in_row=2))


@functools.cache
def setting(layout: str = "register", instruction: str = "register", **fields):
    """Return learner, parameters, converter, pairs and their batch."""
    data, method = {"instruction": instruction}, Unlikelihood(**fields)
    config = configure("", method, model=sizes_of(layout), data=data)
    learner = learner_of(config)
    converter = converter_of(config, learner, LENGTHS)
    pairs = [
        Example(*both, n % 3, (n + 1 + n // 3 % 2) % 3) for n, both in enumerate(random_sides(9))
    ]
    params = random_params(learner.model, 3, STRONG)
    return learner, params, converter, pairs, converted(converter, pairs)


def wrong_batch(learner: Learner, params, batch, rng=None):
    change = learner.objectives[0].inputs[0].change
    return {**batch, **change_batch(change, 0, learner.step_model(params, batch, rng))}


@pytest.mark.parametrize(("layout", "instruction"), CASES)
def test_wrong_tags_equal_the_converter_with_other_languages(layout, instruction):
    learner, params, converter, pairs, batch = setting(layout, instruction)
    wrong = jax.device_get(wrong_batch(learner, params, batch, jax.random.key(4)))
    drawn = wrong["target_lang"][wrong["target_lang"] >= 0].tolist()
    assert len(drawn) == len(pairs) and len(set(drawn)) == 3
    assert all(pair.target_lang != language for pair, language in zip(pairs, drawn, strict=True))
    others = [
        dataclasses.replace(pair, target_lang=language)
        for pair, language in zip(pairs, drawn, strict=True)
    ]
    expected = converted(converter, others)
    is_tag = np.asarray(expected["target_labels"]) >= VOCABULARY.size - len(CODES)
    is_tag |= np.asarray(expected["target_segment_ids"]) == 0
    assert wrong.keys() == expected.keys()
    for name, array in expected.items():
        array = np.where(is_tag, -1, array) if name == "target_labels" else np.asarray(array)
        np.testing.assert_array_equal(wrong[name], array, name)
    again = wrong_batch(learner, params, batch, jax.random.key(5))
    assert (np.asarray(again["target_lang"]) != wrong["target_lang"]).any()


def test_only_the_pool_is_drawn():
    learner, params, _, pairs, batch = setting(pool=("de", "fr"))
    wrong = np.asarray(wrong_batch(learner, params, batch)["target_lang"]).reshape(-1)
    right = np.asarray(batch["target_lang"]).reshape(-1)
    for old, new in zip(right, wrong, strict=True):
        if old >= 0:
            assert CODES[new] in {"en": "de fr", "de": "fr", "fr": "de"}[CODES[old]]


@pytest.mark.parametrize(("layout", "instruction"), CASES)
def test_the_term_equals_loops_over_the_logits_of_the_wrong_batch(layout, instruction):
    learner, params, _, _, batch = setting(layout, instruction, weight=0.3)
    wrong = wrong_batch(learner, params, batch)
    logits = np.asarray(learner.model.apply({"params": params}, wrong, method="logits"), np.float64)
    expected, count = 0.0, 0
    for row, column in np.argwhere(np.asarray(wrong["target_segment_ids"]) != 0):
        label = int(wrong["target_labels"][row, column])
        if label >= 0:
            z = logits[row, column]
            p = math.exp(z[label] - z.max()) / np.exp(z - z.max()).sum()
            expected -= 0.3 * math.log(max(1 - p, 1e-9))
            count += 1
    assert count == sum(len(pair.target) + 1 for pair in setting(layout, instruction)[3])
    _, sums = batch_loss(learner, params, batch)
    assert float(sums["unlikelihood"]) == pytest.approx(expected, rel=1e-4)
    loss, _ = batch_loss(learner, params, batch)
    assert float(loss) == pytest.approx(float(sums["smoothed"]) + expected, rel=1e-4)


def test_certain_and_impossible_tokens_have_finite_losses_and_gradients():
    log_probs = jnp.array([[0.0, -1e-12, -50.0, math.log(0.5), 0.0]])
    valid = jnp.array([[True, True, True, True, False]])
    loss, slope = jax.value_and_grad(unlikelihood_loss)(log_probs, valid)
    assert float(loss) == pytest.approx(2 * math.log(1e9) + math.log(2), rel=RTOL)
    np.testing.assert_allclose(slope, [[0, 0, 0, 1, 0]], atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 7, 12, 1000])
def test_log_probs_and_gradients_do_not_depend_on_the_chunk(chunk):
    """Against a softmax over all logits, with two heads."""
    rng = np.random.default_rng(1)
    features = [jnp.asarray(rng.normal(size=(3, 7, 4)), jnp.float32) for _ in range(2)]
    tables = [jnp.asarray(rng.normal(size=(11, 4)), jnp.float32) for _ in range(2)]
    labels, valid = jnp.asarray(rng.integers(0, 11, (3, 7))), jnp.asarray(rng.random((3, 7)) < 0.7)
    weights = jnp.asarray(rng.normal(size=(3, 7)), jnp.float32)

    def chunked(features, tables):
        heads = list(zip(features, tables, strict=True))
        return (weights * label_log_probs(heads, labels, valid, chunk=chunk)).sum()

    def whole(features, tables):
        logits = sum(x @ t.T for x, t in zip(features, tables, strict=True))
        log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)[..., 0]
        return (weights * jnp.where(valid, log_probs, 0.0)).sum()

    values = [jax.value_and_grad(f, argnums=(0, 1))(features, tables) for f in (chunked, whole)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *values)


def test_the_term_counts_from_its_start():
    learner, params, _, _, batch = setting(start=3)
    terms = [
        float(batch_loss(learner, params, batch, step=jnp.int32(step))[1]["unlikelihood"])
        for step in (0, 2, 3, 9)
    ]
    assert terms[:2] == [0, 0] and terms[2] == terms[3] > 0


def trained_probabilities(weight: float) -> tuple[float, float]:
    """Train on one batch; return the mean log-probability of labels, and the unlikelihood loss."""
    optimizer = {"learning_rate": 1e-2, "warmup_steps": 1, "label_smoothing": 0.0}
    config = configure("", Unlikelihood(weight), model={"embed": 32}, optimizer=optimizer)
    learner, batch = learner_of(config), setting()[-1]
    state = make_init(learner, batch, 0)()
    step = jax.jit(functools.partial(train_step, learner))
    stacked = {name: array[None] for name, array in batch.items()}
    for _ in range(160):
        state, _ = step(state, stacked)
    terms = Unlikelihood(1.0, vocabulary=CODES).objectives()
    _, sums = batch_loss(dataclasses.replace(learner, objectives=terms), state.params, batch)
    return tuple(float(sums[name] / sums["tokens"]) for name in ("nll", "unlikelihood"))


def test_targets_become_unlikely_after_wrong_tags_and_stay_likely_after_the_right_ones():
    """Plain training on a few pairs learns to ignore the tags."""
    (plain_nll, plain_term), (nll, term) = map(trained_probabilities, (0.0, 1.0))
    assert nll < 0.6 and plain_nll < 0.6
    assert term < 0.1 * plain_term


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("unlikelihood"))


def test_a_stopped_run_continues_bit_for_bit(cache, tmp_path, one_device, kept_programs):
    config = configure(
        cache,
        Unlikelihood(start=2),
        model={"dropout": 0.1},
        train={"steps": 6, "log_every": 1, "eval_every": 3, "save_every": 3},
    )
    lines = train_and_continue(config, tmp_path)
    terms = [line["unlikelihood"] for line in lines if "unlikelihood" in line]
    assert terms[:2] == [0, 0] and len({*terms[2:]}) == 4


def test_a_mesh_gives_the_same_update_as_one_device():
    learner, params, _, _, batch = setting()
    batch = {name: jnp.concatenate([array, array[:2]]) for name, array in batch.items()}
    stacked = {name: np.asarray(array)[None] for name, array in batch.items()}
    assert_same_gradients_on_a_mesh(learner, params, stacked, "unlikelihood")


@pytest.mark.parametrize(
    ("fields", "changes", "message"),
    [
        ({"pool": ("nl",)}, {}, "Unlikelihood.pool names nl; the vocabulary has en, de, fr"),
        ({"pool": ("de",)}, {}, "Unlikelihood.pool=.'de',. needs two languages"),
        ({"pool": ("de", "fr", "deu_Latn")}, {}, "pool=.'de', 'fr', 'de'. names a language twice"),
        ({}, {"data": {"instruction": "none"}}, "instruction='none' has not; choose one of 1, 2"),
        ({}, {"model": {"layout": "masked_lm"}}, "layout 'masked_lm' does not translate"),
        ({"start": 9}, {"train": {"steps": 9}}, "never counts in Train.steps=9 updates; lower it"),
    ],
)
def test_invalid_arguments_are_one_error_line(fields, changes, message):
    with pytest.raises(UserError, match=message) as caught:
        learner_of(configure("", Unlikelihood(**fields), **changes))
    assert "\n" not in str(caught.value)


def test_flops_include_the_second_pass():
    learner, *_ = setting()
    from mnmt_jax.model.flops import Sentence

    pair = Sentence(7, 5)
    assert learner.train_flops(pair, {}) == 2 * learner.plain().train_flops(pair, {})


def test_the_pass_with_wrong_tags_has_dropout():
    _, params, _, _, batch = setting()
    terms = []
    for rate in (0.0, 0.3):  # with one key, so with the same wrong tags
        learner = learner_of(
            configure("", Unlikelihood(), model={"dropout": rate, "register_factor": 2.0})
        )
        sums = jax.jit(functools.partial(batch_loss, learner))(params, batch, jax.random.key(1))[1]
        terms.append(float(sums["unlikelihood"]))
    assert abs(terms[0] - terms[1]) > 1e-3
