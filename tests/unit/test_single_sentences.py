"""Batches of one sentence per row equal those of the converter for packed rows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mnmt_jax.data.converter import TASK, Converter, Example, Lengths, segments_from_rows
from mnmt_jax.data.instruction import INSTRUCTIONS
from mnmt_jax.data.single_sentences import single_sentence_batch
from mnmt_jax.design.layouts import LAYOUTS
from tests.unit import made_text

LENGTHS = Lengths(source=7, target=7)
EMPTY = np.array([], np.int32)
EXAMPLES = [
    Example(np.array([11, 12, 13, 14, 15]), np.array([21]), 0, 1, task=4),
    Example(np.array([13]), EMPTY, 0, 2),
    Example(EMPTY, EMPTY, 2, 0),
]


def translation_converters() -> list[Converter]:
    """Return converters of every layout and instruction, with several register factors."""
    vocabulary = made_text.vocabulary()
    return [
        Converter(vocabulary, instruction, LAYOUTS[layout].embedded_roles(), LENGTHS, factor)
        for layout in LAYOUTS
        for instruction in INSTRUCTIONS.values()
        for factor in (1.0, 1.5, 3.0)
    ]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("rows", [3, 5])
def test_a_batch_is_that_of_the_converter_without_the_task(count, rows):
    roles = set()
    for converter in translation_converters():
        examples = EXAMPLES[:count]
        segments = segments_from_rows([[example] for example in examples])
        expected = converter.static_batch(segments, rows)
        del expected[TASK]
        actual = single_sentence_batch(converter, examples, rows)
        assert actual.keys() == expected.keys()
        for name, array in expected.items():
            assert actual[name].dtype == array.dtype, name
            np.testing.assert_array_equal(actual[name], array, err_msg=name)
        roles |= set(converter.roles)
    assert {"source", "register", "trigger", "target"} <= roles


def test_a_source_longer_than_the_span_is_refused():
    converter = translation_converters()[0]
    long = dataclasses.replace(EXAMPLES[0], source=np.arange(5, 12))
    with pytest.raises(ValueError, match="a source of [89] tokens; the span has 7"):
        single_sentence_batch(converter, [long], 1)
