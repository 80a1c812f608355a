"""Token classes for reporting probe accuracy.

Source: TPDM paper, section 2, Figure 2, and Table 4: punctuation, numbers, pieces whose first
letter is a capital, and scripts. A piece may belong to several classes or to none.
"""

from __future__ import annotations

import re
import unicodedata

from mnmt_jax.vocabulary.normalization import SPACE_MARK
from mnmt_jax.vocabulary.special_ids import EOS_ID, UNK_ID
from mnmt_jax.vocabulary.vocabulary import Vocabulary

PUNCTUATION, NUMBER, CAPITAL = "punctuation", "number", "capital"
TAG, EOS, UNKNOWN = "tag", "eos", "unknown"
_BYTE = re.compile("<0x[0-9A-F]{2}>")  # SentencePiece's name of a byte
# First word of a character's Unicode name -> its script; None: used in several scripts.
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
    """Return the classes of a piece of text.

    Args:
        piece: with or without SentencePiece's space mark.

    Returns:
        `PUNCTUATION` if all characters are in Unicode's categories P and S, `NUMBER` if all are
        digits, `CAPITAL` if the first is an upper-case letter, and the name of the script if all
        letters are of one script, apart from letters of several scripts. A byte has no classes.
    """
    if _BYTE.fullmatch(piece):
        return frozenset()
    text = piece.replace(SPACE_MARK, "")
    if not text:
        return frozenset()
    categories = [unicodedata.category(character) for character in text]
    classes = set()
    if all(category[0] in "PS" for category in categories):
        classes.add(PUNCTUATION)
    if all(category == "Nd" for category in categories):
        classes.add(NUMBER)
    if categories[0] in ("Lu", "Lt"):
        classes.add(CAPITAL)
    letters = [
        character
        for character, category in zip(text, categories, strict=True)
        if category[0] == "L"
    ]
    scripts = {script for letter in letters if (script := _script(letter))}
    if len(scripts) == 1:
        classes |= scripts
    return frozenset(classes)


def token_id_classes(vocabulary: Vocabulary, token: int) -> frozenset[str]:
    """Return the classes of an id: `TAG`, `EOS`, `UNKNOWN`, or those of its piece."""
    if token >= vocabulary.first_tag:
        return frozenset([TAG])
    if token > UNK_ID:
        return piece_classes(vocabulary.named_pieces[token - UNK_ID - 1])
    return frozenset([EOS] if token == EOS_ID else [UNKNOWN] if token == UNK_ID else ())


def _script(letter: str) -> str | None:
    name = _WIDTHS.sub("", unicodedata.name(letter, "unnamed")).split()[0].title()
    return _SCRIPTS.get(name, name)
