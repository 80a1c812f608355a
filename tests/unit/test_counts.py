"""Counts of sentence pairs, and tables of data that compare them with printed ones."""

from __future__ import annotations

import json

import pytest
from lxml import html

from mnmt_jax.data.corpus import Selection, Share
from mnmt_jax.data.opposite_directions import has_same_text
from mnmt_jax.data.pair_counts import count_pairs
from mnmt_jax.data.parallel_corpora import (
    CldrPhrases,
    JoinedCorpus,
    ParallelFiles,
    PatternFiles,
)
from mnmt_jax.data.subsample import SubsampledCorpus
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.count_page import count_page
from mnmt_jax.papers.counts import count_cell, counted_splits, with_counts
from mnmt_jax.papers.listing import runnable_rows
from mnmt_jax.papers.output_folders import count_file
from mnmt_jax.papers.reproduction import collect
from mnmt_jax.papers.scales import FULL, TINY
from mnmt_jax.papers.selection import select_rows
from mnmt_jax.papers.tables import Column, find_table, load_papers
from mnmt_jax.papers.workflow import Workflow
from tests.run_commands import command

PAPERS = load_papers()


def test_training_counts_are_of_supervised_directions():
    sizes = {"train": 30, "test": 5}
    corpus = CldrPhrases(("en", "de", "fr"), sizes=sizes, name="made")
    counts = count_pairs(corpus, [("en", "de"), ("de", "en")], ("train", "test"))
    assert counts == {
        "train": {"en-de": 30, "de-en": 30},
        "test": {"en-de": 5, "de-en": 5},  # fr is not trained on
    }


def test_opposite_directions_are_read_once(tmp_path, monkeypatch):
    for code in ("en", "de"):
        (tmp_path / f"train.{code}").write_text("a\nb\nc\n")
    corpus = ParallelFiles("made", f"{tmp_path}/{{split}}.{{language}}", ("en", "de"))
    read = []
    pairs = corpus.pairs
    monkeypatch.setattr(corpus, "pairs", lambda *of: read.append(of) or pairs(*of))
    counts = count_pairs(corpus, [("en", "de"), ("de", "en")], ["train"])
    assert counts == {"train": {"en-de": 3, "de-en": 3}} and len(read) == 1
    with pytest.raises(UserError, match="no training text for en-fr"):
        count_pairs(corpus, [("en", "fr")], ["train"])


def test_a_sample_of_one_direction_is_counted_for_it_alone(tmp_path):
    for code in ("en", "de"):
        (tmp_path / f"train.{code}").write_text("a\nb\nc\n")
        (tmp_path / f"test.{code}").write_text("d\n")
    patterns = {split: (f"{tmp_path}/{split}.{{language}}",) for split in ("train", "test")}
    selection = Selection(sample_sizes={("en", "de"): 2})
    directions = ("en", "de"), ("de", "en")
    files = PatternFiles("made", patterns, ("en", "de"), selection=selection)
    for corpus in (files, JoinedCorpus("made", ("en", "de"), dict.fromkeys(patterns, files))):
        for order in (directions, directions[::-1]):
            assert count_pairs(corpus, order, ["train"]) == {"train": {"en-de": 2, "de-en": 3}}
        assert not has_same_text(SubsampledCorpus(corpus, Share(0.9)), "train", directions[0])
        assert has_same_text(corpus, "test", directions[0])


def test_the_command_prints_and_writes_counts(tmp_path, capsys):
    for code in ("en", "de"):
        (tmp_path / f"train.{code}").write_text("a\nb\nc\n")
    flags = ["--parallel", tmp_path, "--languages", "en,de"]
    output, page = tmp_path / "new/counts.json", tmp_path / "pages/counts.html"
    call_count(*flags, "--output", output, "--page", page)
    assert json.loads(output.read_text())["sentences"] == {"train": {"en-de": 3, "de-en": 3}}
    lines = [line.replace(" ", "") for line in capsys.readouterr().out.splitlines()]
    assert "|train|en-de|3|" in lines and "|train|all|6|" in lines
    assert "Sentences of corpus" in page.read_text()
    with pytest.raises(UserError, match="--page=.*: is the file of --output; choose another"):
        call_count(*flags, "--output", output, "--page", output.parent / "." / output.name)
    assert json.loads(output.read_text())["sentences"]
    page.write_text("mine")
    with pytest.raises(UserError, match="counts.html"):
        call_count(*flags, "--page", page)
    with pytest.raises(UserError, match="--of=dev: 'dev' is none of them; choose from train, val"):
        call_count(*flags, "--of", "dev")
    with pytest.raises(UserError, match="--of=,: is empty"):
        call_count(*flags, "--of", ",")
    with pytest.raises(UserError, match="--of: test is named twice; leave one of them out"):
        call_count(*flags, "--of", "test,train,test")


def call_count(*flags: object) -> None:
    command("count_pairs", *flags)


def test_counts_replace_counts_alone(tmp_path):
    flags = ["--mixture", "cldr_quickstart", "--directions", "en-de", "--of", "validation"]
    for name in ("output", "page"):
        path = tmp_path / name
        path.write_text("mine\n")
        with pytest.raises(UserError, match=f"^{path}: already exists and .* another --{name}$"):
            call_count(*flags, f"--{name}", path)
        assert path.read_text() == "mine\n"
        path.unlink()
        for _ in range(2):
            call_count(*flags, f"--{name}", path)


def test_test_text_is_counted_without_training_text(tmp_path, capsys):
    for code in ("en", "de"):
        (tmp_path / f"test.{code}").write_text("a\nb\n")
    flags = ["--parallel", tmp_path, "--languages", "en,de"]
    call_count(*flags, "--of", "validation,test")
    assert "|test|de-en|2|" in capsys.readouterr().out.replace(" ", "")
    with pytest.raises(UserError, match="has no training files; check --splits$"):
        call_count(*flags, "--of", "train,test")


def test_the_page_has_a_cell_for_each_direction():
    counts = {"train": {"en-de": 1_450_000, "de-en": 999_600, "en-fr": 12_345, "fr-en": 0}}
    document = html.fromstring(count_page("made", counts))
    rows = {
        row.find("th").text_content(): [cell.text_content() for cell in row.findall("td")]
        for row in document.xpath("//tbody/tr")
    }
    assert rows == {
        "en": ["–", "1.45M", "12.3k"],
        "de": ["1M", "–", "–"],
        "fr": ["–", "–", "–"],
    }
    assert "2,461,945 in all" in document.text_content()


COUNTS = {
    "train": {"en-de": 10, "de-en": 10, "fr-en": 30},
    "validation": {"en-de": 2, "de-en": 2, "fr-en": 2, "de-fr": 2},
    "test": {"en-de": 5, "de-fr": 5},
}


@pytest.mark.parametrize(
    "key, language, expected",
    [
        ("train.sentences", "", 50),
        ("valid.sentences", "", 6),
        ("test.sentences", "", 10),
        ("all.sentences", "", 50 / 3),
        ("all.sentences_min", "", 10),
        ("all.sentences_max", "", 30),
        ("zero_shot.directions", "", 6),
        ("all.sentences", "de", 10),
        ("all.sentences", "fr", 30),
        ("all.sentences", "ja", None),
    ],
)
def test_numbers_of_cells(key, language, expected):
    assert count_cell(COUNTS, "iwslt17", language, Column(key, "")) == expected


def test_monolingual_text_is_counted_by_language():
    counts = {"train": {"de-de": 7}}
    assert count_cell(counts, "newscrawl", "de", Column("all.sentences", "")) == 7


def test_tables_of_data_count_their_corpora():
    splits = {
        f"{paper.name}/{table.name}": counted_splits(paper, table)
        for paper in PAPERS.values()
        for table in paper.tables.values()
        if counted_splits(paper, table)
    }
    everything = ("train", "validation", "test")
    assert splits.pop("position_disentangling/table5") == {
        "multiun": everything,
        "europarl_centric": everything,
    }
    mixtures = {name: list(counted) for name, counted in splits.items()}
    assert mixtures == {
        "graformer/table10": ["newscrawl"],
        "graformer/table11": ["ted30"],
        "language_layers/table11": [
            *("iwslt17", "europarl_triangle", "europarl_square", "ted20", "opus100_all"),
        ],
        "registers/table14": ["ec40"],
        "registers/figure9": ["nllb_bridge"],
        "two_stage/table5": ["ted19"],
        "two_stage/table6": ["opus100"],
    }
    assert all(of == ("train",) for counted in splits.values() for of in counted.values())


def test_counted_rows_are_listed_as_rows_that_run():
    paper = PAPERS["graformer"]
    assert runnable_rows(paper, paper.tables["table10"]) == 46  # of 47: one is processed text
    assert runnable_rows(PAPERS["registers"], find_table("registers/table8")) == 0


def test_counting_is_a_step_of_the_workflow():
    paper = PAPERS["two_stage"]
    assert select_rows(paper, find_table("two_stage/table5"), None) == ()
    for scale, inputs in ((FULL, ()), (TINY, ("data/ted19",))):
        plan = Workflow(paper, scale)
        assert plan.add_count("ted19", ("train",)) == "count/ted19"
        step = plan.steps[-1]
        assert " ".join(step.command) == (
            "mnmt count --mixture ted19 --of train --output counts/ted19.json "
            "--page counts/ted19.html"
        )
        assert step.inputs == inputs


def test_counts_are_cells_with_published_numbers(tmp_path):
    paper, table = PAPERS["graformer"], find_table("graformer/table10")
    made = collect(table, (), tmp_path)
    with pytest.raises(UserError, match=r"counts/newscrawl\.json: no such file; remove its step"):
        with_counts(paper, made, tmp_path)
    file = tmp_path / count_file("newscrawl")
    file.parent.mkdir()
    file.write_text(json.dumps({"sentences": {"train": {"am-am": 119_643, "ro-ro": 5}}}))
    counted = with_counts(paper, made, tmp_path)
    assert counted.cells["am", "all.sentences"].difference == 0
    assert counted.cells["ro", "all.sentences"].ours.mean == 5
    assert counted.cells["ro*", "all.sentences"].ours is None  # processed Romanian is not ours
    assert count_file("newscrawl", "html") in counted.analysis_pages.values()
