"""Multilingual neural machine translation in JAX and Flax.

    import mnmt_jax
    translator = mnmt_jax.Translator.load("runs/quickstart/register")
    translator.translate(["two days ago"], source="en", target="de")

Importing the package loads neither JAX nor TensorFlow; names are loaded when first used.

The rooms, each of which imports only rooms above it:

    errors         `UserError` and the words of messages
    runtime        process start and end: command frame, interrupts, compilation cache
    files          atomic writes, folders, buckets, JSON
    vocabulary     languages, pieces, tags, fixed ids
    design         a model and its training as data: roles, layouts, plan, methods, objectives
    config         gin files to frozen dataclasses
    distributed    meshes and sharding, several processes, dropout masks, work shards
    data           corpora, token cache, batches
    model          network, attention, caches, forward passes
    methods        one paper, one file
    runs           run directories and their parameters
    decoding       search, translation, `Translator` and `LanguageModel`
    documents      documents of several formats, in and out, with their layout
    serving        a translation server, for clients of LibreTranslate and DeepL
    training       updates, checkpoints, reports
    pages          HTML pages, SVG charts and Markdown tables
    evaluation     scores and the report
    analysis       what a trained model computes inside
    interop        other toolkits: fairseq, Hugging Face, CTranslate2, safetensors, seqio, t5x
    cost           parameters, FLOPs and memory of a configuration before it runs
    papers         published tables as data, and the workflow that reproduces them
    commands       the command lines
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mnmt_jax.errors import UserError

if TYPE_CHECKING:
    from mnmt_jax.decoding.language_model import LanguageModel
    from mnmt_jax.decoding.translation import Hypothesis, Translation
    from mnmt_jax.decoding.translator import Translator

__version__ = "0.2.0"
__all__ = ["Hypothesis", "LanguageModel", "Translation", "Translator", "UserError", "__version__"]

_HEAVY = {
    "Hypothesis": "mnmt_jax.decoding.translate_lines",
    "LanguageModel": "mnmt_jax.decoding.language_model",
    "Translation": "mnmt_jax.decoding.translate_lines",
    "Translator": "mnmt_jax.decoding.translator",
}


def __getattr__(name: str) -> Any:
    """Import what is heavy when it is asked for."""
    if name in _HEAVY:
        return getattr(importlib.import_module(_HEAVY[name]), name)
    raise AttributeError(f"module 'mnmt_jax' has no attribute '{name}'")


def __dir__() -> list[str]:
    """List the public names, those that are not loaded yet too."""
    return sorted(__all__)
