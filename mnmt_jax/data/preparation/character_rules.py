"""Rules on the characters of a sentence: scripts, punctuation, readability, histograms."""

from __future__ import annotations

import dataclasses
import functools
import string
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Literal

import numpy as np
import regex

from mnmt_jax.data.preparation.characters import (
    LETTERS,
    character_table,
    characters_table,
)
from mnmt_jax.data.preparation.histograms import FREQUENCY_LIMIT, read_histogram
from mnmt_jax.data.preparation.steps import Side, SideRule
from mnmt_jax.data.published_corpora import data_folder
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.language_codes import parse_code

# Codes of ISO 15924 that are no scripts of Unicode -> the scripts that they consist of.
_SCRIPT_PARTS: Mapping[str, tuple[str, ...]] = {
    "Hans": ("Hani",),
    "Hant": ("Hani",),
    "Jpan": ("Hani", "Hira", "Kana"),
    "Kore": ("Hang", "Hani"),
    "Aran": ("Arab",),
}
_NO_SCRIPT = r"[\p{scx=Zyyy}\p{scx=Zinh}]"
_UNREADABLE = r"[\p{Co}\p{Cn}\p{Cs}\x00-\x08\x0A-\x1F\x7F-\x9F\uFFFD]"
_ASCII_AND_DASHES = string.punctuation + "—–"


@dataclasses.dataclass(frozen=True)
class Script(SideRule):
    """Letters of another script.

    Letters common to scripts, digits and punctuation do not count; a sentence without letters
    passes. The scripts of a language are that of its code (CLDR's likely subtags), Han and kana for
    Japanese, Hangul and Han for Korean.

    Attributes:
        min_share: minimum share of the letters that are in the scripts of the language.
        scripts: scripts of single languages as ISO 15924 codes, e.g. `{sr = ["Latn", "Cyrl"]}`.
    """

    name = "script"
    min_share: float = 0.5
    scripts: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the share and the scripts."""
        self.require_share("min_share")
        self.require_languages("scripts")
        for code, scripts in self.scripts.items():
            known = bool(scripts) and all(map(is_script, scripts))
            self.require("scripts", known, expected=f"codes of ISO 15924, e.g. {code} = ['Latn']")

    def check_languages(self, languages: Sequence[str]) -> None:
        """Check that the scripts of the languages are known."""
        for code in languages:
            self._scripts(code)

    def accepts_side(self, side: Side) -> np.ndarray:
        """Return which sentences pass, bool `[n]`."""
        is_letter, is_in_scripts = _script_tables(self._scripts(side.language))
        letters = side.code_points.count(is_letter)
        shares = side.code_points.count(is_in_scripts) / np.maximum(letters, 1)
        return (shares >= self.min_share) | (letters == 0)

    def _scripts(self, code: str) -> tuple[str, ...]:
        scripts = self.scripts.get(code) or (parse_code(code).written_script,)
        if not all(map(is_script, scripts)):
            raise UserError(
                f"script: the script of {code!r} is unknown; name it, e.g. "
                f'scripts = {{ {code} = ["Latn"] }}'
            )
        return tuple(scripts)


@dataclasses.dataclass(frozen=True)
class PunctuationOnly(SideRule):
    """No letter and no digit on one side."""

    name = "punctuation_only"

    def accepts_side(self, side: Side) -> np.ndarray:
        """Return which sentences pass, bool `[n]`."""
        return side.code_points.count(character_table(r"[\p{L}\p{N}]")) > 0


@dataclasses.dataclass(frozen=True)
class PunctuationShare(SideRule):
    """Mostly punctuation on one side.

    Source: `remove_too_much_punc.py` of M2M-100, and the data scripts of MITRE.

    Attributes:
        max_share: share of the characters from which on a sentence is dropped.
        characters: `ascii` counts ASCII punctuation and the dashes, as the published scripts do;
            `unicode` counts punctuation and symbols of any script.
    """

    name = "punctuation_share"
    max_share: float = 0.5
    characters: Literal["ascii", "unicode"] = "unicode"

    def __post_init__(self) -> None:
        """Check the settings."""
        self.require_share("max_share")
        self.require_choice("characters", ("ascii", "unicode"))

    def accepts_side(self, side: Side) -> np.ndarray:
        """Return which sentences pass, bool `[n]`; the empty sentence does not."""
        is_unicode = self.characters == "unicode"
        table = character_table(r"[\p{P}\p{S}]") if is_unicode else _ascii_and_dashes()
        lengths = side.code_points.lengths
        shares = side.code_points.count(table) / np.maximum(lengths, 1)
        return (shares < self.max_share) & (lengths > 0)


@dataclasses.dataclass(frozen=True)
class Unreadable(SideRule):
    """Characters without a meaning.

    These are the replacement character U+FFFD, control characters but the tab, private use,
    unassigned code points and surrogates. Joiners and direction marks are readable.

    Attributes:
        max_characters: maximum number of such characters in a sentence.
    """

    name = "unreadable"
    max_characters: int = 0

    def __post_init__(self) -> None:
        """Check the limit."""
        self.require("max_characters", self.max_characters >= 0, expected="0 or more")

    def accepts_side(self, side: Side) -> np.ndarray:
        """Return which sentences pass, bool `[n]`."""
        return side.code_points.count(character_table(_UNREADABLE)) <= self.max_characters


@dataclasses.dataclass(frozen=True)
class Histogram(SideRule):
    """Characters that are rare in the language.

    A sentence passes if more than `min_share` of its characters are frequent in its language. As in
    the published script, the line end counts as a character that is not.

    Source: `clean_histogram.py` of M2M-100.

    Attributes:
        folder: folder with a histogram per language (`mnmt_jax.data.preparation.histograms`), in
            the working directory or below `MNMT_JAX_DATA`.
        min_share: share of frequent characters that a sentence must exceed.
        frequency_limit: characters after this one in a histogram are rare.
    """

    name = "histogram"
    folder: str
    min_share: float = 0.5
    frequency_limit: str = FREQUENCY_LIMIT

    def __post_init__(self) -> None:
        """Check the settings."""
        self.require("folder", bool(self.folder), expected="a folder of histograms")
        self.require_share("min_share")
        is_character = len(self.frequency_limit) == 1
        self.require("frequency_limit", is_character, expected="one character")

    def check_languages(self, languages: Sequence[str]) -> None:
        """Check that the languages have histograms."""
        for code in languages:
            self._table(code)

    def dependencies(self, languages: Sequence[str]) -> dict[str, str]:
        """Return the digests of the histograms."""
        paths = [self._path(code) for code in languages]
        return {str(path): sha256(path.read_bytes()).hexdigest()[:16] for path in paths}

    def accepts_side(self, side: Side) -> np.ndarray:
        """Return which sentences pass, bool `[n]`."""
        lengths = side.code_points.lengths + 1
        return side.code_points.count(self._table(side.language)) / lengths > self.min_share

    def _table(self, code: str) -> np.ndarray:
        return _histogram_table(self._path(code), self.frequency_limit)

    def _path(self, code: str) -> Path:
        folder = Path(self.folder)
        return (folder if folder.is_dir() else data_folder() / folder) / code


@functools.cache
def _histogram_table(path: Path, frequency_limit: str) -> np.ndarray:
    return characters_table(read_histogram(path, frequency_limit))


@functools.cache
def _ascii_and_dashes() -> np.ndarray:
    return characters_table(_ASCII_AND_DASHES)


@functools.cache
def _script_tables(scripts: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return which characters are letters of any script and of these, both bool `[0x110000]`."""
    is_letter = character_table(LETTERS) & ~character_table(_NO_SCRIPT)
    return is_letter, is_letter & character_table(f"[{script_pattern(scripts)}]")


def script_pattern(scripts: Iterable[str]) -> str:
    """Return a regular expression of the characters of scripts, to be put in brackets.

    Args:
        scripts: ISO 15924 codes, also those of several scripts of Unicode such as Jpan.
    """
    parts = (part for script in scripts for part in _SCRIPT_PARTS.get(script, (script,)))
    return "".join(rf"\p{{scx={part}}}" for part in parts)


@functools.cache
def is_script(script: str) -> bool:
    """Return whether a script is known: an ISO 15924 code of a script or of several."""
    if script in _SCRIPT_PARTS:
        return True
    try:
        return bool(script) and script.isalpha() and bool(regex.compile(rf"\p{{scx={script}}}"))
    except regex.error:
        return False
