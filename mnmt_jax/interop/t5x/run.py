"""Files that the project writes beside t5x's checkpoints: configuration and vocabulary.

Needs t5x.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
from t5x import gin_utils

from mnmt_jax.interop.seqio.tasks import registered_vocabulary
from mnmt_jax.interop.t5x.parsed import parsed_config
from mnmt_jax.interop.t5x_checkpoint import run_beside


def write_run(model_dir: str, summary_writer: Any, step: int, *, mixture_or_task_name: str) -> None:
    """Write t5x's `config.gin`, and the configuration and vocabulary that `mnmt import` needs.

    Args:
        model_dir: output folder of t5x.
        summary_writer: summary writer of t5x.
        step: first step.
        mixture_or_task_name: determines the vocabulary.
    """
    gin_utils.summarize_gin_config(model_dir, summary_writer, step)
    if jax.process_index() == 0:
        run = run_beside(Path(model_dir))
        vocabulary = registered_vocabulary(mixture_or_task_name).vocabulary
        config, continues = parsed_config(), run.config_file.is_file()
        run.check(config, vocabulary, has_checkpoint=continues)
        run.prepare(config, vocabulary, has_checkpoint=continues)
