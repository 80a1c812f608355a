"""Translation and scoring of lines: text to fixed-shape batches, search, and back to text.

The bucket of a line depends on its own length alone. The number of lines of that length decides how
many lines a batch holds and admits at a time (`continuous_batching.batch_shape`). So the
instructions that compute a line do not depend on other lines, and its translation is the same bit
for bit. With fewer slots, sums may be rounded in another order. Source contrast reads other lines,
too: `with_contrast_sources` draws them before batches are formed.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mnmt_jax.config.sections import Decode
from mnmt_jax.data.converter import segments_from_rows
from mnmt_jax.decoding.candidate_ranking import rank_candidates
from mnmt_jax.decoding.continuous_batching import (
    Admission,
    Finished,
    batch_shape,
    search_continuously,
)
from mnmt_jax.decoding.copy_unknown import reinsert_copies
from mnmt_jax.decoding.encoded_lines import (
    EncodedLine,
    Line,
    encode_lines,
    make_batch,
    make_example,
)
from mnmt_jax.decoding.inference_model import InferenceModel, model_inputs
from mnmt_jax.decoding.scoring import Score, score_batch
from mnmt_jax.decoding.search import Hypotheses, Search
from mnmt_jax.decoding.search_limits import (
    check_beam_size,
    check_memory,
    memory_errors,
    with_memory_errors,
)
from mnmt_jax.decoding.search_settings import initial_step_limit, length_limit, make_search
from mnmt_jax.decoding.terms import TermsShape, missing_terms, present_forbidden_terms
from mnmt_jax.decoding.translation import Hypothesis, Translation
from mnmt_jax.decoding.utilities import get_utility
from mnmt_jax.design.layouts import SOURCE
from mnmt_jax.errors import UserError, nan_output_error
from mnmt_jax.vocabulary.language_codes import find_code

_SCORED_LOGITS = 1 << 26  # maximum number of logits in memory at a time when scoring
LINE_BREAKS = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")


def translate_lines(
    inference_model: InferenceModel,
    lines: Sequence[Line],
    decode: Decode,
    done: Collection[int] = (),
    *,
    has_sources: bool = True,
) -> Iterator[tuple[int, Translation]]:
    """Translate lines.

    Args:
        inference_model: the model.
        lines: lines in any mix of languages of its vocabulary.
        decode: settings of the search.
        done: numbers of lines to leave out.
        has_sources: whether these lines still have their source texts; otherwise every bucket is
            sized as if it had all lines.

    Yields:
        The index of each line and its translation as soon as its batch is done, blank lines first.

    Raises:
        UserError: if a language has no tag, `decode` does not fit the model, or the model's output
            is not finite.
    """
    check_search(inference_model, decode)
    wanted = [i for i, line in enumerate(lines) if line.number not in done]
    to_encode = range(len(lines)) if has_sources and wanted else wanted
    encoded_lines = encode_lines(inference_model, {i: lines[i] for i in to_encode}, decode)
    yield from ((i, untranslated(encoded_lines[i])) for i in wanted if not encoded_lines[i].inputs)
    encoded_lines = {i: encoded for i, encoded in encoded_lines.items() if encoded.inputs}
    plan = _Plan(inference_model, lines, encoded_lines, decode)
    results = with_memory_errors(plan.search(wanted, None if has_sources else len(lines)), decode)
    results = ((i, without_repeats(hypotheses, decode)) for i, hypotheses in results)
    if (utility := get_utility(decode.utility)) is not None:
        log_probs = functools.partial(_fitting_scores, inference_model, decode=decode)
        results = rank_candidates(results, lines, utility, log_probs)
    for i, hypotheses in results:
        yield i, to_translation(plan.encoded_lines[i], hypotheses, lines[i])


def without_repeats(hypotheses: tuple[Hypothesis, ...], decode: Decode) -> tuple[Hypothesis, ...]:
    """Return the first hypothesis of each text, if several groups of a beam may have it.

    Samples are independent, and may repeat.
    """
    if decode.beam_groups == 1:
        return hypotheses
    first_of_text: dict[str, Hypothesis] = {}
    for hypothesis in hypotheses:
        first_of_text.setdefault(hypothesis.text, hypothesis)
    return tuple(first_of_text.values())


def to_translation(
    encoded: EncodedLine, hypotheses: tuple[Hypothesis, ...], line: Line
) -> Translation:
    """Return the translation of a line.

    Args:
        encoded: the encoded line.
        hypotheses: its hypotheses, best first.
        line: the line.

    Raises:
        UserError: if there is no hypothesis, because the model's output is not finite.
    """
    if not hypotheses:
        raise nan_output_error(f"line {line.number + 1}")
    limited = len(hypotheses[0].tokens) > encoded.limit
    if encoded.copies:
        hypotheses = tuple(
            dataclasses.replace(
                hypothesis, text=reinsert_copies(hypothesis.text, encoded.copies, line.context)
            )
            for hypothesis in hypotheses
        )
    text = hypotheses[0].text
    return Translation(
        hypotheses,
        encoded.truncated,
        limited,
        unknown_characters=encoded.unknown,
        missing_terms=missing_terms(line.terms, text, line.target_lang),
        forbidden_terms=present_forbidden_terms(line.terms, text, line.target_lang),
    )


def untranslated(encoded: EncodedLine) -> Translation:
    """Return the translation of a line without pieces: blank, or copied entirely."""
    if not encoded.copies:
        return Translation(unknown_characters=encoded.unknown)
    hypothesis = Hypothesis(reinsert_copies("", encoded.copies), 0.0, ())
    return Translation((hypothesis,), unknown_characters=encoded.unknown)


@dataclasses.dataclass(frozen=True)
class _Plan:
    """Assignment of lines to batches of fixed shapes.

    Attributes:
        inference_model: the model.
        lines: all lines of a window.
        encoded_lines: encoded lines that determine the shapes, without blank ones.
        decode: settings of the search.
    """

    inference_model: InferenceModel
    lines: Sequence[Line]
    encoded_lines: Mapping[int, EncodedLine]
    decode: Decode

    def search(
        self, indices: Collection[int], count: int | None
    ) -> Iterator[tuple[int, tuple[Hypothesis, ...]]]:
        """Yield the hypotheses of wanted lines, bucket by bucket.

        A first search allows 1.5 times as many tokens as the bucket; the few lines that need more
        are searched again in the largest bucket, with the maximum length.

        Args:
            indices: indices of lines.
            count: assumed number of lines per bucket; None is the actual number.
        """
        largest, unfinished = max(self.decode.buckets), list[int]()
        sizes = {i: encoded.size for i, encoded in self.encoded_lines.items()}
        for bucket, members in group_by_bucket(sizes, self.decode):
            steps = initial_step_limit(bucket, length_limit(self.decode, bucket) + 1)
            to_search = [i for i in members if i in indices]
            for finished in self._search_shape(to_search, bucket, steps, count or len(members)):
                if finished.done:
                    yield (
                        finished.number,
                        decode_hypotheses(self.inference_model, finished.hypotheses, finished.row),
                    )
                else:
                    unfinished.append(finished.number)
        steps = length_limit(self.decode, largest) + 1
        for finished in self._search_shape(unfinished, largest, steps, len(self.lines)):
            yield (
                finished.number,
                decode_hypotheses(self.inference_model, finished.hypotheses, finished.row),
            )

    def _search_shape(
        self, members: Sequence[int], bucket: int, steps: int, count: int
    ) -> Iterator[Finished]:
        """Search lines in batches of one shape, chosen for `count` lines.

        The sizes of the arrays of terms belong to the shape; lines without terms come first.
        """
        groups: dict[TermsShape | None, list[int]] = {None: []}
        for i in members:
            groups.setdefault(self.encoded_lines[i].terms_shape, []).append(i)
        for terms_shape, group in groups.items():
            search = make_search(self.decode, has_terms=terms_shape is not None)
            yield from self._search_group(group, bucket, steps, count, search)

    def _search_group(
        self, members: Sequence[int], bucket: int, steps: int, count: int, search: Search
    ) -> Iterator[Finished]:
        rows, size = batch_shape(self.inference_model, search, self.decode.batch, count)
        if members:
            check_memory(self.inference_model, self.decode, rows=rows, steps=steps)
        # The longest lines start first, so that few slots are busy at the end.
        ordered = sorted(members, key=lambda i: (-len(self.encoded_lines[i].inputs[0].source), i))

        def admission(chunk: Sequence[int]) -> Admission:
            seeded = [(self.lines[i].seed, self.encoded_lines[i]) for i in chunk]
            shape = {"bucket": bucket, "steps": steps, "size": size}
            batch = make_batch(self.inference_model, seeded, self.decode, **shape)
            return Admission(chunk, *batch)

        admissions = map(admission, chunks(ordered, size))
        return search_continuously(self.inference_model, search, admissions, rows)


def score_lines(
    inference_model: InferenceModel,
    lines: Sequence[Line],
    references: Sequence[str],
    decode: Decode,
) -> list[Score]:
    """Score reference translations by their log-probabilities, without length normalisation.

    Args:
        inference_model: the model.
        lines: the sources and their languages; for a language model that continues text, sources
            are empty.
        references: the translation of each line, or the text.
        decode: settings, of which buckets and batch are used.

    Raises:
        UserError: if a pair does not fit the largest bucket.
    """
    check_decode(inference_model, decode, {})
    pairs = _encode_pairs(inference_model, lines, references)
    _check_pairs_fit_bucket(inference_model, lines, pairs, decode)
    scores = _score_pairs(inference_model, lines, pairs, decode)
    return [scores[i] for i in range(len(lines))]


def _fitting_scores(
    inference_model: InferenceModel,
    lines: Sequence[Line],
    references: Sequence[str],
    decode: Decode,
) -> list[Score | None]:
    """Score pairs as `score_lines` does, always in full batches; None for pairs that do not fit."""
    check_decode(inference_model, decode, {})
    pairs = _encode_pairs(inference_model, lines, references)
    scores = _score_pairs(inference_model, lines, pairs, decode, decode.batch)
    return [scores.get(i) for i in range(len(lines))]


class _EncodedPairs(NamedTuple):
    """Pieces of lines and of their references, and the number of tags and eos added to each."""

    sources: Sequence[list[int]]
    targets: Sequence[list[int]]
    extra: int

    @property
    def sizes(self) -> list[int]:
        """Lengths of the longer sides in a row."""
        sides = zip(self.sources, self.targets, strict=True)
        return [max(map(len, pair)) + self.extra for pair in sides]


def _encode_pairs(
    inference_model: InferenceModel, lines: Sequence[Line], references: Sequence[str]
) -> _EncodedPairs:
    encode, instruction = inference_model.vocabulary.encode_lines, inference_model.instruction
    sources = encode([line.text for line in lines], [line.source_lang for line in lines])
    targets = encode(references, [line.target_lang for line in lines])
    extra = max(instruction.source_extra, instruction.target_extra)
    return _EncodedPairs(sources, targets, extra)


def _score_pairs(
    inference_model: InferenceModel,
    lines: Sequence[Line],
    pairs: _EncodedPairs,
    decode: Decode,
    count: int | None = None,
) -> dict[int, Score]:
    """Return the scores of the pairs that fit the largest bucket, by their index.

    Args:
        inference_model: the model.
        lines: the lines.
        pairs: their pieces.
        decode: settings, of which buckets and batch are used.
        count: assumed number of lines per bucket, which determines the batch; None is the actual
            number.
    """
    sources, targets, _ = pairs
    fitting = {i: size for i, size in enumerate(pairs.sizes) if size <= max(decode.buckets)}
    sums = np.zeros(len(lines), np.float32)
    for bucket, members in group_by_bucket(fitting, decode):
        logits = bucket * inference_model.vocabulary.size
        max_rows = inference_model.rows(decode.batch, count or len(members))
        rows = inference_model.on_all_devices(min(max_rows, _SCORED_LOGITS // logits))
        for chunk in chunks(members, rows):
            examples = [
                make_example(inference_model, lines[i], sources[i], targets[i]) for i in chunk
            ]
            segments = segments_from_rows([[example] for example in examples])
            spans = model_inputs(inference_model.converter(bucket).batch(segments, rows))
            with memory_errors(decode), inference_model.placed(spans) as batch:
                log_probs = score_batch(
                    inference_model.params,
                    batch,
                    model=inference_model.model,
                    forced=inference_model.instruction.target_extra - 1,
                )
                sums[chunk] = np.asarray(log_probs)[: len(chunk)]
    return {i: Score(float(sums[i]), len(targets[i]) + 1) for i in fitting}


def _check_pairs_fit_bucket(
    inference_model: InferenceModel, lines: Sequence[Line], pairs: _EncodedPairs, decode: Decode
) -> None:
    if SOURCE not in inference_model.model.layout.embedded_roles():
        check_lengths_fit_bucket(lines, pairs.sizes, decode)
        return
    for text, side in (("source", pairs.sources), ("reference", pairs.targets)):
        sizes = [len(pieces) + pairs.extra for pieces in side]
        check_lengths_fit_bucket(lines, sizes, decode, f" of the {text}")


def check_lengths_fit_bucket(
    lines: Sequence[Line], sizes: Sequence[int], decode: Decode, text: str = ""
) -> None:
    """Check that lines that must not be truncated fit the largest bucket.

    Args:
        lines: lines, named in errors.
        sizes: tokens of each line, with tags and eos.
        decode: settings with the buckets.
        text: text that the lines are of, in errors, e.g. " of the source".

    Raises:
        UserError: otherwise.
    """
    for line, size in zip(lines, sizes, strict=True):
        if size > max(decode.buckets):
            raise UserError(
                f"line {line.number + 1}{text} needs {size} tokens, the largest of "
                f"Decode.buckets is {max(decode.buckets)}; add a larger bucket to "
                "--gin.Decode.buckets"
            )


def group_by_bucket(sizes: Mapping[int, int], decode: Decode) -> Iterator[tuple[int, list[int]]]:
    """Yield each non-empty bucket with the indices of the lines it is the smallest bucket for.

    Args:
        sizes: size of each index, at most that of the largest bucket.
        decode: settings with the buckets.
    """
    below = 0
    for bucket in sorted(set(decode.buckets)):
        members = [i for i, size in sizes.items() if below < size <= bucket]
        if members:
            yield bucket, members
        below = bucket


def check_search(inference_model: InferenceModel, decode: Decode) -> None:
    """Check that settings of a search fit a model of translation.

    Args:
        inference_model: the model.
        decode: the settings.

    Raises:
        UserError: otherwise.
    """
    make_search(decode)
    if get_utility(decode.utility) is not None and decode.beam_size < 2:
        raise UserError(
            f"Decode.utility='{decode.utility}' ranks hypotheses, but Decode.beam_size="
            f"{decode.beam_size} makes one; raise it, e.g. to 32 with Decode.temperature=1.0"
        )
    longest = length_limit(decode, max(decode.buckets)) + inference_model.instruction.target_extra
    check_decode(inference_model, decode, {inference_model.model.layout.generated: longest})
    check_beam_size(decode, inference_model.vocabulary.size)


def check_decode(
    inference_model: InferenceModel, decode: Decode, lengths: Mapping[str, int]
) -> None:
    """Check that settings of a search fit a model.

    Args:
        inference_model: the model.
        decode: the settings.
        lengths: lengths of spans that do not follow from the buckets.

    Raises:
        UserError: otherwise.
    """
    minimum = 1 + inference_model.instruction.source_extra
    if min(decode.buckets, default=0) < minimum:
        raise UserError(
            f"Decode.buckets={decode.buckets}: each must be at least {minimum}, a piece with "
            "its tag and eos"
        )
    inference_model.model.check_lengths(
        inference_model.converter(max(decode.buckets)).widths() | dict(lengths)
    )
    if decode.language_contrast:
        languages = inference_model.vocabulary.languages
        for code in decode.contrast_languages:
            if code != "source" and find_code(code, languages, "Decode.contrast_languages") is None:
                raise UserError(
                    f"Decode.contrast_languages={decode.contrast_languages}: the model has no "
                    f"'{code}'; name some of source, {', '.join(languages)}"
                )


def decode_hypotheses(
    inference_model: InferenceModel, batch: Hypotheses, row: int, prefix: Sequence[int] = ()
) -> tuple[Hypothesis, ...]:
    """Return the hypotheses of a row, best first, with `prefix` prepended to their texts."""
    lengths, scores = batch.lengths[row].tolist(), batch.scores[row].tolist()
    rows = batch.tokens[row, :, : max(lengths)].tolist()
    hypotheses = []
    for length, score, row_tokens in zip(lengths, scores, rows, strict=True):
        if length and math.isfinite(score):
            tokens = tuple(row_tokens[:length])
            text = LINE_BREAKS.sub(" ", inference_model.vocabulary.decode((*prefix, *tokens)))
            hypotheses.append(Hypothesis(text, score, tokens))
    return tuple(hypotheses)


def chunks(items: Sequence[int], size: int) -> Iterator[list[int]]:
    """Yield lists of `size` items; the final one may be shorter."""
    return (list(items[start : start + size]) for start in range(0, len(items), size))
