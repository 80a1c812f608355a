"""`mnmt serve --engine ctranslate2`: translations, limits of lines, and what it refuses."""

from __future__ import annotations

import asyncio

import ctranslate2
import numpy as np
import pytest

from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.text.sentence_job import SentenceJob
from mnmt_jax.decoding.translation import Translation
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.errors import UserError
from mnmt_jax.interop.ctranslate2 import export_ctranslate2
from mnmt_jax.interop.ctranslate2_job import CTranslate2Job
from mnmt_jax.model.lora import merge_lora
from mnmt_jax.serving.service import TranslationOptions, TranslationService
from mnmt_jax.serving.settings import Settings
from mnmt_jax.serving.users import User
from mnmt_jax.vocabulary.language_detectors import make_lid176
from tests.system.test_ctranslate2 import names, prompt
from tests.unit.made_translator import LINES, made_translator

PRE = (("norm", "pre"),)
# CTranslate2 normalises probabilities again without `<unk>`, if that is not allowed.
SEARCH = {"allow_unk": True, "length_penalty": 0.5}


def make_job(instruction: str = "5", **search: object) -> SentenceJob:
    translator = made_translator(instruction, "encoder_decoder", PRE)
    return SentenceJob.create(translator, **SEARCH | search)


def completed(job: SentenceJob, lines: list[Line]) -> list[Translation]:
    results = {line.number: result for line, result in TranslationJob.as_completed(job, lines)}
    return [results[line.number] for line in lines]


def made_lines(*texts: str, **fields: object) -> list[Line]:
    return [Line(n, text, "en", "fr", **fields) for n, text in enumerate(texts)]


@pytest.mark.parametrize("instruction", ["5", "register", "2"])
def test_translations_are_those_of_the_exported_model(instruction, tmp_path):
    job = make_job(instruction, beam_size=3)
    pretrained = job.pretrained
    export_ctranslate2(
        pretrained.config,
        merge_lora(pretrained.inference_model.params),
        pretrained.vocabulary,
        tmp_path,
    )
    exported = ctranslate2.Translator(str(tmp_path), compute_type="float32")
    sources, prefixes = zip(*(prompt(pretrained, line) for line in LINES), strict=True)
    forced = pretrained.inference_model.instruction.target_extra - 1
    expected = exported.translate_batch(
        sources,
        target_prefix=prefixes,
        beam_size=3,
        num_hypotheses=3,
        length_penalty=0.5,
        max_decoding_length=12 + forced,
        min_decoding_length=1 + forced,
        return_scores=True,
    )
    actual = completed(CTranslate2Job.of(job), made_lines(*LINES))
    for result, translation in zip(expected, actual, strict=True):
        tokens = [hypothesis[forced:][:11] for hypothesis in result.hypotheses]
        assert [names(pretrained, h.tokens[:-1]) for h in translation.hypotheses] == tokens
        assert [h.score for h in translation.hypotheses] == pytest.approx(result.scores, rel=1e-4)
    assert len({translation.text for translation in actual}) > 3


@pytest.mark.parametrize("instruction", ["5", "1"])
def test_greedy_translations_are_those_of_jax(instruction):
    job = make_job(instruction, beam_size=1)
    lines = made_lines(*LINES, "", "one two three " * 9, "日本")
    expected, actual = completed(job, lines), completed(CTranslate2Job.of(job), lines)
    assert [result.text for result in actual] == [result.text for result in expected]
    for field in ("truncated", "limited", "unknown_characters"):
        assert [getattr(a, field) for a in actual] == [getattr(b, field) for b in expected], field
    assert [len(result.hypotheses) for result in actual].count(0) == 1
    assert any(result.truncated for result in actual)
    assert {result.limited for result in actual} == {True, False}


def test_sources_and_translations_may_be_long():
    """Longer than M2M-100's 1,024 positions, which are also CTranslate2's default limit."""
    job = make_job(beam_size=1, buckets=(14, 1100), max_length=1100)
    text = "one two three " * 350
    source = job.pretrained.vocabulary.encode(text)
    assert 1024 < len(source) < 1098
    lines = made_lines(text, text[:-10] + "nine nine")
    first, second = completed(CTranslate2Job.of(job), lines)
    assert not first.truncated and not second.truncated
    assert first.hypotheses[0].score != second.hypotheses[0].score
    assert first.limited and len(first.hypotheses[0].tokens) == 1101


def test_lines_that_are_done_are_left_out():
    job = CTranslate2Job.of(make_job(beam_size=1))
    results = TranslationJob.as_completed(job, made_lines(*LINES[:3]), done={1})
    assert sorted(line.number for line, _ in results) == [0, 2]


def test_a_pivot_is_searched_too():
    job = make_job(beam_size=1, pivot="de")
    expected, actual = completed(job, lines := made_lines(*LINES)), None
    actual = completed(CTranslate2Job.of(job), lines)
    assert [(r.pivot, r.text) for r in actual] == [(r.pivot, r.text) for r in expected]
    assert all(result.pivot is not None for result in actual)


def test_what_ctranslate2_lacks_is_searched_by_jax():
    job = make_job(beam_size=3)
    exported = CTranslate2Job.of(job)
    plain, aligned = made_lines(LINES[1]), made_lines(LINES[0], LINES[0], aligned=True)[1:]
    (expected,) = completed(job, aligned)
    mixed = completed(exported, [*plain, *aligned])
    assert mixed[:1] == completed(exported, plain)
    assert [h.text for h in mixed[1].hypotheses] == [h.text for h in expected.hypotheses]
    np.testing.assert_allclose(mixed[1].alignment.weights, expected.alignment.weights, rtol=1e-4)


def test_a_server_translates_with_it():
    job = CTranslate2Job.of(make_job(beam_size=1))
    service = TranslationService({"made": job}, Settings(wait_milliseconds=0), make_lid176())
    text, options = f"{LINES[0]}.\n\n- {LINES[1]}", TranslationOptions("fr", "en")
    (answer,) = asyncio.run(service.translate([text], options, User("127.0.0.1")))
    service.stop()
    sentences = answer.translation.sentences
    expected = completed(job, made_lines(*(sentence.source for sentence in sentences)))
    assert [piece for one in sentences for piece in one.translations] == expected
    assert "\n\n- " in answer.translation.text
    assert make_job().has_slots and not job.has_slots
    compiling = job.compiling_job
    assert type(compiling) is CTranslate2Job and compiling.has_slots and compiling.engine is None


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"temperature": 0.5}, "Decode.temperature=0.5: --engine=ctranslate2 has only plain"),
        ({"source_contrast": 0.7}, "Decode.source_contrast=0.7: --engine=ctranslate2 has only"),
        ({"language_contrast": 0.1}, "Decode.language_contrast=0.1: --engine=ctranslate2 has"),
        ({"beam_groups": 2, "beam_size": 2}, "Decode.beam_groups=2: --engine=ctranslate2 has only"),
        ({"utility": "chrf", "beam_size": 2}, "Decode.utility='chrf': --engine=ctranslate2 ranks"),
    ],
)
def test_other_searches_are_refused(search, message):
    with pytest.raises(UserError, match=message):
        CTranslate2Job.of(make_job(**search))


def test_other_precisions_are_refused():
    with pytest.raises(UserError, match="--compute_type=float64: this processor supports.*int8"):
        CTranslate2Job.of(make_job(), "float64")
    translator = made_translator("5", "encoder_decoder", PRE, weights="bfloat16")
    with pytest.raises(UserError, match="weights='bfloat16': with --engine=ctranslate2 use --comp"):
        CTranslate2Job.of(SentenceJob.create(translator))
