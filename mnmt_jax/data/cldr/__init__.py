"""CLDR phrases: language-independent meanings and their renderings in each language."""

from mnmt_jax.data.cldr.cldr_corpus import CldrCorpus
from mnmt_jax.data.cldr.inventory import Inventory, load_inventory
from mnmt_jax.data.cldr.renderer import Meaning, Renderer
from mnmt_jax.data.cldr.sampler import SPLITS, Sampler, split_of

__all__ = [
    "SPLITS",
    "CldrCorpus",
    "Inventory",
    "Meaning",
    "Renderer",
    "Sampler",
    "load_inventory",
    "split_of",
]
