"""Translation heads for `mnmt analyse`: patching, ablation and steering."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from mnmt_jax.analysis.defaults import STEERING_STRENGTH, TOP_HEADS
from mnmt_jax.commands.analysis_inputs import (
    TEST,
    analysis_facts,
    benchmark_of,
    forced_sentences,
    sentence_facts,
    translator_facts,
)
from mnmt_jax.errors import UserError

_DRAWS = 3  # random selections of heads


def analyse_heads(
    flags: argparse.Namespace, gin_files: Sequence[str], bindings: Sequence[str]
) -> dict[str, Any]:
    """Return the shares of heads and states, and translations with edited heads.

    Args:
        flags: parsed and checked flags.
        gin_files: gin files, read after the run's configuration.
        bindings: bindings, applied last.

    Raises:
        UserError: if flags, run or sentences are unsuitable.
    """
    from mnmt_jax.analysis import translation_heads as heads
    from mnmt_jax.analysis.head_edits import HeadEvaluation, Selections, draw_heads
    from mnmt_jax.analysis.teacher_forcing import to_float32
    from mnmt_jax.decoding.translator import Translator

    translator = Translator.load(
        flags.run, flags.step, gin_files=gin_files, bindings=bindings, mesh=None
    )
    inference_model = to_float32(translator.inference_model)
    every_head, top = heads.list_heads(inference_model.model), flags.top or TOP_HEADS
    if 3 * top > len(every_head):  # those for language, for meaning, and random others
        most = len(every_head) // 3
        remedy = f"choose {most} at most" if most else "heads need a model with three or more"
        raise UserError(f"--top={top}: the model has {len(every_head)} heads; {remedy}")
    model = translator_facts(flags.label, translator, flags.step)
    facts = analysis_facts(flags, translator.config, model)
    sentences = forced_sentences(flags, translator)
    facts |= sentence_facts(flags, {TEST: sentences})
    longest, means = max(translator.config.decode.buckets), heads.HeadMeans()
    contrasts = {
        heads.LANGUAGE: heads.language_contrasts(inference_model, sentences),
        heads.MEANING: heads.meaning_contrasts(sentences),
    }
    effects = {
        name: heads.measure_effects(inference_model, pairs, longest, means)
        for name, pairs in contrasts.items()
        if pairs
    }
    if unread := {forced.direction[1] for forced in sentences} - {*means.languages}:
        raise UserError(
            f"--directions: nothing to compare in the directions into {', '.join(sorted(unread))}; "
            "name further directions, or raise --limit"
        )
    largest = {name: effect.top(top) for name, effect in effects.items()}
    others = [head for head in every_head if not any(head in chosen for chosen in largest.values())]
    selections: Selections = {
        "none": [()],
        **{name: [chosen] for name, chosen in largest.items()},
        "random": draw_heads(others, top, _DRAWS, flags.seed or 0),
    }
    evaluation = HeadEvaluation(
        translator,
        benchmark_of(flags, translator.languages),
        tuple(forced.direction for forced in sentences),
        means,
        flags.beam_size,
    )
    strength, steered = flags.strength or STEERING_STRENGTH, evaluation.steered()
    return {
        **facts,
        "effects": {name: effect.as_json() for name, effect in effects.items()},
        "top": top,
        "strength": strength,
        "undetected": [*map("-".join, evaluation.undetected())],
        "unsteered": ["-".join(pair) for pair in evaluation.directions if pair not in steered],
        "ablation": evaluation.ablation(selections),
        "steering": evaluation.steering(selections, strength),
    }
