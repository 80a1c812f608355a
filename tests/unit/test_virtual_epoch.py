"""Temperature rates and virtual epochs against the figures of the published runs."""

import numpy as np
import pytest

from mnmt_jax.data.schedule import temperature_rates
from mnmt_jax.data.virtual_epoch import virtual_epoch_counts, virtual_epoch_size
from mnmt_jax.languages import EC40_TIERS

# Sentences of TED-19 with English (two-stage paper, Table 5).
TED19 = {
    "es": 196026, "fr": 192304, "ro": 180484, "nl": 183767, "de": 167888, "pl": 176169,
    "hr": 122091, "cs": 103093, "fa": 150965, "ar": 214111, "he": 211819, "ru": 208458,
    "ko": 205640, "it": 204503, "ja": 204090, "zh": 199855, "tr": 182470, "vi": 171995,
}  # fmt: skip
EC40_SIZES = {"high": 5_000_000, "medium": 1_000_000, "low": 100_000, "extra_low": 50_000}
EC40_EXCEPTIONS = {"ha": 334_000, "kab": 18_448}
EC40 = {
    code: EC40_EXCEPTIONS.get(code, EC40_SIZES[tier])
    for tier, codes in EC40_TIERS.items()
    for code in codes
}


def both_ways(sizes):
    return [size for size in sizes.values() for _ in range(2)]


def test_ted19():
    sizes = both_ways(TED19)
    assert sum(sizes) == 6_551_456
    assert virtual_epoch_size(sizes, 5.0) == 7_442_425


def test_ec40_rates_and_capped_epoch():
    sizes = both_ways(EC40)
    assert sum(sizes) == 2 * 60_802_448
    rates = dict(zip(EC40, temperature_rates(sizes, 5.0)[::2], strict=True))
    published = {"de": 0.01954, "sv": 0.01416, "af": 0.00894, "no": 0.00778, "kab": 0.00637}
    for code, rate in published.items():
        assert rates[code] == pytest.approx(rate, abs=5e-6), code
    assert virtual_epoch_size(sizes, 5.0) == 3 * 60_802_448


def test_counts_leave_less_than_one_pair_per_direction_to_chance():
    sizes = both_ways(TED19)
    counts = virtual_epoch_counts(sizes, 5.0)
    rest = 7_442_425 - sum(counts)
    assert 0 <= rest < len(sizes)
    rates = np.array(sizes, float) ** 0.2
    np.testing.assert_array_equal(counts, np.floor(7_442_425 * rates / rates.sum()))
    assert counts[list(TED19).index("ar") * 2] == pytest.approx(214_111, abs=1)  # the largest


def test_proportional_sampling_is_one_pass():
    assert virtual_epoch_size([30, 10, 60], 1.0) == 100
    assert virtual_epoch_counts([30, 10, 60], 1.0) == [30, 10, 60]
    assert virtual_epoch_size([1, 1_000_000], 100.0) == 1_500_001  # the cap


def test_empty_directions_are_refused():
    for sizes in ([], [3, 0]):
        with pytest.raises(ValueError, match="at least one pair"):
            virtual_epoch_size(sizes, 5.0)
