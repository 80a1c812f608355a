"""Inputs of an analysis: runs, and sentences from a task or a file."""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnmt_jax.commands.corpus_flags import (
    benchmark_corpus,
    check_direction_items,
    parse_directions,
    split_list,
)
from mnmt_jax.commands.text_files import read_lines
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.language_codes import find_code, match_code

if TYPE_CHECKING:
    from mnmt_jax.analysis.teacher_forcing import ForcedSentences
    from mnmt_jax.config.sections import Config
    from mnmt_jax.decoding.translator import Translator
    from mnmt_jax.evaluation.benchmark import Benchmark
    from mnmt_jax.vocabulary.languages import Direction

TEST = "test"


def model_facts(
    run: str | Path, checkpoint: str, identity: Mapping[str, Any], parameters: int | None
) -> dict[str, Any]:
    """Return the facts by which a model is known.

    Args:
        run: its directory.
        checkpoint: which one is read.
        identity: of the model, e.g. `Translator.identity`.
        parameters: their number; None if unknown.
    """
    return {
        "run": Path(run).resolve().name,
        "parameters_fingerprint": identity["parameters"],
        "parameter_count": parameters,
        "checkpoint": checkpoint,
    }


def translator_facts(run: str | Path, translator: Translator) -> dict[str, Any]:
    """Return the facts by which a translator's model is known."""
    checkpoint = f"step {translator.step}"
    return model_facts(run, checkpoint, translator.identity, translator.parameters)


def analysis_facts(
    flags: argparse.Namespace,
    config: Config,
    model: Mapping[str, Any],
    others: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return the facts of what is analysed.

    Args:
        flags: as parsed and checked.
        config: of the run.
        model: from `model_facts`.
        others: further runs and checkpoints; None for kinds that take one.

    Raises:
        UserError: if a finished analysis of something else would be replaced.
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
        "settings": {**settings, "instruction": config.data.instruction},
        **({"task": task} if task else {}),
        **({} if others is None else {"others": list(others)}),
    }
    if not flags.overwrite:
        check_same_analysis(flags.output, facts)
    return facts


def uses_model_output(flags: argparse.Namespace) -> bool:
    """Return whether targets are what the model itself translates."""
    return bool(flags.input) or flags.targets == "output"


def forced_sentences(
    flags: argparse.Namespace, translator: Translator, split: str = TEST
) -> list[ForcedSentences]:
    """Return the sentences that the flags name.

    Raises:
        UserError: if there are none.
    """
    from mnmt_jax.analysis.teacher_forcing import make_forced_sentences
    from mnmt_jax.runs.run_directory import RunDirectory

    if flags.input:
        read = read_lines(flags.input, {} if flags.on_bad_line == "drop" else None)
        lines = list(itertools.islice(read, flags.limit or None))
        codes = translator.languages
        source = match_code(flags.source, codes, "--source")
        pair = (source, match_code(flags.target, codes, "--target"))
        found = [make_forced_sentences(translator, pair, lines, None, flags.beam_size)]
    else:
        benchmark = benchmark_of(flags, translator.languages, split)
        trained = RunDirectory.open(translator.run).trained_directions()
        found = []
        for pair in directions_of(flags.directions, benchmark, trained):
            texts = benchmark.texts(pair)
            references = None if uses_model_output(flags) else texts.references
            found.append(
                make_forced_sentences(translator, pair, texts.sources, references, flags.beam_size)
            )
    kept = [forced for forced in found if forced.examples]
    if not kept:
        raise UserError(f"{flags.input or flags.task}: no sentence that is not blank")
    return kept


def source_texts(every: Sequence[ForcedSentences]) -> set[tuple[str, str]]:
    """Return the sources of sentences, each once, with their language."""
    return {(forced.direction[0], text) for forced in every for text in forced.sources}


def check_same_sentences(
    one: Mapping[str, Sequence[ForcedSentences]],
    other: Mapping[str, Sequence[ForcedSentences]],
    names: Sequence[Mapping[str, Any]],
) -> None:
    """Check that two models read the same sentences.

    Args:
        one: sentences of each split.
        other: of the other model.
        names: facts of both, with `run` and `checkpoint`.

    Raises:
        UserError: if they do not.
    """
    for split, every in one.items():
        first, second = (
            [(forced.direction, forced.sources) for forced in found]
            for found in (every, other[split])
        )
        if first != second:
            known, wrong = (f"{each['run']} ({each['checkpoint']})" for each in names)
            raise UserError(
                f"--run: {wrong} does not read the {split} sentences that {known} reads; name "
                "directions that both have with --directions"
            )


def sentence_facts(
    flags: argparse.Namespace, splits: Mapping[str, Sequence[ForcedSentences]]
) -> dict[str, Any]:
    """Return the facts of what is read of a task.

    Args:
        flags: as parsed.
        splits: sentences of each split.

    Returns:
        `read_directions`, in the order of letters; `sentences_fingerprint` and `read_sentences` of
        each split; `limit`.

    Raises:
        UserError: if a finished analysis of other directions or sentences would be replaced.
    """
    from mnmt_jax.analysis.analysis_files import check_same_analysis

    directions = {"-".join(one.direction) for every in splits.values() for one in every}
    facts: dict[str, Any] = {"read_directions": sorted(directions)}
    facts["sentences_fingerprint"] = {split: _digest(every) for split, every in splits.items()}
    if not flags.overwrite:
        check_same_analysis(flags.output, facts)
    counts = {split: sum(len(one.sources) for one in every) for split, every in splits.items()}
    return {**facts, "read_sentences": counts, "limit": flags.limit}


def _digest(every: Sequence[ForcedSentences]) -> str:
    """Return a hash of sentences, 16 hexadecimal digits."""
    texts = [[one.direction, one.sources, one.targets] for one in every]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


def benchmark_of(
    flags: argparse.Namespace, languages: Sequence[str], split: str = TEST
) -> Benchmark:
    """Return the sentences of a task's split in the languages of the model."""
    from mnmt_jax.evaluation.benchmark import Benchmark

    corpus, wanted = benchmark_corpus(flags, (split,))
    kept = [code for code in wanted if find_code(code, languages) is not None]
    chosen = {"languages": kept, "limit": flags.limit, "candidates": languages, "split": split}
    return Benchmark(flags.task, corpus, **chosen)


def directions_of(
    text: str | None, benchmark: Benchmark, trained: frozenset[Direction] | None
) -> tuple[Direction, ...]:
    """Return the directions that a flag names.

    Raises:
        UserError: if one of a list has no sentences, or a word leaves none.
    """
    from mnmt_jax.evaluation.benchmark import WHICH, choose_directions

    if text is None or text in WHICH:
        return choose_directions(benchmark.directions, text or "all", trained)
    languages = dict.fromkeys(code for pair in benchmark.directions for code in pair)
    found = parse_directions(text, languages, _other_words(WHICH))
    if missing := [pair for pair in found if pair not in benchmark.directions]:
        raise UserError(
            f"--directions: task '{benchmark.task}' has no {benchmark.split} sentences "
            f"for {'-'.join(missing[0])}"
        )
    return found


def check_directions(text: str | None) -> None:
    """Check that a flag names directions, before there are any.

    Raises:
        UserError: if it is neither a word for some nor a list.
    """
    from mnmt_jax.evaluation.benchmark import WHICH

    if text is not None and text not in WHICH:
        check_direction_items(text, _other_words(WHICH))


def _other_words(which: Sequence[str]) -> str:
    return f"; or write {', '.join(which)}"


def parse_layers(text: str | None, least: int = 1) -> list[int]:
    """Return the layers of a list.

    Args:
        text: of the flag.
        least: number that may stand in it, 0 or 1.

    Raises:
        UserError: if an item is no number from that on.
    """
    items = split_list(text)
    if wrong := [item for item in items if not item.isdecimal() or int(item) < least]:
        raise UserError(
            f"--layers={text}: {wrong[0]!r} must be a whole number, at least {least}, or leave it "
            "out for all"
        )
    return [int(item) for item in items]
