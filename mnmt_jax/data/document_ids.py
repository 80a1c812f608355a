"""Ids of the documents to which the lines of a corpus belong."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from mnmt_jax.data.text_reader import Flaw, read_lines, resolve
from mnmt_jax.errors import UserError, docs_page, join_names
from mnmt_jax.vocabulary.language_codes import Direction


@dataclasses.dataclass(frozen=True)
class DocumentIds:
    """Files with the document id of each line of a corpus.

    Consecutive lines with the same id are a document. What follows a tab in a line is no part of
    the id.

    Attributes:
        patterns: path patterns of each split, tried in order; `{pair}` stands for a pair of
            languages in either order ("de-en").
    """

    patterns: Mapping[str, Sequence[str]]

    @classmethod
    def of_splits(cls, pattern: str, splits: Mapping[str, str]) -> DocumentIds:
        """Return the ids that a pattern with `{split}` names.

        Args:
            pattern: the pattern.
            splits: name of each split in file names.
        """
        return cls({split: (pattern.replace("{split}", word),) for split, word in splits.items()})

    def path(self, split: str, direction: Direction) -> str | None:
        """Return the file of a split and direction; None if there is none."""
        paths = map(resolve, self.names(split, direction))
        return next((path for path in paths if path), None)

    def read(self, split: str, direction: Direction) -> Iterator[str]:
        """Yield the id of each line.

        Raises:
            UserError: if there is no file, or a line of it has no id.
        """
        path = self.path(split, direction)
        if path is None:
            names = join_names(self.names(split, direction))
            page = docs_page("context.md")
            raise UserError(f"{names or split}: no such file of document ids; see {page}")
        for number, line in enumerate(read_lines(path), start=1):
            document = "" if isinstance(line, Flaw) else line.split("\t")[0].strip()
            if not document:
                raise UserError(
                    f"{path}:{number}: no document id; write one for each line of the text, blank "
                    "and bad ones included"
                )
            yield document

    def names(self, split: str, direction: Direction) -> list[str]:
        """Return the paths that are tried for a split and direction, in order."""
        pairs = "-".join(direction), "-".join(direction[::-1])
        patterns = self.patterns.get(split, ())
        names = (pattern.replace("{pair}", pair) for pattern in patterns for pair in pairs)
        return list(dict.fromkeys(names))
