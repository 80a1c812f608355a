"""Command-line flags that name a corpus and its directions: built in, or files of one's own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from mnmt_jax.errors import UserError

if TYPE_CHECKING:
    from mnmt_jax.data.corpora import Corpus
    from mnmt_jax.languages import Direction


def add_corpus_arguments(
    parser: argparse.ArgumentParser,
) -> argparse._MutuallyExclusiveGroup:
    """Adds the flags to a command; returns the group of which one is required."""
    group = parser.add_argument_group("corpus")
    which = group.add_mutually_exclusive_group(required=True)
    which.add_argument("--mixture", metavar="NAME", help="a mixture, e.g. cldr_quickstart")
    which.add_argument(
        "--parallel",
        metavar="PATTERN",
        help="parallel files, e.g. 'data/{split}.{language}' ('{pair}' too, for files per pair), "
        "or a directory of files SPLIT.LANGUAGE; .gz is found by itself",
    )
    which.add_argument(
        "--tsv",
        metavar="PATTERN",
        help="TSV files with language codes as header, 'data/{split}.tsv'",
    )
    group.add_argument("--name", default="corpus", help="name of your corpus, in task names")
    group.add_argument("--languages", metavar="LIST", help="codes of your corpus, e.g. en,de,fr")
    group.add_argument(
        "--directions",
        metavar="LIST",
        help="directions to train on: english_centric, many_to_many, or e.g. en-de,de-en "
        "(default: the mixture's, or all that your files have)",
    )
    group.add_argument(
        "--splits",
        metavar="LIST",
        default="train=train,validation=validation,test=test",
        help="your files' words for the splits, e.g. train=train,validation=val,test=test2016",
    )
    group.add_argument(
        "--on_bad_line",
        choices=("error", "drop"),
        default="error",
        help="stop at a blank, over-long or undecodable line, or drop and count it",
    )
    return which


def corpus_and_directions(
    arguments: argparse.Namespace,
) -> tuple[Corpus, tuple[Direction, ...]]:
    """Makes the corpus and the supervised directions that the flags name.

    Raises:
        UserError: if a flag is malformed, or files or directions are missing.
    """
    from mnmt_jax.data.mixtures import get_mixture, mixture_corpus

    if arguments.mixture:
        mixture = get_mixture(arguments.mixture)
        corpus = mixture_corpus(mixture)
        return corpus, _directions(arguments.directions, corpus) or mixture.directions
    corpus = _file_corpus(arguments)
    directions = _directions(arguments.directions, corpus) or corpus.directions("train")
    if not directions:
        raise UserError(f"corpus '{corpus.name}' has no training files; check --splits")
    return corpus, directions


def _file_corpus(arguments: argparse.Namespace) -> Corpus:
    from mnmt_jax.data.corpora import ParallelFiles, TsvFile
    from mnmt_jax.data.text_lines import Cleaning

    languages = split_list(arguments.languages)
    cleaning = Cleaning(on_bad_line=arguments.on_bad_line)
    splits = _splits(arguments.splits)
    if arguments.tsv:
        return TsvFile(
            arguments.name, arguments.tsv, languages or None, splits=splits, cleaning=cleaning
        )
    if not languages:
        raise UserError("--parallel needs --languages, e.g. --languages en,de,fr")
    pattern = arguments.parallel
    if Path(pattern).is_dir():
        pattern = str(Path(pattern) / "{split}.{language}")
    return ParallelFiles(arguments.name, pattern, languages, splits=splits, cleaning=cleaning)


def _directions(text: str | None, corpus: Corpus) -> tuple[Direction, ...]:
    from mnmt_jax.languages import english_centric, many_to_many

    if not text:
        return ()
    if text in ("english_centric", "many_to_many"):
        make = english_centric if text == "english_centric" else many_to_many
        return make(corpus.languages)
    directions = []
    for item in split_list(text):
        source, dash, target = item.partition("-")
        if not (source and dash and target):
            raise UserError(f"--directions: '{item}' must be SOURCE-TARGET, e.g. en-de")
        directions.append((source, target))
    return tuple(dict.fromkeys(directions))


def _splits(text: str) -> dict[str, str]:
    splits = {}
    for item in split_list(text):
        split, equals, word = item.partition("=")
        if not (split and equals and word):
            raise UserError(f"--splits: '{item}' must be SPLIT=WORD, e.g. validation=val")
        splits[split] = word
    return splits


def split_list(text: str | None) -> list[str]:
    """Returns the items of a list with commas; blanks and empty items vanish."""
    return [item.strip() for item in (text or "").split(",") if item.strip()]
