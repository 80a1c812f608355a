"""Averages over groups of directions, by hand on a small matrix."""

import random

import pytest

from mnmt_jax.evaluation.averages import Average, average_groups
from mnmt_jax.evaluation.published_averages import ec40_table
from mnmt_jax.evaluation.result_tables import average_rows
from mnmt_jax.vocabulary.languages import (
    EC40_LANGUAGES,
    EC40_TABLE_TIERS,
    english_centric_directions,
    many_to_many_directions,
)

# Rows are sources. German and Dutch are Germanic, French is Romance, English is its own family.
#          en    de    nl    fr
MATRIX = """
en         .    40    30    20
de        50     .     0    10
nl        44     6     .     8
fr        26     -     4     .
"""
LANGUAGES = ("en", "de", "nl", "fr")


def _values():
    values = {}
    for line in MATRIX.strip().splitlines():
        source, *cells = line.split()
        for target, cell in zip(LANGUAGES, cells, strict=True):
            if cell != ".":
                values[source, target] = None if cell == "-" else float(cell)
    assert len(values) == 12
    return values


def test_groups_by_hand():
    averages = average_groups(_values(), english_centric_directions(LANGUAGES))
    assert averages.all == Average(pytest.approx(238 / 11), 11)
    assert averages.supervised == Average(pytest.approx((40 + 30 + 20 + 50 + 44 + 26) / 6), 6)
    # The zero counts, the missing value does not.
    assert averages.zero_shot == Average(pytest.approx((0 + 10 + 6 + 8 + 4) / 5), 5)
    assert averages.from_english == Average(30.0, 3)
    assert averages.to_english == Average(40.0, 3)


def test_languages_by_hand():
    averages = average_groups(_values(), english_centric_directions(LANGUAGES))
    assert averages.by_source == {
        "en": Average(30.0, 3),
        "de": Average(20.0, 3),
        "nl": Average(pytest.approx(58 / 3), 3),
        "fr": Average(15.0, 2),
    }
    assert averages.by_target == {
        "de": Average(23.0, 2),
        "nl": Average(pytest.approx(34 / 3), 3),
        "fr": Average(pytest.approx(38 / 3), 3),
        "en": Average(40.0, 3),
    }


def test_families_by_hand():
    averages = average_groups(_values(), english_centric_directions(LANGUAGES))
    assert averages.from_family == {
        "English": Average(30.0, 3),
        "Germanic": Average(pytest.approx((50 + 0 + 10 + 44 + 6 + 8) / 6), 6),
        "Romance": Average(15.0, 2),
    }
    assert averages.to_family == {
        "English": Average(40.0, 3),
        "Germanic": Average(pytest.approx((40 + 30 + 0 + 6 + 4) / 5), 5),
        "Romance": Average(pytest.approx((20 + 10 + 8) / 3), 3),
    }
    assert averages.between_families == {
        "English": {"Germanic": Average(35.0, 2), "Romance": Average(20.0, 1)},
        "Germanic": {
            "English": Average(47.0, 2),
            "Germanic": Average(3.0, 2),
            "Romance": Average(9.0, 2),
        },
        "Romance": {"English": Average(26.0, 1), "Germanic": Average(4.0, 1)},
    }


def test_unknown_supervision_and_empty_groups():
    averages = average_groups({("de", "fr"): None}, None)
    assert averages.supervised is None and averages.zero_shot is None
    assert averages.all == Average(None, 0) == averages.from_english
    assert averages.between_families == {"Germanic": {}}
    assert average_groups({("de", "fr"): 3.0}, [("de", "fr")]).zero_shot == Average(None, 0)


def test_tiers_of_ec40_are_means_of_tier_by_tier_means():
    """Against the averages of the authors' script; an unmeasured direction is left out here."""
    rng = random.Random(0)
    values = {pair: 1 + rng.random() for pair in many_to_many_directions(EC40_LANGUAGES)}
    averages = average_groups(values, None)
    table = ec40_table(values)
    assert set(averages.tiers) == {
        title for tier in EC40_TABLE_TIERS for title in (f"{tier} →", f"→ {tier}")
    }
    for title, average in averages.tiers.items():
        assert average.mean == pytest.approx(table[title].mean), title
        assert average.directions == table[title].directions, title
    assert ("High →", averages.tiers["High →"]) in average_rows(averages)
    fewer = average_groups({**values, ("kab", "so"): None}, None).tiers
    assert fewer["XLow →"].directions == averages.tiers["XLow →"].directions - 1
    assert fewer["XLow →"].mean > 1
    assert not average_groups(_values(), None).tiers
