"""Adds a language to a trained run: its tag, pieces of its own, and what methods have of it.

Source: third paper, section 4.4 and Appendix A. Of the rows of what is new it says that each is the
mean of the rows there are and noise; law and scale of the noise are ours.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flax import traverse_util

from mnmt_jax.config.sections import Config
from mnmt_jax.design.fields import Checked, Seed, Weight
from mnmt_jax.errors import UserError
from mnmt_jax.files.atomic_write import check_output
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.model.network import build_model
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.runs.new_run import write_run
from mnmt_jax.runs.parameters import check_parameters, load_params
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.vocabulary.language_codes import find_code
from mnmt_jax.vocabulary.seeded_permutation import text_hash64
from mnmt_jax.vocabulary.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class NewRows(Checked):
    """How the rows of new pieces and of a new tag are drawn, around the mean of the others.

    Attributes:
        noise: standard deviation in units of embed ** -0.5, that of a freshly drawn row.
        law: of the noise.
        seed: of the noise.
    """

    noise: Weight = 0.1
    law: Literal["normal", "uniform"] = "normal"
    seed: Seed = 0

    def draw(self, name: str, mean: np.ndarray, count: int) -> np.ndarray:
        """Returns new rows, float32 [count, embed].

        Args:
            name: of their table; each has noise of its own.
            mean: [embed], what they are drawn around.
            count: how many.
        """
        rng = np.random.default_rng([self.seed, text_hash64(name)])
        shape, width = (count, mean.size), math.sqrt(3.0)
        unit = rng.standard_normal(shape) if self.law == "normal" else rng.uniform(-1, 1, shape)
        scale = self.noise * mean.size**-0.5 * (1.0 if self.law == "normal" else width)
        return (mean + scale * unit).astype(np.float32)


def add_language(
    run_dir: str | Path | RunDirectory,
    output: str | Path,
    vocabulary: Vocabulary,
    *,
    rows: NewRows = NewRows(),
    step: int | str | None = None,
) -> None:
    """Makes a run at step 0 of a trained one, whose model has one language more.

    Args:
        run_dir: the run; it stays as it is.
        output: run directory to make; must not exist or be empty.
        vocabulary: what `Vocabulary.with_language` made of the run's.
        rows: how the rows of what is new are drawn.
        step: as in `restore_params`.

    Raises:
        UserError: if the run cannot be read, or a method does not say how it grows.
    """
    output = Path(output)
    check_output(output)
    run = RunDirectory.open(run_dir)
    before = Vocabulary.load(run.vocabulary)
    config = run.config().bind_languages(before.languages, find_code)
    params, found = load_params(run, step)
    check_parameters(run, config.model, before.size, params)
    language = vocabulary.languages[-1]
    grown = _grown_config(config, vocabulary)
    flat = {
        name: _grown_array(config, name, array)
        for name, array in traverse_util.flatten_dict(params, sep="/").items()
    }
    for table in build_model(config.model, before.size).plan.tables:
        flat[table.name] = grown_table(table.name, flat[table.name], before, vocabulary, rows)
    _check_shapes(grown, vocabulary, flat)
    lazy = {name: LazyArray.of(array) for name, array in flat.items()}
    write_run(
        output,
        grown,
        vocabulary,
        traverse_util.unflatten_dict(lazy, sep="/"),
        origin=(str(run.place), f"step {found} with language '{language}' added"),
        tasks=run.trained_tasks(),
    )


def grown_table(
    name: str, table: np.ndarray, before: Vocabulary, after: Vocabulary, rows: NewRows
) -> np.ndarray:
    """Returns a table whose rows before are those of their tokens, wherever these are now.

    New rows are drawn around the mean of the rows of all that text, its end or its tag can be: of
    every id but the padding, and what an imported model's list holds besides.

    Args:
        name: of the table.
        table: [vocab, embed], of the vocabulary before.
        before: the vocabulary of the table.
        after: what `Vocabulary.with_language` made of it.
        rows: how new rows are drawn.
    """
    mean = table[before.appears_in_text].mean(axis=0, dtype=np.float64)
    count = after.size - before.size
    new = rows.draw(name, mean, count)
    old, tags = np.split(table, [before.first_tag])
    return np.concatenate([old, new[:-1], tags, new[-1:]])


def _grown_config(config: Config, vocabulary: Vocabulary) -> Config:
    """Returns the configuration with the language; of the data there is none yet."""

    def changed(section: Any) -> Any:
        kept = (method.for_resume() for method in section.methods)
        language = vocabulary.languages[-1]
        methods = tuple(m.with_language(language) for m in kept if m is not None)
        return dataclasses.replace(section, methods=methods)

    model = changed(config.model)
    if model.vocab_size:
        model = dataclasses.replace(model, vocab_size=vocabulary.size)
    data = dataclasses.replace(config.data, cache="", tasks=())
    return dataclasses.replace(config, data=data, model=model, train=changed(config.train))


def _grown_array(config: Config, name: str, array: np.ndarray) -> np.ndarray:
    for method in config.model.methods:
        if (found := method.resize_param(name, array)) is not None:
            return found
    return array


def _check_shapes(config: Config, vocabulary: Vocabulary, flat: Mapping[str, np.ndarray]) -> None:
    shapes = parameter_shapes(config.model, vocabulary.size)
    for name, wanted in traverse_util.flatten_dict(shapes, sep="/").items():
        there = flat[name].shape if name in flat else "absent"
        if there != wanted.shape:
            names = ", ".join(method.name for method in config.model.methods)
            raise UserError(
                f"'{name}' is {there}, {wanted.shape} with '{vocabulary.languages[-1]}': no "
                f" method of Model.methods ({names}) says how it grows (Method.grown)"
            )
