"""Training and inference under t5x against this project's."""

from __future__ import annotations

import dataclasses

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from mnmt_jax.data.converter import Example
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.distributed.sharding import make_mesh
from mnmt_jax.errors import UserError
from mnmt_jax.interop.t5x.settings import logical_axis_rules
from mnmt_jax.methods.adaption import Adaption
from mnmt_jax.methods.back_translation import BackTranslation
from mnmt_jax.methods.cut_residual import CutResidual
from mnmt_jax.methods.graformer import Graformer
from mnmt_jax.methods.instructcl import InstruCL
from mnmt_jax.methods.language_layers import LanguageLayers
from mnmt_jax.methods.lcs import LCS
from mnmt_jax.methods.mrasp2 import MRASP2
from mnmt_jax.model.network import build_model
from mnmt_jax.model.trainable_params import Trainable
from mnmt_jax.training.learner import Learner
from mnmt_jax.training.state import LogWindow, TrainState, roles_of
from mnmt_jax.training.train_step import train_step
from tests.random_params import random_params
from tests.t5x.made import as_t5x, dataset, make_batch, make_config
from tests.unit import made_text

pytest.importorskip("t5x", reason="t5x is not installed (docs/t5x.md)")

from t5x import decoding, partitioning, train_state

from mnmt_jax.interop.seqio.vocabulary import PieceVocabulary
from mnmt_jax.interop.t5x.model import TokenMeanTrainer, TranslationModel

pytestmark = pytest.mark.usefixtures("relaxed_dtypes")  # clu and optax mix dtypes
LOSS_ATOL = 1e-6
PARAMETER_ATOL = 2e-6
SCORE_ATOL = 1e-5
LINES = ("drei grün Haus", "eins und zwei", "klein Fluss läuft hinter Haus", "zwei")


_LANGUAGES = made_text.LANGUAGES
_BRANCHES = LanguageLayers(_LANGUAGES, without=("en",), mlp=12, dropout=0.0)
# What layers ask of the language, what a layer lacks, and what objectives read of views.
METHODS = {
    "language layers and a cut residual": {"methods": (_BRANCHES, CutResidual(sublayer="mlp"))},
    "lcs": {"methods": (LCS(_LANGUAGES),)},
    "frozen branches": {"methods": (dataclasses.replace(_BRANCHES, frozen=("de",)),)},
    "a graft with two heads": {
        "layout": "grafted",
        "stage_layers": (1, 1, 1),
        "methods": (Graformer(encoder_layers=1),),
        "positions": ("learned", 40),
    },
}


def make_params(config, scale=1.0):
    model = build_model(config.model, made_text.vocabulary().size)
    return jax.tree.map(lambda p: p * scale, random_params(model))


def make_model(config):
    return TranslationModel(config, PieceVocabulary(made_text.vocabulary))


@pytest.fixture(autouse=True)
def mesh_of_virtual_devices(monkeypatch):
    """Arrange CPU devices as t5x does GPUs; otherwise it gives them all to its `model` axis.

    One device where nothing is to be split: that compiles faster.
    """

    def mesh(num_partitions, *_):
        devices = jax.devices() if num_partitions > 1 else jax.devices()[:1]
        devices = np.array(devices).reshape(-1, num_partitions)
        return jax.sharding.Mesh(devices, ["data", "model"])

    monkeypatch.setattr(partitioning, "default_mesh", mesh)


def our_step(config, params, batch):
    mesh = make_mesh(config.mesh)
    learner = Learner.from_config(config, made_text.vocabulary().size, mesh)
    parts = config.optimizer.accumulate
    shaped = {name: array.reshape(parts, -1, *array.shape[1:]) for name, array in batch.items()}
    state = TrainState(
        jnp.zeros((), jnp.int32),
        params,
        learner.optimizer.init(learner.trainable.split(params)[0]),
        LogWindow.empty(roles_of(batch), learner.sums),
    )
    after, metrics = jax.jit(lambda s, b: train_step(learner, s, b))(state, shaped)
    return after.params, metrics


def t5x_step(config, model, params, batch):
    partitioner = partitioning.PjitPartitioner(
        num_partitions=config.mesh.tensor, logical_axis_rules=logical_axis_rules(config)
    )
    batch = as_t5x(batch)
    shapes = {name: array.shape for name, array in batch.items()}
    drawn = jax.eval_shape(lambda: model.get_initial_variables(jax.random.PRNGKey(0), shapes))
    assert jax.tree.map(jnp.shape, drawn["params"]) == jax.tree.map(jnp.shape, params)
    variables = flax.core.freeze({"params": params, "params_axes": drawn["params_axes"]})
    state = train_state.FlaxOptimTrainState.create(model.optimizer_def, variables)
    with TokenMeanTrainer(
        model=model,
        train_state=state,
        partitioner=partitioner,
        eval_names=(),
        summary_dir=None,
        train_state_axes=partitioner.get_mesh_axes(state),
        rng=jax.random.PRNGKey(0),
        learning_rate_fn=model._learner.schedule,
        num_microbatches=config.optimizer.accumulate,
    ) as trainer:
        state, metrics = trainer._partitioned_train_step(state, batch)
    values = {name: metric.compute() for name, metric in metrics.items() if "timing" not in name}
    return flax.core.unfreeze(state.params), values


def assert_same_step(config):
    batch, model, params = make_batch(config), make_model(config), make_params(config, 0.3)
    before = jax.tree.map(np.asarray, params)
    expected, theirs = our_step(config, params, batch), t5x_step(config, model, params, batch)
    names = expected[1].keys() - {"gradient_norm"}
    for name in names:
        assert float(theirs[1][name]) == pytest.approx(float(expected[1][name]), abs=LOSS_ATOL)
    assert {"loss", "nll", "learning_rate"} <= names and float(expected[1]["loss"]) > 1
    ours, actual, old = (
        traverse_util.flatten_dict(tree, sep="/") for tree in (expected[0], theirs[0], before)
    )
    trainable = Trainable.from_config(config.model, config.optimizer)
    moved = 0
    for name, array in ours.items():
        np.testing.assert_allclose(actual[name], array, atol=PARAMETER_ATOL, rtol=0, err_msg=name)
        moved += np.abs(array - old[name]).max() > 10 * PARAMETER_ATOL
        if not trainable.trains(name):
            np.testing.assert_array_equal(actual[name], old[name])
    assert moved > 5
    moved_on, old_ones = (trainable.split(tree)[0] for tree in (theirs[0], before))
    kept = trainable.restore_frozen_rows(
        moved_on, old_ones
    )  # where rows are frozen, those of before
    jax.tree.map(np.testing.assert_array_equal, moved_on, kept)
    return names


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_trainers_have_the_same_loss_and_take_the_same_step(layout):
    methods = (Adaption(8, 0.0),) if layout == "two_stage" else ()
    assert_same_step(make_config(layout, model={"methods": methods}))


@pytest.mark.parametrize("name", METHODS)
def test_both_trainers_take_the_same_step_with_methods(name):
    objectives = {"methods": (MRASP2(1),)} if name == "lcs" else {}
    names = assert_same_step(make_config("encoder_decoder", model=METHODS[name], train=objectives))
    assert ("sentence_contrast" in names) == bool(objectives)


def test_branches_can_be_sharded_over_t5x_axes():
    changes = METHODS["language layers and a cut residual"]
    mesh = {"tensor": 2, "fsdp": 2}
    assert_same_step(make_config("encoder_decoder", model=changes, mesh=mesh))


def test_micro_batches_are_weighted_by_tokens():
    """Every third row has one pair, so no two micro-batches have the same number of tokens."""
    assert_same_step(make_config("register", optimizer={"accumulate": 3, "weight_decay": 0.1}))


def test_the_contrastive_term_is_used_in_training_only():
    config = make_config("register", train={"methods": (InstruCL(1),)})
    assert "contrastive" in assert_same_step(config)
    model, params, batch = make_model(config), make_params(config, 0.3), as_t5x(make_batch(config))
    batch = jax.tree.map(jnp.asarray, batch)
    (trained, _), (validated, metrics) = (
        model.loss_fn(params, batch, None),
        model.eval_fn(params, batch),
    )
    assert "contrastive" not in metrics and float(trained) > float(validated) + 1


def test_only_lora_parameters_train():
    """Clipping uses the norm of LoRA's gradients only."""
    lora, clip = {"lora_rank": 2, "lora": ("attention",)}, {"clip_norm": 0.05}
    assert_same_step(make_config("two_stage", model=lora, optimizer=clip))


def test_parameters_can_be_sharded_over_t5x_axes():
    """61 + 3 ids: the vocabulary is odd or even, heads and widths are split in two."""
    config = make_config("two_stage", mesh={"tensor": 2, "fsdp": 2})
    rules = dict(logical_axis_rules(config))
    assert rules["mlp"] == "model" and rules["embed"] == "data" and rules["length"] is None
    assert_same_step(config)


def t5x_batch(config, source="de", target="fr", references=None):
    """Lay lines out as `t5x.infer` does, one per row."""
    vocabulary = made_text.vocabulary()

    texts = references or [""] * len(LINES)
    given = [
        Example(
            np.asarray(vocabulary.encode(line)),
            np.asarray(vocabulary.encode(text), np.int32),
            vocabulary.language_index(source),
            vocabulary.language_index(target),
        )
        for line, text in zip(LINES, texts, strict=True)
    ]
    lengths = {"inputs": 16, "targets": 16, "source_lang": 1, "target_lang": 1}
    model = make_model(config)
    rows = model.FEATURE_CONVERTER_CLS(pack=False)(dataset(given), lengths)
    rows = list(rows.as_numpy_iterator())
    return model, {name: np.stack([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.parametrize("layout", [*LAYOUTS, *METHODS])
def test_t5x_gives_the_translations_of_translator(layout):
    """For every layout, and for methods whose layers need the language at every step."""
    own, changes = ("encoder_decoder", METHODS[layout]) if layout in METHODS else (layout, {})
    config = make_config(own, model=changes, decode={"max_length_per_source": 1.1})
    model, batch = t5x_batch(config)
    params = make_params(config)
    predict = jax.jit(lambda p, b: model.predict_batch_with_aux(p, b, return_all_decodes=True))
    decodes, aux = predict(params, batch)
    vocabulary = made_text.vocabulary()
    ours = Translator(config, vocabulary, params).translate_nbest(LINES, source="de", target="fr")
    assert len({hypothesis.score for actual in ours for hypothesis in actual.hypotheses}) > 6
    for row, translation in enumerate(ours):
        assert len(translation.hypotheses) == 3
        for rank, hypothesis in enumerate(translation.hypotheses):
            tokens = decodes[row, -1 - rank]
            assert tokens[: len(hypothesis.tokens)].tolist() == list(hypothesis.tokens)
            assert vocabulary.decode(tokens.tolist()) == hypothesis.text
            assert float(aux["scores"][row, -1 - rank]) == pytest.approx(
                hypothesis.score, abs=SCORE_ATOL
            )
    best = jax.jit(model.predict_batch)(params, batch)
    np.testing.assert_array_equal(best, decodes[:, -1])


def test_scores_equal_translator_without_length_penalty():
    config = make_config("register", decode={"length_penalty": 0.0})
    references = ["un maison", "deux et trois", "petit", "vert vert vert"]
    model, batch = t5x_batch(config, references=references)
    params = make_params(config)
    actual = jax.jit(model.score_batch)(params, batch)
    translator = Translator(config, made_text.vocabulary(), params)
    expected = translator.score(LINES, references, source="de", target="fr")
    np.testing.assert_allclose(actual, expected, atol=1e-4)


def test_static_keys_have_no_beam_axis_when_a_decode_function_gets_them():
    """A user's decode function with t5x's interface, which takes one greedy step."""
    config = make_config("register")
    seen = {}

    def decode_fn(
        *, inputs, cache, tokens_to_logits, num_decodes, eos_id, decode_rng, cache_offset
    ):
        rows, steps = inputs.shape
        seen.update(cache=cache, steps=steps, cache_offset=cache_offset, eos_id=eos_id)
        first = jnp.repeat(inputs[:, :1], num_decodes, axis=0)
        state = decoding.DecodingState(jnp.zeros(()), first, first, cache)
        logits, _ = tokens_to_logits(state)
        best = jnp.argmax(logits, axis=-1).reshape(rows, num_decodes, 1)
        return best, jnp.zeros((rows, num_decodes))

    model, batch = t5x_batch(config)
    params = make_params(config)
    model._decode_fn = decode_fn
    ids = model.predict_batch(params, batch, jax.random.PRNGKey(0))
    assert ids.shape == (len(LINES), 1)
    assert (seen["steps"], seen["cache_offset"], seen["eos_id"]) == (13, 0, 1)
    for layer in seen["cache"].layers:
        static = layer.static
        assert static.keys.shape == (len(LINES), 2, 8, 17)  # of several hypotheses: head_dim, k
        assert static.values.shape == (len(LINES), 2, 17, 8)
        assert layer.growing_kv.values.shape == (len(LINES), 2, 3 * 14, 8)


def test_generated_batches_are_refused():
    methods = {"methods": (BackTranslation(),)}
    config = make_config("register", train=methods, data={"max_segments": 1})
    with pytest.raises(UserError, match="'back_translation' makes batches with the model inside"):
        make_model(config)


def test_contrast_is_refused():
    for decode in ({"source_contrast": 0.5}, {"language_contrast": 0.1}):
        config = make_config("prefix", decode=decode)
        model, batch = t5x_batch(config)
        with pytest.raises(UserError, match="must be 0 for t5x, which searches without contrast"):
            model.predict_batch(make_params(config), batch)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"weights": "int8"}, "Decode.weights='int8' must be 'stored' for t5x"),
        ({"copy_unknown": True}, "Decode.copy_unknown must be False for t5x"),
        ({"utility": "chrf"}, "Decode.utility='chrf' must be '' for t5x"),
        ({"ensemble": ("run",)}, r"Decode.ensemble must be \(\) for t5x"),
    ],
)
def test_settings_unsupported_by_t5x_are_refused(setting, message):
    config = make_config("prefix", decode=setting)
    model, batch = t5x_batch(config)
    with pytest.raises(UserError, match=message):
        model.predict_batch(make_params(config), batch)


def test_sampling_takes_its_rng_from_t5x():
    config = make_config("prefix", decode={"temperature": 2.0})
    model, batch = t5x_batch(config)
    params = make_params(config)
    predict = jax.jit(model.predict_batch)
    drawn = [predict(params, batch, jax.random.PRNGKey(seed)).tolist() for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    with pytest.raises(Exception, match="no rng"):
        model.predict_batch(params, batch)
