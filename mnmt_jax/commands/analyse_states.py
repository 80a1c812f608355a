"""Hidden-state analyses and attention alignment for `mnmt analyse`."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnmt_jax.analysis.defaults import MIN_COUNT, PERPLEXITY, PROBE_UPDATES
from mnmt_jax.commands.analysis_inputs import (
    TEST,
    analysis_facts,
    benchmark_of,
    check_same_sentences,
    forced_sentences,
    label_runs,
    parse_layers,
    sentence_facts,
    source_texts,
    translator_facts,
    uses_model_output,
)
from mnmt_jax.commands.common_flags import checkpoint_step, list_of
from mnmt_jax.errors import UserError

if TYPE_CHECKING:
    from mnmt_jax.analysis.layer_states import StateLocations
    from mnmt_jax.analysis.probe_features import ProbeFeatures
    from mnmt_jax.analysis.teacher_forcing import ForcedSentences
    from mnmt_jax.decoding.inference_model import InferenceModel
    from mnmt_jax.decoding.translator import Translator

# Kind -> sentences per direction by default; 0: all.
STATE_KINDS = {
    "probe": 1000,
    "similarity": 100,
    "retrieval": 0,
    "svcca": 1000,
    "states": 100,
    "alignment": 20,
}
MULTI_RUN_KINDS = ("probe", "svcca")  # runs or checkpoints
_VALIDATION = "validation"


def analyse_states(
    flags: argparse.Namespace, gin_files: Sequence[str], bindings: Sequence[str]
) -> dict[str, Any]:
    """Return the results of a kind of `STATE_KINDS`.

    Args:
        flags: parsed and checked flags.
        gin_files: gin files, read after the run's configuration.
        bindings: bindings, applied last.

    Raises:
        UserError: if flags, runs or sentences are unsuitable.
    """
    if flags.kind == "probe":
        return _probe(flags, gin_files, bindings)
    if flags.kind == "svcca":
        return _svcca(flags, gin_files, bindings)
    if flags.kind == "states":
        from mnmt_jax.analysis.projection_2d import check_scikit_learn

        check_scikit_learn()
    translator, facts = next(_models(flags, gin_files, bindings))
    analyses = {
        "similarity": _similarity,
        "retrieval": _retrieval,
        "states": _states,
        "alignment": _alignment,
    }
    return facts | analyses[flags.kind](flags, translator)


def _models(
    flags: argparse.Namespace, gin_files: Sequence[str], bindings: Sequence[str]
) -> Iterator[tuple[Translator, dict[str, Any]]]:
    """Yield the checkpoints of all runs, one at a time, with their facts.

    Raises:
        UserError: if a finished analysis of other inputs would be replaced, or a checkpoint does
            not exist.
    """
    from mnmt_jax.decoding.translator import Translator

    text = flags.step if isinstance(flags.step, str) else None
    listed = list_of("--step", text, repeats=True)
    steps = [checkpoint_step(item) for item in listed] or [flags.step]
    checkpoints = list(itertools.product(flags.runs, steps))
    if len(checkpoints) > 1 and flags.kind not in MULTI_RUN_KINDS:
        raise UserError(f"--step={flags.step}: analyse {flags.kind} accepts only one checkpoint")

    labels = label_runs(flags.runs)

    def load(run: str, step: int | str | None) -> tuple[Translator, dict[str, Any]]:
        translator = Translator.load(run, step, gin_files=gin_files, bindings=bindings, mesh=None)
        return translator, translator_facts(labels[run], translator, step)

    # Load once for the facts alone: not all fit into memory together.
    other_facts = (
        [load(*item)[1] for item in checkpoints[1:]] if flags.kind in MULTI_RUN_KINDS else None
    )
    translator, facts = load(*checkpoints[0])
    names = [(item["run"], item["checkpoint"]) for item in (facts, *(other_facts or ()))]
    if twice := [name for name in names if names.count(name) > 1]:
        run, step = twice[0]
        raise UserError(f"--step={flags.step}: names {step} of {run} twice; remove one")
    yield translator, analysis_facts(flags, translator.config, facts, other_facts)
    del translator
    yield from itertools.starmap(load, checkpoints[1:])


def _subject(facts: Mapping[str, Any]) -> dict[str, Any]:
    names = ("run", "parameters_fingerprint", "parameter_count", "checkpoint")
    return {name: facts[name] for name in names}


def _float32_model(translator: Translator) -> InferenceModel:
    from mnmt_jax.analysis.teacher_forcing import to_float32

    return to_float32(translator.inference_model)


def _longest(translator: Translator) -> int:
    return max(translator.config.decode.buckets)


def _test_sentences(
    flags: argparse.Namespace, translator: Translator
) -> tuple[list[ForcedSentences], dict[str, Any]]:
    """Return the sentences of the test split or of `--input`, and their facts."""
    sentences = forced_sentences(flags, translator)
    return sentences, sentence_facts(flags, {"input" if flags.input else TEST: sentences})


def _locations(
    flags: argparse.Namespace, translator: Translator, roles: Sequence[str]
) -> StateLocations:
    from mnmt_jax.analysis.layer_states import state_locations

    layers = parse_layers(flags.layers, minimum=0)
    return state_locations(translator.inference_model.model.plan, roles, layers)


# Probe


def _probe(
    flags: argparse.Namespace, gin_files: Sequence[str], bindings: Sequence[str]
) -> dict[str, Any]:
    """Return the results of position probes."""
    from mnmt_jax.analysis.probe import ProbeSettings
    from mnmt_jax.analysis.probe_results import ProbedModel, run_probes

    learned_from = flags.probe_split or _VALIDATION
    tested_on = TEST if learned_from == _VALIDATION else "held out"
    first_facts: dict[str, Any] = {}
    first_sentences: dict[str, list[ForcedSentences]] = {}
    vocabulary, subjects = None, []
    for translator, facts in _models(flags, gin_files, bindings):
        first_facts = first_facts or facts
        vocabulary = vocabulary or translator.vocabulary
        if translator.vocabulary.fingerprint != vocabulary.fingerprint:
            raise UserError(
                f"--run: {facts['run']} and {first_facts['run']} have different vocabularies; a "
                "probe needs models with the same vocabulary"
            )
        sentences = _probed_sentences(flags, translator, learned_from, tested_on)
        if not first_sentences:
            first_sentences = sentences
            first_facts |= sentence_facts(flags, first_sentences)
        check_same_sentences(first_sentences, sentences, (first_facts, facts))
        features = {
            split: _features(flags, translator, split, split_sentences)
            for split, split_sentences in sentences.items()
        }
        learned, tested = features.pop(learned_from), features.get(TEST)
        subjects.append(ProbedModel(_subject(facts), learned, tested))
    assert vocabulary is not None
    results = run_probes(
        subjects,
        vocabulary,
        probe=ProbeSettings(
            hidden=flags.classifier != "linear",
            updates=flags.updates or PROBE_UPDATES,
            seed=flags.seed or 0,
        ),
        min_count=flags.min_count or MIN_COUNT,
        folder=Path(flags.output) / "probes",
    )
    splits = {"learned_from": learned_from, "tested_on": tested_on}
    if tested_on == TEST:
        texts = source_texts(first_sentences[TEST])
        learned_texts = source_texts(first_sentences[learned_from])
        splits |= {"tested_texts": len(texts), "learned_texts": len(texts & learned_texts)}
    return {**first_facts, **splits, **results}


def _probed_sentences(
    flags: argparse.Namespace, translator: Translator, learned_from: str, tested_on: str
) -> dict[str, list[ForcedSentences]]:
    """Return the sentences of each split.

    Raises:
        UserError: if the training split has no sentences, has only a single text of which to hold
            out a part, or contains all test texts.
    """
    remedy = "--probe_split=test tests on a tenth of the test split instead"
    try:
        sentences = {learned_from: forced_sentences(flags, translator, learned_from)}
    except UserError as error:
        if learned_from == TEST:
            raise
        benchmark_of(flags, translator.languages)  # raises if the task does not exist
        raise UserError(f"{error} (of {learned_from} text; {remedy})") from error
    if tested_on == TEST:
        sentences[TEST] = forced_sentences(flags, translator)
        if source_texts(sentences[TEST]) <= source_texts(sentences[learned_from]):
            raise UserError(
                f"task '{flags.task}': {learned_from} and test sentences are the same; {remedy}"
            )
    elif len(source_texts(sentences[TEST])) < 2:
        raise UserError(
            f"--probe_split=test: task '{flags.task}' has a single text, and none is left to test "
            "on; raise --limit, or name more directions"
        )
    return sentences


def _features(
    flags: argparse.Namespace,
    translator: Translator,
    split: str,
    sentences: Sequence[ForcedSentences],
) -> ProbeFeatures:
    """Return the features of a split's sources."""
    from mnmt_jax.analysis.probe_features import cached_features
    from mnmt_jax.design.layouts import SOURCE
    from mnmt_jax.design.method import as_facts

    model = as_facts(translator.config.model)
    return cached_features(
        Path(flags.output) / "features",
        _float32_model(translator),
        sentences,
        max_length=_longest(translator),
        locations=_locations(flags, translator, (SOURCE,)),
        provenance={"split": split, "task": flags.task, "model": model, **translator.identity},
    )


# Languages


def _similarity(flags: argparse.Namespace, translator: Translator) -> dict[str, Any]:
    """Return the cosine similarities between languages and roles."""
    from mnmt_jax.analysis.layer_states import SOURCE_SIDE_ROLES, sentence_states
    from mnmt_jax.analysis.parallel_sentences import align_by_reference
    from mnmt_jax.analysis.similarity import language_similarity, role_similarity
    from mnmt_jax.design.layouts import TARGET

    sentences, facts = _test_sentences(flags, translator)
    locations = _locations(flags, translator, (*SOURCE_SIDE_ROLES, TARGET))
    pooled = sentence_states(_float32_model(translator), sentences, _longest(translator), locations)
    pairs = align_by_reference(sentences)
    languages = language_similarity(pooled, pairs, locations) if pairs else []
    return {**facts, "roles": role_similarity(pooled, locations), "languages": languages}


def _retrieval(flags: argparse.Namespace, translator: Translator) -> dict[str, Any]:
    """Return the accuracies of sentence retrieval across languages."""
    from mnmt_jax.analysis.layer_states import SOURCE_SIDE_ROLES, sentence_states
    from mnmt_jax.analysis.parallel_sentences import align_by_reference, check_has_parallel
    from mnmt_jax.analysis.retrieval import chance_accuracy, language_retrieval

    sentences, facts = _test_sentences(flags, translator)
    pairs = align_by_reference(sentences)
    check_has_parallel(pairs, flags.task)
    locations = _locations(flags, translator, SOURCE_SIDE_ROLES)
    pooled = sentence_states(_float32_model(translator), sentences, _longest(translator), locations)
    return {
        **facts,
        "chance": chance_accuracy(pairs),
        "places": language_retrieval(pooled, pairs, locations),
    }


def _svcca(
    flags: argparse.Namespace, gin_files: Sequence[str], bindings: Sequence[str]
) -> dict[str, Any]:
    """Return the results of SVCCA and of language preferences."""
    from mnmt_jax.analysis.svcca import checkpoint_svcca

    first_facts: dict[str, Any] = {}
    subjects, states = [], []
    for translator, facts in _models(flags, gin_files, bindings):
        sentences = forced_sentences(flags, translator)
        first_facts = first_facts or facts | sentence_facts(flags, {TEST: sentences})
        results, located_states = _svcca_of_model(flags, translator, sentences)
        subjects.append({**_subject(facts), **results})
        states.append(located_states)
    between = []
    if len(states) == 2:
        (locations, pooled), (other_locations, other_pooled) = states
        check_same_sentences({TEST: [*pooled]}, {TEST: [*other_pooled]}, subjects)
        between = checkpoint_svcca((pooled, other_pooled), (locations, other_locations))
    return {**first_facts, "subjects": subjects, "between": between}


def _svcca_of_model(
    flags: argparse.Namespace, translator: Translator, sentences: Sequence[ForcedSentences]
) -> tuple[dict[str, Any], tuple[StateLocations, dict[ForcedSentences, Any]]]:
    """Return the results of a model, and its locations and states."""
    from mnmt_jax.analysis.layer_states import SOURCE_SIDE_ROLES, sentence_states
    from mnmt_jax.analysis.parallel_sentences import align_by_reference, to_own_language
    from mnmt_jax.analysis.svcca import language_svcca, preference_by_location

    locations = _locations(flags, translator, SOURCE_SIDE_ROLES)
    triples = to_own_language(translator, sentences)
    required = dict.fromkeys(
        [*sentences, *(sentence for triple in triples for sentence in triple[1:])]
    )
    pooled = sentence_states(
        _float32_model(translator), list(required), _longest(translator), locations
    )
    pooled_triples = [
        (pair.direction, [pooled[sentence] for sentence in (pair, *variants)])
        for pair, *variants in triples
    ]
    pairs = align_by_reference(sentences)
    results = {
        "languages": language_svcca(pooled, pairs, locations) if pairs else [],
        "preference": preference_by_location(pooled_triples, locations),
    }
    return results, (locations, {forced: pooled[forced] for forced in sentences})


def _states(flags: argparse.Namespace, translator: Translator) -> dict[str, Any]:
    """Return the 2D projection of states."""
    from mnmt_jax.analysis.layer_states import SOURCE_SIDE_ROLES
    from mnmt_jax.analysis.projection_2d import ProjectionSettings, project_states
    from mnmt_jax.design.layouts import TARGET

    layout = translator.inference_model.model.layout
    available = [role for role in (*SOURCE_SIDE_ROLES, TARGET) if role in layout.embedded_roles()]
    roles = list_of("--roles", flags.roles) or available
    if wrong := [role for role in roles if role not in available]:
        raise UserError(
            f"--roles: layout '{layout.name}' has no {wrong[0]}; choose from {', '.join(available)}"
        )
    sentences, facts = _test_sentences(flags, translator)
    projection = project_states(
        _float32_model(translator),
        sentences,
        _longest(translator),
        _locations(flags, translator, roles),
        ProjectionSettings(
            tokens=flags.points == "tokens",
            perplexity=float(flags.perplexity or PERPLEXITY),
            seed=flags.seed or 0,
        ),
    )
    return {**facts, **projection}


def _alignment(flags: argparse.Namespace, translator: Translator) -> dict[str, Any]:
    """Return the attention statistics of registers and targets."""
    from mnmt_jax.analysis.attention_statistics import attention_statistics

    layers = parse_layers(flags.layers)
    sentences, facts = _test_sentences(flags, translator)
    statistics = attention_statistics(
        _float32_model(translator), sentences, _longest(translator), layers
    )
    return {**facts, "targets": "output" if uses_model_output(flags) else "reference", **statistics}
