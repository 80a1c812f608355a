"""Continuous batching: a sentence does not depend on the previous one in its slot."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.config.sections import Decode
from mnmt_jax.decoding import continuous_batching
from mnmt_jax.decoding import translate_lines as lines_module
from mnmt_jax.decoding.continuous_batching import Admission, search_continuously
from mnmt_jax.decoding.encoded_lines import encode_lines, make_batch
from mnmt_jax.decoding.search import Greedy
from mnmt_jax.decoding.search_settings import greedy_settings, make_search
from mnmt_jax.decoding.translate_lines import decode_hypotheses, translate_lines
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.errors import UserError
from tests.unit.made_translator import BUCKETS, LINES, assert_alike, made_translator

INTO_FRENCH = {"source": "en", "target": "fr"}
CONTRAST = {"source_contrast": 0.6, "language_contrast": 0.1, "contrast_languages": ("de", "fr")}
ROOM = 20
ENDS = {"max_length": 40, "max_length_per_source": 2.0}  # sentences end one after the other
TEXTS = [line[: 4 + 5 * place] for place, line in enumerate(LINES)]
KINDS = {
    "beam": ("register", "register", {"beam_size": 3}),
    "forced prefix": ("2", "prefix_trigger", {"beam_size": 2}),
    "diverse": ("1", "prefix", {"beam_size": 4, "beam_groups": 2}),
    "greedy": ("3", "encoder_decoder", {"beam_size": 1}),
    "sample": ("1", "prefix", {"temperature": 1.0, "beam_size": 2}),
    "contrast": ("register", "register", {"beam_size": 2, **CONTRAST}),
}


def _admission(lines, chunk, inference_model, decode, encoded, size=2):
    """Return the admission of some lines, with room for all of their tokens."""
    chosen = [(lines[i].number, encoded[i]) for i in chunk]
    laid_out = make_batch(
        inference_model, chosen, decode, bucket=BUCKETS[-1], steps=decode.max_length + 1, size=size
    )
    return Admission(chunk, *laid_out)


@pytest.mark.parametrize("kind", KINDS)
def test_results_do_not_depend_on_the_previous_sentence_of_a_slot(kind):
    instruction, layout, settings = KINDS[kind]
    translator = made_translator(instruction, layout, **settings, **ENDS)
    decode, inference_model = translator.config.decode, translator.inference_model
    lines = list(TranslationJob.create(translator).number_lines(TEXTS * 2, **INTO_FRENCH))
    encoded = encode_lines(inference_model, dict(enumerate(lines)), decode)
    search = make_search(decode)

    def searched(order):
        chunks = [order[start : start + 2] for start in range(0, len(order), 2)]
        admissions = (
            _admission(lines, chunk, inference_model, decode, encoded) for chunk in chunks
        )
        ended = search_continuously(inference_model, search, admissions, 6)
        return [
            (end.number, decode_hypotheses(inference_model, end.hypotheses, end.row))
            for end in ended
        ]

    straight = searched(list(range(14)))
    assert sorted(number for number, _ in straight) == list(range(14))
    assert [number for number, _ in straight] != list(range(14))  # who ends first leaves first
    expected = dict(straight)
    if kind not in ("sample", "contrast"):  # which draw by the line's number
        assert all(expected[i] == expected[i + 7] for i in range(7))
    assert len({actual[0].text for actual in expected.values()}) > 3
    for order in (range(13, -1, -1), [5, 9, 1, 12, 6, 0, 7], [3]):
        assert dict(searched(list(order))) == {i: expected[i] for i in order}
    together = _admission(lines, list(range(14)), inference_model, decode, encoded, size=14)
    whole = search_continuously(inference_model, search, [together], 14)
    for each in whole:
        alone = decode_hypotheses(inference_model, each.hypotheses, each.row)
        assert [h.tokens for h in alone] == [h.tokens for h in expected[each.number]]
        scores = ([h.score for h in actual] for actual in (alone, expected[each.number]))
        np.testing.assert_allclose(*scores, rtol=1e-4)


def test_nan_left_in_a_slot_does_not_leak(monkeypatch):
    """A slot is overwritten: masked keys have weight 0, but 0 times NaN is NaN."""
    translator = made_translator(beam_size=2, batch=8, **ENDS)
    expected = translator.translate_nbest(TEXTS * 2, **INTO_FRENCH)
    whole, poisoned = continuous_batching._admit_and_search, []

    def record(*given, **static):
        ((state, request), actual, ended, done) = whole(*given, **static)

        def poison(array):
            rows = np.asarray(ended).reshape(-1, *[1] * (array.ndim - 1))
            if not jnp.issubdtype(array.dtype, jnp.floating):
                return array
            poisoned.append(rows.sum())
            return jnp.where(rows, jnp.nan, array)

        cache = jax.tree.map(poison, state.cache)
        return (dataclasses.replace(state, cache=cache), request), actual, ended, done

    monkeypatch.setattr(continuous_batching, "_admit_and_search", record)
    assert translator.translate_nbest(TEXTS * 2, **INTO_FRENCH) == expected
    assert len(poisoned) > 7 and max(poisoned[:-8]) > 0


def test_the_state_is_donated_and_search_stops_when_enough_slots_are_free(monkeypatch):
    """The state is donated to the next program, so it is never in memory twice."""
    donated, active_rows = [], []
    whole = continuous_batching._admit_and_search

    def record(params, batch, request, admitted, slots, min_free, **static):
        actual = whole(params, batch, request, admitted, slots, min_free, **static)
        donated.extend(array.is_deleted() for array in jax.tree.leaves(admitted))
        active_rows.append((int(min_free), int(np.sum(~np.asarray(actual[2])))))
        return actual

    monkeypatch.setattr(continuous_batching, "_admit_and_search", record)
    translator = made_translator(beam_size=1, batch=8, **ENDS)
    translator.translate(TEXTS[:4] * 6, **INTO_FRENCH)
    assert donated and all(donated)
    assert [min_free for min_free, _ in active_rows] == [2] * 11 + [8]
    held = [rows for _, rows in active_rows]
    assert max(held) <= 6 and held[-1] == 0 and sum(held[3:-1]) > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beam_size": 1}, "=2 must divide Decode.beam_size=1$"),
        ({"beam_size": 3}, "=2 must divide Decode.beam_size=3$"),
        ({"temperature": 1.0}, "=2: sampling has no groups; set Decode.beam_groups=1$"),
    ],
)
def test_groups_that_do_not_fit_the_beam_are_refused(settings, message):
    translator = made_translator("1", "prefix", beam_groups=2, beam_size=4)
    with pytest.raises(UserError, match=f"Decode.beam_groups{message}"):
        translator.translate(TEXTS, **INTO_FRENCH, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_p": 0.9}, "top_p=0.9 restricts sampling, .* e.g. to 1.0, or Decode.top_p=1"),
        ({"top_k": 4, "beam_size": 1}, "top_k=4 restricts sampling, .* or Decode.top_k=0"),
        ({"epsilon_cutoff": 0.02}, "epsilon_cutoff=0.02 restricts sampling, but Decode.temp"),
        ({"seed": 3}, "seed=3 selects samples and contrast lines, .* or Decode.seed=0"),
        ({"seed": 3, "beam_size": 1, "language_contrast": 0.2}, "seed=3 selects samples and"),
        ({"diversity_penalty": 2.0}, "diversity_penalty=2 is between groups .* Decode.beam_groups"),
        ({"temperature": 1.0, "diversity_penalty": 2.0}, "diversity_penalty=2 is between groups"),
    ],
)
def test_settings_of_another_search_are_refused(settings, message):
    with pytest.raises(UserError, match=f"^Decode.{message}"):
        made_translator("1", "prefix").translate(TEXTS, **INTO_FRENCH, **settings)


def test_greedy_settings_have_nothing_of_another_search():
    sampling = Decode(
        temperature=1.0, top_k=9, top_p=0.9, epsilon_cutoff=0.1, utility="chrf", seed=3
    )
    groups = Decode(beam_size=6, beam_groups=3, diversity_penalty=2.0, utility="chrf")
    for decode in (sampling, groups):
        decode = dataclasses.replace(decode, length_penalty=0.5, allow_unk=True)
        expected = Decode(beam_size=1, length_penalty=0.5, allow_unk=True)
        assert greedy_settings(decode) == expected
    assert isinstance(make_search(greedy_settings(groups)), Greedy)
    contrast = Decode(source_contrast=0.5, seed=3)  # which selects the contrast lines
    assert greedy_settings(contrast).seed == 3
    assert isinstance(make_search(greedy_settings(contrast)), Greedy)


@pytest.mark.parametrize("settings", [{"beam_size": 2}, {"temperature": 1.0, "beam_size": 1}])
def test_sentences_without_room_are_searched_again(settings, monkeypatch):
    translator = made_translator(batch=4, **settings, **ENDS)
    lines = [*TEXTS, LINES[0] + " " + LINES[1]]
    expected = translator.translate_nbest(lines, **INTO_FRENCH)
    steps = []

    def narrow(_, most):
        steps.append(most)
        return ROOM

    monkeypatch.setattr(lines_module, "initial_step_limit", narrow)
    assert_alike(translator.translate_nbest(lines, **INTO_FRENCH), expected)
    lengths = [len(each.hypotheses[0].tokens) for each in expected]
    assert min(lengths) <= ROOM < max(lengths) and len(set(steps)) == 2
    numbered = list(TranslationJob.create(translator).number_lines(lines, **INTO_FRENCH))
    again = dict(translate_lines(translator.inference_model, numbered, translator.config.decode))
    rest = translate_lines(
        translator.inference_model, numbered, translator.config.decode, {0, 2, 3, 7}
    )
    assert dict(rest) == {i: again[i] for i in (1, 4, 5, 6)}


@pytest.mark.parametrize(
    ("instruction", "layout"), [("register", "register"), ("3", "encoder_decoder")]
)
def test_a_file_compiles_one_program_per_bucket_and_one_more(instruction, layout, monkeypatch):
    """The number does not depend on the lengths of lines and translations."""
    programs = set()

    def record(name):
        function = getattr(continuous_batching, name)

        def call(params, given, request, *others, **static):
            programs.add((name, _shapes(given), _shapes(request), request.max_steps))
            return function(params, given, request, *others, **static)

        monkeypatch.setattr(continuous_batching, name, call)
        return function

    compiled = [record(name) for name in ("_admit_and_search", "search_batch")]
    before = sum(function._cache_size() for function in compiled)
    translator = made_translator(
        instruction, layout, beam_size=2, max_length=60, buckets=(5, 9, 14), batch=2
    )
    some = ["two", LINES[2], " ".join(LINES[2:4])]
    actual = translator.translate_nbest(some * 3, source="en", target="de")
    assert max(len(h.tokens) for each in actual for h in each.hypotheses) > 14 + 7 + 8
    assert len(programs) == sum(function._cache_size() for function in compiled) - before == 4
    translator.translate_nbest(some * 5, source="en", target="de")
    assert len(programs) == sum(function._cache_size() for function in compiled) - before == 4


def _shapes(tree):
    return tuple(array.shape for array in jax.tree.leaves(tree))


def test_a_network_is_hashed_without_its_plan(monkeypatch):
    """Each call of a compiled program hashes its network, and the plan takes longest."""
    network = made_translator("register", "register").inference_model.model
    other = dataclasses.replace(network, vocab_size=network.vocab_size + 1)
    assert network == dataclasses.replace(network) and network != other
    monkeypatch.setattr(type(network.plan), "__hash__", None)
    assert hash(network) == hash(dataclasses.replace(network)) != hash(other)
