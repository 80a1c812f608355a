"""Corpus flags: a built-in mixture or user files, their languages, splits and directions."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnmt_jax.commands import bridge_flags
from mnmt_jax.commands.common_flags import list_of, split_list
from mnmt_jax.commands.direction_flags import parse_directions
from mnmt_jax.data.split_aliases import guess_split_name
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.files.path_checks import check_name
from mnmt_jax.vocabulary.language_codes import canonical_codes

if TYPE_CHECKING:
    from mnmt_jax.data.parallel_corpora import Corpus
    from mnmt_jax.vocabulary.language_codes import Direction


FILE_FLAGS = ("languages", "splits", "on_bad_line", "document_ids")
"""Flags for reading user files; only commands that read documents have the last one."""

_SHAPES = "; or write english_centric, many_to_many, bridge"
_STANDARD_SPLITS = "train=train,validation=validation,test=test"


def add_corpus_flags(
    parser: argparse.ArgumentParser,
) -> argparse._MutuallyExclusiveGroup:
    """Add the flags for a corpus and its training directions.

    Returns:
        The mutually exclusive group; exactly one of its flags is required.
    """
    group = parser.add_argument_group("corpus")
    which = group.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--mixture", metavar="NAME", help="built-in or seqio mixture, e.g. cldr_quickstart"
    )
    add_corpus_file_flags(group, which)
    which.add_argument(
        "--text",
        metavar="PATTERN",
        help="monolingual files for language models, e.g. 'data/{split}.{language}', or a "
        "directory of files SPLIT.LANGUAGE; a pattern without '{split}', such as "
        "'news/news.*.{language}.shuffled.deduped.gz', names training text",
    )
    group.add_argument(
        "--monolingual",
        action="store_true",
        default=None,  # for `refuse_flags`
        help="use a parallel corpus as monolingual text, each sentence once: for language models, "
        "or for a vocabulary that counts each sentence once",
    )
    group.add_argument(
        "--name", metavar="NAME", help="corpus name, used in task names; default: corpus"
    )
    bridge_flags.add_direction_flags(group)
    return which


def add_corpus_file_flags(
    group: argparse._ArgumentGroup, exclusive_group: argparse._MutuallyExclusiveGroup
) -> None:
    """Add the flags for user files; `file_corpus` reads them.

    Args:
        group: group of the flags.
        exclusive_group: mutually exclusive group within it.
    """
    exclusive_group.add_argument(
        "--parallel",
        metavar="PATTERN",
        help="line-aligned text files, e.g. 'data/{split}.{language}', or a directory of files "
        "SPLIT.LANGUAGE; '{pair}' stands for a language pair; omit '{split}' if there is only one "
        "split; .gz files are found too; '#' names a column of JSON lines or Parquet, e.g. "
        "'data/{split}.jsonl#translation.{language}' or 'text.parquet#{language}'",
    )
    exclusive_group.add_argument(
        "--tsv",
        metavar="PATTERN",
        help="TSV files whose header row has language codes, e.g. 'data/{split}.tsv'",
    )
    exclusive_group.add_argument(
        "--bitext",
        nargs="+",
        action="extend",
        metavar="FILE",
        help="TMX, XLIFF (.xlf, .xliff) or PO files, e.g. memory.tmx, or 'data/{split}.tmx'",
    )
    group.add_argument(
        "--languages",
        metavar="LIST",
        help="language codes, e.g. en,de,fr; 'mnmt languages' lists the known ones",
    )
    group.add_argument(
        "--splits",
        metavar="LIST",
        help="split names in your file names, e.g. train=train,validation=val,test=test2016; "
        "default: train, validation, test",
    )
    group.add_argument(
        "--on_bad_line",
        choices=("error", "drop"),
        help="on a blank, overlong or undecodable line: stop, or drop and count it; default: error",
    )


def add_user_file_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for user files as a separate group."""
    files = parser.add_argument_group("files of your own")
    add_corpus_file_flags(files, files.add_mutually_exclusive_group())


def refuse_flags(arguments: argparse.Namespace, flags: Iterable[str], context: str) -> None:
    """Reject flags that would be ignored; their default must be None.

    Args:
        arguments: parsed arguments.
        flags: names of flags without dashes; those that the command does not have are ignored.
        context: description of what they do not apply to.

    Raises:
        UserError: if one of them was passed.
    """
    for flag in flags:
        if getattr(arguments, flag, None) is not None:
            raise UserError(f"--{flag} does not apply to {context}; leave it out")


def corpus_and_directions(
    arguments: argparse.Namespace, splits: Sequence[str] = ("train",)
) -> tuple[Corpus, tuple[Direction, ...]]:
    """Create the corpus and the directions that the flags name.

    Args:
        arguments: parsed arguments.
        splits: splits whose directions are the default; without "train" no other split is read, of
            these only those that `--splits` names, and files without {split} in their names are of
            the last one.

    Raises:
        UserError: if a flag is malformed or does not apply, or files or directions are missing.
    """
    from mnmt_jax.data.mixtures import get_mixture, mixture_corpus

    if not arguments.text:
        bridge_flags.check_direction_flags(arguments)
    if arguments.mixture:
        mixture = get_mixture(arguments.mixture)
        refuse_flags(arguments, ("name", *FILE_FLAGS), f"the built-in mixture '{mixture.name}'")
        corpus = mixture_corpus(mixture)
        default = mixture.directions if "train" in splits else _directions_in(corpus, splits)
        directions = _directions(arguments, corpus) or default
        return _by_language(arguments, corpus, directions)
    if arguments.text:
        refuse_flags(arguments, bridge_flags.DIRECTION_FLAGS, "text of single languages (--text)")
    name = "corpus" if arguments.name is None else check_name(arguments.name, "--name")
    if "train" in splits:
        corpus = file_corpus(arguments, name)
    else:
        only_splits = _named_of(arguments, splits)
        corpus = file_corpus(arguments, name, only_splits=only_splits)
    directions = _directions(arguments, corpus) or _directions_in(corpus, splits)
    if not directions:
        kind = "training" if "train" in splits else " or ".join(splits)
        raise UserError(f"corpus '{corpus.name}' has no {kind} files; check --splits")
    return _by_language(arguments, corpus, directions)


def _named_of(arguments: argparse.Namespace, splits: Sequence[str]) -> Sequence[str]:
    """Return those of some splits that `--splits` names; the last one for files without splits.

    Raises:
        UserError: if it names none of them.
    """
    if "{split}" not in _pattern(arguments):
        return splits[-1:]
    named = [split for split in splits if split in _splits(arguments.splits)]
    if not named:
        raise UserError(f"--splits={arguments.splits}: name {' or '.join(splits)} too")
    return named


def _directions_in(corpus: Corpus, splits: Iterable[str]) -> tuple[Direction, ...]:
    """Return the directions that have text in any of some splits."""
    directions = (pair for split in splits for pair in corpus.directions(split))
    return tuple(dict.fromkeys(directions))


def zero_shot_directions(arguments: argparse.Namespace) -> tuple[Direction, ...] | None:
    """Return the zero-shot directions of the flags' mixture.

    Returns:
        The directions; None means all others between the trained languages.

    Raises:
        UserError: if a language has no training text and no vocabulary is named that contains it.
    """
    from mnmt_jax.data.mixtures import get_mixture

    if not arguments.mixture or arguments.directions or arguments.monolingual:
        return None
    mixture = get_mixture(arguments.mixture)
    trained = set(itertools.chain.from_iterable(mixture.directions))
    untrained = set(itertools.chain.from_iterable(mixture.zero_shot or ())) - trained
    if untrained and not arguments.vocabulary:
        raise UserError(
            f"--mixture={mixture.name}: has no training text in {join_names(sorted(untrained))}; "
            "give a --vocabulary that covers these languages, such as that of the language models"
        )
    return mixture.zero_shot


def _by_language(
    arguments: argparse.Namespace, corpus: Corpus, directions: tuple[Direction, ...]
) -> tuple[Corpus, tuple[Direction, ...]]:
    """Return the corpus and directions, as monolingual text with `--monolingual`."""
    from mnmt_jax.data.mixtures import check_training_text
    from mnmt_jax.data.monolingual import MonolingualCorpus

    if not arguments.monolingual:
        return corpus, directions
    if arguments.text:
        raise UserError("--monolingual: --text is monolingual already; omit --monolingual")
    if languages := [source for source, target in directions if source == target]:
        raise UserError(
            f"--directions: '{languages[0]}-{languages[0]}' is not a translation direction; with "
            "--monolingual, name directions whose text to use, such as en-de, or name languages "
            "with --languages"
        )
    check_training_text(corpus, directions)
    corpus = MonolingualCorpus(corpus, directions)
    return corpus, corpus.directions("train")


def file_corpus(
    arguments: argparse.Namespace,
    name: str,
    *,
    only_splits: Collection[str] | None = None,
    region_fallback: bool = False,
) -> Corpus:
    """Create the corpus that `--parallel`, `--tsv`, `--bitext` or `--text` names.

    Args:
        arguments: parsed arguments.
        name: name of the corpus.
        only_splits: splits to look for; None means all.
        region_fallback: as in `open_files`.

    Raises:
        UserError: if a flag is malformed or files are missing.
    """
    from mnmt_jax.data.document_ids import DocumentIds
    from mnmt_jax.data.parallel_corpora import NoFilesError

    languages = list_of("--languages", arguments.languages)
    if not arguments.bitext:  # its tags may differ only in region
        canonical_codes(languages, "--languages")
    for flag in ("parallel", "text"):
        if getattr(arguments, flag, None) and not languages:
            raise UserError(f"--{flag} needs --languages, e.g. --languages en,de,fr")
    pattern, splits = _pattern(arguments), _wanted_splits(arguments, only_splits)
    try:
        corpus = open_files(
            arguments, name, languages, only_splits, region_fallback=region_fallback
        )
        if ids := getattr(arguments, "document_ids", None):
            if not (arguments.parallel or arguments.tsv):
                raise UserError("--document_ids is for --parallel and --tsv; leave it out")
            corpus.document_ids = DocumentIds.of_splits(ids, splits)
        _check_named_splits(arguments, corpus, splits)
        return _with_all_languages(corpus, join_names(arguments.bitext or [pattern]))
    except NoFilesError as error:
        split_words = {
            s: guess_split_name(pattern, languages, s) for s in splits if "{split}" in pattern
        }
        has_other_names = any(
            word not in ("", splits[split]) for split, word in split_words.items()
        )
        suggested = ",".join(
            f"{split}={word}" for split, word in split_words.items() if word and has_other_names
        )
        remedy = f"perhaps --splits {suggested}" if suggested else _suggested_pattern(arguments)
        raise UserError(f"{error}{f'; {remedy}' if remedy else ''}") from error


def open_files(
    arguments: argparse.Namespace,
    name: str,
    languages: Sequence[str],
    only_splits: Collection[str] | None = None,
    *,
    region_fallback: bool = False,
) -> Corpus:
    """Open the files that the flags name; a language may have no text in them.

    Args:
        arguments: parsed arguments; its languages are ignored.
        name: name of the corpus.
        languages: codes to read; empty for all of TSV files and `--bitext`.
        only_splits: splits to look for; None means all.
        region_fallback: whether `pt_BR` reads texts of `--bitext` with the tag `pt` if a file has
            none with `pt-BR`.

    Raises:
        UserError: if a flag is malformed or there are no files.
    """
    from mnmt_jax.data.monolingual import MonolingualFiles
    from mnmt_jax.data.parallel_corpora import ParallelFiles, TsvFile
    from mnmt_jax.data.text_reader import Cleaning
    from mnmt_jax.data.translation_file_corpus import BitextFiles

    pattern = _pattern(arguments)
    options: dict[str, Any] = {
        "splits": _wanted_splits(arguments, only_splits),
        "cleaning": Cleaning(on_bad_line=arguments.on_bad_line or "error"),
    }
    if arguments.bitext:
        options["region_fallback"] = region_fallback
        return BitextFiles(name, arguments.bitext, languages, **options)
    if getattr(arguments, "text", None):
        return MonolingualFiles(name, pattern, languages, **options)
    if arguments.tsv:
        return TsvFile(name, pattern, languages or None, **options)
    return ParallelFiles(name, pattern, languages, **options)


def _check_named_splits(
    arguments: argparse.Namespace, corpus: Corpus, splits: Mapping[str, str]
) -> None:
    """Check that each split that `--splits` names has files.

    Raises:
        NoFilesError: if one has none.
    """
    from mnmt_jax.data.parallel_corpora import NoFilesError

    if not arguments.splits:
        return
    present = corpus.splits()
    for split, word in splits.items():
        if split not in present:
            raise NoFilesError(
                f"--splits: {split}={word}: no files match {_pattern(arguments)} for languages "
                f"{' '.join(corpus.languages)}; add them, or leave the split out"
            )


def validation_hint(arguments: argparse.Namespace, corpus: Corpus) -> str:
    """Return a hint to the `--splits` for validation files with another split name.

    Returns:
        The hint; empty if there is validation text or no such file.
    """
    if arguments.mixture or corpus.directions("validation"):
        return ""
    pattern = _pattern(arguments)
    word = guess_split_name(pattern, corpus.languages, "validation") if "{split}" in pattern else ""
    splits, present = _wanted_splits(arguments, None) | {"validation": word}, corpus.splits()
    flag = ",".join(
        f"{split}={name}"
        for split, name in splits.items()
        if split == "validation" or split in present
    )
    return (
        f"no validation text is read; if your files call it '{word}', give --splits {flag}"
        if word
        else ""
    )


def _pattern(arguments: argparse.Namespace) -> str:
    """Return the pattern of the file flag that is set; the first one of `--bitext`."""
    if arguments.bitext:
        with_split = ["{split}" in pattern for pattern in arguments.bitext]
        if any(with_split) and not all(with_split):
            raise UserError("--bitext: {split} must be in all names or in none")
    text: str | None = getattr(arguments, "text", None)
    pattern: str = text or arguments.tsv or arguments.parallel or arguments.bitext[0]
    if not (text or arguments.parallel) or "{" in pattern:
        return pattern
    if not Path(pattern).is_dir():
        flag = "text" if text else "parallel"
        remedy = _suggested_pattern(arguments) or (
            "give one with files SPLIT.LANGUAGE, or a pattern such as 'data/{split}.{language}'"
        )
        raise UserError(f"--{flag}={pattern}: no such directory; {remedy}")
    return str(Path(pattern) / "{split}.{language}")


def _suggested_pattern(arguments: argparse.Namespace) -> str:
    """Return a suggestion for a path without languages; empty without one."""
    from mnmt_jax.commands.file_patterns import suggest_pattern

    text = getattr(arguments, "text", None)
    path = text or arguments.parallel
    if not path or "{" in path:
        return ""
    pattern = suggest_pattern(path, split_list(arguments.languages))
    if pattern == str(Path(path) / "{split}.{language}"):  # the one that a folder stands for
        return ""
    return f"did you mean --{'text' if text else 'parallel'} '{pattern}'?" if pattern else ""


def _wanted_splits(
    arguments: argparse.Namespace, only_splits: Collection[str] | None
) -> dict[str, str]:
    """Return the name in files of each requested split; a pattern without names has one split."""
    splits = _splits(arguments.splits)
    if missing := sorted(set(only_splits or ()) - splits.keys()):
        raise UserError(f"--splits={arguments.splits}: name {missing[0]} too")
    if "{split}" not in _pattern(arguments):
        refuse_flags(arguments, ["splits"], "files without {split} in their names")
        return dict.fromkeys(only_splits or ("train",), "")
    return splits if only_splits is None else {split: splits[split] for split in only_splits}


def _with_all_languages(corpus: Corpus, name: str) -> Corpus:
    """Return the corpus after checking that all requested languages have text in it.

    For monolingual text this is the training text, if there is any.

    Args:
        corpus: corpus of files.
        name: the user's name for the files.

    Raises:
        UserError: if a language has no text; if languages occur but never together, the error names
            a missing one.
    """
    splits = corpus.splits() if corpus.min_languages > 1 else corpus.splits()[:1]
    directions = (pair for split in splits for pair in corpus.directions(split))
    with_text = set(itertools.chain.from_iterable(directions))
    if without_text := [code for code in corpus.languages if code not in with_text]:
        present = corpus.present()
        missing = next((code for code in without_text if code not in present), without_text[0])
        candidates = sorted(corpus.languages, key=lambda code: code not in with_text)
        partner = next((code for code in candidates if code != missing), missing)
        files = [file for s in splits for file in corpus.missing_files(s, (partner, missing))]
        raise UserError(
            f"--languages: {name} has no text in '{missing}'"
            f"{f', no file {join_names(files)}' if files else ''}; add its files, or leave it out"
        )
    return corpus


def _directions(arguments: argparse.Namespace, corpus: Corpus) -> tuple[Direction, ...]:
    """Return the directions that the flags choose; empty without `--directions`."""
    from mnmt_jax.vocabulary.languages import english_centric_directions, many_to_many_directions

    text = arguments.directions
    if text is None:
        return ()
    if text == bridge_flags.BRIDGE:
        return bridge_flags.corpus_bridge_directions(arguments.bridge, corpus)
    if text in ("english_centric", "many_to_many"):
        make = english_centric_directions if text == "english_centric" else many_to_many_directions
        return make(corpus.languages)
    return parse_directions(text, corpus.languages, _SHAPES)


def _splits(text: str | None) -> dict[str, str]:
    splits: dict[str, str] = {}
    for item in list_of("--splits", _STANDARD_SPLITS if text is None else text):
        split, equals, word = item.partition("=")
        if not (split and equals and word):
            raise UserError(f"--splits: '{item}' must be SPLIT=WORD, e.g. validation=val")
        if split in splits:
            raise UserError(
                f"--splits: '{split}' is named twice, as '{splits[split]}' and '{word}'; keep one"
            )
        splits[split] = word
    return splits
