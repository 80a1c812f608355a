"""Miniature checkpoints: random weights in the file form of a released model.

    python -m mnmt_jax.interop.miniature_checkpoint nllb_600m data/nllb-200-distilled-600M

A checkpoint has the layers and the language tags of the released model. Its pieces are trained on
the phrases of miniature corpora.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import sentencepiece

from mnmt_jax.config.sections import Model
from mnmt_jax.data.miniature_text import LINES, phrases
from mnmt_jax.errors import UserError
from mnmt_jax.interop.names import FAIRSEQ
from mnmt_jax.interop.random_checkpoint import (
    random_tensors,
    write_fairseq,
    write_json,
    write_m2m100,
)
from mnmt_jax.interop.tags import M2M100_LANGUAGES, NLLB_TAGS
from mnmt_jax.interop.token_table import SPECIAL_NAMES
from mnmt_jax.runtime.run_command import run_command
from mnmt_jax.vocabulary.languages import MITRE_LANGUAGES, TED19_LANGUAGES

PIECES = 1200
_BEFORE_PIECES = 3  # SentencePiece's <unk>, <s> and </s>
_MASK = 1


@dataclasses.dataclass(frozen=True)
class ReleasedModel:
    """A released model as its miniature needs it.

    Attributes:
        layers: layers of the encoder, and as many of the decoder.
        form: files that it is published as, a key of `_WRITERS`.
    """

    layers: int
    form: str


RELEASED: Mapping[str, ReleasedModel] = {
    "m2m100_418m": ReleasedModel(12, "m2m100"),
    "m2m100_1.2b": ReleasedModel(24, "m2m100"),
    "m2m_615m": ReleasedModel(12, "fairseq"),
    "nllb_600m": ReleasedModel(12, "nllb"),
    "nllb_1.3b": ReleasedModel(24, "nllb"),
    "nllb_3.3b": ReleasedModel(24, "nllb"),
}
"""Models that papers import, by their name in the section `imports` of `paper.toml`."""


def write_miniature_checkpoint(
    name: str, path: Path, *, embed: int = 16, heads: int = 2, mlp: int = 32
) -> None:
    """Write the miniature of a released model.

    Args:
        name: its name in `RELEASED`.
        path: the directory or file that `mnmt import` reads.
        embed: width of the embeddings.
        heads: number of attention heads.
        mlp: width of the feed-forward networks.

    Raises:
        UserError: if there is no such model.
    """
    if name not in RELEASED:
        raise UserError(
            f"no miniature of '{name}', only of {', '.join(RELEASED)}; add its layers to RELEASED "
            "in mnmt_jax/interop/miniature_checkpoint.py"
        )
    released = RELEASED[name]
    layers = (released.layers,) * 2
    model = Model("encoder_decoder", layers, embed=embed, heads=heads, mlp=mlp)
    _WRITERS[released.form](path, model, train_pieces())


@functools.cache
def train_pieces() -> bytes:
    """Train a SentencePiece model on the phrases of the evaluated languages."""
    languages = dict.fromkeys((*TED19_LANGUAGES, *MITRE_LANGUAGES))
    text = [line for code in languages for line in phrases(code, "train", LINES)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_writer=model,
        vocab_size=PIECES,
        character_coverage=1.0,
        num_threads=16,
        minloglevel=2,
    )
    return model.getvalue()


def _piece_names(pieces: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=pieces)
    return [processor.id_to_piece(number) for number in range(_BEFORE_PIECES, PIECES)]


def _size(languages: Sequence[str]) -> int:
    return len(SPECIAL_NAMES) + PIECES - _BEFORE_PIECES + len(languages)


def _write_nllb(folder: Path, model: Model, pieces: bytes) -> None:
    """Write the files of NLLB: ids follow from the SentencePiece model."""
    write_m2m100(folder, model, sentencepiece_model=pieces, size=_size(NLLB_TAGS) + _MASK)


def _write_m2m100(folder: Path, model: Model, pieces: bytes) -> None:
    """Write the files of M2M-100, with a list of the ids of tokens."""
    write_m2m100(folder, model, sentencepiece_model=pieces, size=_size(M2M100_LANGUAGES))
    tokens = [*SPECIAL_NAMES, *_piece_names(pieces)]
    write_json(folder / "vocab.json", {token: number for number, token in enumerate(tokens)})
    tags = [f"__{code}__" for code in M2M100_LANGUAGES]
    write_json(folder / "special_tokens_map.json", {"additional_special_tokens": tags})


def _write_fairseq(file: Path, model: Model, pieces: bytes) -> None:
    """Write M2M-100's checkpoint of fairseq, with the source's tag first and the target's."""
    settings: dict[str, Any] = {"arch": "transformer", "encoder_langtok": "src"}
    settings["decoder_langtok"] = True
    for side, layers in zip(("encoder", "decoder"), model.stage_layers, strict=True):
        settings |= {f"{side}_layers": layers, f"{side}_normalize_before": True}
        settings |= {f"{side}_embed_dim": model.embed}
        settings |= {f"{side}_ffn_embed_dim": model.mlp}
        settings[f"{side}_attention_heads"] = model.heads
    write_fairseq(
        file,
        random_tensors(model, FAIRSEQ, _size(M2M100_LANGUAGES)),
        {"args": argparse.Namespace(**settings)},
        pieces=_piece_names(pieces),
        languages=M2M100_LANGUAGES,
        sentencepiece_model=pieces,
    )


_WRITERS: Mapping[str, Callable[[Path, Model, bytes], None]] = {
    "nllb": _write_nllb,
    "m2m100": _write_m2m100,
    "fairseq": _write_fairseq,
}


def main() -> None:
    """Write the miniature that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help=f"one of {', '.join(RELEASED)}")
    parser.add_argument("path", type=Path, help="directory or file to write")
    for name, default in (("embed", 16), ("heads", 2), ("mlp", 32)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default: {default}")
    flags = parser.parse_args()
    sizes = {name: getattr(flags, name) for name in ("embed", "heads", "mlp")}
    write_miniature_checkpoint(flags.model, flags.path, **sizes)


if __name__ == "__main__":
    run_command(main)
