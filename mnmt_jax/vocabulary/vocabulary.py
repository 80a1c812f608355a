"""The vocabulary: SentencePiece pieces between three fixed ids and one tag per language.

Ids are pad 0, eos 1, unk 2, then every other piece of the SentencePiece model in its own order,
then copies of pieces for text of one language, if there are any, then pieces of languages added
later, then the language tags in the order of the language list. Tags are not SentencePiece pieces,
so no text can contain one. Imported models may know other pieces than their SentencePiece model:
then the vocabulary lists them, and a piece of the model that is not in the list is unk.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    language_piece_name,
)
from mnmt_jax.vocabulary.normalization import NONE, check_normalization, normalize_lines
from mnmt_jax.vocabulary.special_ids import EOS_ID, PAD_ID, UNK_ID
from mnmt_jax.vocabulary.vocabulary_files import (
    FORMAT_VERSION,
    MODEL_FILE,
    VocabularyData,
    compute_fingerprint,
    mismatched_files_error,
    read_vocabulary_files,
    write_vocabulary_files,
)

_SPACE = "\u2581"


@dataclasses.dataclass(frozen=True, eq=False)
class Vocabulary:
    """Turns text into ids and back, and knows the id of each language's tag.

    Attributes:
        model: a serialised SentencePiece model.
        languages: codes in tag order.
        pieces: of the ids from unk to the copies; None stands for the pieces of the model in its
            order.
        copies: of the ids between the pieces and the tags: a piece, and the one language whose text
            has this id in its place.
        additions: languages added later whose text a model of their own cuts, in this order
            (`mnmt_jax.vocabulary.added_languages`).
        normalization: what is done to text before it is encoded, one of
            `mnmt_jax.vocabulary.normalization.NORMALIZATIONS`.
        pad_id: id that fills unused positions; padding is told by segment ids, never by this id.
        eos_id: id that ends a sentence.
        unk_id: id of text no piece covers.
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
        """Checks the lists."""
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
        """Wraps any SentencePiece model, whatever its own special ids are.

        Args:
            path: a `.model` file.
            languages: codes in tag order.
            pieces: those between unk and the tags, if not the model's in its order.

        Raises:
            UserError: if the file is missing or no SentencePiece model.
        """
        path = Path(path)
        if not path.is_file():
            raise UserError(f"{path}: no such file; give the path of a SentencePiece .model file")
        listed = None if pieces is None else tuple(pieces)
        return cls(path.read_bytes(), tuple(languages), listed)._parsed(path)

    @classmethod
    def load(cls, directory: str | Path) -> Vocabulary:
        """Reads what `save` wrote and checks that nothing was exchanged since.

        Raises:
            UserError: if a file is missing, damaged or does not match the recorded fingerprint.
        """
        directory = Path(directory)
        parts, facts = read_vocabulary_files(directory)
        vocabulary = cls(*parts)
        # Before SentencePiece sees the model: a damaged one never reaches its parser.
        if (
            facts.get("format") != FORMAT_VERSION
            or facts.get("fingerprint") != vocabulary.fingerprint
        ):
            raise mismatched_files_error(directory)
        return vocabulary._parsed(directory / MODEL_FILE)

    def with_copies(self, copies: Sequence[LanguagePiece]) -> Vocabulary:
        """Returns this vocabulary with other copies; what is no copy keeps its id, tags do not.

        Raises:
            UserError: if a copy is of no piece that text has, or for a language without a tag.
        """
        made = dataclasses.replace(self, copies=tuple(copies))
        made.id_to_spm  # noqa: B018 - raises
        return made

    def with_language(self, language: str, model: bytes | None = None) -> Vocabulary:
        """Returns this vocabulary with one language more; every id but those of tags stays.

        Args:
            language: its code; its tag is the last.
            model: a serialised SentencePiece model that cuts its text, whose unseen pieces get new
                ids; None cuts it as the other languages' text.

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
        """Returns whether all of another's ids but the tags mean the same, in the same text."""
        same = all(
            getattr(self, name) == getattr(other, name)
            for name in ("model", "pieces", "copies", "normalization")
        )
        languages = self.languages[: len(other.languages)] == other.languages
        added = self.additions[: len(other.additions)] == other.additions
        later = {code for code, _ in self.additions[len(other.additions) :]}
        return same and languages and added and later.isdisjoint(other.languages)

    def save(self, directory: str | Path) -> None:
        """Writes `spm.model`, `languages.txt`, `vocabulary.json`, and lists if it has them."""
        facts = {
            "size": self.size,
            "first_tag": self.first_tag,
            "fingerprint": self.fingerprint,
        }
        with name_os_errors(os.fspath(directory)):
            write_vocabulary_files(Path(directory), self._parts, facts)

    @property
    def _parts(self) -> VocabularyData:
        return VocabularyData(*(getattr(self, name) for name in VocabularyData._fields))

    @property
    def size(self) -> int:
        """Number of ids: three specials, the other pieces, copies, added pieces, and the tags."""
        return self.first_tag + len(self.languages)

    @property
    def first_tag(self) -> int:
        """Id of the first language's tag; every id from here on is a tag."""
        return self.first_added + len(self.added_pieces)

    @property
    def first_added(self) -> int:
        """Id of the first piece of a language added; every id from here to `first_tag` is one."""
        return self.first_copy + len(self.copies)

    @property
    def first_copy(self) -> int:
        """Id of the first copy; every id from here to `first_added` is a copy."""
        return len(self._shared_to_spm)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hex SHA-256 of the model and the lists; caches and runs store it."""
        return compute_fingerprint(self._parts)

    @functools.cached_property
    def spm_to_id(self) -> np.ndarray:
        """Our id of each id of `model` without regard to copies, int32 `[pieces]`."""
        ids = np.full(self._processor.get_piece_size(), self.unk_id, np.int32)
        known = self._shared_to_spm
        ids[known[known >= 0]] = np.flatnonzero(known >= 0)
        return ids

    def spm_to_id_for(self, language: str | None) -> np.ndarray:
        """Returns our id of each id of `model_of(language)` in its text, int32 `[pieces]`.

        Raises:
            UserError: as `encode`.
        """
        if (added := self._added.ids.get(language or "")) is not None:
            return np.array(added, np.int32)
        ids, own = self.spm_to_id.copy(), self._own_ids(language)
        ids[list(own)] = list(own.values())
        return ids

    @functools.cached_property
    def id_to_spm(self) -> np.ndarray:
        """Id in `decoding_model` of each of our ids below the tags, int32; -1 where it has none.

        Raises:
            UserError: if there is a copy of no piece that text has.
        """
        shared = self._shared_to_spm
        named = zip(self.named_pieces, shared[3:].tolist(), strict=False)
        place = {piece: i for piece, i in named if i >= 0}
        if lost := [piece for piece, _ in self.copies if piece not in place]:
            raise UserError(f"'{lost[0]}' has a copy but is no piece that text has; leave it out")
        copies = np.array([place[piece] for piece, _ in self.copies], np.int32)
        decoder = self._decoder
        added = [decoder.piece_to_id(piece) for piece in self.added_pieces]
        return np.concatenate([shared, copies, np.array(added, np.int32)])

    def sentencepiece_model_for(self, language: str | None) -> bytes:
        """Returns the SentencePiece model that cuts text of a language."""
        return dict(self.additions).get(language or "", self.model)

    @functools.cached_property
    def decoding_model(self) -> bytes:
        """A SentencePiece model that has the pieces of all text: `model`, and what was added."""
        known = set(self.model_pieces)
        return append_pieces(self.model, [p for p in self.added_pieces if p not in known])

    @functools.cached_property
    def appears_in_text(self) -> np.ndarray:
        """Whether text, its end or its tag can be each of our ids, bool `[vocab]`.

        False of the padding and of what an imported model's list holds besides.
        """
        real = {i for i, _ in text_pieces(self._processor)}
        shared = [i in real for i in self._shared_to_spm[3:].tolist()]
        return np.array([False, True, True, *shared] + [True] * (self.size - self.first_copy))

    @property
    def space_first(self) -> bool:
        """Whether a text's first word has the mark of a space before it."""
        return "".join(self._processor.encode("a", out_type=str)).startswith(_SPACE)

    @property
    def added_pieces(self) -> tuple[str, ...]:
        """The pieces of the ids between the copies and the tags."""
        return self._added.pieces

    @functools.cached_property
    def model_pieces(self) -> tuple[str, ...]:
        """The SentencePiece model's pieces in its own order, specials included."""
        processor = self._processor
        return tuple(processor.id_to_piece(i) for i in range(processor.get_piece_size()))

    @functools.cached_property
    def named_pieces(self) -> tuple[str, ...]:
        """The pieces of the ids between unk and the tags; of a copy, its piece."""
        pieces = self.pieces
        if pieces is None:
            pieces = tuple(self.model_pieces[i] for i in self._shared_to_spm[3:].tolist())
        return (*pieces, *(piece for piece, _ in self.copies), *self.added_pieces)

    @property
    def mask_id(self) -> int:
        """Id of what stands for a hidden token: `<s>` if there is one, as in fairseq, else unk."""
        return self.unk_id + (self.named_pieces[:1] == ("<s>",))

    @functools.cached_property
    def tag_ids(self) -> np.ndarray:
        """Tag id of each language, int32 `[languages]`."""
        return np.arange(self.first_tag, self.size, dtype=np.int32)

    def tag_id(self, language: str) -> int:
        """Returns the id of a language's tag.

        Raises:
            UserError: if the vocabulary has no tag for the language.
        """
        return self.first_tag + self.language_index(language)

    def language_index(self, language: str) -> int:
        """Returns a language's place in `languages`, of a code of any form.

        Raises:
            UserError: if the vocabulary has no tag for the language.
        """
        return self._language_indices[vocabulary_code(language, self._language_indices)]

    def vocabulary_code_of(self, language: str) -> str:
        """Return the vocabulary's own code of a language, as `language_index`."""
        return self.languages[self.language_index(language)]

    def encode(self, text: str, language: str | None = None) -> list[int]:
        """Returns the ids of a text's pieces, without eos and without a tag.

        Args:
            text: any.
            language: its code; only a vocabulary with copies or additions needs it.

        Raises:
            UserError: if there are some and the language is not given or has no tag.
        """
        return self.encode_lines([text], language)[0]

    def encode_lines(
        self, lines: Sequence[str], language: str | Sequence[str] | None = None
    ) -> list[list[int]]:
        """Returns `encode` of each line, faster than one by one.

        Args:
            lines: texts.
            language: of all lines, or a code for each.

        Raises:
            UserError: as `encode`.
        """
        codes: Sequence[str | None]
        if language is None or isinstance(language, str):
            codes = [language] * len(lines)
        else:
            codes = language
        if self.additions:  # whose models are known by the vocabulary's own codes
            codes = [None if code is None else self.vocabulary_code_of(code) for code in codes]
        lines = normalize_lines(lines, self.normalization)
        encoded = self._added.encode_lines(lines, codes, self._processor)
        return [self._ids(pieces, code) for pieces, code in zip(encoded, codes, strict=True)]

    def encode_as_pieces(self, text: str, language: str | None = None) -> list[tuple[int, str]]:
        """Return the id and the characters of each piece of a text, unknown characters as they are.

        Args:
            text: as `mnmt_jax.vocabulary.normalization` makes it.
            language: as in `encode`.
        """
        if self.additions and language is not None:
            language = self.vocabulary_code_of(language)
        processor = self._added.processors.get(language or "", self._processor)
        ids = self._ids(processor.encode(text), language)
        return list(zip(ids, processor.encode(text, out_type=str), strict=True))

    @functools.cached_property
    def byte_values(self) -> Mapping[int, int]:
        """The byte that each id of byte fallback stands for; empty without it."""
        values = byte_values(self._processor, self._spm_to_id_list)
        return {token: value for token, value in values.items() if token != self.unk_id}

    @functools.cached_property
    def unknown_ids(self) -> frozenset[int]:
        """The ids of characters that no piece covers: unk, and those of bytes."""
        return frozenset((self.unk_id, *self.byte_values))

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of ids. Pads, eos and tags are dropped; nothing ends the text early.

        So are the first bytes of a character at the end whose last byte is missing.

        Raises:
            ValueError: if an id is outside the vocabulary.
        """
        ids = drop_incomplete_character(list(self._text_ids(ids)), self.byte_values)
        if self.pieces is not None:
            return self._decode_listed(ids)
        pieces = [self._id_to_spm_list[token] for token in ids]
        return self._decoder.decode(pieces) if pieces else ""

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Returns a readable name per id: piece, `piece_xx` (a copy), `<pad>`, ..., or `__xx__`."""
        named, names = self.named_pieces, self._other_names
        return [names[int(i)] if int(i) in names else named[int(i) - 3] for i in ids]

    def _decode_listed(self, ids: Iterable[int]) -> str:
        """Decodes by the pieces' names: the SentencePiece model may not know all of them."""
        pieces = []
        for token in ids:
            if token == self.unk_id:
                pieces.append(self._processor.id_to_piece(self._processor.unk_id()))
            else:
                pieces.append(self.named_pieces[token - 3])
        # SentencePiece passes unknown pieces on as they are, with the mark of a space in them.
        return self._decoder.decode(pieces).replace(_SPACE, " ") if pieces else ""

    def _text_ids(self, ids: Iterable[int]) -> Iterator[int]:
        """Yields the ids that stand for text."""
        first_tag, size = self.first_tag, self.size
        for value in ids:
            token = int(value)
            if not 0 <= token < size:
                raise ValueError(f"id {token} is outside the vocabulary of {size} ids")
            if self.eos_id < token < first_tag:
                yield token

    def _parsed(self, path: Path) -> Vocabulary:
        """Returns itself once SentencePiece has parsed its model, which came from `path`."""
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

    def _ids(self, pieces: Sequence[int], language: str | None) -> list[int]:
        """Returns our ids of those of a language's SentencePiece model."""
        table = self._added.ids.get(language or "", self._spm_to_id_list)
        if own := self._own_ids(language):
            return [own.get(piece, table[piece]) for piece in pieces]
        return [table[piece] for piece in pieces]

    def _own_ids(self, language: str | None) -> Mapping[int, int]:
        """Returns a language's copies, by SentencePiece id."""
        if not self.copies and not self.additions:
            return {}
        if language is None:
            what = "copies of pieces" if self.copies else "languages with pieces of their own"
            raise UserError(f"this vocabulary has {what}; say which language the text is")
        index = self.language_index(language)
        return {} if language in self._added.ids else self._copies_by_language[index]

    @functools.cached_property
    def _copies_by_language(self) -> list[dict[int, int]]:
        own: list[dict[int, int]] = [{} for _ in self.languages]
        pieces = self.id_to_spm[self.first_copy : self.first_added].tolist()
        for number, ((_, language), piece) in enumerate(zip(self.copies, pieces, strict=True)):
            own[self.language_index(language)][piece] = self.first_copy + number
        return own

    @functools.cached_property
    def _shared_to_spm(self) -> np.ndarray:
        """SentencePiece id of each of our ids below the copies, int32; -1 where it has none."""
        processor = self._processor
        special = [processor.pad_id(), processor.eos_id(), processor.unk_id()]
        if self.pieces is not None:
            place = {piece: i for i, piece in enumerate(self.model_pieces) if i not in special}
            return np.array(special + [place.get(p, -1) for p in self.pieces], np.int32)
        others = [i for i in range(processor.get_piece_size()) if i not in special]
        return np.array(special + others, np.int32)

    @functools.cached_property
    def _other_names(self) -> dict[int, str]:
        """Readable names of the ids that are not the first of a piece."""
        names = {self.pad_id: "<pad>", self.eos_id: "</s>", self.unk_id: "<unk>"}
        names |= {
            self.first_copy + i: language_piece_name(*copy) for i, copy in enumerate(self.copies)
        }
        return names | {
            int(tag): f"__{x}__" for x, tag in zip(self.languages, self.tag_ids, strict=True)
        }

    @functools.cached_property
    def _spm_to_id_list(self) -> list[int]:
        return self.spm_to_id.tolist()

    @functools.cached_property
    def _id_to_spm_list(self) -> list[int]:
        return self.id_to_spm.tolist()

    @functools.cached_property
    def _language_indices(self) -> dict[str, int]:
        return {language: index for index, language in enumerate(self.languages)}
