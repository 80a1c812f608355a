"""Hypotheses of outside systems: scores from files, and rows of tables that are filled by them."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from pathlib import Path

import pytest

from mnmt_jax.commands import evaluate as evaluate_command
from mnmt_jax.commands import prompt as prompt_command
from mnmt_jax.commands.reproduction_plan import describe_plan
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.benchmark import Benchmark, find_corpus
from mnmt_jax.evaluation.evaluate import evaluate
from mnmt_jax.evaluation.outside_hypotheses import HypothesisFiles, outside_system
from mnmt_jax.evaluation.quality_flags import quality_table
from mnmt_jax.evaluation.result import read_result
from mnmt_jax.papers import pages
from mnmt_jax.papers.listing import show_table
from mnmt_jax.papers.reproduction import collect
from mnmt_jax.papers.scales import FULL
from mnmt_jax.papers.selection import parse_hypotheses, select_rows
from mnmt_jax.papers.tables import find_table, load_papers
from mnmt_jax.papers.trials import stated_seeds, trials
from mnmt_jax.papers.workflow import Workflow

TASK, PAIRS, LIMIT = "cldr_quickstart", (("de", "fr"), ("fr", "de")), 12
GPT = "GPT-4o mini"


@pytest.fixture(scope="module")
def benchmark():
    return Benchmark(TASK, find_corpus(TASK)[0], limit=LIMIT).only(PAIRS)


@pytest.fixture
def folder(benchmark, tmp_path):
    """Write perfect translations from German, and those from French with one blank line."""
    path = tmp_path / "gpt"
    path.mkdir()
    for source, target in PAIRS:
        lines = list(benchmark.texts((source, target)).references)
        if source == "fr":
            lines[3] = ""
        (path / f"{source}-{target}.txt").write_text("".join(f"{line}\n" for line in lines))
    return path


def _run(monkeypatch, *flags) -> None:
    words = ("evaluate", "--task", TASK, "--limit", LIMIT, *flags)
    monkeypatch.setattr("sys.argv", [str(word) for word in words])
    evaluate_command.main()


def test_files_are_scored_as_an_evaluation(folder, tmp_path, monkeypatch, capsys):
    output = tmp_path / "out"
    flags = ("--hypotheses", folder, "--directions", "de-fr,fr-de", "--output", output)
    _run(monkeypatch, *flags, "--name", GPT, "--trained_on", "de-fr")
    printed = capsys.readouterr().err
    assert "1/2 de-fr read\n" in printed and "several target languages" not in printed
    result = read_result(output)
    assert (result.name, result.layout, result.parameters) == (GPT, "", None)
    first, second = result.directions
    assert first.bleu == pytest.approx(100) and first.exact_match == 100 and first.supervised
    assert second.exact_match == pytest.approx(100 * 11 / 12) and second.empty == 1
    assert second.supervised is False and result.config == {}
    assert "empty hypotheses (fr-de: 1)" in result.notes
    assert second.unknown_characters is None and "| unknown |" not in quality_table([result])
    assert GPT in (output / "report.html").read_text()
    checksum = f"checksum of the files: {HypothesisFiles(folder).fingerprint()}"
    assert result.signatures["hypotheses"] == checksum
    assert all(checksum in (output / name).read_text() for name in ("report.html", "table.md"))
    with pytest.raises(UserError, match=r"\(the labels of --trained_on would be lost\); choose"):
        _run(monkeypatch, *flags, "--name", GPT)
    with pytest.raises(UserError, match=r"\(the directions of --trained_on\); choose"):
        _run(monkeypatch, *flags, "--name", GPT, "--trained_on", "fr-de")
    (folder / "de-fr.txt").write_text("x\n" * LIMIT)
    with pytest.raises(UserError, match=r"with other settings \(hypotheses\).*--overwrite"):
        _run(monkeypatch, *flags, "--name", GPT, "--trained_on", "de-fr")
    _run(monkeypatch, *flags, "--name", GPT, "--overwrite")
    capsys.readouterr()
    _run(monkeypatch, *flags, "--name", GPT)
    assert "2 of 2 directions had been read before" in capsys.readouterr().err
    assert read_result(output).directions[0].exact_match == 0
    assert "outside system are unknown" in read_result(output).notes[0]


def test_an_evaluation_of_files_gains_directions(folder, benchmark, tmp_path):
    output, first = tmp_path / "out", benchmark.only(PAIRS[:1])
    (folder / "fr-de.txt").rename(tmp_path / "later")
    evaluate(outside_system(HypothesisFiles(folder)), first, output)
    (folder / "fr-de.txt").write_text("not evaluated yet\n" * LIMIT)
    evaluate(outside_system(HypothesisFiles(folder)), first, output)
    (tmp_path / "later").rename(folder / "fr-de.txt")
    system = outside_system(HypothesisFiles(folder))
    assert len(evaluate(system, benchmark, output).directions) == 2
    (folder / "fr-de.txt").write_text("changed\n" * LIMIT)
    with pytest.raises(UserError, match=r"with other settings \(hypotheses\)"):
        evaluate(outside_system(HypothesisFiles(folder)), benchmark, output)


def test_a_choice_by_training_says_that_an_outside_system_records_none(folder, benchmark, tmp_path):
    system, output = outside_system(HypothesisFiles(folder)), tmp_path / "out"
    message = "--directions=supervised: the training directions of an outside system are unknown"
    with pytest.raises(UserError, match=f"^{message}.*; name them with --trained_on, or use"):
        evaluate(system, benchmark, output, subset="supervised")


def test_missing_files_and_lines_are_refused(folder, benchmark, tmp_path):
    files = HypothesisFiles(folder)
    with pytest.raises(UserError, match=r"gpt/en-de.txt: no such file; 1 of 3 directions have"):
        files.check([*PAIRS, ("en", "de")])
    with pytest.raises(UserError, match=r"de-fr.txt: has 12 lines for 11 test .*; write.*none$"):
        files.translate(["a"] * 11, PAIRS[0])
    for limit in (0, 13):
        with pytest.raises(UserError, match="12 lines for 13 .* none, or give --limit=12$"):
            HypothesisFiles(folder, limit).translate(["a"] * 13, PAIRS[0])
    assert len(HypothesisFiles(folder, limit=11).translate(["a"] * 11, PAIRS[0])) == 11
    for limit, count in ((100, 11), (5, 3)):  # of more sentences than the test set has
        with pytest.raises(UserError, match=f"has 12 lines for {count} test sentences"):
            HypothesisFiles(folder, limit=limit).translate(["a"] * count, PAIRS[0])
    (folder / "de-fr.txt").write_bytes(b"eins\n\xff\xfe\n")
    with pytest.raises(UserError, match=r"de-fr.txt:2: .*replace the line"):
        files.translate(["a"] * 2, PAIRS[0])
    (folder / "de-fr.txt").write_bytes("Übrigens, das häßliche Öl für Gäste\n".encode("latin-1"))
    with pytest.raises(
        UserError, match=r"de-fr.txt:1: .*for the whole file: iconv -f \S+ -t UTF-8"
    ):
        files.translate(["a"], PAIRS[0])
    (folder / "fr-de.txt").rename(folder / "xx-de.txt")
    with pytest.raises(UserError, match=r"fr-de.txt: no such file.*; of no direction: xx-de.txt$"):
        evaluate(outside_system(files), benchmark, tmp_path / "out")
    assert not (tmp_path / "out" / "translations").exists()
    with pytest.raises(UserError, match="--hypotheses=.*none: no such folder"):
        outside_system(HypothesisFiles(tmp_path / "none"))
    with pytest.raises(UserError, match="--hypotheses=.*de-fr.txt: is a file; name its folder"):
        outside_system(HypothesisFiles(folder / "de-fr.txt"))


def test_spaces_around_hypotheses_are_removed(tmp_path):
    (tmp_path / "de-fr.txt").write_text(" un \ndeux\r\n")
    translated = HypothesisFiles(tmp_path).translate(["eins", "zwei"], ("de", "fr"))
    assert [item.text for item in translated] == ["un", "deux"]


def test_json_lines_are_read_and_checked(tmp_path):
    path, sources = tmp_path / "de-fr.jsonl", ["eins", "zwei"]
    lines = ['"un"', '{"source": "zwei", "prompt": "x", "hypothesis": " deux\\nou  trois "}']
    path.write_text("\n".join(lines))
    files = HypothesisFiles(tmp_path)
    files.check([("de", "fr")])
    assert [item.text for item in files.translate(sources, ("de", "fr"))] == ["un", "deux ou trois"]
    before = files.fingerprint()
    for wrong, message in (
        ("[1]", "has no text 'hypothesis'; write a string"),
        ('{"source": "zwei"}', "has no text 'hypothesis'"),
        ('{"hypothesis": "un", "source": "drei"}', "'source' is not the test sentence"),
        ("un", "not JSON .*; replace the line"),
    ):
        path.write_text(f"{lines[0]}\n{wrong}\n")
        with pytest.raises(UserError, match=f"de-fr.jsonl:2: {message}"):
            files.translate(sources, ("de", "fr"))
    assert files.fingerprint() != before
    (tmp_path / "de-fr.txt").write_text("un\ndeux\n")
    with pytest.raises(UserError, match=r"de-fr.txt and de-fr.jsonl exist; remove one"):
        files.check([("de", "fr")])


def _prompt(monkeypatch, *flags) -> None:
    words = ("prompt", "--task", TASK, "--directions", "de-fr", "--limit", 3, *flags)
    monkeypatch.setattr("sys.argv", [str(word) for word in words])
    prompt_command.main()


def test_prompts_are_those_of_the_paper(benchmark, tmp_path, monkeypatch, capsys):
    sources = benchmark.texts(("de", "fr")).sources[:3]
    _prompt(monkeypatch)
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    start = "Translating the following sentence from German to French: "
    assert [record["prompt"] for record in records] == [start + source for source in sources]
    assert records[2] == {
        "direction": "de-fr",
        "line": 3,
        "source": sources[2],
        "prompt": start + sources[2],
    }
    _prompt(monkeypatch, "--template", "[TGT] of '[INPUT]'?")
    prompts = [json.loads(line)["prompt"] for line in capsys.readouterr().out.splitlines()]
    assert prompts == [f"French of '{source}'?" for source in sources]
    assert prompt_command.fill_template("[INPUT]", ("de", "fr"), "[SRC] [INPUT]") == "[SRC] [INPUT]"
    twice = prompt_command.fill_template("[SRC]: [INPUT] = [INPUT]", ("de", "fr"), "a [INPUT]")
    assert twice == "German: a [INPUT] = a [INPUT]"
    _prompt(monkeypatch, "--template", "[SOURCE]: [INPUT]")
    warning = "[SOURCE] stays as it is; replaced are [SRC], [TGT], [INPUT]"
    assert f"warning: --template: {warning}\n" in capsys.readouterr().err
    for flags, message in (
        (("--template", "x"), r"--template: has no \[INPUT\]"),
        (("--template", ""), r"--template: has no \[INPUT\]"),
        (("--paper", "two_stage"), "--paper=two_stage: has no prompt; choose registers"),
        (("--paper", "registers", "--template", "[INPUT]"), "--template replaces the prompt of --"),
    ):
        with pytest.raises(UserError, match=message):
            _prompt(monkeypatch, *flags)


def test_files_of_prompts_with_hypotheses_are_evaluated(tmp_path, monkeypatch):
    folder, output = tmp_path / "llm", tmp_path / "out"
    _prompt(monkeypatch, "--output", folder)
    with pytest.raises(UserError, match=r"llm/de-fr.jsonl: already exists"):
        _prompt(monkeypatch, "--output", folder)
    path = folder / "de-fr.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [list(record) for record in records] == [["line", "source", "prompt"]] * 3
    filled = [json.dumps({**record, "hypothesis": record["source"]}) for record in records]
    path.write_text("\n".join(filled) + "\n")
    words = ("evaluate", "--task", TASK, "--hypotheses", folder, "--directions", "de-fr")
    monkeypatch.setattr("sys.argv", [*map(str, words), "--limit", "3", "--output", str(output)])
    evaluate_command.main()
    assert read_result(output).directions[0].detected["de"] >= 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--beam_size", "2"), "--beam_size does not apply to --hypotheses"),
        (("--gin.Decode.beam_size=2",), "gin files and bindings do not apply to --hypotheses"),
        (("--step", "best"), "--step does not apply to --hypotheses"),
        (("--bert_score_english", "roberta-large"), "--bert_score_english needs --bert_score"),
    ],
)
def test_flags_of_models_are_refused(folder, tmp_path, monkeypatch, flags, message):
    with pytest.raises(UserError, match=message):
        _run(monkeypatch, "--hypotheses", folder, "--output", tmp_path / "out", *flags)


def test_an_empty_name_is_refused(folder, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="^--name= is empty; name the system, or leave the flag"):
        _run(monkeypatch, "--hypotheses", folder, "--name=", "--output", tmp_path / "out")


def test_runs_have_the_name_of_their_folder(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="--name does not apply to a run"):
        _run(monkeypatch, "--run", tmp_path, "--name", "x", "--output", tmp_path / "out")


def test_a_row_of_a_table_is_filled(folder, benchmark, tmp_path):
    """The plan has one step, and the page the scores beside the published numbers."""
    table, paper = find_table("registers/table3"), load_papers()["registers"]
    hypotheses = parse_hypotheses(table, [f"{GPT}={folder}"])
    number = str([row.name for row in table.rows].index(GPT) + 1)
    rows = select_rows(paper, table, number, hypotheses)
    selected = trials(paper, table, rows, 3, None, hypotheses)
    plan = Workflow(paper, FULL)
    (target,) = [plan.add(trial) for trial in selected]
    evaluation = selected[0].evaluation
    assert evaluation.startswith("evaluations/GPT_4o_mini+nllb_bridge+")
    (step,) = plan.steps
    assert target == step.name == f"evaluate/{evaluation.removeprefix('evaluations/')}"
    command = f"mnmt evaluate --hypotheses {folder} --name GPT_4o_mini --task flores --output"
    assert " ".join(step.command) == f"{command} {evaluation}"
    assert command in describe_plan(table, selected, (), plan)
    evaluate(outside_system(HypothesisFiles(folder)), benchmark, tmp_path / evaluation)
    made = collect(table, selected, tmp_path)
    page = pages.markdown_page(paper, made)
    assert f"- {GPT}: translations from files." in page.splitlines()
    assert "GPT-3.5 turbo: closed commercial model; --hypotheses scores its translations." in page
    assert made.evaluations[GPT, ""][0].result.directions[0].exact_match == 100


def test_files_of_a_row_with_a_pivot_have_no_flags_of_a_search(folder):
    table, name = find_table("position_disentangling/table1"), "PIV-M (small)"
    hypotheses = parse_hypotheses(table, [f"{name}={folder}"])
    number = str([row.name for row in table.rows].index(name) + 1)
    paper = load_papers()["position_disentangling"]
    rows = select_rows(paper, table, number, hypotheses)
    plan = Workflow(paper, FULL)
    for trial in trials(paper, table, rows, 1, None, hypotheses):
        plan.add(trial)
    commands = [" ".join(step.command) for step in plan.steps]
    assert commands and not [command for command in commands if "--pivot" in command]


def test_changed_translations_are_scored_anew(folder):
    table, paper = find_table("registers/table3"), load_papers()["registers"]
    rows = [row for row in table.rows if row.name == GPT]

    def evaluation():
        return trials(paper, table, rows, None, None, {GPT: folder})[0].evaluation

    first = evaluation()
    assert evaluation() == first
    text = (folder / "de-fr.txt").read_text()
    (folder / "de-fr.txt").write_text("x" + text[1:])
    assert evaluation() != first
    (folder / "de-fr.txt").write_text(text)
    assert evaluation() == first


def test_corpora_of_columns_have_folders(tmp_path):
    table, paper = find_table("registers/table4"), load_papers()["registers"]
    name = table.rows[0].name
    (tmp_path / "flores_finetune_25").mkdir()
    selected = trials(paper, table, table.rows[:1], None, None, {name: tmp_path})
    folders = [Path(trial.experiment.hypotheses).name for trial in selected]
    assert folders == [tmp_path.name, "flores_finetune_25", tmp_path.name]


def test_rows_and_folders_are_checked(tmp_path):
    table, paper = find_table("registers/table3"), load_papers()["registers"]
    with pytest.raises(UserError, match=f"'{GPT}' must be ROW=FOLDER; 'mnmt papers reg"):
        parse_hypotheses(table, [GPT])
    with pytest.raises(UserError, match=f"no row 'GPT-4o mni'; did you mean '{GPT}'"):
        parse_hypotheses(table, ["GPT-4o mni=x"])
    equal = find_table("two_stage/table4")
    name = "TDO, d=544"
    assert parse_hypotheses(equal, [f"{name}=a=b"]) == {name: Path("a=b")}
    rows = [dataclasses.replace(equal.rows[0], name=name) for name in ("TDO", "TDO=wide")]
    nested = dataclasses.replace(equal, rows=tuple(rows))
    assert parse_hypotheses(nested, ["TDO=wide=a"]) == {"TDO=wide": Path("a")}
    assert parse_hypotheses(nested, ["TDO=a"]) == {"TDO": Path("a")}
    with pytest.raises(UserError, match="--hypotheses: .*none: no such folder"):
        trials(paper, table, table.rows[-3:-2], None, None, {GPT: tmp_path / "none"})


def test_the_prompt_is_printed():
    text = show_table(find_table("registers/table3"))
    prompt = "Translating the following sentence from [SRC] to [TGT]: [INPUT]"
    assert f"prompt of {GPT}: {prompt}" in text.splitlines()


def test_an_outside_system_has_one_seed_whatever_the_table_names(folder):
    table, paper = find_table("registers/table3"), load_papers()["registers"]
    rows = [row for row in table.rows if row.name == GPT]
    seeded = dataclasses.replace(table, seeds=(7, 8))
    (trial,) = trials(paper, seeded, rows, None, None, {GPT: folder})
    assert stated_seeds(seeded, trial.experiment) == (7,)
    assert trial.seed == 7


def test_hypotheses_of_a_row_that_is_not_run_are_refused():
    table = find_table("registers/table3")
    filled = parse_hypotheses(table, [f"{GPT}=gpt"])
    paper = load_papers()["registers"]
    assert [row.name for row in select_rows(paper, table, "1,8", filled)][1] == GPT
    message = f"--hypotheses: '{GPT}' is row 8, which --rows=1 leaves out; add it, or leave"
    with pytest.raises(UserError, match=message):
        select_rows(paper, table, "1", filled)
    with pytest.raises(UserError, match=f"--hypotheses: '{GPT}' is named twice"):
        parse_hypotheses(table, [f"{GPT}=a", f"{GPT}=b"])


def test_files_fill_supervised_and_zero_shot_columns(tmp_path, monkeypatch):
    """They are those of the corpus: the translations themselves know of no training."""
    folder, complete = tmp_path / "files", Benchmark(TASK, find_corpus(TASK)[0], limit=LIMIT)
    folder.mkdir()
    for source, target in complete.directions:
        lines = complete.texts((source, target)).references
        if "en" in (source, target):
            lines = ["?", *lines[1:]]
        (folder / f"{source}-{target}.txt").write_text("".join(f"{line}\n" for line in lines))
    table, paper = find_table("benchmarks/zero_shot"), load_papers()["benchmarks"]
    row = table.rows[0]
    selected = trials(paper, table, [row], None, None, {row.name: folder})
    plan = Workflow(paper, FULL)
    plan.add(selected[0])
    monkeypatch.chdir(tmp_path)
    command = plan.steps[-1].command
    limited = [str(LIMIT) if before == "--limit" else word for before, word in pairwise(command)]
    monkeypatch.setattr("sys.argv", limited)
    evaluate_command.main()
    cells = collect(table, selected, tmp_path).cells
    assert cells[row.name, "zero_shot.exact"].ours.mean == 100
    assert cells[row.name, "supervised.exact"].ours.mean == pytest.approx(100 * (1 - 1 / LIMIT))


def test_files_of_graformer_are_evaluated_in_the_directions_of_its_corpus(folder):
    table, paper = find_table("graformer/table1"), load_papers()["graformer"]
    rows = [row for row in table.rows if row.name == "mBART"]
    for trial in trials(paper, table, rows, None, None, {"mBART": folder}):
        plan = Workflow(paper, FULL)
        plan.add(trial)
        command = " ".join(plan.steps[-1].command)
        assert "--directions supervised --trained_on ted30" in command


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("registers/table7", "tokens"),
        ("graformer/table5", "perplexity"),
        ("language_layers/table5", "variance"),
        ("language_layers/table8", "bleu_change"),
    ],
)
def test_columns_that_no_files_can_fill_are_refused(folder, table, column):
    table = find_table(table)
    columns = [item for item in table.columns if item.metric == column]
    table = dataclasses.replace(table, columns=tuple(columns))
    row, paper = table.rows[0], load_papers()[table.paper]
    with pytest.raises(UserError, match=f"no column of '{row.name}' can be computed from trans"):
        trials(paper, table, [row], None, None, {row.name: folder})
