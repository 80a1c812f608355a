"""Byte fallback: byte pieces for characters that no other piece covers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sentencepiece


def byte_values(
    processor: sentencepiece.SentencePieceProcessor, ids: Sequence[int]
) -> dict[int, int]:
    """Return the byte value of each byte piece by id; empty without byte pieces.

    Args:
        processor: the SentencePiece model.
        ids: the vocabulary's id of each of its pieces.
    """
    pieces = [i for i in range(processor.get_piece_size()) if processor.is_byte(i)]
    return {ids[i]: int(processor.id_to_piece(i)[1:-1], 16) for i in pieces}


def drop_incomplete_character(ids: Sequence[int], values: Mapping[int, int]) -> Sequence[int]:
    """Drop an incomplete UTF-8 character at the end of a truncated text.

    Args:
        ids: ids of text.
        values: byte values by id.

    Returns:
        The ids without an incomplete character at the end.
    """
    for count in range(1, min(3, len(ids)) + 1):
        value = values.get(ids[-count], 0)
        if value < 0x80:
            break
        if value >= 0xC0:  # the leading byte encodes the number of bytes
            size = 4 if value >= 0xF0 else 3 if value >= 0xE0 else 2
            return ids if count >= size else ids[:-count]
    return ids
