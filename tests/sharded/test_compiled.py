"""What the compiler makes of a mesh: rows stay split, and only what must travel does."""

from __future__ import annotations

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from mnmt_jax.config.sections import Mesh
from mnmt_jax.cost.collectives import find_collectives
from mnmt_jax.decoding.generate import search_batch
from mnmt_jax.decoding.search import BeamSearch, Greedy, Request, Sample, sentence_rngs
from mnmt_jax.distributed.per_device import sharded_embedding_lookup
from mnmt_jax.distributed.sharding import (
    batch_sharding,
    constrain_row_sharding,
    gather_params,
    gather_table_width,
    jit_with_mesh,
    make_mesh,
    replicated,
)
from mnmt_jax.model.key_values import reorder
from mnmt_jax.training import gradients
from mnmt_jax.training.learner import Learner
from mnmt_jax.training.state import abstract_state, make_init, shardings_of
from mnmt_jax.training.train_step import train_step
from tests.made_run import make_config
from tests.sample_batches import pack, random_pairs, spans_of

VOCAB = 20
ROWS = 56  # no other size of the program is this, a multiple of it or a part of a device's batch
LENGTHS = {"source": 9, "register": 11, "target": 10}
STAGE_LAYERS = {"register": (1,), "encoder_decoder": (1, 1)}


def make_learner(
    folder, mesh, layout: str, chunk: int = 10**6, vocab: int = VOCAB, **model
) -> Learner:
    config = make_config(folder)
    sizes = {"stage_layers": STAGE_LAYERS[layout], "embed": 32, "heads": 4, "mlp": 48} | model
    model = dataclasses.replace(config.model, layout=layout, **sizes)
    learner = Learner.from_config(dataclasses.replace(config, model=model), vocab, mesh)
    return dataclasses.replace(learner, chunk=chunk)


def batch_shapes(layout, mesh, *leading: int):
    """Shapes of a batch, placed, with leading axes of micro-batches."""
    pairs = [[spans_of(layout, *pair)] for pair in random_pairs(ROWS)]
    arrays = pack(pairs, {role: LENGTHS[role] for role in layout.embedded_roles()})
    arrays["target_labels"] = arrays["target_tokens"]
    sharding = batch_sharding(mesh, len(leading))
    return {
        name: jax.ShapeDtypeStruct(leading + a.shape, a.dtype, sharding=sharding)
        for name, a in arrays.items()
    }


def lower(mesh, function, *shapes, **options) -> str:
    """Returns one device's program."""
    with jax.set_mesh(mesh):
        return jax.jit(function, **options).lower(*shapes).compile().as_text()


def step_program(
    folder, mesh_config: Mesh, layout: str, chunk: int = 10**6, parts: int = 1, **sizes
) -> str:
    mesh = make_mesh(mesh_config)
    learner = make_learner(folder, mesh, layout, chunk, **sizes)
    shapes = batch_shapes(learner.model.layout, mesh)
    like = abstract_state(make_init(learner, shapes, 3), mesh)
    return lower(
        mesh,
        functools.partial(train_step, learner),
        like,
        batch_shapes(learner.model.layout, mesh, parts),
        out_shardings=(shardings_of(like), replicated(mesh)),
    )


def shapes_of_whole_batch(program: str) -> set[str]:
    """Shapes that hold every row of the batch, or every token of a span."""
    sizes = {ROWS, *(ROWS * length for length in LENGTHS.values())}
    found = re.findall(r"(?:f32|bf16|s32|pred)\[([\d,]+)\]", program)
    assert len(found) > 100
    return {shape for shape in found if sizes & {int(size) for size in shape.split(",")}}


def kinds_of(program: str, mesh_config: Mesh) -> set[str]:
    return {one.kind for one in find_collectives(program, dict(make_mesh(mesh_config).shape))}


@pytest.mark.parametrize("layout", STAGE_LAYERS)
def test_no_device_holds_the_whole_batch_under_fsdp(layout, tmp_path):
    program = step_program(tmp_path, Mesh(fsdp=8), layout)
    assert not shapes_of_whole_batch(program)
    kinds = kinds_of(program, Mesh(fsdp=8))
    assert "all-gather" in kinds  # of parameters
    assert not kinds & {"all-to-all", "collective-permute"}


@pytest.mark.parametrize("mesh_config", [Mesh(fsdp=8), Mesh(fsdp=4, tensor=2)], ids=str)
def test_a_loop_of_layers_collects_its_parameters_and_no_states(mesh_config, tmp_path):
    """Each parameter once forward, once backward, whatever the number of roles that use it."""
    layers = 8  # the fewest that are looped
    model = {"stage_layers": (layers,), "norm": "pre", "remat": True}
    program = step_program(tmp_path, mesh_config, "register", **model)
    assert "while(" in program
    assert not shapes_of_whole_batch(program)
    found = find_collectives(program, dict(make_mesh(mesh_config).shape))
    assert not {one.kind for one in found} & {"all-to-all", "collective-permute"}
    gathered = sum(one.bytes for one in found if one.kind == "all-gather")
    kernels = 4 * (4 * 32 * 32 + 2 * 32 * 48) // mesh_config.tensor
    assert gathered < 2.5 * layers * kernels


@pytest.mark.parametrize("mesh_config", [Mesh(), Mesh(fsdp=4)], ids=["8x1x1", "2x4x1"])
def test_chunks_of_the_loss_exchange_nothing_of_their_own(mesh_config, tmp_path):
    """Each device sums the gradient of the embedding over its chunks before the devices do."""
    shape = dict(make_mesh(mesh_config).shape)
    tokens = ROWS * LENGTHS["target"]
    found = [
        find_collectives(step_program(tmp_path, mesh_config, "register", chunk), shape)
        for chunk in (10**6, tokens // 7)
    ]
    whole, chunked = ({(one.kind, one.axes): one.bytes for one in each} for each in found)
    assert whole == chunked and sum(whole.values()) > 4 * VOCAB * 32


@pytest.mark.parametrize("mesh_config", [Mesh(tensor=2), Mesh(fsdp=4, tensor=2)], ids=str)
def test_no_device_holds_logits_of_an_odd_vocabulary_whole(mesh_config, tmp_path):
    """Its table cannot be stored in two halves of one size; the loss splits it all the same."""
    program = step_program(tmp_path, mesh_config, "register", vocab=201)
    assert re.search(r"f32\[\d+,101\]", program)
    assert not re.search(r"f32\[\d+,201\]", program)


def test_the_step_of_data_parallel_only_sums(tmp_path):
    program = step_program(tmp_path, Mesh(), "register")
    assert not shapes_of_whole_batch(program)
    assert kinds_of(program, Mesh()) == {"all-reduce"}


def test_gradients_travel_once_an_update(tmp_path):
    """Not with every micro-batch: each parameter once, and what is reported."""
    program = step_program(tmp_path, Mesh(), "register", parts=3)
    assert "while(" in program and not shapes_of_whole_batch(program)
    (sums,) = find_collectives(program, dict(make_mesh(Mesh()).shape))
    assert (sums.kind, sums.axes) == ("all-reduce", ("data",))
    learner = make_learner(tmp_path, make_mesh(Mesh()), "register")
    shapes = batch_shapes(learner.model.layout, make_mesh(Mesh()))
    like = jax.eval_shape(make_init(learner, shapes, 3))
    parameters = sum(leaf.size for leaf in jax.tree.leaves(like.params))
    assert 0 < sums.bytes - 4 * parameters < 100


def test_split_parameters_too_travel_once_an_update(tmp_path):
    """Each that is split is collected once, and its gradient scattered to where it is kept."""
    mesh_config = Mesh(fsdp=4)
    program = step_program(tmp_path, mesh_config, "register", parts=3)
    assert "while(" in program and not shapes_of_whole_batch(program)
    mesh = make_mesh(mesh_config)
    found = {(one.kind, one.axes): one.bytes for one in find_collectives(program, dict(mesh.shape))}
    learner = make_learner(tmp_path, mesh, "register")
    shapes = batch_shapes(learner.model.layout, mesh)
    params = jax.tree.leaves(abstract_state(make_init(learner, shapes, 3), mesh).params)
    split = sum(4 * leaf.size for leaf in params if not leaf.sharding.is_fully_replicated)
    others = sum(4 * leaf.size for leaf in params) - split
    assert found.pop(("all-gather", ("fsdp",))) == split > others > 0
    assert found.pop(("reduce-scatter", ("fsdp",))) == split // mesh_config.fsdp
    assert found.pop(("all-reduce", ("data",))) == split // mesh_config.fsdp
    assert 0 < found.pop(("all-reduce", ("data", "fsdp"))) - others < 100  # with what is reported
    assert sum(found.values()) < 100  # of the gradient's norm


def test_without_room_gradients_travel_with_every_micro_batch(tmp_path, monkeypatch):
    """Parameters, gradients of a micro-batch and those before it, all in float32 here."""
    mesh, layout = make_mesh(Mesh(fsdp=4)), "register"
    learner = make_learner(tmp_path, mesh, layout)
    shapes = batch_shapes(learner.model.layout, mesh)
    params = jax.tree.leaves(jax.eval_shape(make_init(learner, shapes, 3)).params)
    needed = 3 * sum(4 * leaf.size for leaf in params) / gradients._MEMORY_FRACTION
    added = []
    for memory in (needed + 1, needed - 1):
        monkeypatch.setattr(gradients, "device_memory", lambda memory=memory: memory)
        program = step_program(tmp_path, Mesh(fsdp=4), layout, parts=3)
        found = find_collectives(program, dict(mesh.shape))
        added.append(sum(one.bytes for one in found if "reduce" in one.kind))
    assert added[1] >= 3 * added[0]


def test_the_forward_pass_of_data_parallel_has_no_collective(tmp_path):
    mesh = make_mesh(Mesh())
    learner = make_learner(tmp_path, mesh, "register")
    shapes = batch_shapes(learner.model.layout, mesh)
    like = abstract_state(make_init(learner, shapes, 3), mesh)
    program = lower(mesh, learner.model.apply, {"params": like.params}, shapes)
    assert not shapes_of_whole_batch(program)
    assert not kinds_of(program, Mesh())


@pytest.mark.parametrize(
    "search",
    [BeamSearch(3, reorder), Sample(2, top_k=5), Greedy()],
    ids=lambda search: type(search).__name__,
)
def test_a_search_of_data_parallel_asks_only_whether_all_have_ended(search, tmp_path):
    """The best of a vocabulary are chosen where the rows are."""
    mesh = make_mesh(Mesh())
    learner = make_learner(tmp_path, mesh, "register")
    shapes = batch_shapes(learner.model.layout, mesh)
    like = abstract_state(make_init(learner, shapes, 3), mesh)
    static = {name: shape for name, shape in shapes.items() if not name.startswith("target")}
    asked = jnp.ones((ROWS, 1), jnp.int32), jnp.full(ROWS, 4), jnp.ones(ROWS, bool)
    asked = jax.device_put((*asked, sentence_rngs(0, jnp.arange(ROWS))), batch_sharding(mesh))

    def call(params, batch, prefix, limits, active, rngs):
        request = Request(prefix, max_length=limits, active=active, rngs=rngs, max_steps=5)
        return search_batch(params, batch, request, model=learner.model, search=search)

    program = lower(mesh, call, like.params, static, *asked)
    assert "while(" in program and not shapes_of_whole_batch(program)
    assert kinds_of(program, Mesh()) == {"all-reduce"}


@pytest.mark.parametrize(
    ("mesh_config", "vocab", "exchanged"),
    [
        (Mesh(fsdp=4), 512, {"all-to-all"}),
        (Mesh(fsdp=4), ROWS // 8 * 5, set()),  # not more rows than a device has tokens
        (Mesh(fsdp=4, tensor=2), 512, set()),  # `tensor` splits the rows
        (Mesh(), 512, set()),
    ],
    ids=["split", "small", "rows split too", "whole"],
)
def test_looking_up_a_split_table_moves_vectors_not_the_table(mesh_config, vocab, exchanged):
    """The vectors and the table's gradient are those of indexing."""
    mesh = make_mesh(mesh_config)
    table = jax.random.normal(jax.random.key(0), (vocab, 32))
    tokens = jax.random.randint(jax.random.key(1), (ROWS, 5), 0, vocab)
    weights = jax.random.normal(jax.random.key(2), (ROWS, 5, 32))

    def gradient(table, tokens, weights):
        return jax.grad(lambda table: (sharded_embedding_lookup(table, tokens) * weights).sum())(
            table
        )

    split = NamedSharding(mesh, PartitionSpec("tensor", "fsdp"))
    rows = batch_sharding(mesh)
    arguments = tuple(map(jax.device_put, (table, tokens, weights), (split, rows, rows)))
    with jax.set_mesh(mesh):
        np.testing.assert_array_equal(
            jax.jit(sharded_embedding_lookup)(*arguments[:2]), table[tokens]
        )
        compiled = jax.jit(gradient, out_shardings=split).lower(*arguments).compile()
    expected = jnp.zeros_like(table).at[tokens].add(weights)
    np.testing.assert_allclose(compiled(*arguments), expected, rtol=1e-5, atol=1e-5)
    found = find_collectives(compiled.as_text(), dict(mesh.shape))
    assert {one.kind for one in found} & {"all-to-all"} == exchanged
    if exchanged:  # the gradient of a device's part is all that it sums
        assert sum(one.bytes for one in found if "reduce" in one.kind) == table.nbytes // 4


def test_the_gradient_of_a_gathered_parameter_is_scattered():
    mesh = make_mesh(Mesh(fsdp=4))
    kernel = jax.device_put(jnp.ones((32, 48)), NamedSharding(mesh, PartitionSpec("fsdp")))
    states = jax.device_put(jnp.ones((ROWS, 32)), batch_sharding(mesh))

    def gradient(kernel, states):
        def loss(kernel):
            params = gather_params({"mlp": {"wi": {"kernel": kernel}}})
            return jnp.tanh(states @ params["mlp"]["wi"]["kernel"]).sum()

        return jax.grad(loss)(kernel)

    program = lower(mesh, gradient, kernel, states, out_shardings=kernel.sharding)
    found = find_collectives(program, dict(mesh.shape))
    # Over `fsdp` each keeps its part, so over `data` only that is summed.
    sums = {one.axes: one.bytes for one in found if "reduce" in one.kind}
    assert sums.pop(("data",)) == kernel.nbytes // 4
    assert set(sums) == {("fsdp",)}


def test_constraints_are_the_identity_without_a_mesh():
    states = jax.numpy.ones((3, 4))
    assert constrain_row_sharding(states) is states and gather_table_width(states) is states


def test_jit_with_mesh_sets_the_mesh_for_the_call_alone():
    mesh = make_mesh(Mesh(fsdp=4))
    rows = jit_with_mesh(mesh, constrain_row_sharding)(jax.numpy.ones((8, 4)))
    assert rows.sharding.is_equivalent_to(batch_sharding(mesh), 2)
    assert jax.sharding.get_abstract_mesh().empty
