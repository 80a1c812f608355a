"""Translation of validation text during training, and its scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from mnmt_jax.config.sections import Train
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.input_pipeline import VALIDATION
from mnmt_jax.decoding.generate import greedy_settings
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.errors import UserError
from mnmt_jax.training.build import Built
from mnmt_jax.training.validation import group_means

Scorer = Callable[[Sequence[str], Sequence[str], str], Mapping[str, float | None]]
"""Scores hypotheses against references in a target language: `bleu`, `chrf` and `off_target`."""


def check_scorer(settings: Train, scorer: Scorer | None) -> None:
    """Check that validation can translate, if it is to.

    Args:
        settings: settings of the training.
        scorer: scores translations.

    Raises:
        UserError: if there is no scorer, or the run has several processes.
    """
    if not settings.translate_pairs:
        return
    field = f"Train.translate_pairs={settings.translate_pairs}"
    if scorer is None:
        raise UserError(f"{field}: pass scorer=mnmt_jax.evaluation.validation_scores.score")
    if jax.process_count() > 1:
        raise UserError(
            f"{field}: validation translates in runs of one process; set Train.translate_pairs=0 "
            "and evaluate the checkpoints with 'mnmt evaluate'"
        )


def validate_translations(built: Built, params: Any, scorer: Scorer) -> dict[str, Any]:
    """Translate the first validation pairs of each task by greedy search, and score them.

    The text is that of the cache: decoded pieces, without what normalisation removed.

    Args:
        built: configuration, data and mesh of the run.
        params: parameters that are evaluated.
        scorer: scores the translations of a task.

    Returns:
        `tasks`: scores by task, and their unweighted means by group of `ValidationTasks`.
    """
    settings, cache = built.config.train, built.cache
    decode = dataclasses.replace(greedy_settings(built.config.decode), weights="stored")
    config = dataclasses.replace(built.config, decode=decode)
    translator = Translator(config, cache.vocabulary, params, mesh=built.mesh)
    per_task = {}
    for name in built.tasks.supervised + built.tasks.zero_shot:
        task = cache.tasks[name]
        if task.source_lang == task.target_lang:
            continue
        sources, references = _first_lines(cache, name, settings.translate_pairs)
        hypotheses = translator.translate(sources, source=task.source_lang, target=task.target_lang)
        per_task[name] = dict(scorer(hypotheses, references, task.target_lang))
    return {**group_means(per_task, built.tasks), "tasks": per_task}


def _first_lines(cache: TokenCache, task: str, count: int) -> tuple[list[str], list[str]]:
    count = min(count, cache.split(task, VALIDATION).examples)
    pairs = [cache.pair(task, VALIDATION, index) for index in range(count)]
    sources, references = (
        [cache.vocabulary.decode(pair[side].tolist()) for pair in pairs] for side in (0, 1)
    )
    return sources, references
