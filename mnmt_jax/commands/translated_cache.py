"""Token caches made of translations: translate sentences resumably, then write the tasks."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from mnmt_jax.commands.beam_translation import BeamOutput
from mnmt_jax.commands.resumable_output import ResumableOutput, TranslateFn
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.cache_writer import ReusedTask, TaskSource, write_cache
from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.distributed.processes import wait_for_all
from mnmt_jax.errors import UserError, pluralize, say
from mnmt_jax.runtime.first_results import note_first_results


class PairsToTranslate(Protocol):
    """Pairs of a cache of which one side is translated."""

    @property
    def cache(self) -> TokenCache:
        """Cache of the real pairs."""

    def __len__(self) -> int:
        """Return the number of sentences to translate."""

    def sentences(self) -> Iterator[tuple[str, str, str]]:
        """Yield (text, language, language to translate into)."""


def write_translated_cache(
    output: Path,
    pairs: PairsToTranslate,
    partial: ResumableOutput | BeamOutput,
    translate: TranslateFn,
    tasks: Callable[[Iterator[str]], Iterator[ReusedTask | TaskSource]],
    *,
    models: str,
    longest: int,
) -> TokenCache | None:
    """Translate the sentences that are not done, and write the cache.

    Args:
        output: path of the cache.
        pairs: the sentences.
        partial: translations that are kept beside the cache.
        translate: translates the lines of a window.
        tasks: returns the tasks of the cache from the translations; blank ones are left out.
        models: names of the runs that translate, for the error.
        longest: most tokens of a sentence that is not left out.

    Returns:
        None if another process writes the cache.

    Raises:
        UserError: if all translations are blank.
    """
    omitted: list[int] = []
    with partial:
        wait_for_all("opened")  # before the last process can write the cache
        _translate_all(pairs, partial, translate)
        if not partial.is_last():
            return None
        if not any(record["translation"].strip() for record in partial.records()):
            partial.remove()
            raise UserError(
                f"every translation is blank; train {models} for longer, or translate with another "
                "checkpoint"
            )
        cache = write_cache(
            output,
            tasks(_texts(partial.records(), omitted)),
            vocabulary=pairs.cache.vocabulary,
            report=say,
        )
        partial.remove()
    if omitted:
        say(
            f"skipped {pluralize(len(omitted), 'sentence')} that are blank or have more than "
            f"{longest} tokens; for long ones, add a larger bucket to --gin.Decode.buckets"
        )
    return cache


def _translate_all(
    pairs: PairsToTranslate, partial: ResumableOutput | BeamOutput, translate: TranslateFn
) -> None:
    with (
        tqdm(total=len(pairs), unit=" lines", file=sys.stderr, disable=None) as bar,
        note_first_results(functools.partial(tqdm.write, file=sys.stderr)) as note,
    ):

        def report(lines: int) -> None:
            bar.update(lines)
            note(lines)

        sentences = enumerate(pairs.sentences())
        lines = (Line(number, *sentence) for number, sentence in sentences)
        partial.finish(lines, translate, report)


def _texts(records: Iterator[Mapping[str, Any]], omitted: list[int]) -> Iterator[str]:
    """Yield translations, blank for truncated ones; numbers of blank lines go to `omitted`."""
    for record in records:
        translation = "" if record["truncated"] else record["translation"]
        if not translation.strip():
            omitted.append(record["line"])
        yield translation
