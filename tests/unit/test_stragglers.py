"""Straggler detection with simulated figures of hosts."""

from __future__ import annotations

import socket
import time

import numpy as np
import pytest

from mnmt_jax.distributed.processes import gather_texts
from mnmt_jax.distributed.stragglers import HostTimes, find_stragglers, straggler_warnings


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([0.01, 0.01, 0.5], [2]),
        ([0.5, 0.01, 0.012, 0.011], [0]),
        ([0.01, 0.5, 0.01, 0.01, 0.01, 0.4, 0.01, 0.02], [1, 5]),
        ([0.01, 0.5], []),  # either of two may be the unusual one
        ([0.5], []),
        ([0.01, 0.01, 0.05], []),  # less than a tenth of the update
        ([0.01, 0.2, 0.4, 0.6, 0.8, 1.0], []),  # all differ
        ([0.5, 0.5, 0.01], []),  # a fast host delays nobody
    ],
)
def test_stragglers_of_simulated_hosts(seconds, expected):
    assert find_stragglers(seconds, update_seconds=1.0) == expected


def test_noise_is_no_straggler_and_one_beyond_it_is():
    """The limit is three sigma of the other hosts, however many updates a second there are."""
    rng = np.random.default_rng(0)
    noise = rng.normal(1.0, 0.1, 64).clip(0.75, 1.25)
    assert find_stragglers(noise.tolist(), update_seconds=0.1) == []
    late = noise.copy()
    late[7] = np.median(noise) + 4 * 0.1
    assert find_stragglers(late.tolist(), update_seconds=0.1) == [7]


def test_a_warning_names_process_and_host():
    seconds, names = [0.01, 0.01, 0.25], ["first", "second", "third"]
    (line,) = straggler_warnings(seconds, names, 1.0).values()
    assert line.startswith("process 2 on third takes 0.25 s to prepare the batches of an update")
    assert "the median process 0.01 s" in line
    assert straggler_warnings([0.01, 0.01, 0.01], names, 1.0) == {}


def test_times_are_means_since_the_last_exchange():
    times = HostTimes()
    for seconds in (0.0, 0.1):
        with times.preparing():
            time.sleep(seconds)
    (mean,) = times.gather()
    assert 0.05 <= mean < 0.1
    assert times.gather() == [0.0]
    assert times.names == [socket.gethostname()]


@pytest.mark.parametrize("text", ["", "deux, ü, 二"])
def test_the_text_of_one_process_is_its_own(text):
    assert gather_texts(text) == [text]
