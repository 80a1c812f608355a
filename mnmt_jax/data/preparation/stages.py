"""Stages of a recipe: steps that look at one pair at a time, up to a deduplication."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from mnmt_jax.data.preparation.steps import (
    KeyRule,
    PairBatch,
    PairRule,
    PieceRule,
    Step,
    Transform,
)
from mnmt_jax.errors import UserError

EXAMPLES = 10
"""Dropped pairs that are kept for the report, for each step."""
UNENCODED = "encoding"
"""Label of the pairs that are dropped after all steps because a side has no pieces."""


def select_pairs(batch: PairBatch, kept: np.ndarray) -> PairBatch:
    """Return the pairs of a batch that a mask, bool `[pairs]`, keeps."""
    return dataclasses.replace(
        batch,
        sources=list(itertools.compress(batch.sources, kept)),
        targets=list(itertools.compress(batch.targets, kept)),
        scores={name: values[kept] for name, values in batch.scores.items()},
    )


class Counts:
    """How many pairs each step dropped, and the first of them."""

    def __init__(self) -> None:
        self._dropped: dict[str, int] = {}
        self._examples: dict[str, list[tuple[str, str]]] = {}

    def keep(self, label: str, batch: PairBatch, kept: np.ndarray) -> PairBatch:
        """Return the pairs that a step keeps, and count the others.

        Args:
            label: label of the step.
            batch: the pairs before.
            kept: bool `[pairs]`.
        """
        rows = np.flatnonzero(~kept).tolist()
        self._dropped[label] = self._dropped.get(label, 0) + len(rows)
        examples = self._examples.setdefault(label, [])
        for row in rows[: EXAMPLES - len(examples)]:
            examples.append((batch.sources[row], batch.targets[row]))
        return select_pairs(batch, kept) if rows else batch

    def as_facts(self) -> dict[str, Any]:
        """Return the counts as JSON values."""
        return {"dropped": self._dropped, "examples": self._examples}


@dataclasses.dataclass(frozen=True)
class Stage:
    """Steps of a recipe between two deduplications.

    Attributes:
        steps: transforms and rules of pairs, in order, with their labels.
        repeats: the deduplication after them; None after the last stage.
        repeats_label: its label.
        piece_rules: rules of encoded pairs after the last stage, with their labels.
    """

    steps: tuple[tuple[str, Transform | PairRule], ...] = ()
    repeats: KeyRule | None = None
    repeats_label: str = ""
    piece_rules: tuple[tuple[str, PieceRule], ...] = ()

    @property
    def transforms(self) -> tuple[tuple[str, Transform | PairRule], ...]:
        """The steps that change text and drop nothing."""
        return tuple((label, step) for label, step in self.steps if isinstance(step, Transform))

    def apply(self, batch: PairBatch, counts: Counts) -> PairBatch:
        """Return the pairs that the steps keep, changed by the transforms."""
        for label, step in self.steps:
            if isinstance(step, Transform):
                sides = zip((batch.sources, batch.targets), batch.direction, strict=True)
                sources, targets = (step.apply(lines, code) for lines, code in sides)
                batch = dataclasses.replace(batch, sources=sources, targets=targets)
            else:
                batch = counts.keep(label, batch, step.keeps(batch))
        return batch

    def kept_pieces(self, batch: PairBatch, lengths: np.ndarray, counts: Counts) -> np.ndarray:
        """Return which encoded pairs have pieces on both sides and are kept by the piece rules.

        Args:
            batch: the pairs.
            lengths: numbers of source and target pieces, int `[pairs, 2]`.
            counts: counts what is dropped.

        Returns:
            bool `[pairs]`.
        """
        kept = np.ones(len(lengths), bool)
        for label, rule in self.piece_rules:
            rows = np.flatnonzero(kept)
            keeps = rule.keeps(lengths[rows])
            counts.keep(label, select_pairs(batch, kept), keeps)
            kept[rows] = keeps
        has_pieces: np.ndarray = np.all(lengths > 0, axis=1)
        if not has_pieces[kept].all():
            counts.keep(UNENCODED, select_pairs(batch, kept), has_pieces[kept])
        return kept & has_pieces


def label_steps(steps: Iterable[Step]) -> list[tuple[str, Step]]:
    """Return the steps of a recipe with labels: number and name."""
    return [(f"{number}. {step.name}", step) for number, step in enumerate(steps, start=1)]


def make_stages(steps: Sequence[Step]) -> tuple[Stage, ...]:
    """Divide the steps of a recipe at its deduplications.

    Raises:
        UserError: if a rule of pieces precedes a step on text.
    """
    stages: list[Stage] = []
    current: list[tuple[str, Transform | PairRule]] = []
    piece_rules: list[tuple[str, PieceRule]] = []
    for label, step in label_steps(steps):
        if isinstance(step, PieceRule):
            piece_rules.append((label, step))
            continue
        if piece_rules:
            raise UserError(
                f"step {label}: rules of pieces come last, but {piece_rules[0][0]} precedes it"
            )
        if isinstance(step, KeyRule):
            stages.append(Stage(tuple(current), step, label))
            current = []
        else:
            assert isinstance(step, Transform | PairRule)
            current.append((label, step))
    return (*stages, Stage(tuple(current), piece_rules=tuple(piece_rules)))
