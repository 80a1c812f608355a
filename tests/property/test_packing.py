"""Properties of packing: no row overflows, first fit, and conversion to rows and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnmt_jax.data.converter import Converter, Example, Lengths, segments_from_rows
from mnmt_jax.data.instruction import INSTRUCTIONS
from mnmt_jax.data.packing import first_fit
from mnmt_jax.design.layouts import LAYOUTS
from tests.unit import made_text
from tests.unpacked import unpack

SETTINGS = settings(deadline=None, derandomize=True)
FACTORS = st.floats(0.3, 4.0)


@given(
    pairs=st.lists(st.tuples(st.integers(1, 24), st.integers(1, 20)), max_size=60),
    max_segments=st.integers(1, 6),
    factor=FACTORS,
)
@settings(SETTINGS, max_examples=150)
def test_no_packing_overflows_any_span(pairs, max_segments, factor):
    lengths = Lengths(24, 20, max_segments)
    source = np.array([pair[0] for pair in pairs], np.int64)
    target = np.array([pair[1] for pair in pairs], np.int64)
    rows = first_fit(source, target, lengths)
    assert len(rows) == len(pairs)
    assert sorted(set(rows.tolist())) == list(range(len(set(rows.tolist()))))
    count = Converter(None, INSTRUCTIONS["1"], (), lengths, factor).registers(source)
    for row in range(rows.max(initial=-1) + 1):
        inside = rows == row
        assert source[inside].sum() <= 24 and target[inside].sum() <= 20
        assert inside.sum() <= max_segments
        assert count[inside].sum() <= lengths.registers(factor)


@given(
    pairs=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 10)), min_size=1, max_size=40),
    max_segments=st.integers(2, 6),
)
@settings(SETTINGS, max_examples=80)
def test_packing_is_first_fit_of_the_sorted_pairs(pairs, max_segments):
    source, target = np.array(pairs).T
    lengths = Lengths(24, 20, max_segments)
    assert first_fit(source, target, lengths).tolist() == first_fit_one_by_one(pairs, lengths)


@pytest.mark.parametrize(("shortest", "longest"), [(1, 9), (20, 80), (60, 190)])
def test_packing_of_many_different_lengths_is_first_fit(shortest, longest):
    """Enough distinct pairs of lengths that full rows are passed over."""
    pairs = np.random.default_rng(longest).integers(shortest, longest, (700, 2))
    lengths = Lengths(200, 190, 4)
    expected = first_fit_one_by_one(pairs.tolist(), lengths)
    assert first_fit(*pairs.T, lengths).tolist() == expected


def first_fit_one_by_one(pairs, lengths: Lengths) -> list[int]:
    """Place pairs of span lengths in the documented order, each by a search from the first row."""
    ranked = sorted(
        range(len(pairs)),
        key=lambda i: (
            -max(pairs[i][0] * lengths.target, pairs[i][1] * lengths.source),
            *pairs[i],
            i,
        ),
    )
    room, rows = [], [0] * len(pairs)
    for i in ranked:
        source, target = pairs[i]
        fitting = (r for r, (s, t, m) in enumerate(room) if s >= source and t >= target and m)
        row = next(fitting, len(room))
        if row == len(room):
            room.append((lengths.source, lengths.target, lengths.max_segments))
        s, t, m = room[row]
        room[row] = (s - source, t - target, m - 1)
        rows[i] = row
    return rows


@given(
    rows=st.lists(
        st.lists(
            st.tuples(
                st.lists(st.integers(3, 59), max_size=3),
                st.lists(st.integers(3, 59), max_size=3),
                st.integers(0, 2),
                st.integers(0, 2),
            ),
            max_size=4,
        ),
        min_size=1,
        max_size=4,
    ),
    instruction=st.sampled_from(sorted(INSTRUCTIONS)),
    layout=st.sampled_from(sorted(LAYOUTS)),
    factor=FACTORS,
)
@settings(SETTINGS, max_examples=120)
def test_unpack_inverts_pack(rows, instruction, layout, factor):
    converter = Converter(
        made_text.vocabulary(),
        INSTRUCTIONS[instruction],
        LAYOUTS[layout].embedded_roles(),
        Lengths(24, 24, 4),
        factor,
    )
    examples = [
        [Example(np.array(s, np.int32), np.array(t, np.int32), x, y) for s, t, x, y in row]
        for row in rows
    ]
    batch = converter.batch(segments_from_rows(examples), rows=len(rows) + 1)
    unpacked = unpack(converter, batch)
    assert unpacked.pop() == []
    got = [
        [(e.source.tolist(), e.target.tolist(), e.source_lang, e.target_lang) for e in row]
        for row in unpacked
    ]
    assert got == [list(row) for row in rows]
    shapes = {name: array.shape[1] for name, array in batch.items()}
    expected = {"source": 24, "target": 24, "trigger": 4, "register": int(24 // factor) + 4}
    for role in converter.roles:
        for kind in ("tokens", "positions", "segment_ids"):
            assert shapes[f"{role}_{kind}"] == expected[role]
