"""CPO: the model's translations, the preference term, learning and resuming."""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.data.converter import Converter, Example, Lengths, segments_from_rows
from mnmt_jax.decoding.generate import generate
from mnmt_jax.decoding.search import Greedy, Request
from mnmt_jax.errors import UserError
from mnmt_jax.methods.cpo import CPO, preference_loss
from mnmt_jax.methods.word_dropout import WordDropout
from mnmt_jax.training.generated_batches import change_batch
from mnmt_jax.training.learner import Learner, batch_loss
from mnmt_jax.training.state import make_init
from mnmt_jax.training.train_step import train_step
from tests import method_setting
from tests.applied import apply
from tests.made_run import (
    assert_same_gradients_on_a_mesh,
    make_cache,
    train_and_continue,
)
from tests.method_setting import (
    CASES,
    CODES,
    VOCABULARY,
    converter_of,
    learner_of,
    random_sides,
    sizes_of,
)
from tests.random_params import STRONG, random_params

LENGTHS = Lengths(source=12, target=9)
ROWS = 6


def configure(folder="", *methods, **changes):
    data = {"max_segments": 1} | changes.pop("data", {})
    return method_setting.configure(folder, *(methods or (CPO(),)), data=data, **changes)


converted = functools.partial(method_setting.converted, rows=ROWS)


@functools.cache
def setting(layout: str = "register", instruction: str = "register", **fields):
    """Return learner, parameters, converter, pairs, their batch and the model's translations."""
    data, method = {"instruction": instruction}, CPO(**fields)
    config = configure("", method, model=sizes_of(layout), data=data)
    learner = learner_of(config)
    converter = converter_of(config, learner, LENGTHS)
    pairs = [Example(*both, n % 3, (n + 1) % 3) for n, both in enumerate(random_sides(ROWS - 1))]
    params = random_params(learner.model, 3, STRONG)
    params["embedding"] = params["embedding"].at[VOCABULARY.eos_id].multiply(4.0)  # some end early
    batch = converted(converter, pairs)
    return learner, params, converter, pairs, batch, changed(learner, params, batch)


def changed(learner: Learner, params, batch) -> dict[str, np.ndarray]:
    """Return the batch with the model's translations as targets."""
    change = learner.objectives[0].inputs[1].change
    arrays = jax.jit(
        lambda params, batch: change_batch(change, 1, learner.step_model(params, batch, None))
    )(params, batch)
    return {**batch, **jax.device_get(arrays)}


def reported(learner: Learner, params, batch) -> tuple[float, dict[str, float]]:
    """Return the loss of a batch and its sums, from one program."""
    loss, sums = jax.jit(functools.partial(batch_loss, learner))(params, batch)
    return float(loss), {name: float(value) for name, value in sums.items()}


def offline(learner: Learner, params, converter: Converter, pairs, factor: float) -> list[Example]:
    """Return the pairs with translations by the project's search."""
    segments = segments_from_rows([[pair] for pair in pairs])
    static = {n: a for n, a in converter.static_batch(segments, len(pairs)).items() if n != "task"}
    row, codes = converter.instruction, [CODES[pair.target_lang] for pair in pairs]
    prefix = [(row.trigger_id(VOCABULARY, c), *row.forced_ids(VOCABULARY, c)) for c in codes]
    limits = np.array([max(1, math.ceil(factor * len(pair.target))) for pair in pairs], np.int32)
    request = Request(
        np.array(prefix, np.int32), limits, np.ones(len(pairs), bool), max_steps=20, allow_unk=False
    )
    actual = generate(learner.model, params, static, request, search=Greedy())
    return [
        dataclasses.replace(pair, target=tokens[0, : length[0] - 1])
        for pair, tokens, length in zip(pairs, actual.tokens, actual.lengths, strict=True)
    ]


@pytest.mark.parametrize(("layout", "instruction"), CASES)
def test_dispreferred_targets_equal_offline_translations(layout, instruction):
    learner, params, converter, pairs, _, generated = setting(layout, instruction)
    expected = offline(learner, params, converter, pairs, 1.5)
    lengths = [len(example.target) for example in expected]
    assert len(set(lengths)) > 1 and any(
        length > len(pair.target) for length, pair in zip(lengths, pairs, strict=True)
    )
    wide = dataclasses.replace(converter, lengths=dataclasses.replace(LENGTHS, target=30))
    for name, array in converted(wide, expected).items():
        actual = generated[name]
        width = max(array.shape[1], actual.shape[1])
        pads = [[(0, 0), (0, width - a.shape[1])] for a in (actual, array)]
        np.testing.assert_array_equal(np.pad(actual, pads[0]), np.pad(array, pads[1]), name)


@pytest.mark.parametrize(("layout", "instruction"), CASES)
def test_the_term_equals_loops_over_logits(layout, instruction):
    learner, params, _, pairs, batch, generated = setting(layout, instruction)

    def sums(arrays) -> np.ndarray:
        logits = apply(learner.model, params, arrays, method="logits").astype(np.float64)
        labels, totals = arrays["target_labels"], np.zeros(ROWS)
        for row, column in np.argwhere(arrays["target_segment_ids"] != 0):
            z = logits[row, column]
            totals[row] += z[labels[row, column]] - z.max() - math.log(np.exp(z - z.max()).sum())
        return totals

    margins = (sums(batch) - sums(generated))[: len(pairs)]
    assert (np.abs(margins) > 0.1).all()
    expected = np.log1p(np.exp(-0.1 * margins)).mean() * (batch["target_segment_ids"] != 0).sum()
    loss, actual = reported(learner, params, batch)
    assert actual["preference"] == pytest.approx(expected, rel=1e-4)
    assert loss == pytest.approx(actual["smoothed"] + expected, rel=1e-4)


def test_the_formula_by_hand():
    loss = preference_loss(jnp.array([10.0, 0.0, 9.0]), jnp.array([True, True, False]), 0.1)
    assert float(loss) == pytest.approx(math.log(1 + math.exp(-1)) + math.log(2), rel=1e-5)


def test_pairs_whose_target_is_the_models_translation_have_no_preference():
    learner, params, converter, pairs, _, _ = setting()
    translated = offline(learner, params, converter, pairs, 3.0)
    ended = [
        number
        for number, (example, pair) in enumerate(zip(translated, pairs, strict=True))
        if len(example.target) < min(3 * len(pair.target), LENGTHS.target)  # not by the limit
    ]
    assert 0 < len(ended) < len(pairs)
    some = [translated[n] if n in ended else pair for n, pair in enumerate(pairs)]
    kept = changed(learner, params, converted(converter, some))["target_segment_ids"][:, 0]
    assert kept.tolist() == [int(n not in ended) for n in range(len(pairs))] + [0]
    different = [pair for n, pair in enumerate(pairs) if n not in ended]
    sums = []
    for examples in (some, different):
        arrays = converted(converter, examples)
        term = reported(learner, params, arrays)[1]["preference"]
        sums.append(term / (arrays["target_segment_ids"] != 0).sum() * len(examples))
    assert sums[0] == pytest.approx(sums[1] + len(ended) * math.log(2), rel=1e-4)
    none = converted(converter, [translated[n] for n in ended])
    value, slope = jax.jit(
        jax.value_and_grad(
            lambda params, batch: batch_loss(learner, params, batch)[1]["preference"]
        )
    )(params, none)
    tokens = (none["target_segment_ids"] != 0).sum()
    assert float(value) == pytest.approx(math.log(2) * tokens, rel=1e-5)
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(slope))


def test_training_prefers_the_targets_to_the_first_translations():
    """By a larger margin than the cross entropy alone."""
    margins = {}
    for weight in (0.0, 5.0):
        optimizer = {"learning_rate": 3e-3, "warmup_steps": 1, "label_smoothing": 0.0}
        learner = learner_of(configure("", CPO(weight=weight), optimizer=optimizer))
        batch = setting()[4]
        state = make_init(learner, batch, 0)()
        first = changed(learner, state.params, batch)
        step = jax.jit(functools.partial(train_step, learner))
        for _ in range(8):
            state, _ = step(state, {name: array[None] for name, array in batch.items()})
        nll, other = (
            reported(learner.plain(), state.params, arrays)[1]["nll"] for arrays in (batch, first)
        )
        margins[weight] = other - nll
    assert margins[5.0] > margins[0.0] + 5, margins


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("cpo"))


def test_a_stopped_run_continues_bit_for_bit(cache, tmp_path, one_device, kept_programs):
    config = configure(
        cache,
        model={"dropout": 0.1},
        train={"steps": 6, "log_every": 1, "eval_every": 3, "save_every": 3},
    )
    lines = train_and_continue(config, tmp_path)
    terms = [line["preference"] for line in lines if "preference" in line]
    assert len({*terms}) == 6 and min(terms) > 0


def test_a_mesh_gives_the_same_update_as_one_device():
    learner, params, _, _, batch, _ = setting()
    stacked = {n: np.concatenate([array, array[:2]])[None] for n, array in batch.items()}
    assert_same_gradients_on_a_mesh(learner, params, stacked, "preference")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data": {"max_segments": 8}},
            "Data.max_segments=8 packs pairs .* set Data.max_segments=1",
        ),
        ({"model": {"layout": "causal_lm"}}, "layout 'causal_lm' does not translate"),
        (
            {"data": {"target_length": 1, "instruction": "4"}},
            "target_length=1 is shorter than the 2 first inputs of Data.instruction='4'; raise it",
        ),
    ],
)
def test_invalid_arguments_are_one_error_line(changes, message):
    with pytest.raises(UserError, match=message) as caught:
        learner_of(configure(**changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("layout", "instruction"), CASES)
def test_learned_positions_suffice_for_the_longest_translation(layout, instruction):
    """A row has 9 tokens: the first inputs and n pieces; a translation has up to 1.5 n."""
    learner, _, _, _, batch, generated = setting(layout, instruction)
    rows = generated["target_tokens"].shape[1]
    data = {"target_length": LENGTHS.target, "instruction": instruction}
    sizes = {"layout": layout, "stage_layers": learner.model.config.stage_layers}
    learner = learner_of(configure(model=sizes | {"positions": ("learned", rows)}, data=data))
    change = learner.objectives[0].inputs[1].change
    jax.eval_shape(
        lambda batch: change_batch(
            change, 1, learner.step_model(random_params(learner.model, 3), batch, None)
        ),
        batch,
    )
    message = f"target span has {rows} positions; .* lower CPO.max_length or Data.target_length$"
    with pytest.raises(UserError, match=message):
        learner_of(configure(model=sizes | {"positions": ("learned", rows - 1)}, data=data))


def test_word_dropout_of_one_of_the_two_targets_is_refused():
    config = configure("", CPO(), WordDropout())
    with pytest.raises(UserError, match="^cpo: 'word_dropout' changes .*; leave one of them out$"):
        learner_of(config)
