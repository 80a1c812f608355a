"""What an analysis is of: runs, and the sentences that a task or a file gives."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnmt_jax.commands.corpus_arguments import (
    benchmark_corpus,
    check_direction_items,
    listed_directions,
    split_list,
)
from mnmt_jax.commands.text_files import read_lines
from mnmt_jax.errors import UserError
from mnmt_jax.language_codes import find_code, match_code

if TYPE_CHECKING:
    from mnmt_jax.analysis.forced import Forced
    from mnmt_jax.config.sections import Config
    from mnmt_jax.decoding.translator import Translator
    from mnmt_jax.evaluation.benchmark import Benchmark
    from mnmt_jax.languages import Direction

TEST = "test"


def origin(
    flags: argparse.Namespace,
    config: Config,
    identity: Mapping[str, Any],
    checkpoint: str,
    others: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Returns the facts of what is analysed.

    Args:
        flags: as parsed.
        config: of the run.
        identity: of the model.
        checkpoint: what is read of the run.
        others: further runs and checkpoints; None for kinds that take one.

    Raises:
        UserError: if a finished analysis of something else would be replaced.
    """
    from mnmt_jax.analysis.analysis_files import check_finished

    task = Path(flags.input).name if flags.input else flags.task
    facts = {
        "analysis": flags.kind,
        "run": Path(flags.run).resolve().name,
        "parameters": identity["parameters"],
        "layout": config.model.layout,
        "checkpoint": checkpoint,
        **({"task": task} if task else {}),
        **({} if others is None else {"others": list(others)}),
    }
    if not flags.overwrite:
        check_finished(flags.output, facts)
    return facts


def own_output(flags: argparse.Namespace) -> bool:
    """Returns whether targets are what the model itself translates."""
    return bool(flags.input) or flags.targets == "output"


def forced_sentences(
    flags: argparse.Namespace, translator: Translator, split: str = TEST
) -> list[Forced]:
    """Returns the sentences that the flags name.

    Raises:
        UserError: if there are none.
    """
    from mnmt_jax.analysis.forced import force
    from mnmt_jax.runs.run_directory import RunDirectory

    if flags.input:
        lines = list(read_lines(flags.input, [] if flags.on_bad_line == "drop" else None))
        codes = translator.languages
        source = match_code(flags.source, codes, "--source")
        pair = (source, match_code(flags.target, codes, "--target"))
        found = [force(translator, pair, lines[: flags.limit or None], None, flags.beam_size)]
    else:
        benchmark = benchmark_of(flags, translator.languages, split)
        trained = RunDirectory.open(translator.run).trained_directions()
        found = []
        for pair in directions_of(flags.directions, benchmark, trained):
            texts = benchmark.texts(pair)
            references = None if own_output(flags) else texts.references
            found.append(force(translator, pair, texts.sources, references, flags.beam_size))
    kept = [forced for forced in found if forced.examples]
    if not kept:
        raise UserError(f"{flags.input or flags.task}: no sentence that is not blank")
    return kept


def source_texts(every: Sequence[Forced]) -> set[tuple[str, str]]:
    """Returns the sources of sentences, each once, with their language."""
    return {(forced.direction[0], text) for forced in every for text in forced.sources}


def check_same_sentences(
    one: Mapping[str, Sequence[Forced]],
    other: Mapping[str, Sequence[Forced]],
    names: Sequence[Mapping[str, Any]],
) -> None:
    """Checks that two models read the same sentences.

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


def sentences_read(
    flags: argparse.Namespace, splits: Mapping[str, Sequence[Forced]]
) -> dict[str, Any]:
    """Returns the facts of what is read of a task.

    Args:
        flags: as parsed.
        splits: sentences of each split.

    Returns:
        `read_directions`, in the order of letters; `read_sentences` of each split; `limit`.

    Raises:
        UserError: if a finished analysis of other directions would be replaced.
    """
    from mnmt_jax.analysis.analysis_files import check_finished

    directions = {"-".join(one.direction) for every in splits.values() for one in every}
    facts: dict[str, Any] = {"read_directions": sorted(directions)}
    if not flags.overwrite:
        check_finished(flags.output, facts)
    counts = {split: sum(len(one.sources) for one in every) for split, every in splits.items()}
    return {**facts, "read_sentences": counts, "limit": flags.limit}


def benchmark_of(
    flags: argparse.Namespace, languages: Sequence[str], split: str = TEST
) -> Benchmark:
    """Returns the sentences of a task's split in the languages of the model."""
    from mnmt_jax.evaluation.benchmark import Benchmark

    corpus, wanted = benchmark_corpus(flags, (split,))
    kept = [code for code in wanted if find_code(code, languages) is not None]
    chosen = {"languages": kept, "limit": flags.limit, "candidates": languages, "split": split}
    return Benchmark(flags.task, corpus, **chosen)


def directions_of(
    text: str | None, benchmark: Benchmark, trained: frozenset[Direction] | None
) -> tuple[Direction, ...]:
    """Returns the directions that a flag names.

    Raises:
        UserError: if one of a list has no sentences, or a word leaves none.
    """
    from mnmt_jax.evaluation.benchmark import WHICH, choose_directions

    if text is None or text in WHICH:
        return choose_directions(benchmark.directions, text or "all", trained)
    languages = dict.fromkeys(code for pair in benchmark.directions for code in pair)
    found = listed_directions(text, languages, _other_words(WHICH))
    if missing := [pair for pair in found if pair not in benchmark.directions]:
        raise UserError(
            f"--directions: task '{benchmark.task}' has no {benchmark.split} sentences "
            f"for {'-'.join(missing[0])}"
        )
    return found


def check_directions(text: str | None) -> None:
    """Checks that a flag names directions, before there are any.

    Raises:
        UserError: if it is neither a word for some nor a list.
    """
    from mnmt_jax.evaluation.benchmark import WHICH

    if text is not None and text not in WHICH:
        check_direction_items(text, _other_words(WHICH))


def _other_words(which: Sequence[str]) -> str:
    return f"; or write {', '.join(which)}"


def layer_numbers(text: str | None, least: int = 1) -> list[int]:
    """Returns the layers of a list.

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
