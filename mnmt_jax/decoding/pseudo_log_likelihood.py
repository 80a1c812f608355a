"""What a model that fills masks says of a text: the pseudo-log-likelihood.

Each token, eos among them, is hidden alone, and the log-probabilities of what was hidden are added
up. The sum is no log-probability of the text: figures of two masked models may be compared, those
of a masked and a causal one may not.

Source: Salazar, Liang, Nguyen, Kirchhoff, "Masked Language Model Scoring", ACL 2020, equation 1.
Theirs does not hide the symbol that ends a text; here training asks for it, so scoring does.
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
    system: InferenceModel, lines: Sequence[Line], decode: Decode
) -> list[Score]:
    """Scores texts, `decode.batch` hidden tokens at a time.

    Args:
        system: a model that fills masks.
        lines: of which the source is read.
        decode: gives the buckets.

    Raises:
        UserError: if a text does not fit the largest bucket.
    """
    check_decode(system, decode, {})
    size = system.on_all_devices(decode.batch)
    texts, languages = [line.text for line in lines], [line.source_lang for line in lines]
    pieces = system.vocabulary.encode_lines(texts, languages)
    sizes = [len(each) + system.instruction.source_extra for each in pieces]
    check_lengths_fit_bucket(lines, sizes, decode)
    tag = system.instruction.source_extra - 1
    sums = np.zeros(len(lines))
    for bucket, members in group_by_bucket(dict(enumerate(sizes)), decode):
        owner = np.repeat(members, [len(pieces[i]) + 1 for i in members])
        place = np.concatenate([np.arange(len(pieces[i]) + 1) + tag for i in members])
        for chunk in chunks(list(range(len(owner))), size):
            own = owner[chunk]
            rows = [[make_example(system, lines[i], pieces[i])] for i in own]
            log_probs = _hidden(system, rows, place[chunk], bucket=bucket, size=size)
            np.add.at(sums, own, log_probs)
    return [Score(total, len(p) + 1) for total, p in zip(sums.tolist(), pieces, strict=True)]


def _hidden(
    system: InferenceModel, rows: list[list[Example]], place: np.ndarray, *, bucket: int, size: int
) -> np.ndarray:
    """Returns the log-probability of one token of each row, hidden from the model, float64."""
    batch = system.converter(bucket).static_batch(segments_from_rows(rows), size)
    name = f"{system.model.layout.generated}_tokens"
    at = np.arange(len(rows)), place
    asked, places = np.zeros(size, np.int32), np.zeros(size, np.int32)
    asked[: len(rows)], places[: len(rows)] = batch[name][at], place
    batch[name][at] = system.vocabulary.mask_id
    with system.placed(model_inputs(batch)) as placed:
        found = masked_log_probs(system.params, placed, places, asked, model=system.model)
        return np.asarray(found, np.float64)[: len(rows)]
