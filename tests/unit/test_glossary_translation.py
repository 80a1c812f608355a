"""Translation with a glossary, from text to text, against the slow constrained search."""

import argparse
import json

import pytest

from mnmt_jax.commands import translate
from mnmt_jax.decoding.glossary import Glossary
from mnmt_jax.decoding.live_translation import LiveTranslation
from mnmt_jax.decoding.terms import LineTerms, Term, encode_terms
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.errors import MnmtWarning, UserError
from tests.slow_search import missing_tokens, slow_constrained_search, without_token
from tests.unit.made_language_model import write_made_run
from tests.unit.made_text import vocabulary
from tests.unit.made_translator import LINES, assert_alike, forced_log_probs, made_translator

WORD = LINES[0].split()[0].strip(".,").lower()  # in some of the lines
GLOSSARY = Glossary.of_mapping({WORD: ["drei", "Haus und"], "": ["!klein"]})


def _slow(translator, line, terms):
    log_probs = forced_log_probs(translator, line, "en", "de")
    log_probs = without_token(log_probs, vocabulary().unk_id)
    encoded = encode_terms(terms, vocabulary(), "de")
    required = list(zip(encoded.required, encoded.counts, strict=True))
    hypotheses = slow_constrained_search(
        log_probs, required, encoded.forbidden, beam=3, max_length=11
    )
    return required, hypotheses


@pytest.mark.parametrize("layout", ["register", "encoder_decoder"])
def test_translations_are_those_of_the_slow_search(layout):
    translator = made_translator("register", layout)
    actual = translator.translate_nbest(LINES, source="en", target="de", glossary=GLOSSARY)
    with_term = 0
    for line, translation in zip(LINES, actual, strict=True):
        terms = GLOSSARY.terms_of(line, "en")
        required, expected = _slow(translator, line, terms)
        assert [list(h.tokens) for h in translation.hypotheses] == [t for _, t in expected]
        assert not missing_tokens(required, expected[0][1])
        assert translation.missing_terms == ()
        assert not terms.required or any(
            word in translation.text.lower() for word in ("drei", "haus und")
        )
        with_term += bool(terms.required)
    assert 0 < with_term < len(LINES)
    # The server's batches have the same search.
    job = TranslationJob.create(translator, glossary=GLOSSARY)
    live, served = LiveTranslation(job), {}
    live.add([(line.number, line) for line in job.number_lines(LINES, source="en", target="de")])
    while len(live):
        served |= dict(live.run())
    assert_alike([served[number] for number in range(len(LINES))], actual)


def test_lines_without_terms_keep_their_very_same_translation():
    translator = made_translator()
    plain = translator.translate_nbest(LINES, source="en", target="de")
    glossary = {WORD: "drei"}
    actual = translator.translate_nbest(LINES, source="en", target="de", glossary=glossary)
    is_same = [one == other for one, other in zip(plain, actual, strict=True)]
    has_term = [bool(Glossary.of_mapping(glossary).terms_of(line, "en")) for line in LINES]
    assert is_same == [not one for one in has_term] and any(is_same)


def test_a_term_that_cannot_be_met_is_reported():
    translator = made_translator()
    glossary = {WORD: "\u4e00"}
    line = next(line for line in LINES if WORD in line.lower().split())
    options = {"source": "en", "target": "de", "glossary": glossary}
    (translation,) = translator.translate_nbest([line], **options)
    assert translation.missing_terms == (WORD,) and translation.text
    with pytest.warns(MnmtWarning, match=rf"not translated as the glossary demands \({WORD}\)"):
        translator.translate([line], **options)


def test_a_text_is_translated_with_its_glossary():
    translator = made_translator()
    text = "\n\n".join(LINES[:2])
    result = translator.translate_text(text, source="en", target="de", glossary={WORD: "drei"})
    assert "drei" in result.text.lower() and result.missing_terms == ()
    lacking = translator.translate_text(text, source="en", target="de", glossary={WORD: "\u4e00"})
    assert lacking.missing_terms == (WORD,)


def test_sampling_with_a_glossary_is_refused():
    with pytest.raises(UserError, match="beam_groups=3: diverse beam search has no terms"):
        made_translator().translate(
            LINES[:1], source="en", target="de", glossary={"a": "b"}, beam_groups=3
        )
    with pytest.raises(UserError, match="temperature=1: sampling has no terms"):
        made_translator().translate(
            LINES[:1], source="en", target="de", glossary={"a": "b"}, temperature=1.0
        )


def test_terms_are_not_required_in_the_pivot():
    translator = made_translator()
    job = TranslationJob.create(translator, pivot="fr", glossary=Glossary.of_mapping({WORD: "und"}))
    lines = list(job.number_lines(LINES[:1], source="en", target="de"))
    direct = translator.translate(LINES[:1], source="en", target="fr")
    ((_, translation),) = job.as_completed(lines)
    assert lines[0].terms == LineTerms((Term(WORD, ("und",)),))
    assert translation.pivot == direct[0] and "und" in translation.text.lower()


@pytest.fixture
def command(tmp_path, monkeypatch):
    run = write_made_run(tmp_path / "run", made_translator())
    (tmp_path / "in").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    (tmp_path / "g.tsv").write_text(f"{WORD}\tdrei\n", encoding="utf-8")

    def call(*more: str) -> str:
        files = [f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}"]
        flags = [f"--run={run}", "--source=en", "--target=de", *files, *more]
        monkeypatch.setattr("sys.argv", ["mnmt translate", *flags])
        translate.main()
        return (tmp_path / "out").read_text(encoding="utf-8")

    return call


def test_the_command_translates_with_a_glossary_file(command, tmp_path, capsys):
    path = tmp_path / "g.tsv"
    records = [
        json.loads(line) for line in command("--format=jsonl", f"--glossary={path}").splitlines()
    ]
    with_term = [WORD in record["source"].lower().split() for record in records]
    assert any(with_term) and "glossary" not in capsys.readouterr().err
    assert [WORD for record in records if "missing_terms" in record] == []
    for record, has_term in zip(records, with_term, strict=True):
        assert not has_term or "drei" in record["translation"].lower()
    path.write_text(f"{WORD}\t\u4e00\n", encoding="utf-8")
    output = command("--format=jsonl", f"--glossary={path}", "--split_sentences")
    records = [json.loads(line) for line in output.splitlines()]
    assert [record.get("missing_terms") for record in records] == [
        [WORD] if one else None for one in with_term
    ]
    numbers = ", ".join(str(n) for n, one in enumerate(with_term, start=1) if one)
    assert f"not translated as the glossary demands (line {numbers})" in capsys.readouterr().err


def test_the_command_names_a_bad_line_of_a_glossary(command, tmp_path):
    path = tmp_path / "bad.tsv"
    path.write_text("a\tb\nc\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"bad\.tsv, line 2: 0 tabs"):
        command(f"--glossary={path}")
    flags = argparse.Namespace(
        runner="beam", output="o", split_sentences=False, context=None, glossary=path
    )
    with pytest.raises(UserError, match="--glossary is not for --runner=beam"):
        translate._check_sharing(flags, 1)


def test_a_stopped_command_does_not_continue_with_another_glossary():
    translator = made_translator()
    facts = [
        TranslationJob.create(translator, glossary=glossary).provenance()
        for glossary in (None, Glossary.of_mapping({"a": "b"}), Glossary.of_mapping({"a": "c"}))
    ]
    assert len({fact.get("glossary") for fact in facts}) == 3


def test_terms_are_met_with_contrasts():
    """The contrasts exclude some of the tokens."""
    options = {"source_contrast": 0.4, "language_contrast": 0.25}
    translations = made_translator().translate_nbest(
        LINES, source="en", target="de", glossary={WORD: "drei"}, **options
    )
    assert all(translation.hypotheses for translation in translations)
    for line, translation in zip(LINES, translations, strict=True):
        if WORD in line.lower().split():
            is_met = "drei" in translation.text.lower()
            assert translation.missing_terms == (() if is_met else (WORD,))
    plain = made_translator().translate(LINES, source="en", target="de", **options)
    assert plain != [translation.text for translation in translations]
