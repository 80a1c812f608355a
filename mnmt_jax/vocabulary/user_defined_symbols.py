"""User-defined symbols of a SentencePiece model: texts that are always one piece."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mnmt_jax.vocabulary.special_ids import UNK_ID
from mnmt_jax.vocabulary.vocabulary import Vocabulary

# Numbers of fields, and a value, of sentencepiece_model.proto; its Python module needs protobuf.
_PIECES, _PIECE, _TYPE = 1, 1, 3
_USER_DEFINED = 4
_UNTRAINABLE = "<unk>"  # SentencePiece trains no user-defined symbol of this name


def user_defined_symbols(vocabulary: Vocabulary) -> tuple[str, ...]:
    """Return the user-defined symbols that have an id in a vocabulary, in their order.

    Example:
        ("␤",) for a vocabulary that `mnmt cache --context` trained
    """
    pieces = (
        dict(_fields(item)) for number, item in _fields(vocabulary.model) if number == _PIECES
    )
    return tuple(
        piece[_PIECE].decode()
        for piece, token in zip(pieces, vocabulary.spm_to_id.tolist(), strict=True)
        if piece.get(_TYPE) == _USER_DEFINED and token != UNK_ID
        if piece[_PIECE].decode() != _UNTRAINABLE
    )


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of the fields of a valid protocol buffer message."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, wire_type = key >> 3, key & 7
        if wire_type == 0:
            value, position = _varint(message, position)
            yield number, value
            continue
        if wire_type == 2:
            size, position = _varint(message, position)
        else:
            size = 8 if wire_type == 1 else 4
        yield number, message[position : position + size]
        position += size


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Return the integer of variable length at a position, and the position after it."""
    value = shift = 0
    while message[position] & 128:
        value |= (message[position] & 127) << shift
        position, shift = position + 1, shift + 7
    return value | message[position] << shift, position + 1
