"""Masking: number, positions and replacements of masked tokens."""

import dataclasses

import numpy as np
import pytest

from mnmt_jax.config.sections import Data
from mnmt_jax.data.converter import BatchExtras, Example, make_converter, segments_from_rows
from mnmt_jax.data.token_masking import mask, mask_counts
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.design.mask_shares import MaskShares
from mnmt_jax.errors import UserError
from mnmt_jax.methods.masking import Masking
from mnmt_jax.vocabulary.seeded_permutation import hash64
from tests.parity.reference import FOLDER, SHIPPED
from tests.unit import made_text

SYMBOL, DRAWN = 2, range(3, 60)


FILES = sorted([*FOLDER.glob("mask_counts*.npz"), *FOLDER.glob("methods/mask_counts*.npz")])


def test_reference_figures_exist():
    assert FILES or FOLDER != SHIPPED


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_number_of_masked_tokens_equals_the_authors(path):
    with np.load(path) as golden:
        lengths, uniform = golden["sentence_length"], golden["u"]
        actual = mask_counts(lengths[:, None], uniform[None], float(golden["mask_prob"]))
        np.testing.assert_array_equal(actual, golden["selected_count"])
        assert actual.min() == 0 and actual.max() > 5


def masked(counts, keys, shares=MaskShares()):  # noqa: B008
    tokens = np.arange(sum(counts), dtype=np.int32) % 50 + 100  # none of those drawn
    return tokens, *mask(
        tokens, np.array(counts), keys, mask_shares=shares, symbol=SYMBOL, random_ids=DRAWN
    )


def test_mask_rates_are_as_configured_and_positions_uniform():
    counts = [20] * 20_000
    tokens, hidden, chosen = masked(counts, hash64(7, np.arange(len(counts))))
    by_place = chosen.reshape(-1, 20)
    assert set(by_place.sum(axis=1).tolist()) == {3}  # floor(0.15 x 20 + u)
    np.testing.assert_allclose(by_place.mean(axis=0), 0.15, atol=0.01)
    assert (hidden[~chosen] == tokens[~chosen]).all()
    of_chosen = hidden[chosen]
    assert np.mean(of_chosen == SYMBOL) == pytest.approx(0.8, abs=0.01)
    assert np.mean(of_chosen == tokens[chosen]) == pytest.approx(0.1, abs=0.01)
    drawn = of_chosen[(of_chosen != SYMBOL) & (of_chosen != tokens[chosen])]
    shares = np.bincount(drawn, minlength=60)[3:] / len(drawn)
    np.testing.assert_allclose(shares, 1 / len(DRAWN), atol=0.008)


def test_masks_depend_only_on_the_key_of_the_sentence():
    keys = hash64(1, np.arange(5))
    counts = [9, 1, 30, 14, 9]
    _, hidden, chosen = masked(counts, keys)
    ends = np.cumsum(counts)[:-1]
    for number, key in enumerate(keys):
        single = mask(
            np.split(masked(counts, keys)[0], ends)[number],
            np.array(counts[number : number + 1]),
            key[None],
            mask_shares=MaskShares(),
            symbol=SYMBOL,
            random_ids=DRAWN,
        )
        np.testing.assert_array_equal(single[0], np.split(hidden, ends)[number])
        np.testing.assert_array_equal(single[1], np.split(chosen, ends)[number])
    _, other, _ = masked(counts, hash64(2, np.arange(5)))
    assert (other != hidden).any()


def batch_of(layout, key=3, instruction="3"):
    data = Data(instruction=instruction, rows=2, source_length=16, target_length=24, max_segments=3)
    converter = make_converter(
        made_text.vocabulary(),
        get_layout(layout, (1,)),
        data,
        BatchExtras(mask_shares=MaskShares(share=0.5)),
    )
    rng = np.random.default_rng(0)
    sentences = [rng.integers(3, 40, size) for size in (4, 6, 9)]
    examples = [
        Example(np.zeros(0, np.int32), s, 1, 1, 0, key + n) for n, s in enumerate(sentences)
    ]
    rows = [examples[:2], examples[2:]]
    return converter, sentences, converter.batch(segments_from_rows(rows), 2)


def test_a_masked_row_has_the_sentence_with_eos_and_labels_at_masks():
    converter, sentences, batch = batch_of("masked_lm")
    assert not [name for name in batch if name.startswith("target_") and name != "target_lang"]
    whole = np.concatenate([np.append(sentence, 1) for sentence in sentences])  # eos is 1
    ids, labels, tokens = (batch[f"source_{n}"] for n in ("segment_ids", "labels", "tokens"))
    present = ids != 0
    is_predicted = labels >= 0
    assert (labels[~present] == -1).all() and 6 <= is_predicted.sum() <= 14
    np.testing.assert_array_equal(np.where(is_predicted, labels, tokens)[present], whole)
    assert converter.lengths.target == converter.lengths.source == 16


def test_tags_are_neither_masked_nor_predicted():
    """The sentence has the masks that it has without a tag, as its score does."""
    _, sentences, plain = batch_of("masked_lm", instruction="3")
    _, _, tagged = batch_of("masked_lm", instruction="1")
    tag = made_text.vocabulary().tag_ids[1]
    for row, start, length in ((0, 0, 5), (0, 6, 7), (1, 0, 10)):
        before = slice(start - (start > 0), start - (start > 0) + length)
        after = slice(start + 1, start + 1 + length)
        assert tagged["source_tokens"][row, start] == tag
        assert tagged["source_labels"][row, start] == -1
        for name in ("source_tokens", "source_labels"):
            np.testing.assert_array_equal(tagged[name][row, after], plain[name][row, before])


def test_a_causal_row_has_the_tag_before_the_sentence():
    converter, sentences, batch = batch_of("causal_lm")
    assert not [name for name in batch if name.startswith("source_") and name != "source_lang"]
    tag = made_text.vocabulary().tag_ids[1]
    np.testing.assert_array_equal(batch["target_tokens"][1, :10], [tag, *sentences[2]])
    np.testing.assert_array_equal(batch["target_labels"][1, :10], [*sentences[2], 1])
    assert converter.lengths.source == converter.lengths.target == 24


@pytest.mark.parametrize("settings", [{"share": 0.0}, {"random": 0.6, "kept": 0.5}, {"share": 1.0}])
def test_invalid_mask_rates_are_refused(settings):
    with pytest.raises(UserError, match="Masking"):
        Masking(**settings)


def test_settings_determine_the_masks():
    actual = dataclasses.asdict(Masking(share=0.3, random=0.0, kept=0.2).mask_shares())
    assert actual == {"share": 0.3, "random": 0.0, "kept": 0.2}


def test_each_share_has_its_own_replacement():
    shares = MaskShares(random=0.3, kept=0.05)
    tokens, hidden, chosen = masked([20] * 5_000, hash64(7, np.arange(5_000)), shares)
    assert np.mean(hidden[chosen] == tokens[chosen]) == pytest.approx(0.05, abs=0.01)
    assert np.mean(hidden[chosen] == SYMBOL) == pytest.approx(0.65, abs=0.02)
