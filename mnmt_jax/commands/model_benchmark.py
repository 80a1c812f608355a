"""Benchmarks restricted to the languages of a model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from mnmt_jax.data.corpus import Corpus
from mnmt_jax.errors import UserError, join_names, warn
from mnmt_jax.evaluation.benchmark import Benchmark
from mnmt_jax.vocabulary.language_codes import find_code


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

    It has no direction between two varieties that are one language of the model (`fr` and `fr_CA`
    of one that has `fr`), because the translation would be a copy.

    Args:
        flags: parsed flags with `task`.
        corpus: corpus of the task.
        available: languages of the task.
        languages: languages of the model.
        quiet: whether to leave out directions without a warning.
        options: further arguments of `Benchmark`.

    Raises:
        UserError: if no direction is left.
    """
    matches = {code: find_code(code, languages) for code in available}
    missing = [code for code, match in matches.items() if match is None]
    if missing and not quiet:
        warn(f"skipped languages that the model does not have: {' '.join(missing)}")
    known = [code for code in available if code not in missing]
    benchmark = Benchmark(flags.task, corpus, languages=known, candidates=languages, **options)
    copies = [
        (source, target)
        for source, target in benchmark.directions
        if source != target and matches[source] == matches[target]
    ]
    if not copies:
        return benchmark
    names = join_names(list(map("-".join, copies)), shown=4)
    remaining = [pair for pair in benchmark.directions if pair not in copies]
    if not remaining:
        raise UserError(
            f"--task={flags.task}: source and target of {names} are one language of the model; "
            "name others with --languages"
        )
    if not quiet:
        warn(f"skipped {names}: source and target are one language of the model")
    return benchmark.only(remaining)
