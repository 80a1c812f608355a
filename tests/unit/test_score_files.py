"""The preparation rule on scores in files."""

import gzip
import os
import pickle
import random

import numpy as np
import pytest

from mnmt_jax.data.preparation import score_files
from mnmt_jax.data.preparation.score_files import ScoreFile
from mnmt_jax.data.preparation.steps import PairBatch
from mnmt_jax.errors import UserError


@pytest.fixture
def rule(tmp_path):
    """The rule on files of a temporary folder."""
    return ScoreFile(str(tmp_path / "{first}-{second}.tsv"), 1.06)


def write(rule, first, second, *lines):
    path = rule.files.replace("{first}", first).replace("{second}", second)
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    return path


def kept(rule, *pairs, direction=("de", "en")):
    batch = PairBatch([x for x, _ in pairs], [y for _, y in pairs], direction)
    return rule.keeps(batch).astype(int).tolist()


PAIRS = [("ja", "yes"), ("nein", "no"), ("yes", "ja"), ("neu", "new")]


def test_pairs_are_looked_up_in_any_order(rule):
    write(rule, "de", "en", "1.05\tnein\tno", "2\t ja \tyes ", "nan\tneu\tnew", "1.06\ta\tb")
    rule.check_languages(["en", "de", "fr"])
    assert kept(pickle.loads(pickle.dumps(rule)), *PAIRS, ("a", "b")) == [1, 0, 0, 0, 1]
    assert kept(ScoreFile(rule.files, 1.05, missing="keep"), *PAIRS) == [1, 1, 1, 1]
    assert kept(ScoreFile(rule.files, 1.06, missing="keep"), *PAIRS) == [1, 0, 1, 1]
    assert kept(rule) == []


def test_names_and_columns_of_other_order(tmp_path):
    rule = ScoreFile(str(tmp_path / "{first}{second}.gz"), 1.06, score_column=3)
    write(rule, "en", "de", "yes\tja\t1.1", "no\tnein\t1", "ja\tyes\t1")
    rule.check_languages(["de", "en"])
    assert len(rule.dependencies(["de", "en"])) == 1
    assert kept(rule, *PAIRS) == [1, 0, 0, 0]


def test_the_largest_score_of_a_repeated_pair_counts(rule):
    write(rule, "de", "en", "0\tja\tyes", "2\tja\tyes", "1\tja\tyes", "1\tnein\tno")
    assert kept(rule, *PAIRS) == [1, 0, 0, 0]


def test_noise_agrees_with_a_dictionary(rule, monkeypatch):
    monkeypatch.setattr(score_files, "_BLOCK", 64)
    rng = random.Random(2)
    best, lines = {}, []
    for _ in range(3000):
        pair = f"a{rng.randrange(900)}", f"b{rng.randrange(3)}"
        score = rng.choice((0.5, 1.0, 1.5))
        best[pair] = max(score, best.get(pair, 0))
        lines.append(f"{score}\t{pair[0]}\t{pair[1]}")
    write(rule, "de", "en", *lines)
    pairs = [(f"a{rng.randrange(1200)}", f"b{rng.randrange(3)}") for _ in range(3000)]
    expected = [int(best.get(pair, 0) >= 1.06) for pair in pairs]
    assert kept(rule, *pairs) == expected and 0.1 < np.mean(expected) < 0.9


def test_the_index_is_made_anew_if_the_file_changes(rule):
    path = write(rule, "de", "en", "2\tja\tyes")
    rule.check_languages(["de", "en"])
    before, made = rule.dependencies(["de", "en"]), os.stat(f"{path}.index/keys.npy").st_mtime_ns
    assert kept(rule, PAIRS[0], *[(str(number), "x") for number in range(50)]) == [1, *[0] * 50]
    assert os.stat(f"{path}.index/keys.npy").st_mtime_ns == made
    assert sorted(os.listdir(f"{path}.index")) == ["facts.json", "keys.npy", "scores.npy"]
    write(rule, "de", "en", "1\tja\tyes", "2\tnein\tno")
    assert kept(rule, *PAIRS) == [0, 1, 0, 0]
    after = rule.dependencies(["de", "en"])
    assert before.keys() == after.keys() == {path} and before != after


def test_an_empty_file_has_no_pairs(rule):
    write(rule, "de", "en")
    assert kept(rule, *PAIRS) == [0, 0, 0, 0]


def test_wrong_files_are_one_line(rule):
    with pytest.raises(UserError, match="tsv': no file of two of the languages$"):
        rule.check_languages(["de", "en"])
    with pytest.raises(UserError, match="no file of de-en; write one"):
        kept(rule, *PAIRS)
    path = write(rule, "de", "en", "1\tja\tyes", "1\tja")
    with pytest.raises(UserError, match=rf"^{path}:2: 2 columns; write a score"):
        rule.check_languages(["de", "en"])
    write(rule, "de", "en", "ja\tyes\t1")
    with pytest.raises(UserError, match=r":1: column 1: 'ja' is not a number; set score_column"):
        rule.check_languages(["de", "en"])
    assert not os.path.exists(f"{path}.index")
