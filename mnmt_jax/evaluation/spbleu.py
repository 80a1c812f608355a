"""spBLEU: BLEU over the pieces of Flores-200's SentencePiece model, sacreBLEU's `flores200`.

The model is a file of sacreBLEU's. Without it there is no spBLEU; no other tokenizer stands in.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import sentencepiece
from sacrebleu.metrics import BLEU
from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
from sacrebleu.utils import SACREBLEU_DIR

from mnmt_jax.errors import UserError

TOKENIZER = "flores200"


def cached_model_path() -> Path:
    """Return the path at which sacreBLEU keeps the model once it has downloaded it."""
    return Path(SACREBLEU_DIR) / "models" / os.path.basename(SPM_MODELS[TOKENIZER]["url"])


class FloresTokenizer:
    """Splits text into the pieces that spBLEU counts.

    Args:
        path: of the SentencePiece model.

    Raises:
        UserError: if the file is missing or no SentencePiece model.
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

    @functools.lru_cache(maxsize=1 << 16)  # noqa: B019 - one tokenizer lives as long as its command
    def __call__(self, text: str) -> str:
        """Return the pieces of a text, separated by blanks."""
        return " ".join(self._processor.encode(text, out_type=str))


def find_tokenizer(path: str | Path | None = None) -> FloresTokenizer | None:
    """Load the tokenizer from a file or from sacreBLEU's cache; None if it is not there.

    Args:
        path: given by the user; must exist then.
    """
    if path is not None:
        return FloresTokenizer(path)
    return FloresTokenizer(cached_model_path()) if cached_model_path().is_file() else None


def download_hint() -> str:
    """Say how to get the model."""
    return (
        "get flores200_sacrebleu_tokenizer_spm.model (`sacrebleu -tok flores200` downloads it to "
        f"{cached_model_path()}) or name it with --flores200_model"
    )


def missing_model_note() -> str:
    """Say that spBLEU was left out and what to do about it."""
    return f"spBLEU left out: sacreBLEU's flores200 tokenizer is not here; {download_hint()}"


def spbleu(
    hypotheses: Sequence[str], references: Sequence[str], tokenizer: FloresTokenizer
) -> tuple[float, str]:
    """Return corpus spBLEU in percent and its signature.

    Args:
        hypotheses: output texts.
        references: one per hypothesis.
        tokenizer: Flores-200's.

    Source: sacreBLEU with `-tok flores200`; the same numbers.
    """
    bleu = BLEU(tokenize="none", force=True)  # force only silences a hint about tokens
    score = bleu.corpus_score(
        [tokenizer(text) for text in hypotheses], [[tokenizer(text) for text in references]]
    )
    signature = str(bleu.get_signature()).replace("tok:none", f"tok:{TOKENIZER}")
    return score.score, f"{signature}|model:{tokenizer.fingerprint}"
