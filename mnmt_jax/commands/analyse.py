"""Analyse attention, language branches and hidden states of a model."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mnmt_jax.analysis.defaults import (
    MIN_COUNT,
    NODES,
    PERPLEXITY,
    PROBE_UPDATES,
    STEERING_STRENGTH,
    TOP_HEADS,
)
from mnmt_jax.commands.analyse_heads import analyse_heads
from mnmt_jax.commands.analyse_states import MULTI_RUN_KINDS, STATE_KINDS, analyse_states
from mnmt_jax.commands.analysis_inputs import (
    TEST,
    analysis_facts,
    benchmark_of,
    check_directions,
    directions_of,
    forced_sentences,
    label_runs,
    model_facts,
    parse_layers,
    sentence_facts,
    trained_in_benchmark_codes,
    translator_facts,
    uses_model_output,
)
from mnmt_jax.commands.common_flags import (
    CommandParser,
    add_beam_size,
    add_gin_flags,
    add_note,
    add_step,
    amount,
    import_modules,
    parse_command_line,
    positive_int,
    seed_value,
)
from mnmt_jax.commands.corpus_flags import add_user_file_flags, refuse_flags
from mnmt_jax.commands.direction_flags import benchmark_codes, parse_directions, to_corpus_codes
from mnmt_jax.errors import UserError, docs_page

# Kind of analysis -> default number of sentences per direction (0: all). Flag -> kinds of analysis
# that it applies to.
_LIMITS = {
    **{"attribution": 8, "attention": 1, "ablation": 0, "scales": 0, "heads": 50},
    **STATE_KINDS,
}
_OF_SENTENCES = tuple(kind for kind in _LIMITS if kind != "scales")
_OWN_FLAGS = {
    "layers": ("attribution", "attention", *STATE_KINDS),
    "targets": ("attribution", "attention", "alignment"),
    "nodes": ("attribution",),
    "by_head": ("attention",),
    "top": ("attention", "heads"),
    "strength": ("heads",),
    "supervised_targets": ("ablation",),
    "beam_size": ("attribution", "attention", "ablation", "alignment", "heads"),
    "limit": _OF_SENTENCES,
    "directions": _OF_SENTENCES,
    "common_to": _OF_SENTENCES,
    "task": _OF_SENTENCES,
    "input": ("attribution", "attention", "alignment"),
    "probe_split": ("probe",),
    "classifier": ("probe",),
    "updates": ("probe",),
    "min_count": ("probe",),
    "seed": ("probe", "states", "heads"),
    "points": ("states",),
    "roles": ("states",),
    "perplexity": ("states",),
}
_SYNONYMS = {
    **dict.fromkeys(("tsne", "t-sne", "t_sne"), "states"),
    **dict.fromkeys(("cca", "pwcca"), "svcca"),
    "cosine": "similarity",
}
_SENTENCES = ("task", "directions", "input")  # recorded as separate facts
_CORPUS_FLAGS = ("parallel", "tsv", "bitext", "languages", "splits")


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(description=__doc__)
    parser.synonyms = _SYNONYMS
    parser.flag_hints = {"--trained_on": "use --probe_split"}
    parser.add_argument(
        "kind",
        choices=tuple(_LIMITS),
        help="kind of analysis: attribution, ablation or scales of language branches, attention "
        "maps, heads for language and meaning, or an analysis of hidden states (states: t-SNE "
        f"plots); see {docs_page('analysis.md')}",
    )
    parser.add_argument(
        "--run",
        dest="runs",
        required=True,
        action="append",
        metavar="RUN",
        help="directory of a trained or imported model; repeatable for probe and svcca",
    )
    parser.add_argument(
        "--output", required=True, help="folder to write analysis.json and analysis.html to"
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace a finished analysis of another kind, run, task, sentences or settings",
    )
    _add_sentence_flags(parser)
    _add_layer_flags(parser)
    _add_state_flags(parser)
    add_beam_size(parser)
    add_note(parser)
    add_step(parser, "; probe and svcca accept a list, e.g. 1000,2000")
    add_user_file_flags(parser)
    add_gin_flags(parser)
    return parser


def _add_sentence_flags(parser: CommandParser) -> None:
    """Add the flags that choose the sentences."""
    group = parser.add_argument_group("sentences")
    group.add_argument(
        "--task",
        help="corpus or mixture whose test split is read; with files of your own, a name for them",
    )
    group.add_argument(
        "--directions",
        help="all, supervised (trained on), zero_shot, or a list such as de-fr,fr-de; default: all "
        "(zero_shot for probe)",
    )
    group.add_argument(
        "--common_to",
        metavar="LIST",
        help="read the sentences that all these languages have with the same English, in all "
        "directions between them, e.g. ar,he,zh; default: the sentences of each direction",
    )
    group.add_argument(
        "--limit",
        type=amount,
        help="sentences per direction; 0: all; default: "
        + ", ".join(f"{limit} for {kind}" for kind, limit in _LIMITS.items() if limit)
        + "; 0 for the others",
    )
    group.add_argument("--input", help="UTF-8 text file to read instead of --task")
    group.add_argument("--source", help="source language of --input")
    group.add_argument("--target", help="target language of --input")
    group.add_argument(
        "--targets",
        choices=("reference", "output"),
        help="target text for teacher forcing; default: reference, or the model's output with "
        "--input",
    )


def _add_layer_flags(parser: CommandParser) -> None:
    """Add the flags of layers, heads and branches."""
    group = parser.add_argument_group("layers and heads")
    group.add_argument(
        "--layers",
        metavar="LIST",
        help="layers, counted from 1, e.g. 8,9; for hidden states, 0 is the embeddings; default: "
        "all",
    )
    group.add_argument(
        "--nodes",
        type=positive_int,
        help=f"attribution: nodes of the Gauss-Legendre quadrature; default: {NODES}, as in Captum",
    )
    group.add_argument(
        "--by_head",
        action="store_const",
        const=True,
        help="attention: show each head instead of the mean over heads",
    )
    group.add_argument(
        "--top",
        type=positive_int,
        metavar="N",
        help="attention: draw lines from each query to the N keys with the largest weights, "
        "instead of heat maps; the papers draw 3; heads: number of heads to ablate and to steer; "
        f"default: {TOP_HEADS}",
    )
    group.add_argument(
        "--strength",
        type=positive_int,
        help="heads: factor of the vectors that steer heads to another language; "
        f"default: {STEERING_STRENGTH}",
    )
    group.add_argument(
        "--supervised_targets",
        metavar="LIST",
        help="ablation: SOURCE-TARGET pairs; zero-shot output from SOURCE is also scored against "
        "the references in TARGET, e.g. it-nl,nl-de; default: the supervised targets of the run",
    )


def _add_state_flags(parser: CommandParser) -> None:
    """Add the flags of the kinds that analyse hidden states."""
    group = parser.add_argument_group("hidden states")
    group.add_argument(
        "--probe_split",
        choices=("validation", "test"),
        help="probe: split with the training sentences, of which a tenth is held out; 'test' tests "
        "on the held-out tenth; default: validation, tested on the test split",
    )
    group.add_argument(
        "--classifier",
        choices=("mlp", "linear"),
        help="probe: one hidden layer as wide as the states (mlp), or none (linear); default: mlp",
    )
    group.add_argument(
        "--updates",
        type=positive_int,
        help=f"probe: training updates; default: {PROBE_UPDATES}",
    )
    group.add_argument(
        "--min_count",
        type=positive_int,
        help="probe: minimum number of tokens for a token type to be counted; "
        f"default: {MIN_COUNT}",
    )
    group.add_argument(
        "--seed", type=seed_value, help="probe, states and heads: random seed; default: 0"
    )
    group.add_argument(
        "--points",
        choices=("sentences", "tokens"),
        help="states: points of the plot, means of sentences or sampled tokens; default: sentences",
    )
    group.add_argument(
        "--roles",
        metavar="LIST",
        help="states: roles to plot, of source, register and target; default: all that the model "
        "has",
    )
    group.add_argument(
        "--perplexity",
        type=positive_int,
        help=f"states: perplexity of t-SNE; default: {PERPLEXITY:g}",
    )


def main() -> None:
    """Run the command."""
    flags, gin_files, bindings = parse_command_line(make_parser())
    _check_flags(flags)
    _complete_flags(flags)
    import_modules(flags.module_import)
    from mnmt_jax.analysis.analysis_files import (
        check_analysis_folder,
        check_same_analysis,
        write_analysis,
    )
    from mnmt_jax.analysis.page_header import page_title, result_warnings
    from mnmt_jax.analysis.page_sections import render_sections

    check_analysis_folder(flags.output)
    if not flags.overwrite:
        check_same_analysis(flags.output, {"analysis": flags.kind})
    results = {
        "attribution": _sentence_analysis,
        "attention": _sentence_analysis,
        "ablation": _ablation,
        "scales": _scales,
        "heads": analyse_heads,
        **dict.fromkeys(STATE_KINDS, analyse_states),
    }[flags.kind](flags, gin_files, bindings)
    page = write_analysis(flags.output, results, page_title(results), render_sections(results))
    for warning in result_warnings(results):
        print(f"warning: {warning}", file=sys.stderr)
    print(f"Page: {page}", file=sys.stderr)


def _check_flags(flags: argparse.Namespace) -> None:
    """Check that the flags apply to the kind of analysis and to each other.

    Raises:
        UserError: if a flag does not apply or is missing.
    """
    if len(flags.runs) > 1 and flags.kind not in MULTI_RUN_KINDS:
        raise UserError(f"analyse {flags.kind} accepts only one --run")
    for flag, kinds in _OWN_FLAGS.items():
        if flags.kind not in kinds:
            refuse_flags(flags, [flag], f"analyse {flags.kind}")
    if flags.kind == "scales":
        refuse_flags(flags, (*_CORPUS_FLAGS, "on_bad_line"), "analyse scales")
    if flags.kind in _OWN_FLAGS["targets"] and not uses_model_output(flags):
        refuse_flags(flags, ["beam_size"], "references; add --targets=output")
    _check_sentences(flags)
    parse_layers(flags.layers, minimum=0)
    check_directions(flags.directions)


def _complete_flags(flags: argparse.Namespace) -> None:
    """Set defaults that depend on the kind of analysis, and values derived from the flags.

    Sets `run`, the first of `runs`, and `label`, its name on the page; `limit` and `directions`;
    `settings`, the values that are recorded and compared with those of a finished analysis.

    Raises:
        UserError: if two runs are the same folder.
    """
    flags.run = flags.runs[0]
    flags.label = label_runs(flags.runs)[flags.run]
    if flags.limit is None:
        flags.limit = 0 if flags.input else _LIMITS[flags.kind]
    if flags.kind == "probe":
        flags.directions = flags.directions or "zero_shot"
    names = [name for name, kinds in _OWN_FLAGS.items() if flags.kind in kinds]
    settings = {name: getattr(flags, name) for name in names if name not in _SENTENCES}
    flags.settings = {name: value for name, value in settings.items() if value is not None}


def _check_sentences(flags: argparse.Namespace) -> None:
    """Check that the flags name sentences, of a file or of a task.

    Raises:
        UserError: if a flag does not apply or is missing.
    """
    if flags.input:
        refuse_flags(flags, _CORPUS_FLAGS, "--input")
        refuse_flags(flags, ["task", "directions", "common_to"], "--input")
        if flags.targets == "reference":
            raise UserError("--targets=reference: --input has no references; omit --targets")
        if not (flags.source and flags.target):
            raise UserError("--input needs --source and --target, codes of languages")
    else:
        refuse_flags(flags, ["source", "target"], "a task; name directions with --directions")
        if flags.kind != "scales" and not flags.task:
            other = " or --input" if flags.kind in _OWN_FLAGS["input"] else ""
            raise UserError(f"analyse {flags.kind} needs --task{other}")


def _sentence_analysis(
    flags: argparse.Namespace, gin_files: Sequence[str], bindings: Sequence[str]
) -> dict[str, Any]:
    """Return the results of attribution or attention maps."""
    from mnmt_jax.analysis.attention_maps import compute_attention_maps
    from mnmt_jax.analysis.attribution import compute_attributions
    from mnmt_jax.analysis.branches import branch_layers
    from mnmt_jax.analysis.teacher_forcing import to_float32
    from mnmt_jax.decoding.translator import Translator

    layers = parse_layers(flags.layers)
    translator = Translator.load(
        flags.run, flags.step, gin_files=gin_files, bindings=bindings, mesh=None
    )
    inference_model = to_float32(translator.inference_model)
    if flags.kind == "attribution":
        branch_layers(inference_model.model)
    model = translator_facts(flags.label, translator, flags.step)
    facts = analysis_facts(flags, translator.config, model)
    sentences = forced_sentences(flags, translator)
    read_facts = sentence_facts(flags, {"input" if flags.input else TEST: sentences})
    longest = max(translator.config.decode.buckets)
    if flags.kind == "attribution":
        results = compute_attributions(
            inference_model, sentences, longest, layers, flags.nodes or NODES
        )
    else:
        results = compute_attention_maps(
            inference_model, sentences, longest, layers, by_head=bool(flags.by_head)
        )
    targets = "output" if uses_model_output(flags) else "reference"
    return {**facts, **read_facts, "targets": targets, **results}


def _scales(
    flags: argparse.Namespace, gin_files: Sequence[str], bindings: Sequence[str]
) -> dict[str, Any]:
    """Return the scales of the branches."""
    from mnmt_jax.analysis.branch_scales import branch_scales
    from mnmt_jax.decoding.translator import Translator

    translator = Translator.load(
        flags.run, flags.step, gin_files=gin_files, bindings=bindings, mesh=None
    )
    inference_model = translator.inference_model
    model = translator_facts(flags.label, translator, flags.step)
    facts = analysis_facts(flags, translator.config, model)
    return {**facts, **branch_scales(inference_model.model, inference_model.params)}


def _ablation(
    flags: argparse.Namespace, gin_files: Sequence[str], bindings: Sequence[str]
) -> dict[str, Any]:
    """Return the results of the model with and without its branches."""
    from mnmt_jax.analysis.ablation import (
        BRANCHES_OFF,
        BRANCHES_ON,
        AblationPair,
        check_has_branches,
        run_ablation,
        supervised_targets_by_source,
    )
    from mnmt_jax.evaluation.evaluated_model import load_evaluated_model
    from mnmt_jax.runs.run_directory import RunDirectory

    check_has_branches(RunDirectory.open(flags.run).config(gin_files, bindings))
    (on, languages), (off, _) = (
        load_evaluated_model(
            flags.run,
            flags.step,
            gin_files=gin_files,
            bindings=[*bindings, switch],
            beam_size=flags.beam_size,
        )
        for switch in (BRANCHES_ON, BRANCHES_OFF)
    )
    model = model_facts(flags.label, on.decoding["checkpoint"], on.identity, on.parameters)
    assert on.config is not None  # it is a run
    facts = analysis_facts(flags, on.config, model)
    benchmark = benchmark_of(flags, languages)
    trained = trained_in_benchmark_codes(benchmark, on.supervised, languages)
    ablated = AblationPair(
        dataclasses.replace(on, supervised=trained),
        dataclasses.replace(off, supervised=trained),
        languages,
    )
    directions = directions_of(flags.directions, benchmark, trained)
    targets = supervised_targets_by_source(benchmark.directions, trained)
    if flags.supervised_targets is not None:
        pairs = parse_directions(flags.supervised_targets, languages, flag="--supervised_targets")
        pairs = to_corpus_codes(pairs, benchmark_codes(benchmark), languages)
        targets = supervised_targets_by_source(pairs, pairs)
    results = run_ablation(
        ablated,
        benchmark,
        Path(flags.output),
        directions=directions,
        targets=targets,
        overwrite=flags.overwrite,
    )
    read_facts = {
        "read_directions": sorted("-".join(direction) for direction in directions),
        "read_sentences": {TEST: sum(item["sentences"] for item in results["directions"])},
        "limit": flags.limit,
    }
    return {**facts, "decoding": dict(on.decoding), **read_facts, **results}
