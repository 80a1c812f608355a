"""Reproduced tables compare their rows over seeds."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from mnmt_jax.evaluation.seed_statistics import compare_means, seed_rows
from mnmt_jax.papers.intervals import Evaluation
from mnmt_jax.papers.pages import html_report, markdown_page
from mnmt_jax.papers.reproduction import Reproduction
from mnmt_jax.papers.seed_groups import seed_groups
from mnmt_jax.papers.tables import Column, find_table, load_papers
from tests.unit.made_results import made_result

PAPER, TABLE = load_papers()["language_layers"], find_table("language_layers/table7")
COLUMNS = (Column("zero_shot.bleu", "BLEU"), Column("zero_shot.comet", "COMET"))


def evaluations(name, level, seeds):
    results = (made_result(name, ("en", "de", "fr"), seed=s, zero_shot=level) for s in seeds)
    return [Evaluation(result, Path(name)) for result in results]


def reproduction(**rows) -> Reproduction:
    table = dataclasses.replace(TABLE, columns=COLUMNS)
    return Reproduction(table, {}, {(name, ""): made for name, made in rows.items()})


def zero_shot_bleu(made):
    pairs = [("de", "fr"), ("fr", "de")]
    return [
        sum(item.bleu for item in one.result.directions if item.direction in pairs) / 2
        for one in made
    ]


def test_rows_are_compared_with_the_first_in_the_metrics_of_the_columns():
    base, better = evaluations("base", 50.0, (1, 2, 3)), evaluations("better", 90.0, (4, 5, 6))
    made = reproduction(base=base, better=better)
    ((title, groups, names),) = seed_groups(made)
    rows = seed_rows(groups, names)
    assert title == "Over seeds" and {row[2] for row in rows} == {"BLEU"}  # none has COMET
    (row,) = [row for row in rows if row[:2] == ["better", "zero-shot"]]
    expected = compare_means(zero_shot_bleu(better), zero_shot_bleu(base))
    assert row[7].startswith(f"{expected.mean:+.2f} (") and row[8] == f"{expected.p:.3f}"
    page = markdown_page(PAPER, made)
    assert "## Over seeds\n" in page and f"{expected.mean:+.2f}" in page
    assert f"{expected.mean:+.2f}" in html_report(PAPER, made)


def test_there_is_no_table_of_single_seeds_or_of_one_row():
    single = {name: evaluations(name, 50.0, (1,)) for name in ("base", "better")}
    assert not [*seed_groups(reproduction(**single))]
    assert not [*seed_groups(reproduction(base=evaluations("base", 50.0, (1, 2, 3))))]


def test_each_corpus_has_its_table():
    made = {("base", code): evaluations("base", 50.0, (1, 2)) for code in ("x", "y")}
    made |= {("better", code): evaluations("better", 60.0, (3, 4)) for code in ("x", "y")}
    columns = tuple(Column(f"{code}.zero_shot.bleu", "BLEU") for code in ("x", "y"))
    table = dataclasses.replace(TABLE, columns=columns)
    titles = [title for title, *_ in seed_groups(Reproduction(table, {}, made))]
    assert titles == ["Over seeds, x", "Over seeds, y"]
