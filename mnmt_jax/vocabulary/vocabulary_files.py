"""Vocabulary folder: a SentencePiece model, lists, and metadata for verification."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mnmt_jax.errors import UserError
from mnmt_jax.files.atomic_write import check_output, partial_path
from mnmt_jax.files.bucket import COPY_FIRST, refuse_bucket
from mnmt_jax.files.json_objects import parse_json, read_object
from mnmt_jax.vocabulary.added_languages import AddedLanguage
from mnmt_jax.vocabulary.language_specific_pieces import LanguagePiece
from mnmt_jax.vocabulary.normalization import NONE

FORMAT_VERSION = 1
MODEL_FILE, LANGUAGES_FILE, FACTS_FILE = "spm.model", "languages.txt", "vocabulary.json"
_PIECES_FILE, _COPIES_FILE = "pieces.json", "copies.json"
_ADDITIONS_FILE, _ADDED_MODEL = "additions.json", "spm_added_{}.model"
_COPY = "copy the whole folder again"


class VocabularyData(NamedTuple):
    """Stored data of a vocabulary; see the attributes of `Vocabulary`."""

    model: bytes
    languages: tuple[str, ...]
    pieces: tuple[str, ...] | None
    copies: tuple[LanguagePiece, ...]
    additions: tuple[AddedLanguage, ...]
    normalization: str


def compute_fingerprint(data: VocabularyData) -> str:
    """Return the hex SHA-256 of a vocabulary's data; caches and runs store it."""
    digest = hashlib.sha256(data.model)
    digest.update(("\n" + "\n".join(data.languages)).encode())
    if data.pieces is not None:
        digest.update(json.dumps(data.pieces).encode())
    if data.copies:
        digest.update(json.dumps({"copies": data.copies}).encode())
    for language, model in data.additions:
        record = {"language": language, "model": hashlib.sha256(model).hexdigest()}
        digest.update(json.dumps(record).encode())
    if data.normalization != NONE:
        digest.update(json.dumps({"normalization": data.normalization}).encode())
    return digest.hexdigest()


def check_vocabulary_folder(
    directory: str | Path, *, overwrite: bool, fingerprint: str | None = None
) -> None:
    """Refuse an output folder that holds other files or another vocabulary.

    Args:
        directory: folder for `write_vocabulary_files`.
        overwrite: whether an existing vocabulary may be replaced.
        fingerprint: fingerprint of the new vocabulary, which may replace an equal one; None if it
            is not known yet.

    Raises:
        UserError: if the folder is refused.
    """
    path = Path(directory) / FACTS_FILE
    if not path.is_file():
        check_output(Path(directory))
    elif path.stat().st_size and not overwrite:
        remedy = "replace the vocabulary with --overwrite"
        if read_object(path, "fingerprint", remedy=remedy)["fingerprint"] != fingerprint:
            raise UserError(
                f"--output={directory}: holds a vocabulary; choose another folder, or replace it "
                "with --overwrite"
            )


def write_vocabulary_files(directory: Path, data: VocabularyData, facts: Mapping[str, Any]) -> None:
    """Write a vocabulary, and remove files of an earlier one that are not part of it.

    An earlier vocabulary is replaced once all files of the new one are written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    contents = _contents(data, facts)
    partials = {name: partial_path(directory / name) for name in contents}
    try:
        for name, content in contents.items():
            partials[name].write_bytes(content)
        for name, partial in partials.items():
            partial.replace(directory / name)
    finally:
        for partial in partials.values():
            partial.unlink(missing_ok=True)
    optional = (directory / name for name in (_PIECES_FILE, _COPIES_FILE, _ADDITIONS_FILE))
    for path in (*optional, *directory.glob(_ADDED_MODEL.format("*"))):
        if path.name not in contents:
            path.unlink(missing_ok=True)


def _contents(data: VocabularyData, facts: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files of a vocabulary by name, last the metadata, which verify the others."""
    texts = {LANGUAGES_FILE: "".join(f"{code}\n" for code in data.languages)}
    if data.pieces is not None:
        texts[_PIECES_FILE] = json.dumps(data.pieces, ensure_ascii=False, indent=0) + "\n"
    if data.copies:
        rows = ",\n".join(json.dumps(copy, ensure_ascii=False) for copy in data.copies)
        texts[_COPIES_FILE] = f"[\n{rows}\n]\n"
    if data.additions:
        texts[_ADDITIONS_FILE] = json.dumps([language for language, _ in data.additions]) + "\n"
    added = {_ADDED_MODEL.format(n): model for n, (_, model) in enumerate(data.additions, 1)}
    normalized = {} if data.normalization == NONE else {"normalization": data.normalization}
    facts = {"format": FORMAT_VERSION, **facts, **normalized}
    texts[FACTS_FILE] = json.dumps(facts, indent=1) + "\n"
    encoded = {name: text.encode() for name, text in texts.items()}
    return {MODEL_FILE: data.model, **added, **encoded}


def read_vocabulary_files(
    directory: str | Path, remedy: str = ""
) -> tuple[VocabularyData, dict[str, Any]]:
    """Read the files that `write_vocabulary_files` wrote.

    Args:
        directory: the folder.
        remedy: what to do if one is missing; empty is to make a vocabulary.

    Returns:
        The data, unchecked, and the metadata.

    Raises:
        UserError: if a file is missing or damaged, or the folder is in a bucket.
    """
    refuse_bucket(directory, COPY_FIRST)
    directory = Path(directory)
    for name in (MODEL_FILE, LANGUAGES_FILE, FACTS_FILE):
        if not (directory / name).is_file():
            new_one = "make a vocabulary with 'mnmt vocabulary'"
            hint = suggest_subfolder(directory) or remedy or new_one
            raise UserError(f"{directory / name}: no such file; {hint}")
    pieces: tuple[str, ...] | None = None
    copies: tuple[LanguagePiece, ...] = ()
    path = directory / FACTS_FILE
    try:
        facts = dict(parse_json(path.read_bytes()))
        (normalization,) = _texts([facts.get("normalization", NONE)])
        path = directory / LANGUAGES_FILE
        languages = tuple(path.read_text(encoding="utf-8").split())
        path = directory / _PIECES_FILE
        if path.is_file():
            pieces = _texts(parse_json(path.read_bytes()))
        path = directory / _COPIES_FILE
        if path.is_file():
            pairs = map(_texts, parse_json(path.read_bytes()))
            copies = tuple((piece, language) for piece, language in pairs)
        path = directory / _ADDITIONS_FILE
        added_languages = _texts(parse_json(path.read_bytes())) if path.is_file() else ()
    except (ValueError, TypeError) as error:
        raise UserError(f"{path}: is damaged ({error}); {_COPY}") from error
    additions = _read_additions(directory, added_languages)
    model = (directory / MODEL_FILE).read_bytes()
    return VocabularyData(model, languages, pieces, copies, additions, normalization), facts


def suggest_subfolder(directory: Path) -> str:
    """Return a suggestion of a run's or cache's own vocabulary; empty if it has none."""
    folder = directory / "vocabulary"
    return f"did you mean {folder}?" if (folder / FACTS_FILE).is_file() else ""


def mismatched_files_error(directory: Path) -> UserError:
    """Return the error of a folder whose files do not belong together."""
    return UserError(
        f"{directory / FACTS_FILE}: does not belong to the other files beside it, or one of them "
        f"is damaged; {_COPY}"
    )


def _texts(values: Iterable[str]) -> tuple[str, ...]:
    """Return strings as a tuple; raise `TypeError` if a value is not a string."""
    texts = tuple(values)
    "".join(texts)
    return texts


def _read_additions(directory: Path, languages: Sequence[str]) -> tuple[AddedLanguage, ...]:
    additions = []
    for number, language in enumerate(languages, 1):
        path = directory / _ADDED_MODEL.format(number)
        if not path.is_file():
            raise UserError(f"{path}: no such file; {_COPY}")
        additions.append(AddedLanguage(language, path.read_bytes()))
    return tuple(additions)
