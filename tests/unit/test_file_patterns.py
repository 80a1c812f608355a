"""Patterns that messages suggest for files of several languages."""

from __future__ import annotations

import pytest

from mnmt_jax.commands import count
from mnmt_jax.commands.file_patterns import suggest_pattern
from mnmt_jax.errors import UserError

PAIRS = ["train.de-en.de", "train.de-en.en", "test.de-en.de", "test.de-en.en"]


@pytest.mark.parametrize(
    ("names", "prefix", "expected"),
    [
        (PAIRS, "", "{split}.{pair}.{language}"),
        (PAIRS, "train", "{split}.{pair}.{language}"),
        (PAIRS, "train.de-en.de", "{split}.{pair}.{language}"),
        (PAIRS, "other", ""),
        (["news.en", "news.de", "more.en"], "news", "news.{language}"),
        (["corpus.en.txt", "corpus.de.txt"], "", "corpus.{language}.txt"),
        (["en-de_train.en", "en-de_train.de"], "", "{pair}_{split}.{language}"),
        (["open.de", "tend.de"], "", ""),  # two texts of one language
        (["open", "deed", "trainer"], "", ""),  # codes within words
        ([], "", ""),
    ],
)
def test_the_pattern_of_most_files_is_suggested(names, prefix, expected, tmp_path):
    for name in names:
        (tmp_path / name).touch()
    actual = suggest_pattern(str(tmp_path / prefix), ["de", "en"])
    assert actual == (str(tmp_path / expected) if expected else "")


def test_a_region_is_part_of_the_language(tmp_path):
    for code in ("pt", "pt-BR"):
        (tmp_path / f"test.{code}").touch()
    assert suggest_pattern(str(tmp_path), ["pt", "pt-BR"]) == str(tmp_path / "{split}.{language}")


def test_a_missing_folder_suggests_nothing(tmp_path):
    assert suggest_pattern(str(tmp_path / "none" / "file"), ["de", "en"]) == ""


@pytest.mark.parametrize("folder", ["clean", "clean/train", "clean/train.de-en.en"])
def test_a_path_without_languages_is_answered_by_the_pattern(folder, tmp_path, monkeypatch):
    (tmp_path / "clean").mkdir()
    for name in PAIRS:
        (tmp_path / "clean" / name).write_text("x\n", encoding="utf-8")
    flags = [f"--parallel={tmp_path / folder}", "--languages=en,de"]
    monkeypatch.setattr("sys.argv", ["mnmt count", *flags])
    wanted = f"did you mean --parallel '{tmp_path}/clean/{{split}}.{{pair}}.{{language}}'?"
    with pytest.raises(UserError) as caught:
        count.main()
    assert str(caught.value).endswith(wanted) and "\n" not in str(caught.value)
