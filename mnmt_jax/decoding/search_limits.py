"""Limits of a search: beam size, by the vocabulary, and memory, by the devices."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TypeVar

import jax

from mnmt_jax.config.sections import Decode
from mnmt_jax.decoding.inference_model import InferenceModel
from mnmt_jax.distributed.chips import GIB, device_bytes
from mnmt_jax.errors import UserError, is_out_of_memory

T = TypeVar("T")
_REMEDY = "lower Decode.batch, Decode.beam_size, Decode.max_length or the largest of Decode.buckets"


def check_beam_size(decode: Decode, vocabulary_size: int) -> None:
    """Check that a beam is not larger than the vocabulary.

    Raises:
        UserError: otherwise.
    """
    if decode.method == "beam" and decode.beam_size > vocabulary_size:
        raise UserError(
            f"Decode.beam_size={decode.beam_size} must be at most the {vocabulary_size} ids of the "
            "vocabulary"
        )


def check_memory(inference_model: InferenceModel, decode: Decode, *, rows: int, steps: int) -> None:
    """Check before compilation that the devices have enough memory for a batch.

    Args:
        inference_model: the model.
        decode: settings of the search.
        rows: sentences of the batch.
        steps: maximum number of generated tokens.

    Raises:
        UserError: if the lower bound exceeds the memory of the devices.
    """
    devices = inference_model.mesh.size if inference_model.mesh else 1
    needed = search_bytes(inference_model, decode, rows, steps) // devices
    available = device_bytes(jax.local_devices()[0])
    if needed > available:
        raise UserError(
            f"{rows} sentences (Decode.batch={decode.batch}) with Decode.beam_size="
            f"{decode.beam_size} need at least {needed / GIB:,.1f} GiB on each device, which has "
            f"{available / GIB:,.1f} GiB; {_REMEDY}"
        )


def search_bytes(inference_model: InferenceModel, decode: Decode, rows: int, steps: int) -> int:
    """Return a lower bound of the bytes of a batch.

    It counts the float32 logits of one step, and the keys and values of the generated tokens in the
    last stage.
    """
    config = inference_model.model.config
    itemsize = 4 if config.dtype == "float32" and decode.weights == "stored" else 2
    keys_and_values = 2 * config.stage_layers[-1] * config.embed * steps * itemsize
    return rows * decode.beam_size * (4 * inference_model.vocabulary.size + keys_and_values)


def with_memory_errors(results: Iterator[T], decode: Decode) -> Iterator[T]:
    """Yield the results of a search, with out-of-memory errors as in `memory_errors`."""
    while True:
        with memory_errors(decode):
            result = next(results, None)
        if result is None:
            return
        yield result


@contextlib.contextmanager
def memory_errors(decode: Decode) -> Iterator[None]:
    """Convert out-of-memory errors of a device to a one-line error.

    Raises:
        UserError: if memory runs out in the block.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            f"Decode.batch={decode.batch} with Decode.beam_size={decode.beam_size}: the device is "
            f"out of memory; {_REMEDY}"
        ) from error
