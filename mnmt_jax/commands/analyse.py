"""Analyses a model: attribution, attention maps, ablation and scales of language branches."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnmt_jax.commands.arguments import (
    CommandParser,
    add_beam_size,
    add_configuration,
    add_step,
    import_modules,
    parse_command_line,
    positive,
)
from mnmt_jax.commands.corpus_arguments import (
    add_own_files,
    benchmark_corpus,
    check_limit,
    listed_directions,
    refuse_flags,
    split_list,
)
from mnmt_jax.commands.text_files import read_lines
from mnmt_jax.errors import UserError

if TYPE_CHECKING:
    from mnmt_jax.analysis.forced import Forced
    from mnmt_jax.config.sections import Config
    from mnmt_jax.decoding.translator import Translator
    from mnmt_jax.evaluation.benchmark import Benchmark
    from mnmt_jax.languages import Direction

# Kind of analysis -> sentences per direction by default (0: all), and the flags that are its own.
_LIMITS = {"attribution": 8, "attention": 1, "ablation": 0, "scales": 0}
_OWN_FLAGS = {
    "layers": ("attribution", "attention"),
    "targets": ("attribution", "attention"),
    "nodes": ("attribution",),
    "by_head": ("attention",),
    "supervised_targets": ("ablation",),
    "beam_size": ("attribution", "attention", "ablation"),
    "limit": ("attribution", "attention", "ablation"),
    "directions": ("attribution", "attention", "ablation"),
    "task": ("attribution", "attention", "ablation"),
    "input": ("attribution", "attention"),
}
_CORPUS_FLAGS = ("parallel", "tsv", "bitext", "languages", "splits")


def make_parser() -> CommandParser:
    """Makes the parser of the command line."""
    parser = CommandParser(description=__doc__)
    parser.add_argument(
        "kind",
        choices=tuple(_LIMITS),
        help="attribution and ablation of language branches, their scales, or attention maps",
    )
    parser.add_argument("--run", required=True, help="directory of a trained or imported model")
    parser.add_argument("--output", required=True, help="folder of analysis.json and analysis.html")
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace a finished analysis of another kind, run or task",
    )
    sentences = parser.add_argument_group("sentences")
    sentences.add_argument(
        "--task", help="corpus or mixture whose test split is read; files of your own: their name"
    )
    sentences.add_argument(
        "--directions",
        help="all, supervised (trained on), zero_shot, or e.g. de-fr,fr-de; default: all",
    )
    sentences.add_argument(
        "--limit",
        type=int,
        help="sentences per direction, 0: all; default: of a task 8 for attribution, 1 for "
        "attention; else 0",
    )
    sentences.add_argument("--input", help="UTF-8 text to read in the place of --task")
    sentences.add_argument("--source", help="code of the language of --input")
    sentences.add_argument("--target", help="code of the language wanted of --input")
    sentences.add_argument(
        "--targets",
        choices=("reference", "output"),
        help="what the target is forced to be; default: reference, for --input the model's output",
    )
    drawn = parser.add_argument_group("what is drawn")
    drawn.add_argument("--layers", metavar="LIST", help="counted from 1, e.g. 8,9; default: all")
    drawn.add_argument(
        "--nodes",
        type=positive,
        help="of Gauss-Legendre quadrature in attribution; default: 50, as in Captum",
    )
    drawn.add_argument(
        "--by_head", action="store_const", const=True, help="attention of each head, not the mean"
    )
    drawn.add_argument(
        "--supervised_targets",
        metavar="LIST",
        help="of source languages, the language whose references zero-shot output is scored by "
        "besides, e.g. it-nl,nl-de; default: those the run was trained on",
    )
    add_beam_size(parser)
    add_step(parser)
    add_own_files(parser)
    add_configuration(parser)
    return parser


def main() -> None:
    """Runs the command."""
    flags, gin_files, bindings = parse_command_line(make_parser())
    _check_flags(flags)
    import_modules(flags.module_import)
    from mnmt_jax.analysis.analysis_files import check_analysis_folder, write_analysis
    from mnmt_jax.analysis.pictures import draw, page_title

    check_analysis_folder(flags.output)
    made = {
        "attribution": _of_sentences,
        "attention": _of_sentences,
        "ablation": _ablation,
        "scales": _scales,
    }[flags.kind](flags, gin_files, bindings)
    page = write_analysis(flags.output, made, page_title(made), draw(made))
    print(f"Page: {page}", file=sys.stderr)


def _check_flags(flags: argparse.Namespace) -> None:
    """Refuses flags that the kind or the other flags make meaningless.

    Raises:
        UserError: if there are any, or some are missing.
    """
    for flag, kinds in _OWN_FLAGS.items():
        if flags.kind not in kinds:
            refuse_flags(flags, [flag], f"analyse {flags.kind}")
    if flags.kind == "scales":
        refuse_flags(flags, (*_CORPUS_FLAGS, "on_bad_line"), "analyse scales")
    if flags.input:
        refuse_flags(flags, _CORPUS_FLAGS, "--input")
        refuse_flags(flags, ["task", "directions"], "--input")
        if flags.targets == "reference":
            raise UserError("--targets=reference: --input has none; leave it out")
        if not (flags.source and flags.target):
            raise UserError("--input needs --source and --target, codes of languages")
    else:
        refuse_flags(flags, ["source", "target"], "a task; name directions with --directions")
        if flags.kind != "scales" and not flags.task:
            other = " or --input" if flags.kind in _OWN_FLAGS["input"] else ""
            raise UserError(f"analyse {flags.kind} needs --task{other}")
    if flags.limit is None:
        flags.limit = 0 if flags.input else _LIMITS[flags.kind]
    check_limit(flags.limit)


def _of_sentences(
    flags: argparse.Namespace, gin_files: Sequence[str], bindings: Sequence[str]
) -> dict[str, Any]:
    """Returns the facts of what is read of sentences."""
    from mnmt_jax.analysis.attention_maps import attention_maps
    from mnmt_jax.analysis.attribution import NODES, attributions
    from mnmt_jax.analysis.branches import branch_layers
    from mnmt_jax.analysis.forced import in_float32
    from mnmt_jax.decoding.translator import Translator

    layers = _numbers(flags.layers)
    translator = Translator.load(flags.run, flags.step, gin_files=gin_files, bindings=bindings)
    system = in_float32(translator.system)
    if flags.kind == "attribution":
        branch_layers(system.model)
    origin = _origin(flags, translator.config, translator.identity, f"step {translator.step}")
    every = _forced(flags, translator)
    longest = max(translator.config.decode.buckets)
    if flags.kind == "attribution":
        found = attributions(system, every, longest, layers, flags.nodes or NODES)
    else:
        found = attention_maps(system, every, longest, layers, by_head=bool(flags.by_head))
    targets = "output" if _own_output(flags) else "reference"
    return {**origin, "targets": targets, **found}


def _scales(
    flags: argparse.Namespace, gin_files: Sequence[str], bindings: Sequence[str]
) -> dict[str, Any]:
    """Returns the facts of the branches' scales."""
    from mnmt_jax.analysis.scales import branch_scales
    from mnmt_jax.decoding.translator import Translator

    translator = Translator.load(flags.run, flags.step, gin_files=gin_files, bindings=bindings)
    system = translator.system
    origin = _origin(flags, translator.config, translator.identity, f"step {translator.step}")
    return {**origin, **branch_scales(system.model, system.params)}


def _ablation(
    flags: argparse.Namespace, gin_files: Sequence[str], bindings: Sequence[str]
) -> dict[str, Any]:
    """Returns the facts of the model with and without its branches."""
    from mnmt_jax.analysis.ablation import (
        OFF,
        ON,
        Ablated,
        ablate,
        check_branches,
        supervised_targets,
    )
    from mnmt_jax.evaluation.evaluate import load_subject
    from mnmt_jax.runs.run_directory import RunDirectory

    check_branches(RunDirectory.open(flags.run).config(gin_files, bindings))
    (on, languages), (off, _) = (
        load_subject(
            flags.run,
            flags.step,
            gin_files=gin_files,
            bindings=[*bindings, switch],
            beam_size=flags.beam_size,
        )
        for switch in (ON, OFF)
    )
    ablated = Ablated(on, off, languages)
    origin = _origin(flags, on.config, on.identity, on.decoding["checkpoint"])
    benchmark = _benchmark(flags, ablated.languages)
    directions = _directions(flags.directions, benchmark, ablated.on.supervised)
    if flags.supervised_targets:
        pairs = listed_directions(flags.supervised_targets, ablated.languages)
        targets = supervised_targets(pairs, pairs)
    else:
        targets = supervised_targets(benchmark.directions, ablated.on.supervised)
    found = ablate(
        ablated,
        benchmark,
        Path(flags.output),
        directions=directions,
        targets=targets,
        overwrite=flags.overwrite,
    )
    return {**origin, "decoding": dict(on.decoding), **found}


def _origin(
    flags: argparse.Namespace, config: Config, identity: Mapping[str, Any], checkpoint: str
) -> dict[str, Any]:
    """Returns the facts of what is analysed.

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
    }
    if not flags.overwrite:
        check_finished(flags.output, facts)
    return facts


def _own_output(flags: argparse.Namespace) -> bool:
    return bool(flags.input) or flags.targets == "output"


def _forced(flags: argparse.Namespace, translator: Translator) -> list[Forced]:
    """Returns the sentences that the flags name."""
    from mnmt_jax.analysis.forced import force
    from mnmt_jax.runs.run_directory import RunDirectory

    if flags.input:
        lines = list(read_lines(flags.input, [] if flags.on_bad_line == "drop" else None))
        pair = (flags.source, flags.target)
        found = [force(translator, pair, lines[: flags.limit or None], None, flags.beam_size)]
    else:
        benchmark = _benchmark(flags, translator.languages)
        trained = RunDirectory.open(flags.run).trained_directions()
        found = []
        for pair in _directions(flags.directions, benchmark, trained):
            texts = benchmark.texts(pair)
            references = None if _own_output(flags) else texts.references
            found.append(force(translator, pair, texts.sources, references, flags.beam_size))
    kept = [forced for forced in found if forced.examples]
    if not kept:
        raise UserError(f"{flags.input or flags.task}: no sentence that is not blank")
    return kept


def _benchmark(flags: argparse.Namespace, languages: Sequence[str]) -> Benchmark:
    """Returns the test sentences of a task in the languages of the model."""
    from mnmt_jax.evaluation.benchmark import Benchmark

    corpus, wanted = benchmark_corpus(flags)
    kept = [code for code in wanted if code in languages]
    return Benchmark(flags.task, corpus, languages=kept, limit=flags.limit, candidates=languages)


def _directions(
    text: str | None, benchmark: Benchmark, trained: frozenset[Direction] | None
) -> tuple[Direction, ...]:
    """Returns the directions that a flag names.

    Raises:
        UserError: if one of a list has no test sentences, or a word leaves none.
    """
    from mnmt_jax.evaluation.benchmark import WHICH, choose_directions

    if text is None or text in WHICH or "-" not in text:
        return choose_directions(benchmark.directions, text or "all", trained)
    languages = dict.fromkeys(code for pair in benchmark.directions for code in pair)
    found = listed_directions(text, languages, f"; or write {', '.join(WHICH)}")
    if missing := [pair for pair in found if pair not in benchmark.directions]:
        raise UserError(
            f"--directions: task '{benchmark.task}' has no test sentences for "
            f"{'-'.join(missing[0])}"
        )
    return found


def _numbers(text: str | None) -> list[int]:
    """Returns the layers of a list.

    Raises:
        UserError: if an item is no number from 1.
    """
    try:
        return [positive(item) for item in split_list(text)]
    except argparse.ArgumentTypeError as error:
        raise UserError(f"--layers={text}: {error}") from error
