"""Pseudo-log-likelihood of texts under a masked language model.

Each token, including eos, is masked alone, and the log-probabilities of the masked tokens are
summed. The sum is not a log-probability of the text: it can be compared between masked models, but
not between a masked and a causal model.

Source: Salazar, Liang, Nguyen, Kirchhoff, "Masked Language Model Scoring", ACL 2020, equation 1.
They do not mask the end symbol; here training predicts it, so scoring does, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnmt_jax.config.sections import Decode
from mnmt_jax.data.converter import Example, segments_from_rows
from mnmt_jax.decoding.encoded_lines import Line, make_example
from mnmt_jax.decoding.inference_model import InferenceModel, model_inputs
from mnmt_jax.decoding.scoring import Score, masked_log_probs
from mnmt_jax.decoding.translate_lines import (
    check_decode,
    check_lengths_fit_bucket,
    chunks,
    group_by_bucket,
)


def pseudo_log_likelihoods(
    inference_model: InferenceModel, lines: Sequence[Line], decode: Decode
) -> list[Score]:
    """Score texts, `decode.batch` masked tokens at a time.

    Args:
        inference_model: a model that fills masks.
        lines: lines whose source texts are scored.
        decode: settings, of which buckets and batch are used.

    Raises:
        UserError: if a text does not fit the largest bucket.
    """
    check_decode(inference_model, decode, {})
    size = inference_model.on_all_devices(decode.batch)
    texts, languages = [line.text for line in lines], [line.source_lang for line in lines]
    pieces = inference_model.vocabulary.encode_lines(texts, languages)
    sizes = [len(ids) + inference_model.instruction.source_extra for ids in pieces]
    check_lengths_fit_bucket(lines, sizes, decode)
    tag = inference_model.instruction.source_extra - 1
    sums = np.zeros(len(lines))
    for bucket, members in group_by_bucket(dict(enumerate(sizes)), decode):
        line_of_token = np.repeat(members, [len(pieces[i]) + 1 for i in members])
        positions = np.concatenate([np.arange(len(pieces[i]) + 1) + tag for i in members])
        for chunk in chunks(list(range(len(line_of_token))), size):
            chunk_lines = line_of_token[chunk]
            rows = [[make_example(inference_model, lines[i], pieces[i])] for i in chunk_lines]
            log_probs = _masked_token_log_probs(
                inference_model, rows, positions[chunk], bucket=bucket, size=size
            )
            np.add.at(sums, chunk_lines, log_probs)
    return [Score(total, len(p) + 1) for total, p in zip(sums.tolist(), pieces, strict=True)]


def _masked_token_log_probs(
    inference_model: InferenceModel,
    rows: list[list[Example]],
    positions: np.ndarray,
    *,
    bucket: int,
    size: int,
) -> np.ndarray:
    """Return the log-probability of one masked token per row, float64."""
    batch = inference_model.converter(bucket).static_batch(segments_from_rows(rows), size)
    name = f"{inference_model.model.layout.generated}_tokens"
    indices = np.arange(len(rows)), positions
    labels, padded_positions = np.zeros(size, np.int32), np.zeros(size, np.int32)
    labels[: len(rows)], padded_positions[: len(rows)] = batch[name][indices], positions
    batch[name][indices] = inference_model.vocabulary.mask_id
    with inference_model.placed(model_inputs(batch)) as placed:
        log_probs = masked_log_probs(
            inference_model.params, placed, padded_positions, labels, model=inference_model.model
        )
        return np.asarray(log_probs, np.float64)[: len(rows)]
