"""Translation of validation text during training, and its scores."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from mnmt_jax.config.sections import Config, Mesh
from mnmt_jax.data.input_pipeline import VALIDATION
from mnmt_jax.data.instruction import get_instruction
from mnmt_jax.decoding.inference_model import InferenceModel
from mnmt_jax.decoding.model_loading import decoding_mesh
from mnmt_jax.decoding.search_settings import greedy_settings
from mnmt_jax.decoding.translate_lines import check_search
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.design.layouts import get_layout, translates
from mnmt_jax.distributed.processes import gather_texts
from mnmt_jax.errors import UserError
from mnmt_jax.model.sublayers import param_axes
from mnmt_jax.runs.parameters import place_params
from mnmt_jax.training.build import TrainingSetup
from mnmt_jax.training.validation import group_means

Scorer = Callable[[Sequence[str], Sequence[str], str], Mapping[str, float | None]]
"""Scores hypotheses against references in a target language: `bleu`, `chrf` and `off_target`."""


def check_scorer(config: Config, scorer: Scorer | None) -> None:
    """Check that validation can translate, if it is to.

    Args:
        config: configuration of the training.
        scorer: scores translations.

    Raises:
        UserError: if there is no scorer, or the model is a language model.
    """
    if not config.train.translate_pairs:
        return
    setting = f"Train.translate_pairs={config.train.translate_pairs}"
    if not translates(get_layout(config.model.layout, config.model.stage_layers)):
        raise UserError(
            f"{setting}: Model.layout='{config.model.layout}' is a language model's and does not "
            "translate; set Train.translate_pairs=0"
        )
    if scorer is None:
        raise UserError(f"{setting}: pass scorer=mnmt_jax.evaluation.validation_scores.score")


def check_validation_search(setup: TrainingSetup) -> None:
    """Check that the model can be searched as validation will search it.

    Args:
        setup: the run, before its first update.

    Raises:
        UserError: if a setting of the search does not fit the model or its vocabulary.
    """
    config = setup.config
    if not config.train.translate_pairs:
        return
    instruction = get_instruction(config.data.instruction)
    model = InferenceModel(setup.learner.model, None, setup.cache.vocabulary, instruction)
    try:
        check_search(model, greedy_settings(config.decode))
    except UserError as error:
        pairs = f"Train.translate_pairs={config.train.translate_pairs}"
        raise UserError(f"{pairs}: validation cannot translate: {error}") from error


def validate_translations(
    setup: TrainingSetup,
    params: Any,
    scorer: Scorer,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Translate the first validation pairs of each task by greedy search, and score them.

    The text is that of the cache: decoded pieces, without what normalisation removed. Several
    processes translate a share each, on their own devices, and score the translations of all.

    Args:
        setup: configuration, data and mesh of the run.
        params: parameters that are evaluated.
        scorer: scores the translations of a task.
        progress: called before the lines of each task are translated.

    Returns:
        `tasks`: scores by task, and their unweighted means by group of `ValidationTasks`.
    """
    tasks = {
        name: task
        for name in setup.tasks.all
        if (task := setup.cache.tasks[name]).source_lang != task.target_lang
    }
    text = {name: _first_lines(setup, name) for name in tasks}
    translator = _local_translator(setup, params)
    share = slice(jax.process_index(), None, jax.process_count())
    translated = {}
    for name, task in tasks.items():
        progress()
        translated[name] = translator.translate(
            text[name][0][share], source=task.source_lang, target=task.target_lang
        )
    shares = [json.loads(one) for one in gather_texts(json.dumps(translated))]
    hypotheses = {name: interleave([share[name] for share in shares]) for name in tasks}
    per_task = {
        name: dict(scorer(hypotheses[name], text[name][1], task.target_lang))
        for name, task in tasks.items()
    }
    return {**group_means(per_task, setup.tasks), "tasks": per_task}


def interleave(shares: Sequence[Sequence[str]]) -> list[str]:
    """Merge shares of lines, of which share i of n has every n-th line, from line i on."""
    lines = [""] * sum(map(len, shares))
    for number, share in enumerate(shares):
        lines[number :: len(shares)] = share
    return lines


def _local_translator(setup: TrainingSetup, params: Any) -> Translator:
    """Return a translator on the devices of this process, to which parameters are gathered."""
    config = setup.config
    mesh: jax.sharding.Mesh | None = setup.mesh
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        params = multihost_utils.process_allgather(params, tiled=True)
        mesh = decoding_mesh(config.model, params, Mesh(), count_used_memory=True)
        params = place_params(params, mesh, param_axes(config.model))
    decode = dataclasses.replace(greedy_settings(config.decode), weights="stored")
    config = dataclasses.replace(config, decode=decode)
    return Translator(config, setup.cache.vocabulary, params, mesh=mesh)


def _first_lines(setup: TrainingSetup, task: str) -> tuple[list[str], list[str]]:
    """Return sources and references of the first validation pairs of a task."""
    cache = setup.cache
    count = min(setup.config.train.translate_pairs, cache.split(task, VALIDATION).examples)
    pairs = [cache.pair(task, VALIDATION, index) for index in range(count)]
    sources, references = (
        [cache.vocabulary.decode(pair[side].tolist()) for pair in pairs] for side in (0, 1)
    )
    return sources, references
