"""Compilation of all shapes before the first request, and settings of garbage collection."""

from __future__ import annotations

import gc

from mnmt_jax.decoding.alignment import align_lines
from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.generate import length_limit
from mnmt_jax.decoding.live_translation import batch_sizes
from mnmt_jax.decoding.translate_lines import Hypothesis, Translation
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.serving.line_engines import JobEngine

_ALLOCATIONS = 10_000  # of objects between two garbage collections


def warm_up(job: TranslationJob, window: int) -> None:
    """Translate lines of every bucket, in as many numbers as make batches of different sizes.

    Args:
        job: the model and settings of the search.
        window: most lines that are translated at a time.
    """
    sizes = batch_sizes(job.pretrained.inference_model, job.decode)
    counts = [size for size in sizes if size < window] + [min(window, sizes[-1])]
    if window > sizes[-1]:
        counts.append(sizes[-1] + 1)  # more lines than slots
    source, target = job.pretrained.languages[0], job.pretrained.languages[-1]
    for bucket in sorted(set(job.decode.buckets)):
        text = _text_of(job, bucket, source)
        for count in sorted(set(counts)):
            engine = JobEngine(job)
            engine.add([(number, Line(0, text, source, target)) for number in range(count)])
            while len(engine):
                list(engine.run())
        _warm_up_alignment(job, Line(0, text, source, target))


def freeze_garbage_collection() -> None:
    """Exempt all present objects from garbage collection, and make collections rare.

    What is loaded stays: collections of the whole heap would stop all requests for some tenths of a
    second. Requests make little cyclic garbage.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS)


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
