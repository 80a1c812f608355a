"""Retry of failed translations: which search is used, resumption, processes, and the command."""

from __future__ import annotations

import dataclasses
import json
import zlib

import pytest

from mnmt_jax.commands import translate as command_module
from mnmt_jax.commands.common_flags import CommandParser
from mnmt_jax.decoding import guards, retry, translation_job
from mnmt_jax.decoding.retry import CONTRAST, PIVOT
from mnmt_jax.decoding.search_settings import make_search
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.language_detectors import LanguageDetector
from tests.unit.made_language_model import write_made_run
from tests.unit.made_translator import LINES, made_translator

SIDES = {"source": "de", "target": "fr"}
TEXTS = [*LINES, "", "two two three", "one house"]


def made_rank(text: str, count: int) -> list[tuple[str, float]]:
    """Return German for two of three texts, by their bytes, else French."""
    return [("fr" if zlib.crc32(f"10{text}".encode()) % 3 == 0 else "de", 1.0)]


DETECTOR = LanguageDetector("made", "made|1", made_rank)


@pytest.fixture(autouse=True)
def detected(monkeypatch):
    monkeypatch.setattr(translation_job, "find_detector", lambda name, *_: DETECTOR)
    monkeypatch.setattr(guards, "MIN_LETTERS", 0)
    monkeypatch.setattr(guards, "is_repetitive", lambda *_: False)  # random models are


def job_with_retry(**options) -> TranslationJob:
    translator = made_translator(beam_size=1)
    return TranslationJob.create(translator, retry_off_target=True, **options)


def test_the_first_search_that_passes_is_used():
    job = job_with_retry()
    translator, checks = job.pretrained, job.retry
    assert checks is not None
    contrast = {"language_contrast": 0.4, "contrast_languages": ("en", "source")}
    searches = [
        (name, translator.translate_nbest(TEXTS, **SIDES, **options))
        for name, options in ((None, {}), (CONTRAST, contrast), (PIVOT, {"pivot": "en"}))
    ]
    expected = []
    for index, text in enumerate(TEXTS):
        options = [(name, results[index]) for name, results in searches]
        passing = [
            dataclasses.replace(result, retried=name)
            for name, result in options
            if checks.passes(text, "de", result, "fr")
        ]
        expected.append(passing[0] if passing else options[0][1])
    lines = list(job.number_lines(TEXTS, **SIDES))
    assert [translation for _, translation in job.in_order(iter(lines))] == expected
    assert translator.translate_nbest(TEXTS, **SIDES, retry_off_target=True) == expected
    assert {result.retried for result in expected} == {None, CONTRAST, PIVOT}
    failed = [not checks.passes(t, "de", r, "fr") for t, r in zip(TEXTS, expected, strict=True)]
    assert any(failed) and not all(failed)  # the first translation remains if none passes


def test_translations_do_not_depend_on_what_is_done():
    job = job_with_retry()
    lines = list(job.number_lines(TEXTS, **SIDES))
    complete = dict(job.as_completed(lines))
    for done in ({0, 3, 4, 5}, set(range(1, 10)), {line.number for line in lines}):
        remaining = dict(job.as_completed(lines, done=done))
        assert remaining == {line: complete[line] for line in lines if line.number not in done}


def test_attempts_fit_the_directions_and_the_settings():
    job = TranslationJob.create(made_translator())
    assert job.retry is None and "retry" not in job.provenance()
    contrast, pivot = job.with_retry(DETECTOR).retry.attempts
    assert contrast.applies("de", "fr") and contrast.applies("en", "fr")
    assert not contrast.applies("en", "en")
    assert pivot.applies("de", "fr") and not pivot.applies("de", "en")
    assert pivot.job.pivot == "en" and pivot.job.retry is None
    through_english = TranslationJob.create(made_translator(), pivot="en")
    assert [one.name for one in through_english.with_retry(DETECTOR).retry.attempts] == [CONTRAST]
    through_german = job.with_retry(DETECTOR, "deu_Latn").retry.attempts[1]
    assert through_german.job.pivot == "de"
    with pytest.raises(UserError, match="--retry_pivot=xx: the model has no such language"):
        job.with_retry(DETECTOR, "xx")


def test_contrasts_of_the_settings_are_kept():
    settings = {"source_contrast": 0.3, "language_contrast": 0.5, "contrast_languages": ("de",)}
    job = TranslationJob.create(made_translator(), **settings)
    decode = job.with_retry(DETECTOR).retry.attempts[0].job.decode
    assert (decode.source_contrast, decode.language_contrast) == (0.0, 0.45)
    assert decode.contrast_languages == ("de", "source")


@pytest.mark.parametrize(("temperature", "seed"), [(0.0, 0), (1.0, 5)])
def test_a_seed_of_contrast_lines_alone_is_not_of_the_further_search(temperature, seed):
    settings = {"source_contrast": 0.3, "temperature": temperature, "seed": 5}
    job = TranslationJob.create(made_translator(), **settings)
    for search in job.with_retry(DETECTOR).retry.attempts:
        make_search(search.job.decode)
    assert job.with_retry(DETECTOR).retry.attempts[0].job.decode.seed == seed


def test_provenance_names_the_retry():
    facts = job_with_retry(retry_pivot="de").provenance()["retry"]
    assert facts["detector"] == "made|1" and facts["pivot"] == "de"
    assert facts["language_contrast"] == retry._LANGUAGE_CONTRAST


# The command


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    translator = made_translator(beam_size=1)
    return write_made_run(tmp_path_factory.mktemp("run") / "run", translator)


@pytest.fixture
def command(run, tmp_path, monkeypatch):
    (tmp_path / "in").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")

    def call(*flags: str) -> list[dict]:
        files = [f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}", "--format=jsonl"]
        sides = [f"--{name}={code}" for name, code in SIDES.items()]
        monkeypatch.setattr("sys.argv", ["mnmt translate", f"--run={run}", *sides, *files, *flags])
        command_module.main()
        out = tmp_path / "out"
        records = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
        return [json.loads(record) for record in records]

    call.out = tmp_path / "out"
    return call


def test_the_command_continues_and_shares_its_lines(command, monkeypatch, capsys):
    expected = command("--retry_off_target")
    job = job_with_retry()
    lines = job.number_lines(TEXTS, **SIDES)
    translations = [translation for _, translation in job.in_order(lines)]
    assert [record["translation"] for record in expected] == [one.text for one in translations]
    assert [record.get("retried") for record in expected] == [one.retried for one in translations]
    count = sum(one.retried is not None for one in translations)
    assert f"{count} translations replaced by a further search" in capsys.readouterr().err
    as_completed = TranslationJob.as_completed

    def stopping(self, lines, **options):
        for number, pair in enumerate(as_completed(self, lines, **options)):
            if number == 4:
                raise KeyboardInterrupt
            yield pair

    command.out.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(TranslationJob, "as_completed", stopping)
        with pytest.raises(KeyboardInterrupt):
            command("--retry_off_target")
    with pytest.raises(UserError, match=r"translations made with other settings \(retry"):
        command()
    assert command("--retry_off_target") == expected
    assert "resumes after 4 lines" in capsys.readouterr().err
    command.out.unlink()
    for process in ("1", "0"):
        records = command("--retry_off_target", "--num_processes=2", f"--process_id={process}")
    assert records == expected


def test_checks_are_a_field_of_each_line(command, monkeypatch):
    monkeypatch.setattr(
        "mnmt_jax.vocabulary.language_detectors.find_detector", lambda name: DETECTOR
    )
    records = command("--checks")
    for record in records:
        checks = record["checks"]
        assert checks["empty"] is False and checks["score"] == record["score"]
        detected = made_rank(record["translation"], 1)[0][0] if record["translation"] else None
        assert checks["language"] == detected
        assert checks["off_target"] == (detected == "de")
    assert {record["checks"]["off_target"] for record in records} == {True, False}


def test_flags_that_do_not_fit_are_refused(command):
    with pytest.raises(UserError, match="--checks adds a field to --format=jsonl; add that flag"):
        command("--checks", "--format=text")
    with pytest.raises(UserError, match="--retry_pivot is the pivot of --retry_off_target"):
        command("--retry_pivot=en")
    with pytest.raises(UserError, match="--lid=no.bin: is the detector of --retry_off_target and"):
        command("--lid=no.bin")
    assert isinstance(command_module.make_parser(), CommandParser)
