"""Online back-translation: drawn languages, generated pairs and gradients."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.config.sections import Mesh
from mnmt_jax.data.converter import Example, Lengths, segments_from_rows
from mnmt_jax.decoding.generate import generate
from mnmt_jax.decoding.search import Greedy, Request
from mnmt_jax.distributed.sharding import jit_with_mesh, make_mesh, place_batch
from mnmt_jax.errors import UserError
from mnmt_jax.methods.back_translation import BackTranslation, draw
from mnmt_jax.methods.unlikelihood import Unlikelihood
from mnmt_jax.model.network import Network
from mnmt_jax.training.generated_batches import generate_batch
from mnmt_jax.training.gradients import sum_gradients
from mnmt_jax.training.learner import Learner, batch_loss
from mnmt_jax.training.losses import per_token
from mnmt_jax.vocabulary.language_codes import find_code
from mnmt_jax.vocabulary.special_ids import UNK_ID
from tests import method_setting
from tests.made_run import make_cache, train_and_continue
from tests.method_setting import (
    CASES,
    CODES,
    VOCABULARY,
    arrays,
    converted,
    converter_of,
    learner_of,
    random_sides,
    sizes_of,
)
from tests.random_params import STRONG, random_params

LENGTHS = Lengths(source=12, target=10)
ROWS = 8
ATOL = 2e-6


def configure(folder="", *methods, **changes):
    data = {"max_segments": 1} | changes.pop("data", {})
    return method_setting.configure(folder, *methods, data=data, **changes)


def pairs(count: int) -> list[Example]:
    """Pairs into every language, and a target of one piece."""
    sides = random_sides(count)
    sides[0][1] = sides[0][1][:1]
    return [Example(*both, n % 2, (n % 2 + 1 + n // 2 % 2) % 3) for n, both in enumerate(sides)]


@functools.cache
def setting(layout: str = "register", instruction: str = "register", **fields):
    """Return configuration, learner, parameters, pairs, their batch and the generated batch.

    The last row is empty.
    """
    data, method = {"instruction": instruction}, BackTranslation(**fields)
    config = configure("", method, model=sizes_of(layout), data=data)
    learner = learner_of(config)
    sentence_pairs = pairs(ROWS - 1)
    batch = arrays(converted(converter_of(config, learner, LENGTHS), sentence_pairs, ROWS))
    params = random_params(learner.model, 3, STRONG)
    params["embedding"] = params["embedding"].at[VOCABULARY.eos_id].multiply(4.0)  # some end early
    generated = jax.jit(
        lambda params, batch: generate_batch(
            learner.generated_batches[0],
            0,
            learner.step_model(params, batch, jax.random.key(5)),
        )[0]
    )(params, batch)
    return config, learner, params, sentence_pairs, batch, jax.device_get(generated)


def padded(array: np.ndarray, width: int) -> np.ndarray:
    return np.pad(array, ((0, 0), (0, max(0, width - array.shape[1]))))


@pytest.mark.parametrize(("layout", "instruction"), CASES)
def test_generated_pairs_equal_offline_translations(layout, instruction):
    """Computed with the project's converter and search for the drawn languages."""
    config, learner, params, sentence_pairs, batch, generated = setting(layout, instruction)
    drawn = generated["source_lang"][:-1, 0]
    assert generated["source_lang"][-1, 0] == -1 and len(set(drawn.tolist())) > 1
    turned = [
        Example(pair.target, np.zeros(0, np.int32), pair.target_lang, int(language))
        for pair, language in zip(sentence_pairs, drawn, strict=True)
    ]
    converter = converter_of(config, learner, LENGTHS)
    static = arrays(converter.static_batch(segments_from_rows([[e] for e in turned]), ROWS - 1))
    row = converter.instruction
    codes = [CODES[e.target_lang] for e in turned]
    prefix = [(row.trigger_id(VOCABULARY, c), *row.forced_ids(VOCABULARY, c)) for c in codes]
    limits = np.array([len(pair.target) for pair in sentence_pairs], np.int32)
    request = Request(
        np.array(prefix, np.int32), limits, np.ones(ROWS - 1, bool), max_steps=12, allow_unk=False
    )
    actual = generate(learner.model, params, static, request, search=Greedy())
    expected = [
        Example(tokens[0, : length[0] - 1], pair.target, e.target_lang, pair.target_lang)
        for tokens, length, pair, e in zip(
            actual.tokens, actual.lengths, sentence_pairs, turned, strict=True
        )
    ]
    assert any(len(e.source) < limit for e, limit in zip(expected, limits, strict=True))
    assert len({tuple(e.source) for e in expected}) > 4
    laid = converted(converter, expected, ROWS)
    assert laid.keys() == generated.keys() and limits[0] == 1
    for name, array in laid.items():
        width = max(array.shape[1], generated[name].shape[1])
        np.testing.assert_array_equal(padded(generated[name], width), padded(array, width), name)


def test_the_length_limit_is_a_multiple_of_the_sentence():
    lengths = {}
    for factor in (1.0, 0.5):
        *_, sentence_pairs, _, generated = setting(max_length=factor)
        actual = (generated["source_segment_ids"] != 0).sum(axis=1)[:-1] - 2
        limits = [max(1, int(factor * len(pair.target))) for pair in sentence_pairs]
        assert (actual <= limits).all() and (actual == limits).any()
        lengths[factor] = actual.sum()
    assert lengths[0.5] < lengths[1.0]


def test_drawn_languages_are_uniform_and_differ_from_the_sentences_language():
    rows, pool = 6000, np.array([4, 0, 2], np.int32)
    own_languages = jnp.asarray(np.arange(rows) % 4)  # 1 and 3 are not in the pool
    drawn, chosen = map(
        np.asarray, jax.jit(lambda r: draw(r, own_languages, pool, 1.0))(jax.random.key(1))
    )
    assert chosen.all()
    for language in range(4):
        others = [each for each in pool if each != language]
        actual = drawn[np.asarray(own_languages) == language]
        counts = np.array([(actual == each).sum() for each in others])
        assert counts.sum() == len(actual) == rows // 4
        mean = len(actual) / len(others)
        assert (np.abs(counts - mean) < 4 * mean**0.5).all(), counts
    part, some = map(np.asarray, draw(jax.random.key(1), own_languages[:50], pool, 0.25))
    np.testing.assert_array_equal(part, drawn[:50])  # of the number of its row alone
    assert 3 < some.sum() < 25
    alone, none = draw(jax.random.key(1), jnp.array([4, 0]), pool[:1], 1.0)
    assert none.tolist() == [False, True] and alone[1] == 4


def test_only_the_given_languages_are_translated_into_the_pool():
    *_, sentence_pairs, _, generated = setting(languages=("de", "fr"), pool=("en", "fr"))
    targets, drawn = generated["target_lang"][:-1, 0], generated["source_lang"][:-1, 0]
    for pair, target, language in zip(sentence_pairs, targets, drawn, strict=True):
        code = CODES[pair.target_lang]
        if code == "en":
            assert target == language == -1
        else:
            assert CODES[target] == code and CODES[language] in {"de": "en fr", "fr": "en"}[code]
    empty = generated["target_lang"][:, 0] < 0
    assert 0 < empty[:-1].sum() < ROWS - 1
    assert (
        not generated["target_segment_ids"][empty].any()
        and not generated["target_labels"][empty].any()
    )


def test_unk_is_generated_only_if_decoding_allows_it():
    config, learner, params, _, batch, _ = setting()
    params = {**params, "embedding": params["embedding"].at[UNK_ID].multiply(16.0)}
    allowing = dataclasses.replace(
        config, decode=dataclasses.replace(config.decode, allow_unk=True)
    )

    def has_unk(learner: Learner) -> bool:
        generated, _ = jax.jit(
            lambda params, batch: generate_batch(
                learner.generated_batches[0],
                0,
                learner.step_model(params, batch, jax.random.key(5)),
            )
        )(params, batch)
        return bool((generated["source_tokens"] == UNK_ID).any())

    assert has_unk(learner_of(allowing)) and not has_unk(learner)


def test_the_gradient_equals_that_of_real_and_generated_pairs_in_one_batch():
    """As one batch of twice the rows without the method, weighted by the tokens of both."""
    config, learner, params, _, batch, _ = setting()
    turn, rng = learner.player_updates[-1], jax.random.key(7)
    stacked = {name: array[None] for name, array in batch.items()}
    gradients, sums = jax.jit(
        lambda p, b: sum_gradients(learner, turn, turn.trainable.split(p), b, rng)
    )(params, stacked)
    micro_rng = jax.random.fold_in(rng, 0)

    @jax.jit
    def make(params, batch, rng):
        model = learner.step_model(params, batch, rng)
        return generate_batch(learner.generated_batches[0], 0, model)[0]

    generated = make(params, batch, micro_rng)
    others = [make(params, batch, jax.random.fold_in(rng, n))["source_lang"] for n in (1, 2)]
    drawn = {tuple(np.asarray(each)[:, 0].tolist()) for each in (generated["source_lang"], *others)}
    assert len(drawn) == 3  # other draws in other steps and micro-batches
    wide = {name: max(array.shape[1], generated[name].shape[1]) for name, array in batch.items()}
    both = {
        name: jnp.concatenate([padded(array, wide[name]), padded(generated[name], wide[name])])
        for name, array in batch.items()
    }
    plain = learner.plain()
    (expected, total) = jax.jit(jax.grad(lambda p: batch_loss(plain, p, both), has_aux=True))(
        params
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-4), gradients, expected
    )
    for name in ("smoothed", "nll", "tokens"):
        assert float(sums[name]) == pytest.approx(float(total[name]), rel=1e-5)
    real = float((batch["target_segment_ids"] != 0).sum())
    assert sums["tokens"] == 2 * real and sums["back_translation_tokens"] == real
    assert 0 < sums["back_translation"] < sums["smoothed"]


def test_terms_of_objectives_are_means_over_the_pairs_that_they_read():
    """`unlikelihood` is the same with generated pairs, which it does not read."""
    unlikelihood = Unlikelihood(vocabulary=CODES)
    config, _, params, _, batch, _ = setting()
    stacked = {name: jnp.stack([array, array]) for name, array in batch.items()}

    def sums_of(*methods):
        train = dataclasses.replace(config.train, methods=methods)
        learner = learner_of(dataclasses.replace(config, train=train))
        update, rng = learner.player_updates[-1], jax.random.key(7)
        sums = jax.jit(
            lambda p, b: sum_gradients(learner, update, update.trainable.split(p), b, rng)[1]
        )(params, stacked)
        assert sums.keys() == {*learner.sums}
        return sums

    alone, both = sums_of(unlikelihood), sums_of(unlikelihood, BackTranslation(vocabulary=CODES))
    assert both["tokens"] == 2 * alone["tokens"]
    terms = [float(per_token(sums)["unlikelihood"]) for sums in (alone, both)]
    assert terms[0] > 0 and terms[1] == pytest.approx(terms[0], rel=1e-5)


def test_generated_pairs_are_read_with_dropout():
    """Their loss is that of the network with dropout, whose masks are not those of generation."""
    config, _, params, _, batch, _ = setting()
    model = dataclasses.replace(config.model, dropout=0.4)
    learner = learner_of(dataclasses.replace(config, model=model))
    turn, rng = learner.player_updates[-1], jax.random.key(7)

    @jax.jit
    def found_and_expected(params):
        stacked = {name: array[None] for name, array in batch.items()}
        sums = sum_gradients(learner, turn, turn.trainable.split(params), stacked, rng)[1]
        model = learner.step_model(params, batch, jax.random.fold_in(rng, 0))
        generated, key = generate_batch(learner.generated_batches[0], 0, model)
        plain = learner.plain()
        by_hand = [batch_loss(plain, params, generated, k)[1]["smoothed"] for k in (key, None)]
        return sums["back_translation"], *by_hand

    found, expected, without = map(float, found_and_expected(params))
    assert found == pytest.approx(expected, rel=1e-5) and abs(found / without - 1) > 0.01


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("back_translation"))


def test_a_stopped_run_continues_bit_for_bit(cache, tmp_path, one_device, kept_programs):
    config = configure(
        cache,
        BackTranslation(share=0.7),
        model={"dropout": 0.1},
        train={"steps": 6, "log_every": 1, "eval_every": 3, "save_every": 3},
    )
    lines = train_and_continue(config, tmp_path)
    assert len({line["back_translation"] for line in lines}) == 6
    assert all(line["back_translation"] != line["loss"] for line in lines)
    assert not any("back_translation_tokens" in line for line in lines)


def test_a_mesh_gives_the_same_update_as_one_device():
    config, learner, params, _, batch, _ = setting()
    stacked = {name: np.asarray(array)[None] for name, array in batch.items()}
    turn, rng, actual = learner.player_updates[-1], jax.random.key(7), []
    for mesh, count in ((Mesh(), 1), (Mesh(fsdp=2, tensor=2), 8)):
        devices = make_mesh(mesh, jax.devices()[:count])

        def update(params, batch):
            generated = {name: array[0] for name, array in batch.items()}
            generated, _ = generate_batch(
                learner.generated_batches[0], 0, learner.step_model(params, generated, rng)
            )
            split = turn.trainable.split(params)
            return generated, *sum_gradients(learner, turn, split, batch, rng)

        placed = place_batch(stacked, devices, leading=1)
        actual.append(jax.device_get(jit_with_mesh(devices, update)(params, placed)))
    (left, *expected), (right, *rest) = actual
    jax.tree.map(np.testing.assert_array_equal, left, right)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-4), expected, rest
    )


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ({}, {"max_segments": 8}, "Data.max_segments=8 packs pairs .* set Data.max_segments=1"),
        ({"pool": ("nl",)}, {}, "BackTranslation.pool names nl; the vocabulary has en, de, fr"),
        ({"languages": ("de", "de")}, {}, "BackTranslation.languages=.* names a language twice"),
        ({"languages": ("en", "de"), "pool": ("de",)}, {}, "no language to translate de into"),
        ({"languages": ("de",)}, {}, "pool=.'de',. has no language to translate de into"),
    ],
)
def test_invalid_arguments_are_one_error_line(method, changes, message):
    with pytest.raises(UserError, match=message) as caught:
        learner_of(configure("", BackTranslation(**method), data=changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("layout", "instruction"), CASES)
def test_the_longest_spans_are_known_before_training(layout, instruction, factor, monkeypatch):
    """Those of the search and of its pairs, on which learned positions depend."""
    spans: dict[str, dict[str, int]] = {"known": {}, "used": {}}

    def record(kind: str, lengths) -> None:
        for role, length in lengths.items():
            spans[kind][role] = max(length, spans[kind].get(role, 0))

    monkeypatch.setattr(
        "mnmt_jax.methods.back_translation.check_lengths",
        lambda _, lengths, __: record("known", lengths),
    )
    monkeypatch.setattr(Network, "check_lengths", lambda _, lengths: record("used", lengths))
    config = configure(
        "",
        BackTranslation(max_length=factor),
        model=sizes_of(layout),
        data={"instruction": instruction, "target_length": LENGTHS.target},
    )
    learner = learner_of(config)
    params = random_params(learner.model, 3)
    spec, key = learner.generated_batches[0], jax.random.key(0)
    generated, _ = jax.eval_shape(
        lambda batch: generate_batch(spec, 0, learner.step_model(params, batch, key)),
        arrays(converted(converter_of(config, learner, LENGTHS), pairs(ROWS), ROWS)),
    )
    roles = [role for role in learner.model.layout.embedded_roles() if role != "target"]
    record("used", {role: generated[f"{role}_tokens"].shape[1] for role in roles})
    assert spans["known"] == {role: spans["used"][role] for role in spans["known"]}


def test_too_few_learned_positions_are_one_error_line():
    message = "register span has 18 .* lower BackTranslation.max_length or Data.target_length$"
    with pytest.raises(UserError, match=message):
        learner_of(configure("", BackTranslation(), model={"positions": ("learned", 17)}))
    learner_of(configure("", BackTranslation(), model={"positions": ("learned", 18)}))


def test_the_languages_of_the_vocabulary_are_required():
    config = configure()
    bare = dataclasses.replace(config.train, methods=(BackTranslation(),))
    with pytest.raises(UserError, match=r"BackTranslation.vocabulary=\(\): name the vocabulary's"):
        learner_of(dataclasses.replace(config, train=bare))
    with pytest.raises(UserError, match=r"vocabulary=\('en',\), but the vocabulary .in training"):
        BackTranslation(vocabulary=("en",)).bind_languages(CODES, find_code)


def test_flops_include_both_batches():
    from mnmt_jax.model.flops import Sentence, forward_flops

    _, learner, *_ = setting()
    model, pair = learner.model, Sentence(7, 5)
    sizes = model.config, model.layout, model.vocab_size
    own = learner.plain().train_flops(pair, {})
    assert own == 3 * forward_flops(*sizes, pair)
    generated = 4 * forward_flops(*sizes, Sentence(5, 5))
    assert learner.train_flops(pair, {}) == own + generated
