"""The averages of the papers' tables, by hand on small matrices."""

import pytest

from mnmt_jax.evaluation.averages import Average
from mnmt_jax.evaluation.published_averages import (
    ec40_table,
    english_table,
    mitre_table,
)
from mnmt_jax.vocabulary.languages import (
    EC40_LANGUAGES,
    EC40_TABLE_TIERS,
    MITRE_LANGUAGES,
    many_to_many_directions,
)

# Rows are sources. German, Dutch: Germanic; French: Romance; Javanese: Malayo-Polynesian.
#          en    de    nl    fr    jv
MITRE = """
en         .    40    30    20    10
de        50     .     0    10     8
nl        44     6     .     8     4
fr        26    12     4     .     2
jv        18     1     3     5     .
"""

# German, Russian: High (with English); Swedish: Med; Afrikaans: Low; Kabyle: XLow.
#          en    de    ru    sv    af    kab
EC40 = """
en         .    40    30    20    10    2
de        50     .    12     8     0    4
ru        44     6     .    10     4    1
sv        32    14     4     .     7    3
af        18     8     0     5     .    0
kab        6     3     1     2     0    .
"""


def read(matrix):
    rows = [line.split() for line in matrix.strip().splitlines()]
    codes = [row[0] for row in rows]
    return {
        (source, target): float(cell)
        for source, *cells in rows
        for target, cell in zip(codes, cells, strict=True)
        if cell != "."
    }


def near(mean, directions):
    return Average(pytest.approx(mean), directions)


def test_mitre_by_hand():
    table = mitre_table(read(MITRE))
    assert table["English →"] == near((40 + 30 + 20 + 10) / 4, 4)
    assert table["→ English"] == near((50 + 44 + 26 + 18) / 4, 4)
    # Within-group directions count, and so does the zero; English is not Germanic.
    assert table["Germanic →"] == near((50 + 0 + 10 + 8 + 44 + 6 + 8 + 4) / 8, 8)
    assert table["→ Germanic"] == near((40 + 30 + 0 + 6 + 12 + 4 + 1 + 3) / 8, 8)
    assert table["Romance →"] == near((26 + 12 + 4 + 2) / 4, 4)
    assert table["→ Malayo-Polynesian"] == near((10 + 8 + 4 + 2) / 4, 4)
    assert table["Slavic →"] == Average(None, 0)
    assert table["avg"] == near(301 / 20, 20)


def test_weighted_group_means_of_mitre_equal_the_average():
    """As verified on the published table: group means weighted by languages give avg both ways."""
    values = {
        pair: float(n * 37 % 101) for n, pair in enumerate(many_to_many_directions(MITRE_LANGUAGES))
    }
    table = mitre_table(values)
    assert table["avg"].directions == 552
    sizes = {"English": 1, "Germanic": 5, "Romance": 5, "Slavic": 5, "Malayo-Polynesian": 4}
    sizes["Asian"] = 4
    for arrow in ("{} →", "→ {}"):
        total = sum(table[arrow.format(name)].mean * size for name, size in sizes.items())
        assert total / 24 == pytest.approx(table["avg"].mean)


def test_ec40_by_hand():
    table = ec40_table(read(EC40))
    high = {
        "High": (40 + 30 + 50 + 12 + 44 + 6) / 6,
        "Med": (20 + 8 + 10) / 3,
        "Low": (10 + 0 + 4) / 3,
        "XLow": (2 + 4 + 1) / 3,
    }
    assert table["High →"] == near(sum(high.values()) / 4, 15)
    assert table["Med →"] == near(((32 + 14 + 4) / 3 + 7 + 3) / 3, 5)  # no Med-to-Med here
    to_low = [(10 + 0 + 4) / 3, 7, 0]
    assert table["→ Low"] == near(sum(to_low) / 3, 5)
    en_to, to_en = (40 + 30 + 20 + 10 + 2) / 5, (50 + 44 + 32 + 18 + 6) / 5
    assert table["en →"] == near(en_to, 5) and table["→ en"] == near(to_en, 5)
    assert table["sup"] == near((en_to + to_en) / 2, 10)
    # 20 zero-shot directions, 4 of them exactly zero and left out.
    assert table["zero"] == near(92 / 16, 16)
    assert table["avg"] == near((102 + 150 + 92) / 26, 26)


def test_ec40_averages_with_languages_unknown_to_a_metric():
    """A direction with one unknown language counts as zero in the tiers, with two not at all."""
    values = read(EC40)
    measured = {"en", "de", "ru", "sv"}
    table = ec40_table(values, measured)
    # From Med: 50/3 to High; to Low and XLow the one direction each counts as zero.
    assert table["Med →"] == near((50 / 3 + 0 + 0) / 3, 5)
    # Low and XLow between themselves are not counted; from High and Med they are zero.
    assert table["→ Low"] == near(0, 4)
    assert table["Low →"] == near(0, 4)
    assert table["en →"] == near(90 / 3, 3)
    assert table["zero"] == near((12 + 8 + 6 + 10 + 14 + 4) / 6, 6)


def test_ec40_dilution_factors():
    """The factors the spec expects of 35 known languages: .85, .771, .611, .692."""
    known = set(EC40_LANGUAGES) - set("mt ti lb oc ast kab".split())
    table = ec40_table(dict.fromkeys(many_to_many_directions(EC40_LANGUAGES), 1.0), known)
    actual = [table[f"→ {tier}"].mean for tier in EC40_TABLE_TIERS]
    assert actual == pytest.approx([0.850, 0.771, 0.611, 0.692], abs=5e-4)
    assert table["avg"] == Average(1.0, 35 * 34) and table["sup"].mean == 1.0
    entered = sum(_cells_entered(table, tier) for tier in EC40_TABLE_TIERS)
    assert entered == 1610


def _cells_entered(table, tier):
    return table[f"{tier} →"].directions


def test_two_stage_by_hand():
    table = english_table(read(EC40))
    assert table["en →"] == near(102 / 5, 5)
    assert table["→ en"] == near(150 / 5, 5)
    assert table["zero"] == near(92 / 16, 16)
    assert english_table(read(EC40), {"en", "de", "af"})["zero"] == near(8, 1)  # de-af is zero
    assert english_table({("de", "fr"): 0.0})["zero"] == Average(None, 0)
