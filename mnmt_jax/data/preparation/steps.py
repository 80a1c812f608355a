"""Base classes of preparation steps: transforms, pair rules, deduplication and piece rules."""

from __future__ import annotations

import abc
import dataclasses
import functools
import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from mnmt_jax.data.preparation.characters import CodePoints
from mnmt_jax.errors import UserError, install_remedy
from mnmt_jax.vocabulary.language_codes import Direction, canonical_codes


@dataclasses.dataclass(frozen=True)
class PairBatch:
    """Sentence pairs of one pair of languages.

    Attributes:
        sources: sentences in the first language.
        targets: their translations, as many.
        direction: first and second language. Pairs are stored once per two languages, in the order
            of the sorted codes.
        scores: values of a score per pair, float `[n]`, by the name of the score.
    """

    sources: Sequence[str]
    targets: Sequence[str]
    direction: Direction
    scores: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sources)

    @functools.cached_property
    def sides(self) -> tuple[Side, Side]:
        """Sentences of the two languages."""
        first, second = self.direction
        return Side(self.sources, first), Side(self.targets, second)


@dataclasses.dataclass(frozen=True)
class Side:
    """Sentences of one language.

    Attributes:
        sentences: sentences.
        language: code of the language.
    """

    sentences: Sequence[str]
    language: str

    @functools.cached_property
    def code_points(self) -> CodePoints:
        """Characters as numbers, computed once."""
        return CodePoints(self.sentences)


@dataclasses.dataclass(frozen=True)
class Step(abc.ABC):
    """A preparation step; the fields of a subclass are its settings in a recipe.

    Steps are deterministic and picklable. The result for a pair depends on that pair alone.

    Attributes:
        name: name in recipes.
    """

    name: ClassVar[str]

    @classmethod
    def title(cls) -> str:
        """Return the first line of the docstring without its full stop."""
        return (cls.__doc__ or "").partition("\n")[0].rstrip(".")

    def settings(self) -> str:
        """Return the settings as in a recipe; empty if there are none."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return ", ".join(f"{name} = {value!r}" for name, value in values.items())

    def check_languages(self, languages: Sequence[str]) -> None:  # noqa: B027
        """Check, before any text is read, that the step can process these languages.

        Raises:
            UserError: if a package or file is missing.
        """

    def dependencies(self, languages: Sequence[str]) -> dict[str, str]:
        """Return what the result depends on beside text and settings.

        Args:
            languages: codes of the languages of the text.

        Returns:
            The digests of files by their paths, and the versions of packages by their names.
        """
        return {}

    def require(self, field: str, is_valid: bool, *, expected: str) -> None:
        """Check the value of a setting.

        Raises:
            UserError: naming the step, the field and the expected value, unless `is_valid`.
        """
        if not is_valid:
            value = getattr(self, field)
            raise UserError(f"{self.name}: {field} = {value!r} must be {expected}")

    def require_choice(self, field: str, choices: Sequence[str]) -> None:
        """Check that the value of a setting is one of a few words."""
        is_known = getattr(self, field) in choices
        self.require(field, is_known, expected=f"one of {', '.join(choices)}")

    def require_languages(self, field: str) -> None:
        """Check that the value of a setting names languages by their canonical codes."""
        codes = tuple(getattr(self, field))
        expected = canonical_codes(codes, f"{self.name}: {field}")
        self.require(field, codes == expected, expected=f"the codes {', '.join(expected)}")

    def require_share(self, field: str) -> None:
        """Check that the value of a setting is a number from 0 to 1."""
        is_share = 0 <= getattr(self, field) <= 1
        self.require(field, is_share, expected="a number from 0 to 1")

    def require_ratio(self, field: str) -> None:
        """Check that the value of a setting is a finite number, 1 or more."""
        value = getattr(self, field)
        is_ratio = math.isfinite(value) and value >= 1
        self.require(field, is_ratio, expected="a number, 1 or more")

    def require_range(self, low_field: str, high_field: str) -> None:
        """Check the limits of a range; None for no upper limit."""
        low, high = getattr(self, low_field), getattr(self, high_field)
        self.require(low_field, low >= 0, expected="0 or more")
        is_above = high is None or high >= low
        self.require(high_field, is_above, expected=f"{low_field} ({low}) or more")


class Transform(Step):
    """A step that changes sentences."""

    @abc.abstractmethod
    def apply(self, sentences: Sequence[str], language: str) -> list[str]:
        """Return the changed sentences, as many and in the same order.

        Args:
            sentences: sentences of one language.
            language: code of the language.
        """


class PairRule(Step):
    """A step that drops pairs."""

    @abc.abstractmethod
    def keeps(self, batch: PairBatch) -> np.ndarray:
        """Return which pairs are kept, bool `[n]`."""


class SideRule(PairRule):
    """A rule that drops a pair if either of its sentences fails."""

    def keeps(self, batch: PairBatch) -> np.ndarray:
        """Return which pairs are kept, bool `[n]`."""
        first, second = batch.sides
        return self.accepts_side(first) & self.accepts_side(second)

    @abc.abstractmethod
    def accepts_side(self, side: Side) -> np.ndarray:
        """Return which sentences pass, bool `[n]`."""


class KeyRule(Step):
    """A deduplication step.

    A pair is dropped if an earlier pair of the same direction has the same key in the same column.
    Earlier pairs are those that reach this step, in the order of the corpus.
    """

    @abc.abstractmethod
    def keys(self, batch: PairBatch) -> np.ndarray:
        """Return the keys of each pair, uint64 `[n, k]`."""


class PieceRule(Step):
    """A rule on the numbers of pieces, applied after encoding."""

    @abc.abstractmethod
    def keeps(self, lengths: np.ndarray) -> np.ndarray:
        """Return which pairs are kept, bool `[n]`.

        Args:
            lengths: numbers of pieces of source and target, without tags and end of sentence,
                int `[n, 2]`.
        """


def import_package(package: str, step: str) -> Any:
    """Import a package of the extra `prepare`.

    Raises:
        UserError: if it is not installed; names the step that needs it.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UserError(f"{step} needs {package}; {install_remedy('prepare')}") from error
