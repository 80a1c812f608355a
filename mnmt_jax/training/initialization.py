"""Initialisation of a new run from the parameters of source runs.

A single source run initialises all parameters (`mnmt_jax.training.layer_order`). Several source
runs have names, and the parameter mappings of the methods say which parameters come from which
run (`mnmt_jax.training.param_mapping`). A run with such a method can itself be the single source
of another run of its kind. Parameters without a source keep their random initialisation. All of
this is done once, when a run is created, and checked before anything is written.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import jax

from mnmt_jax.config.sections import Config
from mnmt_jax.design.method import Method, all_param_mappings
from mnmt_jax.design.param_mapping import ParamMapping
from mnmt_jax.errors import UserError
from mnmt_jax.model.lora import LORA_A, is_lora
from mnmt_jax.model.trainable_params import find_freezing_setting
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
    """Parameters of source runs for a new run: read and checked.

    Attributes:
        origin: the source runs, as text.
        sources: sources of the new run's parameters, without those that keep their random values.
        param_mappings: mappings that the sources follow; none if layers are copied in order.
        report: lines about what was copied.
    """

    origin: str
    sources: ParamSources
    param_mappings: tuple[ParamMapping, ...]
    report: tuple[str, ...]

    def replace(self, params: Any) -> Any:
        """Replace freshly drawn parameters; dtypes and shardings stay as they are.

        Args:
            params: parameters of the new run.
        """

        def replaced(path: Any, drawn: Any) -> Any:
            source = self.sources.get(param_path(path))
            if source is None:
                return drawn
            return jax.device_put(source.array.astype(drawn.dtype, copy=False), drawn.sharding)

        return jax.tree_util.tree_map_with_path(replaced, params)


def read_initial_params(
    source_specs: Sequence[SourceRunSpec],
    abstract_params: Any,
    config: Config,
    vocabulary: Vocabulary,
) -> InitialParams | None:
    """Read the parameters that a new run takes from source runs.

    Args:
        source_specs: the source runs.
        abstract_params: the new run's parameters, or their shapes.
        config: configuration of the new run.
        vocabulary: vocabulary of the new run.

    Returns:
        The parameters; None if all keep their random values.

    Raises:
        UserError: if the source runs are not those that the methods' mappings name; if a
            vocabulary, a size, the number of layers or the languages of slots do not fit; if a
            mapping matches nothing; if the new model has no parameters for a source run's LoRA; if
            a source run is not the kind of model that a method requires; or if a parameter that no
            source run has would be frozen at its random values.
    """
    sole_run = (
        SourceRun.open(source_specs[0])
        if [origin.name for origin in source_specs] == [""]
        else None
    )
    mappings = all_param_mappings(
        config, exclude=_applied_methods(sole_run, config) if sole_run else ()
    )
    check_source_names(source_specs, mappings)
    leaves = jax.tree_util.tree_leaves_with_path(abstract_params)
    shapes = {param_path(path): tuple(leaf.shape) for path, leaf in leaves}
    if not source_specs:
        _check_new_params_train(list(shapes), config, ())
        return None
    runs = (
        {"": sole_run} if sole_run else {spec.name: SourceRun.open(spec) for spec in source_specs}
    )
    for method in config.methods:
        for required in method.required_sources(config.model):
            if required.run_name in runs:
                runs[required.run_name].check_kind(required, config)
    if mappings:
        sources = mapped_param_sources(mappings, runs, shapes)
        for run in runs.values():
            names = [name for name, source in sources.items() if source.source_run is run]
            run.check_mapped(names, config, vocabulary)
    else:
        (run,) = runs.values()
        run.check_all(config, vocabulary)
        sources = sources_in_order(run, config, shapes)
    check_sources(sources, shapes, config)
    for run in runs.values():
        _check_lora(run, sources, is_sole_source=not mappings)
    _check_new_params_train([name for name in shapes if name not in sources], config, runs.values())
    report = _report(list(runs.values()), sources, shapes)
    return InitialParams(", ".join(map(str, source_specs)), sources, mappings, report)


def _applied_methods(sole_run: SourceRun, config: Config) -> list[Method]:
    """Return the methods whose parameter mappings the parameters of a sole source run contain.

    Those are its own methods. A method without effect after creation, such as `graft`, counts only
    with the same mappings: with others, the new run starts from other source runs.
    """

    def is_applied(method: Method) -> bool:
        return method.for_resume() is not None or any(
            method.name == other.name
            and method.param_mappings(config.model) == other.param_mappings(config.model)
            for other in config.methods
        )

    return [method for method in sole_run.config.methods if is_applied(method)]


def _check_lora(run: SourceRun, sources: ParamSources, *, is_sole_source: bool) -> None:
    """Check that no weight is copied without the LoRA that modifies it.

    Args:
        run: a source run.
        sources: sources of the new run's parameters.
        is_sole_source: whether LoRA of parameters that are not copied counts as lost, too.

    Raises:
        UserError: otherwise.
    """
    source_names = {
        name: source.name for name, source in sources.items() if source.source_run is run
    }
    is_lost = is_sole_source and any(
        is_lora(name) for name in run.arrays.keys() - source_names.values()
    )
    for name, source_name in source_names.items():
        module, _, kind = name.rpartition("/")
        source_module, _, _ = source_name.rpartition("/")
        lora_name = f"{source_module}/{LORA_A}"
        if kind == "kernel" and lora_name in run.arrays:
            is_lost |= source_names.get(f"{module}/{LORA_A}") != lora_name
    if is_lost:
        model = run.config.model
        raise UserError(
            f"{run.spec.flag}: the new model has no LoRA; merge that of the run with 'mnmt "
            f"adapters' first, or set Model.lora_rank={model.lora_rank} and "
            f"Model.lora={model.lora!r} as there"
        )


def _check_new_params_train(
    names: Sequence[str], config: Config, runs: Collection[SourceRun]
) -> None:
    """Check that freshly drawn parameters train.

    Args:
        names: parameters of the new run without a source.
        config: configuration of the new run.
        runs: its source runs; none if all parameters are drawn.

    Raises:
        UserError: if one is frozen at its random values.
    """
    settings = {
        name: setting
        for name in names
        if (setting := find_freezing_setting(name, config.model, config.optimizer))
    }
    if settings:
        setting = next(iter(settings.values()))
        frozen = _summary(name for name, other in settings.items() if other == setting)
        if not runs:
            raise UserError(
                f"{setting.title} without --initialize_from: {frozen} would stay at random values; "
                "name a trained run, or freeze nothing"
            )
        remedy = (
            "list the parameters to freeze in Optimizer.frozen, so that the others train"
            if setting.title.startswith("Model.lora_rank")
            else "let them train, or leave out the method that adds them"
        )
        raise UserError(
            f"{' '.join(run.spec.flag for run in runs)}: no source run has {frozen}, and "
            f"{setting.title} would freeze the random values; {remedy}"
        )


def _report(
    runs: Sequence[SourceRun], sources: ParamSources, names: Collection[str]
) -> tuple[str, ...]:
    """Return lines about what is copied from each source run, what is unused, and what is new."""
    new = [name for name in names if name not in sources]
    drawn_parts = [f"new: {_summary(new)}"] if new else []
    lines = []
    for run in runs:
        used = {source.name for source in sources.values() if source.source_run is run}
        unused, name = run.arrays.keys() - used, run.spec.name
        parts = [f"started from {run.run.location}, step {run.step}: {len(used)} arrays"]
        parts += [f"not used {_summary(unused)}"] if unused else []
        if name:
            parts[0] = f"'{name}' {parts[0]} of {_summary(used)}"
        else:
            parts[1:1] = drawn_parts + _renamed_tables(sources)
        lines.append("; ".join(parts))
    return (*lines, *drawn_parts) if runs[0].spec.name else tuple(lines)


def _renamed_tables(sources: ParamSources) -> list[str]:
    """Return which tables start as a table of another name; empty if none does."""
    renamed = [
        f"{name} from {source.name}"
        for name, source in sorted(sources.items())
        if "/" not in name and name != source.name
    ]
    return [", ".join(renamed)] if renamed else []


def _summary(names: Iterable[str]) -> str:
    """Return parameter names cut to modules, with layer ranges in the form of `ParamMapping`."""
    numbers: dict[tuple[str, str], set[int]] = {}
    for name in names:
        short = "/".join(name.split("/")[:2])
        if is_lora(name):
            short = f"LoRA of {short}"
        before, number, after = (*_NUMBER.split(short, maxsplit=1), "", "")[:3]
        numbers.setdefault((before, after), set()).update([int(number)] if number else [])
    return ", ".join(
        f"{before}{layer_range}{after}"
        for (before, after), layer_numbers in sorted(numbers.items())
        for layer_range in _ranges(layer_numbers)
    )


def _ranges(numbers: Collection[int]) -> Iterator[str]:
    """Yield ranges of consecutive numbers as `{0-5}`; yield one empty string if there are none."""
    if not numbers:
        yield ""
    for _, consecutive in itertools.groupby(
        enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]
    ):
        (_, start), *following = consecutive
        yield f"{{{start}-{following[-1][1]}}}" if following else str(start)
