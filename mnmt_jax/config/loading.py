"""Gin files to a configuration and back.

Of gin this room takes the grammar alone: a file is read as data, and nothing in it is imported or
called. t5x, which reads the same files, uses gin itself (`mnmt_jax.interop.t5x.parsed`).
"""

from __future__ import annotations

import dataclasses
import importlib.util  # noqa: F401  gin reads this attribute without importing it
import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from gin import config_parser

from mnmt_jax.config.bindings import Bindings
from mnmt_jax.config.grammar import statements_of
from mnmt_jax.config.legacy_configs import migrate
from mnmt_jax.config.sections import SECTIONS, Config, Model, Train
from mnmt_jax.design.method import Method, check_edits
from mnmt_jax.design.method_registry import get_method, get_section, section_titles
from mnmt_jax.errors import UserError, docs_page
from mnmt_jax.files.atomic_write import write_text


class Source(Protocol):
    """Where the values of sections come from: `Bindings`, or gin itself."""

    def value(self, title: str, field: str, default: Any) -> Any:
        """Returns what a field is bound to."""

    def place(self, title: str, field: str) -> str:
        """Returns `FILE:LINE: ` of a binding, for errors."""

    def section(self, section: type, further: Mapping[str, Any]) -> Any:
        """Makes a section, with values that are not bound."""


_MARK = "# Written by mnmt-jax.\n"

MAX_INCLUDES = 1000
"""Inclusions that the gin files of one configuration may have: files that include the next twice
double them."""

MAX_INCLUDE_DEPTH = 50
"""Inclusions within each other."""


_PACKAGE = Path(__file__).resolve().parents[1]
# A wheel holds the gin files within the package; a checkout has them beside it.
GIN_ROOT = _PACKAGE if (_PACKAGE / "gin_configs").is_dir() else _PACKAGE.parent


def load_config(
    gin_files: Sequence[str],
    bindings: Sequence[str] = (),
    *,
    run: Path | None = None,
    forget: Sequence[str] = (),
) -> Config:
    """Reads gin files and bindings.

    Args:
        gin_files: paths, later ones win; they and what they include are looked up in the working
            directory and then in `GIN_ROOT`. An `import` in them must name what has been imported.
        bindings: `Section.field=value` in gin syntax, applied last.
        run: configuration of a run, read first; somebody else may have made it, so it may hold
            bindings alone: no `import` and no `include`.
        forget: sections of that configuration that are left out.

    Raises:
        UserError: if a file is missing, does not parse, names an unknown field or macro, or binds
            something that nothing reads.
    """
    found = _bindings()
    if run is not None:
        _read_file(found, run, str(run), values_alone=True)
    for title in forget:
        found.forget(title)
    reads = itertools.count(1)
    for path in gin_files:
        if (file := _find(path)) is None:
            raise UserError(f"--gin_file={path}: no such file")
        _read_file(found, file, path, reads=reads)
    for binding in bindings:
        _read_binding(found, binding)
    config = build_config(found)
    if not found.place("Model", "methods").startswith(f"{run}:"):
        check_edits(config.model.methods)
    read = (*SECTIONS.values(), *map(type, config.methods))
    found.check_read([section.__name__ for section in read])
    return config


def build_config(source: Source) -> Config:
    """Makes all sections, those of the methods that `Model` and `Train` name first."""
    made = {}
    for name, section in SECTIONS.items():
        further: dict[str, Any] = {}
        if section in (Model, Train):
            title = section.__name__
            try:
                chosen = _chosen(title, source.value(title, "methods", ()))
            except UserError as error:
                raise UserError(f"{source.place(title, 'methods')}{error}") from error
            further["methods"] = [source.section(each, {}) for each in chosen]
        made[name] = source.section(section, further)
    return Config(**made)


def _chosen(title: str, names: Any) -> list[type[Method]]:
    if not isinstance(names, tuple | list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{title}.methods={names!r} must be a tuple, such as ('adaption',)")
    return [get_method(name, f"{title}.methods") for name in names]


def no_such_field(title: str, field: str) -> str:
    """Returns what to say of a field that a section does not have; nothing if neither is ours.

    Args:
        title: of the section, such as `Model`.
        field: its name.
    """
    return _bindings().no_such_field(title, field)


def _bindings() -> Bindings:
    return Bindings(SECTIONS.values(), get_section, section_titles)


def _find(path: str) -> Path | None:
    """Returns a file below the working directory or else the repository root."""
    return next((file for file in (Path(path), GIN_ROOT / path) if file.is_file()), None)


def _read_file(
    found: Bindings,
    path: Path,
    named: str,
    *,
    values_alone: bool = False,
    within: tuple[Path, ...] = (),
    reads: Iterator[int] | None = None,
) -> None:
    """Reads a file and those that it includes.

    Args:
        found: takes the bindings.
        path: where it is.
        named: how messages name it.
        values_alone: refuse `import` and `include`.
        within: the files that led here by including.
        reads: counts the inclusions of all files; None begins at one.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{named}: not UTF-8 text; give a gin file") from error
    within = (*within, path.resolve())
    statements = statements_of(text, named)
    for statement in migrate(statements) if values_alone else statements:
        place = f"{named}:{statement.location.line_num}: "
        includes = isinstance(statement, config_parser.IncludeStatement)
        if not includes and not isinstance(statement, config_parser.ImportStatement):
            found.bind(statement, place, place)
        elif values_alone:
            told = f"include '{statement.filename}'" if includes else statement.format()
            raise UserError(
                f"{place}{told}: the configuration of a run holds values alone; remove the line"
            )
        elif includes:
            _include(found, statement.filename, place, within, reads)
        else:
            _check_imported(statement, place)


def _include(
    found: Bindings,
    filename: str,
    place: str,
    within: tuple[Path, ...],
    reads: Iterator[int] | None,
) -> None:
    file = _find(filename)
    if file is None:
        raise UserError(f"{place}include '{filename}': no such file")
    if file.resolve() in within:
        raise UserError(
            f"{place}include '{filename}': files include each other in a circle; remove the line"
        )
    reads = reads or itertools.count(1)
    if len(within) > MAX_INCLUDE_DEPTH or next(reads) > MAX_INCLUDES:
        raise UserError(
            f"{place}include '{filename}': more than {MAX_INCLUDES} inclusions, or "
            f"{MAX_INCLUDE_DEPTH} within each other; include each file once"
        )
    _read_file(found, file, filename, within=within, reads=reads)


def _check_imported(statement: config_parser.ImportStatement, place: str) -> None:
    """Checks that a module was imported already: a gin file imports nothing itself."""
    told = f"{place}{statement.format()}"
    if statement.module.startswith("__gin__"):
        raise UserError(f"{told}: the file is for t5x; {docs_page('t5x.md')} says how to run it")
    if statement.module not in sys.modules:
        raise UserError(
            f"{told}: a gin file imports nothing by itself; if you trust the module, pass "
            f"--module_import={statement.module}"
        )


def _read_binding(found: Bindings, text: str) -> None:
    for statement in statements_of(text, ""):
        if not isinstance(statement, config_parser.BindingStatement):
            raise UserError(f"{text}: must be NAME=VALUE")
        found.bind(statement, f"{text}: ", "")


def save_config(config: Config, path: str | Path) -> None:
    """Writes every field, defaults included, as a gin file that `load_config` reads back."""
    lines = [_MARK]
    for section in (*(getattr(config, name) for name in SECTIONS), *config.methods):
        for field in dataclasses.fields(section):
            value = getattr(section, field.name)
            value = tuple(each.name for each in value) if field.name == "methods" else value
            lines.append(f"{type(section).__name__}.{field.name} = {value!r}")
        lines.append("")
    write_text(Path(path), "\n".join(lines))


def is_saved_config(text: str) -> bool:
    """Returns whether `save_config` wrote a text, of this version or of one without the mark."""
    if text.startswith(_MARK):
        return True
    lines = [line for line in text.splitlines() if line]
    sections = [line.partition(".")[0] for line in lines if re.match(r"\w+\.\w+ = ", line)]
    wanted = [section.__name__ for section in SECTIONS.values()]
    return len(sections) == len(lines) and list(dict.fromkeys(sections)) == wanted
