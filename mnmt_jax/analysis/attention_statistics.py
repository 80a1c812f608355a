"""Attention statistics of registers and targets: mass by token group, and each query's top key.

Source: registers paper, section 6.1, Table 6 (which names neither the layer nor how heads are
joined), and footnote 15. Weights are means over heads, after the softmax: the weight that goes to
other roles is not redistributed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from mnmt_jax.analysis.layer_states import SOURCE_SIDE_ROLES
from mnmt_jax.analysis.teacher_forcing import ForcedBatch, ForcedSentences, iterate_batches
from mnmt_jax.analysis.token_classes import EOS, PUNCTUATION, TAG, token_id_classes
from mnmt_jax.decoding.inference_model import InferenceModel
from mnmt_jax.design.layouts import SOURCE
from mnmt_jax.errors import UserError
from mnmt_jax.model.attention_weights import AttentionSpec, attention_specs, attention_weights
from mnmt_jax.vocabulary.vocabulary import Vocabulary

CONTENT = "content"
TOKEN_GROUPS = (CONTENT, PUNCTUATION, TAG, EOS)
"""Groups of source tokens: content, punctuation, language tag, end of sentence."""

AttentionWeights = Float[np.ndarray, "queries keys"]


class TopKeyStatistics(NamedTuple):
    """Statistics of the top keys of a sentence's queries; Table 6 has means over sentences.

    Attributes:
        first: mean of the largest weight of each query ("T.1 S.").
        second: mean of the second largest ("T.2 S."); NaN if there is one key.
        distance: mean number of positions between these two keys ("Dist."); NaN if there is one
            key.
        entropy: of the distribution of top keys over the queries, in bits: 0 if all queries have
            the same top key.
        diagonal: share of queries whose top key has the query's own position.
    """

    first: float
    second: float
    distance: float
    entropy: float
    diagonal: float


def top_key_statistics(weights: AttentionWeights) -> TopKeyStatistics:
    """Return the top-key statistics of a sentence; ties go to the earlier key.

    Args:
        weights: attention weights of one sentence, without padding.
    """
    order = np.argsort(-weights, axis=1, kind="stable")
    first = order[:, 0]
    second = distance = float("nan")
    if weights.shape[1] > 1:
        second = float(np.take_along_axis(weights, order[:, 1:2], axis=1).mean())
        distance = float(np.abs(first - order[:, 1]).mean())
    counts = np.unique(first, return_counts=True)[1]
    shares = counts / counts.sum()
    return TopKeyStatistics(
        float(np.take_along_axis(weights, order[:, :1], axis=1).mean()),
        second,
        distance,
        float(-(shares * np.log2(shares)).sum()) + 0.0,
        float((first == np.arange(len(first))).mean()),
    )


def token_group(vocabulary: Vocabulary, token: int) -> str:
    """Return the group of a source token, one of `TOKEN_GROUPS`."""
    classes = token_id_classes(vocabulary, token)
    return next((group for group in (TAG, EOS, PUNCTUATION) if group in classes), CONTENT)


def mass_by_group(weights: AttentionWeights, groups: Sequence[str]) -> dict[str, float]:
    """Return the weight that goes to each group of keys, mean over queries.

    Args:
        weights: attention weights of one sentence, without padding.
        groups: group of each key.
    """
    mean_weights = weights.mean(axis=0)
    group_names = np.array(groups)
    return {
        group: float(mean_weights[group_names == group].sum()) for group in dict.fromkeys(groups)
    }


def attention_statistics(
    inference_model: InferenceModel,
    sentence_sets: Sequence[ForcedSentences],
    max_length: int,
    layers: Sequence[int] = (),
) -> dict[str, Any]:
    """Return how registers and targets attend to the source side, under teacher forcing.

    Args:
        inference_model: the model, in float32.
        sentence_sets: sentences of each direction.
        max_length: as in `mnmt_jax.analysis.teacher_forcing.iterate_batches`.
        layers: layers to include, counted from 1; () is all.

    Returns:
        A JSON-ready dict with `directions`. Each has its number of `sentences` and its `layers`,
        one entry per attention of a role: `mass`, the weight that goes to each of `TOKEN_GROUPS`
        of the source and to each other role, and `choices` by role of the keys on the source side.
        All are means over sentences.

    Raises:
        UserError: if a requested layer has no such attention.
    """
    readers = [
        spec for spec in attention_specs(inference_model.model.plan) if _attends_to_sources(spec)
    ]
    legal = sorted({spec.layer for spec in readers})
    if wrong := [number for number in layers if number not in legal]:
        raise UserError(
            f"--layers: in layer {wrong[0]} only the source attends to the source side; "
            f"choose from {', '.join(map(str, legal))}"
        )
    specs = tuple(spec for spec in readers if not layers or spec.layer in layers)
    statistics: dict[ForcedSentences, list[list[dict[str, float]]]] = {
        forced: [[] for _ in specs] for forced in sentence_sets
    }
    for rows in iterate_batches(inference_model, sentence_sets, max_length):
        weights = attention_weights(
            inference_model.params, rows.batch, model=inference_model.model, specs=specs
        )
        for number, (spec, by_head) in enumerate(zip(specs, weights, strict=True)):
            mean_weights = np.asarray(by_head, np.float64).mean(axis=1)
            for row in range(rows.size):
                statistics[rows.forced][number].append(
                    dict(
                        _row_statistics(
                            inference_model.vocabulary, rows, row, spec, mean_weights[row]
                        )
                    )
                )
    return {
        "directions": [
            {
                "source": forced.direction[0],
                "target": forced.direction[1],
                "sentences": len(forced.examples),
                "layers": [
                    _layer_means(spec, by_sentence)
                    for spec, by_sentence in zip(specs, by_spec, strict=True)
                    if by_sentence
                ],
            }
            for forced, by_spec in statistics.items()
        ]
    }


def _attends_to_sources(spec: AttentionSpec) -> bool:
    return spec.query != SOURCE and not set(SOURCE_SIDE_ROLES).isdisjoint(spec.keys)


def _row_statistics(
    vocabulary: Vocabulary,
    rows: ForcedBatch,
    row: int,
    spec: AttentionSpec,
    weights: AttentionWeights,
) -> Iterator[tuple[str, float]]:
    """Yield the named statistics of one sentence, `mass/GROUP` and `choices/ROLE/NAME`."""
    valid = {role: rows.batch[f"{role}_segment_ids"][row] != 0 for role in (spec.query, *spec.keys)}
    queries = weights[valid[spec.query]]
    start = 0
    for role in spec.keys:
        end = start + len(valid[role])
        role_weights = queries[:, start:end][:, valid[role]]
        tokens = rows.batch[f"{role}_tokens"][row][valid[role]].tolist()
        start = end
        is_source = role == SOURCE
        groups = [token_group(vocabulary, t) if is_source else role for t in tokens]
        no_mass = dict.fromkeys(TOKEN_GROUPS, 0.0) if is_source else {}
        yield from (
            (f"mass/{name}", value)
            for name, value in (no_mass | mass_by_group(role_weights, groups)).items()
        )
        if role in SOURCE_SIDE_ROLES and role != spec.query:
            for name, value in top_key_statistics(role_weights)._asdict().items():
                yield f"choices/{role}/{name}", value


def _layer_means(spec: AttentionSpec, by_sentence: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    mass: dict[str, float] = {}
    by_role: dict[str, dict[str, float | None]] = {}
    for name in by_sentence[0]:
        values = np.array([statistics[name] for statistics in by_sentence])
        defined = values[~np.isnan(values)]
        kind, *keys = name.split("/")
        if kind == "mass":
            mass[keys[0]] = float(defined.mean())
        else:
            mean = float(defined.mean()) if len(defined) else None
            by_role.setdefault(keys[0], {})[keys[1]] = mean
    return {
        "layer": spec.layer,
        "attention": spec.title,
        "query": spec.query,
        "mass": mass,
        "choices": by_role,
    }
