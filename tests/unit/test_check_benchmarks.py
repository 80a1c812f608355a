"""Benchmarks of the checks of translations: small inputs and wrong flags."""

from __future__ import annotations

import types

import pytest

from mnmt_jax.decoding.translation import Hypothesis, Translation
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.errors import UserError
from tests.run_commands import call
from tests.unit.made_text import sentences

LANGUAGES = ("en", "de", "fr")


def write_texts(folder, counts=(3, 3, 3), end=""):
    """Write sentences of three languages, the last ones without a line break."""
    for code, count in zip(LANGUAGES, counts, strict=True):
        (folder / f"{code}.txt").write_text("\n".join(sentences(code, count)) + end, "utf-8")


@pytest.mark.parametrize("end", ["", "\n"])
def test_rates_are_of_all_lines_of_small_files(tmp_path, end, capsys):
    write_texts(tmp_path, end=end)
    flags = ["--languages=en,de,fr", "--lines=3", "--words=0"]
    call("benchmarks/check_rates.py", [str(tmp_path / "{}.txt"), *flags])
    header, row = capsys.readouterr().out.splitlines()
    assert header.startswith("| words | off_target |") and row.startswith("| all | ")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--languages=en,de"], "^--languages=en,de: needs three languages or more"),
        (["--languages=en,de,fr"], "^--lines=400: the files have 3; choose 3 at most"),
        (["--languages=en,de,fr", "--lines=1", "--words=a"], "^--words=a: needs whole numbers"),
        (["--languages=en,de,cs"], "cs.txt"),
    ],
)
def test_wrong_flags_of_rates_are_one_line(tmp_path, flags, message):
    write_texts(tmp_path)
    with pytest.raises((UserError, FileNotFoundError), match=message) as error:
        call("benchmarks/check_rates.py", [str(tmp_path / "{}.txt"), *flags])
    assert "\n" not in str(error.value)


def test_files_that_are_not_parallel_are_refused(tmp_path):
    write_texts(tmp_path, (3, 3, 2))
    with pytest.raises(UserError, match=r"fr.txt: has 2 lines, .*en.txt 3; the files need"):
        call("benchmarks/check_rates.py", [str(tmp_path / "{}.txt"), "--languages=en,de,fr"])


@pytest.fixture
def translator(monkeypatch):
    """Replace the model by one that copies."""

    def copies(texts, **options):
        return [Translation((Hypothesis(text, 0.0, ()),)) for text in texts]

    made = types.SimpleNamespace(languages=LANGUAGES, translate_nbest=copies)
    monkeypatch.setattr(Translator, "load", lambda *_, **__: made)


@pytest.mark.usefixtures("translator")
@pytest.mark.parametrize("searches", ["retry", "plain,retry"])
def test_searches_without_the_plain_one_have_a_table(searches, capsys):
    flags = ["RUN", "--task=cldr_quickstart", "--limit=2", f"--searches={searches}"]
    call("benchmarks/retry_off_target.py", flags)
    printed = capsys.readouterr().out
    assert printed.count("| retry | ") == 1
    assert ("check of the language: " in printed) == (searches != "retry")


@pytest.mark.usefixtures("translator")
def test_wrong_searches_and_tests_are_refused(tmp_path, capsys):
    flags = ["RUN", "--task=cldr_quickstart"]
    with pytest.raises(UserError, match="^--searches: 'all' must be one of plain, contrast"):
        call("benchmarks/retry_off_target.py", [*flags, "--searches=plain,all"])
    for pair, shift in (("de-en", 0), ("fr-en", 0), ("de-fr", 1)):
        for code in pair.split("-"):
            text = "\n".join(sentences(code, 6)[shift : shift + 4])
            (tmp_path / f"test.{pair}.{code}").write_text(text + "\n", "utf-8")
    flags = [
        "RUN",
        "--task=mine",
        f"--parallel={tmp_path}/{{split}}.{{pair}}.{{language}}",
        "--languages=en,de,fr",
    ]
    with pytest.raises(UserError, match="^--task=mine: .* has other sentences in '(de|fr)' than"):
        call("benchmarks/retry_off_target.py", flags)
    assert "| search |" not in capsys.readouterr().out
