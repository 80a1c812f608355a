"""Timed translation: passes, drawn sentences, `mnmt benchmark`, and the table that it fills."""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics

import pytest

from mnmt_jax.commands import benchmark as benchmark_command
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.decoding.translation_time import TranslationTime, time_translation
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.benchmark import Benchmark, find_corpus
from mnmt_jax.evaluation.timing import Timing, draw_sentences, read_timing, write_timing
from mnmt_jax.papers import pages
from mnmt_jax.papers.experiments import experiments
from mnmt_jax.papers.reproduction import collect
from mnmt_jax.papers.scales import FULL, TINY
from mnmt_jax.papers.selection import select_rows
from mnmt_jax.papers.tables import find_table, load_papers
from mnmt_jax.papers.trials import trials
from mnmt_jax.papers.workflow import Workflow
from tests.unit.made_language_model import write_made_run
from tests.unit.made_translator import LINES, made_translator

TASK = "cldr_quickstart"
TIMING = Timing(100, 3700, 10, 61.5, 0.25, "TPU v5e")


def test_passes_after_the_first_are_timed(monkeypatch):
    """The clock goes on by a second per batch; the first pass takes five more."""
    translator = made_translator()
    job = TranslationJob.create(translator, beam_size=2, batch=3)
    lines = list(job.number_lines(LINES, source="en", target="fr"))
    now, sizes = [0.0], []
    complete = TranslationJob.as_completed

    def as_completed(self, lines, **options):
        now[0] += 1.0 if sizes else 6.0
        sizes.append(len(lines))
        return complete(self, lines, **options)

    monkeypatch.setattr(TranslationJob, "as_completed", as_completed)
    measured = time_translation(job, lines, repeats=4, clock=lambda: now[0])
    assert sizes == [3, 3, 1] * 5
    assert (measured.first_seconds, measured.seconds) == (8.0, (3.0,) * 4)
    best = translator.translate_nbest(LINES, source="en", target="fr", beam_size=2)
    assert measured.tokens == sum(len(item.hypotheses[0].tokens) for item in best)
    with pytest.raises(UserError, match="every translation is empty"):
        blank = job.number_lines(["", " "], source="en", target="fr")
        time_translation(job, list(blank), repeats=1)


def test_mean_and_deviation():
    measured = TranslationTime(50, 9.0, (2.0, 3.0, 7.0))
    assert measured.mean == 4 and measured.seconds_per_token == 0.08
    assert measured.deviation == statistics.stdev([2, 3, 7])
    assert dataclasses.replace(measured, seconds=(2.0,)).deviation is None


def test_sentences_are_drawn_from_all_directions():
    benchmark = Benchmark(TASK, find_corpus(TASK)[0])
    drawn = draw_sentences(benchmark, 200, seed=3)
    assert drawn == draw_sentences(benchmark, 200, seed=3) != draw_sentences(benchmark, 200, seed=4)
    assert {(item.source, item.target) for item in drawn} == set(benchmark.directions)
    for text, source, target in drawn[:20]:
        assert text in benchmark.texts((source, target)).sources
    assert len({item.text for item in drawn}) > 100


def test_the_command_writes_and_prints_the_timing(tmp_path, monkeypatch, capsys):
    run = write_made_run(tmp_path / "run", made_translator())
    flags = ["benchmark", f"--run={run}", f"--task={TASK}", "--directions=en-fr,fr-de"]
    flags += ["--sentences=4", "--repeats=3", "--beam_size=2", "--gin.Decode.max_length=5"]
    monkeypatch.setattr("sys.argv", [*flags, f"--output={tmp_path / 'out'}"])
    benchmark_command.main()
    timing = read_timing(tmp_path / "out")
    facts = json.loads((tmp_path / "out" / "timing.json").read_text())
    assert (timing.sentences, timing.repeats, timing.device) == (4, 3, "cpu")
    assert len(facts["seconds"]) == 3 and facts["first_seconds"] > max(facts["seconds"])
    assert timing.mean_seconds == pytest.approx(statistics.fmean(facts["seconds"]))
    assert timing.deviation_seconds == pytest.approx(statistics.stdev(facts["seconds"]))
    assert (facts["decoding"]["beam_size"], facts["decoding"]["batch"]) == (2, 1)
    assert 4 <= timing.tokens <= 4 * 6
    assert capsys.readouterr().out == timing.describe() + "\n"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "timing.json").write_text("{}")
    monkeypatch.setattr("sys.argv", [*flags, f"--output={tmp_path / 'mine'}"])
    with pytest.raises(UserError, match="timing.json: already exists"):
        benchmark_command.main()


def test_directions_of_the_model_or_of_the_flag_are_timed():
    def test_set(*flags: str):
        words = ["--run=run", f"--task={TASK}", "--output=out", *flags]
        parsed = benchmark_command.make_parser().parse_args(words)
        return benchmark_command._test_set(parsed, ("en", "de", "fr"))

    assert set(test_set().directions) == set(itertools.permutations(("en", "de", "fr"), 2))
    assert test_set("--directions=fr-de,en-fr").directions == (("fr", "de"), ("en", "fr"))
    with pytest.raises(UserError, match="--directions: 'en-nl' has 'nl', which is not among"):
        test_set("--directions=en-nl")


def test_damaged_timings_are_refused(tmp_path):
    with pytest.raises(UserError, match="timing.json: no such file; run 'mnmt benchmark'"):
        read_timing(tmp_path)
    for changes in ({"tokens": 0}, {"mean_seconds": "long"}):
        write_timing(dataclasses.replace(TIMING), tmp_path, {})
        document = json.loads((tmp_path / "timing.json").read_text()) | changes
        (tmp_path / "timing.json").write_text(json.dumps(document))
        with pytest.raises(UserError, match=f"timing.json: {next(iter(changes))}="):
            read_timing(tmp_path)
    write_timing(dataclasses.replace(TIMING, deviation_seconds=None), tmp_path, {})
    assert read_timing(tmp_path).deviation_seconds is None


def test_rows_of_table_7_are_timed(tmp_path):
    table, paper = find_table("registers/table7"), load_papers()["registers"]
    assert all(experiments(paper, table, row) for row in table.rows)
    selected = trials(paper, table, select_rows(paper, table, "3"), 5)
    (trial,) = selected  # one, although five seeds are asked for
    commands = []
    for scale in (FULL, TINY):
        plan = Workflow(paper, scale, metrics={})
        assert plan.add(trial) == f"benchmark/{trial.evaluation.removeprefix('evaluations/')}"
        commands.append(" ".join(plan.steps[-1].command))
    asked = "--sentences 100 --repeats 10 --batch 1 --beam_size 5"
    assert commands[0] == (
        f"mnmt benchmark --run imports/m2m100_418m --task flores {asked} "
        f"--output {trial.evaluation}"
    )
    assert f"{asked} --sentences 3 --repeats 2" in commands[1]
    assert plan.steps[-1].inputs == ("import/m2m100_418m", "data/flores")
    write_timing(TIMING, tmp_path / trial.evaluation, {})
    made = collect(table, selected, tmp_path)
    shown = {key[1]: cell.ours.mean for key, cell in made.cells.items() if cell.ours}
    assert shown == {
        "all.tokens": 3700,
        "all.seconds": 61.5,
        "all.seconds_per_token": pytest.approx(61.5 / 3700),
    }
    page = pages.markdown_page(paper, made)
    assert "| 4,226 | 3,700 | -526 |" in " ".join(page.split())
    assert "| 0.0124 | 0.0166 | +0.0042 |" in " ".join(page.split())
    assert f"- M2M-483M: {TIMING.describe()}" in page.splitlines()
    assert made.conditions == []
