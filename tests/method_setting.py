"""Tiny learners with methods, and a batch of random pairs, for the tests of methods."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mnmt_jax.config.sections import Config, Mesh
from mnmt_jax.data.converter import Converter, Example, Lengths, segments_from_rows
from mnmt_jax.data.instruction import INSTRUCTIONS
from mnmt_jax.distributed.sharding import make_mesh
from mnmt_jax.training.learner import Learner
from mnmt_jax.vocabulary.language_codes import find_code
from tests.made_run import make_config
from tests.unit import made_text

VOCABULARY = made_text.vocabulary()
CODES = VOCABULARY.languages
CASES = (("register", "register"), ("encoder_decoder", "5"), ("prefix_trigger", "4"))
"""Layouts and their instructions."""


def configure(folder: Path | str = "", *methods, **changes) -> Config:
    """Return the configuration of a register model; `changes` are as in `make_config`."""
    model = {"layout": "register", "stage_layers": (1,), "dropout": 0.0}
    sections: dict[str, dict[str, Any]] = {
        **changes,
        "model": model | changes.get("model", {}),
        "data": {"instruction": "register"} | changes.get("data", {}),
        "train": {"methods": methods} | changes.get("train", {}),
    }
    return make_config(Path(folder), **sections).bind_languages(CODES, find_code)


def sizes_of(layout: str) -> dict[str, Any]:
    """Return the fields of `Model` that differ between `CASES`."""
    return {
        "layout": layout,
        "stage_layers": (1, 1) if layout == "encoder_decoder" else (1,),
        "register_factor": 2.0 if layout == "register" else 1.0,
    }


def learner_of(config: Config, mesh: jax.sharding.Mesh | None = None) -> Learner:
    """Return the learner of a configuration; None is one device."""
    mesh = mesh or make_mesh(Mesh(), jax.devices()[:1])
    return Learner.from_config(config, VOCABULARY.size, mesh)


def converter_of(config: Config, learner: Learner, lengths: Lengths) -> Converter:
    instruction = INSTRUCTIONS[config.data.instruction]
    roles = learner.model.layout.embedded_roles()
    return Converter(VOCABULARY, instruction, roles, lengths, config.model.register_factor)


def random_sides(count: int) -> list[list[np.ndarray]]:
    """Return sources and targets of one to six pieces."""
    rng = np.random.default_rng(0)
    return [[rng.integers(3, 57, rng.integers(1, 7)) for _ in range(2)] for _ in range(count)]


def arrays(batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """Return the arrays that models read, on the device."""
    return {name: jnp.asarray(array) for name, array in batch.items() if name != "task"}


def converted(
    converter: Converter, examples: Sequence[Example], rows: int, in_row: int = 1
) -> dict[str, np.ndarray]:
    """Lay pairs out, `in_row` in a row; the last rows are empty."""
    packed = [examples[n : n + in_row] for n in range(0, len(examples), in_row)]
    packed += [[] for _ in range(rows - len(packed))]
    batch = converter.batch(segments_from_rows(packed), rows)
    return {name: array for name, array in batch.items() if name != "task"}
