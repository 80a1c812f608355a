"""Scores by the procedures of the papers' scripts in reproduced tables."""

from __future__ import annotations

import dataclasses
import random

import pytest

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.published_procedures import PROCEDURES, PaperScorer
from mnmt_jax.evaluation.result import write_result
from mnmt_jax.evaluation.sentence_statistics import score_of, write_statistics
from mnmt_jax.papers import pages
from mnmt_jax.papers.experiments import corpus_settings
from mnmt_jax.papers.intervals import Evaluation, SentenceIntervals
from mnmt_jax.papers.reproduction import collect
from mnmt_jax.papers.scales import FULL
from mnmt_jax.papers.tables import Column, find_table, load_papers
from mnmt_jax.papers.trials import trials
from mnmt_jax.papers.workflow import Workflow
from tests.unit import made_text
from tests.unit.made_results import made_result
from tests.unit.test_paired_bootstrap import damaged, write
from tests.unit.test_sentence_bootstrap import statistics_of

pytestmark = pytest.mark.usefixtures("relaxed_dtypes")  # for parameter counts
PAPERS = load_papers()


def _trial(name, row=0):
    table = find_table(name)
    return table, trials(PAPERS[table.paper], table, table.rows[row : row + 1], 1)


def test_graformer_is_evaluated_by_its_procedure():
    _, (trial,) = _trial("graformer/table1")
    plan = Workflow(PAPERS["graformer"], FULL)
    plan.add(trial)
    command = " ".join(plan.steps[-1].command)
    assert "--directions supervised --paper_compatible ted30 --output" in command


def test_cells_have_the_scores_of_the_procedure(tmp_path):
    table, selected = _trial("graformer/table1")
    result = made_result("made", ("en", "de"), seed=1)
    items = [dataclasses.replace(item, paper={"bleu": 12.25}) for item in result.directions]
    (tmp_path / selected[0].evaluation).mkdir(parents=True)
    write_result(
        dataclasses.replace(result, directions=tuple(items)),
        tmp_path / selected[0].evaluation / "scores.json",
    )
    made = collect(table, selected, tmp_path)
    assert made.cells["Transformer", "de-en.bleu"].ours.mean == 12.25
    (note,) = [note for note in made.notes if "authors' procedure" in note]
    assert note.startswith("Our scores on ted30 are by") and "Moses' tokens" in note
    assert note in pages.markdown_page(PAPERS["graformer"], made)


def test_swapped_procedures_are_named_and_not_used(tmp_path):
    table, selected = _trial("registers/table1")
    result = made_result("made", ("en", "de"), seed=1)
    items = [
        dataclasses.replace(item, spbleu=30.0, paper={"spbleu": 1.0}) for item in result.directions
    ]
    (tmp_path / selected[0].evaluation).mkdir(parents=True)
    write_result(
        dataclasses.replace(result, directions=tuple(items)),
        tmp_path / selected[0].evaluation / "scores.json",
    )
    made = collect(table, selected, tmp_path)
    scores = [cell.ours.mean for (_, key), cell in made.cells.items()
              if cell.ours and key.endswith("spbleu")]  # fmt: skip
    assert scores and set(scores) == {30.0}
    assert any("ec40 are plain sacreBLEU" in note and "swapped" in note for note in made.notes)


def test_unknown_procedures_are_named():
    paper = PAPERS["graformer"]
    changed = dataclasses.replace(paper, defaults={**paper.defaults, "procedure": "ted3"})
    with pytest.raises(UserError, match=r"corpora.ted30: no procedure 'ted3'; did you mean"):
        corpus_settings(changed, "ted30")


def test_intervals_are_those_of_the_procedure(tmp_path):
    """BLEU over Moses' tokens, with the references through the model's vocabulary."""
    draw = random.Random(0)
    words = ["drei", "Haus", "grün", "Fluss", "klein", "und", "läuft", "hinter"]
    references = [" ".join(draw.choices(words, k=10)) + "-" for _ in range(60)]
    hypotheses = damaged(references, 0.3, 1)
    folder, vocabulary = tmp_path / "name" / "seed1", made_text.vocabulary()
    write(folder, "en-de", hypotheses, references)
    vocabulary.save(tmp_path / "vocabulary")
    scorer = PaperScorer(PROCEDURES["ted30"], vocabulary, None)
    texts = scorer.texts(("en", "de"), ["x"] * 60, hypotheses, references)
    score = scorer.scores(("en", "de"), texts)["bleu"]
    result = made_result("made", ("en", "de"), seed=1)
    items = [item for item in result.directions if item.direction == ("en", "de")]
    result = dataclasses.replace(
        result, directions=(dataclasses.replace(items[0], bleu=score, sentences=60),)
    )
    evaluation = Evaluation(result, folder, "ted30", tmp_path / "vocabulary")
    intervals = SentenceIntervals(tmp_path / "resampled")
    low, high = intervals.of_column(Column("en-de.bleu", ""), "bleu", evaluation)
    assert (low + high) / 2 == pytest.approx(score, abs=(high - low) / 8)
    statistics = statistics_of(hypotheses, references)
    write_statistics(folder, {("en", "de"): statistics})
    bleu = score_of("bleu", statistics.metrics["bleu"])
    directions = (dataclasses.replace(result.directions[0], bleu=bleu),)
    without = Evaluation(dataclasses.replace(result, directions=directions), folder)
    plain = intervals.of_column(Column("en-de.bleu", ""), "bleu", without)
    assert abs(sum(plain) / 2 - score) > high - low  # other tokens, other references
    assert intervals.of_column(Column("en-de.chrf", ""), "chrf", evaluation) is None
    swapped = dataclasses.replace(evaluation, procedure="opus100")
    assert intervals.of_column(Column("en-de.bleu", ""), "bleu", swapped) is None


def test_files_of_other_systems_are_scored_by_sacrebleu(tmp_path):
    """The procedure needs the vocabulary of a model, which files do not have."""
    table, paper = find_table("graformer/table1"), PAPERS["graformer"]
    (tmp_path / "files").mkdir()
    row = next(row for row in table.rows if row.name == "mBART")
    folders = {"mBART": tmp_path / "files"}
    selected = trials(paper, table, [row], 1, hypotheses=folders)
    plan = Workflow(paper, FULL)
    plan.add(selected[0])
    assert "--paper_compatible" not in plan.steps[-1].command
    result = made_result("made", ("en", "de"), seed=1)
    (tmp_path / selected[0].evaluation).mkdir(parents=True)
    write_result(result, tmp_path / selected[0].evaluation / "scores.json")
    made = collect(table, selected, tmp_path)
    score = result.values("bleu")["de", "en"]
    assert made.cells["mBART", "de-en.bleu"].ours.mean == pytest.approx(score)
    assert any(note.startswith("Our scores of mBART on ted30 are plain") for note in made.notes)
