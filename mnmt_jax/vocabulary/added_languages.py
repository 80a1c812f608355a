"""Languages added to a vocabulary, each with a SentencePiece model for its text.

A piece of that model that the vocabulary already has for text keeps its id. The other pieces, the
unseen ones, get new ids. The encoding of the earlier languages does not change.

Source: Qu and Watanabe 2022, section 4.4 and Appendix A. The paper does not state how text is then
encoded; this is equivalent to training a second SentencePiece model on the language's text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import sentencepiece

from mnmt_jax.errors import UserError, join_names
from mnmt_jax.vocabulary.special_ids import UNK_ID

_MANY_LINES = 128


class AddedLanguage(NamedTuple):
    """An added language.

    Attributes:
        language: language code.
        model: serialised SentencePiece model that encodes its text.
    """

    language: str
    model: bytes


@dataclasses.dataclass(frozen=True, eq=False)
class AddedPieces:
    """Pieces and SentencePiece models of added languages.

    Attributes:
        pieces: unseen pieces, in the order of their ids.
        ids: by language, the vocabulary's id of each id of its SentencePiece model.
        processors: SentencePiece models by language.
    """

    pieces: tuple[str, ...]
    ids: Mapping[str, list[int]]
    processors: Mapping[str, sentencepiece.SentencePieceProcessor]

    @classmethod
    def assign_ids(
        cls,
        additions: Sequence[AddedLanguage],
        base: sentencepiece.SentencePieceProcessor,
        base_ids: np.ndarray,
        first: int,
    ) -> AddedPieces:
        """Assign ids to the unseen pieces.

        Args:
            additions: added languages, in the order of the ids.
            base: SentencePiece model of the original languages.
            base_ids: id in `base` of each of the vocabulary's ids below the copies; -1 if it has
                none.
            first: the vocabulary's id of the first unseen piece.
        """
        if not additions:
            return cls((), {}, {})
        processors = {language: parse_sentencepiece_model(model) for language, model in additions}
        base_pieces = dict(text_pieces(base))
        base_byte_pieces = {base.id_to_piece(i) for i in base_pieces if base.is_byte(i)}
        known = {
            base_pieces[i]: token for token, i in enumerate(base_ids.tolist()) if i in base_pieces
        }
        # Control symbols of the base model would decode to an empty string: map them to unk.
        all_base_pieces = {base.id_to_piece(i) for i in range(base.get_piece_size())}
        undecodable = all_base_pieces.difference(base_pieces.values())
        unseen: list[str] = []
        ids = {}
        for language, processor in processors.items():
            ids[language] = [UNK_ID] * processor.get_piece_size()
            for i, piece in text_pieces(processor):
                if processor.is_byte(i) and piece not in base_byte_pieces:
                    continue  # it would decode to its name, not to the byte
                if piece not in known and piece not in undecodable:
                    known[piece] = first + len(unseen)
                    unseen.append(piece)
                ids[language][i] = known.get(piece, UNK_ID)
        return cls(tuple(unseen), ids, processors)

    def encode_lines(
        self,
        lines: Sequence[str],
        codes: Sequence[str | None],
        base: sentencepiece.SentencePieceProcessor,
    ) -> list[list[int]]:
        """Return the ids of each line in the SentencePiece model of its language.

        Args:
            lines: texts.
            codes: their languages.
            base: model of the languages that were not added.
        """
        if not self.processors:
            return _encode(base, lines)
        encoded: list[list[int]] = [[]] * len(lines)
        for code in dict.fromkeys(codes):
            rows = [row for row, other in enumerate(codes) if other == code]
            processor = self.processors.get(code or "", base)
            encoded_rows = _encode(processor, [lines[row] for row in rows])
            for row, pieces in zip(rows, encoded_rows, strict=True):
                encoded[row] = pieces
        return encoded


def _encode(
    processor: sentencepiece.SentencePieceProcessor, lines: Sequence[str]
) -> list[list[int]]:
    """Return the ids of lines. SentencePiece starts threads for a list, which few do not repay."""
    if len(lines) < _MANY_LINES:
        return [processor.encode(line) for line in lines]
    return processor.encode(list(lines))


def check_added_languages(
    additions: Iterable[Sequence], languages: Sequence[str]
) -> tuple[AddedLanguage, ...]:
    """Return the additions as `AddedLanguage` items.

    Raises:
        UserError: if a language has no tag or is added twice.
    """
    added: dict[str, AddedLanguage] = {}
    known = set(languages)
    for language, model in additions:
        if language not in known:
            raise UserError(
                f"language '{language}' was added but has no tag; it must be one of "
                f"{join_names(languages)}"
            )
        if language in added:
            raise UserError(f"language '{language}' was added twice; add it once")
        added[language] = AddedLanguage(language, model)
    return tuple(added.values())


def parse_sentencepiece_model(model: bytes) -> sentencepiece.SentencePieceProcessor:
    """Parse a serialised SentencePiece model.

    Raises:
        RuntimeError: or an `OSError`, if it is not a valid model.
    """
    processor = sentencepiece.SentencePieceProcessor()
    processor.load_from_serialized_proto(model)
    return processor


def text_pieces(processor: sentencepiece.SentencePieceProcessor) -> Iterator[tuple[int, str]]:
    """Yield the id and the piece of each piece that stands for characters or bytes."""
    for i in range(processor.get_piece_size()):
        control = processor.is_control(i) or processor.is_unused(i)
        if not control and not processor.is_unknown(i):
            yield i, processor.id_to_piece(i)


def append_pieces(model: bytes, pieces: Sequence[str]) -> bytes:
    """Return a SentencePiece model with further pieces appended, for decoding.

    Pieces are a repeated field of the serialised message, to which fields may be appended.

    Args:
        model: serialised.
        pieces: pieces that the model does not have.
    """
    return model + b"".join(_field(1, _field(1, piece.encode())) for piece in pieces)


def _field(number: int, content: bytes) -> bytes:
    """Return a protocol buffer field of bytes: its key, its length and its content."""
    length, size = bytearray(), len(content)
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + content
