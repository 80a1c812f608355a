"""Multilingual neural machine translation in JAX and Flax.

    import mnmt_jax
    translator = mnmt_jax.Translator.load("runs/quickstart/register")
    translator.translate(["two days ago"], source="en", target="de")

Importing the package loads neither JAX nor TensorFlow; names are loaded when first used.

The rooms, each of which imports only rooms above it:

    design         a model and its training as data: roles, layouts, plan, views, objectives
    files          files written whole or not at all, in folders and buckets
    config         gin files to frozen dataclasses; the interface of methods
    distributed    meshes and sharding, several processes, what dropout drops on any of them
    vocabulary     pieces, tags, fixed ids
    data           corpora, token cache, batches
    attention      who meets whose keys: implementations
    model          the network
    methods        one paper, one file
    runs           run directories and their parameters
    decoding       search, translation, `Translator` and `LanguageModel`
    training       updates, checkpoints, reports
    evaluation     scores and the report
    analysis       what a trained model does inside
    interchange    checkpoints of other toolkits, adapters
    cost           what a configuration costs before it runs
    seqio, tasks   corpora as tasks of seqio; with TensorFlow, as t5x
    t5x            the models in t5x's trainer
    commands       the command lines

`moved` holds the names that gin files and modules from before the rooms know.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mnmt_jax.errors import UserError
from mnmt_jax.version import __version__

if TYPE_CHECKING:
    from mnmt_jax.decoding.language_model import LanguageModel
    from mnmt_jax.decoding.lines import Hypothesis, Translation
    from mnmt_jax.decoding.translator import Translator

__path__.append(f"{__path__[0]}/moved")
__all__ = ["Hypothesis", "LanguageModel", "Translation", "Translator", "UserError", "__version__"]

_HEAVY = {
    "Hypothesis": "mnmt_jax.decoding.lines",
    "LanguageModel": "mnmt_jax.decoding.language_model",
    "Translation": "mnmt_jax.decoding.lines",
    "Translator": "mnmt_jax.decoding.translator",
}


def __getattr__(name: str) -> Any:
    """Imports what is heavy when it is asked for."""
    if name in _HEAVY:
        return getattr(importlib.import_module(_HEAVY[name]), name)
    raise AttributeError(f"module 'mnmt_jax' has no attribute '{name}'")


def __dir__() -> list[str]:
    """Lists the public names, those that are not loaded yet too."""
    return sorted(__all__)
