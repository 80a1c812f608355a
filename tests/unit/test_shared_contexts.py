"""Programs that are lowered one after the other share an MLIR context, and are what they were."""

import threading

import jax
import jax.numpy as jnp
import pytest
from jax._src.interpreters import mlir

from tests import shared_contexts


@pytest.fixture(autouse=True)
def no_context_yet(monkeypatch):
    monkeypatch.setattr(shared_contexts, "_thread", threading.local())


def lowered(size: int) -> str:
    return jax.jit(lambda x: jnp.tanh(x @ x).sum()).lower(jnp.ones((size, size))).as_text()


def test_jax_lowers_in_it():
    """Otherwise every small program waits for a context of its own."""
    assert mlir.make_ir_context is shared_contexts.shared_context


def test_a_program_does_not_depend_on_those_before_it(monkeypatch):
    shared = [lowered(size) for size in (2, 3, 2)]
    monkeypatch.setattr(mlir, "make_ir_context", shared_contexts._make)
    assert shared == [lowered(size) for size in (2, 3, 2)]


def test_a_thread_changes_its_context_after_a_number_of_programs(monkeypatch):
    monkeypatch.setattr(shared_contexts, "_PROGRAMS", 3)
    contexts = [shared_contexts.shared_context() for _ in range(7)]
    assert [contexts.index(context) for context in contexts] == [0, 0, 0, 3, 3, 3, 6]
    others = []
    thread = threading.Thread(target=lambda: others.append(shared_contexts.shared_context()))
    thread.start()
    thread.join()
    assert others[0] not in contexts
