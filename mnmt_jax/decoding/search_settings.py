"""Settings of a search: its algorithm, overrides, length limits and description."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from mnmt_jax.config.sections import Decode
from mnmt_jax.decoding.constrained_search import ConstrainedBeamSearch
from mnmt_jax.decoding.diverse_beam_search import DiverseBeamSearch
from mnmt_jax.decoding.search import BeamSearch, Greedy, Sample, Search
from mnmt_jax.errors import UserError
from mnmt_jax.files.json_objects import differing_keys
from mnmt_jax.model.key_values import reorder

_EXTRA_STEPS = 8  # initial step limit beyond 1.5 times the source length
_OF_SAMPLING = ("top_k", "top_p", "epsilon_cutoff")
_DEFAULTS = Decode()


def make_search(decode: Decode, *, has_terms: bool = False) -> Search:
    """Return the search algorithm of a configuration.

    Args:
        decode: the configuration.
        has_terms: whether requests have terms. Greedy search is then beam search of one beam.

    Raises:
        UserError: if sampling or diverse beam search has terms, groups do not fit the beam, or a
            setting belongs to another search.
    """
    _check_applies(decode)
    if has_terms:
        check_method_for_terms(decode)
        beam = 1 if decode.method == "greedy" else decode.beam_size
        return ConstrainedBeamSearch(beam, reorder, decode.length_penalty)
    if decode.beam_groups > 1:
        if decode.temperature:
            raise UserError(
                f"Decode.beam_groups={decode.beam_groups}: sampling has no groups; set "
                "Decode.beam_groups=1"
            )
        if decode.beam_size % decode.beam_groups:
            raise UserError(
                f"Decode.beam_groups={decode.beam_groups} must divide Decode.beam_size="
                f"{decode.beam_size}"
            )
        groups = decode.beam_groups, decode.diversity_penalty
        return DiverseBeamSearch(decode.beam_size, reorder, decode.length_penalty, *groups)
    if decode.method == "greedy":
        return Greedy(length_penalty=decode.length_penalty)
    if decode.method == "beam":
        return BeamSearch(decode.beam_size, reorder, decode.length_penalty)
    return Sample(
        beam=decode.beam_size,
        temperature=decode.temperature,
        top_k=decode.top_k,
        top_p=decode.top_p,
        length_penalty=decode.length_penalty,
        epsilon_cutoff=decode.epsilon_cutoff,
    )


def _check_applies(decode: Decode) -> None:
    """Check that settings of draws and of groups are used by the search.

    Raises:
        UserError: if one differs from its default and has no effect.
    """
    if not decode.temperature:
        for name in _OF_SAMPLING:
            value, default = getattr(decode, name), getattr(_DEFAULTS, name)
            if value != default:
                raise UserError(
                    f"Decode.{name}={value:g} restricts sampling, but Decode.temperature=0 "
                    f"searches; set Decode.temperature, e.g. to 1.0, or Decode.{name}={default:g}"
                )
    if not _uses_seed(decode) and decode.seed != _DEFAULTS.seed:
        raise UserError(
            f"Decode.seed={decode.seed} selects samples and contrast lines, but the search has "
            f"neither; set Decode.temperature, e.g. to 1.0, or Decode.seed={_DEFAULTS.seed}"
        )
    penalty, default = decode.diversity_penalty, _DEFAULTS.diversity_penalty
    if decode.beam_groups == 1 and penalty != default:
        raise UserError(
            f"Decode.diversity_penalty={penalty:g} is between groups of a beam, but "
            f"Decode.beam_groups=1; raise it, or set Decode.diversity_penalty={default:g}"
        )


def check_method_for_terms(decode: Decode) -> None:
    """Check that a search can have terms.

    Raises:
        UserError: if it samples, or has groups of beams.
    """
    if decode.method == "sample":
        raise UserError(
            f"Decode.temperature={decode.temperature:g}: sampling has no terms of a glossary; "
            "use --gin.Decode.temperature=0"
        )
    if decode.beam_groups > 1:
        raise UserError(
            f"Decode.beam_groups={decode.beam_groups}: diverse beam search has no terms of a "
            "glossary; use --gin.Decode.beam_groups=1"
        )


def with_beam_size(decode: Decode, beam_size: int | None) -> Decode:
    """Return settings with another beam size.

    Args:
        decode: settings of the run.
        beam_size: 1 is greedy search, more is beam search; for sampling, the number of draws. None
            changes nothing.

    Raises:
        UserError: if it is not a positive number.
    """
    if beam_size is None:
        return decode
    if not isinstance(beam_size, int) or beam_size < 1:
        raise UserError(f"beam_size={beam_size!r} must be a whole number, at least 1")
    return dataclasses.replace(decode, beam_size=beam_size)


def greedy_settings(decode: Decode) -> Decode:
    """Return settings with greedy search, without those of other searches."""
    others = ("beam_groups", "diversity_penalty", "temperature", "utility")
    plain = {name: getattr(_DEFAULTS, name) for name in (*others, *_OF_SAMPLING)}
    return _without_unused_seed(dataclasses.replace(decode, beam_size=1, **plain))


def without_source_contrast(decode: Decode) -> Decode:
    """Return settings without source contrast, and without a seed that nothing else uses."""
    return _without_unused_seed(dataclasses.replace(decode, source_contrast=0.0))


def _uses_seed(decode: Decode) -> bool:
    """Return whether a search draws samples or contrast lines."""
    return decode.method == "sample" or decode.source_contrast > 0


def _without_unused_seed(decode: Decode) -> Decode:
    return decode if _uses_seed(decode) else dataclasses.replace(decode, seed=_DEFAULTS.seed)


def override_decode(decode: Decode, **settings: Any) -> Decode:
    """Return settings with other values of some fields.

    Args:
        decode: settings of the run.
        settings: fields of `Decode`.

    Raises:
        UserError: if there is no such field, or a value is not valid for it.
    """
    known = [field.name for field in dataclasses.fields(Decode)]
    for name, value in settings.items():
        if name not in known:
            raise UserError(
                f"{name}={value!r}: not a search setting; the settings are {', '.join(known)}"
            )
    for name in ("weights", "averaged", "ensemble"):
        if settings.get(name, getattr(decode, name)) != getattr(decode, name):
            raise UserError(f"{name}: set when a model is loaded, with Decode.{name}")
    return dataclasses.replace(decode, **settings)


def describe_search(decode: Decode) -> dict[str, Any]:
    """Return the method of a search and the settings that it uses."""
    fields = {"method": decode.method, **dataclasses.asdict(decode)}
    unused = ["weights"] if decode.weights == "stored" else []
    unused += ["averaged"] if decode.averaged else []
    if decode.method != "sample":
        unused += ["temperature", "top_k", "top_p"]
    if decode.method != "sample" or not decode.epsilon_cutoff:
        unused.append("epsilon_cutoff")
    if not decode.source_contrast:
        unused.append("source_contrast")
    if not decode.language_contrast:
        unused += ["language_contrast", "contrast_languages"]
    if not decode.ensemble:
        unused.append("ensemble")
    if decode.beam_groups == 1:
        unused += ["beam_groups", "diversity_penalty"]
    if not decode.utility:
        unused.append("utility")
    if not decode.copy_unknown:
        unused.append("copy_unknown")
    if not _uses_seed(decode):
        unused.append("seed")
    return {name: value for name, value in fields.items() if name not in unused}


def changed_settings(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Return the keys in which what translations depend on differs, as `differing_keys`.

    `Decode.batch` does not count, at any depth: it changes at most the last bits of scores, and
    lowering it is the remedy for a lack of memory.

    Args:
        recorded: facts as read from JSON.
        current: facts to be written.
    """
    return differing_keys(without_batch(recorded), without_batch(current))


def without_batch(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings without `batch`, on which no translation depends."""
    return {
        name: without_batch(value) if isinstance(value, Mapping) else value
        for name, value in facts.items()
        if name != "batch"
    }


def length_limit(decode: Decode, source_tokens: int) -> int:
    """Return the maximum number of generated tokens, without eos, for a source length."""
    if decode.max_length_per_source <= 0:
        return decode.max_length
    return min(decode.max_length, int(decode.max_length_per_source * source_tokens + 10))


def initial_step_limit(source_length: int, max_steps: int) -> int:
    """Return the maximum number of generated tokens of a first search.

    Attention over the generated keys costs as much as the maximum, used or not. So the first search
    allows 1.5 times the source length and a few more; the few sentences that need more are searched
    again with `max_steps`. The result depends on a sentence and its bucket alone.
    """
    limit = source_length + source_length // 2 + _EXTRA_STEPS
    return limit if 3 * limit < 2 * max_steps else max_steps
