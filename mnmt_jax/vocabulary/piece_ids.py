"""Order of the shared pieces: special ids first, then those of the SentencePiece model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import sentencepiece


def shared_piece_ids(
    processor: sentencepiece.SentencePieceProcessor, pieces: Sequence[str] | None
) -> np.ndarray:
    """Return the SentencePiece id of each shared vocabulary id, int32; -1 if it has none.

    Args:
        processor: the SentencePiece model.
        pieces: pieces after the special ones, in the order of their ids; None: as in the model.
    """
    special = [processor.pad_id(), processor.eos_id(), processor.unk_id()]
    others = [i for i in range(processor.get_piece_size()) if i not in special]
    if pieces is None:
        return np.array(special + others, np.int32)
    ids = {processor.id_to_piece(i): i for i in others}
    return np.array(special + [ids.get(piece, -1) for piece in pieces], np.int32)
