"""Text in, text out: lines to fixed-shape batches, search, and back to texts.

A line's bucket depends on its own length alone, and all batches of a bucket have as many rows, some
empty where lines are lacking: `Decode.batch`, or 1, 4, 16 and so on if that holds all lines of the
bucket. So a line is computed by the same instructions whatever stands beside it, and its
translation is the same bit for bit; only with fewer rows sums may be rounded in another order.
Source contrast reads other lines with a line: `with_others` draws them before there are batches.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mnmt_jax.config.sections import Decode
from mnmt_jax.data.converter import TASK, Converter, Example, HostBatch, Lengths, segments_from_rows
from mnmt_jax.data.instruction import Instruction
from mnmt_jax.decoding.contrast import Contrast, language_weights, other_texts
from mnmt_jax.decoding.generate import generate, length_limit, make_search
from mnmt_jax.decoding.input_checks import check_text
from mnmt_jax.decoding.score import Score, score_batch
from mnmt_jax.decoding.search import Hypotheses, Request, Search, sentence_rngs
from mnmt_jax.distributed.sharding import batch_shards, place_batch
from mnmt_jax.errors import UserError
from mnmt_jax.model.network import Network
from mnmt_jax.vocabulary.pieces import Vocabulary

_SCORED_LOGITS = 1 << 26  # logits that scoring may hold at one time, as a number of floats
_TIMES = 4  # rows of a batch by those of the next smaller one
_OTHERS = 1  # lines that a source is contrasted with, as published
_Reading = tuple[Example, float]  # an input of a line, and the weight of its probabilities
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
        limited: the best hypothesis is as long as `Decode` allows; its end may be missing.
        pivot: what stood between, if the line was translated into another language first; then
            `truncated` and `limited` tell of both translations.
    """

    hypotheses: tuple[Hypothesis, ...] = ()
    truncated: bool = False
    limited: bool = False
    pivot: str | None = None

    @property
    def text(self) -> str:
        """The best translation; empty for a blank line."""
        return self.hypotheses[0].text if self.hypotheses else ""

    @property
    def score(self) -> float | None:
        """The best translation's score; None for a blank line."""
        return self.hypotheses[0].score if self.hypotheses else None


@dataclasses.dataclass(frozen=True)
class Line:
    """A line to translate.

    Attributes:
        number: its place in the whole input, from 0; seeds sampling.
        text: the source text.
        source_lang: code of its language.
        target_lang: code of the language wanted.
        others: texts that its source is contrasted with, of the same language.
    """

    number: int
    text: str
    source_lang: str
    target_lang: str
    others: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class System:
    """A model with all that is needed to feed it text.

    Attributes:
        model: the network.
        params: its parameters.
        vocabulary: text to ids and back.
        instruction: where tags stand.
        mesh: whose devices share the lines of a batch; None is the first device.
    """

    model: Network
    params: Any
    vocabulary: Vocabulary
    instruction: Instruction
    mesh: jax.sharding.Mesh | None = None

    def fitted(self, decode: Decode, lines: int) -> Decode:
        """Returns a configuration with the fewest rows of a batch that hold lines, or its own.

        Args:
            decode: that `check_decode` accepts.
            lines: how many have a shape, those that are done too: to go on is to compute alike.
        """
        rows = self.on_all_devices(1)
        while rows < lines:
            rows *= _TIMES
        return dataclasses.replace(decode, batch=min(rows, self.on_all_devices(decode.batch)))

    def on_all_devices(self, rows: int) -> int:
        """Returns as many rows or a few more, so that each device has one and all as many."""
        parts = batch_shards(self.mesh) if self.mesh else 1
        return max(-(-rows // parts), 1) * parts

    @contextlib.contextmanager
    def placed(self, batch: HostBatch) -> Iterator[Any]:
        """Gives a batch as programs take it that run in this context, on all devices."""
        if self.mesh is None:
            yield batch
            return
        with jax.set_mesh(self.mesh):
            yield place_batch(batch, self.mesh)

    def converter(self, bucket: int) -> Converter:
        """Returns the converter that lays out rows of one pair, both spans `bucket` long."""
        return Converter(
            self.vocabulary,
            self.instruction,
            self.model.layout.embedded_roles(),
            Lengths(bucket, bucket),
            self.model.config.register_factor,
        )


def number_lines(
    lines: Iterable[str], sources: Iterator[str], targets: Iterator[str]
) -> Iterator[Line]:
    """Gives texts their numbers and languages.

    Args:
        lines: one text each.
        sources: code of the language of each, from `codes_of_lines`.
        targets: code of the language wanted of each.

    Raises:
        UserError: if a line is no text, or there are more than codes.
    """
    for number, text in enumerate(lines):
        check_text(text, f"line {number + 1}")
        source, target = next(sources, None), next(targets, None)
        if source is None or target is None:
            raise UserError(f"line {number + 1} has no language; give one code or one per line")
        yield Line(number, text, source, target)


def with_others(lines: Sequence[Line], decode: Decode) -> list[Line]:
    """Gives lines the others that their sources are contrasted with, if `decode` does that.

    Args:
        lines: all that may be drawn from; a line without another of its language, and a blank one,
            stays without.
        decode: how many to draw, and the seed.
    """
    if not decode.source_contrast:
        return list(lines)
    texts = [(line.number, line.source_lang, line.text) for line in lines]
    drawn = other_texts(texts, _OTHERS, decode.seed)
    return [dataclasses.replace(line, others=o) for line, o in zip(lines, drawn, strict=True)]


def translate_lines(
    system: System,
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
    search = make_search(decode)
    longest = length_limit(decode, max(decode.buckets)) + system.instruction.target_extra
    check_decode(system, decode, {system.model.layout.generated: longest})
    wanted = [i for i, line in enumerate(lines) if line.number not in done]
    readings = _readings(system, lines, decode) if wanted else []
    room = max(decode.buckets) - system.instruction.source_extra
    yield from ((i, Translation()) for i in wanted if not readings[i])
    count = None if known else len(lines)
    for bucket, fitted, members in _plan(system, readings, wanted, decode, count):
        rows = [_cut(readings[i], room) for i in members]
        numbers = [lines[i].number for i in members]
        batch, request = _request(system, rows, numbers, bucket=bucket, decode=fitted)
        found = search_batch(system, batch, request, search)
        for row, i in enumerate(members):
            hypotheses = hypotheses_of(system, found, row)
            if not hypotheses:
                raise UserError(
                    f"line {lines[i].number + 1}: the model's output is not a number; "
                    "use another checkpoint"
                )
            limited = len(hypotheses[0].tokens) > int(request.max_length[row])
            yield i, Translation(hypotheses, len(readings[i][0][0].source) > room, limited)


def search_batch(system: System, batch: HostBatch, request: Request, search: Search) -> Hypotheses:
    """Searches a batch, of one shape per bucket, on the devices of the system."""
    with system.placed(batch) as placed:
        return generate(system.model, system.params, placed, request, search=search)


def score_lines(
    system: System, lines: Sequence[Line], references: Sequence[str], decode: Decode
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
    check_fit(lines, sizes, decode)
    sums = np.zeros(len(lines), np.float32)
    for bucket, members in in_buckets(sizes, decode):
        logits = bucket * vocabulary.size
        fitted = system.fitted(decode, len(members))
        rows = system.on_all_devices(min(fitted.batch, _SCORED_LOGITS // logits))
        for chunk in chunks(members, rows):
            pairs = [example_of(system, lines[i], sources[i], targets[i]) for i in chunk]
            segments = segments_from_rows([[pair] for pair in pairs])
            with system.placed(spans_of(system.converter(bucket).batch(segments, rows))) as batch:
                found = score_batch(
                    system.params,
                    batch,
                    model=system.model,
                    forced=instruction.target_extra - 1,
                )
                sums[chunk] = np.asarray(found)[: len(chunk)]
    return [Score(total, len(t) + 1) for total, t in zip(sums.tolist(), targets, strict=True)]


def check_fit(lines: Sequence[Line], sizes: Sequence[int], decode: Decode) -> None:
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
                f"{max(decode.buckets)}; add a larger bucket"
            )


def in_buckets(sizes: Sequence[int], decode: Decode) -> Iterator[tuple[int, list[int]]]:
    """Yields each bucket with the indices of what it is the smallest for, those without left out.

    Args:
        sizes: that the largest bucket can hold.
        decode: has the buckets.
    """
    below = 0
    for bucket in sorted(set(decode.buckets)):
        members = [i for i, size in enumerate(sizes) if below < size <= bucket]
        if members:
            yield bucket, members
        below = bucket


def check_decode(system: System, decode: Decode, lengths: Mapping[str, int]) -> None:
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
            if code not in (*languages, "source"):
                raise UserError(
                    f"Decode.contrast_languages={decode.contrast_languages}: the model has no "
                    f"'{code}'; name some of source, {', '.join(languages)}"
                )


def _readings(
    system: System, lines: Sequence[Line], decode: Decode
) -> list[list[tuple[Example, float]]]:
    """Returns each line's own input and those it is contrasted with; nothing for a blank line.

    Each line has as many, so that all have one shape; what a line lacks has weight 0.
    """
    texts = dict.fromkeys(
        (text, line.source_lang) for line in lines for text in (line.text, *line.others)
    )
    pieces = dict(zip(texts, _encode(system, list(texts)), strict=True))
    count = _OTHERS if decode.source_contrast else 0

    def reading(line: Line) -> list[_Reading]:
        own = example_of(system, line, pieces[line.text, line.source_lang])
        others = [
            example_of(system, line, pieces[text, line.source_lang]) for text in line.others[:count]
        ]
        contrasts = [(other, decode.source_contrast / len(others)) for other in others]
        contrasts += [(own, 0.0)] * (count - len(others))
        if decode.language_contrast:
            for code, weight in language_weights(
                decode.contrast_languages,
                decode.language_contrast,
                source_lang=line.source_lang,
                target_lang=line.target_lang,
            ):
                target_lang = system.vocabulary.language_index(code)
                contrasts.append((dataclasses.replace(own, target_lang=target_lang), weight))
        return [(own, 1.0), *contrasts]

    return [reading(line) if pieces[line.text, line.source_lang] else [] for line in lines]


def _cut(reading: Sequence[_Reading], room: int) -> list[_Reading]:
    """Shortens the sources of a line's inputs to so many pieces."""
    return [(dataclasses.replace(e, source=e.source[:room]), weight) for e, weight in reading]


def _plan(
    system: System,
    readings: Sequence[Sequence[_Reading]],
    wanted: Sequence[int],
    decode: Decode,
    count: int | None,
) -> Iterator[tuple[int, Decode, list[int]]]:
    """Yields batches of wanted lines, blank ones left out: bucket, settings with rows, indices."""
    buckets = sorted(decode.buckets)
    members: dict[int, list[int]] = {bucket: [] for bucket in buckets}
    for i, reading in enumerate(readings):
        if reading:
            longest = max(len(example.source) for example, _ in reading)
            size = longest + system.instruction.source_extra
            members[next((b for b in buckets if size <= b), buckets[-1])].append(i)
    for bucket in buckets:
        # Lines of similar length end at similar times, and a batch runs until its last line ends.
        kept = sorted(
            set(members[bucket]).intersection(wanted),
            key=lambda i: (len(readings[i][0][0].source), i),
        )
        fitted = system.fitted(decode, count or len(members[bucket]))
        for chunk in chunks(kept, fitted.batch):
            yield bucket, fitted, chunk


def _request(
    system: System,
    rows: Sequence[Sequence[_Reading]],
    numbers: Sequence[int],
    *,
    bucket: int,
    decode: Decode,
) -> tuple[HostBatch, Request]:
    """Lays out one batch of `decode.batch` lines, the last ones empty if lines are lacking."""
    vocabulary, instruction = system.vocabulary, system.instruction
    size, inputs = decode.batch, len(rows[0])
    prefix = np.full((size, inputs, instruction.target_extra), vocabulary.eos_id, np.int32)
    weights = np.zeros((size, inputs), np.float32)
    limits = np.ones(size, np.int32)
    for row, reading in enumerate(rows):
        for place, (example, weight) in enumerate(reading):
            language = vocabulary.languages[example.target_lang]
            trigger = instruction.trigger_id(vocabulary, language)
            prefix[row, place] = (trigger, *instruction.forced_ids(vocabulary, language))
            weights[row, place] = weight
        own = reading[0][0].source
        limits[row] = length_limit(decode, len(own) + instruction.source_extra)
    ids = np.zeros(size, np.int32)
    ids[: len(rows)] = numbers
    contrast = Contrast(jnp.asarray(prefix[:, 1:]), jnp.asarray(weights[:, 1:]))
    request = Request(
        prefix=jnp.asarray(prefix[:, 0]),
        max_length=jnp.asarray(limits),
        active=jnp.asarray(np.arange(size) < len(rows)),
        rngs=sentence_rngs(decode.seed, jnp.asarray(ids)) if decode.method == "sample" else None,
        contrast=contrast if inputs > 1 else None,
        max_steps=length_limit(decode, bucket) + 1,
    )
    segments = segments_from_rows([[example] for reading in rows for example, _ in reading])
    return spans_of(system.converter(bucket).static_batch(segments, size * inputs)), request


def _encode(system: System, texts: Sequence[tuple[str, str]]) -> list[list[int]]:
    """Returns the pieces of texts, each with its language; none of blank ones.

    Whatever SentencePiece makes of those.
    """
    shown = [text if text.strip() else "" for text, _ in texts]
    return system.vocabulary.encode_lines(shown, [language for _, language in texts])


def example_of(
    system: System, line: Line, source: Sequence[int] = (), target: Sequence[int] = ()
) -> Example:
    """Returns the pieces of a line with its languages."""
    index = system.vocabulary.language_index
    pieces = np.asarray(source, np.int32), np.asarray(target, np.int32)
    return Example(*pieces, index(line.source_lang), index(line.target_lang))


def hypotheses_of(
    system: System, found: Hypotheses, row: int, before: Sequence[int] = ()
) -> tuple[Hypothesis, ...]:
    """Returns what was found for a row, best first, in texts that begin with the tokens before."""
    hypotheses = []
    for rank, length in enumerate(found.lengths[row].tolist()):
        if length and np.isfinite(found.scores[row, rank]):
            tokens = tuple(found.tokens[row, rank, :length].tolist())
            text = _LINE_BREAKS.sub(" ", system.vocabulary.decode((*before, *tokens)))
            hypotheses.append(Hypothesis(text, float(found.scores[row, rank]), tokens))
    return tuple(hypotheses)


def spans_of(batch: HostBatch) -> HostBatch:
    """Returns what a model reads of a batch."""
    return {name: array for name, array in batch.items() if name != TASK}


def chunks(items: list[int], size: int) -> Iterator[list[int]]:
    """Yields so many items at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))
