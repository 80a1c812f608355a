"""Parameter mappings of methods, applied: the source array of each parameter of a new run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from mnmt_jax.design.param_mapping import ParamMapping
from mnmt_jax.errors import UserError
from mnmt_jax.model.param_patterns import suggest_paths
from mnmt_jax.training.source_runs import ParamSource, ParamSources, SourceRun


def mapped_param_sources(
    param_mappings: Sequence[ParamMapping],
    source_runs: Mapping[str, SourceRun],
    names: Iterable[str],
) -> ParamSources:
    """Return the source of each parameter of a new run that a mapping covers.

    For a pair of modules, the parameters that both have are copied. Other parameters of the new
    module keep their random values.

    Args:
        param_mappings: parameter mappings in any order.
        source_runs: source runs by name.
        names: names of the new run's parameters.

    Raises:
        UserError: if a path does not exist, two modules have no parameter in common, or two
            mappings set the same parameter.
    """
    names = list(names)
    sources: dict[str, ParamSource] = {}
    mapping_of: dict[str, ParamMapping] = {}
    for mapping in param_mappings:
        run = source_runs[mapping.run_name]
        for source_path, target_path in mapping.expand():
            source_suffixes = _suffixes_under(
                source_path, run.arrays, f"{mapping}: '{mapping.run_name}' has no"
            )
            target_suffixes = _suffixes_under(
                target_path, names, f"{mapping}: the new model has no"
            )
            shared = [suffix for suffix in target_suffixes if suffix in source_suffixes]
            if not shared:
                raise UserError(
                    f"{mapping}: '{source_path}' has {_heads(source_suffixes)} and '{target_path}' "
                    f"has {_heads(target_suffixes)}; map paths that both have"
                )
            for suffix in shared:
                name = target_path + suffix
                if name in mapping_of:
                    raise UserError(
                        f"{mapping}: '{name}' is already the target of {mapping_of[name]}; remove "
                        "one"
                    )
                mapping_of[name], sources[name] = mapping, ParamSource(run, source_path + suffix)
    return sources


def _suffixes_under(path: str, names: Iterable[str], message: str) -> list[str]:
    """Return the suffixes of parameter names that equal a path or lie below it."""
    names = list(names)
    suffixes = [name[len(path) :] for name in names if name == path or name.startswith(f"{path}/")]
    if suffixes:
        return suffixes
    split_names = (name.split("/") for name in names)
    known_paths = {
        "/".join(split_name[:count])
        for split_name in split_names
        for count in range(1, len(split_name) + 1)
    }
    raise UserError(
        f"{message} '{path}'; {suggest_paths(path, known_paths)}"
        f"paths start with {_heads(known_paths)}"
    )


def _heads(paths: Iterable[str]) -> str:
    """Return the first path components, without numbers."""
    heads = {re.sub(r"_\d+", "_*", path.lstrip("/").split("/")[0]) for path in paths}
    return ", ".join(sorted(heads)) if heads != {""} else "no parts"
