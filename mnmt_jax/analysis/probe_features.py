"""The states of source tokens that a classifier is trained on, kept on disk.

FOLDER/SPLIT-DIGEST/facts.json     what they are of: the digest is of this
FOLDER/SPLIT-DIGEST/tokens.npz     of every source token: `ids`, `positions`, `texts` (int32)
FOLDER/SPLIT-DIGEST/states_N.npy   of the place number N, float32 [tokens, embed]
"""

from __future__ import annotations

import dataclasses
import hashlib
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

_FACTS, _TOKENS = "facts.json", "tokens.npz"


@dataclasses.dataclass(frozen=True, eq=False)
class ProbeFeatures:
    """Source tokens and their states.

    Attributes:
        folder: where they lie.
        ids: of the tokens.
        positions: of each in its sentence, from 0, which is the tag's where there is one first.
        texts: number of the text that it stands in: a sentence read for several target languages
            has one number.
        places: of the states.
    """

    folder: Path
    ids: Int[np.ndarray, " tokens"]
    positions: Int[np.ndarray, " tokens"]
    texts: Int[np.ndarray, " tokens"]
    places: StateLocations

    @property
    def digest(self) -> str:
        """What tells them from others."""
        return self.folder.name

    def states(self, number: int) -> Float[np.ndarray, "tokens embed"]:
        """Returns the states of a place, read from the disk as they are used."""
        found: np.ndarray = np.load(self.folder / f"states_{number}.npy", mmap_mode="r")
        return found


def cached_features(
    folder: Path,
    system: InferenceModel,
    every: Sequence[ForcedSentences],
    *,
    longest: int,
    places: StateLocations,
    told: Mapping[str, Any],
) -> ProbeFeatures:
    """Returns the features of sentences, those that lie in a folder if they are of the same.

    Args:
        folder: of all features.
        system: the model, in float32.
        every: sentences by direction.
        longest: as in `mnmt_jax.analysis.teacher_forcing.iterate_batches`.
        places: of the source.
        told: what the states depend on besides: the model, its parameters and vocabulary; `split`.
    """
    facts = {
        **told,
        "places": [location_fields(place) for place in places],
        "texts": _digest([[f.direction, f.sources, f.targets] for f in every]),
        "longest": longest,
    }
    own = folder / f"{told['split']}-{_digest(facts)}"
    if not own.is_dir():
        with new_folder(own) as partial:
            _extract(partial, system, every, longest, places)
            text = json.dumps(facts, ensure_ascii=False, indent=1) + "\n"
            (partial / _FACTS).write_text(text, encoding="utf-8")
    with np.load(own / _TOKENS) as found:
        return ProbeFeatures(own, found["ids"], found["positions"], found["texts"], places)


def _extract(
    folder: Path,
    system: InferenceModel,
    every: Sequence[ForcedSentences],
    longest: int,
    places: StateLocations,
) -> None:
    extra = system.instruction.source_extra
    total = sum(len(one.source) + extra for forced in every for one in forced.examples)
    shape = (total, system.model.config.embed)
    files = [
        np.lib.format.open_memmap(
            folder / f"states_{number}.npy", mode="w+", dtype=np.float32, shape=shape
        )
        for number in range(len(places))
    ]
    keys = dict.fromkeys((f.direction[0], text) for f in every for text in f.sources)
    numbers = {key: number for number, key in enumerate(keys)}
    tokens = {name: np.zeros(total, np.int32) for name in ("ids", "positions", "texts")}
    start = 0
    for rows, states in token_states(system, every, longest, places):
        valid = rows.batch[f"{SOURCE}_segment_ids"] != 0
        end = start + int(valid.sum())
        tokens["ids"][start:end] = rows.batch[f"{SOURCE}_tokens"][valid]
        tokens["positions"][start:end] = rows.batch[f"{SOURCE}_positions"][valid]
        own = [
            numbers[rows.forced.direction[0], rows.forced.sources[rows.first + row]]
            for row in range(rows.size)
        ]
        tokens["texts"][start:end] = np.repeat(own, valid[: rows.size].sum(axis=1))
        for file, found in zip(files, states, strict=True):
            file[start:end] = found[valid]
        start = end
    assert start == total
    for file in files:
        file.flush()
    np.savez(folder / _TOKENS, **tokens)  # type: ignore[arg-type]


def _digest(facts: Any) -> str:
    text = json.dumps(facts, ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
