"""Unknown characters in translation: named, never generated as `<unk>`, copied."""

from __future__ import annotations

import dataclasses
from collections import Counter

import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.analysis.teacher_forcing import make_forced_sentences
from mnmt_jax.commands.line_events import LineEvents
from mnmt_jax.commands.text_files import make_record
from mnmt_jax.data.pair_checks import has_words_on_one_side
from mnmt_jax.decoding.copy_unknown import extract_unknown, reinsert_unknown
from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.search import beam_search, greedy, sample, sentence_rngs
from mnmt_jax.decoding.translation import Translation
from mnmt_jax.vocabulary.special_ids import UNK_ID
from mnmt_jax.vocabulary.unknown_characters import UnknownRun, describe_unknown
from tests.slow_search import slow_beam_search
from tests.toy_model import log_probs_of, make_cache, make_request, make_tables, reorder, step
from tests.unit.made_text import vocabulary
from tests.unit.made_translator import LINES, made_translator

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"


def test_a_search_never_chooses_unk_unless_allowed():
    tables = make_tables(0, batch=3, vocab=6)
    tables[:, :, UNK_ID] += 3.0  # it would win
    limits = (5, 6, 7)
    for allowed in (True, False):
        request = dataclasses.replace(make_request(limits), allow_unk=allowed)
        draws = request.replace(rngs=sentence_rngs(1, jnp.arange(3)))
        searched = {
            "greedy": greedy(step, make_cache(tables, 1), request=request),
            "beam": beam_search(
                step, make_cache(tables, 3), request=request, reorder=reorder, beam=3
            ),
            "sample": sample(step, make_cache(tables, 2), request=draws, beam=2, top_k=4),
        }
        for name, hypotheses in searched.items():
            assert bool((np.asarray(hypotheses.tokens) == UNK_ID).any()) == allowed, name
        for row, limit in enumerate(limits):
            expected = slow_beam_search(
                _without_unk(log_probs_of(tables[row]), allowed), beam=3, max_length=limit
            )
            beam = searched["beam"]
            lengths = np.asarray(beam.lengths)[row]
            tokens = [t[:n].tolist() for t, n in zip(beam.tokens[row], lengths, strict=True)]
            assert tokens == [list(t) for _, t in expected]
            # The probability of unk is not given to the others: scores are the model's.
            np.testing.assert_allclose(beam.scores[row], [s for s, _ in expected], atol=1e-5)


def _without_unk(log_probs, allowed: bool):
    def masked(tokens):
        values = log_probs(tokens).copy()
        if not allowed:
            values[UNK_ID] = -np.inf
        return values

    return masked


COPIES = [
    # source, its unknown characters, what is left, a translation, the result
    ("one 🙂", "🙂", "one ", "un", "un 🙂"),
    ("🙂 one", "🙂", " one", "un", "🙂 un"),
    ("one two 🙂 three four", "🙂", "one two  three four", "un deux trois quatre", None),
    (f"one {FAMILY} two", FAMILY, "one  two", "un deux", f"un {FAMILY} deux"),
    (f"{FAMILY}", "\U0001f468\U0001f469\U0001f467", "", "", FAMILY),
    ("語, 語", "語", ", ", ",", "語, 語"),
    ("price: 5€", "€", "price: 5", "prix : 5", "prix : 5€"),
    ("one two", "", "one two", "un deux", "un deux"),
    ("one 🙂 two", "🙂", "one  two", "一二", "一 🙂 二"),
]


@pytest.mark.parametrize(("source", "unknown", "left", "translation", "expected"), COPIES)
def test_unknown_characters_are_copied_to_their_position(
    source, unknown, left, translation, expected
):
    runs = [UnknownRun(c, i) for i, c in enumerate(source) if c in unknown]
    remaining, copies = extract_unknown(source, runs)
    assert remaining == left
    expected = "un deux 🙂 trois quatre" if expected is None else expected
    assert reinsert_unknown(translation, copies) == expected


def test_characters_rewritten_by_the_vocabulary_are_not_copied():
    assert extract_unknown("one two", [UnknownRun("x", -1)]) == ("one two", ())


@pytest.fixture(scope="module")
def plain():
    return made_translator().translate_nbest(LINES[:2], source="en", target="de")


def test_unknown_characters_are_named_beside_each_translation():
    texts = [f"{LINES[0]} 🙂 ж", LINES[1], "\u2581", "", f"{LINES[2]}\u2581🙂"]
    translations = made_translator().translate_nbest(texts, source="en", target="de")
    assert [t.unknown_characters for t in translations] == ["🙂ж", "", "\u2581", "", "🙂\u2581"]
    assert vocabulary().unk_id in vocabulary().encode(texts[0])
    marked = LineEvents()
    for number, (text, translation) in enumerate(zip(texts, translations, strict=True)):
        record = make_record(Line(number, text, "en", "de"), translation)
        assert record.get("unknown_characters", "") == translation.unknown_characters
        marked.add(record)
    assert marked.unknown == [1, 3, 5]
    assert marked.characters == Counter({"🙂": 2, "\u2581": 2, "ж": 1})
    with pytest.warns(UserWarning, match=r"3 lines with characters unknown .*5 characters: 🙂 \(2"):
        made_translator().translate(texts, source="en", target="de")


def test_copied_characters_do_not_change_the_translation(plain):
    texts = [f"🙂 {LINES[0]}", f"{LINES[1]} {FAMILY}", "🙂🙂", "語 語"]
    copying = made_translator(copy_unknown=True)
    translations = copying.translate_nbest(texts, source="en", target="de")
    assert [t.text for t in translations] == [
        f"🙂 {plain[0].text}",
        f"{plain[1].text} {FAMILY}",
        "🙂🙂",
        "語 語",
    ]
    assert [h.tokens for h in translations[0].hypotheses] == [h.tokens for h in plain[0].hypotheses]
    assert all(h.text.startswith("🙂 ") for h in translations[0].hypotheses)
    assert [len(t.unknown_characters) for t in translations] == [1, 5, 2, 2]
    through = copying.translate_nbest(texts[:1], source="en", target="de", pivot="fr")
    assert through[0].text.startswith("🙂") and through[0].pivot.startswith("🙂")
    assert through[0].unknown_characters == "🙂"


def test_blank_lines_have_no_unknown_characters():
    assert Translation().unknown_characters == ""


def test_invisible_characters_are_named_by_code_point():
    text = describe_unknown(Counter({"🙂": 3, "\x07": 1, "\u0301": 1}))
    assert text == "5 characters: 🙂 (3), U+0007, U+0301"


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("one", ".", True),
        ("…", "2", True),
        (".", "...", False),
        ("one", "un", False),
        ("_", "ж", True),
        ("語", "un", False),
    ],
)
def test_has_words_on_one_side(source, target, expected):
    assert has_words_on_one_side(source, target) == expected


def test_analyses_skip_lines_of_invisible_characters():
    forced = make_forced_sentences(
        made_translator(), ("en", "de"), ["\u200b\ufeff", LINES[0], "\u2581"], None
    )
    assert forced.sources == (LINES[0],)


def test_a_character_stays_before_its_word():
    _, copies = extract_unknown("one two 🙂three", [UnknownRun("🙂", 8)])
    assert reinsert_unknown("un deux trois", copies) == "un deux 🙂trois"
