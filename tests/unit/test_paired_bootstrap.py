"""The paired bootstrap on generated translations with a known answer."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.paired_bootstrap import PairedScore, paired_scores, paired_table

COMMON = [("en", "de"), ("fr", "de")]
WORDS = "der die das Hund Katze läuft schläft schnell langsam Haus Garten und oder heute".split()


def write(folder, direction, hypotheses, references):
    (folder / "translations").mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"source": "x", "hypothesis": h, "reference": r})
        for h, r in zip(hypotheses, references, strict=True)
    ]
    (folder / "translations" / f"{direction}.jsonl").write_text("\n".join(lines) + "\n")


def damaged(lines, share, seed):
    """Replace a fraction of the words."""
    draw = random.Random(seed)
    return [" ".join(draw.choice(WORDS) if draw.random() < share else w for w in line.split())
            for line in lines]  # fmt: skip


@pytest.fixture
def folders(tmp_path):
    draw = random.Random(0)
    references = [" ".join(draw.choices(WORDS, k=12)) for _ in range(60)]
    one, other = tmp_path / "one", tmp_path / "other"
    write(one, "en-de", damaged(references, 0.5, 1), references)
    write(other, "en-de", damaged(references, 0.2, 2), references)
    write(one, "fr-de", damaged(references, 0.3, 3), references)
    write(other, "fr-de", damaged(references, 0.3, 4), references)
    write(one, "cs-de", references, references)
    return one, other


def test_a_clear_difference_is_significant(folders):
    scores = {(s.direction, s.metric): s for s in paired_scores(*folders, COMMON, samples=200)}
    assert set(scores) == {(d, m) for d in ("en-de", "fr-de") for m in ("BLEU", "chrF++")}
    for metric in ("BLEU", "chrF++"):
        clear, chance = scores["en-de", metric], scores["fr-de", metric]
        assert clear.second > clear.first + 10 and max(clear.p, clear.p_randomization) < 0.01
        assert abs(chance.second - chance.first) < 8
        assert min(chance.p, chance.p_randomization) > 0.05 and chance.p != chance.p_randomization
    page = paired_table(list(scores.values()), ("base", "other"))
    assert (
        "BLEU: better in 1 of 2 directions, worse in 0, undecided in 1 "
        "(two-sided p < 0.05, randomization)." in page
    )
    assert "\nBLEU: nrefs:1|case:mixed|" in page and "trials:200|seed:12345" in page
    assert "| base | other | difference | p (bootstrap, one-sided) |" in " ".join(page.split())
    assert "p are at least 0.005 and not corrected for the number of rows." in page


@pytest.mark.parametrize("differing, p", [(1, 1.0), (3, 0.25), (5, 0.0625)])
def test_few_sentences_are_no_evidence(folders, tmp_path, differing, p):
    """All exchanges, or none, give the same difference; p is known exactly."""
    references = [json.loads(line)["reference"] for line in
                  (folders[0] / "translations" / "cs-de.jsonl").open()]  # fmt: skip
    worse = ["x"] * differing + references[differing:]
    write(tmp_path / "worse", "cs-de", worse, references)
    for score in paired_scores(folders[0], tmp_path / "worse", [("cs", "de")], samples=1000):
        assert score.second < score.first
        assert score.p_randomization == pytest.approx(p, abs=0.03)
    page = paired_table(
        paired_scores(folders[0], tmp_path / "worse", [("cs", "de")], samples=1000),
        ("base", "worse"),
    )
    assert "BLEU: better in 0 of 1 directions, worse in 0, undecided in 1" in page


def test_the_verdict_is_by_the_two_sided_p():
    score = PairedScore("en-de", "BLEU", 1.0, 2.0, 0.03, 0.06, "", 100)
    assert "undecided in 1" in paired_table([score], ("base", "other"))
    decided = dataclasses.replace(score, p=0.06, p_randomization=0.03)
    assert "better in 1 of 1" in paired_table([decided], ("base", "other"))


def test_a_difference_that_rounds_to_zero_has_a_plus():
    score = PairedScore("en-de", "BLEU", 1.02, 1.0, 0.5, 0.5, "", 100)
    assert "| +0.0 |" in " ".join(paired_table([score], ("base", "other")).split())


def test_equal_systems_are_undecided(folders):
    directions = [*COMMON, ("cs", "de")]
    scores = paired_scores(folders[0], folders[0], directions, samples=20)
    assert {(s.p, s.p_randomization) for s in scores} == {(1.0, 1.0)}
    assert "BLEU: better in 0 of 3 directions, worse in 0" in paired_table(scores, ("base", "same"))


def test_evaluations_without_common_directions_have_no_table(folders):
    text = paired_table(paired_scores(*folders, [], samples=10), ("base", "other"))
    assert text.startswith("other: no direction in common on the same sentences; evaluate both on")


def test_other_sentences_are_refused(folders, tmp_path):
    write(tmp_path / "third", "en-de", ["a"], ["b"])
    with pytest.raises(UserError, match="the sentences of en-de are not those of"):
        paired_scores(folders[0], tmp_path / "third", [("en", "de")], samples=10)
    with pytest.raises(UserError, match=r"third/translations/fr-de\.jsonl: no such file"):
        paired_scores(folders[0], tmp_path / "third", [("fr", "de")], samples=10)


def test_half_a_character_is_named_with_its_line(folders):
    write(folders[1], "en-de", ["gut", "Wort \ud83d"], ["gut", "Wort"])
    with pytest.raises(
        UserError, match=r"other/translations/en-de\.jsonl:2: not of 'mnmt evaluate'"
    ):
        paired_scores(*folders, COMMON, samples=200)
