"""The classes of tokens by which probing is read.

Source: TPDM paper, section 2, Figure 2, and Table 4: punctuation, numbers, pieces whose first
letter is a capital, and scripts. A piece may be in several, or in none.
"""

from __future__ import annotations

import re
import unicodedata

from mnmt_jax.vocabulary.special_ids import EOS_ID, UNK_ID
from mnmt_jax.vocabulary.vocabulary import Vocabulary

PUNCTUATION, NUMBER, CAPITAL = "punctuation", "number", "capital"
TAG, EOS, UNKNOWN = "tag", "eos", "unknown"
_SPACE = "\u2581"
_BYTE = re.compile("<0x[0-9A-F]{2}>")  # SentencePiece's name of a byte
# The first word of characters' names -> the script that they are of; None: of several.
_SCRIPTS = {
    "Cjk": "Han",
    "Ideographic": "Han",
    "Feminine": "Latin",  # the ordinal indicators
    "Masculine": "Latin",
    "Kelvin": "Latin",
    "Angstrom": "Latin",
    "Ohm": "Greek",
    "Micro": None,
    "Modifier": None,
    "Katakana-Hiragana": None,
}
_WIDTHS = re.compile("^(FULLWIDTH|HALFWIDTH) ")


def piece_classes(piece: str) -> frozenset[str]:
    """Returns the classes of a piece of text.

    Args:
        piece: with SentencePiece's mark of a space or not.

    Returns:
        `PUNCTUATION` if all characters are of Unicode's categories P and S, `NUMBER` if all are
        digits, `CAPITAL` if the first is an upper-case letter, and the name of the script if all
        letters are of one, those of several scripts aside. A byte has none.
    """
    if _BYTE.fullmatch(piece):
        return frozenset()
    text = piece.replace(_SPACE, "")
    if not text:
        return frozenset()
    kinds = [unicodedata.category(character) for character in text]
    found = set()
    if all(kind[0] in "PS" for kind in kinds):
        found.add(PUNCTUATION)
    if all(kind == "Nd" for kind in kinds):
        found.add(NUMBER)
    if kinds[0] in ("Lu", "Lt"):
        found.add(CAPITAL)
    letters = [c for c, kind in zip(text, kinds, strict=True) if kind[0] == "L"]
    scripts = {script for letter in letters if (script := _script(letter))}
    if len(scripts) == 1:
        found |= scripts
    return frozenset(found)


def token_id_classes(vocabulary: Vocabulary, token: int) -> frozenset[str]:
    """Returns the classes of an id: `TAG`, `EOS`, `UNKNOWN`, or those of its piece."""
    if token >= vocabulary.first_tag:
        return frozenset([TAG])
    if token > UNK_ID:
        return piece_classes(vocabulary.named_pieces[token - UNK_ID - 1])
    return frozenset([EOS] if token == EOS_ID else [UNKNOWN] if token == UNK_ID else ())


def _script(letter: str) -> str | None:
    name = _WIDTHS.sub("", unicodedata.name(letter, "unnamed")).split()[0].title()
    return _SCRIPTS.get(name, name)
