"""Source runs for initialisation: open, validate, and look up their parameters."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from mnmt_jax.config.sections import Config
from mnmt_jax.data.instruction import INSTRUCTIONS, Instruction, get_instruction
from mnmt_jax.design.layouts import check_source_layout, encoder_layers, get_layout
from mnmt_jax.design.method import languages_of_slots
from mnmt_jax.design.param_mapping import ParamMapping, RequiredSource
from mnmt_jax.errors import UserError, join_names, pluralize
from mnmt_jax.runs.fingerprint import param_path
from mnmt_jax.runs.parameters import load_params
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.vocabulary.language_codes import canonical_code_or_input
from mnmt_jax.vocabulary.vocabulary import Vocabulary

# Model fields that change the computation but no parameter shape.
_SHAPELESS_FIELDS = ("activation", "heads", "norm", "positions", "embedding_scale")
_MODEL_FIELDS = ("embed", *_SHAPELESS_FIELDS)  # `check_sources` compares the other sizes


@dataclasses.dataclass(frozen=True)
class SourceRunSpec:
    """A run that initialises parameters of a new run.

    Attributes:
        run: a run directory, trained or imported.
        step: as in `load_params`; None is the newest.
        name: name in parameter mappings; empty for a single run, which initialises all parameters.
    """

    run: str | Path
    step: int | str | None = None
    name: str = ""

    def __str__(self) -> str:
        return f"{self.name}={self.run}" if self.name else str(self.run)

    @property
    def flag(self) -> str:
        """The command-line flag that names it."""
        return f"--initialize_from={self}"


@dataclasses.dataclass(frozen=True, eq=False)
class SourceRun:
    """An open source run; its parameters are read on first access.

    Attributes:
        spec: its specification.
        run: its directory.
        config: its configuration.
    """

    spec: SourceRunSpec
    run: RunDirectory
    config: Config

    @classmethod
    def open(cls, spec: SourceRunSpec) -> SourceRun:
        """Open a source run.

        Raises:
            UserError: if it is not a run.
        """
        run = RunDirectory.open(spec.run)
        return cls(spec, run, run.config())

    @functools.cached_property
    def _loaded(self) -> tuple[dict[str, np.ndarray], int]:
        tree, step = load_params(self.run, self.spec.step)
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return {param_path(path): leaf for path, leaf in leaves}, step

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """Its parameters by path, in the host's memory."""
        return self._loaded[0]

    @property
    def step(self) -> int:
        """The step of the parameters."""
        return self._loaded[1]

    def check_kind(self, requirement: RequiredSource, config: Config) -> None:
        """Check that the run is the kind of model that a method requires.

        Args:
            requirement: the requirement.
            config: configuration of the new run.

        Raises:
            UserError: if it is another kind of model, or has too few layers; if an encoder has seen
                sources with other tags.
        """
        model = self.config.model
        if requirement.layout:
            check_source_layout(model.layout, requirement.layout, self.spec.flag)
            layers, kind = sum(model.stage_layers), "layer"
            if requirement.tagged and self._instruction.trigger == "tag":
                self._check_tagged(config)
        else:
            layers = encoder_layers(get_layout(model.layout, model.stage_layers))
            kind = "encoder layer"
            self._check_source_tag(config)
        if layers < requirement.layers:
            raise UserError(
                f"{self.spec.flag}: has {pluralize(layers, kind)}, but {requirement.field} "
                f"copies {requirement.layers}; lower that, or name a deeper run"
            )

    def _check_source_tag(self, config: Config) -> None:
        keys = self.config.data.instruction, config.data.instruction
        tags = [get_instruction(key).source_tag for key in keys]
        if tags[0] != tags[1]:
            before, after = (f"the tag of the {tag} language" if tag else "no tag" for tag in tags)
            raise UserError(
                f"{self.spec.flag}: its encoder was trained on sources with {before} "
                f"(Data.instruction='{keys[0]}'), but Data.instruction='{keys[1]}' has {after}; "
                "use an instruction with the same source"
            )

    @property
    def _instruction(self) -> Instruction:
        return get_instruction(self.config.data.instruction)

    def _check_tagged(self, config: Config) -> None:
        key = config.data.instruction
        if get_instruction(key).source_tag != "source":
            tagged = next(name for name, one in INSTRUCTIONS.items() if one.source_tag == "source")
            raise UserError(
                f"{self.spec.flag}: its texts begin with the tag of their language, but sources do "
                f"not with Data.instruction='{key}'; use '{tagged}'"
            )

    def check_all(self, config: Config, vocabulary: Vocabulary) -> None:
        """Check that a new run can start from all parameters of this run.

        Args:
            config: configuration of the new run.
            vocabulary: vocabulary of the new run.

        Raises:
            UserError: if vocabulary or sizes differ.
        """
        self._check_vocabulary(config, vocabulary, "")
        self._check_sizes(config, _MODEL_FIELDS)

    def check_mapped(self, names: Iterable[str], config: Config, vocabulary: Vocabulary) -> None:
        """Check that a new run can start from some parameters of this run, beyond their shapes.

        Args:
            names: names of the new run's parameters that are set.
            config: configuration of the new run.
            vocabulary: vocabulary of the new run.

        Raises:
            UserError: if the vocabulary of a table differs, or the computation of layers.
        """
        names = list(names)
        tables = [name for name in names if name.endswith("embedding")]
        if tables:
            self._check_vocabulary(config, vocabulary, f", on which '{tables[0]}' depends")
        if len(tables) < len(names):
            self._check_sizes(config, _SHAPELESS_FIELDS)

    def _check_vocabulary(self, config: Config, vocabulary: Vocabulary, reason: str) -> None:
        if self.run.load_vocabulary().fingerprint != vocabulary.fingerprint:
            first, path = self.run.flag_path("vocabulary")
            raise UserError(
                f"{self.spec.flag}: its vocabulary{reason} is not that of Data.cache="
                f"'{config.data.cache}'; {first}make the cache with --vocabulary={path}"
            )

    def _check_sizes(self, config: Config, fields: Sequence[str]) -> None:
        source, model = self.config.model, config.model
        differing = [
            f"Model.{name} is {getattr(source, name)!r} there, {getattr(model, name)!r} here"
            for name in fields
            if getattr(source, name) != getattr(model, name)
        ]
        if differing:
            raise UserError(f"{self.spec.flag}: {'; '.join(differing)}; make them equal")


class ParamSource(NamedTuple):
    """Source of a parameter of a new run.

    Attributes:
        source_run: the source run.
        name: path among the source run's parameters.
    """

    source_run: SourceRun
    name: str

    @property
    def array(self) -> np.ndarray:
        """The parameter, in the host's memory."""
        return self.source_run.arrays[self.name]


ParamSources = Mapping[str, ParamSource]  # by path in the new run's parameters


def check_source_names(
    source_specs: Sequence[SourceRunSpec], param_mappings: Sequence[ParamMapping]
) -> None:
    """Check that the source runs are those that the methods' parameter mappings name.

    Raises:
        UserError: if a run is missing, unknown, named twice, or needs a name or mappings.
    """
    names = [spec.name for spec in source_specs]
    wanted = list(dict.fromkeys(mapping.run_name for mapping in param_mappings))
    for spec in source_specs:
        if names.count(spec.name) > 1:
            remedy = "give each name once" if spec.name else "several runs need NAME=RUN each"
            raise UserError(f"{spec.flag}: its name is not unique; {remedy}")
        if spec.name and not wanted:
            raise UserError(
                f"{spec.flag}: no method copies parameters from '{spec.name}'; give "
                f"--initialize_from={spec.run} to copy all, or name parts in Graft.parts"
            )
        if wanted and spec.name not in wanted:
            raise UserError(
                f"{spec.flag}: parameters are copied from {join_names(wanted)}; give "
                + join_names([f"--initialize_from={name}=RUN" for name in wanted])
            )
    missing = [mapping for mapping in param_mappings if mapping.run_name not in names]
    if missing:
        raise UserError(
            f"{missing[0]} copies from a run that is not named; give "
            f"--initialize_from={missing[0].run_name}=RUN"
        )


def check_sources(
    sources: ParamSources, shapes: Mapping[str, tuple[int, ...]], config: Config
) -> None:
    """Check that source arrays have the languages and shapes of the parameters they initialise.

    Args:
        sources: sources of the new run's parameters.
        shapes: shapes of the new run's parameters.
        config: configuration of the new run.

    Raises:
        UserError: otherwise.
    """
    for name, source in sources.items():
        _check_slots(name, source, config)
        if source.array.shape != shapes[name]:
            source_name = "" if name == source.name else f" ('{source.name}')"
            raise UserError(
                f"{source.source_run.spec.flag}: '{name}' is {source.array.shape} "
                f"there{source_name}, {shapes[name]} here; make the sizes equal"
            )


def _check_slots(name: str, source: ParamSource, config: Config) -> None:
    """Check that the slots of a source array belong to the languages of those they initialise.

    Args:
        name: path of the new run's parameter.
        source: its source.
        config: configuration of the new run.

    Raises:
        UserError: if other languages have slots, or the same ones in another order.
    """
    run = source.source_run
    there, here = (
        ", ".join(map(canonical_code_or_input, languages_of_slots(model.methods, path)))
        for model, path in ((run.config.model, source.name), (config.model, name))
    )
    if there != here:
        raise UserError(
            f"{run.spec.flag}: '{source.name}' has slots of ({there}) there, '{name}' of ({here}) "
            f"here; give the same languages slots in the same order, as {run.run.location} does"
        )
