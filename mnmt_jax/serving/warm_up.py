"""Compilation of all shapes before the first request, and settings of garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from mnmt_jax.config.sections import Decode
from mnmt_jax.decoding.alignment import align_lines
from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.live_translation import batch_sizes
from mnmt_jax.decoding.search_settings import initial_step_limit, length_limit
from mnmt_jax.decoding.translation import Hypothesis, Translation
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.errors import pluralize, warn
from mnmt_jax.serving.line_engines import JobEngine

_ALLOCATIONS = 10_000  # of objects between two garbage collections


def warm_up(job: TranslationJob, window: int) -> None:
    """Translate lines of every bucket, in as many numbers as make batches of different sizes.

    Lines of the largest bucket are searched with the maximum length, too, if the first search of a
    line has another one. A warning names the shapes that cannot be searched.

    Args:
        job: the model and settings of the search.
        window: most lines that are translated at a time.
    """
    sizes = batch_sizes(job.pretrained.inference_model, job.decode)
    counts = [size for size in sizes if size < window] + [min(window, sizes[-1])]
    if window > sizes[-1]:
        counts.append(sizes[-1] + 1)  # more lines than slots
    source, target = job.pretrained.languages[0], job.pretrained.languages[-1]
    buckets = sorted(set(job.decode.buckets))
    lines = {bucket: Line(0, _text_of(job, bucket, source), source, target) for bucket in buckets}
    shapes = [(bucket, False) for bucket in buckets]
    if JobEngine(job).is_live and _has_second_search(job.decode):
        shapes.append((buckets[-1], True))
    for bucket, longest in shapes:
        for count in sorted(set(counts)):
            error = _first_error(job, [lines[bucket]] * count, longest=longest)
            if error is not None:
                many = f"{pluralize(count, 'sentence')} of {bucket} tokens"
                many += " with translations of the greatest length" if longest else ""
                warn(f"{many} cannot be translated together: {error}")
                break
    for line in lines.values():
        _warm_up_alignment(job, line)


def freeze_garbage_collection() -> None:
    """Exempt all present objects from garbage collection, and make collections rare.

    What is loaded stays: collections of the whole heap would stop all requests for some tenths of a
    second. Requests make little cyclic garbage.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS)


def _has_second_search(decode: Decode) -> bool:
    """Return whether the longest translations need a search that no bucket has as its first one."""
    largest = max(decode.buckets)
    steps = length_limit(decode, largest) + 1
    return initial_step_limit(largest, steps) < steps


def _first_error(job: TranslationJob, lines: Sequence[Line], *, longest: bool) -> Exception | None:
    """Translate lines together; return their first error, or None if there is none."""
    engine, errors = JobEngine(job), list[Exception]()
    engine.add(list(enumerate(lines)), longest=longest)
    while len(engine):
        errors += [result for _, result in engine.run() if isinstance(result, Exception)]
    return errors[0] if errors else None


def _warm_up_alignment(job: TranslationJob, line: Line) -> None:
    """Align a line with a short translation, and with one of the greatest length."""
    decode, vocabulary = job.decode, job.pretrained.vocabulary
    longest = length_limit(decode, max(decode.buckets))
    (token, *_) = vocabulary.encode(line.text, line.source_lang)
    for length in (1, longest):
        translation = Translation((Hypothesis("", 0.0, (token,) * length),))
        align_lines(job.pretrained.inference_model, [(line, translation)], decode)


def _text_of(job: TranslationJob, bucket: int, language: str) -> str:
    """Return a text that needs a bucket: of the most pieces that it holds."""
    vocabulary = job.pretrained.vocabulary
    pieces = max(1, bucket - job.pretrained.inference_model.instruction.source_extra)
    words = "a"
    while len(vocabulary.encode(f"{words} a", language)) <= pieces:
        words += " a"
    return words
