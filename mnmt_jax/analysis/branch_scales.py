"""Learnt scales t of the language branches.

Source: Qu and Watanabe 2022, appendix C, Figure 6: the mean over layers by language.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mnmt_jax.analysis.branches import branch_layers
from mnmt_jax.model.network import Network


def branch_scales(model: Network, params: Any) -> dict[str, Any]:
    """Return the branch scales by layer and language.

    Args:
        model: the network.
        params: its parameters.

    Returns:
        A JSON-ready dict: `without`, the languages that have no branch; `layers`, each with `scale`
        by language in the vocabulary's order; `mean` over layers by language.

    Raises:
        UserError: if the model has no branches.
    """
    layers = branch_layers(model)
    settings = layers[0].kind.settings
    slots = dict(zip(settings.languages, settings.slots, strict=True))
    by_layer: dict[int, dict[str, float]] = {}
    for layer in layers:
        scale = np.asarray(params[layer.path[0]][layer.path[1]]["branch"]["scale"], np.float64)
        by_layer[layer.number] = {c: float(scale[slot]) for c, slot in slots.items() if slot >= 0}
    codes = next(iter(by_layer.values()))
    return {
        "without": list(settings.without),
        "layers": [{"layer": number, "scale": scales} for number, scales in by_layer.items()],
        "mean": {c: float(np.mean([scales[c] for scales in by_layer.values()])) for c in codes},
    }
