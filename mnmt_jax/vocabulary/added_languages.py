"""Languages added to a vocabulary: each has a SentencePiece model of its own that cuts its text.

A piece of that model that the vocabulary has already, because text had it before, keeps its id; the
other ones, its unseen types, get new ids. Text of the languages before is cut as ever.

Source: third paper, section 4.4 and Appendix A. How text is then cut is stated nowhere; this is
what training a second SentencePiece model on the language's text amounts to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import sentencepiece

from mnmt_jax.errors import UserError, join_names
from mnmt_jax.vocabulary.special_ids import UNK_ID


class AddedLanguage(NamedTuple):
    """A language added.

    Attributes:
        language: its code.
        model: a serialised SentencePiece model, which cuts its text.
    """

    language: str
    model: bytes


@dataclasses.dataclass(frozen=True, eq=False)
class AddedPieces:
    """What languages added have of their own.

    Attributes:
        pieces: their unseen ones, in the order of their ids.
        ids: by language, our id of each id of its SentencePiece model.
        processors: the models, by language.
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
        """Gives the unseen pieces ids.

        Args:
            additions: in the order of the ids.
            base: the SentencePiece model of the languages before.
            base_ids: its id of each of our ids below the copies; -1 where it has none.
            first: our id of the first unseen piece.
        """
        if not additions:
            return cls((), {}, {})
        processors = {language: parse_sentencepiece_model(model) for language, model in additions}
        of_base = dict(text_pieces(base))
        bytes_of_base = {base.id_to_piece(i) for i in of_base if base.is_byte(i)}
        known = {of_base[i]: ours for ours, i in enumerate(base_ids.tolist()) if i in of_base}
        # What the first model has as a control symbol would decode to nothing: it is unk.
        all_of_base = {base.id_to_piece(i) for i in range(base.get_piece_size())}
        lost = all_of_base.difference(of_base.values())
        unseen: list[str] = []
        ids = {}
        for language, processor in processors.items():
            ids[language] = [UNK_ID] * processor.get_piece_size()
            for i, piece in text_pieces(processor):
                if processor.is_byte(i) and piece not in bytes_of_base:
                    continue  # it would decode to its name
                if piece not in known and piece not in lost:
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
        """Returns the ids of each line in the SentencePiece model of its language.

        Args:
            lines: texts.
            codes: their languages.
            base: the model of languages that were not added.
        """
        if not self.processors:
            return base.encode(list(lines))
        found: list[list[int]] = [[]] * len(lines)
        for code in dict.fromkeys(codes):
            rows = [row for row, other in enumerate(codes) if other == code]
            processor = self.processors.get(code or "", base)
            cut = processor.encode([lines[row] for row in rows])
            for row, pieces in zip(rows, cut, strict=True):
                found[row] = pieces
        return found


def check_added_languages(
    additions: Iterable[Sequence], languages: Sequence[str]
) -> tuple[AddedLanguage, ...]:
    """Returns the additions as such.

    Raises:
        UserError: if a language has no tag or is added twice.
    """
    found: dict[str, AddedLanguage] = {}
    known = set(languages)
    for language, model in additions:
        if language not in known:
            raise UserError(
                f"language '{language}' was added but has no tag; it must be one of "
                f"{join_names(languages)}"
            )
        if language in found:
            raise UserError(f"language '{language}' was added twice; add it once")
        found[language] = AddedLanguage(language, model)
    return tuple(found.values())


def parse_sentencepiece_model(model: bytes) -> sentencepiece.SentencePieceProcessor:
    """Parses a serialised SentencePiece model.

    Raises:
        RuntimeError: or an `OSError`, if it is none.
    """
    processor = sentencepiece.SentencePieceProcessor()
    processor.load_from_serialized_proto(model)
    return processor


def text_pieces(processor: sentencepiece.SentencePieceProcessor) -> Iterator[tuple[int, str]]:
    """Yields a model's id of each piece that stands for characters or bytes, and the piece."""
    for i in range(processor.get_piece_size()):
        control = processor.is_control(i) or processor.is_unused(i)
        if not control and not processor.is_unknown(i):
            yield i, processor.id_to_piece(i)


def append_pieces(model: bytes, pieces: Sequence[str]) -> bytes:
    """Returns a SentencePiece model with further pieces after its own, to decode with.

    Pieces are a repeated field of the serialised message, to which fields may be appended.

    Args:
        model: serialised.
        pieces: that it does not have.
    """
    return model + b"".join(_field(1, _field(1, piece.encode())) for piece in pieces)


def _field(number: int, content: bytes) -> bytes:
    """Returns a field of bytes of a protocol buffer: its key, its length and its content."""
    length, size = bytearray(), len(content)
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + content
