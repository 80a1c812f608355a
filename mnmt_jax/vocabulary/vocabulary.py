"""Vocabulary: three special ids, SentencePiece pieces, and one tag per language.

The ids are, in this order: pad 0, eos 1, unk 2; the other pieces of the SentencePiece model in its
order; copies of pieces for text of one language, if there are any; pieces of languages added later;
the language tags in the order of the language list. Tags are not SentencePiece pieces, so no text
can contain one. The pieces of an imported model may differ from those of its SentencePiece model.
Then the vocabulary lists them, and a SentencePiece piece that is not in the list is unk.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import sentencepiece

from mnmt_jax.errors import UserError, name_os_errors
from mnmt_jax.vocabulary.added_languages import (
    AddedLanguage,
    AddedPieces,
    append_pieces,
    check_added_languages,
    parse_sentencepiece_model,
    text_pieces,
)
from mnmt_jax.vocabulary.byte_fallback import byte_values, drop_incomplete_character
from mnmt_jax.vocabulary.language_checks import check_languages
from mnmt_jax.vocabulary.language_codes import vocabulary_code
from mnmt_jax.vocabulary.language_specific_pieces import (
    LanguagePiece,
    check_language_pieces,
    copy_ids_by_language,
    language_piece_name,
    refuse_byte_copies,
)
from mnmt_jax.vocabulary.normalization import NONE, SPACE_MARK, check_normalization, normalize_lines
from mnmt_jax.vocabulary.piece_ids import shared_piece_ids
from mnmt_jax.vocabulary.special_ids import EOS_ID, FIRST_PIECE, PAD_ID, UNK_ID
from mnmt_jax.vocabulary.vocabulary_files import (
    FORMAT_VERSION,
    MODEL_FILE,
    VocabularyData,
    compute_fingerprint,
    mismatched_files_error,
    read_vocabulary_files,
    write_vocabulary_files,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Vocabulary:
    """Mapping between text and ids, with a tag id for each language.

    Attributes:
        model: serialised SentencePiece model.
        languages: codes in tag order.
        pieces: pieces of the ids from unk to the copies; None stands for the pieces of the model in
            its order.
        copies: copies of pieces, which take the ids after `pieces`: a piece, and the one language
            whose text uses this id instead of the piece's.
        additions: languages added later, each with its own SentencePiece model, in id order
            (`mnmt_jax.vocabulary.added_languages`).
        normalization: normalisation of text before encoding, one of
            `mnmt_jax.vocabulary.normalization.NORMALIZATIONS`.
        pad_id: id of unused positions; padding is identified by segment ids, never by this id.
        eos_id: id of the end of a sentence.
        unk_id: id of text that no piece covers.
    """

    model: bytes = dataclasses.field(repr=False)
    languages: tuple[str, ...]
    pieces: tuple[str, ...] | None = dataclasses.field(default=None, repr=False)
    copies: tuple[LanguagePiece, ...] = dataclasses.field(default=(), repr=False)
    additions: tuple[AddedLanguage, ...] = dataclasses.field(default=(), repr=False)
    normalization: str = NONE
    pad_id: int = dataclasses.field(default=PAD_ID, init=False)
    eos_id: int = dataclasses.field(default=EOS_ID, init=False)
    unk_id: int = dataclasses.field(default=UNK_ID, init=False)

    def __post_init__(self) -> None:
        """Check the lists."""
        object.__setattr__(self, "languages", check_languages(self.languages))
        if self.pieces is not None:
            object.__setattr__(self, "pieces", tuple(self.pieces))
            if len(set(self.pieces)) != len(self.pieces):
                raise UserError("a piece is listed twice; list each piece once")
        object.__setattr__(self, "copies", check_language_pieces(self.copies, self.languages))
        object.__setattr__(self, "additions", check_added_languages(self.additions, self.languages))
        check_normalization(self.normalization)

    @classmethod
    def from_sentencepiece(
        cls, path: str | Path, languages: Sequence[str], pieces: Sequence[str] | None = None
    ) -> Vocabulary:
        """Create a vocabulary from any SentencePiece model, whatever its special ids are.

        Args:
            path: a `.model` file.
            languages: codes in tag order.
            pieces: pieces between unk and the tags, if not those of the model in its order.

        Raises:
            UserError: if the file is missing or not a SentencePiece model.
        """
        path = Path(path)
        if not path.is_file():
            raise UserError(f"{path}: no such file; give the path of a SentencePiece .model file")
        listed = None if pieces is None else tuple(pieces)
        return cls(path.read_bytes(), tuple(languages), listed)._checked(path)

    @classmethod
    def load(cls, directory: str | Path, remedy: str = "") -> Vocabulary:
        """Read what `save` wrote and check it; `remedy` says what to do if a file is missing.

        Raises:
            UserError: if a file is missing, damaged or does not match the recorded fingerprint.
        """
        data, facts = read_vocabulary_files(directory, remedy)
        directory, vocabulary = Path(directory), cls(*data)
        # Checked first, so that a damaged model never reaches SentencePiece's parser.
        if (
            facts.get("format") != FORMAT_VERSION
            or facts.get("fingerprint") != vocabulary.fingerprint
        ):
            raise mismatched_files_error(directory)
        return vocabulary._checked(directory / MODEL_FILE)

    def with_copies(self, copies: Sequence[LanguagePiece]) -> Vocabulary:
        """Return this vocabulary with other copies; ids of shared pieces stay, ids of tags change.

        Raises:
            UserError: if a copy is of a byte piece or of one that cannot occur in text, or for a
                language without tag.
        """
        refuse_byte_copies(copies, [self.named_pieces[i - FIRST_PIECE] for i in self.byte_values])
        vocabulary = dataclasses.replace(self, copies=tuple(copies))
        vocabulary.id_to_spm  # noqa: B018 - raises
        return vocabulary

    def with_language(self, language: str, model: bytes | None = None) -> Vocabulary:
        """Return this vocabulary with an additional language; only the ids of tags change.

        Args:
            language: language code; its tag is the last.
            model: serialised SentencePiece model for its text, whose unseen pieces get new ids;
                None encodes the text with the model of the other languages.

        Raises:
            UserError: if the language has a tag already.
        """
        if language in self.languages:
            raise UserError(
                f"language '{language}' is in the vocabulary already; it has "
                f"{', '.join(self.languages)}"
            )
        added = () if model is None else (AddedLanguage(language, model),)
        return dataclasses.replace(
            self, languages=(*self.languages, language), additions=(*self.additions, *added)
        )

    def is_extension_of(self, other: Vocabulary) -> bool:
        """Return whether all ids of another vocabulary except its tags keep their meaning here."""
        same_pieces = all(
            getattr(self, name) == getattr(other, name)
            for name in ("model", "pieces", "copies", "normalization")
        )
        same_languages = self.languages[: len(other.languages)] == other.languages
        same_additions = self.additions[: len(other.additions)] == other.additions
        later_languages = {code for code, _ in self.additions[len(other.additions) :]}
        is_disjoint = later_languages.isdisjoint(other.languages)
        return same_pieces and same_languages and same_additions and is_disjoint

    def save(self, directory: str | Path) -> None:
        """Write `spm.model`, `languages.txt`, `vocabulary.json`, and the optional lists."""
        facts = {
            "size": self.size,
            "first_tag": self.first_tag,
            "fingerprint": self.fingerprint,
        }
        with name_os_errors(os.fspath(directory)):
            write_vocabulary_files(Path(directory), self._data, facts)

    @property
    def _data(self) -> VocabularyData:
        return VocabularyData(*(getattr(self, name) for name in VocabularyData._fields))

    @functools.cached_property
    def size(self) -> int:
        """Number of ids: special ids, other pieces, copies, added pieces, and tags."""
        return self.first_tag + len(self.languages)

    @functools.cached_property
    def first_tag(self) -> int:
        """Id of the first language tag; all ids from here on are tags."""
        return self.first_added + len(self.added_pieces)

    @property
    def first_added(self) -> int:
        """Id of the first piece of an added language; the ids up to `first_tag` are such pieces."""
        return self.first_copy + len(self.copies)

    @property
    def first_copy(self) -> int:
        """Id of the first copy; the ids up to `first_added` are copies."""
        return len(self._shared_to_spm)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hex SHA-256 of the model and the lists; caches and runs store it."""
        return compute_fingerprint(self._data)

    @functools.cached_property
    def spm_to_id(self) -> np.ndarray:
        """Vocabulary id of each id of `model`, ignoring copies, int32 `[pieces]`."""
        ids = np.full(self._processor.get_piece_size(), self.unk_id, np.int32)
        known = self._shared_to_spm
        ids[known[known >= 0]] = np.flatnonzero(known >= 0)
        return ids

    def spm_to_id_for(self, language: str | None) -> np.ndarray:
        """Return the vocabulary id of each SentencePiece id in a language's text, int32 `[pieces]`.

        The SentencePiece ids are those of `sentencepiece_model_for(language)`.

        Raises:
            UserError: as `encode`.
        """
        language = self._addition_code(language)
        if (added_ids := self._added.ids.get(language or "")) is not None:
            return np.array(added_ids, np.int32)
        ids, copies = self.spm_to_id.copy(), self._copy_ids(language)
        ids[list(copies)] = list(copies.values())
        return ids

    @functools.cached_property
    def id_to_spm(self) -> np.ndarray:
        """Id in `decoding_model` of each vocabulary id below the tags, int32; -1 if it has none.

        Raises:
            UserError: if a copy is of a piece that cannot occur in text.
        """
        shared = self._shared_to_spm
        listed_pieces = zip(self.named_pieces, shared[FIRST_PIECE:].tolist(), strict=False)
        spm_ids = {piece: i for piece, i in listed_pieces if i >= 0}
        if missing := [piece for piece, _ in self.copies if piece not in spm_ids]:
            raise UserError(
                f"'{missing[0]}' has a copy but is no piece that text has; leave it out"
            )
        copies = np.array([spm_ids[piece] for piece, _ in self.copies], np.int32)
        decoder = self._decoder
        added = [decoder.piece_to_id(piece) for piece in self.added_pieces]
        return np.concatenate([shared, copies, np.array(added, np.int32)])

    def sentencepiece_model_for(self, language: str | None) -> bytes:
        """Return the SentencePiece model of a language's text; errors as of `encode`."""
        return dict(self.additions).get(self._addition_code(language) or "", self.model)

    @functools.cached_property
    def decoding_model(self) -> bytes:
        """SentencePiece model with the pieces of all text: `model` and the added pieces."""
        known = set(self.model_pieces)
        return append_pieces(self.model, [p for p in self.added_pieces if p not in known])

    @functools.cached_property
    def appears_in_text(self) -> np.ndarray:
        """Whether each vocabulary id can occur in encoded text, with eos and tags, bool `[vocab]`.

        False for the padding, and for listed pieces of an imported model that are not text pieces
        of its SentencePiece model.
        """
        text_ids = {i for i, _ in text_pieces(self._processor)}
        shared = [i in text_ids for i in self._shared_to_spm[FIRST_PIECE:].tolist()]
        return np.array([False, True, True, *shared] + [True] * (self.size - self.first_copy))

    @property
    def space_first(self) -> bool:
        """Whether the first word of a text is preceded by the space mark."""
        return "".join(self._processor.encode("a", out_type=str)).startswith(SPACE_MARK)

    @property
    def added_pieces(self) -> tuple[str, ...]:
        """The pieces of the ids between the copies and the tags."""
        return self._added.pieces

    @functools.cached_property
    def model_pieces(self) -> tuple[str, ...]:
        """Pieces of the SentencePiece model in its order, including special ones."""
        processor = self._processor
        return tuple(processor.id_to_piece(i) for i in range(processor.get_piece_size()))

    @functools.cached_property
    def named_pieces(self) -> tuple[str, ...]:
        """Pieces of the ids between unk and the tags; for a copy, its piece."""
        pieces = self.pieces
        if pieces is None:
            ids = self._shared_to_spm[FIRST_PIECE:].tolist()
            pieces = tuple(self.model_pieces[i] for i in ids)
        return (*pieces, *(piece for piece, _ in self.copies), *self.added_pieces)

    @property
    def mask_id(self) -> int:
        """Id of a masked token: `<s>` if there is one, as in fairseq, else unk."""
        return self.unk_id + (self.named_pieces[:1] == ("<s>",))

    @functools.cached_property
    def tag_ids(self) -> np.ndarray:
        """Tag id of each language, int32 `[languages]`."""
        return np.arange(self.first_tag, self.size, dtype=np.int32)

    def tag_id(self, language: str) -> int:
        """Return the id of a language's tag.

        Raises:
            UserError: if the vocabulary has no tag for the language.
        """
        return self.first_tag + self.language_index(language)

    def language_index(self, language: str) -> int:
        """Return a language's index in `languages`, for a code of any form.

        Raises:
            UserError: if the vocabulary has no tag for the language.
        """
        return self._language_indices[vocabulary_code(language, self._language_indices)]

    def vocabulary_code_of(self, language: str) -> str:
        """Return the vocabulary's spelling of a language code; see `language_index`."""
        return self.languages[self.language_index(language)]

    def encode(self, text: str, language: str | None = None) -> list[int]:
        """Return the ids of a text's pieces, without eos and without a tag.

        Args:
            text: any text.
            language: language code; required only for a vocabulary with copies or additions.

        Raises:
            UserError: if the language is required and is missing or has no tag.
        """
        return self.encode_lines([text], language)[0]

    def encode_lines(
        self, lines: Sequence[str], language: str | Sequence[str] | None = None
    ) -> list[list[int]]:
        """Return `encode` of each line, faster than one by one.

        Args:
            lines: texts.
            language: code of all lines, or a code per line.

        Raises:
            UserError: as `encode`.
        """
        per_line = [language] * len(lines) if isinstance(language, str | None) else language
        codes = [self._addition_code(code) for code in per_line]
        lines = normalize_lines(lines, self.normalization)
        encoded = self._added.encode_lines(lines, codes, self._processor)
        return [self._ids(pieces, code) for pieces, code in zip(encoded, codes, strict=True)]

    def encode_as_pieces(self, text: str, language: str | None = None) -> list[tuple[int, str]]:
        """Return the id and the surface of each piece of a text; unknown characters are unchanged.

        Args:
            text: text normalised by `mnmt_jax.vocabulary.normalization`.
            language: as in `encode`.
        """
        language = self._addition_code(language)
        processor = self._added.processors.get(language or "", self._processor)
        ids = self._ids(processor.encode(text), language)
        return list(zip(ids, processor.encode(text, out_type=str), strict=True))

    @functools.cached_property
    def byte_values(self) -> Mapping[int, int]:
        """Byte value of each byte-fallback id; empty without byte fallback."""
        values = byte_values(self._processor, self._spm_to_id_list)
        return {token: value for token, value in values.items() if token != self.unk_id}

    @functools.cached_property
    def unknown_ids(self) -> frozenset[int]:
        """Ids of characters that no piece covers: unk and the byte ids."""
        return frozenset((self.unk_id, *self.byte_values))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids. Pads, eos and tags are dropped; nothing ends the text early.

        An incomplete UTF-8 character at the end is dropped too.

        Raises:
            ValueError: if an id is outside the vocabulary.
        """
        ids = drop_incomplete_character(self._text_ids(ids), self.byte_values)
        if self.pieces is not None:
            return self._decode_listed(ids)
        pieces = [self._id_to_spm_list[token] for token in ids]
        return self._decoder.decode(pieces) if pieces else ""

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return a readable name per id: piece, `piece_xx` (a copy), `<pad>`, ..., or `__xx__`."""
        pieces, names = self.named_pieces, self._other_names
        return [names[int(i)] if int(i) in names else pieces[int(i) - FIRST_PIECE] for i in ids]

    def _decode_listed(self, ids: Iterable[int]) -> str:
        """Decode by piece names; the SentencePiece model may lack some of them."""
        pieces = []
        for token in ids:
            if token == self.unk_id:
                pieces.append(self._processor.id_to_piece(self._processor.unk_id()))
            else:
                pieces.append(self.named_pieces[token - FIRST_PIECE])
        # SentencePiece keeps unknown pieces unchanged, including their space mark.
        return self._decoder.decode(pieces).replace(SPACE_MARK, " ") if pieces else ""

    def _text_ids(self, ids: Iterable[int]) -> list[int]:
        """Return the ids that stand for text."""
        first_tag, size = self.first_tag, self.size
        tokens = [int(value) for value in ids]
        if tokens and not 0 <= min(tokens) <= max(tokens) < size:
            outside = next(token for token in tokens if not 0 <= token < size)
            raise ValueError(f"id {outside} is outside the vocabulary of {size} ids")
        return [token for token in tokens if self.eos_id < token < first_tag]

    def _checked(self, path: Path) -> Vocabulary:
        """Return this vocabulary after SentencePiece has parsed its model, read from `path`."""
        try:
            self._processor, self._added  # noqa: B018
        except (RuntimeError, OSError) as error:
            raise UserError(f"{path}: not a SentencePiece model; give a .model file") from error
        return self

    @functools.cached_property
    def _processor(self) -> sentencepiece.SentencePieceProcessor:
        return parse_sentencepiece_model(self.model)

    @functools.cached_property
    def _decoder(self) -> sentencepiece.SentencePieceProcessor:
        return parse_sentencepiece_model(self.decoding_model) if self.additions else self._processor

    @functools.cached_property
    def _added(self) -> AddedPieces:
        return AddedPieces.assign_ids(
            self.additions, self._processor, self._shared_to_spm, self.first_added
        )

    def _addition_code(self, language: str | None) -> str | None:
        """Return a code as the additions spell it; without any, it is not looked up."""
        return self.vocabulary_code_of(language) if language and self.additions else language

    def _ids(self, pieces: Sequence[int], language: str | None) -> list[int]:
        """Return the vocabulary ids of ids of a language's SentencePiece model."""
        table = self._added.ids.get(language or "", self._spm_to_id_list)
        if copies := self._copy_ids(language):
            return [copies.get(piece, table[piece]) for piece in pieces]
        return [table[piece] for piece in pieces]

    def _copy_ids(self, language: str | None) -> Mapping[int, int]:
        """Return the ids of a language's copies by SentencePiece id."""
        if not self.copies and not self.additions:
            return {}
        if language is None:
            reason = "copies of pieces" if self.copies else "languages with pieces of their own"
            raise UserError(f"this vocabulary has {reason}; say which language the text is")
        index = self.language_index(language)
        return {} if language in self._added.ids else self._copies_by_language[index]

    @functools.cached_property
    def _copies_by_language(self) -> list[dict[int, int]]:
        pieces = self.id_to_spm[self.first_copy : self.first_added].tolist()
        return copy_ids_by_language(self.copies, pieces, self.languages, self.first_copy)

    @functools.cached_property
    def _shared_to_spm(self) -> np.ndarray:
        """SentencePiece id of each vocabulary id below the copies, int32; -1 if it has none."""
        return shared_piece_ids(self._processor, self.pieces)

    @functools.cached_property
    def _other_names(self) -> dict[int, str]:
        """Readable names of special ids, copies and tags."""
        special = {self.pad_id: "<pad>", self.eos_id: "</s>", self.unk_id: "<unk>"}
        copies = map(language_piece_name, *zip(*self.copies, strict=True)) if self.copies else ()
        tags = (f"__{language}__" for language in self.languages)
        named = zip(self.tag_ids.tolist(), tags, strict=True)
        return special | dict(enumerate(copies, start=self.first_copy)) | dict(named)

    @functools.cached_property
    def _spm_to_id_list(self) -> list[int]:
        return self.spm_to_id.tolist()

    @functools.cached_property
    def _id_to_spm_list(self) -> list[int]:
        return self.id_to_spm.tolist()

    @functools.cached_property
    def _language_indices(self) -> dict[str, int]:
        return {language: index for index, language in enumerate(self.languages)}
