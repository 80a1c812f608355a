"""Inputs of an analysis: runs, and sentences from a task or a file."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnmt_jax.commands.benchmark_corpus import benchmark_corpus
from mnmt_jax.commands.common_flags import check_distinct, list_of, split_list
from mnmt_jax.commands.direction_flags import (
    benchmark_codes,
    check_direction_items,
    parse_directions,
    to_corpus_codes,
)
from mnmt_jax.commands.line_events import warn_bad_lines
from mnmt_jax.commands.text_files import BadLines, read_lines
from mnmt_jax.errors import UserError
from mnmt_jax.files.file_digest import short_digest
from mnmt_jax.vocabulary.language_codes import match_code

if TYPE_CHECKING:
    from mnmt_jax.analysis.teacher_forcing import ForcedSentences
    from mnmt_jax.config.sections import Config
    from mnmt_jax.decoding.translator import Translator
    from mnmt_jax.evaluation.benchmark import Benchmark
    from mnmt_jax.vocabulary.language_codes import Direction

TEST = "test"


def label_runs(runs: Sequence[str]) -> dict[str, str]:
    """Return a label of each run: the last parts of its path, as few as tell the runs apart.

    Raises:
        UserError: if two runs are the same folder.
    """
    folders = [Path(run).resolve() for run in runs]
    for number, folder in enumerate(folders):
        if folder in folders[:number]:
            raise UserError(f"--run={runs[number]}: is given twice; remove one")
    for length in range(1, max(len(folder.parts) for folder in folders) + 1):
        labels = ["/".join(folder.parts[-length:]) for folder in folders]
        if len(set(labels)) == len(labels):
            break
    return dict(zip(runs, labels, strict=True))


def model_facts(
    label: str, checkpoint: str, identity: Mapping[str, Any], parameters: int | None
) -> dict[str, Any]:
    """Return the facts that identify a model.

    Args:
        label: name of the run, from `label_runs`.
        checkpoint: name of the checkpoint.
        identity: identity of the model, e.g. `Translator.identity`.
        parameters: number of parameters; None if unknown.
    """
    return {
        "run": label,
        "parameters_fingerprint": identity["parameters"],
        "parameter_count": parameters,
        "checkpoint": checkpoint,
    }


def translator_facts(
    label: str, translator: Translator, checkpoint: int | str | None
) -> dict[str, Any]:
    """Return the facts that identify a translator's model.

    Args:
        label: name of the run, from `label_runs`.
        translator: the translator.
        checkpoint: its checkpoint as `Translator.load` takes it. The best one is known by its
            step; an average is not the checkpoint of its step.

    Raises:
        UserError: if it is an ensemble, or has parameters that are not numbers.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    from mnmt_jax.runs.parameters import AVERAGE

    if translator.config.decode.ensemble:
        raise UserError("Decode.ensemble: one model at a time is analysed; leave it out")
    for leaf in jax.tree.leaves(translator.inference_model.params):
        values = np.asarray(leaf)
        if jnp.issubdtype(values.dtype, jnp.floating) and np.isnan(values).any():
            raise UserError(f"{label}: has parameters that are not numbers; use another checkpoint")
    prefix = f"{AVERAGE}, " if checkpoint == AVERAGE else ""
    name = f"{prefix}step {translator.step}"
    return model_facts(label, name, translator.identity, translator.parameters)


def analysis_facts(
    flags: argparse.Namespace,
    config: Config,
    model: Mapping[str, Any],
    others: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return the facts that identify an analysis.

    Args:
        flags: parsed and checked flags.
        config: configuration of the run.
        model: facts from `model_facts`.
        others: facts of further runs and checkpoints; None for kinds that take only one.

    Raises:
        UserError: if a finished analysis of other inputs would be replaced.
    """
    from mnmt_jax.analysis.analysis_files import check_same_analysis
    from mnmt_jax.design.method import as_facts

    task = Path(flags.input).name if flags.input else flags.task
    settings = dict(flags.settings)
    if uses_model_output(flags):
        settings["decoding"] = as_facts(config.decode)
    facts = {
        "analysis": flags.kind,
        **model,
        "layout": config.model.layout,
        **({"note": flags.note} if flags.note else {}),
        "settings": {**settings, "instruction": config.data.instruction},
        **({"task": task} if task else {}),
        **({} if others is None else {"others": list(others)}),
    }
    if not flags.overwrite:
        check_same_analysis(flags.output, facts)
    return facts


def uses_model_output(flags: argparse.Namespace) -> bool:
    """Return whether targets are translations by the model itself."""
    return bool(flags.input) or flags.targets == "output"


def forced_sentences(
    flags: argparse.Namespace, translator: Translator, split: str = TEST
) -> list[ForcedSentences]:
    """Return the sentences that the flags name.

    Raises:
        UserError: if no sentences remain.
    """
    from mnmt_jax.analysis.teacher_forcing import make_forced_sentences
    from mnmt_jax.runs.run_directory import RunDirectory

    if flags.input:
        bad_lines: BadLines | None = {} if flags.on_bad_line == "drop" else None
        input_lines = read_lines(flags.input, bad_lines, language=flags.source)
        lines = list(itertools.islice(input_lines, flags.limit or None))
        warn_bad_lines(bad_lines or {})
        codes = translator.languages
        source = match_code(flags.source, codes, "--source")
        pair = (source, match_code(flags.target, codes, "--target"))
        candidates = [make_forced_sentences(translator, pair, lines, None, flags.beam_size)]
    else:
        benchmark = benchmark_of(flags, translator.languages, split)
        trained = RunDirectory.open(translator.run).trained_directions()
        trained = trained_in_benchmark_codes(benchmark, trained, translator.languages)
        candidates = []
        for pair in directions_of(flags.directions, benchmark, trained):
            texts = benchmark.texts(pair)
            references = None if uses_model_output(flags) else texts.references
            candidates.append(
                make_forced_sentences(translator, pair, texts.sources, references, flags.beam_size)
            )
    sentences = [forced for forced in candidates if forced.examples]
    if not sentences:
        raise UserError(f"{flags.input or flags.task}: all sentences are blank")
    return sentences


def source_texts(sentences: Sequence[ForcedSentences]) -> set[tuple[str, str]]:
    """Return the distinct sources of sentences, with their language."""
    return {(forced.direction[0], text) for forced in sentences for text in forced.sources}


def check_same_sentences(
    first: Mapping[str, Sequence[ForcedSentences]],
    second: Mapping[str, Sequence[ForcedSentences]],
    names: Sequence[Mapping[str, Any]],
) -> None:
    """Check that two models read the same sentences.

    Args:
        first: sentences by split.
        second: sentences of the other model by split.
        names: facts of both models, with `run` and `checkpoint`.

    Raises:
        UserError: if they do not.
    """
    for split, sentences in first.items():
        first_sources, second_sources = (
            [(forced.direction, forced.sources) for forced in side]
            for side in (sentences, second[split])
        )
        if first_sources != second_sources:
            first_name, second_name = (f"{facts['run']} ({facts['checkpoint']})" for facts in names)
            raise UserError(
                f"--run: {second_name} does not have the {split} sentences of {first_name}; choose "
                "directions that both have with --directions"
            )


def sentence_facts(
    flags: argparse.Namespace, splits: Mapping[str, Sequence[ForcedSentences]]
) -> dict[str, Any]:
    """Return the facts that identify the sentences of an analysis.

    Args:
        flags: parsed flags.
        splits: sentences by split.

    Returns:
        `read_directions`, sorted; `sentences_fingerprint` and `read_sentences` by split; `limit`.

    Raises:
        UserError: if a finished analysis of other directions or sentences would be replaced.
    """
    from mnmt_jax.analysis.analysis_files import check_same_analysis

    directions = {
        "-".join(forced.direction) for sentences in splits.values() for forced in sentences
    }
    facts: dict[str, Any] = {"read_directions": sorted(directions)}
    facts["sentences_fingerprint"] = {
        split: _digest(sentences) for split, sentences in splits.items()
    }
    if not flags.overwrite:
        check_same_analysis(flags.output, facts)
    counts = {
        split: sum(len(forced.sources) for forced in sentences)
        for split, sentences in splits.items()
    }
    return {**facts, "read_sentences": counts, "limit": flags.limit}


def _digest(sentences: Sequence[ForcedSentences]) -> str:
    """Return a hash of sentences with 16 hexadecimal digits."""
    texts = [[forced.direction, forced.sources, forced.targets] for forced in sentences]
    return short_digest(json.dumps(texts))


def benchmark_of(
    flags: argparse.Namespace, languages: Sequence[str], split: str = TEST
) -> Benchmark:
    """Return the sentences of a task's split in the languages of the model."""
    from mnmt_jax.commands.model_benchmark import model_benchmark

    corpus, available = benchmark_corpus(flags, (split,))
    options = {"limit": flags.limit, "split": split, "quiet": split != TEST}
    benchmark = model_benchmark(flags, corpus, available, languages, **options)
    if not flags.common_to:
        return benchmark
    return benchmark.common_to(_common_languages(flags.common_to, benchmark_codes(benchmark)))


def _common_languages(text: str, codes: Sequence[str]) -> list[str]:
    """Return the codes of `--common_to`.

    Raises:
        UserError: if there are fewer than two, or one is not a language of task and model.
    """
    items = split_list(text)
    languages = list(dict.fromkeys(match_code(item, codes, "--common_to") for item in items))
    if len(languages) < 2:
        raise UserError(f"--common_to={text}: needs two languages or more, e.g. ar,he,zh")
    return languages


def trained_in_benchmark_codes(
    benchmark: Benchmark, trained: frozenset[Direction] | None, languages: Sequence[str]
) -> frozenset[Direction] | None:
    """Return training directions in the codes of a benchmark; None if they are unknown.

    Args:
        benchmark: the benchmark.
        trained: directions that a model was trained on.
        languages: codes of the model.
    """
    if trained is None:
        return None
    return frozenset(to_corpus_codes(trained, benchmark_codes(benchmark), languages))


def directions_of(
    text: str | None, benchmark: Benchmark, trained: frozenset[Direction] | None
) -> tuple[Direction, ...]:
    """Return the directions that a flag names.

    Raises:
        UserError: if a listed direction has no sentences, or a word selects none.
    """
    from mnmt_jax.evaluation.benchmark import SUBSETS, choose_directions

    if text is None or text in SUBSETS:
        return choose_directions(benchmark.directions, text or "all", trained)
    directions = parse_directions(text, benchmark_codes(benchmark), _other_words(SUBSETS))
    if missing := [pair for pair in directions if pair not in benchmark.directions]:
        raise UserError(
            f"--directions: task '{benchmark.task}' has no {benchmark.split} sentences "
            f"for {'-'.join(missing[0])}"
        )
    return directions


def check_directions(text: str | None) -> None:
    """Check the form of a flag that names directions, before the directions are known.

    Raises:
        UserError: if it is neither a known word nor a list.
    """
    from mnmt_jax.evaluation.benchmark import SUBSETS

    if text is not None and text not in SUBSETS:
        check_direction_items(text, _other_words(SUBSETS))


def _other_words(which: Sequence[str]) -> str:
    return f"; or write {', '.join(which)}"


def parse_layers(text: str | None, minimum: int = 1) -> list[int]:
    """Parse a list of layers.

    Args:
        text: value of the flag.
        minimum: smallest allowed number, 0 or 1.

    Raises:
        UserError: if an item is not a number of at least `minimum`.
    """
    items = list_of("--layers", text)
    if wrong := [item for item in items if not item.isdecimal() or int(item) < minimum]:
        raise UserError(
            f"--layers={text}: {wrong[0]!r} must be a whole number, at least {minimum}; omit "
            "--layers for all layers"
        )
    layers = [int(item) for item in items]
    check_distinct("--layers", layers)
    return layers
