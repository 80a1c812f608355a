"""New run directories from parameters made elsewhere, such as imported or merged ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mnmt_jax.config.loading import save_config
from mnmt_jax.config.sections import Config
from mnmt_jax.data.document_context import Context
from mnmt_jax.files.atomic_write import check_output, new_folder
from mnmt_jax.runs.parameters import write_params
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.vocabulary.language_codes import Direction
from mnmt_jax.vocabulary.vocabulary import Vocabulary


def write_run(
    run_dir: Path,
    config: Config,
    vocabulary: Vocabulary,
    params: Any,
    *,
    origin: tuple[str, str],
    tasks: Mapping[str, Direction] | None = None,
    contexts: Mapping[str, Context] | None = None,
) -> None:
    """Write a run at step 0, with all that `translate`, `evaluate` and `--initialize_from` need.

    Args:
        run_dir: folder to create; must not exist or be empty. It appears when it is complete.
        config: configuration of the run.
        vocabulary: vocabulary of the run.
        params: tree of `LazyArray`; one of them is in memory at a time.
        origin: where the parameters are from, and what was done with them.
        tasks: directions they were trained on, by task name; None if unknown.
        contexts: document contexts they were trained with, by task name.
    """
    check_output(run_dir)
    with new_folder(run_dir) as partial:
        run = RunDirectory(partial)
        write_params(run.path, params)
        vocabulary.save(run.vocabulary)
        save_config(config, run.config_file)
        run.write_origin(*origin)
        if tasks is not None:
            run.write_tasks(tasks, contexts)
