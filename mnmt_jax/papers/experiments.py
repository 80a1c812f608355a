"""Experiments of published tables: which models a row trains, on which data, and how it is scored.

The fields of a row that runs:

    model      model file of `gin_configs/models`; `{corpus}` stands for the corpus' `model`
    pretrained model of the section `imports` that is evaluated as it is; instead of `model`
    corpus     corpus of a row whose columns name none; default: that of the table
    trained_on corpus of the training, if the row is only evaluated on the corpus of its columns
    run        run file; default: that of the corpus
    settings   files of `gin_configs/runs/settings` that are read after the run file
    bindings   gin bindings of the training
    decode     gin bindings of the evaluation
    evaluate   flags of `mnmt evaluate`
    from       runs that give initial parameters, `MODEL on CORPUS` or the name of an import; with
               several, each `NAME=...`; `{corpus}` as in `model`
    teacher    run that translates the training sources, `MODEL on CORPUS` or the name of an import:
               the model is trained on its translations (`mnmt distill`); `DIRECTIONS=...` for some
    distill    flags of `mnmt distill`
    back_translation_rounds    rounds of back-translation after the training
    step       evaluated update; default: the checkpoint of the corpus
    compared_with    row that columns of gains and of relative time compare with
    point      place in the figure (`mnmt_jax.papers.figures`)

The section `corpora` of `paper.toml` has what all rows on a mixture share: the fields of
`CorpusSettings`, and `like`, a corpus whose fields it takes over. `defaults` fills in what a corpus
does not set. The section `imports` has the flags of `mnmt import` for released models. A
training that starts from an import uses its vocabulary. A row without numbers runs for all columns.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mnmt_jax.config.loading import load_config
from mnmt_jax.config.sections import Config
from mnmt_jax.data.mixtures import get_mixture
from mnmt_jax.data.parallel_corpora import get_corpus
from mnmt_jax.data.published_corpora import PUBLISHED
from mnmt_jax.errors import UserError, suggest
from mnmt_jax.evaluation.published_procedures import PROCEDURES
from mnmt_jax.papers.tables import Column, Paper, Row, Table, parse_seeds
from mnmt_jax.vocabulary.language_codes import find_code

_ROW_FIELDS = (
    "model",
    "pretrained",
    "corpus",
    "trained_on",
    "run",
    "settings",
    "bindings",
    "decode",
    "evaluate",
    "from",
    "teacher",
    "distill",
    "back_translation_rounds",
    "step",
    "compared_with",
    "point",
)
BACK_TRANSLATION = "back_translation"
"""Settings of the rounds of back-translation, as in `Experiment.settings`."""
_FLAGS = ("vocabulary", "cache", "average", "new_language", "back_translation", "evaluate")


@dataclasses.dataclass(frozen=True)
class CorpusSettings:
    """What the rows of a corpus share.

    Attributes:
        corpus: its name in the section `corpora`.
        mixture: name of the mixture; default: `corpus`.
        task: evaluated task; empty for the mixture.
        model: what `{corpus}` stands for in the name of a model file.
        run: run file of `gin_configs/runs`.
        vocabulary: flags of `mnmt vocabulary`.
        omitted_preparation: what the authors did to the text and is not done here; may be empty.
        released_vocabulary: SentencePiece model of the authors, below the folder of the corpora;
            used instead of a new vocabulary if it is there. Empty if none is public.
        released_at: where this file is published.
        recipe: recipe of `mnmt prepare` that does the authors' cleaning; empty if there is none.
        recipe_files: folder that the recipe needs, below the folder of the corpora; without it the
            text is not cleaned.
        vocabulary_of: corpus whose vocabulary is used; empty for its own.
        lavs_copies: number of copies of shared pieces (LAVS) that are added to that vocabulary, at
            most; 0 for none.
        cache: further flags of `mnmt cache`.
        step: evaluated checkpoint: `best`, `average`, an update, or empty for the newest.
        average: flags of `mnmt average`; empty if the step is not `average`.
        seeds: seeds of the paper.
        epoch_draws: pairs drawn in an epoch (`Train.epochs`); 0 for `sentences`.
        sentences: number of training sentences over all directions, as the paper states it; 0 if it
            does not.
        steps: number of updates; 0 for that of the run file.
        bindings: gin bindings of every training on it.
        new_language: flags of `mnmt add-language`; empty if the vocabulary does not grow.
        back_translation: flags of `mnmt back-translate` for rows with rounds of it.
        evaluate: further flags of `mnmt evaluate`.
        procedure: procedure of the authors' scoring scripts, a name that `mnmt evaluate
            --paper_compatible` takes; empty if there is none.
        as_published: whether our cells have the scores of this procedure.
        vocabulary_file: path of the released vocabulary; empty if a new one is trained.
        is_prepared: whether the recipe is used.
    """

    corpus: str
    mixture: str
    task: str = ""
    model: str = ""
    run: str = ""
    vocabulary: tuple[str, ...] = ()
    omitted_preparation: str = ""
    released_vocabulary: str = ""
    released_at: str = ""
    recipe: str = ""
    recipe_files: str = ""
    vocabulary_of: str = ""
    lavs_copies: int = 0
    cache: tuple[str, ...] = ()
    step: str = ""
    average: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (1,)
    epoch_draws: int = 0
    sentences: int = 0
    steps: int = 0
    bindings: tuple[str, ...] = ()
    new_language: tuple[str, ...] = ()
    back_translation: tuple[str, ...] = ()
    evaluate: tuple[str, ...] = ()
    procedure: str = ""
    as_published: bool = False
    vocabulary_file: str = ""
    is_prepared: bool = False

    @property
    def vocabulary_name(self) -> str:
        """Name of the folder of the vocabulary."""
        name = self.corpus if self.lavs_copies else self.vocabulary_of or self.corpus
        return f"{name}-released" if self.vocabulary_file else name


@dataclasses.dataclass(frozen=True)
class Source:
    """A run whose parameters a training starts from, or whose translations it is trained on.

    Attributes:
        name: name for `--initialize_from NAME=RUN`, or directions of a teacher; empty for the only
            source.
        model: its model file, or the name of an import.
        corpus: its corpus; empty for an import.
    """

    name: str
    model: str
    corpus: str


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A trained model and its evaluation, for one row and corpus of a table.

    Attributes:
        model: model file of `gin_configs/models`, without `.gin`; for a pretrained model, the
            name of its import.
        data: corpus and what its rows share.
        settings: files of `gin_configs/runs/settings`.
        bindings: gin bindings of the training.
        decode: gin bindings of the evaluation.
        evaluate: flags of the evaluation.
        pretrained: whether the model is imported and not trained.
        sources: runs that give initial parameters.
        teacher: run whose translations are the targets of the training; None for the real ones.
        distill: flags of `mnmt distill`.
        back_translation_rounds: rounds of back-translation after the training.
        evaluated: corpus of the columns, if the model was not trained on it; else empty.
        benchmark: flags of `mnmt benchmark`, which then replaces the evaluation; else empty.
        hypotheses: folder with the translations of an outside system, which is not trained; else
            empty.
        row_run: run file of the row; empty for that of the corpus.
        has_row_step: whether the row has another `step` than its corpus.
    """

    model: str
    data: CorpusSettings
    settings: tuple[str, ...] = ()
    bindings: tuple[str, ...] = ()
    decode: tuple[str, ...] = ()
    evaluate: tuple[str, ...] = ()
    pretrained: bool = False
    sources: tuple[Source, ...] = ()
    teacher: Source | None = None
    distill: tuple[str, ...] = ()
    back_translation_rounds: int = 0
    evaluated: str = ""
    hypotheses: str = ""
    benchmark: tuple[str, ...] = ()
    row_run: str = ""
    has_row_step: bool = False

    @property
    def training_bindings(self) -> tuple[str, ...]:
        """The gin bindings of the training, its number of updates included."""
        steps = (f"Train.steps={self.data.steps}",) if self.data.steps else ()
        size = ("Model.vocab_size=0",) if self.data.lavs_copies else ()
        return (*steps, *self.data.bindings, *size, *self.bindings)

    @property
    def vocabulary_import(self) -> str:
        """Name of the import whose vocabulary the training uses; empty for that of the corpus."""
        names = [source.model for source in self.sources if not source.name and not source.corpus]
        return names[0] if names else ""

    @property
    def run_name(self) -> str:
        """Name of the run's folder; experiments that train alike share it."""
        if self.pretrained:
            return self.model
        return "-".join([slug(self.model), self.data.corpus, *map(slug, self._changes())])

    @property
    def evaluation_name(self) -> str:
        """Name of the evaluation's folder."""
        is_named = self.data.step.isdecimal() or self.has_row_step
        step = f"step_{self.data.step or 'newest'}" if is_named else ""
        changes = (step, "".join(self.evaluate), *self.decode)
        names = [self.run_name, *map(slug, filter(None, changes))]
        names += ["benchmark"] if self.benchmark else []
        return "+".join([*names, self.evaluated] if self.evaluated else names)

    def _changes(self) -> tuple[str, ...]:
        rounds = self.back_translation_rounds
        suffix = (f"back_translation_{rounds}",) if rounds else ()
        run = (self.row_run,) if self.row_run else ()
        sources = tuple(
            "_".join(filter(None, ("from", source.name, source.model))) for source in self.sources
        )
        if self.teacher:
            names = filter(None, (self.teacher.name, self.teacher.model))
            sources += (f"distilled_from_{'_'.join(names)}", *self.distill)
        released = self.data.vocabulary_file and not self.vocabulary_import
        vocabulary = ("released_vocabulary",) if released else ()
        prepared = ("prepared",) if self.data.is_prepared else ()
        return (*run, *self.settings, *self.bindings, *sources, *suffix, *vocabulary, *prepared)


def experiments(paper: Paper, table: Table, row: Row) -> Mapping[str, Experiment]:
    """Return the experiments of a row by corpus of its columns; empty if it cannot be run.

    Raises:
        UserError: naming the table, row and field that is wrong.
    """
    if row.unavailable or not {"model", "pretrained"}.intersection(row.facts):
        return {}
    return {
        prefix: make_experiment(paper, table, row, corpus)
        for prefix, corpus in row_corpora(table, row).items()
    }


def row_columns(table: Table, row: Row) -> Sequence[Column]:
    """Return the columns that have a number of a row; all if none has."""
    return [column for column in table.columns if column.key in row.published] or table.columns


def row_corpora(table: Table, row: Row) -> Mapping[str, str]:
    """Return the corpora of a row by the prefix of its columns' keys; "" without one.

    Raises:
        UserError: if the row has no corpus.
    """
    prefixes = dict.fromkeys(column.corpus for column in row_columns(table, row)) or {"": None}
    return {prefix: prefix or _only_corpus(_place(table, row), table, row) for prefix in prefixes}


def _place(table: Table, row: Row) -> str:
    return f"{table.full_name}: row '{row.name}'"


def _only_corpus(place: str, table: Table, row: Row) -> str:
    corpus = row.facts.get("corpus") or table.corpus
    if not corpus:
        raise UserError(f"{place}: no column names a corpus; set 'corpus'")
    return corpus


def make_experiment(paper: Paper, table: Table, row: Row, corpus: str) -> Experiment:
    """Return the experiment of a row on a corpus.

    Raises:
        UserError: naming the table, row and field that is wrong.
    """
    facts = row.facts
    if unknown := [name for name in facts if name not in _ROW_FIELDS]:
        raise UserError(f"{_place(table, row)}: unknown field '{unknown[0]}'")
    data = corpus_settings(paper, corpus)
    sources = facts.get("from", ())
    teacher = facts.get("teacher", "")
    if "distill" in facts and not teacher:
        raise UserError(f"{_place(table, row)}: 'distill' needs a 'teacher'")
    pretrained = facts.get("pretrained", "")
    trained_on = facts.get("trained_on", corpus)
    if trained_on != corpus:
        task = data.task or corpus
        data = dataclasses.replace(
            corpus_settings(paper, trained_on), task=task, evaluate=data.evaluate
        )
    trainings = [f"'{name}'" for name in ("teacher", "back_translation_rounds") if name in facts]
    trainings += [f"the new language of '{data.corpus}'"] if data.new_language else []
    if len(trainings) > 1:
        both = " and ".join(trainings)
        raise UserError(f"{_place(table, row)}: {both} do not combine; make a row for each")
    run, step = facts.get("run", data.run), str(facts.get("step", data.step))
    row_run, has_row_step = "" if run == data.run else run, step != data.step
    data = dataclasses.replace(data, run=run, step=step)
    if pretrained and pretrained not in paper.imports:
        raise UserError(f"{paper.name}: row '{row.name}': no import '{pretrained}' in paper.toml")
    return Experiment(
        model=pretrained or facts["model"].replace("{corpus}", data.model),
        data=data,
        settings=tuple(facts.get("settings", ())),
        bindings=tuple(facts.get("bindings", ())),
        decode=tuple(facts.get("decode", ())),
        evaluate=tuple(facts.get("evaluate", ())),
        pretrained=bool(pretrained),
        sources=tuple(
            _source(text.replace("{corpus}", data.model))
            for text in ([sources] if isinstance(sources, str) else sources)
        ),
        teacher=_source(teacher.replace("{corpus}", data.model)) if teacher else None,
        distill=tuple(facts.get("distill", ())),
        back_translation_rounds=facts.get("back_translation_rounds", 0),
        evaluated=corpus if pretrained or trained_on != corpus else "",
        benchmark=tuple(shlex.split(table.benchmark)),
        row_run=row_run,
        has_row_step=has_row_step,
    )


def corpus_settings(paper: Paper, corpus: str) -> CorpusSettings:
    """Return what the rows of a corpus share, from `paper.toml`.

    Raises:
        UserError: if the paper does not describe the corpus, or a field is unknown.
    """
    values = {**paper.defaults, **_corpus_fields(paper, corpus)}
    known = {field.name for field in dataclasses.fields(CorpusSettings)}
    known -= {"corpus", "vocabulary_file", "is_prepared"}
    if unknown := sorted(set(values) - known):
        raise UserError(f"{_corpus_place(paper, corpus)}: unknown field '{unknown[0]}'")
    if (procedure := values.get("procedure", "")) and procedure not in PROCEDURES:
        hint = suggest(procedure, tuple(PROCEDURES))
        raise UserError(f"{_corpus_place(paper, corpus)}: no procedure '{procedure}'; {hint}")
    for name in _FLAGS:
        values[name] = tuple(shlex.split(values.get(name, "")))
    values["bindings"] = tuple(values.get("bindings", ()))
    if values.get("vocabulary_of"):
        shared = corpus_settings(paper, values["vocabulary_of"])
        values["released_vocabulary"] = shared.released_vocabulary
        values["released_at"] = shared.released_at
    values["seeds"] = parse_seeds(_corpus_place(paper, corpus), values.get("seeds", [1])) or (1,)
    return CorpusSettings(corpus, **values)


def _corpus_fields(paper: Paper, corpus: str) -> dict[str, Any]:
    """Return the fields of a corpus, over those of the corpora that it is `like`."""
    names: list[str] = []
    name = corpus
    while name:
        if name not in paper.corpora:
            raise UserError(f"{_corpus_place(paper, name)}: is missing")
        if name in names:
            raise UserError(f"{_corpus_place(paper, name)}: is like itself")
        names.append(name)
        name = paper.corpora[name].get("like", "")
    fields: dict[str, Any] = dict.fromkeys(("model", "run", "mixture"), names[-1])
    for name in reversed(names):
        fields |= paper.corpora[name]
    fields.pop("like", None)
    return fields


def _corpus_place(paper: Paper, corpus: str) -> str:
    return f"{paper.name}/paper.toml: corpora.{corpus}"


def with_released_files(experiment: Experiment, folder: Path | None) -> Experiment:
    """Return an experiment with the authors' vocabulary and cleaning, if their files are there.

    Args:
        experiment: the experiment.
        folder: folder of the corpora; None if their files are not looked for.
    """
    data = experiment.data
    if folder is None:
        return experiment
    if data.released_vocabulary and (folder / data.released_vocabulary).is_file():
        path = (folder / data.released_vocabulary).resolve()
        data = dataclasses.replace(data, vocabulary_file=str(path))
    if data.recipe and (folder / data.recipe_files).is_dir():
        data = dataclasses.replace(data, is_prepared=True)
    return dataclasses.replace(experiment, data=data)


def data_notes(experiments: Iterable[Experiment]) -> list[str]:
    """Return notes on what the authors did to the text, and on vocabularies that they released."""
    notes: dict[str, None] = {}
    for experiment in experiments:
        data = experiment.data
        if data.recipe and not data.is_prepared:
            place = f"DATA/{data.recipe_files}"
            notes[f"{data.mixture}: recipe {data.recipe}, which needs {place}: not used"] = None
        elif data.recipe:
            notes[f"{data.mixture}: cleaned by the recipe {data.recipe}"] = None
        if data.omitted_preparation and not data.is_prepared:
            notes[f"{data.mixture}: not done here: {data.omitted_preparation}"] = None
        if data.released_vocabulary and not experiment.vocabulary_import:
            use = "used" if data.vocabulary_file else "not there, so a new one is trained"
            place = f"DATA/{data.released_vocabulary} ({data.released_at})"
            notes[f"vocabulary of the authors, {place}: {use}"] = None
    return list(notes)


def gin_files(experiment: Experiment) -> list[str]:
    """Return the gin files of a training, in the order in which they are read."""
    files = [f"gin_configs/models/{experiment.model}.gin"]
    files.append(f"gin_configs/runs/{experiment.data.run}.gin")
    rounds = [BACK_TRANSLATION] if experiment.back_translation_rounds else []
    return [*files, *map(settings_file, (*experiment.settings, *rounds))]


def settings_file(name: str) -> str:
    """Return the gin file of a name in `Experiment.settings`."""
    return f"gin_configs/runs/settings/{name}.gin"


def training_config(experiment: Experiment) -> Config:
    """Return the configuration of a training at full scale.

    A model that grows by a language is that before it: its new pieces are known after training.
    One with copies of shared pieces has as many as it may have. A round of back-translation is an
    epoch.
    """
    data = experiment.data
    config = load_config(gin_files(experiment), experiment.training_bindings)
    if data.lavs_copies:
        bindings = (*data.bindings, *experiment.bindings)
        size = load_config(gin_files(experiment), bindings).model.vocab_size
        model = dataclasses.replace(config.model, vocab_size=size + data.lavs_copies)
        config = dataclasses.replace(config, model=model)
    if experiment.back_translation_rounds:
        train = dataclasses.replace(config.train, epochs=config.train.epochs or 1.0)
        config = dataclasses.replace(config, train=train)
    mixture = experiment.sources[0].corpus if data.new_language else data.mixture
    return config.bind_languages(mixture_languages(mixture), find_code)


def mixture_languages(name: str) -> tuple[str, ...]:
    """Return the languages of a mixture's corpus, without reading its files."""
    corpus = get_mixture(name).corpus
    row = PUBLISHED.get(corpus)
    return tuple(row.languages if row else get_corpus(corpus).languages)


def _source(text: str) -> Source:
    """Parse `[NAME=]MODEL on CORPUS`, or `[NAME=]IMPORT`."""
    where, _, corpus = text.partition(" on ")
    name, _, model = where.rpartition("=")
    return Source(name, model, corpus)


def slug(text: str) -> str:
    """Return text as a part of a folder's name."""
    return "".join(char if char.isalnum() or char in "._" else "_" for char in text).strip("_")
