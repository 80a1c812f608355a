"""Parallel corpus of LibreOffice's help pages.

| file | lines |
|---|---|
| `train.en-de.en`, `train.en-de.de`, ... | English with each language |
| `train_disjoint.en-de.en`, ... | the same, from pages that are used for no other pair |
| `validation.de`, `test.de`, `train.de`, ... | text in all languages; line i is line i in all |
| `validation.keys`, ... | origin of these lines: page, paragraph, number, separated by tabs |
| `train.en-de.keys`, ... | origin of the lines of a pair; pages are documents |

A page is in one split, by the digest of its name.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from mnmt_jax.data.libreoffice_pages import Segment, segments
from mnmt_jax.errors import UserError
from mnmt_jax.files.atomic_write import open_text
from mnmt_jax.files.path_checks import check_inside

HELP_FOLDERS: Mapping[str, str] = {
    "en": "en-US",
    "de": "de",
    "fr": "fr",
    "es": "es",
    "it": "it",
    "pt": "pt-BR",
    "cs": "cs",
}
"""Folder name of the pages of each language, under `HELP_PATH`."""

HELP_PATH = "usr/share/libreoffice/help"
"""Path of the pages in the packages."""

HELP_LANGUAGES = tuple(HELP_FOLDERS)


def help_package(code: str) -> str:
    """Return the name of the Debian package with a language's pages."""
    return f"libreoffice-help-{HELP_FOLDERS[code].lower()}"


def find_page_folder(code: str, trees: Sequence[Path]) -> Path | None:
    """Return the folder of a language's pages in the first unpacked tree that has it.

    Raises:
        UserError: if that folder is a link that leads out of its tree.
    """
    for tree in trees:
        for parent in (tree / HELP_PATH, tree, *sorted(tree.glob(f"*/{HELP_PATH}"))):
            pages = parent / HELP_FOLDERS[code] / "text"
            if pages.is_dir():
                check_inside(pages, tree)
                return pages
    return None


def write_help_corpus(pages: Mapping[str, Path], folder: Path) -> dict[str, int]:
    """Write the files of the corpus.

    Args:
        pages: folder of each language's pages; all of `HELP_LANGUAGES`.
        folder: existing output folder.

    Returns:
        Number of lines by file name.

    Raises:
        UserError: if a split has no sentence that all languages have.
    """
    counts: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        files: dict[str, IO[str]] = {}
        for segment in segments(pages):
            for name, line in _lines(segment):
                if name not in files:
                    files[name] = stack.enter_context(open_text(folder / name, name))
                files[name].write(f"{line}\n")
                counts[name] += 1
    if missing := [
        split for split in ("train", "validation", "test") if not counts[f"{split}.keys"]
    ]:
        raise UserError(
            f"{pages['en']}: no {missing[0]} sentence exists in all languages; use the pages of "
            "LibreOffice's offline help, of the same version in all languages"
        )
    return dict(sorted(counts.items()))


def _lines(segment: Segment) -> Iterator[tuple[str, str]]:
    """Yield (file name, line) for each line that a segment adds."""
    texts, split = segment.texts, segment.split
    if texts.keys() == set(HELP_LANGUAGES):
        yield f"{split}.keys", segment.location
        for code, text in texts.items():
            yield f"{split}.{code}", text
    if split != "train":
        return
    other_languages = HELP_LANGUAGES[1:]
    disjoint_code = other_languages[segment.page_number % len(other_languages)]
    for code in (code for code in other_languages if code in texts):
        for kind in ("train", "train_disjoint") if code == disjoint_code else ("train",):
            yield f"{kind}.en-{code}.keys", segment.location
            yield f"{kind}.en-{code}.en", texts["en"]
            yield f"{kind}.en-{code}.{code}", texts[code]
