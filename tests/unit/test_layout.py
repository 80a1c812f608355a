"""The rules of the layout, and the table against masks drawn by hand."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.attention.core import pair_mask
from mnmt_jax.attention.dense import dense_mask
from mnmt_jax.layout import Layout, Sees, Stage
from mnmt_jax.layouts import LAYOUTS, get_layout

MASKS = Path(__file__).parent.parent / "golden" / "masks"
ROLE_OF_LETTER = {"S": "source", "R": "register", "G": "trigger", "T": "target"}


def read_picture(block: str):
    """Parses a picture into row labels, column labels and {row: cells}, without blank rows."""
    lines = block.splitlines()
    columns = lines[0].split()
    rows, cells = [], {}
    for number, line in enumerate(lines[1:]):
        label, *marks = line.split()
        rows.append(label)
        if marks:
            assert len(marks) == len(columns), f"row {number} of the picture has {len(marks)} cells"
            cells[number] = [mark == "1" for mark in marks]
    return rows, columns, cells


def segment_ids_of(labels: list[str]) -> dict[str, jax.Array]:
    """Turns labels such as S1 S1 S2 S0 into role -> [1, length] segment ids."""
    spans: dict[str, list[int]] = {}
    for label in labels:
        spans.setdefault(ROLE_OF_LETTER[label[0]], []).append(int(label[1:]))
    return {role: jnp.array([ids], jnp.int32) for role, ids in spans.items()}


def test_every_row_has_a_picture():
    assert {path.stem for path in MASKS.glob("*.txt")} == set(LAYOUTS)


@pytest.mark.parametrize("name", LAYOUTS)
def test_masks_equal_the_drawn_ones(name):
    layout = LAYOUTS[name]
    blocks = (MASKS / f"{name}.txt").read_text().strip().split("\n\n")
    pictures = [read_picture(block) for block in blocks if not block.startswith("memory")]
    memories = [
        read_picture(block.split("\n", 1)[1]) for block in blocks if block.startswith("memory")
    ]
    assert len(pictures) == len(layout.stages)
    assert len(memories) == sum(len(stage.memory) for stage in layout.stages)
    compared = 0
    for stage, (rows, columns, cells) in zip(layout.stages, pictures, strict=True):
        assert rows == columns
        mask = np.asarray(dense_mask(stage, segment_ids_of(columns)))[0, 0]
        for row, expected in cells.items():
            assert mask[row].tolist() == expected, f"{name}: row {row} ({rows[row]})"
            compared += 1
    edges = [edge for stage in layout.stages for edge in stage.memory]
    for (reader, read), (rows, columns, cells) in zip(edges, memories, strict=True):
        queries, keys = segment_ids_of(rows)[reader], segment_ids_of(columns)[read]
        mask = np.asarray(pair_mask(Sees.FULL, queries, keys))[0, 0]
        for row, expected in cells.items():
            assert mask[row].tolist() == expected
            compared += 1
    assert compared >= 7


@pytest.mark.parametrize(
    ("roles", "sees", "rule"),
    [
        (("source", "target"), ("f.", "cc"), "rule 1"),
        (("source", "target"), ("ff", "fc"), "rule 2"),
        (("source", "target"), ("..", "fc"), "rule 3"),
        (("source", "target"), ("f.",), "table must be"),
    ],
)
def test_broken_tables_are_refused(roles, sees, rule):
    with pytest.raises(ValueError, match=rule):
        Layout("broken", (Stage(roles, sees),))


def test_a_role_never_returns():
    stages = (
        Stage(("source", "target"), ("f.", "fc")),
        Stage(("target",), ("c",)),
        Stage(("source", "target"), ("f.", "fc")),
    )
    with pytest.raises(ValueError, match="rule 4"):
        Layout("broken", stages)


def test_memory_must_read_an_ended_role():
    stages = (
        Stage(("source",), ("f",)),
        Stage(("source", "target"), ("f.", "fc"), memory=(("target", "source"),)),
    )
    with pytest.raises(ValueError, match="memory"):
        Layout("broken", stages)


def test_wrong_names_and_layer_counts_name_the_field():
    with pytest.raises(
        ValueError, match=r"Model\.layout='registers' is unknown; choose one of causal"
    ):
        get_layout("registers", (2,))
    with pytest.raises(ValueError, match=r"Model\.stage_layers=\(2,\).*needs 2 entries"):
        get_layout("two_stage", (2,))


def test_layouts_are_named_nowhere_else():
    """Outside the table nobody compares a layout's name: structure is read from the row."""
    package = Path(__file__).parent.parent.parent / "mnmt_jax"
    looked_at = 0
    for path in package.rglob("*.py"):
        if path.name == "layouts.py":
            continue
        looked_at += 1
        text = path.read_text()
        for name in LAYOUTS:
            for comparison in (f'== "{name}"', f'"{name}" ==', f'"{name}" in config.model.layout'):
                assert comparison not in text, f"{path.name} compares a layout's name: {comparison}"
    assert looked_at > 10
