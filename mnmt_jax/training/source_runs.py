"""Runs that give parameters to a new one: named, opened, and held against what it is."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from mnmt_jax.config.sections import Config
from mnmt_jax.design.layouts import check_taken_of
from mnmt_jax.design.param_mapping import ParamMapping, RequiredSource
from mnmt_jax.errors import UserError, join_names, pluralize
from mnmt_jax.runs.fingerprint import param_path
from mnmt_jax.runs.parameters import load_params
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.vocabulary.vocabulary import Vocabulary

_TOLD_BY_NO_SHAPE = ("activation", "heads", "norm", "positions", "embedding_scale")
_SIZES = ("embed", "mlp", *_TOLD_BY_NO_SHAPE)


@dataclasses.dataclass(frozen=True)
class SourceRunSpec:
    """Whose parameters a training starts from.

    Attributes:
        run: a run directory, trained or imported.
        step: as in `restore_params`; None is the newest.
        name: by which moves know it; empty for the only one, all of which is taken.
    """

    run: str | Path
    step: int | str | None = None
    name: str = ""

    def __str__(self) -> str:
        return f"{self.name}={self.run}" if self.name else str(self.run)

    @property
    def flag(self) -> str:
        """What names it on a command line."""
        return f"--initialize_from={self}"


@dataclasses.dataclass(frozen=True, eq=False)
class SourceRun:
    """An origin that is open; its parameters are read when they are first asked for.

    Attributes:
        origin: what it is.
        run: its directory.
        config: of it.
    """

    origin: SourceRunSpec
    run: RunDirectory
    config: Config

    @classmethod
    def open(cls, origin: SourceRunSpec) -> SourceRun:
        """Opens an origin.

        Raises:
            UserError: if it is not a run.
        """
        run = RunDirectory.open(origin.run)
        return cls(origin, run, run.config())

    @functools.cached_property
    def _loaded(self) -> tuple[dict[str, np.ndarray], int]:
        tree, step = load_params(self.run, self.origin.step)
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return {param_path(path): leaf for path, leaf in leaves}, step

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """Its parameters by path, in the host's memory."""
        return self._loaded[0]

    @property
    def step(self) -> int:
        """The step that they are of."""
        return self._loaded[1]

    def check_kind(self, needed: RequiredSource) -> None:
        """Checks that it is what a method takes from.

        Raises:
            UserError: if it is another kind of model, or has too few layers.
        """
        model = self.config.model
        check_taken_of(model.layout, needed.layout, self.origin.flag)
        if (layers := sum(model.stage_layers)) < needed.layers:
            raise UserError(
                f"{self.origin.flag}: has {pluralize(layers, 'layer')}, of which {needed.field} "
                f"takes {needed.layers}; lower that, or name a deeper run"
            )

    def check_all(self, config: Config, vocabulary: Vocabulary) -> None:
        """Checks that a new run can take whatever it has.

        Args:
            config: of the new run.
            vocabulary: of the new run.

        Raises:
            UserError: if vocabulary or sizes differ.
        """
        self._check_vocabulary(config, vocabulary, "")
        self._check_sizes(config, _SIZES)

    def check_put(self, names: Iterable[str], config: Config, vocabulary: Vocabulary) -> None:
        """Checks that a new run can take some of its parameters, as far as no shape tells.

        Args:
            names: of the new run's parameters that they become.
            config: of the new run.
            vocabulary: of the new run.

        Raises:
            UserError: if the vocabulary of a table differs, or what layers compute.
        """
        names = list(names)
        tables = [name for name in names if name.endswith("embedding")]
        if tables:
            self._check_vocabulary(config, vocabulary, f", on which '{tables[0]}' depends")
        if len(tables) < len(names):
            self._check_sizes(config, _TOLD_BY_NO_SHAPE)

    def _check_vocabulary(self, config: Config, vocabulary: Vocabulary, why: str) -> None:
        if Vocabulary.load(self.run.vocabulary).fingerprint != vocabulary.fingerprint:
            raise UserError(
                f"{self.origin.flag}: its vocabulary{why} is not that of Data.cache="
                f"'{config.data.cache}'; make the cache with "
                f"--vocabulary={self.run.place / 'vocabulary'}"
            )

    def _check_sizes(self, config: Config, fields: Sequence[str]) -> None:
        theirs, ours = self.config.model, config.model
        differing = [
            f"Model.{name} is {getattr(theirs, name)!r} there, {getattr(ours, name)!r} here"
            for name in fields
            if getattr(theirs, name) != getattr(ours, name)
        ]
        if differing:
            raise UserError(f"{self.origin.flag}: {'; '.join(differing)}; make them equal")


class ParamSource(NamedTuple):
    """Where a parameter of a new run comes from.

    Attributes:
        giver: of which run.
        name: path in its parameters.
    """

    giver: SourceRun
    name: str

    @property
    def array(self) -> np.ndarray:
        """What it is."""
        return self.giver.arrays[self.name]


ParamSources = Mapping[str, ParamSource]  # by path in the new run's parameters


def check_source_names(origins: Sequence[SourceRunSpec], moves: Sequence[ParamMapping]) -> None:
    """Checks that origins are those that the moves of the methods name.

    Raises:
        UserError: if an origin is missing, unknown, there twice, or needs a name or moves.
    """
    names = [origin.name for origin in origins]
    wanted = list(dict.fromkeys(move.origin for move in moves))
    for origin in origins:
        if names.count(origin.name) > 1:
            remedy = "give each name once" if origin.name else "several runs need NAME=RUN each"
            raise UserError(f"{origin.flag}: not the only one of its name; {remedy}")
        if origin.name and not wanted:
            raise UserError(
                f"{origin.flag}: no method takes anything from '{origin.name}'; give "
                f"--initialize_from={origin.run} to take all of it, or say in Graft.parts what"
            )
        if wanted and origin.name not in wanted:
            raise UserError(
                f"{origin.flag}: parameters are taken from {join_names(wanted)}; give "
                + join_names([f"--initialize_from={name}=RUN" for name in wanted])
            )
    missing = [move for move in moves if move.origin not in names]
    if missing:
        raise UserError(
            f"{missing[0]} takes from a run that is not named; give "
            f"--initialize_from={missing[0].origin}=RUN"
        )


def check_sources(sources: ParamSources, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Checks that what is taken has the shapes of the parameters it becomes.

    Args:
        sources: of the new run's parameters.
        shapes: of the new run's parameters.

    Raises:
        UserError: otherwise.
    """
    for name, source in sources.items():
        if source.array.shape != shapes[name]:
            given = "" if name == source.name else f" ('{source.name}')"
            raise UserError(
                f"{source.giver.origin.flag}: '{name}' is {source.array.shape} there{given}, "
                f"{shapes[name]} here; make the sizes equal"
            )
