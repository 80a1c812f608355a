"""Quality flags of outputs with a known number of defects."""

from __future__ import annotations

import dataclasses

import pytest

from mnmt_jax.evaluation.benchmark import Benchmark, find_corpus
from mnmt_jax.evaluation.evaluate import evaluate
from mnmt_jax.evaluation.evaluated_model import EvaluatedModel
from mnmt_jax.evaluation.quality_flags import quality_table
from mnmt_jax.evaluation.report import report_page
from mnmt_jax.evaluation.result import read_result
from mnmt_jax.evaluation.scoring import score_direction
from mnmt_jax.evaluation.translations import TranslatedSentence
from mnmt_jax.vocabulary.language_detectors import LanguageDetector
from tests.unit.made_results import made_result

PAIR, SENTENCES = ("de", "fr"), 20


def scored(outputs, second=None):
    benchmark = Benchmark(
        "cldr_quickstart",
        find_corpus("cldr_quickstart")[0],
        limit=SENTENCES,
        second_detector=second,
    )
    texts = benchmark.texts(PAIR)
    hypotheses = [TranslatedSentence(text) for text in outputs(texts)]
    return score_direction(
        PAIR, texts, outputs=hypotheses, benchmark=benchmark, supervised={PAIR}
    ).result


def defective(texts):
    lines = list(texts.references)
    (copied,) = [n for n, text in enumerate(texts.sources) if "Grad Celsius und" in text]
    lines[copied] = texts.sources[copied]
    assert copied > 1
    lines[0], lines[1] = "", "lundi et lundi et lundi et lundi et lundi et lundi et lundi et"
    return lines


def test_defects_are_counted():
    detector = LanguageDetector("always", "always", lambda text, count: [("de", 1.0)])
    item = scored(defective, detector)
    clean = scored(lambda texts: texts.references)
    assert (clean.empty, clean.copied, clean.repeated, clean.length_ratio) == (0, 0, 0, 100)
    assert clean.off_target_second is None
    dots = scored(lambda texts: [".........." for _ in texts.references])
    assert (dots.empty, dots.copied) == (SENTENCES, 0)
    assert (item.empty, item.repeated) == (1, 1) and item.copied == 1
    assert item.off_target_second == 95 and item.length_ratio != 100


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [("fr", "de", 0), ("de", "en", 95), ("de", "fr", 0), ("en", "en", 95)],
)
def test_two_detectors_agree_on_what_is_off_target(monkeypatch, first, second, both):
    always = {
        code: LanguageDetector(code, code, lambda text, count, code=code: [(code, 1.0)])
        for code in ("de", "en", "fr")
    }
    monkeypatch.setattr("mnmt_jax.evaluation.benchmark.make_lid176", lambda: always[first])
    item = scored(defective, always[second])  # one of 20 is empty, hence in no language
    assert item.off_target_both == both
    assert item.off_target_second == (0 if second == "fr" else 95)


def test_tables_have_a_row_for_each_system():
    run = made_result("run", ("en", "de", "fr"), seed=1)
    fields = {"copied": 10, "repeated": 4, "length_ratio": 98.25, "empty": 2}
    items = [dataclasses.replace(item, **fields, unknown_characters=3) for item in run.directions]
    flagged = dataclasses.replace(run, directions=tuple(items), name="flagged")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in quality_table([flagged, run]).splitlines()
    ]
    assert rows[0][-5:] == ["empty", "copied", "looping", "length", "unknown"]
    assert rows[0][2:5] == ["off-target", "off-target (lid.176)", "on references"]
    assert len(rows[0]) == 10 and {row[4] for row in rows[2:]} == {"11.2"}
    assert rows[2][-5:] == ["1.0", "5.0", "2.0", "98.2", "12"]
    assert rows[3][-5:] == ["0.0", "–", "–", "–", "0"]
    assert len(rows) == 2 + 4
    second = {**run.signatures, "off_target_second": "glotlid.bin|sha256:0"}
    fields = {"off_target_second": 7.0, "off_target_both": 3.0}
    items = [dataclasses.replace(item, **fields) for item in run.directions]
    twice = dataclasses.replace(run, directions=tuple(items), signatures=second)
    table = quality_table([twice])
    assert "off-target (glotlid.bin) | by both |" in table and "looping" not in table
    page = report_page([flagged, run])
    assert "Quality flags" in page and "<td>98.2</td>" in page


def test_lines_without_context_are_a_flag_of_evaluations_with_context(tmp_path):
    corpus, _ = find_corpus("cldr_quickstart")
    benchmark = Benchmark("cldr_quickstart", corpus, limit=SENTENCES).only([PAIR])
    for settings, alone in (({}, 0), ({"context": 120}, 0), ({"context": 120}, 3)):
        folder = tmp_path / f"{len(settings)}{alone}"
        model = EvaluatedModel(
            "made",
            lambda lines, direction, alone=alone: [
                TranslatedSentence(line, without_context=n < alone) for n, line in enumerate(lines)
            ],
            None,
            settings,
        )
        result = evaluate(model, benchmark, folder)
        assert result.directions[0].without_context == (alone if settings else None)
        is_shown = "without context" in (folder / "table.md").read_text()
        assert is_shown == bool(settings)
        assert read_result(folder) == result
    header, _, row = quality_table([result]).splitlines()
    cells = dict(zip(*([*map(str.strip, line.split("|"))] for line in (header, row)), strict=True))
    assert cells["without context"] == "15.0"
