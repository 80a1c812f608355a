"""States on a plane by t-SNE, of sentences or of tokens (needs the extra `analysis`).

Source: registers paper, section 6.2, Figures 4 and 10: the tokens of 100 sentences of each of three
directions, 300 of them drawn from each class, a role of a direction. It gives no setting of t-SNE;
here they are scikit-learn's own, begun from the principal components.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from mnmt_jax.analysis.layer_states import StateLocations, sentence_states, token_states
from mnmt_jax.analysis.teacher_forcing import ForcedSentences
from mnmt_jax.decoding.inference_model import InferenceModel
from mnmt_jax.errors import UserError

DEFAULT_PERPLEXITY = 30.0  # scikit-learn's
TOKENS_PER_CLASS = 300  # drawn of each class
_EXACT = 300  # points at most whose forces are not approximated: up to there that is as fast
_LEAST = 4  # points, of which three have neighbours
_DIGITS = 4

States = Float[np.ndarray, "points embed"]


@dataclasses.dataclass(frozen=True)
class ProjectionSettings:
    """What is placed, and how.

    Attributes:
        tokens: draw tokens instead of taking the mean of each sentence.
        perplexity: as in `run_tsne`.
        seed: of the tokens and of t-SNE.
    """

    tokens: bool = False
    perplexity: float = DEFAULT_PERPLEXITY
    seed: int = 0


def check_scikit_learn() -> None:
    """Checks that scikit-learn is there, before a model is loaded.

    Raises:
        UserError: if it is not.
    """
    _libraries()


def clipped_perplexity(points: int, perplexity: float = DEFAULT_PERPLEXITY) -> float:
    """Returns the perplexity that so many points are placed with: a third of them at most.

    Args:
        points: how many, four or more.
        perplexity: wanted.
    """
    return min(perplexity, (points - 1) / 3)


def run_tsne(
    states: States, perplexity: float = DEFAULT_PERPLEXITY, seed: int = 0
) -> Float[np.ndarray, "points 2"]:
    """Places states on a plane so that near ones stay near.

    One thread does it: several wait for each other, and may add in another order.

    Args:
        states: four or more.
        perplexity: how many neighbours count; see `clipped_perplexity`.
        seed: of what is drawn.
    """
    states = np.asarray(states, np.float64)
    if not states.std(axis=0).any():  # nothing to tell apart, and nothing to divide by
        return np.zeros((len(states), 2))
    manifold, threadpoolctl = _libraries()
    fitted = manifold.TSNE(
        n_components=2,
        perplexity=clipped_perplexity(len(states), perplexity),
        init="pca",
        method="exact" if len(states) <= _EXACT else "barnes_hut",
        learning_rate="auto",
        random_state=seed,
    )
    with threadpoolctl.threadpool_limits(1):
        found: np.ndarray = fitted.fit_transform(states.astype(np.float32))
    return found


def project_states(
    system: InferenceModel,
    every: Sequence[ForcedSentences],
    longest: int,
    places: StateLocations,
    settings: ProjectionSettings = ProjectionSettings(),
) -> dict[str, Any]:
    """Places the states of sentences on a plane, one for each layer.

    Args:
        system: the model, in float32.
        every: sentences by direction.
        longest: as in `mnmt_jax.analysis.teacher_forcing.iterate_batches`.
        places: whose states; the roles that meet after a layer share its plane.
        settings: as named there.

    Returns:
        Facts: the settings, and `project_states`, each with its `layer`, the `perplexity` used, and
        `classes`: role, direction and `points`.

    Raises:
        UserError: if there are fewer than four points.
    """
    read = _tokens if settings.tokens else _sentences
    states = read(system, every, longest, places, settings.seed)
    drawings = []
    for layer, ended in sorted({(place.layer, place.ended) for place in places}):
        # An end stands on a plane of its own, by the side of the layer that it follows.
        own = [n for n, p in enumerate(places) if (p.layer, p.ended) == (layer, ended)]
        classes = [(number, forced) for number in own for forced in every]
        parts = [states[forced][number] for number, forced in classes]
        if sum(map(len, parts)) < _LEAST:
            raise UserError(
                f"{sum(map(len, parts))} points are too few for t-SNE, which needs {_LEAST}; raise "
                "--limit, or name more directions"
            )
        found = run_tsne(np.concatenate(parts), settings.perplexity, settings.seed)
        placed = np.round(found, _DIGITS)
        ends = np.cumsum([len(part) for part in parts])
        drawings.append(
            {
                "layer": layer,
                "ended": ended,
                "perplexity": clipped_perplexity(len(found), settings.perplexity),
                "classes": [
                    {
                        "role": places[number].role,
                        "source": forced.direction[0],
                        "target": forced.direction[1],
                        "points": points.tolist(),
                    }
                    for (number, forced), points in zip(
                        classes, np.split(placed, ends[:-1]), strict=True
                    )
                ],
            }
        )
    return {**dataclasses.asdict(settings), "planes": drawings}


def sample_indices(count: int, most: int, rng: np.random.Generator) -> np.ndarray:
    """Returns the numbers of `most` of `count` items, in their order; of all if they are fewer."""
    return np.sort(rng.permutation(count)[:most])


def _sentences(
    system: InferenceModel,
    every: Sequence[ForcedSentences],
    longest: int,
    places: StateLocations,
    seed: int,
) -> Mapping[ForcedSentences, Sequence[States]]:
    del seed
    pooled = sentence_states(system, every, longest, places)
    return {f: [states[:, n] for n in range(len(places))] for f, states in pooled.items()}


def _tokens(
    system: InferenceModel,
    every: Sequence[ForcedSentences],
    longest: int,
    places: StateLocations,
    seed: int,
) -> Mapping[ForcedSentences, Sequence[States]]:
    parts: dict[ForcedSentences, list[list[np.ndarray]]] = {f: [[] for _ in places] for f in every}
    for rows, found in token_states(system, every, longest, places):
        for place, states, own in zip(places, found, parts[rows.forced], strict=True):
            own.append(states[rows.batch[f"{place.role}_segment_ids"] != 0])
    rng = np.random.default_rng(seed)
    every_class: dict[ForcedSentences, list[States]] = {}
    for forced, of_places in parts.items():
        chosen: dict[str, np.ndarray] = {}  # the same tokens at each layer
        every_class[forced] = []
        for place, collected in zip(places, of_places, strict=True):
            states = np.concatenate(collected)
            if place.role not in chosen:
                chosen[place.role] = sample_indices(len(states), TOKENS_PER_CLASS, rng)
            every_class[forced].append(states[chosen[place.role]])
    return every_class


def _libraries() -> tuple[Any, Any]:
    """Returns scikit-learn's module of t-SNE, and what scikit-learn limits threads by."""
    try:
        import threadpoolctl
        from sklearn import manifold
    except ImportError as error:
        raise UserError(
            "analyse states needs scikit-learn, which is not installed; pip install "
            "'mnmt-jax[analysis]'"
        ) from error
    return manifold, threadpoolctl
