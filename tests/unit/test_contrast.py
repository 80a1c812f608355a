"""Contrastive decoding of text: the choice of inputs, and scores under them."""

import itertools
import re

import numpy as np
import pytest

from mnmt_jax.config.sections import Decode
from mnmt_jax.decoding import translate_lines as lines_module
from mnmt_jax.decoding import translation_job as job_module
from mnmt_jax.decoding.contrastive_decoding import draw_contrast_sources, language_contrast_weights
from mnmt_jax.decoding.search_settings import describe_search
from mnmt_jax.decoding.translate_lines import translate_lines
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.errors import UserError
from tests.slow_search import contrasted, slow_beam_search
from tests.unit.made_text import vocabulary
from tests.unit.made_translator import LINES, assert_alike, forced_log_probs, made_translator

SCORE_ATOL = 2e-5
BOTH = {
    "source_contrast": 0.6,
    "language_contrast": 0.1,
    "contrast_languages": ("de", "fr"),
}
INTO_FRENCH = {"source": "en", "target": "fr"}


def _expected(translator, line, decode):
    """Return the slow search under the line, its contrast lines and contrast languages."""
    limit = decode.max_length
    inputs = [
        (line.text, "fr"),
        *((text, "fr") for text in line.contrast_sources),
        (line.text, "de"),
    ]
    each = [forced_log_probs(translator, text, "en", target) for text, target in inputs]
    weights = [0.6] * len(line.contrast_sources) + [0.1]
    return slow_beam_search(
        contrasted(each, weights, limit), beam=decode.beam_size, max_length=limit
    )


@pytest.mark.parametrize(
    ("layout", "instruction", "limit"),
    [("register", "register", 13), ("prefix_trigger", "2", 4), ("encoder_decoder", "3", 4)],
)
def test_hypotheses_are_scored_under_every_contrast_input(layout, instruction, limit, monkeypatch):
    """With the tag in the source, forced, or as trigger, and after a second search."""
    translator = made_translator(
        instruction, layout, buckets=(9,), max_length=limit, beam_size=2, batch=3, **BOTH
    )
    decode = translator.config.decode
    monkeypatch.setattr(lines_module, "initial_step_limit", lambda _, steps: steps - 1)
    lines = list(TranslationJob.create(translator).number_lines(LINES[:3], **INTO_FRENCH))
    assert [len(line.contrast_sources) for line in lines] == [1] * 3
    actual = translator.translate_nbest(LINES[:3], **INTO_FRENCH)
    for line, translation in zip(lines, actual, strict=True):
        expected = _expected(translator, line, decode)
        assert [list(h.tokens) for h in translation.hypotheses] == [t for _, t in expected]
        scores = [h.score for h in translation.hypotheses], [s for s, _ in expected]
        np.testing.assert_allclose(*scores, rtol=1e-5, atol=SCORE_ATOL)
        assert translation.text == vocabulary().decode(expected[0][1])
    assert max(len(h.tokens) for t in actual for h in t.hypotheses) == limit + 1


@pytest.mark.parametrize("search", [{}, {"beam_size": 1}, {"temperature": 1.0}])
def test_contrastive_results_do_not_depend_on_the_batch(search):
    """Nor, bit for bit, on finished lines."""
    translator = made_translator(**BOTH, **search)
    decode = translator.config.decode
    lines = list(
        TranslationJob.create(translator).number_lines(["", *LINES, "two " * 30], **INTO_FRENCH)
    )
    together = dict(translate_lines(translator._inference_model, lines, decode))
    assert len({translation.text for translation in together.values()}) > 2
    for i, line in enumerate(lines):
        ((_, alone),) = translate_lines(translator._inference_model, [line], decode)
        assert_alike([alone], [together[i]])
    done = {line.number for line in lines[:5]}
    rest = dict(translate_lines(translator._inference_model, lines, decode, done))
    assert rest == {i: together[i] for i in range(5, len(lines))}
    again = translator.translate_nbest(["", *LINES, "two " * 30], **INTO_FRENCH)
    assert again == [together[i] for i in range(len(lines))]


def test_zero_contrast_weights_equal_plain_search():
    plain = made_translator().translate_nbest(LINES, **INTO_FRENCH)
    off = made_translator().translate_nbest(
        LINES, source_contrast=0.0, language_contrast=0.0, **INTO_FRENCH
    )
    assert off == plain
    # A line without others, and a direction whose only contrast is the language wanted.
    nothing = {"source_contrast": 0.7, "language_contrast": 0.1, "contrast_languages": ("fr",)}
    alone = made_translator().translate_nbest(LINES[:1], **nothing, **INTO_FRENCH)[0]
    assert [h.tokens for h in alone.hypotheses] == [h.tokens for h in plain[0].hypotheses]
    scores = [[h.score for h in each.hypotheses] for each in (alone, plain[0])]
    np.testing.assert_allclose(*scores, atol=SCORE_ATOL)


def test_contrast_sources_are_other_texts_of_the_window_and_language():
    texts = ["a", "b", "b", "c", "d", "", " \u200b", "e"]
    languages = ["en"] * 4 + ["de", "de", "en", "en"]
    rows = list(zip(itertools.count(10), languages, texts, strict=False))
    drawn = [draw_contrast_sources(rows, 2, seed) for seed in range(30)]
    for others in drawn:
        for (_, language, text), some in zip(rows, others, strict=True):
            pool = {"a", "b", "c", "e"} if language == "en" and text.strip(" \u200b") else set()
            assert set(some) <= pool - {text} and len(set(some)) == len(some)
            assert len(some) == (2 if pool else 0)
    assert {others[0] for others in drawn} == set(itertools.permutations("bce", 2))
    assert drawn[0][1] != drawn[0][2] or drawn[1][1] != drawn[1][2]  # by number, not by text
    assert draw_contrast_sources(rows, 2, 4) == drawn[4]
    assert draw_contrast_sources(rows, 9, 0)[0] and len(draw_contrast_sources(rows, 9, 0)[0]) == 3
    # Lines of another language change nothing.
    assert draw_contrast_sources(rows[:4] + rows[6:], 2, 4) == drawn[4][:4] + drawn[4][6:]


def test_contrast_lines_are_drawn_per_window(monkeypatch):
    monkeypatch.setattr(job_module, "WINDOW_SIZE", 3)
    translator = made_translator(source_contrast=0.5)
    lines = list(TranslationJob.create(translator).number_lines(iter(LINES), **INTO_FRENCH))
    for line in lines:
        window = LINES[line.number // 3 * 3 :][:3]
        assert len(line.contrast_sources) == min(1, len(window) - 1)
        assert set(line.contrast_sources) <= set(window) - {line.text}
    assert [
        line.contrast_sources
        for line in TranslationJob.create(made_translator()).number_lines(LINES, **INTO_FRENCH)
    ] == [()] * 7


def test_the_target_and_repeated_contrast_languages_are_ignored():
    weights = language_contrast_weights(
        ("en", "source", "de", "fr", "de"), 0.1, source_lang="en", target_lang="fr"
    )
    assert weights == [("en", 0.1), ("en", 0.0), ("de", 0.1), ("fr", 0.0), ("de", 0.0)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"source_contrast": 0.8, "language_contrast": 0.1},
            "Decode.source_contrast=0.8 and Decode.language_contrast=0.1 of 2 languages subtract 1 "
            "of each probability; together they must be below 1",
        ),
        ({"source_contrast": 1}, "must be below 1"),
        ({"source_contrast": -0.1}, "Decode.source_contrast=-0.1 must be at least 0"),
        (
            {"language_contrast": 0.1, "contrast_languages": ()},
            "Decode.contrast_languages=() must name a language",
        ),
        (
            {"language_contrast": 0.1, "contrast_languages": ("en", "xx")},
            "Decode.contrast_languages=('en', 'xx'): the model has no 'xx'; name some of source, "
            "en, de, fr",
        ),
        ({"contrast": 0.1}, "contrast=0.1: not a search setting; the settings are beam_size, "),
    ],
)
def test_invalid_contrast_settings_are_one_error_line(settings, message):
    with pytest.raises(UserError, match=re.escape(message)):
        made_translator().translate(LINES[:1], **settings, **INTO_FRENCH)


def test_a_search_description_includes_only_its_contrast():
    plain, source = describe_search(Decode()), describe_search(Decode(source_contrast=0.7))
    assert not {"source_contrast", "language_contrast", "seed"} & plain.keys()
    assert source.keys() - plain.keys() == {"source_contrast", "seed"}
    language = describe_search(Decode(language_contrast=0.1))
    assert language.keys() - plain.keys() == {"language_contrast", "contrast_languages"}
