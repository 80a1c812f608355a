"""Hidden-state analyses and attention alignment for `mnmt analyse`."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnmt_jax.commands.analysis_inputs import (
    TEST,
    analysis_facts,
    benchmark_of,
    check_same_sentences,
    forced_sentences,
    parse_layers,
    sentence_facts,
    source_texts,
    translator_facts,
    uses_model_output,
)
from mnmt_jax.commands.common_flags import checkpoint_step
from mnmt_jax.commands.corpus_flags import split_list
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
    """Return the facts of a kind of `STATE_KINDS`.

    Args:
        flags: as parsed and checked.
        gin_files: read after the run's configuration.
        bindings: read last.

    Raises:
        UserError: if flags, runs or sentences do not do.
    """
    if flags.kind == "probe":
        return _probe(flags, gin_files, bindings)
    if flags.kind == "svcca":
        return _svcca(flags, gin_files, bindings)
    if flags.kind == "states":
        from mnmt_jax.analysis.projection_2d import check_scikit_learn

        check_scikit_learn()
    translator, facts = next(_models(flags, gin_files, bindings))
    of_one = {
        "similarity": _similarity,
        "retrieval": _retrieval,
        "states": _states,
        "alignment": _alignment,
    }
    return facts | of_one[flags.kind](flags, translator)


def _models(
    flags: argparse.Namespace, gin_files: Sequence[str], bindings: Sequence[str]
) -> Iterator[tuple[Translator, dict[str, Any]]]:
    """Yield each run's checkpoints, one at a time, with what tells them.

    Raises:
        UserError: if a finished analysis of something else would be replaced, or there is no such
            checkpoint.
    """
    from mnmt_jax.decoding.translator import Translator

    steps: list[int | str | None] = [checkpoint_step(s) for s in split_list(_text(flags.step))]
    asked = list(itertools.product(flags.runs, steps or [None]))
    if len(asked) > 1 and flags.kind not in MULTI_RUN_KINDS:
        raise UserError(f"--step={flags.step}: analyse {flags.kind} is of one checkpoint")

    def load(run: str, step: int | str | None) -> tuple[Translator, dict[str, Any]]:
        translator = Translator.load(run, step, gin_files=gin_files, bindings=bindings, mesh=None)
        return translator, translator_facts(run, translator)

    # Read once before, for what tells them: not all fit into memory.
    others = [load(*each)[1] for each in asked[1:]] if flags.kind in MULTI_RUN_KINDS else None
    translator, facts = load(*asked[0])
    told = [(each["run"], each["checkpoint"]) for each in (facts, *(others or ()))]
    if twice := [one for one in told if told.count(one) > 1]:
        run, step = twice[0]
        raise UserError(f"--step={flags.step}: names {step} of {run} twice; leave one out")
    yield translator, analysis_facts(flags, translator.config, facts, others)
    del translator
    yield from itertools.starmap(load, asked[1:])


def _text(step: int | str | None) -> str | None:
    return None if step is None else str(step)


def _subject(facts: Mapping[str, Any]) -> dict[str, Any]:
    names = ("run", "parameters_fingerprint", "parameter_count", "checkpoint")
    return {name: facts[name] for name in names}


def _system(translator: Translator) -> InferenceModel:
    from mnmt_jax.analysis.teacher_forcing import to_float32

    return to_float32(translator.system)


def _longest(translator: Translator) -> int:
    return max(translator.config.decode.buckets)


def _tested(
    flags: argparse.Namespace, translator: Translator
) -> tuple[list[ForcedSentences], dict[str, Any]]:
    """Return the sentences of the test split or of `--input`, and the facts of them."""
    every = forced_sentences(flags, translator)
    return every, sentence_facts(flags, {"input" if flags.input else TEST: every})


def _places(
    flags: argparse.Namespace, translator: Translator, roles: Sequence[str]
) -> StateLocations:
    from mnmt_jax.analysis.layer_states import state_locations

    layers = parse_layers(flags.layers, least=0)
    return state_locations(translator.system.model.plan, roles, layers)


# Probe


def _probe(
    flags: argparse.Namespace, gin_files: Sequence[str], bindings: Sequence[str]
) -> dict[str, Any]:
    """Return the facts of probes of positions."""
    from mnmt_jax.analysis.probe import ProbeSettings
    from mnmt_jax.analysis.probe_results import ProbedModel, run_probes

    flags.directions = flags.directions or "zero_shot"
    learned_from = flags.trained_on or _VALIDATION
    tested_on = TEST if learned_from == _VALIDATION else "held out"
    first: dict[str, Any] = {}
    read: dict[str, list[ForcedSentences]] = {}
    vocabulary, subjects = None, []
    for translator, facts in _models(flags, gin_files, bindings):
        first = first or facts
        vocabulary = vocabulary or translator.vocabulary
        if translator.vocabulary.fingerprint != vocabulary.fingerprint:
            raise UserError(
                f"--run: {facts['run']} and {first['run']} have different vocabularies; a probe "
                "compares tokens of one"
            )
        sentences = _probed_sentences(flags, translator, learned_from, tested_on)
        if not read:
            read = sentences
            first |= sentence_facts(flags, read)
        check_same_sentences(read, sentences, (first, facts))
        features = {
            split: _features(flags, translator, split, every) for split, every in sentences.items()
        }
        learned, tested = features.pop(learned_from), features.get(TEST)
        subjects.append(ProbedModel(_subject(facts), learned, tested))
    assert vocabulary is not None
    found = run_probes(
        subjects,
        vocabulary,
        probe=ProbeSettings(
            hidden=flags.classifier != "linear",
            updates=flags.updates or ProbeSettings.updates,
            seed=flags.seed or 0,
        ),
        least=flags.min_count or 5,
        folder=Path(flags.output) / "probes",
    )
    told = {"learned_from": learned_from, "tested_on": tested_on}
    if tested_on == TEST:
        texts, learned_texts = source_texts(read[TEST]), source_texts(read[learned_from])
        told |= {"tested_texts": len(texts), "learned_texts": len(texts & learned_texts)}
    return {**first, **told, **found}


def _probed_sentences(
    flags: argparse.Namespace, translator: Translator, learned_from: str, tested_on: str
) -> dict[str, list[ForcedSentences]]:
    """Return the sentences of each split.

    Raises:
        UserError: if the split to learn from has none, or one where a part of it is told, or all
            that are told.
    """
    remedy = "with --trained_on=test a tenth of the test split is told"
    try:
        found = {learned_from: forced_sentences(flags, translator, learned_from)}
    except UserError as error:
        if learned_from == TEST:
            raise
        benchmark_of(flags, translator.languages)  # raises where there is no such task at all
        raise UserError(f"{error} (of {learned_from} text; {remedy})") from error
    if tested_on == TEST:
        found[TEST] = forced_sentences(flags, translator)
        if source_texts(found[TEST]) <= source_texts(found[learned_from]):
            raise UserError(
                f"task '{flags.task}': {learned_from} and test sentences are the same; {remedy}"
            )
    elif len(source_texts(found[TEST])) < 2:
        raise UserError(
            f"--trained_on=test: task '{flags.task}' has one text to read, and none is left to "
            "tell; raise --limit, or name more directions"
        )
    return found


def _features(
    flags: argparse.Namespace, translator: Translator, split: str, every: Sequence[ForcedSentences]
) -> ProbeFeatures:
    """Return the features of a split's sources."""
    from mnmt_jax.analysis.probe_features import cached_features
    from mnmt_jax.design.layouts import SOURCE
    from mnmt_jax.design.method import as_facts

    model = as_facts(translator.config.model)
    return cached_features(
        Path(flags.output) / "features",
        _system(translator),
        every,
        longest=_longest(translator),
        places=_places(flags, translator, (SOURCE,)),
        told={"split": split, "task": flags.task, "model": model, **translator.identity},
    )


# Languages


def _similarity(flags: argparse.Namespace, translator: Translator) -> dict[str, Any]:
    """Return the facts of cosines between languages and roles."""
    from mnmt_jax.analysis.layer_states import SOURCE_SIDE_ROLES, sentence_states
    from mnmt_jax.analysis.parallel_sentences import align_by_reference
    from mnmt_jax.analysis.similarity import language_similarity, role_similarity
    from mnmt_jax.design.layouts import TARGET

    every, read = _tested(flags, translator)
    places = _places(flags, translator, (*SOURCE_SIDE_ROLES, TARGET))
    pooled = sentence_states(_system(translator), every, _longest(translator), places)
    pairs = align_by_reference(every)
    languages = language_similarity(pooled, pairs, places) if pairs else []
    return {**read, "roles": role_similarity(pooled, places), "languages": languages}


def _retrieval(flags: argparse.Namespace, translator: Translator) -> dict[str, Any]:
    """Return the facts of sentences looked for in other languages."""
    from mnmt_jax.analysis.layer_states import SOURCE_SIDE_ROLES, sentence_states
    from mnmt_jax.analysis.parallel_sentences import align_by_reference, check_has_parallel
    from mnmt_jax.analysis.retrieval import chance_accuracy, language_retrieval

    every, read = _tested(flags, translator)
    pairs = align_by_reference(every)
    check_has_parallel(pairs, flags.task)
    places = _places(flags, translator, SOURCE_SIDE_ROLES)
    pooled = sentence_states(_system(translator), every, _longest(translator), places)
    return {
        **read,
        "chance": chance_accuracy(pairs),
        "places": language_retrieval(pooled, pairs, places),
    }


def _svcca(
    flags: argparse.Namespace, gin_files: Sequence[str], bindings: Sequence[str]
) -> dict[str, Any]:
    """Return the facts of SVCCA and of preferences."""
    from mnmt_jax.analysis.svcca import checkpoint_svcca

    first: dict[str, Any] = {}
    subjects, read = [], []
    for translator, facts in _models(flags, gin_files, bindings):
        every = forced_sentences(flags, translator)
        first = first or facts | sentence_facts(flags, {TEST: every})
        found, own = _svcca_of_one(flags, translator, every)
        subjects.append({**_subject(facts), **found})
        read.append(own)
    between = []
    if len(read) == 2:
        (places, pooled), (others, other) = read
        check_same_sentences({TEST: [*pooled]}, {TEST: [*other]}, subjects)
        between = checkpoint_svcca((pooled, other), (places, others))
    return {**first, "subjects": subjects, "between": between}


def _svcca_of_one(
    flags: argparse.Namespace, translator: Translator, every: Sequence[ForcedSentences]
) -> tuple[dict[str, Any], tuple[StateLocations, dict[ForcedSentences, Any]]]:
    """Return the facts of one model, and its places and states."""
    from mnmt_jax.analysis.layer_states import SOURCE_SIDE_ROLES, sentence_states
    from mnmt_jax.analysis.parallel_sentences import align_by_reference, to_own_language
    from mnmt_jax.analysis.svcca import language_svcca, preference_by_location

    places = _places(flags, translator, SOURCE_SIDE_ROLES)
    own = to_own_language(translator, every)
    asked = dict.fromkeys([*every, *(each for triple in own for each in triple[1:])])
    pooled = sentence_states(_system(translator), list(asked), _longest(translator), places)
    three = [(pair.direction, [pooled[each] for each in (pair, *rest)]) for pair, *rest in own]
    pairs = align_by_reference(every)
    facts = {
        "languages": language_svcca(pooled, pairs, places) if pairs else [],
        "preference": preference_by_location(three, places),
    }
    return facts, (places, {forced: pooled[forced] for forced in every})


def _states(flags: argparse.Namespace, translator: Translator) -> dict[str, Any]:
    """Return the facts of states on a plane."""
    from mnmt_jax.analysis.layer_states import SOURCE_SIDE_ROLES
    from mnmt_jax.analysis.projection_2d import ProjectionSettings, project_states
    from mnmt_jax.design.layouts import TARGET

    layout = translator.system.model.layout
    legal = [role for role in (*SOURCE_SIDE_ROLES, TARGET) if role in layout.embedded_roles()]
    roles = split_list(flags.roles) or legal
    if wrong := [role for role in roles if role not in legal]:
        raise UserError(
            f"--roles: layout '{layout.name}' has no {wrong[0]}; choose from {', '.join(legal)}"
        )
    every, read = _tested(flags, translator)
    found = project_states(
        _system(translator),
        every,
        _longest(translator),
        _places(flags, translator, roles),
        ProjectionSettings(
            tokens=flags.points == "tokens",
            perplexity=float(flags.perplexity or ProjectionSettings.perplexity),
            seed=flags.seed or 0,
        ),
    )
    return {**read, **found}


def _alignment(flags: argparse.Namespace, translator: Translator) -> dict[str, Any]:
    """Return the facts of what registers and targets attend to."""
    from mnmt_jax.analysis.alignment import attention_statistics

    layers = parse_layers(flags.layers)
    every, read = _tested(flags, translator)
    found = attention_statistics(_system(translator), every, _longest(translator), layers)
    return {**read, "targets": "output" if uses_model_output(flags) else "reference", **found}
