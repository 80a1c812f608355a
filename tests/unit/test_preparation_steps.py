"""Preparation steps against slow implementations and on cases written by hand."""

import dataclasses

import numpy as np
import pytest

from mnmt_jax.data.preparation.characters import CodePoints, character_table
from mnmt_jax.data.preparation.steps import PairBatch, SideRule
from mnmt_jax.errors import UserError

EDGE_CASES = ["", "a", " ", "😀", "שלום", "é1٣", "\ud800", "𝟙𐐷", "ab\n\0"]


def test_code_points_count_characters_per_sentence():
    code_points = CodePoints(EDGE_CASES)
    letters = code_points.count(character_table(r"\p{L}"))
    assert letters.tolist() == [sum(x.isalpha() for x in text) for text in EDGE_CASES]
    assert letters.sum() == 9 and code_points.lengths.tolist() == [*map(len, EDGE_CASES)]
    assert CodePoints([]).count(character_table(r"\p{L}")).shape == (0,)


@dataclasses.dataclass(frozen=True)
class WrittenIn(SideRule):
    """Language of the sentence.

    More text.
    """

    name = "written_in"
    prefix: str = "x"

    def __post_init__(self):
        self.require_choice("prefix", ("x", "y"))

    def accepts_side(self, side):
        return np.array([text == side.language for text in side.sentences])


def test_side_rules_know_the_language_and_drop_a_pair_for_either_side():
    batch = PairBatch(["de", "de", "en", "en"], ["en", "x", "en", "de"], ("de", "en"))
    assert WrittenIn().keeps(batch).tolist() == [True, False, False, False]
    assert WrittenIn.title() == "Language of the sentence"


def test_a_wrong_setting_is_named():
    with pytest.raises(UserError, match=r"^written_in: prefix = 'z' must be one of x, y$"):
        WrittenIn("z")
