"""Export of run directories to checkpoints of other toolkits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mnmt_jax.config.sections import Config
from mnmt_jax.files.atomic_write import check_output, new_folder
from mnmt_jax.interop.ctranslate2 import export_ctranslate2
from mnmt_jax.interop.fairseq import export_fairseq
from mnmt_jax.interop.huggingface import export_huggingface
from mnmt_jax.interop.t5x_checkpoint import export_t5x
from mnmt_jax.model.lora import merge_lora
from mnmt_jax.runs.parameters import check_parameters, load_params
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.vocabulary.vocabulary import Vocabulary

_EXPORTERS: dict[str, Callable[[Config, Any, Vocabulary, Path], None]] = {
    "ctranslate2": export_ctranslate2,
    "fairseq": export_fairseq,
    "huggingface": export_huggingface,
    "t5x": export_t5x,
}


def export_checkpoint(
    kind: str, run_dir: str | Path, directory: str | Path, *, step: int | str | None = None
) -> list[Path]:
    """Write a run's parameters, with LoRA merged, and its vocabulary for another toolkit.

    Args:
        kind: `ctranslate2`, `fairseq`, `huggingface` or `t5x`.
        run_dir: run directory.
        directory: folder to create; must not exist or be empty.
        step: as in `load_params`.

    Returns:
        The files written.

    Raises:
        UserError: if the toolkit has no such model, or the run cannot be read; nothing is written.
    """
    directory = Path(directory)
    check_output(directory)
    run = RunDirectory.open(run_dir)
    config = run.config()
    vocabulary = run.load_vocabulary()
    params, _ = load_params(run, step)
    check_parameters(run, config.model, vocabulary.size, params)
    with new_folder(directory) as partial:
        _EXPORTERS[kind](config, merge_lora(params), vocabulary, partial)
    return sorted(directory.iterdir())
