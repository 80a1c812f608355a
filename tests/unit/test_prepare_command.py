"""`mnmt prepare`: what it prints, its page, and wrong flags."""

from __future__ import annotations

import pytest

from mnmt_jax.commands import prepare
from mnmt_jax.errors import UserError
from tests.unit import made_text

RECIPE = """\
title = "Made <text>"
note = "Repeats & copies."
[[steps]]
step = "normalize"
[[steps]]
step = "copies"
[[steps]]
step = "pair_duplicates"
"""


@pytest.fixture
def flags(tmp_path):
    """Files with a blank line, two copies and three repeated pairs."""
    english, german = (made_text.sentences(code, 30) for code in ("en", "de"))
    for code, lines in (("en", english), ("de", german)):
        text = [*lines, *lines[:3], "same", "same too", "" if code == "de" else "x"]
        (tmp_path / f"train.{code}").write_text("\n".join(text) + "\n", encoding="utf-8")
    made_text.vocabulary().save(tmp_path / "vocabulary")
    (tmp_path / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    values = {
        "recipe": tmp_path / "recipe.toml",
        "parallel": tmp_path / "{split}.{language}",
        "languages": "en,de",
        "on_bad_line": "drop",
        "vocabulary": tmp_path / "vocabulary",
        "output": tmp_path / "cache",
        "processes": 1,
    }
    return [f"--{name}={value}" for name, value in values.items()]


def test_it_prints_what_each_step_dropped_and_writes_a_page(flags, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *flags])
    prepare.main()
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    assert rows == [
        ["reading: blank 1", "36", "1", "2.78%"],
        ["1. normalize: Unicode normalization and single spaces", "–", "–", "–"],
        ["2. copies: Target equals source", "35", "2", "5.71%"],
        ["3. pair_duplicates: Repeated pair", "33", "3", "9.09%"],
        ["kept", "30", "", ""],
    ]
    page = (tmp_path / "cache" / "preparation.html").read_text(encoding="utf-8")
    assert "Made &lt;text&gt;" in page and "Repeats &amp; copies." in page
    assert page.count(">same too<") == 2  # both sides of the dropped pair
    assert made_text.sentence(1, "en") in page and made_text.sentence(4, "en") not in page
    assert "train: 60 in all" in page  # both directions


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--runner=beam", "--processes=2"], "--processes is of --runner=local; give Beam its own"),
        (["--", "--runner=FlinkRunner"], "--runner=FlinkRunner: flags after '--' are Beam's; add"),
        (["FlinkRunner"], "arguments of Beam follow '--', as in '-- FlinkRunner'"),
    ],
)
def test_flags_of_the_other_runner_are_refused(flags, monkeypatch, more, message):
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *flags, *more])
    with pytest.raises(UserError, match=f"^{message}"):
        prepare.main()
