"""Minimum Bayes risk decoding against double loops and the exhaustive distribution."""

import collections
import dataclasses
import itertools
import json

import jax.numpy as jnp
import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF

from mnmt_jax.commands.text_files import format_record, make_record, read_record
from mnmt_jax.decoding import candidate_ranking, utilities
from mnmt_jax.decoding import translate_lines as lines_module
from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.minimum_bayes_risk import pairwise_chrf
from mnmt_jax.decoding.search import sample, sentence_rngs
from mnmt_jax.decoding.terms import LineTerms, Term
from mnmt_jax.decoding.translate_lines import translate_lines
from mnmt_jax.decoding.translation import Hypothesis, Translation
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.decoding.utilities import get_utility, register_mbr_metric
from mnmt_jax.errors import UserError
from tests.slow_search import sequence_probabilities
from tests.toy_model import log_probs_of, make_cache, make_request, make_tables, step
from tests.unit.made_translator import LINES, assert_alike, made_translator

INTO_FRENCH = {"source": "en", "target": "fr"}
SAMPLES = {"temperature": 2.0, "beam_size": 6}
TEXTS = ["aaaa b", "aab", "a", "", "ein Haus, (klein)", "ein Haus klein", "日本 の", "日", "  "]
METRICS = {
    "chrf": CHRF(),
    "chrf++": CHRF(word_order=2),
    "bleu": BLEU(effective_order=True),
}


def no_log_probs(lines, references):
    raise AssertionError("not used")


@pytest.mark.parametrize("word_order", [0, 2])
def test_pairwise_chrf_is_that_of_sacrebleu(word_order):
    (actual,) = pairwise_chrf(word_order)([Line(0, "", "en", "de")], [TEXTS])
    metric = CHRF(word_order=word_order)
    expected = [[metric.sentence_score(h, [r]).score for r in TEXTS] for h in TEXTS]
    assert np.ptp(expected) > 99
    np.testing.assert_allclose(actual, expected, atol=1e-9)


def test_the_utility_of_samples_approaches_the_exact_expectation():
    draws, letters = 4000, "  abc"
    tables = make_tables(5, 1, len(letters), sharpness=1.0)
    request = make_request([3]).replace(rngs=sentence_rngs(1, jnp.arange(1)))
    drawn = sample(step, make_cache(tables, draws), request=request, beam=draws)

    def text(tokens):
        return "".join(letters[token] for token in tokens if token > 1)

    rows = zip(np.asarray(drawn.tokens[0]), np.asarray(drawn.lengths[0]), strict=True)
    candidates = tuple(Hypothesis(text(tokens[:length]), 0.0, ()) for tokens, length in rows)
    probabilities = collections.Counter()
    for tokens, prob in sequence_probabilities(log_probs_of(tables[0]), max_length=3).items():
        probabilities[text(tokens)] += prob
    assert len(probabilities) == 3 + 9 + 27 and sum(probabilities.values()) == pytest.approx(1)
    expected = {
        one: sum(CHRF().sentence_score(one, [r]).score * p for r, p in probabilities.items())
        for one in probabilities
    }
    (utilities,) = get_utility("chrf")([Line(0, "", "en", "de")], [candidates], no_log_probs)
    assert len({one.text for one in candidates}) > 30
    for candidate, utility in zip(candidates, utilities, strict=True):
        assert utility == pytest.approx(expected[candidate.text], abs=1.0)
    best = candidates[int(np.argmax(utilities))].text
    assert best == max(expected, key=lambda one: expected[one])
    assert best != max(probabilities, key=lambda one: probabilities[one])


@pytest.mark.parametrize("name", METRICS)
def test_hypotheses_are_ordered_by_their_mean_similarity_to_all(name):
    translator = made_translator()
    plain = translator.translate_nbest(LINES, **INTO_FRENCH, **SAMPLES)
    ranked = translator.translate_nbest(LINES, **INTO_FRENCH, **SAMPLES, utility=name)
    changed = 0
    for before, after in zip(plain, ranked, strict=True):
        texts = [one.text for one in before.hypotheses]
        score = METRICS[name].sentence_score
        means = [np.mean([score(one, [other]).score for other in texts]) for one in texts]
        order = sorted(range(len(texts)), key=lambda i: -round(means[i], 6))
        assert [one.tokens for one in after.hypotheses] == [
            before.hypotheses[i].tokens for i in order
        ]
        assert [one.score for one in after.hypotheses] == [
            before.hypotheses[i].score for i in order
        ]
        np.testing.assert_allclose([one.utility for one in after.hypotheses], np.take(means, order))
        changed += order[0] != 0
        assert all(one.utility is None for one in before.hypotheses)
    assert changed > 1


def test_repeated_texts_count_as_often_as_they_were_drawn():
    texts = ["abcdef", "xyzxyz", "xyzxyz", "abcdeg", "xyzxyz"]
    (utilities,) = get_utility("chrf")(
        [Line(0, "", "en", "de")],
        [tuple(Hypothesis(text, 0.0, ()) for text in texts)],
        no_log_probs,
    )
    assert utilities[1] == utilities[4] == pytest.approx(60.0)
    assert utilities[0] == pytest.approx(
        (100 + CHRF().sentence_score(texts[0], [texts[3]]).score) / 5
    )


def test_a_text_of_several_groups_of_a_beam_counts_once(monkeypatch):
    repeated = ["die alte Katze sitzt"] * 3
    texts = [*repeated, "der kleine Hund rennt", "der kleine Hund rannte", "ein kleiner Hund rennt"]
    hypotheses = tuple(Hypothesis(text, -1.0, (1,)) for text in texts)
    monkeypatch.setattr(lines_module._Plan, "search", lambda *_: iter([(0, hypotheses)]))
    translator = made_translator(beam_size=6, beam_groups=3, utility="chrf")
    (translation,) = translator.translate_nbest(LINES[:1], **INTO_FRENCH)
    assert len(translation.hypotheses) == 4 and translation.text == texts[3]


def test_hypotheses_that_lack_fewer_terms_stay_first():
    terms = LineTerms((Term("a", ("ein",)), Term("dog", ("Hund",))))
    texts = ["ein Hund", "ein", "die Katze", "die Katze da", "ein Hund hier", "ein Tier"]
    hypotheses = tuple(Hypothesis(text, 0.0, ()) for text in texts)
    utilities = [0.1, 0.5, 0.8, 0.9, -np.inf, 0.6]
    ((_, ranked),) = candidate_ranking.rank_candidates(
        iter([(0, hypotheses)]),
        [Line(0, "", "en", "de", terms=terms)],
        lambda *_: [np.array(utilities)],
        no_log_probs,
    )
    assert [texts.index(one.text) for one in ranked] == [0, 4, 5, 1, 3, 2]


def test_ranked_results_do_not_depend_on_other_lines_or_finished_ones(monkeypatch):
    monkeypatch.setattr(candidate_ranking, "_LINES_AT_A_TIME", 3)
    translator = made_translator(**SAMPLES, utility="chrf")
    decode, model = translator.config.decode, translator.inference_model
    job = TranslationJob.create(translator)
    lines = list(job.number_lines(["", *LINES], **INTO_FRENCH))
    together = dict(translate_lines(model, lines, decode))
    assert sorted(together) == list(range(8)) and together[0].hypotheses == ()
    ((_, alone),) = translate_lines(model, [lines[2]], decode)
    assert_alike([alone], [together[2]])
    rest = dict(translate_lines(model, lines, decode, done=range(4)))
    assert rest == {i: together[i] for i in range(4, 8)}
    assert not job.has_slots and TranslationJob.create(translator, utility="").has_slots


def test_a_registered_metric_scores_the_pairs_of_all_lines_together(monkeypatch):
    monkeypatch.setattr(utilities, "_UTILITIES", dict(utilities._UTILITIES))
    calls = []

    def length_difference(lines, hypotheses, references):
        calls.append((lines, hypotheses, references))
        return [-abs(len(a) - len(b)) for a, b in zip(hypotheses, references, strict=True)]

    register_mbr_metric("length", length_difference)
    translator = made_translator()
    settings = {**INTO_FRENCH, **SAMPLES}
    plain = translator.translate_nbest(LINES, **settings)
    ranked = translator.translate_nbest(LINES, **settings, utility="length")
    for before, after in zip(plain, ranked, strict=True):
        lengths = [len(one.text) for one in before.hypotheses]
        means = [-np.mean([abs(a - b) for b in lengths]) for a in lengths]
        assert after.hypotheses[0].utility == pytest.approx(max(means))
        assert len(after.text) == lengths[int(np.argmax(means))]
    ((lines, hypotheses, references),) = calls
    pairs = set(zip([line.text for line in lines], hypotheses, references, strict=True))
    expected = {
        (line, *pair)
        for line, before in zip(LINES, plain, strict=True)
        for pair in itertools.product([one.text for one in before.hypotheses], repeat=2)
    }
    assert pairs == expected and len(hypotheses) == len(pairs)


def test_records_keep_translations_without_tokens():
    hypotheses = Hypothesis("ein", -1.5, (), 0.25), Hypothesis("zwei", -2.0, ())
    translation = Translation(
        hypotheses,
        truncated=True,
        limited=True,
        pivot="one",
        unknown_characters="🙂",
        retried="contrast",
        missing_terms=("word",),
        forbidden_terms=("Wort",),
        without_context=True,
    )
    changed = {
        field.name
        for field in dataclasses.fields(translation)
        if getattr(translation, field.name) != field.default
    }
    assert {field.name for field in dataclasses.fields(translation)} - changed == {"alignment"}
    record = make_record(Line(0, LINES[0], "en", "de"), translation)
    assert [one.get("utility") for one in record["nbest"]] == [0.25, None]
    assert read_record(json.loads(format_record(record))) == translation


def test_the_utility_is_recorded_as_a_setting_of_the_search():
    translator = made_translator()
    provenance = TranslationJob.create(translator, **SAMPLES, utility="chrf++").provenance()
    assert provenance["utility"] == "chrf++"
    assert "utility" not in TranslationJob.create(translator, **SAMPLES).provenance()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"utility": "chrF"}, r"Decode.utility='chrF': must be one of chrf, chrf\+\+, bleu"),
        ({"utility": "chrf", "beam_size": 1}, "Decode.beam_size=1 makes one; raise it"),
    ],
)
def test_unknown_utilities_and_single_hypotheses_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        made_translator().translate(LINES, **INTO_FRENCH, **settings)
