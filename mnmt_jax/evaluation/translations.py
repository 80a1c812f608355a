"""Translation store on disk, one file per direction, for resumable evaluations.

OUTPUT/translations/made_by.json    provenance of the translations
OUTPUT/translations/de-fr.jsonl     {"source": ..., "hypothesis": ..., "reference": ...}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnmt_jax.decoding.search_settings import changed_settings
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.benchmark import TestSet
from mnmt_jax.files.atomic_write import check_replaced, locked, write_text
from mnmt_jax.files.json_objects import is_object_with, parse_json
from mnmt_jax.vocabulary.language_codes import Direction

DOCUMENTS, HYPOTHESES = "documents", "hypotheses"
BY_DIRECTION = (DOCUMENTS, HYPOTHESES)
"""Keys of a provenance whose values have an item for each direction, such as `de-fr`."""
TRANSLATIONS = "translations"
"""Folder of the translations, in that of an evaluation."""
PROVENANCE_FILE = "made_by.json"
"""File of the provenance, in the folder of the translations."""


@dataclass(frozen=True)
class TranslatedSentence:
    """One translation.

    Attributes:
        text: the hypothesis.
        truncated: whether the source was too long and was cut at the end.
        pivot: intermediate text if translated through a pivot language, else None.
        unknown_characters: characters of the source that no piece of the vocabulary covers.
        without_context: as in `mnmt_jax.decoding.translation.Translation`.
    """

    text: str
    truncated: bool = False
    pivot: str | None = None
    unknown_characters: str = ""
    without_context: bool = False


@dataclass(frozen=True)
class StoredTexts:
    """Texts of a direction's file, line by line.

    Attributes:
        sources: source sentences.
        hypotheses: translations.
        references: reference translations.
    """

    sources: tuple[str, ...]
    hypotheses: tuple[str, ...]
    references: tuple[str, ...]


TranslateFn = Callable[[Sequence[str], Direction], Sequence[TranslatedSentence]]
"""Function that translates the sentences of one direction, in order."""


def check_translations(folder: Path) -> None:
    """Check that a folder for translations holds no files other than those of an evaluation.

    Raises:
        UserError: if it holds other `.jsonl` files or another `made_by.json`.
    """
    provenance_file = folder / PROVENANCE_FILE
    check_replaced(provenance_file, _is_provenance)
    if not provenance_file.is_file() and (files := sorted(folder.glob("*.jsonl"))):
        raise UserError(
            f"{files[0]}: already exists and was not written by mnmt-jax; move it, or choose "
            "another --output"
        )


def changed_provenance(folder: Path, provenance: Mapping[str, Any]) -> list[str]:
    """Return the keys in which the provenance of a folder's translations differs.

    Args:
        folder: folder that passed `check_translations`.
        provenance: the expected provenance, as in `TranslationStore`.

    Returns:
        The differing keys; empty if there are no translations.
    """
    if not has_translations(folder):
        return []
    stored = parse_json((folder / PROVENANCE_FILE).read_bytes(), finite=False)
    return _differences(stored, provenance)


def has_translations(folder: Path) -> bool:
    """Return whether a folder that passed `check_translations` has translations of known origin."""
    file = folder / PROVENANCE_FILE
    return file.is_file() and file.stat().st_size > 0 and any(folder.glob("*.jsonl"))


def describe_changed_sentences(folder: Path, direction: Direction, texts: TestSet) -> str:
    """Describe how the sentences of a direction's file differ from a test set.

    Args:
        folder: folder of a `TranslationStore`.
        direction: source and target.
        texts: the test set.

    Returns:
        E.g. "sentences: 100 of de-fr, now 10"; "" if they are equal, or if the file is missing or
        damaged.
    """
    rows = _rows(_path(folder, direction))
    if rows is None or (stored_pairs := [pair for pair, _ in rows]) == _pairs(texts):
        return ""
    return f"sentences: {len(stored_pairs)} of {'-'.join(direction)}, now {len(texts.sources)}"


class TranslationStore:
    """Store of translations that translates each direction once.

    Args:
        folder: folder of the files.
        provenance: what the translations depend on besides their sources, i.e. parameters,
            vocabulary, instruction, search. Files of another provenance are removed. The values of
            `BY_DIRECTION` are compared for the directions that both name.

    Attributes:
        reused: directions whose files were complete.
        stale: whether the folder held translations of another provenance.
    """

    def __init__(self, folder: Path, provenance: Mapping[str, Any]) -> None:
        self.reused: list[Direction] = []
        self._folder, self._provenance = folder, provenance
        provenance_file = folder / PROVENANCE_FILE
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):  # the first of several processes removes stale files
            is_same = _has_provenance(folder, provenance)
            self.stale = provenance_file.is_file() and not is_same
            if not is_same:
                for stale_file in folder.glob("*.jsonl"):
                    stale_file.unlink()
            stored = _read_provenance(folder) if is_same else None
            text = _provenance_text(_with_directions_of(stored or {}, provenance))
            if not is_same or text != provenance_file.read_text(encoding="utf-8"):
                write_text(provenance_file, text)

    def holds(self, direction: Direction, texts: TestSet) -> bool:
        """Return whether a direction has a complete file of these sentences."""
        return _read_outputs(self._folder, direction, texts) is not None

    def translate(self, direction: Direction, texts: TestSet, translate: TranslateFn) -> bool:
        """Translate a direction and write its file, unless that is complete.

        Args:
            direction: source and target.
            texts: the test set; a file of other sentences is not used.
            translate: function that translates the sources if there is no complete file.

        Returns:
            Whether the direction was translated now.

        Raises:
            UserError: if `translate` does not return one translation per sentence, or if another
                command with another provenance has taken over the folder meanwhile.
        """
        if self.holds(direction, texts):
            self.reused.append(direction)
            return False
        outputs = list(translate(texts.sources, direction))
        if len(outputs) != len(texts.sources):
            raise UserError(
                f"{'-'.join(direction)}: {len(outputs)} translations of {len(texts.sources)} "
                "sentences; each needs one"
            )
        rows = zip(texts.sources, outputs, texts.references, strict=True)
        text = "".join(_line(*row) for row in rows)
        with locked(self._folder):
            _check_provenance(self._folder, self._provenance)
            write_text(_path(self._folder, direction), text)
        return True


def read_translations(
    folder: Path, provenance: Mapping[str, Any], direction: Direction, texts: TestSet
) -> list[TranslatedSentence]:
    """Read the translations of a direction and check their provenance.

    Args:
        folder: folder of a `TranslationStore`.
        provenance: the expected provenance, as in `TranslationStore`.
        direction: source and target.
        texts: the test set.

    Raises:
        UserError: if the folder holds translations of another provenance, or if the file is
            missing, damaged or of other sentences.
    """
    outputs = None
    if folder.is_dir():
        with locked(folder):  # no other command replaces the files between check and reading
            _check_provenance(folder, provenance)
            outputs = _read_outputs(folder, direction, texts)
    if outputs is None:
        raise UserError(
            f"{_path(folder, direction)}: is missing, damaged or of other sentences; run "
            "'mnmt evaluate' again"
        )
    return outputs


def read_stored_texts(folder: Path, direction: Direction) -> StoredTexts:
    """Read the texts of a direction, whatever model translated them.

    Args:
        folder: folder of a `TranslationStore`.
        direction: source and target.

    Raises:
        UserError: if the file is missing or damaged.
    """
    rows = _read_rows(_path(folder, direction))
    return StoredTexts(
        tuple(source for (source, _), _ in rows),
        tuple(output.text for _, output in rows),
        tuple(reference for (_, reference), _ in rows),
    )


def _read_outputs(
    folder: Path, direction: Direction, texts: TestSet
) -> list[TranslatedSentence] | None:
    """Read the translations of a direction; None if missing, damaged or of other sentences.

    Args:
        folder: folder of a `TranslationStore`.
        direction: source and target.
        texts: the test set.
    """
    rows = _rows(_path(folder, direction))
    if rows is None or [pair for pair, _ in rows] != _pairs(texts):
        return None
    return [output for _, output in rows]


def _path(folder: Path, direction: Direction) -> Path:
    return folder / f"{'-'.join(direction)}.jsonl"


def _provenance_text(provenance: Mapping[str, Any]) -> str:
    """Return the text of `made_by.json`; compared as JSON, where tuples are lists."""
    return json.dumps(provenance, indent=1, sort_keys=True) + "\n"


def _read_provenance(folder: Path) -> dict[str, Any] | None:
    """Read `made_by.json`; None if it is missing or damaged."""
    path = folder / PROVENANCE_FILE
    try:
        value = parse_json(path.read_bytes(), finite=False) if path.is_file() else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _differences(stored: Mapping[str, Any], provenance: Mapping[str, Any]) -> list[str]:
    """Return the keys that differ; of values by direction those of common ones are compared."""
    return changed_settings(
        _with_directions_of(provenance, stored), _with_directions_of(stored, provenance)
    )


def _with_directions_of(
    stored: Mapping[str, Any], provenance: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return a provenance with the values of further directions of the stored one."""
    merged = {
        key: {**stored[key], **provenance[key]}
        for key in BY_DIRECTION
        if isinstance(stored.get(key), Mapping) and isinstance(provenance.get(key), Mapping)
    }
    return {**provenance, **merged}


def _has_provenance(folder: Path, provenance: Mapping[str, Any]) -> bool:
    """Return whether `made_by.json` has this provenance."""
    stored = _read_provenance(folder)
    return stored is not None and not _differences(stored, provenance)


def _check_provenance(folder: Path, provenance: Mapping[str, Any]) -> None:
    """Check that the translations of a folder are still those of this command.

    Raises:
        UserError: if another command has replaced them.
    """
    if not _has_provenance(folder, provenance):
        raise UserError(
            f"{folder}: another command with other settings has replaced the translations; give "
            "each command its own --output, and the processes of one command the same flags"
        )


def _is_provenance(text: str) -> bool:
    return is_object_with(text, "name", "model")


def _line(source: str, output: TranslatedSentence, reference: str) -> str:
    row: dict[str, Any] = {"source": source, "hypothesis": output.text, "reference": reference}
    if output.pivot is not None:
        row["pivot"] = output.pivot
    if output.truncated:
        row["truncated"] = True
    if output.unknown_characters:
        row["unknown_characters"] = output.unknown_characters
    if output.without_context:
        row["without_context"] = True
    return json.dumps(row, ensure_ascii=False) + "\n"


def _pairs(texts: TestSet) -> list[tuple[str, str]]:
    return list(zip(texts.sources, texts.references, strict=True))


def _rows(path: Path) -> list[tuple[tuple[str, str], TranslatedSentence]] | None:
    """Return the sentence pairs of a file with their translations; None if missing or damaged."""
    try:
        return _read_rows(path)
    except (OSError, UserError):
        return None


def _read_rows(path: Path) -> list[tuple[tuple[str, str], TranslatedSentence]]:
    """Return the sentence pairs of a file with their translations.

    Raises:
        UserError: if the file is missing, or a line is not of an evaluation.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; run 'mnmt evaluate' again")
    rows = []
    # Not splitlines(): JSON strings may contain line separators such as U+2028 unescaped.
    for number, line in enumerate(path.read_bytes().rstrip(b"\n").split(b"\n"), start=1):
        try:
            rows.append(_row(parse_json(line)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{path}:{number}: not of 'mnmt evaluate'; run 'mnmt evaluate' again"
            ) from error
    return rows


def _row(row: Mapping[str, Any]) -> tuple[tuple[str, str], TranslatedSentence]:
    source, hypothesis, reference = row["source"], row["hypothesis"], row["reference"]
    if not all(isinstance(text, str) for text in (source, hypothesis, reference)):
        raise TypeError("texts must be strings")
    output = TranslatedSentence(
        hypothesis,
        row.get("truncated", False),
        row.get("pivot"),
        row.get("unknown_characters", ""),
        row.get("without_context", False),
    )
    return (source, reference), output
