"""Tokenize a mixture or user files into the token cache that training reads."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import os
import sys
from typing import TYPE_CHECKING

from mnmt_jax.commands.bridge_flags import DIRECTION_FLAGS
from mnmt_jax.commands.common_flags import (
    CommandParser,
    add_module_import,
    import_modules,
    positive_int,
    seed_value,
)
from mnmt_jax.commands.context_flags import add_context, parse_contexts
from mnmt_jax.commands.corpus_flags import FILE_FLAGS, add_corpus_flags, refuse_flags
from mnmt_jax.commands.vocabulary import add_byte_fallback, training_options
from mnmt_jax.errors import UserError, join_names, say, warn
from mnmt_jax.files.bucket import is_bucket
from mnmt_jax.vocabulary.sentencepiece_options import SentencePieceOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mnmt_jax.data.cache import TokenCache
    from mnmt_jax.data.cache_writer import TaskSource
    from mnmt_jax.data.corpus import Share
    from mnmt_jax.vocabulary.language_codes import Direction
    from mnmt_jax.vocabulary.vocabulary import Vocabulary

_SHARE_FLAGS = ("share", "share_seed")
_CONTEXT_FLAGS = ("context", "separator")
_TRAINING_FLAGS = ("vocab_size", "byte_fallback")


def main() -> None:
    """Write the cache and print a summary as JSON on stdout."""
    arguments = make_parser().parse_args()

    from mnmt_jax.data.cache import TokenCache
    from mnmt_jax.data.cache_writer import check_cache_directory, reused_tasks, write_cache
    from mnmt_jax.data.mixtures import MIXTURES
    from mnmt_jax.data.parallel_prompts import write_prompted_cache

    builtin = arguments.mixture is None or arguments.mixture in MIXTURES
    if builtin and arguments.also and not arguments.vocabulary:
        folder = os.path.join(arguments.also[0], "vocabulary")
        remedy = f"e.g. --vocabulary {folder}"
        if is_bucket(folder):
            remedy = f"a copy of {folder}, which 'gcloud storage cp -r' makes"
        raise UserError(f"--also needs --vocabulary, the vocabulary of that cache, {remedy}")
    check_cache_directory(arguments.output, arguments.overwrite)
    other_caches = [TokenCache.open(folder) for folder in arguments.also]
    sources, vocabulary = (_corpus_sources if builtin else _seqio_sources)(arguments)
    auxiliary = _read_auxiliary(arguments.auxiliary, vocabulary.languages)
    write = functools.partial(write_prompted_cache, auxiliary=auxiliary)
    cache = (write if auxiliary else write_cache)(
        arguments.output,
        itertools.chain(*(reused_tasks(cache, vocabulary) for cache in other_caches), sources),
        vocabulary=vocabulary,
        overwrite=arguments.overwrite,
        report=lambda line: print(line, file=sys.stderr),
    )
    splits = {split: cache.tasks_with(split) for split in ("train", "validation")}
    summary = {
        "output": arguments.output,
        **({} if arguments.share is None else {"share": arguments.share}),
        "vocabulary_size": cache.vocabulary.size,
        "tasks": {split: len(tasks) for split, tasks in splits.items()},
        "examples": {
            split: sum(cache.split(task, split).examples for task in tasks)
            for split, tasks in splits.items()
        },
    }
    print(json.dumps(summary, indent=2))
    warn_without_validation(cache)


def warn_without_validation(cache: TokenCache) -> None:
    """Warn if training on a cache will not report a validation loss, of all tasks or of some."""
    from mnmt_jax.data.parallel_prompts import PREFIX

    validated = cache.tasks_with("validation")
    measured = (*validated, *(PREFIX + name for name in validated))
    unmeasured = sorted(set(cache.tasks_with("train")).difference(measured))
    if not validated:
        warn("no validation split: training will not report a validation loss")
    elif unmeasured:
        warn(f"no validation text: {join_names(unmeasured)}")


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(
        description=__doc__ + " Supervised directions get a training and a validation split; the "
        "corpus's other directions are zero-shot and get a validation split only. A mixture that "
        "is not built in is looked up in seqio, which the extra seqio installs."
    )
    add_corpus_flags(parser)
    parser.add_argument("--output", required=True, metavar="CACHE", help="token cache to write")
    parser.add_argument(
        "--vocabulary",
        metavar="DIR",
        help="vocabulary folder from 'mnmt vocabulary'; default: train one on the same text, or "
        "use that of the seqio mixture",
    )
    parser.add_argument(
        "--vocab_size",
        type=positive_int,
        metavar="N",
        help=f"pieces of a vocabulary trained here; default: {SentencePieceOptions.vocab_size}",
    )
    add_byte_fallback(parser)
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="CACHE",
        help="cache to copy tasks from; its vocabulary must be that of --vocabulary, or the one "
        "before languages were added to it; repeatable",
    )
    parser.add_argument(
        "--share",
        type=_fraction,
        metavar="S",
        help="random fraction of each direction's training pairs to keep, e.g. 0.1; larger "
        "fractions contain smaller ones; validation and vocabulary training use all text",
    )
    parser.add_argument(
        "--share_seed", type=seed_value, metavar="N", help="random seed of --share; default: 0"
    )
    parser.add_argument(
        "--auxiliary",
        action="append",
        default=[],
        metavar="LANGUAGE=LANGUAGE",
        help="a language and its auxiliary language for parallel multilingual prompting, e.g. "
        "cs=de: adds tasks prompted_TASK of the pairs with Czech text, whose sources are followed "
        "by the German translation that another task has; repeatable",
    )
    add_context(parser)
    add_module_import(parser, "module that registers seqio mixtures")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing cache")
    return parser


def _corpus_sources(arguments: argparse.Namespace) -> tuple[Iterator[TaskSource], Vocabulary]:
    """Return the tasks of a built-in mixture or of files, and their vocabulary."""
    from mnmt_jax.commands.corpus_flags import (
        corpus_and_directions,
        validation_hint,
        zero_shot_directions,
    )
    from mnmt_jax.data.document_corpus import ContextCorpus, check_documents, check_separator
    from mnmt_jax.data.mixtures import (
        cache_task_sources,
        check_training_text,
        language_lines,
        validate_lines,
    )
    from mnmt_jax.data.subsample import SubsampledCorpus
    from mnmt_jax.vocabulary.sentencepiece_training import train_sentencepiece
    from mnmt_jax.vocabulary.vocabulary import Vocabulary

    if arguments.module_import:
        raise UserError("--module_import is for seqio mixtures; leave it out")
    corpus, directions = corpus_and_directions(arguments)
    contexts = parse_contexts(arguments, corpus)
    share, zero_shot = _share(arguments, directions), zero_shot_directions(arguments)
    check_training_text(corpus, directions)
    if contexts:
        check_documents(corpus, directions)
    if hint := validation_hint(arguments, corpus):
        warn(hint)
    if arguments.vocabulary:
        refuse_flags(arguments, _TRAINING_FLAGS, "an existing vocabulary (--vocabulary)")
        vocabulary = Vocabulary.load(arguments.vocabulary)
    else:
        options = training_options(arguments, _TRAINING_FLAGS)
        options = dataclasses.replace(options, symbols=tuple(one.separator for one in contexts[:1]))
        if not arguments.mixture:
            validate_lines(corpus, directions)
        print(f"training a vocabulary of {options.vocab_size} pieces", file=sys.stderr)
        text = language_lines(corpus, directions)
        vocabulary = train_sentencepiece(text, None, options=options)  # saved with the cache
    if share is not None:
        corpus = SubsampledCorpus(corpus, share)
    sources = [cache_task_sources(corpus, directions, vocabulary, zero_shot=zero_shot)]
    for context in contexts:
        languages = dict.fromkeys(itertools.chain(*directions))
        check_separator(context, vocabulary, languages)
        chunks = ContextCorpus(corpus, context, vocabulary, report=say)
        sources.append(cache_task_sources(chunks, directions, vocabulary, zero_shot=()))
    return itertools.chain(*sources), vocabulary


def _fraction(text: str) -> float:
    """Parse the value of a flag as a number.

    Raises:
        argparse.ArgumentTypeError: if it is not a number.
    """
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be a number above 0 and at most 1, such as 0.1"
        ) from None


def _share(arguments: argparse.Namespace, directions: Iterable[Direction]) -> Share | None:
    """Return the share of pairs that the flags name; None means all pairs.

    Raises:
        UserError: if the flags are inconsistent, or the directions contain no pairs.
    """
    from mnmt_jax.data.corpus import Share

    if any(source == target for source, target in directions):
        refuse_flags(arguments, _SHARE_FLAGS, "text of single languages")
    if arguments.share is None:
        if arguments.share_seed is not None:
            raise UserError(
                f"--share_seed={arguments.share_seed} needs --share, such as --share=0.1"
            )
        return None
    return Share(arguments.share, arguments.share_seed or 0)


def _read_auxiliary(values: Iterable[str], languages: Sequence[str]) -> dict[str, str]:
    """Return the auxiliary language of each language that the flags name.

    Args:
        values: of `--auxiliary`.
        languages: codes of the vocabulary.

    Raises:
        UserError: if a value is not a pair of two of these languages, or a language has two.
    """
    from mnmt_jax.vocabulary.language_codes import match_code

    auxiliary: dict[str, str] = {}
    for value in values:
        flag, parts = f"--auxiliary={value}", value.split("=")
        if len(parts) != 2:
            raise UserError(f"{flag} must be a language and its auxiliary language, such as cs=de")
        language, other = (match_code(part, languages, flag, "the text") for part in parts)
        if language == other or language in auxiliary:
            raise UserError(f"{flag}: give each language one auxiliary language other than itself")
        auxiliary[language] = other
    return auxiliary


def _seqio_sources(arguments: argparse.Namespace) -> tuple[Iterator[TaskSource], Vocabulary]:
    """Return the tasks of a registered seqio mixture or task, and their vocabulary."""
    if not arguments.module_import:
        from mnmt_jax.data.mixtures import get_mixture

        get_mixture(arguments.mixture)  # raises an error that lists the built-in ones
    written_here = *_TRAINING_FLAGS, *_SHARE_FLAGS, *_CONTEXT_FLAGS
    fixed = ("name", "monolingual", *DIRECTION_FLAGS, *FILE_FLAGS, "vocabulary", *written_here)
    refuse_flags(arguments, fixed, "a seqio mixture, whose module sets it")
    import_modules([*arguments.module_import, "mnmt_jax.interop.seqio.tasks"])
    from mnmt_jax.interop.seqio import tasks as seqio_tasks

    vocabulary = seqio_tasks.registered_vocabulary(arguments.mixture).vocabulary
    return seqio_tasks.task_sources(arguments.mixture, ("train", "validation")), vocabulary
