"""benchmarks/peers.py: an engine that fails costs no other engine its figures."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from mnmt_jax.errors import UserError

# Answers each request with its number; an engine named `broken` ends at the second one.
_WORKER = """
import json, sys
for number, line in enumerate(sys.stdin):
    if sys.argv[1] == "broken" and number == 1:
        sys.exit(3)
    print(json.dumps({"seconds": 4.0 - number, "memory": 2**30, "translations": [[1], [number]]}))
    sys.stdout.flush()
"""


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import peers

    yield peers
    for name in ("peers", "engines"):
        sys.modules.pop(name, None)


def ask(peers, monkeypatch, tmp_path, names, rounds=2):
    (tmp_path / "peers_worker.py").write_text(_WORKER, encoding="utf-8")
    monkeypatch.setattr(peers, "__file__", str(tmp_path / "peers.py"))
    flags = types.SimpleNamespace(device="cpu", core=0, batch=1, rounds=rounds)
    subject = peers.Subject(tmp_path, words=1, updates=0)
    return peers.run_interleaved(subject, names, {"beam": 5}, flags)


def test_an_engine_that_fails_has_a_row_without_figures(peers, monkeypatch, tmp_path, capfd):
    rows = ask(peers, monkeypatch, tmp_path, ["ours", "broken", "other"])
    assert rows == [
        ["5", "ours", "2.00", "1.00", "1.00", "100%"],
        ["5", "broken", "failed", "", "", ""],
        ["5", "other", "2.00", "1.00", "1.00", "100%"],
    ]
    assert "broken ended with status 3; its message is above" in capfd.readouterr().err


def test_without_the_first_engine_there_are_no_ratios(peers, monkeypatch, tmp_path):
    rows = ask(peers, monkeypatch, tmp_path, ["broken", "other"])
    assert rows == [
        ["5", "broken", "failed", "", "", ""],
        ["5", "other", "2.00", "", "1.00", ""],
    ]


def test_the_first_answer_is_not_measured(peers, monkeypatch, tmp_path):
    ((*_, seconds, _, _, _),) = ask(peers, monkeypatch, tmp_path, ["ours"], rounds=1)
    assert seconds == "3.00"  # 4 seconds, with compilation, are not counted


def test_a_failed_engine_is_named_in_the_end(peers, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(peers, "prepare", lambda *_: None)
    (tmp_path / "vocabulary").mkdir()
    (tmp_path / "peers_worker.py").write_text(_WORKER, encoding="utf-8")
    monkeypatch.setattr(peers, "__file__", str(tmp_path / "peers.py"))
    monkeypatch.setattr(peers, "ENGINES", ("ours", "broken"))
    arguments = ["peers.py", str(tmp_path), "--models=random", "--engines=ours,broken"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--beams", "1", "--rounds=1"])
    with pytest.raises(UserError, match="^broken: ended before the first measurement"):
        peers.main()
    printed = capsys.readouterr().out
    assert "ours |    3.00" in printed and "broken |  failed" in printed
