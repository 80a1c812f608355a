"""Token caches made of translations: translate sentences resumably, then write the tasks."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from mnmt_jax.commands.beam_translation import BeamOutput
from mnmt_jax.commands.line_events import length_flags
from mnmt_jax.commands.resumable_output import ResumableOutput, TranslateFn
from mnmt_jax.config.sections import Decode
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.cache_writer import ReusedTask, TaskSource, has_prompts, write_cache
from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.distributed.processes import wait_for_all
from mnmt_jax.errors import UserError, join_names, pluralize, say, warn
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
    decodes: Collection[Decode],
    texts: Mapping[str, str] | None = None,
) -> TokenCache | None:
    """Translate the sentences that are not done, and write the cache.

    Args:
        output: path of the cache.
        pairs: the sentences.
        partial: translations that are kept beside the cache.
        translate: translates the lines of a window.
        tasks: returns the tasks of the cache from the translations; blank ones are left out.
        models: names of the runs that translate, for the error.
        decodes: search of each of the runs, named in messages.
        texts: further files of the cache's folder, as in `write_cache`.

    Returns:
        None if another process writes the cache.

    Raises:
        UserError: if all translations are blank.
    """
    counts = _Counts()
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
            tasks(_texts(partial.records(), counts)),
            vocabulary=pairs.cache.vocabulary,
            report=say,
            texts=texts,
        )
        partial.remove()
    counts.report(decodes)
    return cache


def report_context_tasks(cache: TokenCache, effect: str) -> None:
    """Print a line that names the training tasks with document context, if any.

    Their examples are chunks of sentences. A chunk that is translated as one line may get another
    number of sentences than its other side has.

    Args:
        cache: cache of the real pairs.
        effect: what is done with them, e.g. `not back-translated`.
    """
    names = [name for name in cache.tasks_with("train") if cache.tasks[name].context]
    if names:
        say(f"{effect}, because they have document context: {join_names(names)}")


def report_prompted_tasks(cache: TokenCache, effect: str) -> None:
    """Print a line that names the training tasks with prompts, if any.

    Their targets are those of the tasks without.

    Args:
        cache: cache of the real pairs.
        effect: what is done with them, e.g. `not back-translated`.
    """
    if names := [name for name in cache.tasks_with("train") if has_prompts(cache, name)]:
        say(f"{effect}, because tasks without prompts have their targets: {join_names(names)}")


@dataclasses.dataclass
class _Counts:
    """Numbers of sentences that need a remark.

    Attributes:
        truncated: longer than the largest bucket.
        blank: with a blank translation.
        limited: with a translation at the length limit.
    """

    truncated: int = 0
    blank: int = 0
    limited: int = 0

    def report(self, decodes: Collection[Decode]) -> None:
        """Print the numbers, with the settings that change them."""
        if self.truncated:
            largest = {max(decode.buckets) for decode in decodes}
            length = f"of more than {max(largest)} tokens with tags"
            if len(largest) > 1:
                length = "longer than the largest bucket of their model"
            say(
                f"skipped {pluralize(self.truncated, 'sentence')} {length}; add a larger bucket to "
                "--gin.Decode.buckets"
            )
        if self.blank:
            say(f"skipped {pluralize(self.blank, 'sentence')} with a blank translation")
        if self.limited:
            flagged = max(decodes, key=lambda decode: decode.max_length_per_source)
            warn(
                f"{pluralize(self.limited, 'translation')} reached the length limit and may lack "
                f"their end; raise {length_flags(flagged)}"
            )


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


def _texts(records: Iterator[Mapping[str, Any]], counts: _Counts) -> Iterator[str]:
    """Yield translations, blank for truncated sources, and count what needs a remark."""
    for record in records:
        translation = "" if record["truncated"] else record["translation"]
        if record["truncated"]:
            counts.truncated += 1
        elif not translation.strip():
            counts.blank += 1
        elif record["limited"]:
            counts.limited += 1
        yield translation
