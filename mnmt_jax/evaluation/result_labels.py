"""Labels of results in tables: their checkpoint, model and decoding settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mnmt_jax.config.sections import Decode
from mnmt_jax.evaluation.result import RunResult
from mnmt_jax.pages.markdown_tables import format_count

# Decoding settings left out of labels: shown elsewhere, or without effect on translations.
_UNLABELLED = ("method", "beam_size", "checkpoint", "batch", "buckets", "max_length", "seed")


def step_label(result: RunResult) -> str:
    """Format the step of a checkpoint, with how it was chosen: `1,750 (best)`."""
    chosen, separator, _ = str(result.decoding.get("checkpoint", "")).partition(", ")
    return format_count(result.step) + (f" ({chosen})" if separator else "")


def model_label(result: RunResult) -> str:
    """Return the name of a run, with its layout unless the name contains it."""
    return result.name if result.layout in result.name else f"{result.name} ({result.layout})"


def decoding_label(result: RunResult) -> str:
    """Describe how an evaluation decoded, e.g. `beam 5, pivot=en, weights=int8`.

    The search comes first, then the settings that differ from the defaults of `Decode`. Batch
    sizes and the checkpoint are left out.
    """
    decoding, defaults = result.decoding, Decode()
    if not decoding:
        return "–"
    method, beam = decoding.get("method", "search"), decoding.get("beam_size")
    search = method if method == "greedy" or beam is None else f"{method} {beam}"
    settings = [
        f"{key}={_short_setting(key, value)}"
        for key, value in decoding.items()
        if key not in _UNLABELLED
        and _format_setting(value) != _format_setting(getattr(defaults, key, None))
    ]
    return ", ".join([search, *settings])


def disambiguate_names(results: Sequence[RunResult]) -> list[RunResult]:
    """Add decoding settings to the names of runs with equal labels.

    A setting is added if flags changed the run's value. Results of earlier versions do not record
    that; their settings are added if they differ from the default of `Decode`.

    Args:
        results: evaluations, e.g. of one run with and without contrast or pivot.
    """
    named = []
    for result in results:
        same_label = [other for other in results if model_label(other) == model_label(result)]
        their_settings = [_settings(other) for other in same_label]
        settings = [
            f"{key}={_short_setting(key, value)}"
            for key, value in _settings(result).items()
            if key != "method"  # implied by the other settings
            and any(other.get(key) != value for other in their_settings)
            and _is_named(result, key, value)
        ]
        named.append(dataclasses.replace(result, name=", ".join([result.name, *settings])))
    return named


def _settings(result: RunResult) -> dict[str, object]:
    return {**result.decoding, **(result.decoding_overrides or {})}


def _is_named(result: RunResult, key: str, value: object) -> bool:
    """Return whether a decoding setting belongs in the name of an evaluation."""
    if result.decoding_overrides is None or key == "checkpoint":
        return _format_setting(value) != _format_setting(getattr(Decode(), key, None))
    return key in result.decoding_overrides


def _short_setting(key: str, value: object) -> str:
    """Format a decoding setting for a table: of the runs of an ensemble the last folder."""
    if key == "ensemble" and isinstance(value, list | tuple):
        value = [str(run).rpartition("/")[2] for run in value]
    return _format_setting(value)


def _format_setting(value: object) -> str:
    """Format the value of a decoding setting for a name."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
