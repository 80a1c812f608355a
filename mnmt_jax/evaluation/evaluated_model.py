"""Model under evaluation, opened from a run directory."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnmt_jax.config.sections import Config
from mnmt_jax.design.method import as_facts
from mnmt_jax.errors import join_names, warn
from mnmt_jax.evaluation.benchmark import UNKNOWN_TRAINING, Benchmark
from mnmt_jax.evaluation.translations import (
    BY_DIRECTION,
    DOCUMENTS,
    TranslatedSentence,
    TranslateFn,
)
from mnmt_jax.files.file_digest import short_digest
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.vocabulary.language_codes import Direction, find_code
from mnmt_jax.vocabulary.vocabulary import Vocabulary

if TYPE_CHECKING:
    from mnmt_jax.decoding.translation import Translation
    from mnmt_jax.decoding.translation_job import TranslationJob


@dataclasses.dataclass(frozen=True)
class EvaluatedModel:
    """A model under evaluation: its translation function and the known facts about it.

    Attributes:
        name: name in results and reports.
        translate: function that translates the sentences of one direction.
        config: configuration of the run; None for a system that is not of this library.
        decoding: decoding settings: checkpoint and search.
        identity: what the translations depend on besides model, search and sources: parameters,
            vocabulary, instruction; those of `BY_DIRECTION` by direction.
        step: number of updates of the parameters; None if unknown.
        parameters: number of parameters; None if unknown.
        supervised: directions that the model was trained on; None if unknown.
        metrics_file: `metrics.jsonl` of the training run; None if there is none.
        vocabulary: vocabulary of the model; None if unknown.
        decoding_overrides: decoding settings that flags changed from the run's values; None if
            unknown.
        unknown_training: note for results if `supervised` is None.
        obtained: participle for messages on how the translations are obtained.
        check_directions: raises a `UserError` if the system has no translation of a direction, and
            warns of directions for which its search does not suit.
    """

    name: str
    translate: TranslateFn
    config: Config | None
    decoding: Mapping[str, Any]
    identity: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    step: int | None = None
    parameters: int | None = None
    supervised: frozenset[Direction] | None = None
    metrics_file: Path | None = None
    vocabulary: Vocabulary | None = None
    decoding_overrides: Mapping[str, Any] | None = None
    unknown_training: str = UNKNOWN_TRAINING
    obtained: str = "translated"
    check_directions: Callable[[Sequence[Direction]], None] = lambda directions: None

    def provenance(self, directions: Sequence[Direction]) -> dict[str, Any]:
        """Return what translations depend on besides their sources: `made_by.json`.

        Args:
            directions: directions of the translations.
        """
        model = as_facts(self.config.model) if self.config else {}
        names = {"-".join(pair) for pair in directions}
        by_direction = {
            key: {name: value for name, value in self.identity[key].items() if name in names}
            for key in BY_DIRECTION
            if key in self.identity
        }
        return {"name": self.name, "model": model, **self.identity, **by_direction, **self.decoding}


def load_evaluated_model(
    run: str | Path,
    step: int | str | None = None,
    *,
    gin_files: Sequence[str] = (),
    bindings: Sequence[str] = (),
    beam_size: int | None = None,
    pivot: str | None = None,
    pivot_prompt: bool = False,
    context: int | None = None,
) -> tuple[EvaluatedModel, tuple[str, ...]]:
    """Open a run directory for evaluation.

    Args:
        run: the run directory; nothing else is needed.
        step: step of a checkpoint, "best", "average", or None for the newest.
        gin_files: gin files read after the run's configuration. `Data.instruction` sets the layout
            of the language tags in decoding, e.g. 'none' omits the tags of training.
        bindings: `Section.field=value`, read last.
        beam_size: beam size, as in `Translator.translate`.
        pivot: pivot language, as in `Translator.translate`.
        pivot_prompt: as in `Translator.translate`.
        context: document context, as in `Translator.translate`; see `with_documents`.

    Returns:
        The model to evaluate, and its languages.

    Raises:
        UserError: if the folder is not a run or does not have the checkpoint, or if the model does
            not have the pivot language.
    """
    from mnmt_jax.decoding.context_job import create_job
    from mnmt_jax.decoding.search_settings import describe_search
    from mnmt_jax.decoding.translator import Translator

    run_dir = RunDirectory.open(run)
    translator = Translator.load(run_dir, step, gin_files=gin_files, bindings=bindings)
    search: dict[str, Any] = {
        "beam_size": beam_size,
        "pivot": pivot,
        "pivot_prompt": pivot_prompt,
        "context": context,
    }
    job = create_job(translator, **search)
    config = dataclasses.replace(run_dir.config(gin_files, bindings), decode=job.decode)

    def translate(lines: Sequence[str], direction: Direction) -> list[TranslatedSentence]:
        source, target = direction
        translations = translator.translate_nbest(lines, source=source, target=target, **search)
        return list(map(_translated_sentence, translations))

    checkpoint_prefix = f"{step}, " if isinstance(step, str) else ""
    trained_config = run_dir.config()
    extra_settings = _extra_settings(job, config, trained_config)
    run_settings = dataclasses.asdict(trained_config.decode)
    settings = dataclasses.asdict(config.decode)
    overrides = {name: value for name, value in settings.items() if run_settings[name] != value}
    trained = run_dir.trained_directions()
    evaluated_model = EvaluatedModel(
        name=(run_dir.location if run_dir.mirror else run_dir.path.resolve()).name,
        translate=translate,
        config=config,
        decoding={
            "checkpoint": f"{checkpoint_prefix}step {translator.step}",
            **describe_search(config.decode),
            **extra_settings,
        },
        identity=translator.identity,
        step=translator.step,
        parameters=translator.parameters,
        supervised=trained,
        metrics_file=run_dir.metrics_file,
        vocabulary=translator.vocabulary,
        decoding_overrides={**overrides, **extra_settings},
        check_directions=functools.partial(_warn_of_untrained_reverse, job, trained),
    )
    return evaluated_model, translator.languages


def _warn_of_untrained_reverse(
    job: TranslationJob, trained: frozenset[Direction] | None, directions: Sequence[Direction]
) -> None:
    """Warn if translations are ranked by directions that the model was not trained on."""
    if job.decode.utility != "backward" or trained is None:
        return
    languages = job.pretrained.languages
    known = [(find_code(s, languages) or s, find_code(t, languages) or t) for s, t in directions]
    reverse = dict.fromkeys(
        (target, source) for pair in known for source, target in _searched_directions(job, pair)
    )
    if untrained := ["-".join(pair) for pair in reverse if pair not in trained]:
        warn(
            f"Decode.utility='backward' ranks by {join_names(untrained, shown=4)}, which the model "
            "was not trained on"
        )


def _searched_directions(job: TranslationJob, direction: Direction) -> list[Direction]:
    """Return the directions of the searches that translate a direction."""
    source, target = direction
    if job.pivot is None or job.pivot in direction:
        return [direction]
    return [(source, job.pivot), (source if job.pivot_prompt else job.pivot, target)]


def _translated_sentence(translation: Translation) -> TranslatedSentence:
    return TranslatedSentence(
        translation.text,
        translation.truncated,
        translation.pivot,
        translation.unknown_characters,
        translation.without_context,
    )


def _extra_settings(job: TranslationJob, config: Config, trained_config: Config) -> dict[str, Any]:
    """Return the settings of a translation that are not fields of `Decode`.

    Args:
        job: the translation.
        config: configuration of the translation.
        trained_config: configuration of the training, whose instruction is not listed.
    """
    from mnmt_jax.decoding.context_job import ContextJob

    settings: dict[str, Any] = {} if job.pivot is None else {"pivot": job.pivot}
    if job.pivot_prompt:
        settings["pivot_prompt"] = True
    if isinstance(job, ContextJob):
        settings["context"] = job.context.pieces
    if config.data.instruction != trained_config.data.instruction:
        settings["instruction"] = config.data.instruction
    return settings


def with_documents(model: EvaluatedModel, benchmark: Benchmark) -> EvaluatedModel:
    """Return a model that translates the documents of a benchmark, each with its own context.

    Args:
        model: a model that translates with context, which a blank line ends.
        benchmark: test sentences of documents.

    Raises:
        UserError: if the corpus has no documents.
    """
    sizes = {pair: benchmark.document_sizes(pair) for pair in benchmark.directions}

    def translate(lines: Sequence[str], direction: Direction) -> list[TranslatedSentence]:
        remaining = iter(lines)
        spaced = [
            line for size in sizes[direction] for line in (*itertools.islice(remaining, size), "")
        ]
        outputs = model.translate(spaced, direction)
        return [output for line, output in zip(spaced, outputs, strict=True) if line]

    digests = {"-".join(pair): short_digest(repr(counts)) for pair, counts in sizes.items()}
    identity = {**model.identity, DOCUMENTS: digests}
    return dataclasses.replace(model, translate=translate, identity=identity)
