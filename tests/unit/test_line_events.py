"""Warnings about the events of translated lines."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mnmt_jax.commands.line_events import LineEvents, report_events
from mnmt_jax.config.sections import Decode


@pytest.mark.parametrize(
    ("decode", "limit", "remedy"),
    [
        (Decode(max_length=9), "Decode.max_length=9", "--gin.Decode.max_length"),
        (
            Decode(max_length=9, max_length_per_source=1.5),
            "Decode.max_length=9, Decode.max_length_per_source=1.5",
            "--gin.Decode.max_length and --gin.Decode.max_length_per_source",
        ),
    ],
)
def test_a_length_limit_is_named_with_all_settings_that_raise_it(decode, limit, remedy, capsys):
    job = SimpleNamespace(decode=decode, contrasts_lines=False)
    flags = SimpleNamespace(runner="local", num_processes=1, split_sentences=False, context=None)
    report_events({}, LineEvents(limited=[3]), job, flags)
    expected = f"warning: 1 translation at the length limit ({limit}), possibly incomplete (line 3)"
    assert capsys.readouterr().err == f"{expected}; raise {remedy}\n"
