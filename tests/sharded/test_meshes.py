"""The same update on one device and on eight, however they are arranged."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.config.sections import Decode, Mesh, Optimizer
from mnmt_jax.decoding.contrastive_decoding import Contrast
from mnmt_jax.decoding.generate import generate
from mnmt_jax.decoding.search import Request
from mnmt_jax.decoding.search_settings import make_search
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.distributed.sharding import jit_with_mesh, make_mesh, place_batch, tree_sharding
from mnmt_jax.methods.graformer import Graformer
from mnmt_jax.model.network import build_model
from mnmt_jax.runs.parameters import load_params, place_params
from mnmt_jax.training import gradients
from mnmt_jax.training.build import jit_programs
from mnmt_jax.training.checkpoints import Checkpoints
from mnmt_jax.training.learner import Learner
from mnmt_jax.training.losses import chunked_token_loss, token_loss
from mnmt_jax.training.optimizer import make_optimizer
from mnmt_jax.training.state import abstract_state, create_state, make_init, shardings_of
from mnmt_jax.training.train_step import train_step
from tests.made_run import make_config
from tests.random_params import random_params
from tests.sample_batches import random_pairs, small_config, unpacked
from tests.toy_heads import ENDS, TABLES

VOCAB = 20  # so that `tensor` can split it
LOSS_RTOL = 1e-6
MOMENT_ATOL = 1e-7
PARAMETER_ATOL = 2e-6
SCORE_ATOL = 1e-5
MESHES = {
    "1x1x1": Mesh(),
    "8x1x1": Mesh(),
    "1x8x1": Mesh(fsdp=8),
    "2x1x4": Mesh(tensor=4),
    "2x4x1": Mesh(fsdp=4),
    "2x2x2": Mesh(fsdp=2, tensor=2),
}
STAGE_LAYERS = {"register": (1,), "encoder_decoder": (1, 1), "grafted": (1, 1, 1)}
GRAFT = {"methods": (Graformer(encoder_layers=1, decoder="tune"),), "positions": ("learned", 32)}


def mesh_of(name: str) -> jax.sharding.Mesh:
    return make_mesh(MESHES[name], jax.devices()[: 1 if name == "1x1x1" else 8])


def make_learner(folder, mesh, layout: str = "register", optimizer=None, **sizes) -> Learner:
    config = make_config(folder)
    model = dataclasses.replace(
        config.model, layout=layout, stage_layers=STAGE_LAYERS[layout], heads=4, **sizes
    )
    optimizer = dataclasses.replace(
        config.optimizer,
        **{"initial_learning_rate": 1e-3, "accumulate": 2, "eps": 1e-3} | (optimizer or {}),
    )
    config = dataclasses.replace(config, model=model, optimizer=optimizer)
    return dataclasses.replace(Learner.from_config(config, VOCAB, mesh), chunk=16)


def make_batch(learner: Learner) -> dict[str, np.ndarray]:
    batch = unpacked(learner.model.layout, random_pairs(16))
    segments = batch["target_segment_ids"]
    labels = np.where(segments > 0, np.roll(batch["target_tokens"], -1, axis=1), 0)
    batch["target_labels"] = labels.astype(np.int32)
    return {name: array.reshape(2, 8, -1) for name, array in batch.items()}


def start(learner: Learner, mesh):
    """Returns the first state, the compiled update, a placed batch, and how the state is made."""
    batch = make_batch(learner)
    one = {key: array[0] for key, array in batch.items()}
    init = make_init(learner, one, 3)
    step = jit_with_mesh(
        mesh,
        functools.partial(train_step, learner),
        out_shardings=(shardings_of(abstract_state(init, mesh)), None),
    )
    return create_state(init, mesh), step, place_batch(batch, mesh, leading=1), init


@pytest.fixture(scope="module")
def updates(tmp_path_factory):
    """Returns state, metrics and first state after one update on a mesh, dropout on."""

    @functools.cache
    def update(name: str, layout: str, **sizes):
        mesh = mesh_of(name)
        learner = make_learner(tmp_path_factory.getbasetemp(), mesh, layout, **sizes)
        assert learner.model.config.dropout > 0
        state, step, batch, init = start(learner, mesh)
        after, metrics = step(state, batch)
        return state, after, jax.device_get(metrics), init

    return update


@pytest.mark.parametrize(
    ("layout", "name", "sizes"),
    [("register", name, {}) for name in MESHES if name != "1x1x1"]
    + [("encoder_decoder", "2x2x2", {})]
    + [("register", name, ENDS) for name in ("8x1x1", "2x4x1", "2x2x2")]
    + [("grafted", "2x2x2", GRAFT)],
)
def test_update_equals_that_of_one_device(layout, name, sizes, updates):
    """Also with two heads, whose tables and positions are split as the table of axes says."""
    assert_same_update(updates(name, layout, **sizes), updates("1x1x1", layout, **sizes))


def test_update_without_room_for_whole_parameters(updates, monkeypatch):
    """Then devices that split them exchange with every micro-batch."""
    monkeypatch.setattr(gradients, "device_memory", lambda: 0)
    sizes = {"norm": "pre"}  # of no other test: what was updated is kept
    assert_same_update(updates("2x4x1", "register", **sizes), updates("1x1x1", "register", **sizes))


def assert_same_update(found, expected):
    """Compares updates of eight devices and of one."""
    (begun, found, metrics, _), (first, expected, expected_metrics, _) = found, expected
    assert all(len(leaf.sharding.device_set) == 8 for leaf in jax.tree.leaves(found.params))

    def compare(left, right, atol):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(
                np.asarray(a), np.asarray(b), atol=atol, rtol=1e-5
            ),
            left,
            right,
        )

    compare(begun.params, first.params, 0)
    for key, value in expected_metrics.items():
        np.testing.assert_allclose(metrics[key], value, rtol=1e-5, err_msg=key)
    np.testing.assert_allclose(metrics["loss"], expected_metrics["loss"], rtol=LOSS_RTOL)
    moments = expected.opt_state.first_moment  # a tenth of the gradient
    assert max(float(jnp.abs(m).max()) for m in jax.tree.leaves(moments)) > 1e-3
    compare(found.opt_state.first_moment, moments, MOMENT_ATOL)
    compare(found.params, expected.params, PARAMETER_ATOL)
    for path, change in jax.tree_util.tree_leaves_with_path(
        jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), expected.params, first.params)
    ):
        # A bias on all keys moves no softmax, so it has no gradient.
        is_key_bias = jax.tree_util.keystr(path).endswith("['key']['bias']")
        assert is_key_bias or change > 10 * PARAMETER_ATOL, path


def test_lora_trains_alike_on_a_mesh(tmp_path):
    """Two updates, since the first one's gradient of A is zero; what is frozen stays."""
    found = {}
    constant = Optimizer(schedule="constant", warmup_steps=0, learning_rate=0.1, eps=1e-3)
    for name in ("1x1x1", "2x2x2"):
        mesh = mesh_of(name)
        learner = make_learner(tmp_path, mesh, lora_rank=3, lora=("query", "out", "wi", "wo"))
        learner = dataclasses.replace(learner, optimizer=make_optimizer(constant, 2))
        state, step, batch, _ = start(learner, mesh)
        after, metrics = step(step(state, batch)[0], batch)
        found[name] = state, after, metrics
    (_, expected, measured), (first, after, metrics) = found["1x1x1"], found["2x2x2"]
    np.testing.assert_allclose(metrics["gradient_norm"], measured["gradient_norm"], rtol=1e-5)
    compare = functools.partial(np.testing.assert_allclose, atol=PARAMETER_ATOL, rtol=1e-5)
    jax.tree.map(compare, *(jax.device_get(state.params) for state in (after, expected)))
    (moved, kept), (drawn, frozen) = (
        learner.trainable.split(jax.device_get(state.params)) for state in (after, first)
    )
    jax.tree.map(np.testing.assert_array_equal, kept, frozen)
    change = jax.tree.map(lambda a, b: np.abs(a - b).max(), moved, drawn)
    assert min(jax.tree.leaves(change)) > 10 * PARAMETER_ATOL
    for tree in (after.params, after.opt_state.first_moment):
        query = tree["layer_0"]["attention"]["query"]
        assert query["lora_a"].addressable_shards[0].data.shape == (8, 3)
        assert query["lora_b"].addressable_shards[0].data.shape == (3, 2, 4)
    assert "embedding" not in after.opt_state.first_moment


def test_tables_and_positions_are_split_as_the_table_says(updates):
    _, state, _, _ = updates("2x2x2", "register", **ENDS)
    for tree in (state.params, state.opt_state.first_moment):
        shapes = {n: a.addressable_shards[0].data.shape for n, a in tree.items() if "embed" in n}
        rows = dict.fromkeys(("source_embedding_positions", "target_embedding_positions"), (16, 8))
        assert shapes == dict.fromkeys(TABLES, (VOCAB // 2, 8)) | rows


def test_parameters_and_moments_are_split_as_the_table_says(updates):
    _, state, _, _ = updates("2x2x2", "register")
    for tree in (state.params, state.opt_state.first_moment):
        assert tree["embedding"].addressable_shards[0].data.shape == (VOCAB // 2, 8)
        kernel = tree["layer_0"]["attention"]["query"]["kernel"]
        assert kernel.addressable_shards[0].data.shape == (8, 2, 4)


@pytest.mark.parametrize("vocab", [VOCAB, VOCAB + 1])
@pytest.mark.parametrize("name", ["2x2x2", "2x1x4"])
def test_loss_over_a_split_vocabulary(name, vocab):
    mesh = mesh_of(name)
    rng = np.random.default_rng(0)
    features = jnp.asarray(rng.normal(size=(8, 4, 16)), jnp.float32)
    table = jnp.asarray(rng.normal(size=(vocab, 16)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, vocab, (8, 4)), jnp.int32)
    valid = jnp.asarray(rng.random((8, 4)) < 0.8)

    def chunked(f, t, la, v):
        return chunked_token_loss([(f, t)], la, v, label_smoothing=0.1, chunk=16).smoothed

    def plain(f, t, la, v):
        return token_loss(jnp.einsum("btm,vm->btv", f, t), la, v, 0.1).smoothed

    split = jax.device_put(table, tree_sharding(mesh, {"embedding": table})["embedding"])
    rows = place_batch({"f": features, "la": labels, "v": valid}, mesh)
    found, gradients = jit_with_mesh(mesh, jax.value_and_grad(chunked, (0, 1)))(
        rows["f"], split, rows["la"], rows["v"]
    )
    expected, expected_gradients = jax.jit(jax.value_and_grad(plain, (0, 1)))(
        features, table, labels, valid
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    for a, b in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=2e-6)


@functools.cache
def searched(name: str, layout: str, inputs: int = 1):
    """Beam search of eight sentences, so many inputs each, with all placed on a mesh."""
    mesh = mesh_of(name)
    config = small_config(layout, heads=4, **(GRAFT if layout == "grafted" else {}))
    model = build_model(config, VOCAB)
    batch = unpacked(LAYOUTS[layout], random_pairs(8 * inputs))
    params = random_params(model)
    static = {key: a for key, a in batch.items() if not key.startswith("target")}
    prefix = batch["target_tokens"][:, :1].reshape(8, inputs, 1)
    weights = np.tile(np.float32([0.5, 0.3][: inputs - 1]), (8, 1))
    request = Request(
        prefix=prefix[:, 0],
        max_length=np.arange(4, 12, dtype=np.int32),
        active=np.ones(8, bool),
        contrast=Contrast(prefix[:, 1:], weights) if inputs > 1 else None,
        max_steps=12,
    )
    placed = jax.device_put(params, tree_sharding(mesh, params)), place_batch(static, mesh)
    search = make_search(Decode(beam_size=3))
    with jax.set_mesh(mesh):
        return generate(model, *placed, request, search=search)


@pytest.mark.parametrize(
    ("name", "layout", "inputs"),
    [
        *itertools.product(["8x1x1", "1x8x1", "2x2x2"], ["register", "encoder_decoder"], [1]),
        ("2x2x2", "grafted", 1),
        ("8x1x1", "register", 3),
        ("2x2x2", "encoder_decoder", 3),
    ],
)
def test_beam_search_equals_that_of_one_device(name, layout, inputs):
    """With contrasts too, whose inputs lie on the device of their sentence."""
    expected, found = searched("1x1x1", layout, inputs), searched(name, layout, inputs)
    assert len({tuple(row) for row in expected.tokens[:, 0].tolist()}) > 4
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    np.testing.assert_allclose(found.scores, expected.scores, atol=SCORE_ATOL)


def test_checkpoint_is_restored_onto_another_mesh(updates, tmp_path):
    _, state, _, _ = updates("8x1x1", "register")
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(state, {"data": {}})
    checkpoints.wait()
    _, other, _, init = updates("2x2x2", "register")
    restored = checkpoints.restore(abstract_state(init, mesh_of("2x2x2")))
    checkpoints.close()
    assert restored is not None
    for found, expected, like in zip(
        *(jax.tree.leaves(tree) for tree in (restored.state, state, other)), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))
        assert found.sharding.is_equivalent_to(like.sharding, found.ndim)
    (tmp_path / "config.gin").write_text("Model.layout = 'register'\n", encoding="utf-8")
    for mesh in (None, mesh_of("2x2x2")):
        loaded, step = load_params(tmp_path)
        params = place_params(loaded, mesh=mesh)
        assert step == 1
        np.testing.assert_array_equal(
            np.asarray(params["embedding"]), np.asarray(state.params["embedding"])
        )
        assert len(params["embedding"].sharding.device_set) == (8 if mesh else 1)


@pytest.mark.usefixtures("relaxed_dtypes")
@pytest.mark.parametrize(
    "optimizer", [{"name": "muon"}, {"name": "schedule_free"}, {"ema_decay": 0.5}], ids=str
)
def test_other_optimizers_and_averages_are_sharded_alike(optimizer, tmp_path):
    """Two updates and the evaluated parameters equal those of one device."""
    changes = {"schedule": "constant", "warmup_steps": 0, "learning_rate": 1e-2, "eps": 1e-3}
    results = {}
    for name in ("1x1x1", "2x2x2"):
        mesh = mesh_of(name)
        learner = make_learner(tmp_path, mesh, optimizer=changes | optimizer, dropout=0.0)
        state, step, batch, init = start(learner, mesh)
        for _ in range(2):
            state, _ = step(state, batch)
        programs = jit_programs(learner, mesh, abstract_state(init, mesh))
        evaluated = programs.averaged_params(state) if programs.averaged_params else state.params
        results[name] = state, evaluated
    (state, evaluated), (expected, expected_evaluated) = results["2x2x2"], results["1x1x1"]
    compare = functools.partial(np.testing.assert_allclose, atol=1e-5, rtol=1e-4)
    jax.tree.map(compare, *map(jax.device_get, (state.params, expected.params)))
    jax.tree.map(compare, *map(jax.device_get, (evaluated, expected_evaluated)))
    change = jax.tree.map(
        lambda a, b: float(np.abs(a - b).max()), *map(jax.device_get, (evaluated, state.params))
    )
    assert (max(jax.tree.leaves(change)) > 1e-4) == (optimizer != {"name": "muon"})
    for leaf in jax.tree.leaves((state.opt_state, evaluated)):
        assert leaf.size < 64 or len({str(shard.index) for shard in leaf.addressable_shards}) > 1
