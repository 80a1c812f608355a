"""InstruCL on eight devices: anchors meet those of every device, whatever the mesh."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.config.sections import Mesh
from mnmt_jax.data.converter import Converter, Example, Lengths, segments_from_rows
from mnmt_jax.data.instruction import INSTRUCTIONS
from mnmt_jax.design.views import View
from mnmt_jax.distributed.sharding import jit_with_mesh, make_mesh, place_batch, tree_sharding
from mnmt_jax.methods.instructcl import InstruCL
from mnmt_jax.training.learner import Learner, batch_loss
from tests.made_run import make_config
from tests.random_params import random_params
from tests.sharded.test_compiled import kinds_of
from tests.unit import made_text

MESHES = {"8x1": Mesh(), "2x4": Mesh(fsdp=4)}
VALUE_RTOL = 1e-6
GRADIENT_RTOL = 1e-5
ROWS, SEGMENTS, EMBED = 24, 2, 16
VOCABULARY = made_text.vocabulary()


def make_learner(folder, mesh) -> Learner:
    config = make_config(
        folder,
        model={"layout": "two_stage_trigger", "stage_layers": (1, 1), "dropout": 0.1},
        train={"methods": (InstruCL(1),)},
    )
    return Learner.from_config(config, VOCABULARY.size, mesh)


def make_batch(learner: Learner) -> dict[str, np.ndarray]:
    """Rows of zero to two pairs, so that no two devices hold equally many anchors of a language."""
    rng = np.random.default_rng(2)

    def example():
        source, target = (rng.integers(3, 57, rng.integers(1, 5)) for _ in range(2))
        return Example(source, target, 0, int(rng.integers(1, 3)))

    rows = [[example() for _ in range(rng.integers(0, SEGMENTS + 1))] for _ in range(ROWS)]
    roles = learner.model.layout.embedded_roles()
    lengths = Lengths(source=12, target=12, max_segments=SEGMENTS)
    converter = Converter(VOCABULARY, INSTRUCTIONS["1"], roles, lengths, views=(View("identity"),))
    return converter.batch(segments_from_rows(rows), ROWS)


def differentiated(learner: Learner):
    """The term alone with its gradient, as a function of parameters, batch and dropout's rng."""

    def term(params, batch, rng):
        total, sums = batch_loss(learner, params, batch, rng)
        return total - sums["smoothed"], sums["contrastive"]

    return jax.value_and_grad(term, has_aux=True)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Returns the term, its gradient and the program of one device of a mesh, dropout on."""

    @functools.cache
    def run(name: str):
        devices = jax.devices()[: 8 if name in MESHES else 1]
        mesh = make_mesh(MESHES.get(name, Mesh()), devices)
        learner = make_learner(tmp_path_factory.getbasetemp(), mesh)
        batch = make_batch(learner)
        params = random_params(learner.model)
        placed = jax.device_put(params, tree_sharding(mesh, params))
        arguments = placed, place_batch(batch, mesh), jax.random.key(5)
        step = jit_with_mesh(mesh, differentiated(learner))
        with jax.set_mesh(mesh):
            program = step.__wrapped__.lower(*arguments).compile().as_text()
        (_, term), gradients = step(*arguments)
        return float(term), jax.device_get(gradients), program

    return run


@pytest.mark.parametrize("name", MESHES)
def test_value_and_gradients_are_those_of_one_device(name, compiled):
    expected, expected_gradients, _ = compiled("1")
    found, gradients, _ = compiled(name)
    assert found == pytest.approx(expected, rel=VALUE_RTOL) and expected > 10
    norms = jax.tree.map(jnp.linalg.norm, expected_gradients)
    scale = max(float(norm) for norm in jax.tree.leaves(norms))
    assert scale > 1
    for one, other in zip(
        *(jax.tree.leaves(tree) for tree in (gradients, expected_gradients)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=0, atol=GRADIENT_RTOL * scale)


def test_devices_exchange_no_more_than_the_anchors(compiled):
    """Spans stay where their rows are; the tags' states are what travels, and sums."""
    _, _, program = compiled("8x1")
    kinds = kinds_of(program, MESHES["8x1"])
    assert "all-gather" in kinds and kinds <= {"all-gather", "all-reduce"}
    anchors = ROWS * SEGMENTS * EMBED
    for line in program.splitlines():
        if "all-gather" in line and "= " in line:
            shapes = line.split("= ", 1)[1].split(" all-gather")[0]
            sizes = [
                int(np.prod([int(n) for n in part.split("]")[0].split(",") if n]))
                for part in shapes.split("[")[1:]
            ]
            assert max(sizes, default=0) <= anchors, line
