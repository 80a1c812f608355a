"""What registers and targets attend to: shares of kinds of tokens, and which source token each has.

Source: registers paper, section 6.1, Table 6 (which names neither layer nor how heads are joined),
and footnote 15. Weights are means over heads, softmax and all: what goes to other roles is not
shared out again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from mnmt_jax.analysis.attention_maps import AttentionSpec, attention_specs, attention_weights
from mnmt_jax.analysis.layer_states import SOURCE_SIDE_ROLES
from mnmt_jax.analysis.teacher_forcing import ForcedBatch, ForcedSentences, iterate_batches
from mnmt_jax.analysis.token_classes import EOS, PUNCTUATION, TAG, token_id_classes
from mnmt_jax.decoding.inference_model import InferenceModel
from mnmt_jax.design.layouts import SOURCE
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.vocabulary import Vocabulary

CONTENT = "content"
TOKEN_GROUPS = (CONTENT, PUNCTUATION, TAG, EOS)
"""Kinds of source tokens: the text, its punctuation, the language's tag, the end."""

AttentionWeights = Float[np.ndarray, "queries keys"]


class TopKeyStatistics(NamedTuple):
    """How the queries of a sentence choose keys; Table 6 has means over sentences.

    Attributes:
        first: mean of the greatest weight of each query ("T.1 S.").
        second: mean of the next ("T.2 S."); NaN with one key.
        distance: mean number of positions between these two keys ("Dist."); NaN with one key.
        entropy: of how often each key is some query's first, in bits: 0 if all have one key.
        diagonal: share of queries whose first key stands at their own position.
    """

    first: float
    second: float
    distance: float
    entropy: float
    diagonal: float


def top_key_statistics(weights: AttentionWeights) -> TopKeyStatistics:
    """Returns how queries choose; of equal weights the key that comes first.

    Args:
        weights: of a sentence, padding left out.
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
    """Returns which of `TOKEN_GROUPS` a token of a source is of."""
    found = token_id_classes(vocabulary, token)
    return next((group for group in (TAG, EOS, PUNCTUATION) if group in found), CONTENT)


def mass_by_group(weights: AttentionWeights, groups: Sequence[str]) -> dict[str, float]:
    """Returns the mean over queries of the weight that goes to each group of keys.

    Args:
        weights: of a sentence, padding left out.
        groups: of the keys.
    """
    column = weights.mean(axis=0)
    named = np.array(groups)
    return {group: float(column[named == group].sum()) for group in dict.fromkeys(groups)}


def attention_statistics(
    system: InferenceModel,
    every: Sequence[ForcedSentences],
    longest: int,
    layers: Sequence[int] = (),
) -> dict[str, Any]:
    """Reads what registers and targets attend to of what is translated, under teacher forcing.

    Args:
        system: the model, in float32.
        every: sentences by direction.
        longest: as in `mnmt_jax.analysis.teacher_forcing.iterate_batches`.
        layers: to keep to, counted from 1; () is all.

    Returns:
        Facts: `directions`, each with its number of `sentences` and `layers`; of each attention of
        a role `mass`, what goes to each of `TOKEN_GROUPS` of the source and to every other role, and
        `top_key_statistics` by role of the keys that hold what is translated. All are means over sentences.

    Raises:
        UserError: if a layer has no such attention.
    """
    readers = [place for place in attention_specs(system.model.plan) if _reads_sources(place)]
    legal = sorted({place.layer for place in readers})
    if wrong := [number for number in layers if number not in legal]:
        raise UserError(
            f"--layers: in layer {wrong[0]} nothing but the source attends to what is translated; "
            f"choose from {', '.join(map(str, legal))}"
        )
    places = tuple(place for place in readers if not layers or place.layer in layers)
    found: dict[ForcedSentences, list[list[dict[str, float]]]] = {
        f: [[] for _ in places] for f in every
    }
    for rows in iterate_batches(system, every, longest):
        weights = attention_weights(system.params, rows.batch, model=system.model, places=places)
        for number, (place, one) in enumerate(zip(places, weights, strict=True)):
            heads = np.asarray(one, np.float64).mean(axis=1)
            for row in range(rows.size):
                found[rows.forced][number].append(
                    dict(_read(system.vocabulary, rows, row, place, heads[row]))
                )
    return {
        "directions": [
            {
                "source": forced.direction[0],
                "target": forced.direction[1],
                "sentences": len(forced.examples),
                "layers": [
                    _facts(place, read) for place, read in zip(places, own, strict=True) if read
                ],
            }
            for forced, own in found.items()
        ]
    }


def _reads_sources(place: AttentionSpec) -> bool:
    return place.query != SOURCE and not set(SOURCE_SIDE_ROLES).isdisjoint(place.keys)


def _read(
    vocabulary: Vocabulary,
    rows: ForcedBatch,
    row: int,
    place: AttentionSpec,
    weights: AttentionWeights,
) -> Iterator[tuple[str, float]]:
    """Yields what is read of one sentence's weights, `mass/GROUP` and `choices/ROLE/NAME`."""
    valid = {
        role: rows.batch[f"{role}_segment_ids"][row] != 0 for role in (place.query, *place.keys)
    }
    queries = weights[valid[place.query]]
    start = 0
    for role in place.keys:
        end = start + len(valid[role])
        own = queries[:, start:end][:, valid[role]]
        tokens = rows.batch[f"{role}_tokens"][row][valid[role]].tolist()
        start = end
        of_source = role == SOURCE
        groups = [token_group(vocabulary, t) if of_source else role for t in tokens]
        given = dict.fromkeys(TOKEN_GROUPS, 0.0) if of_source else {}
        yield from (
            (f"mass/{name}", value) for name, value in (given | mass_by_group(own, groups)).items()
        )
        if role in SOURCE_SIDE_ROLES and role != place.query:
            for name, value in top_key_statistics(own)._asdict().items():
                yield f"choices/{role}/{name}", value


def _facts(place: AttentionSpec, read: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    mass: dict[str, float] = {}
    chosen: dict[str, dict[str, float | None]] = {}
    for name in read[0]:
        values = np.array([each[name] for each in read])
        known = values[~np.isnan(values)]
        kind, *rest = name.split("/")
        if kind == "mass":
            mass[rest[0]] = float(known.mean())
        else:
            chosen.setdefault(rest[0], {})[rest[1]] = float(known.mean()) if len(known) else None
    return {
        "layer": place.layer,
        "attention": place.title,
        "query": place.query,
        "mass": mass,
        "choices": chosen,
    }
