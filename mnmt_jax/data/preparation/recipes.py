"""Recipes: preparation steps and their settings in a TOML file."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
import unicodedata
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mnmt_jax.data.preparation.character_rules import (
    Histogram,
    PunctuationOnly,
    PunctuationShare,
    Script,
    Unreadable,
)
from mnmt_jax.data.preparation.duplicates import (
    NearDuplicates,
    PairDuplicates,
    SourceDuplicates,
    TargetDuplicates,
)
from mnmt_jax.data.preparation.language_rule import DetectedLanguage
from mnmt_jax.data.preparation.length_rules import Length, LengthRatio, PieceLength, PieceRatio
from mnmt_jax.data.preparation.pair_rules import Copies, Numbers, RepeatedNgrams, Score
from mnmt_jax.data.preparation.recipe_files import FOLDER, recipe_names
from mnmt_jax.data.preparation.steps import PieceRule, Step, Transform
from mnmt_jax.data.preparation.transforms import Moses, Normalize, Segment
from mnmt_jax.errors import UserError, docs_page, join_names, suggest
from mnmt_jax.files.toml_files import read_toml
from mnmt_jax.files.typed_fields import LARGEST, short_repr

_TEXTS = ("title", "source", "note")
_STEPS: tuple[type[Step], ...] = (
    Normalize,
    Moses,
    Segment,
    Length,
    LengthRatio,
    Script,
    DetectedLanguage,
    Copies,
    PunctuationOnly,
    PunctuationShare,
    Numbers,
    RepeatedNgrams,
    Histogram,
    Unreadable,
    Score,
    PairDuplicates,
    SourceDuplicates,
    TargetDuplicates,
    NearDuplicates,
    PieceLength,
    PieceRatio,
)
STEPS: Mapping[str, type[Step]] = types.MappingProxyType({step.name: step for step in _STEPS})
"""Step classes by their names in recipes."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The steps of a preparation, in order.

    Attributes:
        name: name of the file without its ending.
        title: title on the report page; the name if the file has none.
        source: paper or program that it follows; empty if none.
        note: what differs from the source or is unknown about it; empty if nothing.
        steps: steps; rules on pieces come last.
    """

    name: str
    title: str
    source: str
    note: str
    steps: tuple[Step, ...]

    def without_rules(self) -> Recipe:
        """Return the recipe of text to evaluate on: its transforms, which drop nothing.

        Raises:
            UserError: if it has none.
        """
        transforms = tuple(step for step in self.steps if isinstance(step, Transform))
        if not transforms:
            raise UserError(
                f"recipe '{self.name}' changes no text; evaluate on the files as they are"
            )
        return dataclasses.replace(self, steps=transforms)

    def check_languages(self, languages: Sequence[str]) -> None:
        """Check that every step can process these languages.

        Raises:
            UserError: if a package or file is missing.
        """
        for step in self.steps:
            step.check_languages(languages)

    def dependencies(self, languages: Sequence[str]) -> dict[str, str]:
        """Return what the result depends on beside the text and the settings.

        Args:
            languages: codes of the languages of the text, which passed `check_languages`.

        Returns:
            The digests of files by their paths, the versions of Unicode and of packages by name.
        """
        by_name = {"Unicode": unicodedata.unidata_version, "regex": version("regex")}
        for step in self.steps:
            by_name |= step.dependencies(languages)
        return by_name


def read_recipe(name_or_path: str | Path) -> Recipe:
    """Read a recipe.

    Args:
        name_or_path: name of a packaged recipe, or path of a TOML file.

    Raises:
        UserError: if there is no such recipe, or naming its file, step and field that are wrong.
    """
    path = FOLDER / f"{name_or_path}.toml"
    if str(name_or_path) not in recipe_names():
        path = Path(name_or_path)
        if not path.is_file():
            hint, names = suggest(path.name, recipe_names()), join_names(recipe_names())
            problem = f"no recipe '{path}'" if str(path) == path.stem else f"{path}: no such file"
            raise UserError(f"{problem}; {hint}name one of {names}, or a TOML file")
    fields = read_toml(path)
    if unknown := fields.keys() - {*_TEXTS, "steps"}:
        expected = join_names([*_TEXTS, "[[steps]]"])
        raise UserError(f"{path}: unknown field {short_repr(min(unknown))}; fields are {expected}")
    texts = {name: _text(path, fields, name) for name in _TEXTS}
    texts["title"] = texts["title"] or path.stem
    steps = fields.get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise UserError(f'{path}: lacks steps; write [[steps]] and step = "NAME" for each')
    return Recipe(path.stem, **texts, steps=_parse_steps(path, steps))


def _text(path: Path, fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise UserError(f"{path}: {name} = {short_repr(value)} must be a text in quotes")
    return " ".join(value.split())


def _parse_steps(path: Path, entries: Sequence[Mapping[str, Any]]) -> tuple[Step, ...]:
    steps: list[Step] = []
    for number, entry in enumerate(entries, start=1):
        try:
            step = parse_step(entry)
        except UserError as error:
            raise UserError(f"{path}: step {number}: {error}") from error
        if steps and isinstance(steps[-1], PieceRule) and not isinstance(step, PieceRule):
            raise UserError(
                f"{path}: step {number}: {step.name} comes after {steps[-1].name}, a rule on "
                "pieces; move rules on pieces to the end"
            )
        steps.append(step)
    return tuple(steps)


def parse_step(entry: Mapping[str, Any]) -> Step:
    """Return the step of an entry of `[[steps]]`.

    Args:
        entry: `step`, the name, and the settings.

    Raises:
        UserError: naming the step and the field that is wrong.
    """
    name = entry.get("step")
    if name is None:
        raise UserError(f"lacks step, its name; {docs_page('scale.md')} lists them")
    if not isinstance(name, str) or name not in STEPS:
        hint = suggest(name, STEPS) if isinstance(name, str) else ""
        raise UserError(
            f"step = {short_repr(name)} must be the name of a step; {hint}{docs_page('scale.md')} "
            "lists them"
        )
    step = STEPS[name]
    fields = {field.name: field for field in dataclasses.fields(step)}
    for field in entry.keys() - {"step"}:
        if field not in fields:
            known = f"it has {join_names(list(fields))}" if fields else "it has none"
            raise UserError(
                f"{name}: no setting {short_repr(field)}; {suggest(field, fields)}{known}"
            )
    for field, value in fields.items():
        if value.default is value.default_factory and field not in entry:
            raise UserError(f"{name}: lacks {field}")
    types_by_field = _field_types(step)
    settings = {
        field: _convert(f"{name}: {field}", value, types_by_field[field])
        for field, value in entry.items()
        if field != "step"
    }
    return step(**settings)


@functools.cache
def _field_types(step: type[Step]) -> Mapping[str, Any]:
    return typing.get_type_hints(step)


def _convert(setting: str, value: Any, type_: Any) -> Any:
    """Return a value of a TOML file as the type of a setting."""
    if typing.get_origin(type_) in (typing.Union, types.UnionType):
        type_ = typing.get_args(type_)[0]  # `int | None`; None is the absent setting
    origin = typing.get_origin(type_)
    if origin is tuple and isinstance(value, list) and all(isinstance(x, str) for x in value):
        return tuple(value)
    if origin is Mapping and isinstance(value, dict):
        inner = typing.get_args(type_)[1]
        return {key: _convert(f"{setting}.{key}", item, inner) for key, item in value.items()}
    is_large = type(value) is int and abs(value) > LARGEST
    if type_ is float and type(value) in (int, float) and not is_large:
        return float(value)
    if type_ in (int, bool, str) and type(value) is type_ and not is_large:
        return value
    if origin is typing.Literal and isinstance(value, str):
        return value
    raise UserError(f"{setting} = {short_repr(value)} must be {_TYPE_NAMES[origin or type_]}")


_TYPE_NAMES: Mapping[Any, str] = types.MappingProxyType(
    {
        int: f"an integer of at most {LARGEST}",
        float: f"a number of at most {LARGEST}",
        bool: "true or false",
        str: "a text in quotes",
        typing.Literal: "a text in quotes",
        tuple: 'a list of texts, such as ["de", "en"]',
        Mapping: "a table of lists of texts",
    }
)
