"""Benchmarks restricted to the languages of a model."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from mnmt_jax.commands.common_flags import list_of
from mnmt_jax.data.corpus import Corpus
from mnmt_jax.errors import UserError, join_names, warn
from mnmt_jax.evaluation.benchmark import Benchmark
from mnmt_jax.vocabulary.language_codes import Direction, canonical_code_or_input, find_code

_FLAG = "--languages"


def model_benchmark(
    flags: argparse.Namespace,
    corpus: Corpus,
    available: Sequence[str],
    languages: Sequence[str],
    *,
    quiet: bool = False,
    **options: Any,
) -> Benchmark:
    """Create the benchmark of a task in the languages of a model.

    `--languages=pt_BR` gives the `pt` of the task the code `pt_BR` if the model has that; without
    the flag, `pt` is left out if the model has `pt_BR` and `pt_PT`. There is no direction between
    two varieties that are one language of the model (`fr` and `fr_CA` of one that has `fr`),
    because the translation would be a copy.

    Args:
        flags: parsed flags with `task` and `languages`.
        corpus: corpus of the task.
        available: languages of the task.
        languages: languages of the model.
        quiet: whether to leave out languages and directions without a warning.
        options: further arguments of `Benchmark`.

    Raises:
        UserError: if no direction is left, or a language of the flag is ambiguous.
    """
    matches, skipped = _match_languages(flags.languages, available, languages)
    for problem in () if quiet else skipped:
        warn(f"skipped {problem}")
    names = {
        code: code if _denotes(code, match, languages) else canonical_code_or_input(match)
        for code, match in matches.items()
    }
    matches = {names[code]: match for code, match in matches.items()}
    options |= {"languages": tuple(matches), "new_codes": names, "candidates": languages}
    benchmark = Benchmark(flags.task, corpus, **options)
    remaining = [pair for pair in benchmark.directions if not _is_copy(pair, matches)]
    if copies := ["-".join(pair) for pair in benchmark.directions if pair not in remaining]:
        problem = f"{join_names(copies, shown=4)}: source and target are one language of the model"
        if not remaining:
            raise UserError(f"--task={flags.task}: {problem}; name others with {_FLAG}")
        if not quiet:
            warn(f"skipped {problem}")
    return benchmark.only(remaining)


def _match_languages(
    text: str | None, available: Sequence[str], languages: Sequence[str]
) -> tuple[dict[str, str], list[str]]:
    """Return the model's code of each language of a task, and reasons why others are left out.

    Args:
        text: value of `--languages`, whose codes are looked up instead of the task's.
        available: languages of the task.
        languages: languages of the model.

    Raises:
        UserError: if a language of the flag is ambiguous.
    """
    requested: dict[str | None, set[str]] = {}
    for item in list_of(_FLAG, text):
        requested.setdefault(find_code(item, available, _FLAG), set()).add(item)
    matches, missing, ambiguous = {}, [], []
    for code in available:
        items = requested.get(code, set())
        name = min(items) if len(items) == 1 else code
        try:
            match = find_code(name, languages) or find_code(code, languages)
        except UserError as error:
            if items:
                raise UserError(f"{_FLAG}={name}: {error}") from None
            ambiguous.append(f"{code}: {error} with {_FLAG}")
            continue
        if match is None:
            missing.append(code)
        else:
            matches[code] = match
    absent = [f"languages that the model does not have: {' '.join(missing)}"] if missing else []
    return matches, absent + ambiguous


def _denotes(code: str, match: str, languages: Sequence[str]) -> bool:
    """Return whether a code denotes a language of a model, and no other one."""
    try:
        return find_code(code, languages) == match
    except UserError:
        return False


def _is_copy(direction: Direction, matches: Mapping[str, str]) -> bool:
    """Return whether source and target are different codes of one language of the model."""
    source, target = direction
    return source != target and matches[source] == matches[target]
