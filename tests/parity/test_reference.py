"""Our model against the authors' own implementations: logits, losses, gradients, beam search."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.config.sections import Decode
from mnmt_jax.decoding.generate import generate
from mnmt_jax.decoding.search import Request
from mnmt_jax.decoding.search_settings import make_search
from mnmt_jax.design.layouts import LANGUAGE_MODELS
from mnmt_jax.methods.adaption import Adaption
from mnmt_jax.methods.cut_residual import CutResidual
from mnmt_jax.methods.instructcl import InstruCL
from mnmt_jax.model.network import build_model
from mnmt_jax.training.learner import Learner, batch_loss
from mnmt_jax.training.losses import token_loss
from tests.parity.reference import (
    FILES,
    FOLDER,
    SHIPPED,
    load_reference,
    permute_ids,
    permute_rows,
    unpermute_rows,
    write_parameters,
)

LOGITS_ATOL = 2e-5
LOSS_RTOL = 1e-5
GRADIENT_RTOL = 1e-4
SCORE_ATOL = 1e-4
ZERO_GRADIENT = 1e-5


def test_there_are_files():
    assert FILES or FOLDER != SHIPPED, f"no .npz in {FOLDER}"


@pytest.fixture(scope="module", params=FILES, ids=lambda path: path.stem)
def reference(request):
    return load_reference(request.param)


@pytest.fixture(scope="module")
def model(reference):
    return build_model(reference.config, reference.vocab_size)


@pytest.fixture(scope="module")
def computed(reference, model):
    """Everything of ours that one compiled program gives: for each name its value."""
    minimised = what_training_minimises(reference, model)

    @jax.jit
    def compute(params):
        logits = model.apply({"params": params}, reference.batch)
        valid = jnp.asarray(reference.asked)
        smoothing = reference.label_smoothing
        plain = token_loss(logits, jnp.asarray(reference.labels), valid, smoothing)
        (total, sums), gradients = jax.value_and_grad(minimised, has_aux=True)(params)
        return dict(logits=logits, plain=plain, total=total, sums=sums, gradients=gradients)

    return compute(reference.params)


def test_logits(reference, computed):
    logits = np.asarray(computed["logits"])
    expected = np.asarray([unpermute(row) for row in reference.values["logits"]])
    valid = reference.batch[f"{reference.layout.generated}_segment_ids"] != 0
    assert valid.sum() > 10
    np.testing.assert_allclose(logits[valid], expected[valid], atol=LOGITS_ATOL, rtol=0)


def unpermute(logits):
    """Their class order to ours: columns move as embedding rows do."""
    return permute_rows(np.swapaxes(logits, 0, 1)).swapaxes(0, 1)


def test_loss(reference, computed):
    expected = [reference.values[f"{name}_sum"] for name in ("label_smoothed_loss", "nll")]
    np.testing.assert_allclose(computed["plain"][:2], np.asarray(expected), rtol=LOSS_RTOL)


def what_training_minimises(reference, model):
    """Our loss of the file's batch as a function of the parameters, with its contrastive term."""
    layer = reference.contrastive_layer
    objectives = InstruCL(layer).objectives() if layer else reference.sentence_contrast
    smoothing = reference.label_smoothing
    learner = Learner(model, None, None, smoothing, chunk=7, seed=0, objectives=objectives)
    batch = {name: jnp.asarray(array) for name, array in reference.train_batch.items()}
    return lambda params: batch_loss(learner, params, batch)


def test_total_loss(reference, computed):
    """Their file holds the contrastive sum before it is scaled by source tokens / sentences."""
    total, sums = computed["total"], computed["sums"]
    plain = float(reference.values["label_smoothed_loss_sum"])
    assert float(sums["smoothed"]) == pytest.approx(plain, rel=LOSS_RTOL)
    tokens = reference.values.get("ntokens_denominator", sums["tokens"])
    assert float(sums["tokens"]) == float(tokens)  # also where few of them are asked for
    expected = float(reference.values.get("total_loss_sum", plain))
    assert float(total) == pytest.approx(expected, rel=LOSS_RTOL)
    if reference.sentence_contrast:
        term = float(reference.values["contrastive_loss_sum"])
        scale = float(reference.values["ntokens"]) / float(reference.values["nsentences"])
        scale *= float(reference.values["contrastive_lambda"])
        assert float(sums["sentence_contrast"]) == pytest.approx(scale * term, rel=LOSS_RTOL)
        assert expected == pytest.approx(plain + scale * term, rel=LOSS_RTOL)
        return
    if not reference.contrastive_layer:
        assert expected == plain and "contrastive" not in sums
        return
    term = float(reference.values["contrastive_loss_sum"])
    scale = sum(map(len, reference.sources)) / len(reference.sources)
    assert expected == pytest.approx(plain + scale * term, rel=LOSS_RTOL)
    assert float(sums["contrastive"]) / scale == pytest.approx(term, rel=LOSS_RTOL)


def test_gradients(reference, computed):
    gradients = jax.tree.map(np.asarray, computed["gradients"])
    found = write_parameters(gradients, reference.config, reference.layout)
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
    assert compared == sum(name.startswith("grad/") for name in reference.values) > 10
    adaption = [name for name in found if name.startswith(("decoder.fc1_", "decoder.fc2_"))]
    assert len(adaption) == (8 if has_adaption(reference) else 0)
    assert all(f"grad/{name}" in reference.values for name in adaption)


def has_adaption(reference) -> bool:
    return any(isinstance(method, Adaption) for method in reference.config.methods)


def test_some_gradients_are_of_adaption_modules_and_of_the_contrastive_term():
    references = [load_reference(path) for path in FILES]
    if FOLDER == SHIPPED:
        assert any(has_adaption(reference) for reference in references)
        methods = [method for reference in references for method in reference.config.methods]
        assert any(isinstance(method, CutResidual) for method in methods)
        assert any(reference.contrastive_layer for reference in references)


def test_beam_search(reference, model):
    names = [name for name in reference.values if name.startswith("beam/")]
    if not names:
        assert reference.layout.name in LANGUAGE_MODELS
        return
    expected = [name.removesuffix("/tokens") for name in names if name.endswith("/tokens")]
    beam = 5 if "register_factor" in reference.values else 4
    penalty = float(reference.values.get("length_penalty", 1.0))
    search = make_search(Decode(beam_size=beam, length_penalty=penalty))
    static = {
        name: array
        for name, array in reference.batch.items()
        if name == "target_lang" or not name.startswith("target")
    }
    limits = np.array([int(1.2 * len(source) + 10) for source in reference.sources], np.int32)
    request = Request(
        prefix=reference.batch["target_tokens"][:, :1],
        max_length=limits,
        active=np.ones(len(limits), bool),
        max_steps=int(limits.max()) + 1,
    )
    found = generate(model, reference.params, static, request, search=search)
    for name in expected:
        row, rank = map(int, name.split("/")[1:])
        tokens = found.tokens[row, rank, : found.lengths[row, rank]].tolist()
        assert tokens == permute_ids(reference.values[f"{name}/tokens"]).tolist(), name
        score = float(reference.values[f"{name}/score"])
        assert float(found.scores[row, rank]) == pytest.approx(score, abs=SCORE_ATOL)
    assert len(expected) >= len(limits)


def test_round_trip_is_exact(reference):
    written = write_parameters(reference.params, reference.config, reference.layout)
    for name, array in written.items():
        expected = reference.values[f"param/{name}"]
        if re.search(r"language_specific[12]\.0\.", name):  # the centre's, which nothing computes
            expected = np.zeros_like(expected)
        if name.endswith("embed_positions.weight"):  # nothing reads the rows of padding
            expected = expected * (np.arange(len(expected)) >= 2)[:, None]
        np.testing.assert_array_equal(array, expected)
    assert len(written) > 20
    assert not np.array_equal(
        unpermute_rows(reference.params["embedding"]), reference.params["embedding"]
    )
