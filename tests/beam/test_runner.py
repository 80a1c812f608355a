"""Preparation by Apache Beam: the bytes of one process, and its errors."""

from __future__ import annotations

import pytest

from mnmt_jax.data.mixtures import plan_tasks
from mnmt_jax.data.preparation.outputs import CacheOutput
from mnmt_jax.data.preparation.prepare import prepare
from mnmt_jax.data.preparation.runners import BeamRunner
from mnmt_jax.errors import UserError
from tests.unit.made_preparation import (
    DIRECTIONS,
    SHARD_EXAMPLES,
    SIZES,
    STEPS,
    content,
    corpus,
    made_recipe,
    run,
    vocabulary,
)

pytest.importorskip("apache_beam", reason="Apache Beam is not installed: scripts/test_beam.sh")

__all__ = ["corpus", "vocabulary"]  # fixtures


def run_on_beam(corpus, vocabulary, output, *flags):
    recipe = made_recipe(STEPS)
    form = CacheOutput(vocabulary, SHARD_EXAMPLES)
    options = {"form": form, "output": output, "runner": BeamRunner(flags), **SIZES}
    return prepare(corpus, plan_tasks(corpus, DIRECTIONS), recipe, **options)


@pytest.mark.parametrize(
    "flags", [(), ("--direct_num_workers=2", "--direct_running_mode=multi_processing")]
)
def test_beam_makes_the_bytes_of_one_process(corpus, vocabulary, tmp_path, flags):
    run(corpus, vocabulary, tmp_path / "here")
    run_on_beam(corpus, vocabulary, tmp_path / "beam", *flags)
    assert content(tmp_path / "beam") == content(tmp_path / "here")


def test_a_refusal_of_a_worker_is_one_line(corpus, vocabulary, tmp_path, monkeypatch):
    monkeypatch.setattr(type(corpus), "counted_pairs", refuse)
    with pytest.raises(
        UserError, match="^made: no good text; mend it; after .* add --overwrite to"
    ):
        run_on_beam(corpus, vocabulary, tmp_path / "beam")


def refuse(self, split, direction, report):
    raise UserError(f"{self.name}: no good text; mend it")
