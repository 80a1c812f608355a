"""The line about compilation, if the first results of a command take long."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from mnmt_jax.commands import sample, translate
from mnmt_jax.runtime import first_results
from mnmt_jax.runtime.first_results import COMPILING, note_first_results


@pytest.fixture
def printed(monkeypatch) -> Iterator[threading.Event]:
    """Set once a line is printed; a moment is long."""
    monkeypatch.setattr(first_results, "_SLOW_SECONDS", 0.05)
    return threading.Event()


def test_a_slow_start_is_explained_once(printed):
    lines: list[str] = []

    def write(line: str) -> None:
        lines.append(line)
        printed.set()

    with note_first_results(write) as note:
        note(0)
        assert printed.wait(30)
        note(0)
        note(1)
    assert lines == [COMPILING]


@pytest.mark.parametrize("counts", [[], [0, 1]], ids=["not started", "at once"])
def test_results_or_no_work_print_nothing(counts, printed):
    with note_first_results(lambda line: printed.set()) as note:
        for count in counts:
            note(count)
        assert not printed.wait(0.5)


def test_an_error_before_the_first_result_prints_nothing_later(printed):
    with pytest.raises(KeyError), note_first_results(lambda line: printed.set()) as note:
        note(0)
        raise KeyError
    assert not printed.wait(0.5)


def test_the_progress_of_translations_has_it(monkeypatch, capsys):
    monkeypatch.setattr(first_results, "_SLOW_SECONDS", 0.05)
    with translate._progress() as report:
        report(0)
        threading.Event().wait(0.5)
        report(2)
    lines = [line for line in capsys.readouterr().err.splitlines() if "lines/s" not in line]
    assert lines == [COMPILING]


class SlowModel:
    """A language model whose first text takes half a second."""

    @classmethod
    def load(cls, *arguments, **settings):
        return cls()

    def continuations(self, prompts, **settings):
        threading.Event().wait(0.5)
        yield from ()


def test_samples_have_it(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(first_results, "_SLOW_SECONDS", 0.05)
    monkeypatch.setattr("mnmt_jax.decoding.language_model.LanguageModel", SlowModel)
    monkeypatch.setattr("sys.argv", ["mnmt sample", f"--run={tmp_path}", "--language=en"])
    sample.main()
    assert capsys.readouterr().err == f"{COMPILING}\n"
