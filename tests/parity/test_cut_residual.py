"""States around the layer without a residual connection, against the authors' code."""

import jax
import numpy as np
import pytest

from mnmt_jax.design.objective import States
from mnmt_jax.methods.cut_residual import CutResidual
from mnmt_jax.model.network import build_model
from tests.parity.reference import FILES, load_reference

ATOL = 2e-5
REMOVED = "encoder_residual_removed_layer_"
PATHS = [path for path in FILES if REMOVED + "input" in np.load(path).files]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_states_around_the_changed_layer(path):
    reference = load_reference(path)
    model = build_model(reference.config, reference.vocab_size)
    (cut,) = (item for item in reference.config.methods if isinstance(item, CutResidual))
    layer = cut.layer
    assert layer == reference.config.stage_layers[0] // 2 + 1
    reads = States(layer - 1), States(layer)
    run = jax.jit(
        lambda params: model.apply({"params": params}, reference.batch, reads, method="states")
    )
    valid = reference.batch["source_segment_ids"] != 0
    assert valid.sum() > 10
    for name, states in zip(("input", "output"), run(reference.params), strict=True):
        expected = reference.values[REMOVED + name]
        np.testing.assert_allclose(np.asarray(states)[valid], expected[valid], atol=ATOL)
