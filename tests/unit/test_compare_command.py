"""`mnmt compare` on evaluations in folders: tables on the terminal and sections of the page."""

from __future__ import annotations

import dataclasses

import pytest

from mnmt_jax.commands import compare
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.result import read_result, write_result
from mnmt_jax.evaluation.sentence_statistics import write_statistics
from tests.unit.made_results import made_result
from tests.unit.test_paired_bootstrap import damaged, write
from tests.unit.test_significance import PAIRS, REFERENCES, made


def evaluated(folder, name, seed, layout, noise):
    """Write an evaluation of a run with a seed; return its folder."""
    hypotheses = {pair: damaged(REFERENCES, noise, 10 * seed + n) for n, pair in enumerate(PAIRS)}
    result, statistics = made(name, hypotheses)
    config = {"model": {"layout": layout}, "train": {"seed": seed}}
    place = folder / name
    place.mkdir()
    write_statistics(place, statistics)
    write_result(dataclasses.replace(result, config=config), place / "scores.json")
    return place


def run_compare(monkeypatch, tmp_path, folders, *flags):
    page = tmp_path / "report.html"
    words = ["compare", *folders, "--output", page, "--resamples", "100", *flags]
    monkeypatch.setattr("sys.argv", [str(word) for word in words])
    compare.main()
    return page.read_text(encoding="utf-8")


def test_intervals_and_tests_are_printed_and_on_the_page(tmp_path, monkeypatch, capsys):
    folders = []
    for seed, name in enumerate(("worse", "better")):
        hypotheses = {
            pair: damaged(REFERENCES, 0.5 - 0.3 * seed, n) for n, pair in enumerate(PAIRS)
        }
        result, statistics = made(name, hypotheses)
        folders.append(tmp_path / name)
        folders[-1].mkdir()
        write_statistics(folders[-1], statistics)
        write_result(result, folders[-1] / "scores.json")
    page = run_compare(monkeypatch, tmp_path, folders)
    printed = capsys.readouterr().out
    assert "Differences to worse:" in printed and "Quality flags:" in printed
    tests = printed.partition("Differences to")[2]
    row = next(line for line in tests.splitlines() if " BLEU " in line)
    assert row.count("0.010") == 2  # 1 / 101
    assert "±" in printed.splitlines()[2] and 'class="interval"' in page
    assert "<h2>Differences to worse</h2>" in page and "100 resamples" in page
    (folders[1] / "statistics" / "fr-de.npz").unlink()
    page = run_compare(monkeypatch, tmp_path, folders)
    printed = capsys.readouterr().out
    assert "No intervals and tests of better: the folder lacks" in printed
    assert "Differences to" not in printed and "Differences to" not in page


@pytest.mark.parametrize("flags", [(), ("--by_seed",)])
def test_seeds_are_a_section_of_the_page(tmp_path, monkeypatch, capsys, flags):
    folders = []
    for layout, seed in (("prefix", 0), ("prefix", 1), ("register", 0), ("register", 1)):
        result = made_result(f"{layout}_{seed}", ("en", "de", "fr"), seed=seed, layout=layout)
        config = {"model": {"layout": layout}, "train": {"seed": seed}}
        folders.append(tmp_path / result.name)
        folders[-1].mkdir()
        write_result(dataclasses.replace(result, config=config), folders[-1] / "scores.json")
    page = run_compare(monkeypatch, tmp_path, folders, *flags)
    printed = capsys.readouterr().out
    assert ("<h2>Over<wbr/> seeds</h2>" in page or "<h2>Over seeds</h2>" in page) == bool(flags)
    assert printed.startswith("Over seeds:") == bool(flags)
    assert ("<h1>prefix and register on" in page) == bool(flags)
    smallest = "p is that of the exact permutation test over seeds and at least 0.33 with these"
    assert (smallest in printed) == (smallest in page) == bool(flags)
    assert (page.count('class="best"') > 0) == (not flags)
    assert "No intervals and tests of prefix_0" in printed


def test_paired_tests_are_of_the_evaluated_directions(tmp_path, monkeypatch, capsys):
    """Stale files of other directions stay in the folders; `scores.json` may be named."""
    folders = [evaluated(tmp_path, f"system_{seed}", seed, "prefix", 0.3) for seed in (1, 2)]
    for seed, folder in enumerate(folders):
        for number, (source, target) in enumerate((*PAIRS, ("nl", "de"))):
            hypotheses = damaged(REFERENCES, 0.3, 10 * seed + number)
            write(folder, f"{source}-{target}", hypotheses, REFERENCES)
    printed = []
    for names in (folders, [folder / "scores.json" for folder in folders]):
        run_compare(monkeypatch, tmp_path, names, "--paired_bootstrap", "20")
        printed.append(capsys.readouterr().out.partition("\nAgainst ")[2])
    assert printed[0] == printed[1] and "nl-de" not in printed[0]
    assert f"BLEU: better in 0 of {len(PAIRS)} directions" in printed[0]


def test_paired_tests_go_on_after_a_system_with_other_sentences(tmp_path, monkeypatch, capsys):
    folders = [evaluated(tmp_path, f"system_{seed}", seed, "prefix", 0.3) for seed in (1, 2, 3)]
    for seed, folder in enumerate(folders):
        for pair in PAIRS:
            write(folder, "-".join(pair), damaged(REFERENCES, 0.3, seed), REFERENCES)
    result = read_result(folders[1])
    fewer = [dataclasses.replace(item, sentences=9) for item in result.directions]
    write_result(dataclasses.replace(result, directions=tuple(fewer)), folders[1] / "scores.json")
    run_compare(monkeypatch, tmp_path, folders, "--paired_bootstrap", "20")
    second, third = capsys.readouterr().out.split("\nAgainst system_1:\n\n")[1:]
    assert second.startswith("system_2: no direction in common on the same sentences; evaluate")
    assert f"BLEU: better in 0 of {len(PAIRS)} directions" in third


def test_a_folder_and_its_scores_are_one_evaluation(tmp_path, monkeypatch):
    folder = evaluated(tmp_path, "system", 1, "prefix", 0.3)
    with pytest.raises(UserError, match="a folder is named twice"):
        run_compare(monkeypatch, tmp_path, [folder, folder / "scores.json"])


def test_a_metric_that_is_named_twice_is_refused(tmp_path, monkeypatch):
    folder = evaluated(tmp_path, "system", 1, "prefix", 0.3)
    with pytest.raises(UserError, match="^--metrics: bleu is named twice; leave one of them out$"):
        run_compare(monkeypatch, tmp_path, [folder], "--metrics", "bleu,exact_match,bleu")


def test_the_help_has_the_default_order_of_metrics():
    text = " ".join(compare.make_parser().format_help().split())
    names = ("the optional ones", "bleu, chrf, exact_match,", "and off-")
    places = [text.index(name, text.index("metrics of the tables")) for name in names]
    assert places == sorted(places)


def test_seeds_of_a_system_are_not_tested_against_each_other(tmp_path, monkeypatch, capsys):
    folders = [
        evaluated(tmp_path, f"{layout}_{seed}", seed, layout, noise)
        for layout, noise in (("prefix", 0.5), ("register", 0.3))
        for seed in (1, 2)
    ]
    page = run_compare(monkeypatch, tmp_path, folders)
    assert capsys.readouterr().out.count("| prefix_2 ") > 3 and "Differences to" in page
    page = run_compare(monkeypatch, tmp_path, folders, "--by_seed")
    assert "Differences to" not in capsys.readouterr().out + page
    # Of systems with one evaluation each, sentences are all there is to test.
    page = run_compare(monkeypatch, tmp_path, folders[1:3], "--by_seed")
    assert "Differences to prefix_2" in capsys.readouterr().out
    assert "Differences to" in page
