"""Position disentangling's losses and gradients against loops in float64.

Other files of the same form are put to it through `MNMT_GOLDEN_DIR`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.model.position_losses import (
    alignment,
    critic_loss,
    gate_divergence,
    information,
    mean_anchors,
    relaxed_gates,
)
from tests.parity.reference import FOLDER, SHIPPED

FILES = sorted([*FOLDER.glob("tpdm_losses*.npz"), *FOLDER.glob("methods/tpdm_losses*.npz")])
TOLERANCES = {"float64": 1e-6, "float32": 1e-4}  # of sums and, element by element, of gradients
LOSSES = {
    "generator_loss": ("g", "p"),
    "information": ("g", "p"),
    "gated_information": ("g", "p", "gate_logits"),
    "gate_kl": ("gate_logits",),
    "alignment": ("p",),
    "alignment_fixed_anchor": ("p",),
}


def test_reference_figures_exist():
    assert FILES or FOLDER != SHIPPED


def packed(array, lengths, fill=0.0):
    """Pack two sentences per row."""
    sentences = [row[:length] for row, length in zip(array, lengths, strict=True)]
    pairs = [np.concatenate(sentences[i : i + 2]) for i in range(0, len(sentences), 2)]
    width = max(map(len, pairs))
    rest = array.shape[2:]
    return np.stack(
        [np.concatenate([p, np.full((width - len(p), *rest), fill, p.dtype)]) for p in pairs]
    )


def inputs(values, dtype, form):
    """Return the arrays of the file: one sentence per row with junk at padding, or packed."""
    lengths = values["lengths"]
    steps = np.arange(values["p"].shape[1])
    ids = (steps < lengths[:, None]).astype(np.int32)
    arrays = {name: values[name] for name in ("g", "p", "gate_logits", "uniform")}
    arrays |= {"ids": ids, "places": np.tile(steps, (len(ids), 1)).astype(np.int32)}
    if form == "packed":
        arrays["ids"] = ids * (1 + np.arange(len(ids), dtype=np.int32) % 2)[:, None]
        arrays = {name: packed(array, lengths, 0.5 * (name == "uniform"))
                  for name, array in arrays.items()}  # fmt: skip
    else:
        real = ids[..., None].astype(bool)
        arrays |= {name: np.where(real, values[name], 3.0) for name in ("g", "p")}
    return {n: a.astype(dtype) if a.dtype.kind == "f" else a for n, a in arrays.items()}


def losses(arrays, constants):
    """Return each loss of the file computed by this project."""
    g, p, ids, places = (arrays[name] for name in ("g", "p", "ids", "places"))
    tau, logits = constants["tau"], arrays["gate_logits"]
    gates = relaxed_gates(logits, arrays["uniform"], constants["gate_temperature"])
    divergence = gate_divergence(logits, constants["prior"])
    anchors = mean_anchors(p, ids, places)

    def aligned(anchors):
        return alignment(p, ids, places, tau, anchors=anchors)

    return {
        "generator_loss": critic_loss(g, p, ids, tau),
        "information": information(g, p, ids, tau).sum(),
        "gated_information": (gates * information(g, p, ids, tau)).sum(),
        "gate_kl": jnp.where(ids != 0, divergence, 0.0).sum(),
        "alignment": aligned(anchors),
        "alignment_fixed_anchor": aligned(jax.lax.stop_gradient(anchors)),
    }


@pytest.fixture(scope="module", params=FILES, ids=lambda path: path.stem)
def values(request):
    with np.load(request.param) as archive:
        return {name: archive[name] for name in archive.files}


@pytest.mark.parametrize("form", ["padded", "packed"])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_losses_and_gradients(values, dtype, form):
    names = ("tau", "gate_temperature", "prior")
    constants = {name: float(values[name]) for name in names}
    lengths = values["lengths"]
    with jax.enable_x64(dtype == "float64"):
        arrays = jax.tree.map(jnp.asarray, inputs(values, dtype, form))

        def loss_of(name, changed):
            return losses(arrays | changed, constants)[name]

        for name, moved in LOSSES.items():
            own = {key: arrays[key] for key in moved}
            loss = jax.jit(jax.value_and_grad(lambda c, n=name: loss_of(n, c)))
            actual, gradients = loss(own)
            assert actual.dtype == dtype
            scale = max(1.0, abs(float(values[name])))
            assert abs(float(actual) - float(values[name])) < TOLERANCES[dtype] * scale, name
            for key, gradient in gradients.items():
                expected = values[f"grad/{name}/{key}"]
                expected = expected if form == "padded" else packed(expected, lengths)
                np.testing.assert_allclose(
                    gradient, expected, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype],
                    err_msg=f"{name} by {key}",
                )  # fmt: skip


def test_the_information_bound_is_per_position(values):
    """Equation 1 fixes the position and averages contents; the other order differs by token."""
    with jax.enable_x64(True):
        arrays = jax.tree.map(jnp.asarray, inputs(values, "float64", "padded"))
        actual = np.asarray(
            information(arrays["g"], arrays["p"], arrays["ids"], float(values["tau"]))
        )
    np.testing.assert_allclose(actual, values["information_per_token"], atol=1e-9)
    other = values["club_order_per_token"]
    assert np.abs(actual - other).max() > 0.1
    assert float(actual.sum()) == pytest.approx(other.sum(), abs=1e-9)
