"""Loading and saving of configurations as gin files.

Only gin's grammar is used: a file is read as data, and nothing in it is imported or called. t5x
reads the same files with gin itself (`mnmt_jax.interop.t5x.parsed`).
"""

from __future__ import annotations

import dataclasses
import difflib
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
from mnmt_jax.files.bucket import is_bucket


class Source(Protocol):
    """A source of the values of sections: `Bindings`, or gin itself."""

    def value(self, title: str, field: str, default: Any) -> Any:
        """Return the value bound to a field."""

    def location(self, title: str, field: str) -> str:
        """Return `FILE:LINE: ` of a binding, for errors."""

    def section(self, section: type, overrides: Mapping[str, Any]) -> Any:
        """Build a section, with additional values."""


_MARK = "# Written by mnmt-jax.\n"

MAX_INCLUDES = 1000
"""Maximum number of inclusions in a configuration. It bounds chains of files that include the next
file twice, which grow exponentially."""

MAX_INCLUDE_DEPTH = 50
"""Maximum depth of nested inclusions."""


_SIMILARITY = 0.7
"""Least similarity of a file's name to a misspelt one for a suggestion."""

_PACKAGE = Path(__file__).resolve().parents[1]
# In a wheel the gin files are inside the package; in a checkout they are next to it.
GIN_ROOT = _PACKAGE if (_PACKAGE / "gin_configs").is_dir() else _PACKAGE.parent


def load_config(
    gin_files: Sequence[str],
    bindings: Sequence[str] = (),
    *,
    run: Path | None = None,
    ignored_sections: Sequence[str] = (),
) -> Config:
    """Load a configuration from gin files and bindings.

    Args:
        gin_files: paths; later files win. They and their includes are looked up in the working
            directory and then in `GIN_ROOT`. An `import` in them must name a module that has been
            imported.
        bindings: `Section.field=value` in gin syntax, applied last.
        run: configuration of a run, read first. It is untrusted, so it may contain only bindings:
            no `import` and no `include`.
        ignored_sections: sections of that configuration to ignore.

    Raises:
        UserError: if a file is missing, does not parse, names an unknown field or macro, or has an
            unused binding.
    """
    values = _bindings()
    if run is not None:
        _read_file(values, run, str(run), values_alone=True)
    for title in ignored_sections:
        values.forget(title)
    _read_all(values, gin_files, bindings)
    config = build_config(values)
    if not values.location("Model", "methods").startswith(f"{run}:"):
        check_edits(config.model.methods)
    sections = (*SECTIONS.values(), *map(type, config.methods))
    values.check_read([section.__name__ for section in sections])
    return config


def is_bound(title: str, field: str, gin_files: Sequence[str], bindings: Sequence[str]) -> bool:
    """Return whether gin files or bindings set a field, and no later one replaces it.

    Args:
        title: name of the section, such as `Train`.
        field: name of the field.
        gin_files: as in `load_config`.
        bindings: as in `load_config`.

    Raises:
        UserError: as `load_config`.
    """
    values = _bindings()
    _read_all(values, gin_files, bindings)
    return values.value(title, field, None) is not None


def _read_all(values: Bindings, gin_files: Sequence[str], bindings: Sequence[str]) -> None:
    reads = itertools.count(1)
    for path in gin_files:
        if is_bucket(path):
            raise UserError(f"--gin_file={path}: is in a bucket; copy it to a folder first")
        if Path(path).is_dir():
            raise UserError(f"--gin_file={path}: is a folder{_config_inside(path)}")
        if (file := _find(path)) is None:
            raise UserError(f"--gin_file={path}: no such file{_similar_files(path)}")
        _read_file(values, file, path, reads=reads)
    for binding in bindings:
        _read_binding(values, binding)


def build_config(source: Source) -> Config:
    """Build all sections, and the sections of the methods named in `Model` and `Train`."""
    sections = {}
    for name, section in SECTIONS.items():
        overrides: dict[str, Any] = {}
        if section in (Model, Train):
            title = section.__name__
            try:
                methods = _selected_methods(title, source.value(title, "methods", ()))
            except UserError as error:
                raise UserError(f"{source.location(title, 'methods')}{error}") from error
            overrides["methods"] = [source.section(method, {}) for method in methods]
        sections[name] = source.section(section, overrides)
    return Config(**sections)


def _selected_methods(title: str, names: Any) -> list[type[Method]]:
    if not isinstance(names, tuple | list) or not all(isinstance(name, str) for name in names):
        example = names if isinstance(names, str) else {"Train": "rdrop"}.get(title, "adaption")
        raise UserError(f"{title}.methods={names!r} must be a tuple, such as ({example!r},)")
    return [get_method(name, f"{title}.methods") for name in names]


def unknown_field_error(title: str, field: str) -> str:
    """Return the message about an unknown field; empty if the section is unknown too.

    Args:
        title: name of the section, such as `Model`.
        field: name of the field.
    """
    return _bindings().unknown_field_error(title, field)


def _bindings() -> Bindings:
    return Bindings(SECTIONS.values(), get_section, section_titles)


def _find(path: str) -> Path | None:
    """Return a file in the working directory or else in `GIN_ROOT`; None if there is none."""
    return next((file for file in (Path(path), GIN_ROOT / path) if file.is_file()), None)


def _config_inside(path: str) -> str:
    """Return `; did you mean FILE?` for the configuration of a run; empty if there is none."""
    file = Path(path) / "config.gin"
    return f"; did you mean {file}?" if file.is_file() else ""


def _similar_files(path: str) -> str:
    """Return `; did you mean FILE or FILE?` for gin files with a similar name; empty if none."""
    files = sorted((GIN_ROOT / "gin_configs").rglob("*.gin"))
    stems = difflib.get_close_matches(
        Path(path).stem, {file.stem for file in files}, n=2, cutoff=_SIMILARITY
    )
    matches = [
        file.relative_to(GIN_ROOT).as_posix()
        for stem in (stems[:1] if Path(path).stem in stems else stems)
        for file in files
        if file.stem == stem
    ]
    return f"; did you mean {' or '.join(matches[:3])}?" if matches else ""


def _read_file(
    values: Bindings,
    path: Path,
    display_name: str,
    *,
    values_alone: bool = False,
    within: tuple[Path, ...] = (),
    reads: Iterator[int] | None = None,
) -> None:
    """Read a file and its includes.

    Args:
        values: bindings to add to.
        path: path of the file.
        display_name: name of the file in messages.
        values_alone: whether to refuse `import` and `include`.
        within: the chain of files that include this one.
        reads: counter of inclusions over all files; None starts a new one.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{display_name}: not UTF-8 text; give a gin file") from error
    within = (*within, path.resolve())
    statements = statements_of(text, display_name)
    for statement in migrate(statements) if values_alone else statements:
        location = f"{display_name}:{statement.location.line_num}: "
        is_include = isinstance(statement, config_parser.IncludeStatement)
        if not is_include and not isinstance(statement, config_parser.ImportStatement):
            values.bind(statement, location, location)
        elif values_alone:
            text_of_statement = (
                f"include '{statement.filename}'" if is_include else statement.format()
            )
            raise UserError(
                f"{location}{text_of_statement}: the configuration of a run may contain only "
                "values; remove the line"
            )
        elif is_include:
            _include(values, statement.filename, location, within, reads)
        else:
            _check_imported(statement, location)


def _include(
    values: Bindings,
    filename: str,
    location: str,
    within: tuple[Path, ...],
    reads: Iterator[int] | None,
) -> None:
    file = _find(filename)
    if file is None:
        raise UserError(f"{location}include '{filename}': no such file{_similar_files(filename)}")
    if file.resolve() in within:
        raise UserError(
            f"{location}include '{filename}': files include each other in a cycle; remove the line"
        )
    reads = reads or itertools.count(1)
    if len(within) > MAX_INCLUDE_DEPTH or next(reads) > MAX_INCLUDES:
        raise UserError(
            f"{location}include '{filename}': more than {MAX_INCLUDES} inclusions, or more than "
            f"{MAX_INCLUDE_DEPTH} nested; include each file once"
        )
    _read_file(values, file, filename, within=within, reads=reads)


def _check_imported(statement: config_parser.ImportStatement, location: str) -> None:
    """Check that a module has been imported already: a gin file imports nothing itself."""
    prefix = f"{location}{statement.format()}"
    if statement.module.startswith("__gin__"):
        raise UserError(f"{prefix}: the file is for t5x; see {docs_page('t5x.md')}")
    if statement.module not in sys.modules:
        raise UserError(
            f"{prefix}: imports in a gin file are not executed; if you trust the module, pass "
            f"--module_import={statement.module}"
        )


def _read_binding(values: Bindings, text: str) -> None:
    for statement in statements_of(text, ""):
        if not isinstance(statement, config_parser.BindingStatement):
            raise UserError(f"{text}: must be NAME=VALUE")
        values.bind(statement, f"{text}: ", "")


def save_config(config: Config, path: str | Path) -> None:
    """Write every field, defaults included, as a gin file that `load_config` reads back."""
    lines = [_MARK]
    for section in _sections(config):
        lines += [f"{key} = {value!r}" for key, value in _section_values(section).items()]
        lines.append("")
    write_text(Path(path), "\n".join(lines))


def key_values(config: Config) -> dict[str, Any]:
    """Return all values by gin key, such as `Model.embed`; methods are listed by name."""
    values: dict[str, Any] = {}
    for section in _sections(config):
        values |= _section_values(section)
    return values


def _sections(config: Config) -> tuple[Any, ...]:
    return (*(getattr(config, name) for name in SECTIONS), *config.methods)


def _section_values(section: Any) -> dict[str, Any]:
    title, values = type(section).__name__, {}
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        value = tuple(method.name for method in value) if field.name == "methods" else value
        values[f"{title}.{field.name}"] = value
    return values


def is_saved_config(text: str) -> bool:
    """Return whether `save_config` wrote a text, in this or an earlier version without the mark."""
    if text.startswith(_MARK):
        return True
    lines = [line for line in text.splitlines() if line]
    sections = [line.partition(".")[0] for line in lines if re.match(r"\w+\.\w+ = ", line)]
    expected = [section.__name__ for section in SECTIONS.values()]
    return len(sections) == len(lines) and list(dict.fromkeys(sections)) == expected
