"""One MLIR context for the programs that a thread lowers one after the other.

JAX makes a context for each program (0.12: for eleven) and loads twenty dialects into it, which
takes longer than to lower a small program; the tests lower some twenty thousand. A context keeps
the attributes of its programs, so it serves a limited number. For speed alone: a JAX with other
internals makes its own.
"""

from __future__ import annotations

import threading
from typing import Any

from jax._src.interpreters import mlir

_PROGRAMS = 50  # that share a context
_make = getattr(mlir, "_create_ir_context", getattr(mlir, "make_ir_context", None))
_thread = threading.local()


def shared_context() -> Any:
    """Return the context of this thread, or a new one after `_PROGRAMS` programs."""
    count, context = getattr(_thread, "latest", (0, None))
    if context is None or count >= _PROGRAMS:
        count, context = 0, _make()
    _thread.latest = count + 1, context
    return context


if _make:
    mlir.make_ir_context = shared_context
