"""Translation and scoring of lines: text to fixed-shape batches, search, and back to text.

A line's bucket depends on its own length alone. The number of lines of that length decides how many
slots a batch has (`Decode.batch`, or 1, 4, 16 and so on if that holds all of them) and how many
lines are admitted at a time (`mnmt_jax.decoding.continuous_batching`). So a line is computed by the
same instructions whatever is translated beside it, and its translation is the same bit for bit;
with fewer slots, sums may be rounded in another order. Source contrast reads other lines too:
`with_contrast_sources` draws them before batches are formed.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from mnmt_jax.config.sections import Decode
from mnmt_jax.data.converter import segments_from_rows
from mnmt_jax.decoding.continuous_batching import (
    Admission,
    Finished,
    search_continuously,
    slots_per_admission,
)
from mnmt_jax.decoding.copy_unknown import reinsert_unknown
from mnmt_jax.decoding.encoded_lines import (
    EncodedLine,
    Line,
    encode_lines,
    make_batch,
    make_example,
)
from mnmt_jax.decoding.generate import initial_step_limit, length_limit, make_search
from mnmt_jax.decoding.inference_model import InferenceModel, model_inputs
from mnmt_jax.decoding.scoring import Score, score_batch
from mnmt_jax.decoding.search import Hypotheses
from mnmt_jax.decoding.search_limits import (
    check_beam_size,
    check_memory,
    memory_errors,
    with_memory_errors,
)
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.language_codes import find_code

_SCORED_LOGITS = 1 << 26  # logits that scoring may hold at one time, as a number of floats
_LINE_BREAKS = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One translation.

    Attributes:
        text: without line breaks.
        score: nats / length ** length_penalty, eos included; contrasted if the search was.
        tokens: generated ids with eos, without forced ones.
    """

    text: str
    score: float
    tokens: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Translation:
    """What became of one line.

    Attributes:
        hypotheses: best first; empty for a blank line.
        truncated: the line was longer than the largest bucket and its end was not translated.
        unknown_characters: of the line, that no piece of the vocabulary covers, each as often as
            it occurs; what the model read of them is `<unk>` or bytes.
        limited: the best hypothesis is as long as `Decode` allows; its end may be missing.
        pivot: what stood between, if the line was translated into another language first; then
            `truncated` and `limited` tell of both translations.
    """

    hypotheses: tuple[Hypothesis, ...] = ()
    truncated: bool = False
    limited: bool = False
    pivot: str | None = None
    unknown_characters: str = ""

    @property
    def text(self) -> str:
        """The best translation; empty for a blank line."""
        return self.hypotheses[0].text if self.hypotheses else ""

    @property
    def score(self) -> float | None:
        """The best translation's score; None for a blank line."""
        return self.hypotheses[0].score if self.hypotheses else None


def translate_lines(
    system: InferenceModel,
    lines: Sequence[Line],
    decode: Decode,
    done: Collection[int] = (),
    *,
    known: bool = True,
) -> Iterator[tuple[int, Translation]]:
    """Translates lines.

    Args:
        system: the model.
        lines: in any languages of its vocabulary, mixed at will.
        decode: how to search.
        done: numbers of lines to leave out.
        known: these have the texts that they were translated from; otherwise all lines count as
            those of a bucket.

    Yields:
        The index of each line and its translation as soon as its batch is done, blank lines first.

    Raises:
        UserError: if a language has no tag, `decode` cannot be followed, or the model's output is
            not finite.
    """
    longest = length_limit(decode, max(decode.buckets)) + system.instruction.target_extra
    check_decode(system, decode, {system.model.layout.generated: longest})
    check_beam_size(decode, system.vocabulary.size)
    wanted = [i for i, line in enumerate(lines) if line.number not in done]
    counted = range(len(lines)) if known and wanted else wanted
    readings = encode_lines(system, {i: lines[i] for i in counted}, decode)
    yield from ((i, _unread(readings[i])) for i in wanted if not readings[i].inputs)
    readings = {i: reading for i, reading in readings.items() if reading.inputs}
    plan = _Plan(system, lines, readings, decode)
    searched = plan.search(wanted, None if known else len(lines))
    for i, hypotheses in with_memory_errors(searched, decode):
        if not hypotheses:
            raise UserError(
                f"line {lines[i].number + 1}: the model's output is not a number; "
                "use another checkpoint"
            )
        reading = plan.readings[i]
        limited = len(hypotheses[0].tokens) > reading.limit
        if reading.copies:
            hypotheses = tuple(
                dataclasses.replace(
                    hypothesis, text=reinsert_unknown(hypothesis.text, reading.copies)
                )
                for hypothesis in hypotheses
            )
        cut = reading.truncated
        yield i, Translation(hypotheses, cut, limited, unknown_characters=reading.unknown)


def _unread(reading: EncodedLine) -> Translation:
    """Return what becomes of a line that the model reads nothing of: blank, or copied whole."""
    if not reading.copies:
        return Translation(unknown_characters=reading.unknown)
    copied = Hypothesis(reinsert_unknown("", reading.copies), 0.0, ())
    return Translation((copied,), unknown_characters=reading.unknown)


@dataclasses.dataclass(frozen=True)
class _Plan:
    """Which lines are searched in which shape.

    Attributes:
        system: the model.
        lines: all of a window.
        readings: of those that count, without blank ones.
        decode: how to search.
    """

    system: InferenceModel
    lines: Sequence[Line]
    readings: Mapping[int, EncodedLine]
    decode: Decode

    def search(
        self, wanted: Collection[int], count: int | None
    ) -> Iterator[tuple[int, tuple[Hypothesis, ...]]]:
        """Yields the hypotheses of wanted lines, bucket by bucket.

        There is room for half as many tokens again as a bucket is long; the few lines that need
        more are searched again in the largest bucket, with room for all.

        Args:
            wanted: indices of lines.
            count: lines that a bucket is taken to have; None is its own.
        """
        largest, without_room = max(self.decode.buckets), list[int]()
        sizes = {i: reading.size for i, reading in self.readings.items()}
        for bucket, members in group_by_bucket(sizes, self.decode):
            steps = initial_step_limit(bucket, length_limit(self.decode, bucket) + 1)
            asked = [i for i in members if i in wanted]
            for ended in self._shape(asked, bucket, steps, count or len(members)):
                if ended.done:
                    yield ended.number, decode_hypotheses(self.system, ended.found, ended.row)
                else:
                    without_room.append(ended.number)
        steps = length_limit(self.decode, largest) + 1
        for ended in self._shape(without_room, largest, steps, len(self.lines)):
            yield ended.number, decode_hypotheses(self.system, ended.found, ended.row)

    def _shape(
        self, members: Sequence[int], bucket: int, steps: int, count: int
    ) -> Iterator[Finished]:
        """Searches lines in batches of one shape, which follows from a number of lines."""
        rows = self.system.rows(self.decode.batch, count)
        if members:
            check_memory(self.system, self.decode, rows=rows, steps=steps)
        size = slots_per_admission(self.system, rows, count)
        # What takes longest begins first, so that the last rows to end are few.
        ordered = sorted(members, key=lambda i: (-len(self.readings[i].inputs[0].source), i))

        def turn(chunk: Sequence[int]) -> Admission:
            chosen = [(self.lines[i].number, self.readings[i]) for i in chunk]
            shape = {"bucket": bucket, "steps": steps, "size": size}
            return Admission(chunk, *make_batch(self.system, chosen, self.decode, **shape))

        turns = map(turn, chunks(ordered, size))
        return search_continuously(self.system, make_search(self.decode), turns, rows)


def score_lines(
    system: InferenceModel, lines: Sequence[Line], references: Sequence[str], decode: Decode
) -> list[Score]:
    """Scores given translations as a search would have, before it divides by lengths.

    Args:
        system: the model.
        lines: the sources and their languages; for a language model that continues text, sources
            are empty.
        references: the translation of each, or the text.
        decode: gives the buckets.

    Raises:
        UserError: if a pair does not fit the largest bucket.
    """
    check_decode(system, decode, {})
    vocabulary, instruction = system.vocabulary, system.instruction
    sources = vocabulary.encode_lines(
        [line.text for line in lines], [line.source_lang for line in lines]
    )
    targets = vocabulary.encode_lines(references, [line.target_lang for line in lines])
    extra = max(instruction.source_extra, instruction.target_extra)
    sizes = [max(len(s), len(t)) + extra for s, t in zip(sources, targets, strict=True)]
    check_lengths_fit_bucket(lines, sizes, decode)
    sums = np.zeros(len(lines), np.float32)
    for bucket, members in group_by_bucket(dict(enumerate(sizes)), decode):
        logits = bucket * vocabulary.size
        fitting = system.rows(decode.batch, len(members))
        rows = system.on_all_devices(min(fitting, _SCORED_LOGITS // logits))
        for chunk in chunks(members, rows):
            pairs = [make_example(system, lines[i], sources[i], targets[i]) for i in chunk]
            segments = segments_from_rows([[pair] for pair in pairs])
            spans = model_inputs(system.converter(bucket).batch(segments, rows))
            with memory_errors(decode), system.placed(spans) as batch:
                found = score_batch(
                    system.params,
                    batch,
                    model=system.model,
                    forced=instruction.target_extra - 1,
                )
                sums[chunk] = np.asarray(found)[: len(chunk)]
    return [Score(total, len(t) + 1) for total, t in zip(sums.tolist(), targets, strict=True)]


def check_lengths_fit_bucket(lines: Sequence[Line], sizes: Sequence[int], decode: Decode) -> None:
    """Checks that what may not be cut fits the largest bucket.

    Args:
        lines: which to name.
        sizes: tokens of each, with tags and eos.
        decode: has the buckets.

    Raises:
        UserError: otherwise.
    """
    for line, size in zip(lines, sizes, strict=True):
        if size > max(decode.buckets):
            raise UserError(
                f"line {line.number + 1} needs {size} tokens, the largest of Decode.buckets is "
                f"{max(decode.buckets)}; add a larger bucket to --gin.Decode.buckets"
            )


def group_by_bucket(sizes: Mapping[int, int], decode: Decode) -> Iterator[tuple[int, list[int]]]:
    """Yields each bucket with the indices of what it is the smallest for, those without left out.

    Args:
        sizes: of each index, which the largest bucket can hold.
        decode: has the buckets.
    """
    below = 0
    for bucket in sorted(set(decode.buckets)):
        members = [i for i, size in sizes.items() if below < size <= bucket]
        if members:
            yield bucket, members
        below = bucket


def check_decode(system: InferenceModel, decode: Decode, lengths: Mapping[str, int]) -> None:
    """Checks that a configuration can be followed.

    Args:
        system: the model.
        decode: the configuration.
        lengths: of spans that do not follow from its buckets.

    Raises:
        UserError: otherwise.
    """
    if decode.batch < 1 or decode.max_length < 1:
        raise UserError(
            f"Decode.batch={decode.batch}, max_length={decode.max_length}: both must be at least 1"
        )
    least = 1 + system.instruction.source_extra
    if min(decode.buckets, default=0) < least:
        raise UserError(
            f"Decode.buckets={decode.buckets}: each must be at least {least}, a piece with its "
            "tag and eos"
        )
    system.model.check_lengths(system.converter(max(decode.buckets)).widths() | dict(lengths))
    if decode.language_contrast:
        languages = system.vocabulary.languages
        for code in decode.contrast_languages:
            if code != "source" and find_code(code, languages) is None:
                raise UserError(
                    f"Decode.contrast_languages={decode.contrast_languages}: the model has no "
                    f"'{code}'; name some of source, {', '.join(languages)}"
                )


def decode_hypotheses(
    system: InferenceModel, found: Hypotheses, row: int, before: Sequence[int] = ()
) -> tuple[Hypothesis, ...]:
    """Returns what was found for a row, best first, in texts that begin with the tokens before."""
    hypotheses = []
    for rank, length in enumerate(found.lengths[row].tolist()):
        if length and np.isfinite(found.scores[row, rank]):
            tokens = tuple(found.tokens[row, rank, :length].tolist())
            text = _LINE_BREAKS.sub(" ", system.vocabulary.decode((*before, *tokens)))
            hypotheses.append(Hypothesis(text, float(found.scores[row, rank]), tokens))
    return tuple(hypotheses)


def chunks(items: Sequence[int], size: int) -> Iterator[list[int]]:
    """Yields so many items at a time."""
    return (list(items[start : start + size]) for start in range(0, len(items), size))
