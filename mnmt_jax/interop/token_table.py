"""Token tables of other toolkits: the token of each id, and the mapping from our ids."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from mnmt_jax.errors import UserError, join_names, pluralize
from mnmt_jax.files.json_objects import read_json
from mnmt_jax.files.typed_fields import TypedFields, short_repr
from mnmt_jax.interop.tags import M2M100_LANGUAGES, NLLB_TAGS, code_of_tag, codes_of_tags
from mnmt_jax.vocabulary.languages import MITRE_LANGUAGES
from mnmt_jax.vocabulary.vocabulary import Vocabulary

# fairseq's dictionary starts <s> 0, <pad> 1, </s> 2, <unk> 3; ours pad 0, eos 1, unk 2, then <s>.
SPECIAL_IDS = (1, 2, 3, 0)
SPECIAL_NAMES = ("<s>", "<pad>", "</s>", "<unk>")
_MODEL_SPECIALS = 3  # SentencePiece's <unk>, <s> and </s>
_LANGUAGES = "*languages*.txt"
# Tokens that no text yields; fairseq pads its dictionaries with the first kind.
_UNNAMED = re.compile(r"madeupword\d+")
_MASK = "<mask>"
_OVERWRITE = " #fairseq:overwrite"
# Built-in tag lists of the toolkits, appended to the pieces if the files list no tags.
_M2M100_TAGS = tuple(f"__{code}__" for code in M2M100_LANGUAGES)
_MITRE_TAGS = tuple(f"__{code}__" for code in MITRE_LANGUAGES)


@dataclasses.dataclass(frozen=True)
class TokenTable:
    """The token of each id, and the SentencePiece model of the pieces.

    Attributes:
        tokens: tokens by id: specials, pieces, tags and fillers.
        model: path of the SentencePiece model.
        listed: tags in the order of our languages, before those that are not listed.
    """

    tokens: tuple[str, ...]
    model: Path
    listed: tuple[str, ...] = ()

    def vocabulary(self) -> tuple[Vocabulary, np.ndarray]:
        """Return our vocabulary of the same tokens, and the table's id of each of our ids.

        Raises:
            UserError: if the table does not start with the four specials in some order, has no
                tags, or does not belong to the SentencePiece model.
        """
        specials = [
            self.tokens.index(name) for name in SPECIAL_NAMES[1:] if name in self.tokens[:4]
        ]
        if len(specials) != 3:
            raise UserError(f"{self.model.parent}: ids 0 to 3 are not {', '.join(SPECIAL_NAMES)}")
        text = set(Vocabulary.from_sentencepiece(self.model, ()).model_pieces)
        codes = codes_of_tags(token for token in self.tokens if token not in text)
        places = {tag: place for place, tag in enumerate(self.listed)}
        tag_ids = [i for i, token in enumerate(self.tokens) if token in codes]
        tag_ids.sort(key=lambda i: places.get(self.tokens[i], len(places)))
        tags = {i: codes[self.tokens[i]] for i in tag_ids}
        pieces = [i for i in range(len(self.tokens)) if i not in tags and i not in specials]
        if not tags:
            raise UserError(f"{self.model.parent}: no language tags found; add a languages.txt")
        rows = np.array([*specials, *pieces, *tags], np.int64)
        names = tuple(self.tokens[i] for i in pieces)
        plain = Vocabulary.from_sentencepiece(self.model, tuple(tags.values()))
        if plain.named_pieces == names:
            return plain, rows
        known = set(plain.named_pieces)
        if sum(name in known for name in names) < 0.9 * len(known):
            raise UserError(
                f"{self.model}: many of its pieces are not in the checkpoint's vocabulary; give "
                "the SentencePiece model that belongs to it"
            )
        return Vocabulary.from_sentencepiece(self.model, plain.languages, names), rows


def rows_of_vocabulary(vocabulary: Vocabulary, *, tags_last: bool) -> np.ndarray:
    """Return the other toolkit's id of each of our ids, [vocab].

    Args:
        vocabulary: our vocabulary.
        tags_last: whether tags follow the fillers, as in fairseq; otherwise they precede them, as
            in Hugging Face.

    Raises:
        UserError: if the vocabulary has copies of pieces or additions, because the other
            tokenizers do not know the language of a text.
    """
    if vocabulary.additions:
        codes = join_names([language for language, _ in vocabulary.additions])
        raise UserError(
            f"the text of {codes} has a SentencePiece model of its own, which other toolkits' "
            "tokenizers do not know; export with --format t5x"
        )
    if vocabulary.copies:
        raise UserError(
            f"the vocabulary has {len(vocabulary.copies)} copies of pieces for single languages, "
            "which other toolkits' tokenizers do not know; export with --format t5x"
        )
    fillers = 0 if tags_last else _trailing_fillers(vocabulary.named_pieces)
    first_tag, end = vocabulary.first_tag, vocabulary.size
    ids = np.arange(end)
    export_order = np.concatenate(
        [
            np.argsort(SPECIAL_IDS),
            ids[4 : first_tag - fillers],
            ids[first_tag:],
            ids[first_tag - fillers : first_tag],
        ]
    )
    return np.argsort(export_order)


def tokens_for_export(vocabulary: Vocabulary, tags: Sequence[str], rows: np.ndarray) -> list[str]:
    """Return the token of each id of the other toolkit.

    Args:
        vocabulary: our vocabulary.
        tags: names of its language tags in the other toolkit.
        rows: from `rows_of_vocabulary`.

    Raises:
        UserError: if a piece has the name of a special token or of a tag, because other toolkits
            know tokens by name.
    """
    tokens = [*(SPECIAL_NAMES[1:]), *vocabulary.named_pieces, *tags]
    if repeated := [token for token, count in collections.Counter(tokens).items() if count > 1]:
        raise UserError(
            f"pieces of the vocabulary are named {join_names([repr(name) for name in repeated])}, "
            "as its language tags or special tokens are in other toolkits; export with --format "
            "t5x"
        )
    return [tokens[i] for i in np.argsort(rows)]


def has_ids_of_pieces(vocabulary: Vocabulary, tokens: Sequence[str]) -> bool:
    """Return whether ids follow from the SentencePiece model, and that is BPE, as NLLB's.

    Scores of BPE pieces are whole numbers that fall from piece to piece; others are logarithms.

    Args:
        vocabulary: our vocabulary.
        tokens: from `tokens_for_export`.
    """
    expected = _tokens_of_pieces(vocabulary)
    processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.model)
    ids = range(_MODEL_SPECIALS, len(vocabulary.model_pieces))
    scores = [processor.get_score(i) for i in ids]
    is_bpe = scores == sorted({round(score) for score in scores}, reverse=True)
    return is_bpe and tuple(tokens[: len(expected)]) == expected


def is_unnamed(token: str) -> bool:
    """Return whether a token names a row without a token, as fairseq pads its dictionaries."""
    return bool(_UNNAMED.fullmatch(token))


def read_fairseq_table(
    folder: Path, languages: Sequence[str] | None, *, needs_list: bool = False
) -> TokenTable:
    """Read fairseq's dictionary, language list and SentencePiece model, found by pattern.

    Args:
        folder: holds one `*dict*.txt`, one `*.model` and one `*languages*.txt`, which may be
            missing if the checkpoint lists them or the dictionary has their tags.
        languages: languages in tag order, if the checkpoint lists them; the file replaces them if
            some are no language codes.
        needs_list: whether the order of the languages matters, so that they must be listed even if
            the dictionary has their tags.

    Raises:
        UserError: if a file is missing or several match, a line of the dictionary is wrong, or a
            language is no language code.
    """
    words = _dictionary_words(_single_file(folder, "*dict*.txt"))
    if not needs_list and any(map(code_of_tag, words)) and not any(folder.glob(_LANGUAGES)):
        languages = languages or ()
    tags = _tags(_read_languages(folder, languages))
    if invalid := [tag[2:-2] for tag in tags if code_of_tag(tag) is None]:
        raise UserError(
            f"{folder}: {join_names([repr(code) for code in invalid])} in the list of languages "
            "cannot be a language code; list codes such as de, pt-br or zh_Hant in languages.txt, "
            "in the same order"
        )
    present = set(words)  # fairseq appends only the tags that its dictionary lacks
    missing = [tag for tag in tags if tag not in present]
    return TokenTable(
        (*SPECIAL_NAMES, *words, *missing), _single_file(folder, "*.model"), tuple(tags)
    )


def _dictionary_words(path: Path) -> list[str]:
    """Return the words of a dictionary, whose lines are `WORD COUNT` or `WORD COUNT FLAG`.

    A line with the flag `#fairseq:overwrite` may repeat a word. The word's row is then the later
    one, and the earlier one is never used; the rows of the four specials stay the first ones.

    Raises:
        UserError: if a line has no count, or repeats a word without the flag.
    """
    words: list[str] = []
    last_rows: dict[str, int] = {}
    # Not splitlines: a piece may be one of the characters that Unicode counts as line breaks.
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line:
            continue
        entry = line.rstrip()
        word, _, count = entry.removesuffix(_OVERWRITE).rpartition(" ")
        if not count.removeprefix("-").isdecimal():  # as `int` in fairseq; scores may be below 0
            raise UserError(f"{path}, line {number}: {short_repr(line)} is no word with a count")
        if not entry.endswith(_OVERWRITE) and (word in last_rows or word in SPECIAL_NAMES):
            raise UserError(
                f"{path}, line {number}: {short_repr(word)} is already in the dictionary; use the "
                "file of the training, in which such a line ends with #fairseq:overwrite"
            )
        last_rows[word] = len(words)
        words.append(word)
    fillers = _fillers({*last_rows, *SPECIAL_NAMES})
    return [
        word if last_rows[word] == row and word not in SPECIAL_NAMES else next(fillers)
        for row, word in enumerate(words)
    ]


def _text(path: Path) -> str:
    """Return the text of a file, without a byte-order mark.

    Raises:
        UserError: if it is not UTF-8.
    """
    try:
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text; convert it") from error


def _tags(languages: Sequence[str]) -> list[str]:
    return [f"__{code}__" for code in languages]


def _read_languages(folder: Path, listed: Sequence[str] | None) -> Sequence[str]:
    """Return the languages of the checkpoint, or of a file where those are no language codes."""
    if listed is not None and (
        all(map(code_of_tag, _tags(listed))) or not any(folder.glob(_LANGUAGES))
    ):
        return listed
    path = _single_file(folder, _LANGUAGES)
    languages = _text(path).replace(",", " ").split()
    if listed is not None and len(languages) != len(listed):
        raise UserError(
            f"{path}: has {pluralize(len(languages), 'language')}, the checkpoint {len(listed)}; "
            "list as many, in the same order"
        )
    return languages


def read_hugging_face_table(folder: Path, kind: str, size: int) -> TokenTable:
    """Read the tokenizer files of a Hugging Face directory.

    Args:
        folder: the directory.
        kind: `model_type` of its configuration.
        size: number of embedding rows; ids without a token become fillers.

    Raises:
        UserError: if files are missing, an id is outside the embedding, or two tokens share an id.
    """
    model = _single_file(folder, "*.model")
    has_list = (folder / "vocab.json").is_file()
    if has_list:
        ids = _ids(_fields(folder / "vocab.json"))
    elif (folder / "tokenizer.json").is_file():
        ids = _fast_tokens(_fields(folder / "tokenizer.json"))
    else:
        ids = _ids_of_pieces(model)
    ids |= _added_tokens(folder)
    built_in = _M2M100_TAGS if has_list else (*NLLB_TAGS, _MASK)
    _append(ids, _tag_list(folder) or (_MITRE_TAGS if kind == "mitre" else built_in), size)
    return TokenTable(_by_id(folder, ids, size), model)


def _trailing_fillers(pieces: Sequence[str]) -> int:
    """Return the number of fillers at the end of the pieces."""
    count = 0
    while count < len(pieces) and (pieces[-1 - count] == _MASK or is_unnamed(pieces[-1 - count])):
        count += 1
    return count


def _by_id(folder: Path, ids: Mapping[str, int], size: int) -> tuple[str, ...]:
    tokens: list[str | None] = [None] * size
    for token, i in ids.items():
        if not 0 <= i < size:
            raise UserError(f"{folder}: '{token}' has id {i}, but the embedding has {size} rows")
        if tokens[i] is not None:
            raise UserError(f"{folder}: '{token}' and '{tokens[i]}' have the same id {i}")
        tokens[i] = token
    fillers = _fillers(ids)
    return tuple(next(fillers) if token is None else token for token in tokens)


def _fillers(tokens: Collection[str]) -> Iterator[str]:
    """Yield names of rows without a token, as fairseq's, that are not among some tokens."""
    names = (f"madeupword{number:04d}" for number in itertools.count())
    return (name for name in names if name not in tokens)


def _append(ids: dict[str, int], tokens: Sequence[str], size: int) -> None:
    """Append tokens unless the table already has tags or the embedding has no rows for them."""
    missing = [token for token in tokens if token not in ids]
    if any(code_of_tag(token) is not None and token in ids for token in tokens):
        return
    start = max(ids.values(), default=-1) + 1
    if start + len(missing) <= size:
        ids.update({token: start + i for i, token in enumerate(missing)})


def _added_tokens(folder: Path) -> dict[str, int]:
    ids: dict[str, int] = {}
    if (folder / "added_tokens.json").is_file():
        ids |= _ids(_fields(folder / "added_tokens.json"))
    if (folder / "tokenizer_config.json").is_file():
        decoder = _fields(folder / "tokenizer_config.json").object("added_tokens_decoder", {})
        numbers = TypedFields(decoder.file_name, {number: number for number in decoder.values})
        ids |= {
            _content(decoder.file_name, token): numbers.integer(number)
            for number, token in decoder.values.items()
        }
    return ids


def _ids(fields: TypedFields) -> dict[str, int]:
    """Return the ids of an object that maps tokens to them."""
    return {token: fields.integer(token) for token in fields.values}


def _tag_list(folder: Path) -> tuple[str, ...]:
    """Return the tags that a directory lists without ids."""
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            special_tokens = _fields(folder / name).values.get("additional_special_tokens") or ()
            if not isinstance(special_tokens, list | tuple):
                raise UserError(
                    f"{folder / name}: additional_special_tokens={short_repr(special_tokens)} "
                    "must be a list"
                )
            tokens = (_content(folder / name, token) for token in special_tokens)
            tags = [token for token in tokens if code_of_tag(token) is not None]
            if tags:
                return tuple(tags)
    return ()


def _fast_tokens(tokenizer: TypedFields) -> dict[str, int]:
    model = tokenizer.object("model")
    vocab = model.values.get("vocab")
    if isinstance(vocab, list):
        if not all(isinstance(pair, list) and pair and isinstance(pair[0], str) for pair in vocab):
            raise UserError(
                f"{model.file_name}: vocab must be a list of pairs of a token and a score"
            )
        ids = {pair[0]: i for i, pair in enumerate(vocab)}
    else:
        ids = _ids(model.object("vocab"))
    added = tokenizer.objects("added_tokens", ())
    return ids | {token.text("content"): token.integer("id") for token in added}


def _ids_of_pieces(model: Path) -> dict[str, int]:
    """Return the default ids: fairseq's specials, then the pieces of the model."""
    tokens = _tokens_of_pieces(Vocabulary.from_sentencepiece(model, ()))
    return {token: i for i, token in enumerate(tokens)}


def _tokens_of_pieces(vocabulary: Vocabulary) -> tuple[str, ...]:
    """Return the tokens by default id, of a model whose first ids are unk, <s> and </s>."""
    return (*SPECIAL_NAMES, *vocabulary.model_pieces[_MODEL_SPECIALS:])


def _content(file_name: Path | str, token: Any) -> str:
    """Return the text of a token that is stored as a string or as an object."""
    fields = token if isinstance(token, Mapping) else {"content": token}
    return TypedFields(file_name, fields).text("content")


def _fields(path: Path) -> TypedFields:
    return TypedFields(path, read_json(path, remedy="download it again"))


def _single_file(folder: Path, pattern: str) -> Path:
    matches = sorted(path for path in folder.glob(pattern) if path.is_file())
    if len(matches) != 1:
        listed = f"it has {', '.join(path.name for path in matches)}" if matches else "it has none"
        raise UserError(
            f"{folder}: one {pattern} is needed, {listed}; put the vocabulary's files into a "
            "folder of their own and name it with --vocabulary"
        )
    return matches[0]
