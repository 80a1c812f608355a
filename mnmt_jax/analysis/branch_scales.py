"""The learnt scales t of the language branches.

Source: third paper, appendix C, Figure 6: the mean over layers by language.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mnmt_jax.analysis.branches import branch_layers
from mnmt_jax.model.network import Network


def branch_scales(model: Network, params: Any) -> dict[str, Any]:
    """Returns the scales.

    Args:
        model: the network.
        params: its parameters.

    Returns:
        Facts: `without`, the languages that have no branch; `layers`, each with `scale` by language
        in the vocabulary's order; `mean` over layers.

    Raises:
        UserError: if the model has no branches.
    """
    found = branch_layers(model)
    settings = found[0].kind.settings
    slots = dict(zip(settings.languages, settings.slots, strict=True))
    by_layer: dict[int, dict[str, float]] = {}
    for each in found:
        scale = np.asarray(params[each.path[0]][each.path[1]]["branch"]["scale"], np.float64)
        by_layer[each.number] = {c: float(scale[slot]) for c, slot in slots.items() if slot >= 0}
    codes = next(iter(by_layer.values()))
    return {
        "without": list(settings.without),
        "layers": [{"layer": number, "scale": own} for number, own in by_layer.items()],
        "mean": {c: float(np.mean([own[c] for own in by_layer.values()])) for c in codes},
    }
