"""Miniature checkpoints: random weights in the file form of a released model.

    python -m mnmt_jax.papers.miniature_checkpoint nllb_600m data/nllb-200-distilled-600M

A checkpoint has the layers and the language tags of the released model, and the sizes of
`--scale tiny`. Its pieces are trained on the phrases of miniature corpora.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
from collections.abc import Mapping
from pathlib import Path

import sentencepiece

from mnmt_jax.config.sections import Model
from mnmt_jax.errors import UserError
from mnmt_jax.interop.random_checkpoint import SPECIALS, write_json, write_m2m100
from mnmt_jax.interop.tags import M2M100_LANGUAGES, NLLB_TAGS
from mnmt_jax.papers.miniature import LINES, phrases
from mnmt_jax.runtime.run_command import run_command
from mnmt_jax.vocabulary.languages import MITRE_LANGUAGES, TED19_LANGUAGES

EMBED, HEADS, MLP = 16, 2, 32
"""Sizes of all models of `--scale tiny`."""
PIECES = 1200
_BEFORE_PIECES = 3  # SentencePiece's <unk>, <s> and </s>
_MASK = 1


@dataclasses.dataclass(frozen=True)
class ReleasedModel:
    """A released model as its miniature needs it.

    Attributes:
        layers: layers of the encoder, and as many of the decoder.
        lists_tokens: whether it has M2M-100's `vocab.json`; NLLB has the SentencePiece model alone.
    """

    layers: int
    lists_tokens: bool = False


RELEASED: Mapping[str, ReleasedModel] = {
    "m2m100_418m": ReleasedModel(12, lists_tokens=True),
    "m2m100_1.2b": ReleasedModel(24, lists_tokens=True),
    "nllb_600m": ReleasedModel(12),
    "nllb_1.3b": ReleasedModel(24),
    "nllb_3.3b": ReleasedModel(24),
}
"""Models that papers import, by their name in the section `imports` of `paper.toml`."""


def write_miniature_checkpoint(name: str, folder: Path) -> None:
    """Write the miniature of a released model.

    Args:
        name: its name in `RELEASED`.
        folder: the directory that `mnmt import` reads.

    Raises:
        UserError: if there is no such model.
    """
    if name not in RELEASED:
        raise UserError(
            f"no miniature of '{name}', only of {', '.join(RELEASED)}; add its layers to RELEASED "
            "in mnmt_jax/papers/miniature_checkpoint.py"
        )
    released = RELEASED[name]
    model = Model("encoder_decoder", (released.layers,) * 2, embed=EMBED, heads=HEADS, mlp=MLP)
    pieces = train_pieces()
    tags = M2M100_LANGUAGES if released.lists_tokens else NLLB_TAGS
    size = len(SPECIALS) + PIECES - _BEFORE_PIECES + len(tags) + _MASK
    write_m2m100(folder, model, sentencepiece_model=pieces, size=size)
    if released.lists_tokens:
        _write_token_list(folder, pieces)


def train_pieces() -> bytes:
    """Train a SentencePiece model on the phrases of the evaluated languages."""
    languages = dict.fromkeys((*TED19_LANGUAGES, *MITRE_LANGUAGES))
    text = [line for code in languages for line in phrases(code, "train", LINES)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_writer=model,
        vocab_size=PIECES,
        num_threads=16,
        minloglevel=2,
    )
    return model.getvalue()


def _write_token_list(folder: Path, pieces: bytes) -> None:
    processor = sentencepiece.SentencePieceProcessor(model_proto=pieces)
    numbers = range(_BEFORE_PIECES, processor.get_piece_size())
    tokens = [*SPECIALS, *map(processor.id_to_piece, numbers)]
    write_json(folder / "vocab.json", {token: number for number, token in enumerate(tokens)})
    tags = [f"__{code}__" for code in M2M100_LANGUAGES]
    write_json(folder / "special_tokens_map.json", {"additional_special_tokens": tags})


def main() -> None:
    """Write the miniature that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help=f"one of {', '.join(RELEASED)}")
    parser.add_argument("folder", type=Path, help="directory to write")
    flags = parser.parse_args()
    write_miniature_checkpoint(flags.model, flags.folder)


if __name__ == "__main__":
    run_command(main)
