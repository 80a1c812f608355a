"""Noise in the pieces of sentence pairs: pieces to text, noise, and text to pieces."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from mnmt_jax.data.converter import Segments
from mnmt_jax.data.document_context import Context
from mnmt_jax.data.instruction import split_auxiliary
from mnmt_jax.data.noise import Noise
from mnmt_jax.vocabulary.vocabulary import Vocabulary


def add_noise(
    segments: Segments,
    noise: Noise,
    vocabulary: Vocabulary,
    *,
    kinds: np.ndarray,
    keys: np.ndarray,
    planned: np.ndarray,
    contexts: Sequence[Context | None],
) -> Segments:
    """Return segments with noise; a pair that needs more pieces than planned stays as it is.

    The second translation of a prompted source (`mnmt_jax.data.parallel_prompts`) has no noise.

    Args:
        segments: sentence pairs.
        noise: noise of the run.
        vocabulary: vocabulary of the pieces.
        kinds: kind of noise of each pair, -1 for none, int `[n]`.
        keys: key of the noise of each pair, uint64 `[n]`.
        planned: largest numbers of source and target pieces of each pair, int `[n, 2]`.
        contexts: by the task number of `per_segment`, how the sentences of its chunks are joined;
            None for a task of sentences.
    """
    chosen = np.flatnonzero(kinds >= 0).tolist()
    if not chosen:
        return segments
    source = np.split(segments.source, np.cumsum(segments.source_counts)[:-1])
    target = np.split(segments.target, np.cumsum(segments.target_counts)[:-1])
    sources, prompts = zip(
        *(split_auxiliary(vocabulary, source[pair]) for pair in chosen), strict=True
    )
    sides = [sources, [target[pair] for pair in chosen]]
    texts = [[vocabulary.decode(pieces) for pieces in side] for side in sides]
    *numbers, tasks = segments.per_segment[:, chosen].tolist()
    languages = [[vocabulary.languages[number] for number in side] for side in numbers]
    noisy_texts = [
        noise.change(pair, codes, int(kinds[number]), int(keys[number]), contexts[task])
        for number, task, pair, codes in zip(
            chosen, tasks, zip(*texts, strict=True), zip(*languages, strict=True), strict=True
        )
    ]
    noisy_sides = [
        _encode_changed(vocabulary, *columns)
        for columns in zip(sides, texts, zip(*noisy_texts, strict=True), languages, strict=True)
    ]
    for pair, prompt, *noisy in zip(chosen, prompts, *noisy_sides, strict=True):
        room = planned[pair] - (len(prompt), 0)
        if all(0 < len(ids) <= most for ids, most in zip(noisy, room, strict=True)):
            source[pair], target[pair] = np.concatenate((noisy[0], prompt)), noisy[1]
    return dataclasses.replace(
        segments,
        source=np.concatenate(source),
        source_counts=np.array([len(pieces) for pieces in source], np.int64),
        target=np.concatenate(target),
        target_counts=np.array([len(pieces) for pieces in target], np.int64),
    )


def _encode_changed(
    vocabulary: Vocabulary,
    sentences: Sequence[np.ndarray],
    texts: Sequence[str],
    noisy_texts: Sequence[str],
    languages: Sequence[str],
) -> list[np.ndarray]:
    """Return the pieces of noisy texts; those of an unchanged text are not encoded again."""
    pairs = enumerate(zip(texts, noisy_texts, strict=True))
    changed = [number for number, (text, noisy) in pairs if noisy != text]
    lines = [noisy_texts[number] for number in changed]
    encoded = vocabulary.encode_lines(lines, [languages[number] for number in changed])
    result = list(sentences)
    for number, ids in zip(changed, encoded, strict=True):
        result[number] = np.array(ids, np.int32)
    return result
