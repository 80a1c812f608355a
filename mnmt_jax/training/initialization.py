"""Starts a training from the parameters of other runs: of one, or of several, by moves.

One origin gives all its parameters (`mnmt_jax.training.layer_order`). Several have names, and the
moves of the methods say what each of them gives (`mnmt_jax.training.param_mapping`); a run that has such a
method itself gives all of it to another of its kind. What nobody gives stays as drawn. This is done
once, when a run is made, and checked before anything of it is written.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import jax

from mnmt_jax.config.sections import Config
from mnmt_jax.design.method import all_for_resume, all_param_mappings
from mnmt_jax.design.param_mapping import ParamMapping
from mnmt_jax.errors import UserError
from mnmt_jax.model.lora import LORA_A, is_lora
from mnmt_jax.runs.fingerprint import param_path
from mnmt_jax.training.layer_order import sources_in_order
from mnmt_jax.training.param_mapping import mapped_param_sources
from mnmt_jax.training.source_runs import (
    ParamSources,
    SourceRun,
    SourceRunSpec,
    check_source_names,
    check_sources,
)
from mnmt_jax.vocabulary.vocabulary import Vocabulary

_NUMBER = re.compile(r"(?<=_)(\d+)")


@dataclasses.dataclass(frozen=True, eq=False)
class InitialParams:
    """What a new run takes from others: read and checked.

    Attributes:
        origin: which runs these are.
        sources: what its parameters become, those that are not as drawn.
        moves: that say so; none if layers are taken in order.
        report: lines about what was taken.
    """

    origin: str
    sources: ParamSources
    param_mappings: tuple[ParamMapping, ...]
    report: tuple[str, ...]

    def replace(self, params: Any) -> Any:
        """Replaces freshly drawn parameters, each placed as the one it replaces.

        Args:
            params: of the new run.
        """

        def replaced(path: Any, drawn: Any) -> Any:
            source = self.sources.get(param_path(path))
            if source is None:
                return drawn
            return jax.device_put(source.array.astype(drawn.dtype, copy=False), drawn.sharding)

        return jax.tree_util.tree_map_with_path(replaced, params)


def read_initial_params(
    origins: Sequence[SourceRunSpec], like: Any, config: Config, vocabulary: Vocabulary
) -> InitialParams | None:
    """Reads what a new run takes from others.

    Args:
        origins: the others.
        like: the new run's parameters, or their shapes.
        config: of the new run.
        vocabulary: of the new run.

    Returns:
        What is taken; None if all parameters stay as drawn.

    Raises:
        UserError: if the origins are not those that the methods' moves name; if a vocabulary, a
            size or the number of layers does not fit; if a move finds nothing; or if LoRA has no
            place; or if a run is not the kind of model that a method takes from.
    """
    whole = SourceRun.open(origins[0]) if [origin.name for origin in origins] == [""] else None
    moves = all_param_mappings(
        config, without=all_for_resume(whole.config.methods) if whole else ()
    )
    check_source_names(origins, moves)
    if not origins:
        return None
    givers = {"": whole} if whole else {each.name: SourceRun.open(each) for each in origins}
    for method in config.methods:
        for needed in method.required_sources(config.model):
            if needed.origin in givers:
                givers[needed.origin].check_kind(needed)
    leaves = jax.tree_util.tree_leaves_with_path(like)
    shapes = {param_path(path): tuple(leaf.shape) for path, leaf in leaves}
    if moves:
        sources = mapped_param_sources(moves, givers, shapes)
        for giver in givers.values():
            put = [name for name, source in sources.items() if source.giver is giver]
            giver.check_put(put, config, vocabulary)
    else:
        (giver,) = givers.values()
        giver.check_all(config, vocabulary)
        sources = sources_in_order(giver, config, shapes)
    check_sources(sources, shapes)
    for giver in givers.values():
        _check_lora(giver, sources, whole=not moves)
    report = _report(list(givers.values()), sources, shapes)
    return InitialParams(", ".join(map(str, origins)), sources, moves, report)


def _check_lora(giver: SourceRun, sources: ParamSources, *, whole: bool) -> None:
    """Checks that no weight is taken without the LoRA that changes it.

    Args:
        giver: an origin.
        sources: of the new run's parameters.
        whole: whether LoRA of what is not taken is missed too.

    Raises:
        UserError: otherwise.
    """
    taken = {name: source.name for name, source in sources.items() if source.giver is giver}
    lost = whole and any(is_lora(name) for name in giver.arrays.keys() - taken.values())
    for name, theirs in taken.items():
        (module, _, kind), beside = name.rpartition("/"), f"{theirs.rpartition('/')[0]}/{LORA_A}"
        if kind == "kernel" and beside in giver.arrays:
            lost |= taken.get(f"{module}/{LORA_A}") != beside
    if lost:
        model = giver.config.model
        raise UserError(
            f"{giver.origin.flag}: the new model has no place for its LoRA; merge it with "
            f"'mnmt adapters' first, or set Model.lora_rank={model.lora_rank} and "
            f"Model.lora={model.lora!r} as there"
        )


def _report(
    givers: Sequence[SourceRun], sources: ParamSources, names: Collection[str]
) -> tuple[str, ...]:
    """Returns lines about what is taken of each origin, what is left there, and what is new."""
    new = [name for name in names if name not in sources]
    drawn = [f"freshly drawn {_summary(new)}"] if new else []
    lines = []
    for giver in givers:
        used = {source.name for source in sources.values() if source.giver is giver}
        left, name = giver.arrays.keys() - used, giver.origin.name
        parts = [f"started from {giver.run.place}, step {giver.step}: {len(used)} arrays"]
        parts += [f"not used {_summary(left)}"] if left else []
        if name:
            parts[0] = f"'{name}' {parts[0]} of {_summary(used)}"
        else:
            parts[1:1] = drawn
        lines.append("; ".join(parts))
    return (*lines, *drawn) if givers[0].origin.name else tuple(lines)


def _summary(names: Iterable[str]) -> str:
    """Returns parameter names without what is inside a module, and layers as ranges of a `ParamMapping`."""
    numbers: dict[tuple[str, str], set[int]] = {}
    for name in names:
        short = "LoRA of " * is_lora(name) + "/".join(name.split("/")[:2])
        before, number, after = (*_NUMBER.split(short, maxsplit=1), "", "")[:3]
        numbers.setdefault((before, after), set()).update([int(number)] if number else [])
    return ", ".join(
        f"{before}{part}{after}"
        for (before, after), found in sorted(numbers.items())
        for part in _ranges(found)
    )


def _ranges(numbers: Collection[int]) -> Iterator[str]:
    """Yields numbers as `{0-5}` where they follow each other; one empty text for none."""
    if not numbers:
        yield ""
    for _, run in itertools.groupby(enumerate(sorted(numbers)), lambda each: each[1] - each[0]):
        (_, first), *rest = run
        yield f"{{{first}-{rest[-1][1]}}}" if rest else str(first)
