"""Multilingual neural machine translation in JAX and Flax.

    import mnmt_jax
    translator = mnmt_jax.Translator.load("runs/quickstart/register")
    translator.translate(["two days ago"], source="en", target="de")

Importing the package loads neither JAX nor TensorFlow; `Translator` is loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mnmt_jax.version import __version__

if TYPE_CHECKING:
    from mnmt_jax.translator import Translator

__all__ = ["Translator", "__version__"]


def __getattr__(name: str) -> Any:
    """Imports what is heavy when it is asked for."""
    if name == "Translator":
        from mnmt_jax.translator import Translator

        return Translator
    raise AttributeError(f"module 'mnmt_jax' has no attribute '{name}'")
