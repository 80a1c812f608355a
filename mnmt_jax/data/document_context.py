"""Document context: division of documents into chunks of sentences that are translated together.

A chunk is a line: its sentences, joined by a separator. The division depends on the lengths of the
source sentences alone, so that it is the same in training and in translation.

Sources: chunks beside single sentences in training, DocBlocks (Ramos et al. 2025,
arXiv:2504.12140); chunks of the same lengths in training and translation, Doc2FRC
(arXiv:2609.12674); a separator that divides translations into sentences again, Tiedemann and
Scherrer (2017).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mnmt_jax.errors import UserError

if TYPE_CHECKING:
    from mnmt_jax.vocabulary.vocabulary import Vocabulary

SEPARATOR = "\N{SYMBOL FOR NEWLINE}"
"""Default separator of the sentences of a chunk."""
WITHOUT_CONTEXT = (
    "translated without context, as the only line of a chunk or because the translation of the "
    "chunk had another number of sentences"
)
"""Part of messages about lines of documents of several lines that are translated one by one."""


@dataclasses.dataclass(frozen=True)
class Context:
    """How documents are divided into chunks.

    Attributes:
        pieces: most source pieces of a chunk of several sentences, with its separators.
        separator: text between its sentences; a source sentence that contains it, or has no
            pieces, is a chunk by itself.
    """

    pieces: int
    separator: str = SEPARATOR

    def __post_init__(self) -> None:
        """Check both values.

        Raises:
            UserError: if one is invalid.
        """
        if self.pieces < 1:
            raise UserError(f"--context={self.pieces}: must be 1 piece or more, such as 128")
        if not self.separator or self.separator.split() != [self.separator]:
            raise UserError(
                f"--separator={self.separator!r}: must be text without spaces, such as {SEPARATOR}"
            )

    def join(self, sentences: Sequence[str]) -> str:
        """Return a chunk of sentences as one line."""
        return f"{self.separator} ".join(sentences)

    def split(self, chunk: str) -> list[str]:
        """Return the sentences of a chunk."""
        return [sentence.strip() for sentence in chunk.split(self.separator)]

    def occurs(self, sentence: str, pieces: Sequence[int], vocabulary: Vocabulary) -> bool:
        """Return whether a sentence has the separator, as text or as it is encoded.

        The rule of a SentencePiece model may make a separator of another character: `nmt_nfkc`
        reads U+FF5C as `|`.

        Args:
            sentence: the sentence.
            pieces: its pieces.
            vocabulary: vocabulary of the pieces.
        """
        return self.separator in sentence or self.separator in vocabulary.decode(pieces)

    def chunk_sizes(
        self, sentences: Sequence[str], vocabulary: Vocabulary, language: str
    ) -> list[int]:
        """Return the numbers of sentences of the chunks of a document, in order.

        Args:
            sentences: source sentences of the document.
            vocabulary: encodes them.
            language: their language.
        """
        lengths = [
            len(pieces) if pieces and not self.occurs(sentence, pieces, vocabulary) else self.pieces
            for sentence, pieces in zip(
                sentences, vocabulary.encode_lines(sentences, language), strict=True
            )
        ]
        between = len(vocabulary.encode(self.join("aa"), language))
        between -= 2 * len(vocabulary.encode("a", language))
        return even_sizes(lengths, self.pieces, between)


def even_sizes(lengths: Sequence[int], limit: int, between: int) -> list[int]:
    """Divide a sequence into the fewest parts within a limit, and these as evenly as possible.

    Of all divisions with the fewest parts, one with the least sum of squared lengths is chosen.

    Args:
        lengths: length of each item.
        limit: greatest length of a part of several items; a longer item is a part by itself.
        between: length that is added between two items of a part.

    Returns:
        The number of items of each part, in order.
    """
    costs = [(0, 0)]  # parts, sum of squared lengths
    sizes: list[int] = []  # of the last part of the best division of the first items
    for end in range(1, len(lengths) + 1):
        candidates = []
        length = -between
        for size in range(1, end + 1):
            length += between + lengths[end - size]
            if size > 1 and length > limit:
                break
            parts, squares = costs[end - size]
            candidates.append(((parts + 1, squares + length**2), size))
        cost, size = min(candidates)
        costs.append(cost)
        sizes.append(size)
    result: list[int] = []
    end = len(lengths)
    while end > 0:
        result.append(sizes[end - 1])
        end -= result[-1]
    return result[::-1]
