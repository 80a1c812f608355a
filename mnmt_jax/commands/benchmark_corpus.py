"""Corpus of a test set: a published or built-in corpus, a seqio mixture or user files."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

from mnmt_jax.commands.common_flags import import_modules, list_of
from mnmt_jax.commands.corpus_flags import FILE_FLAGS, file_corpus, open_files, refuse_flags
from mnmt_jax.errors import UserError
from mnmt_jax.files.path_checks import check_name
from mnmt_jax.vocabulary.language_codes import (
    canonical_code,
    canonical_codes,
    check_distinct_matches,
    find_code,
    parse_code,
)

if TYPE_CHECKING:
    from mnmt_jax.data.corpus import Corpus


def benchmark_corpus(
    flags: argparse.Namespace, splits: Collection[str] = ("test",)
) -> tuple[Corpus, tuple[str, ...]]:
    """Create the corpus of a test set, and return it with the languages to use.

    A regional code of `--languages` stands for the code without region if the text has only that:
    `pt_BR` for `pt`.

    Args:
        flags: parsed flags: `task`, `module_import` and the flags of `add_corpus_file_flags`.
        splits: splits that user files must have.

    Raises:
        UserError: if a flag is malformed or does not apply, or the corpus is unknown.
    """
    if flags.parallel or flags.tsv or flags.bitext:
        name = check_name(flags.task, "--task")
        flags = argparse.Namespace(**vars(flags))
        flags.languages = _languages_of_files(flags, name, splits)
        corpus = file_corpus(flags, name, only_splits=splits, region_fallback=True)
        return corpus, corpus.languages
    from mnmt_jax.evaluation.benchmark import find_corpus, is_built_in

    inapplicable = [flag for flag in FILE_FLAGS if flag != "languages"]
    if flags.module_import and not is_built_in(flags.task):
        refuse_flags(flags, inapplicable, "a seqio mixture, whose module decides it")
        import_modules(["mnmt_jax.interop.seqio.tasks"])
        from mnmt_jax.interop.seqio.tasks import RegisteredText

        corpus = RegisteredText(flags.task)
        available = corpus.languages
    else:
        corpus, available = find_corpus(flags.task)
        refuse_flags(flags, inapplicable, f"the built-in corpus '{flags.task}'")
    codes = list_of("--languages", flags.languages)
    languages = [find_code(code, available, "--languages") for code in codes]
    if None in languages:
        unknown = codes[languages.index(None)]
        raise UserError(f"--languages: {unknown} is not in {flags.task}: {' '.join(available)}")
    canonical_codes(codes, "--languages")
    check_distinct_matches(dict(zip(codes, languages, strict=True)), "--languages")
    return corpus, tuple(code for code in available if not languages or code in languages)


def _languages_of_files(
    flags: argparse.Namespace, name: str, splits: Collection[str]
) -> str | None:
    """Return `--languages` with codes without region where files have only those.

    A code keeps its region beside another region of its language, because both would have the same
    text. `BitextFiles` matches the tags of `--bitext` itself.

    Raises:
        UserError: if a code is malformed.
    """
    if flags.bitext or flags.languages is None:
        return flags.languages
    codes = list_of("--languages", flags.languages)
    canonical_codes(codes, "--languages")
    bases = {code: parse_code(code).without_region for code in codes}
    counts = Counter(bases.values())
    fallbacks = {
        code: base
        for code, base in bases.items()
        if counts[base] == 1 and base != canonical_code(code)
    }
    if not fallbacks:
        return flags.languages
    try:
        present = open_files(flags, name, [*codes, *fallbacks.values()], splits).present()
    except UserError:  # `file_corpus` reports it for the languages of the flag
        return flags.languages
    chosen = (
        code if canonical_code(code) in present or base not in present else base
        for code, base in ((code, fallbacks.get(code, code)) for code in codes)
    )
    return ",".join(chosen)
