"""Two-dimensional t-SNE projection of sentence or token states (needs the extra `analysis`).

Source: registers paper, section 6.2, Figures 4 and 10: the tokens of 100 sentences of each of three
directions, 300 of them drawn from each class, where a class is a role of a direction. The paper
gives no t-SNE settings. Here they are scikit-learn's defaults with PCA initialisation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from mnmt_jax.analysis.defaults import PERPLEXITY
from mnmt_jax.analysis.layer_states import StateLocations, sentence_states, token_states
from mnmt_jax.analysis.teacher_forcing import ForcedSentences
from mnmt_jax.decoding.inference_model import InferenceModel
from mnmt_jax.errors import UserError, install_remedy

TOKENS_PER_CLASS = 300  # sampled from each class
_MAX_EXACT = 300  # most points with exact forces; up to there exact t-SNE is as fast
_MIN_POINTS = 4
_DIGITS = 4

States = Float[np.ndarray, "points embed"]


@dataclasses.dataclass(frozen=True)
class ProjectionSettings:
    """Settings of a projection.

    Attributes:
        tokens: sample tokens instead of taking the mean of each sentence.
        perplexity: as in `run_tsne`.
        seed: seed of the token sample and of t-SNE.
    """

    tokens: bool = False
    perplexity: float = PERPLEXITY
    seed: int = 0


def check_scikit_learn() -> None:
    """Check that scikit-learn is installed, before a model is loaded.

    Raises:
        UserError: if it is not.
    """
    _import_libraries()


def clipped_perplexity(points: int, perplexity: float = PERPLEXITY) -> float:
    """Return the perplexity clipped to a third of the number of other points.

    Args:
        points: number of points, at least four.
        perplexity: requested perplexity.
    """
    return min(perplexity, (points - 1) / 3)


def run_tsne(
    states: States, perplexity: float = PERPLEXITY, seed: int = 0
) -> Float[np.ndarray, "points 2"]:
    """Project states to two dimensions by t-SNE.

    It runs in one thread: several threads wait for each other, and may change the order of
    additions.

    Args:
        states: at least four states.
        perplexity: effective number of neighbours; see `clipped_perplexity`.
        seed: random seed.
    """
    states = np.asarray(states, np.float64)
    if not states.std(axis=0).any():  # all states are equal; t-SNE would divide by zero
        return np.zeros((len(states), 2))
    manifold, threadpoolctl = _import_libraries()
    tsne = manifold.TSNE(
        n_components=2,
        perplexity=clipped_perplexity(len(states), perplexity),
        init="pca",
        method="exact" if len(states) <= _MAX_EXACT else "barnes_hut",
        learning_rate="auto",
        random_state=seed,
    )
    with threadpoolctl.threadpool_limits(1):
        points: np.ndarray = tsne.fit_transform(states.astype(np.float32))
    return points


def project_states(
    inference_model: InferenceModel,
    sentence_sets: Sequence[ForcedSentences],
    max_length: int,
    locations: StateLocations,
    settings: ProjectionSettings = ProjectionSettings(),
) -> dict[str, Any]:
    """Project the states of sentences to two dimensions, layer by layer.

    Args:
        inference_model: the model, in float32.
        sentence_sets: sentences by direction.
        max_length: as in `mnmt_jax.analysis.teacher_forcing.iterate_batches`.
        locations: locations of the states; roles at the same layer share a projection.
        settings: settings of the projection.

    Returns:
        A JSON-ready dict with the settings and `planes`. Each plane has its `layer`, `ended`, the
        `perplexity` used, and `classes` with role, direction and `points`.

    Raises:
        UserError: if there are fewer than four points.
    """
    read = _sampled_tokens if settings.tokens else _sentence_means
    states = read(inference_model, sentence_sets, max_length, locations, settings.seed)
    planes = []
    for layer, ended in sorted({(location.layer, location.ended) for location in locations}):
        # The states after a stage's end have a separate plane, next to that of its last layer.
        location_indices = [
            index
            for index, location in enumerate(locations)
            if (location.layer, location.ended) == (layer, ended)
        ]
        classes = [(index, forced) for index in location_indices for forced in sentence_sets]
        class_states = [states[forced][index] for index, forced in classes]
        if sum(map(len, class_states)) < _MIN_POINTS:
            raise UserError(
                f"{sum(map(len, class_states))} points are too few for t-SNE, which needs "
                f"{_MIN_POINTS}; raise --limit, or name more directions"
            )
        projected = run_tsne(np.concatenate(class_states), settings.perplexity, settings.seed)
        rounded = np.round(projected, _DIGITS)
        ends = np.cumsum([len(class_points) for class_points in class_states])
        planes.append(
            {
                "layer": layer,
                "ended": ended,
                "perplexity": clipped_perplexity(len(projected), settings.perplexity),
                "classes": [
                    {
                        "role": locations[index].role,
                        "source": forced.direction[0],
                        "target": forced.direction[1],
                        "points": points.tolist(),
                    }
                    for (index, forced), points in zip(
                        classes, np.split(rounded, ends[:-1]), strict=True
                    )
                ],
            }
        )
    return {**dataclasses.asdict(settings), "planes": planes}


def sample_indices(count: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Return `size` sampled indices of `count` items in ascending order; all if there are fewer."""
    return np.sort(rng.permutation(count)[:size])


def _sentence_means(
    inference_model: InferenceModel,
    sentence_sets: Sequence[ForcedSentences],
    max_length: int,
    locations: StateLocations,
    seed: int,
) -> Mapping[ForcedSentences, Sequence[States]]:
    del seed
    pooled = sentence_states(inference_model, sentence_sets, max_length, locations)
    return {
        forced: [states[:, index] for index in range(len(locations))]
        for forced, states in pooled.items()
    }


def _sampled_tokens(
    inference_model: InferenceModel,
    sentence_sets: Sequence[ForcedSentences],
    max_length: int,
    locations: StateLocations,
    seed: int,
) -> Mapping[ForcedSentences, Sequence[States]]:
    states_by_set: dict[ForcedSentences, list[list[np.ndarray]]] = {
        forced: [[] for _ in locations] for forced in sentence_sets
    }
    for rows, batch_states in token_states(inference_model, sentence_sets, max_length, locations):
        for location, states, collected in zip(
            locations, batch_states, states_by_set[rows.forced], strict=True
        ):
            collected.append(states[rows.batch[f"{location.role}_segment_ids"] != 0])
    rng = np.random.default_rng(seed)
    sampled: dict[ForcedSentences, list[States]] = {}
    for forced, states_by_location in states_by_set.items():
        chosen: dict[str, np.ndarray] = {}  # the same tokens at each layer
        sampled[forced] = []
        for location, collected in zip(locations, states_by_location, strict=True):
            states = np.concatenate(collected)
            if location.role not in chosen:
                chosen[location.role] = sample_indices(len(states), TOKENS_PER_CLASS, rng)
            sampled[forced].append(states[chosen[location.role]])
    return sampled


def _import_libraries() -> tuple[Any, Any]:
    """Return scikit-learn's `manifold` module and `threadpoolctl`."""
    try:
        import threadpoolctl
        from sklearn import manifold
    except ImportError as error:
        raise UserError(
            "analyse states needs scikit-learn, which is not installed; "
            + install_remedy("analysis")
        ) from error
    return manifold, threadpoolctl
