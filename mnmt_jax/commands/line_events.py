"""Events of translated lines, such as a truncated source, and the warnings about them."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mnmt_jax.commands.text_files import BadLines
from mnmt_jax.data.document_context import WITHOUT_CONTEXT
from mnmt_jax.data.text_reader import MAX_LINE_BYTES
from mnmt_jax.errors import join_names, pluralize, warn

if TYPE_CHECKING:
    from mnmt_jax.config.sections import Decode
    from mnmt_jax.decoding.translation_job import TranslationJob


@dataclasses.dataclass
class LineEvents:
    """Numbers of lines with special events, by kind of event.

    Attributes:
        truncated: source truncated to the largest bucket.
        limited: translation reached the length limit.
        alone: no other line to contrast with.
        unknown: characters that no piece of the vocabulary covers.
        retried: the first translation failed the checks, and a further search passed them.
        characters: counts of these characters.
        terms: not translated as the glossary demands.
        without_context: translated one by one, although the document has several lines.
    """

    truncated: list[int] = dataclasses.field(default_factory=list)
    limited: list[int] = dataclasses.field(default_factory=list)
    alone: list[int] = dataclasses.field(default_factory=list)
    unknown: list[int] = dataclasses.field(default_factory=list)
    retried: list[int] = dataclasses.field(default_factory=list)
    characters: Counter[str] = dataclasses.field(default_factory=Counter)
    terms: list[int] = dataclasses.field(default_factory=list)
    without_context: list[int] = dataclasses.field(default_factory=list)

    def add(self, record: Mapping[str, Any]) -> None:
        """Add the events of a record."""
        is_alone = bool(record["nbest"]) and "others" not in record
        unknown = record.get("unknown_characters", "")
        for numbers, mark in (
            (self.truncated, record["truncated"]),
            (self.limited, record["limited"]),
            (self.alone, is_alone),
            (self.unknown, unknown),
            (self.retried, "retried" in record),
            (self.without_context, "without_context" in record),
            (self.terms, record.keys() & {"missing_terms", "forbidden_terms"}),
        ):
            if mark:
                numbers.append(record["line"])
        self.characters.update(unknown)


def warn_bad_lines(bad_lines: BadLines) -> None:
    """Print warnings about lines that `read_lines` could not read."""
    for reason, what, remedy in (
        ("bad_utf8", "not UTF-8", "convert the input"),
        ("too_long", f"of more than {MAX_LINE_BYTES} bytes", "split them"),
    ):
        _warn_lines(bad_lines.get(reason, []), "line", f"{what}, treated as blank", remedy)


def report_events(
    bad_lines: BadLines, events: LineEvents, job: TranslationJob, flags: argparse.Namespace
) -> None:
    """Print warnings about bad, uncontrasted, truncated and limited lines."""
    decode, uncut = job.decode, "add a larger bucket to --gin.Decode.buckets"
    is_shared = flags.runner == "beam" or (flags.num_processes or 1) > 1
    if not (flags.split_sentences or is_shared) and flags.context is None:
        uncut = f"--split_sentences translates them whole, or {uncut}"
    warn_bad_lines(bad_lines)
    if job.contrasts_lines:
        _warn_lines(
            events.alone,
            "line",
            "without another line to contrast with, translated without source contrast",
            "translate more lines together",
        )
    _warn_lines(
        events.truncated,
        "line",
        f"of more than {max(decode.buckets)} tokens with tags truncated",
        uncut,
    )
    settings = _length_settings(decode).items()
    limit = ", ".join(f"Decode.{name}={value}" for name, value in settings)
    _warn_lines(
        events.limited,
        "translation",
        f"at the length limit ({limit}), possibly incomplete",
        f"raise {length_flags(decode)}",
    )
    if events.retried:
        count = pluralize(len(events.retried), "translation")
        print(f"{count} replaced by a further search (--retry_off_target)", file=sys.stderr)
    _warn_lines(events.without_context, "line", WITHOUT_CONTEXT, "--format=jsonl marks them")
    _warn_lines(
        events.terms,
        "line",
        "not translated as the glossary demands",
        "--format=jsonl names the terms",
    )
    _report_unknown(events, decode)


def length_flags(decode: Decode) -> str:
    """Return the flags that raise the length limit of translations."""
    return " and ".join(f"--gin.Decode.{name}" for name in _length_settings(decode))


def _length_settings(decode: Decode) -> dict[str, float]:
    """Return the settings that limit the length of translations, by name."""
    names = ["max_length"]
    if decode.max_length_per_source > 0:
        names.append("max_length_per_source")
    return {name: getattr(decode, name) for name in names}


def _report_unknown(events: LineEvents, decode: Decode) -> None:
    """Print a message about the characters that the vocabulary lacks, with the most frequent."""
    if not events.characters:
        return
    from mnmt_jax.vocabulary.unknown_characters import describe_unknown

    characters = describe_unknown(events.characters)
    if decode.copy_unknown:
        lines = pluralize(len(events.unknown), "line")
        print(
            f"copied into {lines} characters that are not in the vocabulary: {characters}",
            file=sys.stderr,
        )
        return
    _warn_lines(
        events.unknown,
        "line",
        f"with characters unknown to the vocabulary, encoded as <unk> or bytes ({characters})",
        "copy them into translations with --gin.Decode.copy_unknown=True",
    )


def _warn_lines(numbers: list[int], noun: str, event: str, remedy: str) -> None:
    """Print a warning about lines with an event, if any."""
    if numbers:
        shown = join_names([str(number) for number in numbers])
        warn(f"{pluralize(len(numbers), noun)} {event} (line {shown}); {remedy}")
