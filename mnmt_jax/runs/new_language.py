"""Extension of a trained run by a language: its tag, its pieces, and its parameters of methods.

Source: Qu and Watanabe 2022, section 4.4 and Appendix A. It says that each new row is the mean of
the existing rows plus noise; distribution and scale of the noise are ours.
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
from mnmt_jax.design.fields import CheckedFields, Seed, Weight
from mnmt_jax.errors import UserError
from mnmt_jax.files.atomic_write import check_output
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.model.network import build_model
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.model.trainable_params import find_freezing_setting
from mnmt_jax.runs.new_run import write_run
from mnmt_jax.runs.parameters import check_parameters, load_params
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.vocabulary.language_codes import find_code
from mnmt_jax.vocabulary.seeded_permutation import text_hash64
from mnmt_jax.vocabulary.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class NewRows(CheckedFields):
    """Distribution of the rows of new pieces and of a new tag, around the mean of the other rows.

    Attributes:
        noise: standard deviation in units of embed ** -0.5, which is that of a freshly drawn row.
        distribution: distribution of the noise.
        seed: seed of the noise.
    """

    noise: Weight = 0.1
    distribution: Literal["normal", "uniform"] = "normal"
    seed: Seed = 0

    def draw(self, name: str, mean: np.ndarray, count: int) -> np.ndarray:
        """Return new rows, float32 [count, embed].

        Args:
            name: name of their table, which selects the noise.
            mean: [embed], mean of the rows.
            count: number of rows.
        """
        rng = np.random.default_rng([self.seed, text_hash64(name)])
        shape, width = (count, mean.size), math.sqrt(3.0)
        unit = (
            rng.standard_normal(shape)
            if self.distribution == "normal"
            else rng.uniform(-1, 1, shape)
        )
        scale = self.noise * mean.size**-0.5 * (1.0 if self.distribution == "normal" else width)
        return (mean + scale * unit).astype(np.float32)


def add_language(
    run_dir: str | Path | RunDirectory,
    output: str | Path,
    vocabulary: Vocabulary,
    *,
    rows: NewRows = NewRows(),
    step: int | str | None = None,
) -> None:
    """Create a run at step 0 from a trained one, whose model has one more language.

    Args:
        run_dir: the trained run; it is not changed.
        output: run directory to create; must not exist or be empty.
        vocabulary: result of `Vocabulary.with_language` for the run's vocabulary.
        rows: distribution of new rows.
        step: as in `load_params`.

    Raises:
        UserError: if the run cannot be read, a method does not define how it is extended, or the
            settings of the run freeze an embedding table.
    """
    output = Path(output)
    check_output(output)
    run = RunDirectory.open(run_dir)
    language = vocabulary.languages[-1]
    check_language_trains(run, language, step=step)
    before = run.load_vocabulary()
    config = run.config().bind_languages(before.languages, find_code)
    params, loaded_step = load_params(run, step)
    check_parameters(run, config.model, before.size, params)
    new_config = _grown_config(config, vocabulary)
    flat = {
        name: _grown_array(config, name, array)
        for name, array in traverse_util.flatten_dict(params, sep="/").items()
    }
    for table in build_model(config.model, before.size).plan.tables:
        flat[table.name] = grown_table(table.name, flat[table.name], before, vocabulary, rows)
    _check_shapes(new_config, vocabulary, flat)
    lazy = {name: LazyArray.of(array) for name, array in flat.items()}
    write_run(
        output,
        new_config,
        vocabulary,
        traverse_util.unflatten_dict(lazy, sep="/"),
        origin=(str(run.location), f"step {loaded_step} with language '{language}' added"),
        tasks=run.trained_tasks(),
        contexts=run.trained_contexts(),
    )


def check_language_trains(
    run_dir: str | Path | RunDirectory, language: str, *, step: int | str | None = None
) -> None:
    """Check that training can change the rows of a new language, before anything is made for it.

    Args:
        run_dir: the trained run.
        language: code of the new language.
        step: checkpoint to extend, as in `load_params`.

    Raises:
        UserError: if the settings of the run freeze an embedding table.
    """
    run = RunDirectory.open(run_dir)
    before = run.load_vocabulary()
    config = run.config().bind_languages(before.languages, find_code)
    new_config = _grown_config(config, before.with_language(language))
    for table in build_model(config.model, before.size).plan.tables:
        _check_trains(table.name, run, new_config, language, step)


def grown_table(
    name: str, table: np.ndarray, before: Vocabulary, after: Vocabulary, rows: NewRows
) -> np.ndarray:
    """Return a table for a larger vocabulary, in which tokens keep their rows under their new ids.

    New rows are drawn around the mean of the rows of every id that can appear in text, end of
    sentence and tags included; padding and unused entries of an imported model are excluded.

    Args:
        name: name of the table.
        table: [vocab, embed], of the vocabulary before.
        before: the vocabulary of the table.
        after: result of `Vocabulary.with_language` for it.
        rows: distribution of new rows.
    """
    mean = table[before.appears_in_text].mean(axis=0, dtype=np.float64)
    count = after.size - before.size
    new = rows.draw(name, mean, count)
    old, tags = np.split(table, [before.first_tag])
    return np.concatenate([old, new[:-1], tags, new[-1:]])


def _grown_config(config: Config, vocabulary: Vocabulary) -> Config:
    """Return the configuration with the new language, without training data."""

    def changed(section: Any) -> Any:
        resumed = (method.for_resume() for method in section.methods)
        language = vocabulary.languages[-1]
        methods = tuple(m.with_language(language) for m in resumed if m is not None)
        return dataclasses.replace(section, methods=methods)

    model = changed(config.model)
    if model.vocab_size:
        model = dataclasses.replace(model, vocab_size=vocabulary.size)
    data = dataclasses.replace(config.data, cache="", tasks=())
    return dataclasses.replace(config, data=data, model=model, train=changed(config.train))


def _check_trains(
    table: str, run: RunDirectory, config: Config, language: str, step: int | str | None
) -> None:
    """Check that training can change the rows of a new language.

    Args:
        table: name of an embedding table.
        run: run to which the language is added.
        config: configuration with the language.
        language: its code.
        step: checkpoint that is extended; None is the newest.

    Raises:
        UserError: if the table is frozen.
    """
    setting = find_freezing_setting(table, config.model, config.optimizer)
    if setting is None:
        return
    initialize_step = "" if step is None else f" --initialize_step={step}"
    step_flag = "" if step is None else f" --step={step}"
    first, config_file = run.flag_path("config.gin")
    flags = " ".join('--gin.{}="{}"'.format(*item.split("=", 1)) for item in setting.bindings)
    remedy = (
        f"{first}copy the run without this setting (mnmt train --gin_file={config_file} "
        f"{flags} --initialize_from={run.location}{initialize_step} --gin.Train.steps=0 "
        "--workdir=COPY) and extend the copy"
        if flags
        else f"merge its LoRA with 'mnmt adapters merge{step_flag}' first"
        if setting.title.startswith("Model.lora_rank")
        else "leave it out in a copy of the run, and extend that"
    )
    raise UserError(
        f"{run.location}: {setting.title} freezes '{table}', so that its rows of '{language}' "
        f"could not be learnt; {remedy}"
    )


def _grown_array(config: Config, name: str, array: np.ndarray) -> np.ndarray:
    for method in config.model.methods:
        if (resized := method.resize_param(name, array)) is not None:
            return resized
    return array


def _check_shapes(config: Config, vocabulary: Vocabulary, flat: Mapping[str, np.ndarray]) -> None:
    shapes = parameter_shapes(config.model, vocabulary.size)
    for name, expected in traverse_util.flatten_dict(shapes, sep="/").items():
        shape = flat[name].shape if name in flat else "absent"
        if shape != expected.shape:
            methods = ", ".join(method.name for method in config.model.methods)
            raise UserError(
                f"'{name}' is {shape}, but {expected.shape} with '{vocabulary.languages[-1]}': no "
                f"method of Model.methods ({methods}) resizes it (Method.resize_param)"
            )
