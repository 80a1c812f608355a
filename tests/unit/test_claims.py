"""benchmarks/claims.py: the order of jobs, the choice of a candidate, and the tables of results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from mnmt_jax.errors import UserError
from tests.run_commands import call

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield
    for name in ("experiments", "claim_tables", "claim_summary", "claims"):
        sys.modules.pop(name, None)


def test_dependencies_of_all_jobs_exist(tmp_path):
    from claim_tables import EXPERIMENTS
    from experiments import ROOT, Workspace

    for table, experiment in EXPERIMENTS.items():
        jobs = Workspace(tmp_path / table, experiment).jobs(list(experiment.arms))
        names = [job.name for job in jobs]
        assert len(set(names)) == len(names)
        assert all(set(job.needs) <= set(names) for job in jobs), table
        models = {arm.model for arm in experiment.arms.values()}
        files = [ROOT / "gin_configs/models" / f"{model}.gin" for model in models]
        assert all(file.is_file() for file in files)
        folders = [*experiment.arms, *experiment.caches, *experiment.vocabularies]
        assert len(set(folders)) == len(folders), table


def test_jobs_wait_for_dependencies_and_failures_are_skipped(capfd):
    from experiments import Job, execute

    done = []

    def action(name, fails=False):
        def act(cores):
            assert cores
            if fails:
                raise UserError("broken")
            done.append(name)

        return act

    jobs = [
        Job("last", ("first", "second"), action("last")),
        Job("first", (), action("first")),
        Job("broken", (), action("broken", fails=True)),
        Job("after", ("broken",), action("after")),
        Job("second", ("first",), action("second")),
    ]
    assert execute(jobs, 1) == 2
    assert done == ["first", "second", "last"]
    stderr = capfd.readouterr().err
    assert "failed broken in 0 s: broken" in stderr and "skipped after" in stderr


def test_text_becomes_moses_tokens_in_lower_case(tmp_path):
    pytest.importorskip("sacremoses")
    for split in ("train", "val", "test_2016_flickr"):
        (tmp_path / f"{split}.en").write_text("A man's hat, please.\nTwo dogs\n", encoding="utf-8")
    call("benchmarks/moses_text.py", [str(tmp_path), str(tmp_path / "out"), "--languages=en"])
    written = {file.name: file.read_text() for file in (tmp_path / "out").iterdir()}
    expected = "a man 's hat , please .\ntwo dogs\n"
    assert written == {f"{split}.en": expected for split in ("train", "val", "test2016")}
    with pytest.raises(UserError, match="no file .*train.de"):
        call("benchmarks/moses_text.py", [str(tmp_path), str(tmp_path / "o"), "--languages=de"])


def write_run(folder, losses):
    folder.mkdir(parents=True)
    records = [
        {"step": step, "validation": {"supervised": {"loss": loss, "nll": loss / 2}}}
        for step, loss in enumerate(losses, start=1)
    ]
    lines = "\n".join(json.dumps(record) for record in records)
    (folder / "metrics.jsonl").write_text(lines + "\n", encoding="utf-8")
    (folder / "finished").touch()


def test_the_candidate_with_the_lowest_supervised_loss_is_chosen(tmp_path):
    from experiments import Arm, Cache, Experiment, Workspace

    arms = {
        "base": Arm("encoder_decoder_tiny"),
        "like": Arm("encoder_decoder_tiny", tuned_as="base"),
    }
    rates = tuple((f"Optimizer.learning_rate={rate}",) for rate in (1, 2, 3))
    experiment = Experiment(
        *("title", "task", "run", {"vocabulary": ()}, {"cache": Cache(())}, (), rates),
        **{"steps": 3, "every": 1, "seeds": (7, 8), "limit": 0, "arms": arms},
    )
    space = Workspace(tmp_path, experiment)
    for number, losses in enumerate(([3.0, 2.0, 2.5], [3.0, 1.5, 1.9])):
        write_run(space.run("base", number, 7), losses)
    with pytest.raises(UserError, match="base: a candidate has no validation loss yet"):
        space.choice("base")
    write_run(space.run("base", 2, 7), [1.6, 1.7, 1.8])
    assert space.losses("base") == [2.0, 1.5, 1.6]
    assert space.choice("base") == space.choice("like") == 1
    needs = {job.name: job.needs for job in space.jobs(["like"])}
    name = tmp_path.name
    assert f"{name} base candidate 2" in needs[f"{name} like seed 7"]
    assert f"{name} like candidate 0" not in needs


def test_recorded_results_of_another_machine_are_not_repeated(tmp_path, monkeypatch):
    from claim_summary import summarize
    from claims import read_results, record
    from experiments import Arm, Cache, Experiment, Workspace, execute

    rates = tuple((f"Optimizer.learning_rate={rate}",) for rate in (1, 2))
    experiment = Experiment(
        *("title", "task", "run", {"vocabulary": ()}, {"cache": Cache(())}, (), rates),
        **{"steps": 3, "every": 1, "seeds": (7, 8), "limit": 0},
        arms={"base": Arm("encoder_decoder_tiny")},
    )
    trained = []

    def train(space, name, candidate, seed, cores):
        trained.append((candidate, seed))
        write_run(space.run(name, candidate, seed), [2.0 - candidate])

    def evaluate(space, run, decoding, flags, cores):
        result = {"directions": {"de-fr": row("supervised", 90.0)}}
        space.recorded.setdefault("base", {})["chosen"] = space.chosen("base")
        space.recorded["base"].setdefault("seeds", {})[run.name[-1]] = {
            "scores": {decoding: result}
        }

    monkeypatch.setattr(Workspace, "_make", lambda *_: None)
    monkeypatch.setattr(Workspace, "_train", train)
    monkeypatch.setattr(Workspace, "_evaluate", evaluate)
    first = Workspace(tmp_path / "first", experiment)
    results = tmp_path / "results"
    assert read_results(results, "made") == {}
    for count, losses in ((3, [2.0, None]), (4, [2.0, 1.0])):  # one candidate, and both
        execute(first.jobs(["base"])[:count], 1, lambda: record({"made": first}, results))
        assert read_results(results, "made")["arms"]["base"]["losses"] == losses
    assert trained == [(0, 7), (1, 7)]
    recorded = read_results(results, "made")
    second = Workspace(tmp_path / "second", experiment, recorded)
    execute(second.jobs(["base"]), 1)
    assert trained == [(0, 7), (1, 7), (1, 7), (1, 8)]
    third = Workspace(tmp_path / "third", experiment, summarize(second))
    assert set(third.recorded["base"]["seeds"]) == {"7", "8"}
    execute(third.jobs(["base"]), 1)
    assert len(trained) == 4
    unknown = Workspace(tmp_path / "fourth", experiment, {"arms": {"base": other(third)}})
    assert summarize(unknown)["arms"]["base"]["seeds"].keys() == {"7", "8"}  # nothing is chosen yet
    for number in range(2):
        write_run(unknown.run("base", number, 7), [2.0 - number])
    assert not summarize(unknown)["arms"]["base"]["seeds"].get("8")
    assert not unknown.is_recorded("base", 7)


def other(space):
    """Return recorded results of a candidate that is not the best, without its losses."""
    (chosen,) = space.experiment.grid[:1]
    return {**space.recorded["base"], "chosen": list(chosen), "losses": []}


@pytest.mark.parametrize("table", ["multi30k", "graft", "positions"])
def test_a_trial_trains_each_arm_for_four_updates(table, tmp_path):
    """Patience, a step of 250 or 500 test sentences would make it a training."""
    import argparse

    from claim_tables import EXPERIMENTS
    from claims import workspace

    whole = EXPERIMENTS[table]
    flags = argparse.Namespace(trial=True, seeds=1, folder=tmp_path, results=None)
    trial = workspace(flags, table).experiment
    assert (trial.steps, trial.every, trial.limit, trial.seeds) == (4, 2, 3, whole.seeds[:1])
    assert trial.arms.keys() == whole.arms.keys()
    assert not any(arm.steps for arm in trial.arms.values())
    assert trial.bindings[: len(whole.bindings)] == whole.bindings
    assert "Train.patience=0" in trial.bindings[len(whole.bindings) :]


def test_results_of_a_trial_are_not_recorded(tmp_path):
    flags = ["positions", str(tmp_path), "--trial", f"--results={tmp_path / 'results'}"]
    with pytest.raises(UserError, match="--trial: results of 4 updates are not recorded"):
        call("benchmarks/claims.py", flags)
    assert not (tmp_path / "results").exists()


def row(group, bleu):
    return {"group": group, "bleu": bleu, "chrf": bleu, "exact_match": 0.0, "off_target": 1.0}


def arm(*zero_shot, curve=()):
    seeds = {
        str(seed): {
            "curve": list(curve),
            "scores": {
                "plain": {
                    "directions": {
                        "de-fr": row("supervised", 90.0),
                        "fr-de": row("zero-shot", score),
                        "fr-cs": row("zero-shot", score + 2),
                    }
                }
            },
        }
        for seed, score in enumerate(zero_shot, start=1)
    }
    return {"chosen": [], "losses": [1.0], "seeds": seeds}


def test_tables_compare_arms_with_the_first(tmp_path):
    from claim_summary import equal_loss_table, means, score_tables

    curve = [[100, 0.5, 1.5], [200, 0.3, 1.0], [300, 0.2, 0.9]]
    arms = {"base": arm(10.0, 12.0, 14.0, curve=curve), "cut": arm(20.0, 22.0, 24.0, curve=curve)}
    assert means(arms["base"], "plain", "zero-shot", "bleu") == [11.0, 13.0, 15.0]
    page = score_tables({"title": "Made up", "arms": arms})
    lines = [line for line in page.splitlines() if line.startswith("| cut")]
    assert "23.0 (21.0 to 25.0)" in lines[1] and "+10.0 (" in lines[1] and "0.100" in lines[1]
    (first, _) = equal_loss_table({"arms": arms}, [0.3, 0.1]).splitlines()[2:]
    assert "1.000 after 200" in first and "reached by 0 of 3" in first


def test_arms_compare_with_the_arm_of_their_data(tmp_path):
    from claim_summary import score_tables

    source = {"chosen": [], "losses": [0.5], "seeds": {"1": {"curve": []}}}
    few, many = ({"compared_with": name} for name in ("few", "many"))
    arms = {
        "source": source,
        "few": arm(10.0) | few,
        "graft, few": arm(14.0) | few,
        "many": arm(20.0) | many,
        "graft, many": arm(19.0) | many,
    }
    page = score_tables({"title": "Made up", "arms": arms}).partition("### Zero-shot")[2]
    assert "BLEU - few" in page and "BLEU - many" in page and "source" not in page
    gaps = [row.split("|")[-3].strip() for row in page.splitlines() if row.startswith("| graft")]
    assert gaps == ["+4.0", "-1.0"]
    del arms["many"]
    page = score_tables({"title": "Made up", "arms": arms}).partition("### Zero-shot")[2]
    assert "BLEU - many" not in page and "+9.0" in page  # with the first that has scores
    arms["many"] = arm(20.0) | many
    page = score_tables({"title": "Made up", "arms": arms}, "few").partition("### Zero-shot")[2]
    gaps = [row.split("|")[-3].strip() for row in page.splitlines() if row.startswith("| graft")]
    assert gaps == ["+4.0", "+9.0"] and "BLEU - many" not in page


def test_lowest_validation_losses_are_those_of_the_supervised_directions():
    from claim_summary import validation_table

    arms = {
        "two": arm(1.0, 2.0, curve=[[100, 0.5, 1.5], [200, 0.3, 1.9], [300, 0.4, 0.9]]),
        "text": {"chosen": [], "losses": [0.5, None], "seeds": {"1": {"curve": [[4, 0.25]]}}},
        "none": arm(),
    }
    arms["two"]["seeds"]["2"]["curve"] = [[100, 0.1, 0.5]]
    cells = [
        [cell.strip() for cell in row.strip("|").split("|")]
        for row in validation_table({"arms": arms}).splitlines()[2:]
    ]
    assert cells == [
        ["two", "0.200", "150", "1.200", "1.000"],
        ["text", "0.250", "4", "–", "0.500, –"],
    ]


def test_printed_tables_compare_with_a_named_arm(tmp_path, capsys):
    arms = {"base": arm(10.0, 12.0), "cut": arm(20.0, 22.0), "none": arm()}
    document = {"title": "Made up", "arms": arms}
    (tmp_path / "positions.json").write_text(json.dumps(document), encoding="utf-8")
    flags = ["positions", f"--results={tmp_path}", "--print"]
    call("benchmarks/claims.py", [*flags, "--baseline=cut"])
    table = capsys.readouterr().out.partition("### Zero-shot directions")[2]
    assert "BLEU - cut" in table and "| -10.0 (" in table
    with pytest.raises(UserError, match="--baseline=none: has no results; choose from base, cut"):
        call("benchmarks/claims.py", [*flags, "--baseline=none"])
    with pytest.raises(UserError, match="--baseline: is of printed tables"):
        call("benchmarks/claims.py", [*flags[:2], "--baseline=cut"])


def test_the_page_matches_its_results():
    from claim_summary import score_tables

    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "results_claims.md").read_text(encoding="utf-8")
    files = sorted((docs / "results").glob("*.json"))
    assert files
    for file in files:
        tables = score_tables(json.loads(file.read_text(encoding="utf-8")))
        rows = [line for line in tables.splitlines() if line.startswith("|")]
        assert len(rows) > 4 and not [row for row in rows if row not in page], file.name
