"""Import of other toolkits' checkpoints into run directories."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mnmt_jax.config.sections import Config, Data, Mesh, Optimizer, Train
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.errors import UserError, warn_caller
from mnmt_jax.files.atomic_write import check_output
from mnmt_jax.files.bucket import COPY_FIRST, refuse_bucket
from mnmt_jax.interop.fairseq import open_fairseq
from mnmt_jax.interop.foreign import Foreign
from mnmt_jax.interop.golden import open_golden
from mnmt_jax.interop.huggingface import open_huggingface
from mnmt_jax.interop.names import parameter_entries, read_params
from mnmt_jax.interop.t5x_checkpoint import open_t5x
from mnmt_jax.interop.token_table import rows_of_vocabulary
from mnmt_jax.runs.new_run import write_run
from mnmt_jax.vocabulary.vocabulary import Vocabulary
from mnmt_jax.vocabulary.vocabulary_files import suggest_subfolder

_OPEN: dict[str, Callable[[Path, Path | None], Foreign]] = {
    "fairseq": open_fairseq,
    "huggingface": open_huggingface,
    "golden": lambda path, _: open_golden(path),
}


def import_checkpoint(
    kind: str, path: str | Path, run_dir: str | Path, *, vocabulary: str | Path | None = None
) -> Config:
    """Convert a checkpoint into a run for translation, evaluation and fine-tuning.

    Args:
        kind: `fairseq`, `huggingface`, `t5x` or `golden`.
        path: file or folder of the checkpoint.
        run_dir: run directory to create; must not exist.
        vocabulary: folder of a saved `Vocabulary`, or of the other toolkit's vocabulary files; None
            takes the files beside the weights.

    Returns:
        The configuration of the run.

    Raises:
        UserError: if anything is missing or does not match; nothing is written in that case.
    """
    run_dir = Path(run_dir)
    check_output(run_dir)
    for place in (path, vocabulary):
        if place is not None:
            refuse_bucket(place, COPY_FIRST)
    if kind == "huggingface":
        _check_folder(str(path))
    dropped: tuple[str, ...] = ()
    if kind == "t5x":
        config, loaded_vocabulary, params = open_t5x(Path(path), vocabulary)
    else:
        our_folder, foreign_folder = _vocabulary_folders(kind, Path(path), vocabulary)
        foreign = _OPEN[kind](Path(path), foreign_folder)
        tags_last = kind != "huggingface"
        config, loaded_vocabulary, params = _convert(foreign, our_folder, tags_last=tags_last)
        dropped = foreign.dropped
    write_run(
        run_dir, config, loaded_vocabulary, params, origin=(str(path), f"imported from {kind}")
    )
    if dropped:
        warn_caller(f"{path}: dropped, without a counterpart here: {', '.join(dropped)}")
    return config


def _check_folder(path: str) -> None:
    """Check that a model of Hugging Face is in a local folder.

    Raises:
        UserError: if there is none; names of models on the hub get the command to download them.
    """
    if Path(path).is_dir():
        return
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", path):
        raise UserError(f"--input={path}: not a folder; name the folder with config.json")
    folder = path.partition("/")[2]
    raise UserError(
        f"--input={path}: not a folder here, and names of the hub are not downloaded; run "
        f"'hf download {path} --local-dir {folder}', then give --input={folder}"
    )


def _convert(
    foreign: Foreign, folder: Path | None, *, tags_last: bool
) -> tuple[Config, Vocabulary, Any]:
    """Return the configuration, vocabulary and parameters of an opened checkpoint."""
    loaded_vocabulary, rows = _load_vocabulary(foreign, folder, tags_last=tags_last)
    try:
        model = (
            foreign.build_model(loaded_vocabulary.languages)
            if foreign.build_model
            else foreign.model
        )
        model = dataclasses.replace(model, vocab_size=loaded_vocabulary.size)
        layout = get_layout(model.layout, model.stage_layers)
        params = read_params(
            foreign.tensors, parameter_entries(model, layout, foreign.dialect, rows)
        )
    except UserError as error:
        raise UserError(f"{foreign.path}: {error}") from None
    config = Config(
        data=Data(instruction=foreign.instruction),
        model=model,
        optimizer=Optimizer(),
        train=Train(),
        decode=foreign.decode,
        mesh=Mesh(),
    )
    return config, loaded_vocabulary, params


def _vocabulary_folders(
    kind: str, path: Path, vocabulary: str | Path | None
) -> tuple[Path | None, Path | None]:
    """Return the vocabulary folder as (ours, None) or (None, theirs), depending on its format."""
    if vocabulary is None:
        # fairseq keeps dictionaries beside the data; users often copy them beside the checkpoint.
        has_dictionary = kind == "fairseq" and any(path.parent.glob("*dict*.txt"))
        return None, path.parent if has_dictionary else None
    folder = Path(vocabulary)
    if (folder / "vocabulary.json").is_file():
        return folder, None
    if not folder.is_dir():
        raise UserError(f"--vocabulary={folder}: no such folder")
    if hint := suggest_subfolder(folder):
        raise UserError(f"--vocabulary={folder}: no vocabulary; {hint}")
    return None, folder


def _load_vocabulary(
    foreign: Foreign, folder: Path | None, *, tags_last: bool
) -> tuple[Vocabulary, np.ndarray]:
    if folder is not None:
        vocabulary = Vocabulary.load(folder)
        return vocabulary, rows_of_vocabulary(vocabulary, tags_last=tags_last)
    if foreign.tokens is None:
        raise UserError(
            f"{foreign.path}: no vocabulary beside the weights; name its folder with --vocabulary: "
            "the SentencePiece model with the toolkit's own lists, or one of this project's"
        )
    vocabulary, rows = foreign.tokens.vocabulary()
    return dataclasses.replace(vocabulary, normalization=foreign.normalization), rows
