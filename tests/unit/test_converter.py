"""Spans against arrays written by hand, and the table of instructions."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mnmt_jax.data.converter import Converter, Example, Lengths, segments_from_rows
from mnmt_jax.data.instruction import INSTRUCTIONS, Instruction, get_instruction
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.design.views import View
from mnmt_jax.errors import UserError
from tests.unit import made_text

EN, DE, FR = 60, 61, 62  # tags of the made vocabulary
A = Example(np.array([11, 12]), np.array([21, 22, 23]), 0, 1, task=4)
B = Example(np.array([13]), np.array([24]), 0, 2, task=5)
C = Example(np.array([14, 15, 16]), np.array([], np.int32), 1, 0, task=6)
ROWS = [[A, B], [C], []]
LENGTHS = Lengths(source=12, target=9, max_segments=3)


def converter(instruction: str, layout: str, register_factor: float = 1.0) -> Converter:
    roles = LAYOUTS[layout].embedded_roles()
    vocabulary = made_text.vocabulary()
    return Converter(vocabulary, INSTRUCTIONS[instruction], roles, LENGTHS, register_factor)


def parse_drawing(text: str) -> np.ndarray:
    return np.array([[int(cell) for cell in line.split()] for line in text.strip().splitlines()])


SOURCE = {
    "source_tokens": """
        61 11 12  1 62 13  1  0  0  0  0  0
        60 14 15 16  1  0  0  0  0  0  0  0
         0  0  0  0  0  0  0  0  0  0  0  0""",
    "source_positions": """
         0  1  2  3  0  1  2  0  0  0  0  0
         0  1  2  3  4  0  0  0  0  0  0  0
         0  0  0  0  0  0  0  0  0  0  0  0""",
    "source_segment_ids": """
         1  1  1  1  2  2  2  0  0  0  0  0
         1  1  1  1  1  0  0  0  0  0  0  0
         0  0  0  0  0  0  0  0  0  0  0  0""",
    "source_lang": " 0  0 -1 \n  1 -1 -1 \n -1 -1 -1",
    "target_lang": " 1  2 -1 \n  0 -1 -1 \n -1 -1 -1",
    "task": "        4  5 -1 \n  6 -1 -1 \n -1 -1 -1",
}
REGISTER_TARGET = {
    "target_tokens": """
        61 21 22 23 62 24  0  0  0
        60  0  0  0  0  0  0  0  0
         0  0  0  0  0  0  0  0  0""",
    "target_positions": """
         0  1  2  3  0  1  0  0  0
         0  0  0  0  0  0  0  0  0
         0  0  0  0  0  0  0  0  0""",
    "target_segment_ids": """
         1  1  1  1  2  2  0  0  0
         1  0  0  0  0  0  0  0  0
         0  0  0  0  0  0  0  0  0""",
    "target_labels": """
        21 22 23  1 24  1  0  0  0
         1  0  0  0  0  0  0  0  0
         0  0  0  0  0  0  0  0  0""",
}
REGISTERS = {
    1.0: {
        "register_tokens": """
            61 61 61 61 62 62 62  0  0  0  0  0  0  0  0
            60 60 60 60 60  0  0  0  0  0  0  0  0  0  0
             0  0  0  0  0  0  0  0  0  0  0  0  0  0  0""",
        "register_positions": """
             0  1  2  3  0  1  2  0  0  0  0  0  0  0  0
             0  1  2  3  4  0  0  0  0  0  0  0  0  0  0
             0  0  0  0  0  0  0  0  0  0  0  0  0  0  0""",
        "register_segment_ids": """
             1  1  1  1  2  2  2  0  0  0  0  0  0  0  0
             1  1  1  1  1  0  0  0  0  0  0  0  0  0  0
             0  0  0  0  0  0  0  0  0  0  0  0  0  0  0""",
    },
    1.5: {  # 4 source tokens -> 3 registers, 3 -> 2, 5 -> 4; room for 12 // 1.5 + 3
        "register_tokens": """
            61 61 61 62 62  0  0  0  0  0  0
            60 60 60 60  0  0  0  0  0  0  0
             0  0  0  0  0  0  0  0  0  0  0""",
        "register_positions": """
             0  1  2  0  1  0  0  0  0  0  0
             0  1  2  3  0  0  0  0  0  0  0
             0  0  0  0  0  0  0  0  0  0  0""",
        "register_segment_ids": """
             1  1  1  2  2  0  0  0  0  0  0
             1  1  1  1  0  0  0  0  0  0  0
             0  0  0  0  0  0  0  0  0  0  0""",
    },
}
TRIGGER_TARGET = {
    "trigger_tokens": "1 1 0 \n 1 0 0 \n 0 0 0",
    "trigger_positions": "0 0 0 \n 0 0 0 \n 0 0 0",
    "trigger_segment_ids": "1 2 0 \n 1 0 0 \n 0 0 0",
    "target_tokens": """
         1 61 21 22 23  1 62 24  0
         1 60  0  0  0  0  0  0  0
         0  0  0  0  0  0  0  0  0""",
    "target_positions": """
         0  1  2  3  4  0  1  2  0
         0  1  0  0  0  0  0  0  0
         0  0  0  0  0  0  0  0  0""",
    "target_segment_ids": """
         1  1  1  1  1  2  2  2  0
         1  1  0  0  0  0  0  0  0
         0  0  0  0  0  0  0  0  0""",
    "target_labels": """
        61 21 22 23  1 62 24  1  0
        60  1  0  0  0  0  0  0  0
         0  0  0  0  0  0  0  0  0""",
}


@pytest.mark.parametrize(
    ("instruction", "layout", "factor", "expected"),
    [
        ("register", "register", 1.0, SOURCE | REGISTERS[1.0] | REGISTER_TARGET),
        ("register", "register", 1.5, SOURCE | REGISTERS[1.5] | REGISTER_TARGET),
        ("4", "two_stage_trigger", 1.0, SOURCE | TRIGGER_TARGET),
    ],
)
def test_packed_rows_equal_the_drawn_arrays(instruction, layout, factor, expected):
    batch = converter(instruction, layout, factor).batch(segments_from_rows(ROWS), rows=3)
    assert set(batch) == set(expected)
    for name, picture in expected.items():
        assert batch[name].dtype == np.int32, name
        np.testing.assert_array_equal(batch[name], parse_drawing(picture), err_msg=name)


IDENTITY = {  # the span is the target's 9 tokens and one per segment
    "identity_source_tokens": """
        61 21 22 23  1 62 24  1  0  0  0  0
        60  1  0  0  0  0  0  0  0  0  0  0
         0  0  0  0  0  0  0  0  0  0  0  0""",
    "identity_source_positions": """
         0  1  2  3  4  0  1  2  0  0  0  0
         0  1  0  0  0  0  0  0  0  0  0  0
         0  0  0  0  0  0  0  0  0  0  0  0""",
    "identity_source_segment_ids": """
         1  1  1  1  1  2  2  2  0  0  0  0
         1  1  0  0  0  0  0  0  0  0  0  0
         0  0  0  0  0  0  0  0  0  0  0  0""",
}
IDENTITY_REGISTERS = {  # factor 2: 5 source tokens -> 3 registers, 3 -> 2, 2 -> 1
    "identity_register_tokens": """
        61 61 61 62 62  0  0  0  0
        60  0  0  0  0  0  0  0  0
         0  0  0  0  0  0  0  0  0""",
    "identity_register_positions": """
         0  1  2  0  1  0  0  0  0
         0  0  0  0  0  0  0  0  0
         0  0  0  0  0  0  0  0  0""",
    "identity_register_segment_ids": """
         1  1  1  2  2  0  0  0  0
         1  0  0  0  0  0  0  0  0
         0  0  0  0  0  0  0  0  0""",
}


@pytest.mark.parametrize(
    ("instruction", "layout", "expected"),
    [
        ("1", "encoder_decoder", IDENTITY),
        ("register", "register", IDENTITY | IDENTITY_REGISTERS),
        # The target begins with the tag, so an identity source is no longer: 9 tokens, not 12.
        ("4", "causal", {k: "\n".join(r[:-9] for r in v.split("\n")) for k, v in IDENTITY.items()}),
    ],
)
def test_identity_pairs_translate_the_target_into_itself(instruction, layout, expected):
    batcher = dataclasses.replace(converter(instruction, layout, 2.0), views=(View("identity"),))
    segments = segments_from_rows(ROWS)
    batch = batcher.batch(segments, rows=3)
    plain = converter(instruction, layout, 2.0).batch(segments, rows=3)
    assert set(batch) == set(plain) | set(expected)
    for name, array in plain.items():
        np.testing.assert_array_equal(batch[name], array, err_msg=name)
    for name, picture in expected.items():
        assert batch[name].dtype == np.int32, name
        np.testing.assert_array_equal(batch[name], parse_drawing(picture), err_msg=name)


@pytest.mark.parametrize("instruction", ["1", "4", "register"])
def test_identity_pairs_of_full_rows_fit(instruction):
    """Three targets fill the row to its last token, and their identity sources fill theirs."""
    extra = INSTRUCTIONS[instruction].target_extra
    pieces = [np.full(3 - extra, 7)] * 3
    row = [Example(np.array([5]), piece, 0, 1) for piece in pieces]
    batcher = dataclasses.replace(converter(instruction, "register"), views=(View("identity"),))
    batch = batcher.batch(segments_from_rows([row]), rows=1)
    assert (batch["target_segment_ids"] > 0).all()
    assert (batch["identity_source_segment_ids"] > 0).all()
    assert (batch["identity_register_segment_ids"] > 0).sum() == (3 - extra + 2) * 3


def test_static_batch_is_the_batch_without_the_target():
    whole = converter("4", "two_stage_trigger").batch(segments_from_rows(ROWS), rows=3)
    static = converter("4", "two_stage_trigger").static_batch(segments_from_rows(ROWS), rows=3)
    assert {name for name in whole if not name.startswith("target_")} == set(static) - {
        "target_lang"
    }
    for name, array in static.items():
        np.testing.assert_array_equal(array, whole[name])


@pytest.mark.parametrize(
    ("key", "source", "target", "labels", "forced"),
    [
        ("1", [DE, 11, 12, 1], [1, 21, 22, 23], [21, 22, 23, 1], ()),
        ("2", [11, 12, 1], [1, DE, 21, 22, 23], [DE, 21, 22, 23, 1], (DE,)),
        ("3", [11, 12, 1], [DE, 21, 22, 23], [21, 22, 23, 1], ()),
        ("4", [DE, 11, 12, 1], [1, DE, 21, 22, 23], [DE, 21, 22, 23, 1], (DE,)),
        ("5", [EN, 11, 12, 1], [1, DE, 21, 22, 23], [DE, 21, 22, 23, 1], (DE,)),
        ("register", [DE, 11, 12, 1], [DE, 21, 22, 23], [21, 22, 23, 1], ()),
        ("none", [11, 12, 1], [1, 21, 22, 23], [21, 22, 23, 1], ()),
    ],
)
def test_instructions(key, source, target, labels, forced):
    batch = converter(key, "prefix").batch(segments_from_rows([[A]]), rows=1)
    assert batch["source_tokens"][0, : len(source)].tolist() == source
    assert batch["source_segment_ids"].sum() == len(source)
    assert batch["target_tokens"][0, : len(target)].tolist() == target
    assert batch["target_labels"][0, : len(labels)].tolist() == labels
    assert batch["target_segment_ids"].sum() == len(target) == len(labels)
    instruction, vocabulary = INSTRUCTIONS[key], made_text.vocabulary()
    assert instruction.forced_ids(vocabulary, "de") == forced
    assert instruction.trigger_id(vocabulary, "de") == target[0]


def test_register_counts_follow_the_published_examples():
    counts = {0.75: [8, 6], 1.0: [6, 4], 1.25: [5, 4], 1.5: [4, 3]}
    for factor, expected in counts.items():
        got = converter("register", "register", factor).registers(np.array([6, 4]))
        assert got.tolist() == expected


def test_rows_that_do_not_fit_are_refused():
    long = Example(np.arange(3, 14), np.array([21]), 0, 1)
    with pytest.raises(ValueError, match="row 0 holds 13 source positions, the span has 12"):
        converter("1", "prefix").batch(segments_from_rows([[long]]), rows=1)
    with pytest.raises(ValueError, match="row 1 holds 4 segments"):
        short = Example(np.array([5]), np.array([6]), 0, 1)
        converter("3", "causal").batch(segments_from_rows([[], [short] * 4]), rows=2)
    with pytest.raises(ValueError, match="max_segments=0"):
        Lengths(3, 3, 0)


def test_unknown_instructions_and_invalid_fields_are_refused():
    with pytest.raises(UserError, match="Data.instruction='6'"):
        get_instruction("6")
    with pytest.raises(ValueError, match="source_tag"):
        Instruction("both", "eos", False)
    with pytest.raises(ValueError, match="trigger"):
        Instruction(None, "bos", False)
