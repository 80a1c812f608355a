"""Checkpoints of t5x: the project's own parameters in t5x's folders. Needs no t5x."""

from __future__ import annotations

from pathlib import Path

from mnmt_jax.run_directory import RunDirectory


def run_beside(model_dir: Path) -> RunDirectory:
    """Returns the folder of configuration and vocabulary in t5x's model directory."""
    return RunDirectory(model_dir / "mnmt_jax")
