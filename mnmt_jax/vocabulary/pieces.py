"""The vocabulary: SentencePiece pieces between three fixed ids and one tag per language.

Ids are pad 0, eos 1, unk 2, then every other piece of the SentencePiece model in its own order,
then copies of pieces for text of one language, if there are any, then the language tags in the
order of the language list. Tags are not SentencePiece pieces, so no text can contain one. Imported
models may know other pieces than their SentencePiece model: then the vocabulary lists them, and a
piece of the model that is not in the list is unk.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import sentencepiece

from mnmt_jax.errors import UserError, naming
from mnmt_jax.vocabulary.copies import Copy, check_copies, copy_name
from mnmt_jax.vocabulary.folder import (
    FORMAT,
    MODEL_FILE,
    Parts,
    read_folder,
    refuse_exchanged,
    write_folder,
)
from mnmt_jax.vocabulary.order import mix64, text_key
from mnmt_jax.vocabulary.special_ids import EOS_ID, PAD_ID, UNK_ID

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
        pad_id: id that fills unused positions; padding is told by segment ids, never by this id.
        eos_id: id that ends a sentence.
        unk_id: id of text no piece covers.
    """

    model: bytes = dataclasses.field(repr=False)
    languages: tuple[str, ...]
    pieces: tuple[str, ...] | None = dataclasses.field(default=None, repr=False)
    copies: tuple[Copy, ...] = dataclasses.field(default=(), repr=False)
    pad_id: int = dataclasses.field(default=PAD_ID, init=False)
    eos_id: int = dataclasses.field(default=EOS_ID, init=False)
    unk_id: int = dataclasses.field(default=UNK_ID, init=False)

    def __post_init__(self) -> None:
        """Checks the lists."""
        object.__setattr__(self, "languages", tuple(self.languages))
        if len(set(self.languages)) != len(self.languages):
            repeated = sorted({x for x in self.languages if self.languages.count(x) > 1})
            raise UserError(f"languages {repeated} are listed twice; list each language once")
        if self.pieces is not None:
            object.__setattr__(self, "pieces", tuple(self.pieces))
            if len(set(self.pieces)) != len(self.pieces):
                raise UserError("a piece is listed twice; list each piece once")
        object.__setattr__(self, "copies", check_copies(self.copies, self.languages))

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
        parts, facts = read_folder(directory)
        vocabulary = cls(*parts)
        # Before SentencePiece sees the model: a damaged one never reaches its parser.
        if facts.get("format") != FORMAT or facts.get("fingerprint") != vocabulary.fingerprint:
            raise refuse_exchanged(directory)
        return vocabulary._parsed(directory / MODEL_FILE)

    def with_copies(self, copies: Sequence[Copy]) -> Vocabulary:
        """Returns this vocabulary with other copies; what is no copy keeps its id, tags do not.

        Raises:
            UserError: if a copy is of no piece that text has, or for a language without a tag.
        """
        made = dataclasses.replace(self, copies=tuple(copies))
        made.id_to_spm  # noqa: B018 - raises
        return made

    def save(self, directory: str | Path) -> None:
        """Writes `spm.model`, `languages.txt`, `vocabulary.json`, and lists if it has them."""
        facts = {
            "size": self.size,
            "first_tag": self.first_tag,
            "fingerprint": self.fingerprint,
        }
        parts = Parts(self.model, self.languages, self.pieces, self.copies)
        with naming(os.fspath(directory)):
            write_folder(Path(directory), parts, facts)

    @property
    def size(self) -> int:
        """Number of ids: three specials, the other pieces, their copies, and the tags."""
        return self.first_tag + len(self.languages)

    @property
    def first_tag(self) -> int:
        """Id of the first language's tag; every id from here on is a tag."""
        return self.first_copy + len(self.copies)

    @property
    def first_copy(self) -> int:
        """Id of the first copy; every id from here to `first_tag` is a copy."""
        return len(self._shared_to_spm)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hex SHA-256 of the model and the lists; caches and runs store it."""
        digest = hashlib.sha256(self.model)
        digest.update(("\n" + "\n".join(self.languages)).encode())
        if self.pieces is not None:
            digest.update(json.dumps(self.pieces).encode())
        if self.copies:
            digest.update(json.dumps({"copies": self.copies}).encode())
        return digest.hexdigest()

    @functools.cached_property
    def spm_to_id(self) -> np.ndarray:
        """Our id of each SentencePiece id without regard to copies, int32 `[pieces]`."""
        ids = np.full(self._processor.get_piece_size(), self.unk_id, np.int32)
        known = self._shared_to_spm
        ids[known[known >= 0]] = np.flatnonzero(known >= 0)
        return ids

    def spm_to_id_in(self, language: str | None) -> np.ndarray:
        """Returns our id of each SentencePiece id in text of a language, int32 `[pieces]`.

        Raises:
            UserError: as `encode`.
        """
        ids, own = self.spm_to_id.copy(), self._own_ids(language)
        ids[list(own)] = list(own.values())
        return ids

    @functools.cached_property
    def id_to_spm(self) -> np.ndarray:
        """SentencePiece id of each of our ids below the tags, int32; -1 where it has none.

        Raises:
            UserError: if there is a copy of no piece that text has.
        """
        shared = self._shared_to_spm
        named = zip(self.named_pieces, shared[3:].tolist(), strict=False)
        place = {piece: i for piece, i in named if i >= 0}
        if lost := [piece for piece, _ in self.copies if piece not in place]:
            raise UserError(f"'{lost[0]}' has a copy but is no piece that text has; leave it out")
        copies = np.array([place[piece] for piece, _ in self.copies], np.int32)
        return np.concatenate([shared, copies])

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
        return (*pieces, *(piece for piece, _ in self.copies))

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
        """Returns a language's place in `languages`.

        Raises:
            UserError: if the vocabulary has no tag for the language.
        """
        try:
            return self._language_indices[language]
        except KeyError:
            raise UserError(
                f"language '{language}' has no tag in this vocabulary; it has "
                f"{', '.join(self.languages)}"
            ) from None

    def encode(self, text: str, language: str | None = None) -> list[int]:
        """Returns the ids of a text's pieces, without eos and without a tag.

        Args:
            text: any.
            language: its code; only a vocabulary with copies needs it.

        Raises:
            UserError: if there are copies and the language is not given or has no tag.
        """
        return self._ids(self._processor.encode(text), language)

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
        encoded = self._processor.encode(list(lines))
        return [self._ids(pieces, code) for pieces, code in zip(encoded, codes, strict=True)]

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of ids. Pads, eos and tags are dropped; nothing ends the text early.

        Raises:
            ValueError: if an id is outside the vocabulary.
        """
        if self.pieces is not None:
            return self._decode_listed(ids)
        pieces = self._spm_pieces(ids)
        return self._processor.decode(pieces) if pieces else ""

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Returns a readable name per id: piece, `piece_xx` (a copy), `<pad>`, ..., or `__xx__`."""
        named, names = self.named_pieces, self._other_names
        return [names[int(i)] if int(i) in names else named[int(i) - 3] for i in ids]

    def _decode_listed(self, ids: Iterable[int]) -> str:
        """Decodes by the pieces' names: the SentencePiece model may not know all of them."""
        pieces = []
        for token in self._text_ids(ids):
            if token == self.unk_id:
                pieces.append(self._processor.id_to_piece(self._processor.unk_id()))
            else:
                pieces.append(self.named_pieces[token - 3])
        # SentencePiece passes unknown pieces on as they are, with the mark of a space in them.
        return self._processor.decode(pieces).replace(_SPACE, " ") if pieces else ""

    def _spm_pieces(self, ids: Iterable[int]) -> list[int]:
        table = self._id_to_spm_list
        return [table[token] for token in self._text_ids(ids)]

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
            self._processor  # noqa: B018
        except (RuntimeError, OSError) as error:
            raise UserError(f"{path}: not a SentencePiece model; give a .model file") from error
        return self

    @functools.cached_property
    def _processor(self) -> sentencepiece.SentencePieceProcessor:
        processor = sentencepiece.SentencePieceProcessor()
        processor.load_from_serialized_proto(self.model)
        return processor

    def _ids(self, pieces: Sequence[int], language: str | None) -> list[int]:
        """Returns our ids of SentencePiece's in text of a language."""
        table = self._spm_to_id_list
        if own := self._own_ids(language):
            return [own.get(piece, table[piece]) for piece in pieces]
        return [table[piece] for piece in pieces]

    def _own_ids(self, language: str | None) -> Mapping[int, int]:
        """Returns a language's copies, by SentencePiece id."""
        if not self.copies:
            return {}
        if language is None:
            raise UserError("this vocabulary has copies of pieces; say which language the text is")
        return self._copies_by_language[self.language_index(language)]

    @functools.cached_property
    def _copies_by_language(self) -> list[dict[int, int]]:
        own: list[dict[int, int]] = [{} for _ in self.languages]
        pieces = self.id_to_spm[self.first_copy :].tolist()
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
        names |= {self.first_copy + i: copy_name(*copy) for i, copy in enumerate(self.copies)}
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


@dataclasses.dataclass(frozen=True)
class SentencePieceOptions:
    """How a SentencePiece model is trained.

    Attributes:
        vocab_size: pieces, the three special ids included and the tags not.
        model_type: `unigram` or `bpe`.
        character_coverage: share of characters that get a piece; the rest becomes unk.
        normalization: SentencePiece rule; `identity` keeps text as it is (full-width punctuation
            included), `nmt_nfkc` is what most published models used.
        sentences: sentences drawn from all languages together at most.
        temperature: T of p_l ~ (n_l / N)^(1/T), each language's share of the sentences drawn.
        seed: seed of the draw.
    """

    vocab_size: int = 8000
    model_type: str = "unigram"
    character_coverage: float = 1.0
    normalization: str = "identity"
    sentences: int = 1_000_000
    temperature: float = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks what SentencePiece would report less clearly."""
        if self.model_type not in ("unigram", "bpe"):
            raise UserError(f"model_type '{self.model_type}' must be unigram or bpe")
        if not 0 < self.character_coverage <= 1:
            raise UserError(f"character_coverage {self.character_coverage} must be in (0, 1]")


def train_sentencepiece(
    sentences_by_language: Mapping[str, Sequence[str]],
    directory: str | Path,
    *,
    options: SentencePieceOptions = SentencePieceOptions(),
) -> Vocabulary:
    """Trains a SentencePiece model on text of several languages and saves the vocabulary.

    Args:
        sentences_by_language: text of each language; the key order becomes the tag order.
        directory: where `Vocabulary.save` writes.
        options: size, type and sampling.

    Returns:
        The vocabulary. The same text and options give the same one.

    Raises:
        UserError: if the text is empty or too little for the size asked.
    """
    sample = sample_sentences(sentences_by_language, options)
    if not sample:
        raise UserError("no sentences to train a vocabulary on; check the corpus and its split")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sample),
            model_writer=model,
            vocab_size=options.vocab_size,
            model_type=options.model_type,
            character_coverage=options.character_coverage,
            normalization_rule_name=options.normalization,
            pad_id=PAD_ID,
            eos_id=EOS_ID,
            unk_id=UNK_ID,
            bos_id=-1,
            max_sentence_length=1 << 16,
            shuffle_input_sentence=False,
            # Sums of floats depend on how work is divided: a fixed number keeps the result equal
            # on machines with different numbers of cores.
            num_threads=16,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).rsplit("] ", 1)[-1].strip()
        raise UserError(
            f"SentencePiece could not train {options.vocab_size} pieces: {reason} "
            "(change --vocab_size or give more text)"
        ) from error
    vocabulary = Vocabulary(model.getvalue(), tuple(sentences_by_language))
    vocabulary.save(directory)
    return vocabulary


def sample_sentences(
    sentences_by_language: Mapping[str, Sequence[str]], options: SentencePieceOptions
) -> list[str]:
    """Draws sentences without replacement, language by language.

    A language's quota is its share by temperature; what a small language cannot fill goes to the
    others by the same shares. Sentences keep their order.
    """
    counts = [len(sentences) for sentences in sentences_by_language.values()]
    quotas = _quotas(counts, options.sentences, options.temperature)
    sample: list[str] = []
    for (language, sentences), quota in zip(sentences_by_language.items(), quotas, strict=True):
        keys = mix64(options.seed, text_key(language), np.arange(len(sentences)))
        chosen = np.sort(np.argsort(keys, kind="stable")[:quota])
        sample.extend(sentences[i] for i in chosen)
    return sample


def _quotas(counts: Sequence[int], budget: int, temperature: float) -> list[int]:
    if sum(counts) <= budget:
        return list(counts)
    shares = [math.pow(count, 1 / temperature) if count else 0.0 for count in counts]
    quotas = [0] * len(counts)
    open_ = [i for i, count in enumerate(counts) if count]
    while open_:
        left = budget - sum(quotas)
        total = sum(shares[i] for i in open_)
        full = [i for i in open_ if counts[i] <= left * shares[i] / total]
        for i in full or open_:
            quotas[i] = counts[i] if full else int(left * shares[i] / total)
        open_ = [i for i in open_ if i not in full] if full else []
    return quotas
