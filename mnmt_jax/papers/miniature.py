"""Miniatures of published corpora: a few phrases in the file form of the corpus.

    python -m mnmt_jax.papers.miniature iwslt17 data/iwslt17

The text is phrases of the embedded CLDR corpus, so line i means the same in all languages. It
shows that a workflow runs; scores on it mean nothing.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path

from mnmt_jax.data.cldr import SPLITS
from mnmt_jax.data.corpus import Corpus, NoFilesError
from mnmt_jax.data.miniature_text import LINES, phrases
from mnmt_jax.data.parallel_corpora import PatternFiles
from mnmt_jax.data.published_corpora import PUBLISHED, PublishedCorpus
from mnmt_jax.files.atomic_write import write_text
from mnmt_jax.runtime.run_command import run_command
from mnmt_jax.vocabulary.languages import (
    TED19_LANGUAGES,
    TED20_LANGUAGES,
    TED30_LANGUAGES,
)

_TED_WORDS = {"zh": ("zh-cn",), "pt": ("pt", "pt-br")}


def write_miniature(row: PublishedCorpus, folder: Path) -> None:
    """Write the miniature of a corpus; files that are there are kept.

    Args:
        row: the corpus.
        folder: folder of its files, as unpacked.
    """
    if row.folder == "ted19" or row.name == "ted19":
        _write_talks(folder)
        return
    if row.name == "newscrawl":
        _write_news(row, folder)
        return
    try:
        corpus: Corpus | None = row.factory(folder, row.name)
    except NoFilesError as error:
        corpus = error.corpus
    if isinstance(corpus, PatternFiles):
        _write_pairs(row, corpus)
    if row.name == "nllb":
        flores = PUBLISHED["flores"]
        write_miniature(flores, folder.parent / (flores.folder or flores.name))


def _write_pairs(row: PublishedCorpus, corpus: PatternFiles) -> None:
    tested = row.tested_languages or row.languages
    held_out = [*row.supervised, *itertools.permutations(tested, 2)]
    last_line = max(map(corpus.last_line, corpus.expected_splits))  # splits may share a file
    for split in corpus.expected_splits:
        for direction in row.supervised if split == "train" else held_out:
            for code, path in zip(direction, corpus.expected_files(split, direction), strict=True):
                count = LINES if split == "train" else max(LINES, last_line)
                if not Path(path).exists():
                    _write(Path(path), phrases(code, split, count))


def _write_talks(folder: Path) -> None:
    codes = dict.fromkeys((*TED19_LANGUAGES, *TED20_LANGUAGES, *TED30_LANGUAGES))
    columns = [(code, word) for code in codes for word in _TED_WORDS.get(code, (code,))]
    for split, word in zip(SPLITS, ("train", "dev", "test"), strict=True):
        texts = [phrases(code, split, LINES) for code, _ in columns]
        rows = ["\t".join(("talk_name", *(name for _, name in columns)))]
        rows += ["\t".join(("talk", *cells)) for cells in zip(*texts, strict=True)]
        _write(folder / f"all_talks_{word}.tsv", rows)


def _write_news(row: PublishedCorpus, folder: Path) -> None:
    for code in row.languages:
        _write(folder / f"news.2020.{code}.shuffled.deduped", phrases(code, "train", LINES))


def _write(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(f"{line}\n" for line in lines))


def main() -> None:
    """Write the miniature that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", choices=tuple(PUBLISHED), help="name of the corpus")
    parser.add_argument("folder", type=Path, help="folder of its files")
    flags = parser.parse_args()
    write_miniature(PUBLISHED[flags.corpus], flags.folder)


if __name__ == "__main__":
    run_command(main)
