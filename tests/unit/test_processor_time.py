"""Guards of processor time: quadratic and slow runs fail, however often they are repeated."""

from __future__ import annotations

import time

from tests.processor_time import is_quicker_than, takes_linear_time


def test_quadratic_time_is_not_linear():
    assert takes_linear_time(lambda count: sum(range(count * 100)), 1_000)
    assert not takes_linear_time(lambda count: [sum(range(count)) for _ in range(count)], 800)


def test_one_quick_run_is_enough_and_none_is_too_few():
    waits = [0.3, 0.3, 0.0, 0.3]

    def run():
        end = time.process_time() + waits.pop(0)
        while time.process_time() < end:
            pass

    assert is_quicker_than(0.2, run)
    waits = [0.3] * 9
    assert not is_quicker_than(0.2, run)
