"""Drawn masks in tests/golden/masks: one block per stage, then one per memory edge."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

MASKS = Path(__file__).parent / "golden" / "masks"
ROLE_OF_LETTER = {"S": "source", "R": "register", "G": "trigger", "T": "target"}


@dataclasses.dataclass(frozen=True)
class Picture:
    """A drawn mask.

    Attributes:
        rows: label of each query, a role's letter and a segment's number, e.g. `S1`.
        columns: label of each key.
        cells: row number -> whether it sees each key; rows of padding are absent.
    """

    rows: list[str]
    columns: list[str]
    cells: dict[int, list[bool]]

    @property
    def matrix(self) -> np.ndarray:
        """The mask as bool [rows, columns]; rows of padding are empty."""
        blank = [False] * len(self.columns)
        return np.array([self.cells.get(number, blank) for number in range(len(self.rows))])

    def block(self, query_role: str, key_role: str) -> np.ndarray:
        """Return the block of the mask for one query role and one key role."""
        rows = [ROLE_OF_LETTER[label[0]] == query_role for label in self.rows]
        columns = [ROLE_OF_LETTER[label[0]] == key_role for label in self.columns]
        return self.matrix[rows][:, columns]


def read_pictures(name: str) -> tuple[list[Picture], list[Picture]]:
    """Return the drawn masks of a layout: of its stages and of its memory edges."""
    blocks = (MASKS / f"{name}.txt").read_text(encoding="utf-8").strip().split("\n\n")
    stages = [_read(block) for block in blocks if not block.startswith("memory")]
    edges = [_read(block.split("\n", 1)[1]) for block in blocks if block.startswith("memory")]
    return stages, edges


def labelled(labels: list[str]) -> dict[str, list[int]]:
    """Convert labels such as S1 S1 S2 S0 to role -> segment ids."""
    spans: dict[str, list[int]] = {}
    for label in labels:
        spans.setdefault(ROLE_OF_LETTER[label[0]], []).append(int(label[1:]))
    return spans


def _read(block: str) -> Picture:
    lines = block.splitlines()
    columns = lines[0].split()
    rows, cells = [], {}
    for number, line in enumerate(lines[1:]):
        label, *marks = line.split()
        rows.append(label)
        if marks:
            assert len(marks) == len(columns), f"row {number} of the picture has {len(marks)} cells"
            cells[number] = [mark == "1" for mark in marks]
    return Picture(rows, columns, cells)
