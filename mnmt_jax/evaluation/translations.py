"""Translations on disk, one file per direction, so that an evaluation can be continued.

OUTPUT/translations/made_by.json    what they were made with
OUTPUT/translations/de-fr.jsonl     {"source": ..., "hypothesis": ..., "reference": ...}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.benchmark import TestSet
from mnmt_jax.files.atomic_write import check_replaced, locked, write_text
from mnmt_jax.files.json_objects import differing_keys, parse_json
from mnmt_jax.vocabulary.languages import Direction

_STAMP = "made_by.json"


@dataclass(frozen=True)
class TranslatedSentence:
    """One translation.

    Attributes:
        text: the hypothesis.
        truncated: the source was too long and its end was not translated.
        pivot: what stood between, if it was translated through another language.
        unknown_characters: of the source, that no piece of the vocabulary covers.
    """

    text: str
    truncated: bool = False
    pivot: str | None = None
    unknown_characters: str = ""


TranslateFn = Callable[[Sequence[str], Direction], Sequence[TranslatedSentence]]
"""Translates the sentences of one direction, in order."""


def check_translations(folder: Path) -> None:
    """Check that a folder for translations holds none of somebody else's.

    Raises:
        UserError: if it does.
    """
    stamp = folder / _STAMP
    check_replaced(stamp, _is_stamp)
    if not stamp.is_file() and (found := sorted(folder.glob("*.jsonl"))):
        raise UserError(
            f"{found[0]}: is there already and is not of mnmt-jax; move it, or choose another "
            "--output"
        )


def changed_provenance(folder: Path, made_by: Mapping[str, Any]) -> list[str]:
    """Return which facts differ from those that a folder's translations were made by.

    Args:
        folder: that `check_translations` has passed.
        made_by: as for a `TranslationStore`.

    Returns:
        Their names; none if there are no translations.
    """
    stamp = folder / _STAMP
    if not stamp.is_file() or not stamp.stat().st_size or not any(folder.glob("*.jsonl")):
        return []
    return differing_keys(parse_json(stamp.read_bytes(), finite=False), made_by)


def describe_changed_sentences(folder: Path, direction: Direction, texts: TestSet) -> str:
    """Describe the sentences of a direction's file that are not those of a test set.

    Args:
        folder: of a `TranslationStore`.
        direction: source and target.
        texts: the test set's sentences.

    Returns:
        E.g. "sentences: 100 of de-fr, now 10"; "" if they are the same, or if there is no file or
        only a damaged one.
    """
    rows = _rows(_path(folder, direction))
    if rows is None or (kept := [pair for pair, _ in rows]) == _pairs(texts):
        return ""
    return f"sentences: {len(kept)} of {'-'.join(direction)}, now {len(texts.sources)}"


class TranslationStore:
    """Translates each direction once.

    Args:
        folder: where the files are.
        made_by: whatever the translations depend on besides their sources: parameters,
            vocabulary, instruction, search.
            Files that were made by something else are removed.

    Attributes:
        reused: directions whose files were found complete.
        stale: the folder holds translations made by something else.
    """

    def __init__(self, folder: Path, made_by: Mapping[str, Any]) -> None:
        self.reused: list[Direction] = []
        self._folder, self._stamp = folder, folder / _STAMP
        # Compared as JSON, which has no tuples.
        self._text = json.dumps(made_by, indent=1, sort_keys=True) + "\n"
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):  # of several processes the first removes what is stale
            self.stale = self._stamp.is_file() and not self._is_ours()
            if self.stale or not self._stamp.is_file():
                for old in folder.glob("*.jsonl"):
                    old.unlink()
                write_text(self._stamp, self._text)

    def _is_ours(self) -> bool:
        return self._stamp.read_text(encoding="utf-8") == self._text

    def missing(self, texts: Mapping[Direction, TestSet]) -> list[Direction]:
        """Return the directions whose files are not complete.

        Args:
            texts: the sentences of each.
        """
        return [each for each in texts if read_outputs(self._folder, each, texts[each]) is None]

    def outputs(
        self, direction: Direction, texts: TestSet, translate: TranslateFn
    ) -> list[TranslatedSentence]:
        """Return a direction's translations: from its file if that is complete, else new ones.

        Args:
            direction: source and target.
            texts: its sentences; a file of other sentences is not used.
            translate: makes what is missing.

        Raises:
            UserError: if `translate` does not return one translation per sentence, or another
                command has taken the folder meanwhile, for what something else makes.
        """
        found = read_outputs(self._folder, direction, texts)
        if found is not None:
            self.reused.append(direction)
            return found
        outputs = list(translate(texts.sources, direction))
        if len(outputs) != len(texts.sources):
            raise UserError(
                f"{'-'.join(direction)}: {len(outputs)} translations of {len(texts.sources)} "
                "sentences; each needs one"
            )
        rows = zip(texts.sources, outputs, texts.references, strict=True)
        text = "".join(_line(*row) for row in rows)
        with locked(self._folder):
            if not self._is_ours():
                raise UserError(
                    f"{self._folder}: another command with other settings has replaced what was "
                    "here; give each its own --output, and all of several processes the same flags"
                )
            write_text(_path(self._folder, direction), text)
        return outputs


def read_outputs(
    folder: Path, direction: Direction, texts: TestSet
) -> list[TranslatedSentence] | None:
    """Read the translations of a direction; None if they are missing, damaged or of others.

    Args:
        folder: of a `TranslationStore`.
        direction: source and target.
        texts: its sentences.
    """
    return _read(_path(folder, direction), texts)


def _path(folder: Path, direction: Direction) -> Path:
    return folder / f"{'-'.join(direction)}.jsonl"


def _is_stamp(text: str) -> bool:
    try:
        made_by = parse_json(text, finite=False)
    except ValueError:
        return False
    return isinstance(made_by, dict) and {"name", "model"} <= made_by.keys()


def _line(source: str, output: TranslatedSentence, reference: str) -> str:
    row: dict[str, Any] = {"source": source, "hypothesis": output.text, "reference": reference}
    if output.pivot is not None:
        row["pivot"] = output.pivot
    if output.truncated:
        row["truncated"] = True
    if output.unknown_characters:
        row["unknown_characters"] = output.unknown_characters
    return json.dumps(row, ensure_ascii=False) + "\n"


def _read(path: Path, texts: TestSet) -> list[TranslatedSentence] | None:
    """Read a file; None if it is missing, damaged or of other sentences."""
    rows = _rows(path)
    if rows is None or [pair for pair, _ in rows] != _pairs(texts):
        return None
    return [output for _, output in rows]


def _pairs(texts: TestSet) -> list[tuple[str, str]]:
    return list(zip(texts.sources, texts.references, strict=True))


def _rows(path: Path) -> list[tuple[tuple[str, str], TranslatedSentence]] | None:
    """Return the sentence pairs of a file with their translations; None if missing or damaged."""
    try:
        # Not splitlines(): JSON leaves line separators such as U+2028 in strings as they are.
        lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
        rows = [parse_json(line, finite=False) for line in lines]
        return [
            (
                (row["source"], row["reference"]),
                TranslatedSentence(
                    row["hypothesis"],
                    row.get("truncated", False),
                    row.get("pivot"),
                    row.get("unknown_characters", ""),
                ),
            )
            for row in rows
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
