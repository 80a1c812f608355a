"""User-defined symbols of a SentencePiece model: texts that are always one piece."""

from __future__ import annotations

from typing import Any

from mnmt_jax.vocabulary.special_ids import UNK_ID
from mnmt_jax.vocabulary.vocabulary import Vocabulary

_UNTRAINABLE = "<unk>"  # SentencePiece trains no user-defined symbol of this name


def user_defined_symbols(vocabulary: Vocabulary) -> tuple[str, ...]:
    """Return the user-defined symbols that have an id in a vocabulary, in their order.

    Example:
        ("␤",) for a vocabulary that `mnmt cache --context` trained
    """
    from sentencepiece import sentencepiece_model_pb2  # needs protobuf, which Orbax brings

    model: Any = sentencepiece_model_pb2  # its classes are made when it is imported
    pieces = model.ModelProto.FromString(vocabulary.model).pieces
    return tuple(
        piece.piece
        for piece, token in zip(pieces, vocabulary.spm_to_id.tolist(), strict=True)
        if piece.type == piece.USER_DEFINED and token != UNK_ID and piece.piece != _UNTRAINABLE
    )
