"""Experiments of published tables: which models a row trains, on which data, and how it is scored.

The fields of a row that runs:

    model      model file of `gin_configs/models`; `{corpus}` stands for the corpus' `model`
    corpus     corpus of a row whose columns name none; default: that of the table
    settings   files of `gin_configs/runs/settings` that are read after the run file
    bindings   gin bindings of the training
    decode     gin bindings of the evaluation
    from       runs that give initial parameters, `MODEL on CORPUS` or `NAME=MODEL on CORPUS`
    back_translation_rounds    rounds of back-translation after the training

The section `corpora` of `paper.toml` has what all rows on a corpus share; `defaults` fills in what
a corpus does not set.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any

from mnmt_jax.errors import UserError
from mnmt_jax.papers.tables import Paper, Row, Table

_ROW_FIELDS = (
    "model",
    "corpus",
    "settings",
    "bindings",
    "decode",
    "from",
    "back_translation_rounds",
)


@dataclasses.dataclass(frozen=True)
class Data:
    """What the rows of a corpus share.

    Attributes:
        corpus: name of the mixture and of the evaluated task.
        model: what `{corpus}` stands for in the name of a model file.
        run: run file of `gin_configs/runs`.
        vocabulary: flags of `mnmt vocabulary`.
        vocabulary_of: corpus whose vocabulary is used; empty for its own.
        step: evaluated checkpoint: `best`, `average` or empty for the newest.
        average: flags of `mnmt average`; empty if the step is not `average`.
        seeds: number of seeds of the paper.
        steps: number of updates; 0 for that of the run file.
        new_language: flags of `mnmt add-language`; empty if the vocabulary does not grow.
        evaluate: further flags of `mnmt evaluate`.
    """

    corpus: str
    model: str = ""
    run: str = ""
    vocabulary: tuple[str, ...] = ()
    vocabulary_of: str = ""
    step: str = ""
    average: tuple[str, ...] = ()
    seeds: int = 1
    steps: int = 0
    new_language: tuple[str, ...] = ()
    evaluate: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Source:
    """A run whose parameters a training starts from.

    Attributes:
        name: name for `--initialize_from NAME=RUN`; empty for the only source.
        model: its model file.
        corpus: its corpus.
    """

    name: str
    model: str
    corpus: str


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A trained model and its evaluation, for one row and corpus of a table.

    Attributes:
        model: model file of `gin_configs/models`, without `.gin`.
        data: corpus and what its rows share.
        settings: files of `gin_configs/runs/settings`.
        bindings: gin bindings of the training.
        decode: gin bindings of the evaluation.
        sources: runs that give initial parameters.
        back_translation_rounds: rounds of back-translation after the training.
    """

    model: str
    data: Data
    settings: tuple[str, ...] = ()
    bindings: tuple[str, ...] = ()
    decode: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()
    back_translation_rounds: int = 0

    @property
    def run_name(self) -> str:
        """Name of the run's folder; experiments that train alike share it."""
        return "-".join([_slug(self.model), self.data.corpus, *map(_slug, self._changes())])

    @property
    def evaluation_name(self) -> str:
        """Name of the evaluation's folder."""
        return "+".join([self.run_name, *map(_slug, self.decode)])

    def _changes(self) -> tuple[str, ...]:
        rounds = self.back_translation_rounds
        suffix = (f"back_translation_{rounds}",) if rounds else ()
        sources = tuple(f"from_{source.model}" for source in self.sources if not source.name)
        return (*self.settings, *self.bindings, *sources, *suffix)


def experiments(paper: Paper, table: Table, row: Row) -> Mapping[str, Experiment]:
    """Return the experiments of a row by corpus of its columns; empty if it cannot be run.

    Raises:
        UserError: naming the table, row and field that is wrong.
    """
    if row.unavailable or "model" not in row.facts:
        return {}
    place = f"{table.paper}/{table.name}: row '{row.name}'"
    if unknown := [name for name in row.facts if name not in _ROW_FIELDS]:
        raise UserError(f"{place}: unknown field '{unknown[0]}'")
    prefixes = dict.fromkeys(
        column.corpus for column in table.columns if column.key in row.published
    )
    return {
        prefix: _experiment(paper, row, prefix or _only_corpus(place, table, row))
        for prefix in prefixes
    }


def _only_corpus(place: str, table: Table, row: Row) -> str:
    corpus = row.facts.get("corpus") or table.corpus
    if not corpus:
        raise UserError(f"{place}: no column names a corpus; set 'corpus'")
    return corpus


def _experiment(paper: Paper, row: Row, corpus: str) -> Experiment:
    facts = row.facts
    data = corpus_data(paper, corpus)
    sources = facts.get("from", ())
    return Experiment(
        model=facts["model"].replace("{corpus}", data.model),
        data=data,
        settings=tuple(facts.get("settings", ())),
        bindings=tuple(facts.get("bindings", ())),
        decode=tuple(facts.get("decode", ())),
        sources=tuple(map(_source, [sources] if isinstance(sources, str) else sources)),
        back_translation_rounds=facts.get("back_translation_rounds", 0),
    )


def corpus_data(paper: Paper, corpus: str) -> Data:
    """Return what the rows of a corpus share, from `paper.toml`.

    Raises:
        UserError: if the paper does not describe the corpus, or a field is unknown.
    """
    place = f"{paper.name}/paper.toml: corpora.{corpus}"
    if corpus not in paper.corpora:
        raise UserError(f"{place}: is missing")
    values: dict[str, Any] = {"model": corpus, "run": corpus}
    values |= {**paper.defaults, **paper.corpora[corpus]}
    known = {field.name for field in dataclasses.fields(Data)} - {"corpus"}
    if unknown := sorted(set(values) - known):
        raise UserError(f"{place}: unknown field '{unknown[0]}'")
    for name in ("vocabulary", "average", "new_language", "evaluate"):
        values[name] = tuple(shlex.split(values.get(name, "")))
    return Data(corpus, **values)


def _source(text: str) -> Source:
    """Parse `MODEL on CORPUS` or `NAME=MODEL on CORPUS`."""
    where, _, corpus = text.partition(" on ")
    name, _, model = where.rpartition("=")
    return Source(name, model, corpus)


def _slug(text: str) -> str:
    """Return text as a part of a folder's name."""
    return "".join(char if char.isalnum() or char in "._" else "_" for char in text).strip("_")
