"""Files that the project writes beside t5x's checkpoints: configuration and vocabulary.

Needs t5x.
"""

from __future__ import annotations

from typing import Any

import jax
from t5x import gin_utils

from mnmt_jax.interop.seqio.tasks import registered_vocabulary
from mnmt_jax.interop.t5x.parsed import parsed_config
from mnmt_jax.interop.t5x_checkpoint import write_run_beside


def write_run(model_dir: str, summary_writer: Any, step: int, *, mixture_or_task_name: str) -> None:
    """Write t5x's `config.gin`, and the configuration and vocabulary that `mnmt import` needs.

    Args:
        model_dir: output folder of t5x, or a bucket URL.
        summary_writer: summary writer of t5x.
        step: first step.
        mixture_or_task_name: determines the vocabulary.
    """
    gin_utils.summarize_gin_config(model_dir, summary_writer, step)
    if jax.process_index() == 0:
        vocabulary = registered_vocabulary(mixture_or_task_name).vocabulary
        write_run_beside(model_dir, parsed_config(), vocabulary)
