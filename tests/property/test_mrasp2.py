"""mRASP2's contrast of sentences: its sum, its views, packed and grouped rows."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.config.sections import Mesh
from mnmt_jax.data.converter import Converter, required_views, segments_from_rows
from mnmt_jax.data.instruction import INSTRUCTIONS
from mnmt_jax.design.objective import States
from mnmt_jax.distributed.sharding import jit_with_mesh, make_mesh, place_batch
from mnmt_jax.errors import UserError
from mnmt_jax.methods.mrasp2 import MRASP2, sentence_contrast, sentence_means
from mnmt_jax.model.forward_passes import ForwardPasses
from mnmt_jax.training.learner import Learner, batch_loss
from tests.made_run import make_config
from tests.property.test_contrastive_model import LENGTHS, VOCABULARY
from tests.property.test_plan import pairs
from tests.random_params import MILD, random_params
from tests.sample_batches import stage_layers

RTOL = 1e-5
EOS = VOCABULARY.eos_id
METHOD = MRASP2(2)


def by_hand(anchors, positives, temperature):
    total = 0.0
    for number, anchor in enumerate(anchors):
        cosines = np.array(
            [anchor @ p / np.linalg.norm(anchor) / np.linalg.norm(p) for p in positives]
        )
        exps = np.exp(cosines / temperature)
        total -= np.log(exps[number] / exps.sum())
    return total


def test_the_sum_is_the_one_by_hand_and_leaves_out_what_is_not_there():
    anchors, positives = np.random.default_rng(0).standard_normal((2, 5, 7)).astype(np.float32)
    valid = np.array([True, True, False, True, False])
    found = sentence_contrast(*map(jnp.asarray, (anchors, positives, valid)), 0.3)
    expected = by_hand(anchors[valid], positives[valid], 0.3)
    assert float(found) == pytest.approx(expected, rel=RTOL)
    gradient = jax.grad(lambda a: sentence_contrast(a, positives, jnp.asarray(valid), 0.3))
    found = np.asarray(gradient(jnp.asarray(anchors)))
    assert np.isfinite(found).all() and not found[~valid].any() and found[valid].any()


def test_the_mean_of_each_packed_sentence():
    states = np.random.default_rng(0).standard_normal((1, 6, 3)).astype(np.float32)
    ids = np.array([[1, 1, 2, 2, 2, 0]])
    found = sentence_means(jnp.asarray(states), jnp.asarray(ids), 3)[0]
    expected = [states[0, :2].mean(0), states[0, 2:5].mean(0), np.zeros(3)]
    np.testing.assert_allclose(found, expected, rtol=RTOL)


def learner(folder, method=METHOD, name="encoder_decoder", instruction="1", **changes) -> Learner:
    model = {"layout": name, "stage_layers": stage_layers(name), "dropout": 0.0} | changes
    config = make_config(
        folder, model=model, data={"instruction": instruction}, train={"methods": (method,)}
    )
    mesh = make_mesh(Mesh(), jax.devices()[:1])
    return Learner.from_config(config, VOCABULARY.size, mesh)


def batch_of(learner, rows, instruction="1"):
    roles = learner.model.layout.embedded_roles()
    views = tuple(view for view in learner.views if not view.is_batch)
    row = INSTRUCTIONS[instruction]
    converter = Converter(VOCABULARY, row, roles, LENGTHS, 1.0, views)
    batch = converter.batch(segments_from_rows(rows), len(rows))
    return {name: jnp.asarray(array) for name, array in batch.items() if name != "task"}


@pytest.mark.parametrize("instruction", INSTRUCTIONS)
def test_the_target_passes_as_it_stands(instruction, tmp_path):
    """With a tag where the target has one, and never with the source's."""
    own = learner(tmp_path, instruction=instruction)
    (pair,) = pairs(1)
    batch = batch_of(own, [[pair]], instruction)
    there = np.asarray(batch["positive_source_segment_ids"])[0] != 0
    tokens = np.asarray(batch["positive_source_tokens"])[0][there].tolist()
    labels = np.asarray(batch["target_labels"])[0][np.asarray(batch["target_segment_ids"])[0] != 0]
    assert tokens == labels.tolist() and tokens[-1] == EOS
    assert not any(name.startswith("anchor") for name in batch)


def test_the_run_has_the_views_that_need_arrays(tmp_path):
    config = make_config(tmp_path, model={}, data={}, train={"methods": (METHOD,)})
    assert [view.name for view in required_views(config)] == ["positive"]


@pytest.mark.parametrize("name", ["encoder_decoder", "two_stage"])
def test_packed_and_alone_on_one_device_and_on_many(name, tmp_path):
    """The same pairs in rows of one and of three, and rows over devices: one sum."""
    own = learner(tmp_path, name=name, heads=4)
    alone = batch_of(own, [[pair] for pair in pairs(8)])
    packed = batch_of(own, [pairs(8)[:3], pairs(8)[3:6], pairs(8)[6:]])
    params = random_params(own.model, moments=MILD)

    def term(params, batch):
        return batch_loss(own, params, batch)[1]["sentence_contrast"]

    expected = float(jax.jit(term)(params, alone))
    assert expected > 1
    assert float(jax.jit(term)(params, packed)) == pytest.approx(expected, rel=1e-4)
    mesh = make_mesh(Mesh(fsdp=2, tensor=2), jax.devices()[:8])
    on_mesh = jit_with_mesh(mesh, term)(params, place_batch(jax.tree.map(np.asarray, alone), mesh))
    assert float(on_mesh) == pytest.approx(expected, rel=1e-4)


def test_groups_are_separate_devices(tmp_path):
    """Negatives and the scale by tokens per sentence are those of a group, as on a GPU."""
    whole, halves = (learner(tmp_path, MRASP2(2, groups=groups)) for groups in (1, 2))
    short, long = pairs(6)[::2], pairs(6)[1::2]
    batch = batch_of(whole, [short[:2], short[2:], long[:1], long[1:2]])
    params = random_params(whole.model, moments=MILD)

    def term(own, batch):
        sums = jax.jit(lambda p, b: batch_loss(own, p, b)[1])(params, batch)
        return float(sums["sentence_contrast"])

    parts = [
        {name: array[half] for name, array in batch.items()} for half in (slice(2), slice(2, 4))
    ]
    total = sum(term(whole, part) for part in parts)
    assert term(halves, batch) == pytest.approx(total, rel=1e-4)
    assert term(whole, batch) > total


def test_the_anchor_has_dropout_of_its_own_unless_it_is_shared(tmp_path):
    rng = jax.random.key(0)
    for anchor, differs in (("own", True), ("shared", False)):
        own = learner(tmp_path, MRASP2(2, anchor=anchor), dropout=0.3)
        batch = batch_of(own, [[pair] for pair in pairs(4)])
        params = random_params(own.model, moments=MILD)
        (objective,) = own.objectives
        reads = objective.inputs
        assert (reads[0].view is not None) == differs
        plain = States(2, ended=True)
        forward = ForwardPasses(own.model, params, batch, rng, (*reads, plain))
        same = np.allclose(forward.read(reads[0]), forward.read(plain), atol=1e-6)
        assert same != differs


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer": 3}, "MRASP2.layer=3: .* the layers 1 to 2"),
        ({"groups": 3}, "MRASP2.groups=3 must divide Data.rows="),
        ({"layer": 1}, "MRASP2.layer=1: .* end with layer 2; choose one, or set MRASP2.ended=Fa"),
    ],
)
def test_mistakes_are_one_line(changes, message, tmp_path):
    with pytest.raises(UserError, match=message) as caught:
        learner(tmp_path, dataclasses.replace(METHOD, **changes))
    assert "\n" not in str(caught.value)


def test_sentences_are_averaged_after_the_norm_at_the_end_of_the_encoder(tmp_path):
    own = learner(tmp_path, norm="pre")
    batch = batch_of(own, [[pair] for pair in pairs(4)])
    params = random_params(own.model, moments=MILD)
    ((anchor, positive),) = [objective.inputs for objective in own.objectives]
    assert anchor.ended and positive.ended
    plain = dataclasses.replace(positive, ended=False)
    forward = ForwardPasses(own.model, params, batch, None, (anchor, positive, plain))
    states = np.asarray(forward.read(plain))
    centred = states - states.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    norm = params["stage_0_norm"]
    expected = scaled * np.asarray(norm["scale"]) + np.asarray(norm["bias"])
    np.testing.assert_allclose(forward.read(positive), expected, atol=1e-4)
