"""JittedFunctions that several processes need at once are compiled by one of them."""

import threading
import time

import pytest

from tests import shared_programs


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Return the keys that were compiled, in order, by a slow compiler with a cache."""
    calls, entries = [], {}

    def read(module_name, key, *_):
        return entries.get(key), None

    def compile_and_keep(backend, computation, devices, options, callbacks, module_name, key):
        calls.append(key)
        time.sleep(0.05)
        return entries.setdefault(key, object())

    monkeypatch.setattr(shared_programs, "_LOCKS", tmp_path / "locks")
    monkeypatch.setattr(shared_programs.compiler, "_cache_read", read)
    monkeypatch.setattr(shared_programs, "_compile_and_keep", compile_and_keep)
    return calls


def test_one_of_several_compiles_and_the_others_load(compiled):
    programs = []

    def compile_in_turn(key):
        programs.append(shared_programs.compile_once(*[None] * 5, "step", key))

    threads = [threading.Thread(target=compile_in_turn, args=(key,)) for key in "aaabab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(compiled) == ["a", "b"]
    assert len(programs) == 6 and len(set(map(id, programs))) == 2


def test_jax_compiles_by_it():
    """Otherwise the processes of a run compile every program at once, once each."""
    assert shared_programs.compiler._compile_and_write_cache is shared_programs.compile_once
