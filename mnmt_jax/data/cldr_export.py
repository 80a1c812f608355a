"""Export of the embedded CLDR corpus as plain parallel files or TSV."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from babel import localedata

from mnmt_jax.data.cldr import CldrCorpus
from mnmt_jax.errors import UserError
from mnmt_jax.files.atomic_write import locked, new_file
from mnmt_jax.files.bucket import refuse_bucket

FORMATS: tuple[str, ...] = ("parallel", "tsv")
"""File formats: SPLIT.LANGUAGE, or SPLIT.tsv with a header of language codes."""


def export_cldr(
    corpus: CldrCorpus,
    directory: str,
    *,
    file_format: str,
    sizes: Mapping[str, int],
    overwrite: bool = False,
) -> dict[str, int]:
    """Write all splits of a corpus, multi-parallel: line i has the same meaning in all files.

    A file appears under its name only when it is complete.

    Args:
        corpus: corpus to write.
        directory: output directory; created if absent.
        file_format: "parallel" or "tsv".
        sizes: number of lines by split; a split of 0 lines is not written.
        overwrite: whether existing files may be replaced.

    Returns:
        Number of sentence lines by file name.

    Raises:
        UserError: if the format is unknown, a size is negative, a file exists already, one of a
            language that is not written would stay, or the directory is in a bucket.
    """
    refuse_bucket(directory)
    if file_format not in FORMATS:
        raise UserError(f"format {file_format!r}: must be one of {' '.join(FORMATS)}")
    names = {
        split: [f"{split}.tsv"]
        if file_format == "tsv"
        else [f"{split}.{code}" for code in corpus.languages]
        for split, size in sizes.items()
        if _checked_size(split, size)
    }
    os.makedirs(directory, exist_ok=True)
    with locked(Path(directory)):  # a second process waits, then fails
        if overwrite and file_format == "parallel":
            _refuse_unwritten(directory, names)
        for name in (name for split_names in names.values() for name in split_names):
            path = os.path.join(directory, name)
            if os.path.exists(path) and not overwrite:
                raise UserError(
                    f"{path}: already exists; choose another --output or pass --overwrite"
                )
        for split, split_names in names.items():
            paths = [os.path.join(directory, name) for name in split_names]
            _write_split(corpus, split, sizes[split], paths, is_table=file_format == "tsv")
    return {name: sizes[split] for split, split_names in names.items() for name in split_names}


def _refuse_unwritten(directory: str, names: Mapping[str, Sequence[str]]) -> None:
    """Check that no file of another language would stay beside new files of its split.

    Raises:
        UserError: if one would: its lines would not have the meanings of the others.
    """
    for path in sorted(Path(directory).iterdir()):
        written = names.get(path.stem, ())
        if written and path.name not in written and localedata.exists(path.suffix[1:]):
            raise UserError(
                f"{path}: is not written now, and its lines would differ from those of "
                f"{written[0]}; remove it, or name '{path.suffix[1:]}' in --languages"
            )


def _checked_size(split: str, size: int) -> int:
    """Return the size of a split.

    Raises:
        UserError: if it is negative.
    """
    if size < 0:
        raise UserError(f"--{split} {size}: must be 0 or more")
    return size


def _write_split(
    corpus: CldrCorpus, split: str, size: int, paths: list[str], *, is_table: bool
) -> None:
    """Write one split; its files get their names when all are complete."""
    with ExitStack() as stack:
        files = [stack.enter_context(new_file(Path(path))) for path in paths]
        if is_table:
            files[0].write("\t".join(corpus.languages) + "\n")
        for sentence in corpus.iter_sentences(split, size):
            texts = list(sentence.values())
            if is_table:
                texts = ["\t".join(texts)]
            for file, text in zip(files, texts, strict=True):
                file.write(text + "\n")
