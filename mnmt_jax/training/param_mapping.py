"""Moves as the sources of a new run's parameters: each of its arrays, and which one it becomes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from mnmt_jax.design.param_mapping import ParamMapping
from mnmt_jax.errors import UserError
from mnmt_jax.model.param_patterns import meant
from mnmt_jax.training.source_runs import ParamSource, ParamSources, SourceRun


def mapped_param_sources(
    moves: Sequence[ParamMapping], givers: Mapping[str, SourceRun], names: Iterable[str]
) -> ParamSources:
    """Finds what each parameter of a new run starts as, if a move says so.

    Of two modules those parameters are moved that both have; other ones of the new run stay as
    drawn.

    Args:
        moves: in any order.
        givers: the origins by name.
        names: of the new run's parameters.

    Raises:
        UserError: if a path is nobody's, two modules share nothing, or two moves put one parameter.
    """
    names = list(names)
    sources: dict[str, ParamSource] = {}
    putting: dict[str, ParamMapping] = {}
    for move in moves:
        giver = givers[move.origin]
        for take, put in move.expand():
            theirs = _within(take, giver.arrays, f"{move}: '{move.origin}' has no")
            ours = _within(put, names, f"{move}: the new model has no")
            shared = [rest for rest in ours if rest in theirs]
            if not shared:
                raise UserError(
                    f"{move}: '{take}' has {_heads(theirs)} and '{put}' has {_heads(ours)}; move "
                    "what both have"
                )
            for rest in shared:
                name = put + rest
                if name in putting:
                    raise UserError(
                        f"{move}: '{name}' is put by {putting[name]} already; leave one out"
                    )
                putting[name], sources[name] = move, ParamSource(giver, take + rest)
    return sources


def _within(path: str, names: Iterable[str], told: str) -> list[str]:
    """Returns what follows a path in the names of parameters that are it or in it."""
    names = list(names)
    found = [name[len(path) :] for name in names if name == path or name.startswith(f"{path}/")]
    if found:
        return found
    parts = (name.split("/") for name in names)
    paths = {"/".join(each[:count]) for each in parts for count in range(1, len(each) + 1)}
    raise UserError(f"{told} '{path}'; {meant(path, paths)}paths start with {_heads(paths)}")


def _heads(paths: Iterable[str]) -> str:
    """Returns the first parts of paths, without numbers."""
    heads = {re.sub(r"_\d+", "_*", path.lstrip("/").split("/")[0]) for path in paths}
    return ", ".join(sorted(heads)) if heads != {""} else "no parts"
