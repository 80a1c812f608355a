"""spBLEU: BLEU over the pieces of Flores-200's SentencePiece model, sacreBLEU's `flores200`.

sacreBLEU distributes the model file. Without it spBLEU is left out; there is no other tokenizer to
fall back on.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import sentencepiece
from sacrebleu.metrics import BLEU
from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
from sacrebleu.utils import SACREBLEU_DIR

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.metrics import score_and_statistics

TOKENIZER = "flores200"


def cached_model_path() -> Path:
    """Return the path of the model in sacreBLEU's cache, whether or not the file exists."""
    return Path(SACREBLEU_DIR) / "models" / os.path.basename(SPM_MODELS[TOKENIZER]["url"])


class FloresTokenizer:
    """Tokenizer of spBLEU.

    Args:
        path: path of the SentencePiece model.

    Attributes:
        fingerprint: hash of the model file, 8 hexadecimal digits.

    Raises:
        UserError: if the file is missing or is not a SentencePiece model.
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        if not path.is_file():
            raise UserError(f"{path}: no such file; {download_hint()}")
        model = path.read_bytes()
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.load_from_serialized_proto(model)
        except (RuntimeError, OSError) as error:
            raise UserError(f"{path}: not a SentencePiece model; {download_hint()}") from error
        self.fingerprint = hashlib.sha256(model).hexdigest()[:8]

    @functools.lru_cache(maxsize=1 << 16)  # noqa: B019 - the tokenizer lives as long as the process
    def __call__(self, text: str) -> str:
        """Return the pieces of a text, separated by spaces."""
        return " ".join(self._processor.encode(text, out_type=str))


def find_tokenizer(path: str | Path | None = None) -> FloresTokenizer | None:
    """Load the tokenizer from a file or from sacreBLEU's cache; None if it is not cached.

    Args:
        path: path of the model, which must exist; None looks into the cache.
    """
    if path is not None:
        return FloresTokenizer(path)
    return FloresTokenizer(cached_model_path()) if cached_model_path().is_file() else None


def download_hint() -> str:
    """Return instructions to get the model."""
    return (
        "get flores200_sacrebleu_tokenizer_spm.model (`sacrebleu -tok flores200` downloads it to "
        f"{cached_model_path()}) or name it with --flores200_model"
    )


def missing_model_note() -> str:
    """Return a note that spBLEU was left out, with the remedy."""
    return "spBLEU left out: no tokenizer model; name its file with --flores200_model"


def spbleu(
    hypotheses: Sequence[str], references: Sequence[str], tokenizer: FloresTokenizer
) -> tuple[float, np.ndarray, str]:
    """Return corpus spBLEU in percent, the statistics of its sentences, and its signature.

    Args:
        hypotheses: output texts.
        references: reference translations, one per hypothesis.
        tokenizer: tokenizer of Flores-200.

    Source: sacreBLEU with `-tok flores200`; the scores are equal.
    """
    bleu = BLEU(tokenize="none", force=True)  # force only silences a warning about tokenized input
    score, statistics = score_and_statistics(
        bleu, [tokenizer(text) for text in hypotheses], [tokenizer(text) for text in references]
    )
    signature = str(bleu.get_signature()).replace("tok:none", f"tok:{TOKENIZER}")
    return score, statistics, f"{signature}|model:{tokenizer.fingerprint}"
