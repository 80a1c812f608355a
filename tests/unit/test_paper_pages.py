"""Generated parts of the papers' pages (scripts/site/paper_pages.py)."""

from __future__ import annotations

import dataclasses
import importlib
import re

import pytest

from mnmt_jax.papers.experiments import make_experiment
from mnmt_jax.papers.tables import find_paper, find_table
from tests.run_commands import ROOT


@pytest.fixture
def pages(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts" / "site")
    return importlib.import_module("paper_pages")


def _lines(text: str, start: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith(start)]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_the_introduction_cites_the_paper(pages):
    text = pages.paper_introduction(find_paper("two_stage"))
    assert text.startswith("The paper: Zhi Qu, Yiran Wang, ")
    assert (
        "*. 2024, preprint. [arxiv.org/abs/2412.02101](https://arxiv.org/abs/2412.02101)." in text
    )
    assert text.endswith("in the second stage.\n")


def test_reasons_are_listed_with_their_rows(pages):
    paper, table = find_paper("language_layers"), find_table("language_layers/table2")
    closed = [dataclasses.replace(row, unavailable="closed_model") for row in table.rows[:2]]
    first = dataclasses.replace(table, rows=(*closed, *table.rows[3:]))
    second = dataclasses.replace(table, name="table3", number="Table 3", rows=tuple(closed[:1]))
    drawn = dataclasses.replace(table, name="figure4", number="Figure 4", rows=())
    drawn = dataclasses.replace(drawn, no_numbers="drawn only")
    tables = {item.name: item for item in (first, second, drawn)}
    text = pages.paper_tables(dataclasses.replace(paper, tables=tables), "../..")
    assert _lines(text, "| closed") == [
        [
            "closed\\_model",
            "[Table 2](#table2): Baseline, Philip et al. (2020); [Table 3](#table3): Baseline",
        ]
    ]
    assert _lines(text, "| drawn only") == [["drawn only", "[Figure 4](#figure4)"]]


def test_rows_name_gin_files_and_changes(pages):
    text = pages.paper_tables(find_paper("registers"), "../..")
    start = "| 2. 12 layers: encoder-decoder + CL "
    *_, (_, files, changes) = _lines(text.replace("    |", "|"), start)[:2]
    models = "../../gin_configs/models/encoder_decoder_ec40_12.gin"
    assert files == f"[encoder_decoder_ec40_12]({models}), [ec40](../../gin_configs/runs/ec40.gin)"
    assert changes.startswith("`Train.methods=('mrasp2',)`<br>`MRASP2.layer=6`")


@pytest.mark.parametrize(
    ("paper", "start", "changes"),
    [
        (
            "language_layers",
            "| 7. Baseline, fine-tuned by back-translation",
            "4 rounds of back-translation",
        ),
        (
            "language_layers",
            "| 1. Baseline | [encoder_decoder_iwslt17]",
            "`Train.steps=20000`<br>starts from encoder_decoder_iwslt17 on iwslt17",
        ),
        ("language_layers", "| 2. FCLL, tags omitted", "decoding: `Data.instruction='none'`"),
        (
            "graformer",
            "| 3. Graformer | [grafted_graformer]",
            "starts from mlm: masked_lm_graformer on newscrawl_masked_lm<br>"
            "starts from lm: causal_lm_graformer on newscrawl_causal_lm",
        ),
        (
            "registers",
            "| 1. MITRE-466M |",
            "timed: `mnmt benchmark --sentences 100 --repeats 10 --batch 1 --beam_size 5`",
        ),
        ("registers", "| 1. M2M-483M | none: `mnmt import", "evaluated on nllb_bridge"),
        ("position_disentangling", "| 1. PIV-M (small)", "evaluation: `--pivot en`"),
    ],
)
def test_changes_of_rows_are_named(pages, paper, start, changes):
    text = pages.paper_tables(find_paper(paper), "../..").replace("    |", "|")
    assert changes in [cells[-1] for cells in _lines(text, start)]


def test_many_columns_of_few_rows_become_rows(pages):
    header, _, first = _lines(pages._numbers(find_table("graformer/table1")), "| ")[:3]
    assert header == ["column", "1. Transformer", "2. mBART", "3. Graformer"]
    assert first == ["bg→en BLEU", "32.0", "–", "38.5"]


def test_rows_without_common_columns_are_tables_of_their_own(pages):
    table = find_table("two_stage/table1")
    blocks = pages._blocks(table)
    assert [(len(rows), len(columns)) for rows, columns in blocks] == [(11, 13), (14, 13)]
    first, second = ({column.key for column in columns} for _, columns in blocks)
    assert not first & second
    assert [row for rows, _ in blocks for row in rows] == list(table.rows)
    empty = dataclasses.replace(table.rows[0], name="empty", published={})
    rows = (empty, *table.rows[:11], dataclasses.replace(empty, name="other"), *table.rows[11:])
    blocks = pages._blocks(dataclasses.replace(table, rows=rows))
    assert [len(rows) for rows, _ in blocks] == [13, 14]
    assert blocks[0][0][0] is empty and blocks[0][0][-1].name == "other"


def test_tables_of_facts_have_a_column_each(pages):
    header, _, first = _lines(pages._numbers(find_table("registers/table2")), "| ")[:3]
    assert header == ["row", "languages", "bridges"] and first == ["1. English", "en", "en"]


def test_printed_points_of_a_figure_are_drawn(pages):
    paper = find_paper("graformer")
    (drawing,) = pages._charts(paper, paper.tables["figure7"]).split("<figure")[1:]
    assert drawing.count(": published ") == 30 and "en→de: published" in drawing
    shares = pages._charts(paper, paper.tables["figure5"])  # the paper draws more than it prints
    assert shares.count(": published ") > 1 and not re.search(r'd="M[\d.]+ [\d.]+L', shares)
    two_stage = find_paper("two_stage")
    assert pages._charts(two_stage, two_stage.tables["table1"]) == ""
    assert pages._charts(two_stage, two_stage.tables["figure5"]) == ""  # a point each


def test_analyses_are_runs_of_a_table(pages):
    text = pages.paper_tables(find_paper("registers"), "../..")
    section = text.split("{ #figure4 }")[1].split("\n## ")[0]
    assert "mnmt reproduce registers/figure4 --data" in section
    files = "[register_ec40_24](../../gin_configs/models/register_ec40_24.gin), "
    assert f"`, of registers, 24 layers: {files}" in section and "mnmt analyse states" in section
    assert _lines(text, "| [Figure&nbsp;4]")[0][2:] == ["–", "1 analysis", "–"]


def test_plain_text_is_escaped(pages):
    assert pages.escape("a*b_c | <d> [e]`") == "a\\*b\\_c &#124; &lt;d&gt; \\[e\\]\\`"


@pytest.mark.parametrize(
    "section, start",
    [("4.3", "Section 4.3; "), ("B", "Appendix B; "), ("Limitations", "Limitations; "), ("", "A")],
)
def test_sections_are_named(pages, section, start):
    table = dataclasses.replace(find_table("registers/table5"), section=section)
    assert pages._source(table).startswith(start)


def test_a_row_names_the_teacher_of_its_training(pages):
    table = find_table("benchmarks/zero_shot")
    (row,) = [row for row in table.rows if row.name == "distilled"]
    run = make_experiment(find_paper("benchmarks"), table, row, "cldr_quickstart")
    changes = [*pages._changes(run)]
    assert "trained on translations by encoder_decoder_tiny (`--beam_size 5`)" in changes
