"""Pytest plugin that reports what each test file spends on JAX's tracing, lowering and compiling.

    python -m pytest -p tests.measure_compiling tests/unit/test_train.py

It counts this process alone: neither the workers of pytest-xdist nor started commands. `processor`
is processor time; the seconds of the three stages pass on the clock.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Iterator
from typing import Any

import pytest

_STAGES = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "compiling",
}
_FIGURES = ("tests", "processor", *_STAGES.values(), "programs", "cached")
_SUMS: collections.Counter[str] = collections.Counter()
_BY_FILE: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)


def pytest_configure(config: pytest.Config) -> None:
    """Listen to JAX's events; `cached` programs are those read from the persistent cache."""
    import jax  # conftest.py sets its flags first

    def add_duration(event: str, seconds: float, **_: Any) -> None:
        if stage := _STAGES.get(event):
            _SUMS[stage] += seconds
            _SUMS["programs"] += stage == "compiling"

    def add_event(event: str, **_: Any) -> None:
        _SUMS["cached"] += event == "/jax/compilation_cache/cache_hits"

    jax.monitoring.register_event_duration_secs_listener(add_duration)
    jax.monitoring.register_event_listener(add_event)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Add what a test takes, with the fixtures made for it, to the figures of its file."""
    before, start = _SUMS.copy(), time.process_time()
    try:
        return (yield)
    finally:
        figures = _BY_FILE[item.nodeid.partition("::")[0]]
        figures.update({name: _SUMS[name] - before[name] for name in _SUMS})
        figures.update(tests=1, processor=time.process_time() - start)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a line for each file, those with the longest compilation first."""
    terminalreporter.section("seconds by test file (programs: number)")
    terminalreporter.write_line("  ".join(f"{name:>9}" for name in _FIGURES))
    for file, sums in sorted(_BY_FILE.items(), key=lambda row: -row[1]["compiling"]):
        values = (f"{sums[name]:9.1f}" for name in _FIGURES)
        terminalreporter.write_line(f"{'  '.join(values)}  {file}")
