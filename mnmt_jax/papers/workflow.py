"""Steps that reproduce a table: commands, the files they wait for, and what they write.

Folders below the output folder, shared by all tables that are written there:

    data/CORPUS              made miniatures of corpora and checkpoints (scale tiny alone)
    imports/NAME             from `mnmt import`
    vocabularies/NAME        from `mnmt vocabulary`
    grown/RUN/seedN          from `mnmt add-language`
    caches/MIXTURE           from `mnmt cache`, or `mnmt prepare`
    caches/RUN/seedN         from `mnmt distill`, or with a new language's text
    runs/RUN/seedN           from `mnmt train`, or the rounds of `mnmt back-translate`
    evaluations/RUN/seedN    from `mnmt evaluate`, and again for scores that need a model
    analyses/PAPER/TABLE/…   from `mnmt analyse`
    counts/MIXTURE.json      from `mnmt count`, and its page
    done/                    a file with the command of every finished step
    tables/PAPER/TABLE       result pages
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from mnmt_jax.data.mixtures import get_mixture
from mnmt_jax.data.published_corpora import PUBLISHED
from mnmt_jax.errors import UserError
from mnmt_jax.papers.analyses import Analysis
from mnmt_jax.papers.experiments import (
    BACK_TRANSLATION,
    CorpusSettings,
    Experiment,
    Source,
    corpus_settings,
    gin_files,
    mixture_languages,
    settings_file,
    training_config,
    with_released_files,
)
from mnmt_jax.papers.output_folders import cache_folder, count_file, import_folder, run_folder
from mnmt_jax.papers.scales import TINY_SIZES, Scale
from mnmt_jax.papers.steps import Step, differing_words
from mnmt_jax.papers.tables import Paper
from mnmt_jax.papers.trials import Trial


class Workflow:
    """The steps of some trials, each once, in an order in which they can run.

    Args:
        paper: the paper.
        scale: size of the reproduction.
        data: folder of the corpora, as in `trials`, and of released models; None for `data`.
        metrics: flag and value of `mnmt evaluate` for scores that need a model, by metric.

    Attributes:
        metrics: the metrics and their flags.
        trainings: what is trained, those of source runs included, by run name and seed.
    """

    def __init__(
        self,
        paper: Paper,
        scale: Scale,
        data: Path | None = None,
        metrics: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        self._paper, self._scale, self._folder = paper, scale, data
        self.metrics = dict(metrics or {})
        self._steps: dict[str, Step] = {}
        self.trainings: dict[tuple[str, int], Experiment] = {}

    def add(self, trial: Trial) -> str:
        """Add the steps of a trial; return the name of the last one."""
        evaluated = self._evaluate(trial.experiment, trial.seed)
        has_metrics = self.metrics and not trial.experiment.benchmark
        return self._add_metrics(evaluated) if has_metrics else evaluated

    def add_analysis(self, analysis: Analysis) -> list[str]:
        """Add the steps of an analysis, with the first seed; return the names of the last ones."""
        return [self._analyse(analysis, names) for names in analysis.groups]

    def add_count(self, mixture: str, splits: Sequence[str]) -> str:
        """Add the step that counts the sentences of a mixture; return its name."""
        command = ("mnmt", "count", "--mixture", mixture, "--of", ",".join(splits))
        inputs = self._data(mixture)
        files = ("--output", count_file(mixture), "--page", count_file(mixture, "html"))
        return self._step(f"count/{mixture}", (*command, *files), inputs)

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps; inputs come before what waits for them."""
        return tuple(self._steps.values())

    def _step(self, name: str, command: Iterable[str], inputs: Iterable[str] = ()) -> str:
        step = Step(name, tuple(command), tuple(dict.fromkeys(inputs)))
        if difference := differing_words(self._steps.setdefault(name, step).command, step.command):
            raise UserError(
                f"{self._paper.name}: two rows have the step {name}, one with {difference[0]}, the "
                f"other with {difference[1]}; set the field that differs in a corpus of its own in "
                "paper.toml (like = ...)"
            )
        return name

    def _data(self, task: str) -> tuple[str, ...]:
        """Make the miniature of a mixture's or task's corpus with files; return the step."""
        row = PUBLISHED.get(task) or PUBLISHED.get(get_mixture(task).corpus)
        if row is None or not self._scale.miniature:
            return ()
        command = ("python", "-m", "mnmt_jax.papers.miniature", row.name)
        return (self._step(f"data/{row.name}", (*command, f"data/{row.folder or row.name}")),)

    def _vocabulary(self, data: CorpusSettings) -> str:
        """Train, adopt or split the vocabulary of a training; return the step."""
        described = corpus_settings(self._paper, data.vocabulary_of or data.corpus)
        inputs = self._data(described.mixture)
        flags: tuple[str, ...] = ("--mixture", described.mixture, *described.vocabulary)
        if data.lavs_copies:
            shared = dataclasses.replace(data, lavs_copies=0)
            inputs = (self._vocabulary(shared), *inputs)
            copies = ("--lavs", "code", "--lavs_copies", str(data.lavs_copies))
            base = f"vocabularies/{shared.vocabulary_name}"
            flags = (*copies, "--vocabulary", base, "--mixture", data.mixture)
        elif data.vocabulary_file:
            languages = PUBLISHED[get_mixture(described.mixture).corpus].languages
            adopted = ("--sentencepiece", data.vocabulary_file)
            inputs, flags = (), (*adopted, "--languages", ",".join(languages))
        elif self._scale.miniature:
            pieces = ("--vocab_size", _miniature_pieces(described.mixture))
            flags = ("--mixture", described.mixture, *pieces, *self._scale.vocabulary)
        name = data.vocabulary_name
        command = ("mnmt", "vocabulary", *flags, "--output", f"vocabularies/{name}")
        return self._step(f"vocabulary/{name}", command, inputs)

    def _cache(self, experiment: Experiment) -> str:
        data, folder = experiment.data, cache_folder(experiment)
        if name := experiment.vocabulary_import:
            vocabulary, step = f"{import_folder(name)}/vocabulary", self._import(name)
        else:
            vocabulary = f"vocabularies/{data.vocabulary_name}"
            step = self._vocabulary(data)
        command = ("prepare", "--recipe", data.recipe) if data.is_prepared else ("cache",)
        flags = ("--mixture", data.mixture, *data.cache, "--vocabulary", vocabulary)
        return self._step(
            f"cache/{folder.removeprefix('caches/')}",
            ("mnmt", *command, *flags, "--output", folder),
            (step, *self._data(data.mixture)),
        )

    def _train(self, experiment: Experiment, seed: int) -> str:
        self.trainings.setdefault((experiment.run_name, seed), experiment)
        if experiment.data.new_language:
            return self._train_new_language(experiment, seed)
        if experiment.back_translation_rounds:
            return self._back_translate(experiment, seed)
        inputs, sources = [], []
        for source in experiment.sources:
            step, folder, checkpoint = self._source(source, seed)
            inputs.append(step)
            sources += ["--initialize_from", f"{source.name}={folder}".lstrip("=")]
            if checkpoint:
                sources += ["--initialize_step", f"{source.name}={checkpoint}".lstrip("=")]
        cached, cache = self._training_cache(experiment, seed)
        inputs.append(cached)
        flags = self._training_flags(experiment, seed, gin_files(experiment), cache)
        command = ("mnmt", "train", *flags, *sources, "--workdir", run_folder(experiment, seed))
        return self._step(f"train/{experiment.run_name}/seed{seed}", command, inputs)

    def _training_cache(self, experiment: Experiment, seed: int) -> tuple[str, str]:
        """Add the cache of a training, translated by the teacher if any; return step and folder."""
        cached, cache = self._cache(experiment), cache_folder(experiment)
        if experiment.teacher is None:
            return cached, cache
        trained, folder, checkpoint = self._source(experiment.teacher, seed)
        teacher = f"{experiment.teacher.name}={folder}".lstrip("=")
        name = f"{experiment.run_name}/seed{seed}"
        command = ["mnmt", "distill", "--teacher", teacher, "--cache", cache, *experiment.distill]
        command += ["--step", checkpoint] if checkpoint else []
        command += [*_gin_flags(self._scale.decode), "--output", f"caches/{name}"]
        return self._step(f"distill/{name}", command, (trained, cached)), f"caches/{name}"

    def _training_flags(
        self, experiment: Experiment, seed: int, files: Iterable[str], cache: str
    ) -> list[str]:
        """Return the gin files and bindings of a training."""
        bindings = [f"Data.cache='{cache}'", f"Train.seed={seed}"]
        bindings += [*experiment.training_bindings, *self._bindings(experiment)]
        flags = [word for file in files for word in ("--gin_file", file)]
        return [*flags, *_gin_flags(bindings)]

    def _bindings(self, experiment: Experiment) -> tuple[str, ...]:
        """Return the bindings of the scale; the rows are a multiple of each method's groups."""
        if not self._scale.rows:
            return self._scale.bindings
        methods = training_config(experiment).train.methods
        groups = math.lcm(*(getattr(method, "groups", 1) for method in methods))
        rows = math.ceil(self._scale.rows / groups) * groups
        return (f"Data.rows={rows}", *self._scale.bindings)

    def _train_new_language(self, experiment: Experiment, seed: int) -> str:
        """Add a language to the source run, and train on its text and the source run's."""
        data, (source,) = experiment.data, experiment.sources
        base = self._source_experiment(source)
        name = f"{experiment.run_name}/seed{seed}"
        grown, cache = f"grown/{name}", f"caches/{name}"
        pieces = self._scale.new_language or data.new_language
        command = ("mnmt", "add-language", "--run", run_folder(base, seed), *self._step_flags(base))
        inputs = (self._trained(base, seed), *self._data(data.mixture))
        flags = ("--mixture", data.mixture, *pieces, "--output", grown)
        add = self._step(f"add-language/{name}", (*command, *flags), inputs)
        command = ("mnmt", "cache", "--mixture", data.mixture)
        flags = ("--vocabulary", f"{grown}/vocabulary", "--also", cache_folder(base))
        cached = self._step(f"cache/{name}", (*command, *flags, "--output", cache), (add,))
        files = [f"{grown}/config.gin", *map(settings_file, experiment.settings)]
        training = self._training_flags(experiment, seed, files, cache)
        command = ("mnmt", "train", *training, "--initialize_from", grown)
        workdir = ("--workdir", run_folder(experiment, seed))
        return self._step(f"train/{name}", (*command, *workdir), (cached,))

    def _back_translate(self, experiment: Experiment, seed: int) -> str:
        """Train rounds of back-translation from the run without them."""
        data, rounds = experiment.data, experiment.back_translation_rounds
        before = dataclasses.replace(experiment, back_translation_rounds=0)
        command = (
            *("mnmt", "back-translate", "--run", run_folder(before, seed)),
            *self._step_flags(before),
            *("--cache", cache_folder(before), *data.back_translation, "--rounds", str(rounds)),
            *("--gin_file", settings_file(BACK_TRANSLATION)),
            *_gin_flags(self._bindings(experiment)),
            *("--workdir", run_folder(experiment, seed).rpartition("/round_")[0]),
        )
        inputs = (self._trained(before, seed),)
        return self._step(f"train/{experiment.run_name}/seed{seed}", command, inputs)

    def _source(self, source: Source, seed: int) -> tuple[str, str, str]:
        """Add a source run; return its step, folder and checkpoint, which is "" for the newest."""
        if not source.corpus:
            return self._import(source.model), import_folder(source.model), ""
        experiment = self._source_experiment(source)
        folder = run_folder(experiment, seed)
        return self._trained(experiment, seed), folder, experiment.data.step

    def _source_experiment(self, source: Source) -> Experiment:
        experiment = Experiment(source.model, corpus_settings(self._paper, source.corpus))
        return with_released_files(experiment, self._folder)

    def _import(self, name: str) -> str:
        flags = [*map(self._data_path, shlex.split(self._paper.imports[name]))]
        inputs: tuple[str, ...] = ()
        if self._scale.miniature:
            path = flags[flags.index("--input") + 1]
            make = ("python", "-m", "mnmt_jax.interop.miniature_checkpoint", name, path)
            sizes = (f"--{size}={value}" for size, value in TINY_SIZES.items())
            inputs = (self._step(f"checkpoint/{name}", (*make, *sizes)),)
        command = ("mnmt", "import", *flags, "--output", import_folder(name))
        return self._step(f"import/{name}", command, inputs)

    def _data_path(self, word: str) -> str:
        """Return a word of a command with `data/`, the folder of the corpora, as its path."""
        if self._folder is None or not word.startswith("data/"):
            return word
        return str(self._folder.resolve() / word.removeprefix("data/"))

    def _trained(self, experiment: Experiment, seed: int) -> str:
        """Add what makes the evaluated parameters; return the last step."""
        if experiment.pretrained:
            return self._import(experiment.model)
        trained = self._train(experiment, seed)
        if experiment.data.step != "average":
            return trained
        command = (
            "mnmt",
            "average",
            "--run",
            run_folder(experiment, seed),
            *experiment.data.average,
        )
        return self._step(f"average/{experiment.run_name}/seed{seed}", command, (trained,))

    def _evaluate(self, experiment: Experiment, seed: int) -> str:
        data = experiment.data
        task = data.task or data.mixture
        name = f"{experiment.evaluation_name}/seed{seed}"
        flags = [*data.evaluate, *experiment.evaluate, *self._scale.evaluate, *self._note()]
        output = ("--output", f"evaluations/{name}")
        if experiment.benchmark:
            return self._benchmark(experiment, seed, task)
        if experiment.hypotheses:
            outside = ("--hypotheses", experiment.hypotheses, "--name", experiment.model)
            command = ["mnmt", "evaluate", *outside, "--task", task, *flags, *output]
            return self._step(f"evaluate/{name}", command, self._data(task))
        command = ["mnmt", "evaluate", "--run", run_folder(experiment, seed), "--task", task]
        command += [*self._step_flags(experiment), *flags]
        command += ["--paper_compatible", data.procedure] if data.as_published else []
        command += [*_gin_flags((*experiment.decode, *self._scale.decode)), *output]
        inputs = (self._trained(experiment, seed), *self._data(task))
        return self._step(f"evaluate/{name}", command, inputs)

    def _benchmark(self, experiment: Experiment, seed: int, task: str) -> str:
        """Add the timing of a run's translation; return the step."""
        name = f"{experiment.evaluation_name}/seed{seed}"
        command = ["mnmt", "benchmark", "--run", run_folder(experiment, seed), "--task", task]
        command += [*self._step_flags(experiment), *experiment.benchmark, *self._scale.benchmark]
        command += _gin_flags((*experiment.decode, *self._scale.decode))
        command += ["--output", f"evaluations/{name}"]
        inputs = (self._trained(experiment, seed), *self._data(task))
        return self._step(f"benchmark/{name}", command, inputs)

    def _note(self) -> tuple[str, ...]:
        """Return the flag of the notice on every page."""
        return ("--note", self._scale.notice) if self._scale.notice else ()

    def _step_flags(self, experiment: Experiment) -> list[str]:
        """Return the flags that name the evaluated checkpoint.

        There are none for the newest, for an import, and for an update of a miniature, whose
        training has others.
        """
        step = "" if experiment.pretrained else experiment.data.step
        if self._scale.miniature and step.isdecimal():
            return []
        return ["--step", step] if step else []

    def _analyse(self, analysis: Analysis, names: Sequence[str]) -> str:
        items = [analysis.runs[name] for name in names]
        data, decode = items[0].data, (*items[0].decode, *self._scale.decode)
        command = ["mnmt", "analyse", *analysis.command]
        steps = [] if "--step" in command else self._step_flags(items[0])
        if self._scale.miniature and "--step" in command:  # its training has other updates
            place = command.index("--step")
            del command[place : place + 2]
        command += [word for item in items for word in ("--run", run_folder(item, analysis.seed))]
        command += [*steps, *self._scale.analyse.get(analysis.kind, ()), *self._note()]
        if analysis.kind != "scales":
            command += ["--task", data.task or data.mixture, *_gin_flags(decode)]
        folder = analysis.folder(names)
        inputs = [self._trained(item, analysis.seed) for item in items]
        inputs += self._data(data.task or data.mixture)
        name = f"analyse/{folder.removeprefix('analyses/')}"
        return self._step(name, [*command, "--output", folder], inputs)

    def _add_metrics(self, evaluated: str) -> str:
        """Add scores to a finished evaluation, whose translations are reused.

        The step's name has a digest of the flags: other models are another step.
        """
        flags = [word for words in self.metrics.values() for word in words]
        digest = hashlib.sha256(json.dumps(flags).encode()).hexdigest()[:8]
        name = f"metrics/{'+'.join(self.metrics)}-{digest}/{evaluated.partition('/')[2]}"
        return self._step(name, (*self._steps[evaluated].command, *flags), (evaluated,))


def _gin_flags(bindings: Iterable[str]) -> list[str]:
    return [f"--gin.{binding}" for binding in bindings]


def _miniature_pieces(mixture: str) -> str:
    """Return a vocabulary size that is neither too small nor too large for a miniature's text."""
    return str(430 + 24 * len(mixture_languages(mixture)))
