"""Translation instructions: positions of the language tags.

| key | source span | first target input | forced first output |
|---|---|---|---|
| `1` | `[target tag] x </s>` | `</s>` | none |
| `2` | `x </s>` | `</s>` | target tag |
| `3` | `x </s>` | target tag | none |
| `4` | `[target tag] x </s>` | `</s>` | target tag |
| `5` | `[source tag] x </s>` | `</s>` | target tag |
| `register` | `[target tag] x </s>` | target tag | none |
| `none` | `x </s>` | `</s>` | none |

Source: Two-stage decoder-only paper, Appendix B, strategies 1 to 5; MITRE's released code for
`register` (strategy 1 with the trigger replaced by the tag); language-specific layers paper, Table
7, for `none`: only layers that depend on the target language determine the direction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class Instruction:
    """How the languages are indicated to a model.

    Attributes:
        source_tag: language whose tag starts the source span: None, `source` or `target`.
        trigger: first target input: `eos`, or `tag` (of the target language).
        target_tag: whether the target text begins with the target language's tag. It is a label in
            training and a forced, unscored prefix in translation.
    """

    source_tag: str | None
    trigger: str
    target_tag: bool

    def __post_init__(self) -> None:
        """Check `source_tag` and `trigger`.

        Raises:
            ValueError: if a value is not allowed.
        """
        if self.source_tag not in (None, "source", "target"):
            raise ValueError(f"source_tag={self.source_tag!r} must be None, 'source' or 'target'")
        if self.trigger not in ("eos", "tag"):
            raise ValueError(f"trigger={self.trigger!r} must be 'eos' or 'tag'")

    @property
    def has_target_tag(self) -> bool:
        """Whether the tag of the target language appears in the source or the target."""
        return self.source_tag == "target" or self.trigger == "tag" or self.target_tag

    @property
    def source_extra(self) -> int:
        """Number of source tokens besides the pieces: eos and an optional tag."""
        return 1 + (self.source_tag is not None)

    @property
    def target_extra(self) -> int:
        """Number of target tokens besides the pieces: the trigger and an optional tag."""
        return 1 + self.target_tag

    def trigger_id(self, vocabulary: Vocabulary, target_lang: str) -> int:
        """Return the id of the first target input."""
        return vocabulary.eos_id if self.trigger == "eos" else vocabulary.tag_id(target_lang)

    def forced_ids(self, vocabulary: Vocabulary, target_lang: str) -> tuple[int, ...]:
        """Return the forced ids at the start of a translation; empty unless `target_tag`."""
        return (vocabulary.tag_id(target_lang),) if self.target_tag else ()


INSTRUCTIONS = {
    "1": Instruction("target", "eos", False),
    "2": Instruction(None, "eos", True),
    "3": Instruction(None, "tag", False),
    "4": Instruction("target", "eos", True),
    "5": Instruction("source", "eos", True),
    "register": Instruction("target", "tag", False),
    "none": Instruction(None, "eos", False),
}


def get_instruction(key: str) -> Instruction:
    """Return the instruction of a key.

    Raises:
        UserError: if the key is unknown.
    """
    if key not in INSTRUCTIONS:
        raise UserError(f"Data.instruction='{key}' must be one of {', '.join(INSTRUCTIONS)}")
    return INSTRUCTIONS[key]


def join_auxiliary(
    vocabulary: Vocabulary, source: Sequence[int], language: str, auxiliary: Sequence[int]
) -> list[int]:
    """Return the pieces of a source followed by its translation in an auxiliary language.

    Args:
        vocabulary: vocabulary of the pieces.
        source: pieces of the source.
        language: auxiliary language.
        auxiliary: pieces of the translation.
    """
    return [*source, vocabulary.tag_id(language), *auxiliary]


def split_auxiliary(vocabulary: Vocabulary, source: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the pieces of a sentence, and the tag and the pieces that `join_auxiliary` added.

    Args:
        vocabulary: vocabulary of the pieces.
        source: pieces of a source, int `[n]`; without a tag the second part is empty.
    """
    end = int(np.argmax(np.append(source, vocabulary.first_tag) >= vocabulary.first_tag))
    return source[:end], source[end:]
