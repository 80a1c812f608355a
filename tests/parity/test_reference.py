"""Our model against the authors' own implementations: logits, losses, gradients, beam search."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.config import Decode
from mnmt_jax.decoding.generate import generate, make_search
from mnmt_jax.decoding.search import Request
from mnmt_jax.interchange.fairseq import permute_ids, unpermute_rows, write_parameters
from mnmt_jax.losses import token_loss
from mnmt_jax.model import build_model
from tests.parity.reference import FILES, FOLDER, load_reference

LOGITS_ATOL = 2e-5
LOSS_RTOL = 1e-5
GRADIENT_RTOL = 1e-4
SCORE_ATOL = 1e-4
ZERO_GRADIENT = 1e-5
LABEL_SMOOTHING = 0.1


def has_contrastive_term(path):
    """Whether the file's gradients are of the loss with InstruCL's term, which we do not have."""
    with np.load(path) as archive:
        return bool(archive.get("contrastive_loss_sum", 0.0))


WITH_PLAIN_GRADIENTS = [path for path in FILES if not has_contrastive_term(path)]


def test_there_are_files():
    assert FILES, f"no .npz in {FOLDER}"
    left_out = {path.stem for path in FILES} - {path.stem for path in WITH_PLAIN_GRADIENTS}
    assert left_out <= {"two_stage_tiny_adaption_instructcl"}
    assert WITH_PLAIN_GRADIENTS


@pytest.fixture(scope="module", params=FILES, ids=lambda path: path.stem)
def reference(request):
    return load_reference(request.param)


@pytest.fixture(scope="module")
def model(reference):
    return build_model(reference.config, reference.vocab_size)


def test_logits(reference, model):
    logits = np.asarray(jax.jit(model.apply)({"params": reference.params}, reference.batch))
    expected = np.asarray([unpermute(row) for row in reference.values["logits"]])
    valid = reference.batch["target_segment_ids"] != 0
    assert valid.sum() > 10
    np.testing.assert_allclose(logits[valid], expected[valid], atol=LOGITS_ATOL, rtol=0)


def unpermute(logits):
    """Their class order to ours: columns move as embedding rows do."""
    from mnmt_jax.interchange.fairseq import permute_rows

    return permute_rows(np.swapaxes(logits, 0, 1)).swapaxes(0, 1)


def losses_of(model, params, reference):
    logits = model.apply({"params": params}, reference.batch)
    valid = jnp.asarray(reference.batch["target_segment_ids"] != 0)
    return token_loss(logits, jnp.asarray(reference.labels), valid, LABEL_SMOOTHING)


def test_loss(reference, model):
    sums = jax.jit(lambda params: losses_of(model, params, reference))(reference.params)
    expected = [reference.values[f"{name}_sum"] for name in ("label_smoothed_loss", "nll")]
    np.testing.assert_allclose(sums[:2], np.asarray(expected), rtol=LOSS_RTOL)


@pytest.mark.parametrize("path", WITH_PLAIN_GRADIENTS, ids=lambda path: path.stem)
def test_gradients(path):
    reference = load_reference(path)
    model = build_model(reference.config, reference.vocab_size)
    gradients = jax.jit(jax.grad(lambda params: losses_of(model, params, reference)[0]))(
        reference.params
    )
    found = write_parameters(
        jax.tree.map(np.asarray, gradients), reference.config, reference.layout
    )
    compared = 0
    for name, gradient in found.items():
        expected = reference.values.get(f"grad/{name}")
        if expected is None:
            continue
        distance = np.linalg.norm(gradient - expected)
        if name.endswith("k_proj.bias"):  # shifts all logits of a query: the true gradient is zero
            assert max(np.linalg.norm(gradient), np.linalg.norm(expected)) < ZERO_GRADIENT, name
        else:
            assert distance <= GRADIENT_RTOL * np.linalg.norm(expected), name
        compared += 1
    assert compared > 20
    adaption = [name for name in found if name.startswith(("decoder.fc1_", "decoder.fc2_"))]
    assert len(adaption) == (8 if reference.config.adaption_mlp else 0)
    assert all(f"grad/{name}" in reference.values for name in adaption)


def test_some_gradients_are_of_adaption_modules():
    assert any(load_reference(path).config.adaption_mlp for path in WITH_PLAIN_GRADIENTS)


def test_beam_search(reference, model):
    keys = [name.split("/") for name in reference.values if name.startswith("beam/")]
    ranks = 1 + max(int(rank) for _, _, rank, _ in keys)
    beam = 5 if "register_factor" in reference.values else 4
    search = make_search(Decode(beam_size=beam))
    static = {k: v for k, v in reference.batch.items() if not k.startswith("target")}
    limits = np.array([int(1.2 * len(source) + 10) for source in reference.sources], np.int32)
    request = Request(
        prefix=reference.batch["target_tokens"][:, :1],
        max_length=limits,
        active=np.ones(len(limits), bool),
        max_steps=int(limits.max()) + 1,
    )
    found = generate(model, reference.params, static, request, search=search)
    compared = 0
    for row in range(len(limits)):
        for rank in range(ranks):
            expected = permute_ids(reference.values[f"beam/{row}/{rank}/tokens"]).tolist()
            tokens = found.tokens[row, rank, : found.lengths[row, rank]].tolist()
            assert tokens == expected, f"sentence {row}, rank {rank}"
            score = float(reference.values[f"beam/{row}/{rank}/score"])
            assert float(found.scores[row, rank]) == pytest.approx(score, abs=SCORE_ATOL)
            compared += 1
    assert compared >= len(limits)


def test_round_trip_is_exact(reference):
    written = write_parameters(reference.params, reference.config, reference.layout)
    for name, array in written.items():
        np.testing.assert_array_equal(array, reference.values[f"param/{name}"])
    assert len(written) > 20
    assert not np.array_equal(
        unpermute_rows(reference.params["embedding"]), reference.params["embedding"]
    )
