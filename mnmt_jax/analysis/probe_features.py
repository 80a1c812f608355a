"""On-disk cache of source-token states for training position probes.

FOLDER/SPLIT-DIGEST/facts.json     what the features depend on; the digest is computed from it
FOLDER/SPLIT-DIGEST/tokens.npz     `ids`, `positions`, `texts` of every source token (int32)
FOLDER/SPLIT-DIGEST/states_N.npy   states at location N, float32 [tokens, embed]
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from mnmt_jax.analysis.layer_states import StateLocations, location_fields, token_states
from mnmt_jax.analysis.teacher_forcing import ForcedSentences
from mnmt_jax.decoding.inference_model import InferenceModel
from mnmt_jax.design.layouts import SOURCE
from mnmt_jax.files.atomic_write import new_folder
from mnmt_jax.files.file_digest import short_digest

_FACTS, _TOKENS = "facts.json", "tokens.npz"


@dataclasses.dataclass(frozen=True, eq=False)
class ProbeFeatures:
    """Source tokens and their states.

    Attributes:
        folder: folder of the cached files.
        ids: token ids.
        positions: position of each token in its sentence, from 0. A leading tag has position 0.
        texts: text number of each token. A sentence read for several target languages has one
            number.
        locations: locations of the states.
    """

    folder: Path
    ids: Int[np.ndarray, " tokens"]
    positions: Int[np.ndarray, " tokens"]
    texts: Int[np.ndarray, " tokens"]
    locations: StateLocations

    @property
    def digest(self) -> str:
        """Identifier of these features."""
        return self.folder.name

    def states(self, location_index: int) -> Float[np.ndarray, "tokens embed"]:
        """Return the states of a location, memory-mapped."""
        states: np.ndarray = np.load(self.folder / f"states_{location_index}.npy", mmap_mode="r")
        return states


def cached_features(
    folder: Path,
    inference_model: InferenceModel,
    sentence_sets: Sequence[ForcedSentences],
    *,
    max_length: int,
    locations: StateLocations,
    provenance: Mapping[str, Any],
) -> ProbeFeatures:
    """Return the features of sentences, from the cache if they are there.

    Args:
        folder: folder of the cache.
        inference_model: the model, in float32.
        sentence_sets: sentences by direction.
        max_length: as in `mnmt_jax.analysis.teacher_forcing.iterate_batches`.
        locations: locations of the source role's states.
        provenance: what else the states depend on: the model, its parameters and vocabulary;
            `split`.
    """
    facts = {
        **provenance,
        "places": [location_fields(location) for location in locations],
        "texts": _digest(
            [[forced.direction, forced.sources, forced.targets] for forced in sentence_sets]
        ),
        "longest": max_length,
    }
    feature_folder = folder / f"{provenance['split']}-{_digest(facts)}"
    if not feature_folder.is_dir():
        with new_folder(feature_folder) as partial:
            _extract(partial, inference_model, sentence_sets, max_length, locations)
            text = json.dumps(facts, ensure_ascii=False, indent=1) + "\n"
            (partial / _FACTS).write_text(text, encoding="utf-8")
    with np.load(feature_folder / _TOKENS) as tokens:
        return ProbeFeatures(
            feature_folder, tokens["ids"], tokens["positions"], tokens["texts"], locations
        )


def _extract(
    folder: Path,
    inference_model: InferenceModel,
    sentence_sets: Sequence[ForcedSentences],
    max_length: int,
    locations: StateLocations,
) -> None:
    extra = inference_model.instruction.source_extra
    total = sum(
        len(example.source) + extra for forced in sentence_sets for example in forced.examples
    )
    shape = (total, inference_model.model.config.embed)
    files = [
        np.lib.format.open_memmap(
            folder / f"states_{number}.npy", mode="w+", dtype=np.float32, shape=shape
        )
        for number in range(len(locations))
    ]
    keys = dict.fromkeys(
        (forced.direction[0], text) for forced in sentence_sets for text in forced.sources
    )
    numbers = {key: number for number, key in enumerate(keys)}
    tokens = {name: np.zeros(total, np.int32) for name in ("ids", "positions", "texts")}
    start = 0
    for rows, states in token_states(inference_model, sentence_sets, max_length, locations):
        valid = rows.batch[f"{SOURCE}_segment_ids"] != 0
        end = start + int(valid.sum())
        tokens["ids"][start:end] = rows.batch[f"{SOURCE}_tokens"][valid]
        tokens["positions"][start:end] = rows.batch[f"{SOURCE}_positions"][valid]
        text_numbers = [
            numbers[rows.forced.direction[0], rows.forced.sources[rows.first + row]]
            for row in range(rows.size)
        ]
        tokens["texts"][start:end] = np.repeat(text_numbers, valid[: rows.size].sum(axis=1))
        for file, location_states in zip(files, states, strict=True):
            file[start:end] = location_states[valid]
        start = end
    assert start == total
    for file in files:
        file.flush()
    np.savez(folder / _TOKENS, **tokens)  # type: ignore[arg-type]


def _digest(facts: Any) -> str:
    text = json.dumps(facts, ensure_ascii=False, sort_keys=True)
    return short_digest(text)
