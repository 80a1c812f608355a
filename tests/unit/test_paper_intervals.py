"""Intervals of the cells of reproduced tables."""

from __future__ import annotations

import dataclasses
import re
import unicodedata

import pytest

from mnmt_jax.evaluation.published_procedures import PROCEDURES, PaperScorer, round_as_published
from mnmt_jax.evaluation.result import write_result
from mnmt_jax.evaluation.sentence_statistics import mean_statistics, score_of, write_statistics
from mnmt_jax.evaluation.translations import read_stored_texts
from mnmt_jax.papers import intervals, pages
from mnmt_jax.papers.cells import Cell
from mnmt_jax.papers.intervals import Evaluation
from mnmt_jax.papers.latex_figure import escape
from mnmt_jax.papers.reproduction import Reproduction, collect
from mnmt_jax.papers.scales import TINY
from mnmt_jax.papers.selection import select_rows
from mnmt_jax.papers.tables import Column, find_table, load_papers
from mnmt_jax.papers.trials import trials
from tests.unit import made_text
from tests.unit.made_results import made_result
from tests.unit.test_paired_bootstrap import damaged, write
from tests.unit.test_sentence_bootstrap import made_lines, statistics_of

pytestmark = pytest.mark.usefixtures("relaxed_dtypes")  # for parameter counts
PAPER = load_papers()["language_layers"]
RESULT = made_result("made", ("en", "de", "fr"), seed=1)
DE_FR = ("de", "fr")
COLUMNS = (
    Column("de-fr.bleu", "BLEU"),
    Column("de-fr.bleu_change", "change"),
    Column("de-fr.comet", "COMET"),
)


def _evaluate(folder, references, share: float, last_share: float = 0.0) -> float:
    """Write an evaluation with the statistics of de-fr; return the BLEU of de-fr.

    Args:
        folder: its folder.
        references: reference translations.
        share: share of words that the hypotheses have wrong.
        last_share: the same of their last quarter, on top.
    """
    hypotheses = damaged(references, share, 3)
    hypotheses[60:] = damaged(hypotheses[60:], last_share, 3)
    statistics = statistics_of(hypotheses, references)
    comet = mean_statistics([100 * (h == r) for h, r in zip(hypotheses, references, strict=True)])
    statistics = dataclasses.replace(statistics, metrics={**statistics.metrics, "comet": comet})
    scores = {name: score_of(name, statistics.metrics[name]) for name in ("bleu", "comet")}
    items = [
        dataclasses.replace(item, sentences=len(references), **scores)
        for item in RESULT.directions
        if item.direction == DE_FR
    ]
    folder.mkdir(parents=True, exist_ok=True)
    write_result(dataclasses.replace(RESULT, directions=tuple(items)), folder / "scores.json")
    write_statistics(folder, {DE_FR: statistics})
    return scores["bleu"]


@pytest.fixture
def one_seed(tmp_path):
    """A table of two rows, the second decoded otherwise, with one evaluation each."""
    table = find_table("language_layers/table8")
    selected = trials(PAPER, table, select_rows(PAPER, table, "1,2"), 1)
    scores = [
        _evaluate(tmp_path / trial.evaluation, made_lines(0), 0.3, last_share)
        for trial, last_share in zip(selected, (0.0, 0.5), strict=True)
    ]
    return dataclasses.replace(table, columns=COLUMNS), selected, scores


def test_one_seed_has_an_interval_over_sentences(tmp_path, one_seed):
    table, selected, (score, _) = one_seed
    made = collect(table, selected, tmp_path)
    cell = made.cells["FCLL", "de-fr.bleu"]
    low, high = cell.interval
    assert low < score < high and 2 < high - low < 20
    row = next(
        line for line in pages.markdown_page(PAPER, made).splitlines() if line.startswith("| FCLL ")
    )
    assert [part.strip() for part in row.split("|")[-3:-1]] == [
        f"{low:.2f} to {high:.2f}",
        "95 %, sentences",
    ]
    assert f"{low:.2f} to {high:.2f}" in pages.html_report(PAPER, made)
    grid = pages.markdown_page(PAPER, made).partition("## Ours beside")[2].splitlines()
    line = next(line for line in grid if line.startswith("| FCLL "))
    assert line.split("|")[2].strip() == f"{score:.2f} (–)"
    assert rf"\quad interval & {low:.2f} to {high:.2f}" in pages.latex_page(PAPER, made, "")


def test_a_change_is_resampled_in_pairs(tmp_path, one_seed):
    """The interval of a difference on the same sentences is narrower than of independent ones."""
    table, selected, (before, after) = one_seed
    made = collect(table, selected, tmp_path)
    change = made.cells["FCLL, tags omitted", "de-fr.bleu_change"]
    low, high = change.interval
    assert low < after - before < high
    widths = [made.cells[row, "de-fr.bleu"].interval for row in ("FCLL", "FCLL, tags omitted")]
    independent = sum((high - low) ** 2 for low, high in widths) ** 0.5
    assert high - low < 0.6 * independent
    assert ("FCLL", "de-fr.bleu_change") not in made.cells  # the training's own search


def test_resampled_scores_are_computed_once(tmp_path, one_seed, monkeypatch):
    table, selected, _ = one_seed
    first = collect(table, selected, tmp_path).cells["FCLL", "de-fr.bleu"]
    calls = []
    resample = intervals.resample_scores
    monkeypatch.setattr(
        intervals, "resample_scores", lambda *a, **k: calls.append(a) or resample(*a, **k)
    )
    assert collect(table, selected, tmp_path).cells["FCLL", "de-fr.bleu"] == first
    assert calls == []
    _evaluate(tmp_path / selected[0].evaluation, made_lines(0), 0.1)
    assert collect(table, selected, tmp_path).cells["FCLL", "de-fr.bleu"] != first
    assert len(calls) == 2  # BLEU and COMET of the row
    for path in (tmp_path / "resampled").glob("*/*.npz"):
        path.write_bytes(b"damaged")
    collect(table, selected, tmp_path)
    assert len(calls) == 6


def test_means_of_sentence_scores_have_intervals(tmp_path, one_seed):
    table, selected, _ = one_seed
    cell = collect(table, selected, tmp_path).cells["FCLL", "de-fr.comet"]
    low, high = cell.interval
    assert low < cell.ours.mean < high


def test_scores_without_statistics_have_no_interval(tmp_path, one_seed):
    table, selected, _ = one_seed
    folders = [tmp_path / trial.evaluation / "statistics" for trial in selected]
    for folder in folders:
        folder.rename(folder.with_name("moved"))
    cell = collect(table, selected, tmp_path).cells["FCLL", "de-fr.bleu"]
    assert cell.interval is None and cell.ours is not None
    for folder in folders:
        folder.with_name("moved").rename(folder)
    assert collect(table, selected, tmp_path).cells["FCLL", "de-fr.bleu"].interval is not None


def test_a_published_procedure_has_statistics_of_its_own_texts(tmp_path):
    """References are detokenized nowhere in this procedure, hypotheses are."""
    references = [f"{line} ." for line in made_lines(0)]
    write(tmp_path, "de-fr", damaged(references, 0.2, 3), references)
    made_text.vocabulary().save(tmp_path / "vocabulary")
    result = dataclasses.replace(
        RESULT, directions=tuple(item for item in RESULT.directions if item.direction == DE_FR)
    )
    evaluation = Evaluation(result, tmp_path, "iwslt17", tmp_path / "vocabulary")
    (statistics,) = evaluation.statistics().values()
    scorer = PaperScorer(PROCEDURES["iwslt17"], made_text.vocabulary(), None)
    stored = read_stored_texts(tmp_path / "translations", DE_FR)
    texts = scorer.texts(DE_FR, stored.sources, stored.hypotheses, stored.references)
    score = score_of("bleu", statistics.metrics["bleu"])
    assert round_as_published(score) == scorer.scores(DE_FR, texts)["bleu"] != 0
    swapped = dataclasses.replace(evaluation, procedure="ted19")
    assert swapped.statistics() == {}


def test_latex_escapes_names_and_signs(tmp_path):
    assert escape("50% & a_b #1 {x} --scale") == r"50\% \& a\_b \#1 \{x\} -{}-scale"
    assert escape("-3.10 to -0.5, TED-19") == r"$-$3.10 to $-$0.5, TED-19"


@pytest.mark.parametrize("paper", load_papers().values(), ids=lambda paper: paper.name)
def test_latex_of_every_table_is_well_formed(paper, tmp_path):
    """Each line of a table has the columns of its head, and all that opens also closes."""
    for table in paper.tables.values():
        made = Reproduction(
            table,
            {
                (row.name, key): Cell(number, None)
                for row in table.rows
                for key, number in row.published.items()
            },
            {},
        )
        page = pages.write_pages(paper, made, TINY, tmp_path).with_suffix(".tex").read_text("utf-8")
        bare = page.replace(r"\{", "").replace(r"\}", "")
        assert bare.count("{") == bare.count("}")
        assert bare.replace(r"\$", "").count("$") % 2 == 0
        for name in ("table", "tabular"):
            assert page.count(rf"\begin{{{name}}}") == page.count(rf"\end{{{name}}}") == 1
        environments = re.findall(r"\\(begin|end)\{(\w+)\}", page)
        for name in {name for _, name in environments}:
            assert environments.count(("begin", name)) == environments.count(("end", name))
        rows = [line for line in page.splitlines() if line.endswith(r"\\")]
        assert len(rows) == len(table.rows) + 1
        for row in rows:
            assert row.replace(r"\&", "").count("&") == len(table.columns), row
        others = {char for char in page if not char.isascii()}
        assert all(unicodedata.name(char).startswith("LATIN ") for char in others), others
