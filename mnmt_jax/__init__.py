"""Multilingual neural machine translation in JAX and Flax.

    import mnmt_jax
    translator = mnmt_jax.Translator.load("runs/quickstart/register")
    translator.translate(["two days ago"], source="en", target="de")

Importing the package loads neither JAX nor TensorFlow; names are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mnmt_jax.errors import UserError
from mnmt_jax.version import __version__

if TYPE_CHECKING:
    from mnmt_jax.decoding.translate import Hypothesis, Translation
    from mnmt_jax.translator import Translator

__all__ = ["Hypothesis", "Translation", "Translator", "UserError", "__version__"]

_HEAVY = {
    "Hypothesis": "mnmt_jax.decoding.translate",
    "Translation": "mnmt_jax.decoding.translate",
    "Translator": "mnmt_jax.translator",
}


def __getattr__(name: str) -> Any:
    """Imports what is heavy when it is asked for."""
    if name in _HEAVY:
        return getattr(importlib.import_module(_HEAVY[name]), name)
    raise AttributeError(f"module 'mnmt_jax' has no attribute '{name}'")


def __dir__() -> list[str]:
    """Lists the public names, those that are not loaded yet too."""
    return sorted(__all__)
