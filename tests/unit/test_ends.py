"""Positions and activations as settings."""

from __future__ import annotations

import dataclasses
import math

import jax
import numpy as np
import pytest

from mnmt_jax.config.sections import Decode, Model
from mnmt_jax.data.instruction import INSTRUCTIONS
from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.inference_model import InferenceModel
from mnmt_jax.decoding.translate_lines import score_lines, translate_lines
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.errors import UserError
from mnmt_jax.methods.adaption import Adaption
from mnmt_jax.methods.instructcl import InstruCL
from mnmt_jax.model.context import Context, PositionInfo
from mnmt_jax.model.modules import ACTIVATIONS
from mnmt_jax.model.network import build_model
from mnmt_jax.model.sublayers import FeedForward
from mnmt_jax.training.train import train
from tests.applied import apply
from tests.made_run import make_cache, make_config
from tests.sample_batches import VOCAB, make, pack, random_pairs, small_config, spans_of, unpacked
from tests.unit import made_text


def test_gelu_is_the_exact_one():
    """The tanh form is off by up to 5e-4."""
    points = np.linspace(-5, 5, 201, dtype=np.float32)
    expected = [x * 0.5 * (1 + math.erf(x / math.sqrt(2))) for x in points.astype(float)]
    np.testing.assert_allclose(ACTIVATIONS["gelu"](points), expected, atol=1e-6, rtol=0)


GELU = Model(embed=4, heads=2, activation="gelu")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (FeedForward(GELU, 3), "gelu"),
        (FeedForward(GELU, 3, activation="relu"), "relu"),
        (Adaption(3)._kind(GELU, "input"), "relu"),
    ],
)
def test_a_feed_forward_uses_its_own_activation_or_the_models(kind, expected):
    info = PositionInfo(Context({}, {}, {}), ("source",))
    states = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
    params = kind.init(jax.random.key(0), states, info, method="change")
    wi, wo = (jax.tree.map(np.asarray, params["params"][name]) for name in ("wi", "wo"))
    inner = np.asarray(ACTIVATIONS[expected](states @ wi["kernel"] + wi["bias"]))
    actual = kind.apply(params, states, info, method="change")
    np.testing.assert_allclose(actual, inner @ wo["kernel"] + wo["bias"], atol=1e-6)


def test_every_plain_layer_uses_the_models_activation():
    config = small_config("two_stage", activation="gelu")
    for model, expected in (
        (config, "gelu"),
        (dataclasses.replace(config, activation="relu"), "relu"),
    ):
        layers = [layer for _, layer in build_model(model, VOCAB).plan.layers()]
        kinds = [each.kind for each in sum(layers, ()) if each.name == "mlp"]
        actual = {kind.activation or kind.config.activation for kind in kinds}
        assert actual == {expected}


ROWS = 11


@pytest.mark.parametrize("scale", [True, False])
def test_each_learned_position_has_its_own_row(scale):
    """Positions restart in every segment; sqrt(16) is 4."""
    layout = LAYOUTS["register"]
    config = small_config("register", positions=("learned", 20), embedding_scale=scale)
    spans = [spans_of(layout, *pair) for pair in random_pairs(2, seed=1)]
    batch = pack([spans], dict.fromkeys(layout.embedded_roles(), 20))
    model, params = make(config)
    table, rows = np.asarray(params["embedding"]), np.asarray(params["embedding_positions"])
    assert rows.shape == (20, 16)
    actual = apply(model, params, batch, list(layout.embedded_roles()), method="_embed_spans")
    for role, vectors in actual.items():
        tokens, positions = (batch[f"{role}_{kind}"] for kind in ("tokens", "positions"))
        np.testing.assert_allclose(
            vectors, table[tokens] * (4 if scale else 1) + rows[positions], atol=1e-6
        )
    assert len(set(batch["source_positions"][0])) < (batch["source_segment_ids"] != 0).sum()


def test_learned_positions_are_initialised_like_fairseq():
    config = small_config("prefix", embed=64, positions=("learned", 400))
    batch = unpacked(LAYOUTS["prefix"], random_pairs(1))
    params = jax.jit(build_model(config, VOCAB).init)(jax.random.key(0), batch)["params"]
    rows = np.asarray(params["embedding_positions"])
    assert abs(rows.std() - 1 / 8) < 0.002 and abs(rows.mean()) < 0.003


def test_without_positions_only_the_mask_encodes_order():
    config = small_config("prefix", positions=())
    batch = unpacked(LAYOUTS["prefix"], random_pairs(2))
    model, params = make(config)
    actual = apply(model, params, batch, ["source"], method="_embed_spans")["source"]
    np.testing.assert_allclose(actual, np.asarray(params["embedding"])[batch["source_tokens"]] * 4)


def refused(role: str, length: int, **changes) -> None:
    """Assert that a position table with one row too few is refused in one line."""
    for rows in (length, length - 1):
        model = build_model(small_config(positions=("learned", rows), **changes), VOCAB)
        batch = pack([], dict.fromkeys(model.layout.embedded_roles(), 2) | {role: length})
        draw = lambda: jax.eval_shape(model.init, jax.random.key(0), batch)  # noqa: B023, E731
        if rows == length:
            draw()
            continue
        with pytest.raises(UserError, match=rf"{rows}\): the {role} span has {length} ") as caught:
            draw()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("role", ["source", "register", "target"])
def test_a_span_longer_than_the_rows_is_refused(role):
    refused(role, 7, name="register")


def test_a_training_with_too_few_rows_is_refused(tmp_path):
    cache = make_cache(tmp_path / "cache")
    config = make_config(cache, model={"positions": ("learned", 15)})
    with pytest.raises(UserError, match="span has 16 positions; .* Data.source_length"):
        train(config, tmp_path / "run")


def test_a_view_longer_than_the_rows_is_refused(tmp_path):
    """Its length follows from the targets, which it reads as sources."""
    config = make_config(
        make_cache(tmp_path / "cache"),
        model={"positions": ("learned", 16)},
        data={"source_length": 8},
        train={"methods": (InstruCL(1),)},
    )
    with pytest.raises(UserError, match="lower Data.target_length or Data.max_segments$"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_decode_limit_longer_than_the_rows_is_refused():
    """For buckets and generated tokens, before any line; the longest allowed is translated."""
    vocabulary, instruction = made_text.vocabulary(), INSTRUCTIONS["1"]
    config = small_config("prefix", positions=("learned", ROWS))
    batch = unpacked(LAYOUTS["prefix"], random_pairs(1))
    model = build_model(config, vocabulary.size)
    params = jax.jit(model.init)(jax.random.key(0), batch)["params"]
    inference_model = InferenceModel(model, params, vocabulary, instruction)
    lines = [Line(n, text, "en", "de") for n, text in enumerate(["", made_text.sentence(0, "en")])]
    fits = Decode(max_length=ROWS - instruction.target_extra, buckets=(ROWS,), batch=1, beam_size=1)
    assert len(list(translate_lines(inference_model, lines, fits))) == 2
    longer = dataclasses.replace(fits, max_length=fits.max_length + 1)
    wider = dataclasses.replace(fits, buckets=(4, ROWS + 1))
    for decode, message in (
        (longer, "target span has 12 .*Decode.max_length"),
        (wider, "source span has 12"),
    ):
        with pytest.raises(UserError, match=message):
            next(translate_lines(inference_model, lines, decode))
    with pytest.raises(UserError, match="source span has 12"):
        score_lines(inference_model, lines[1:], ["x"], wider)
    score_lines(inference_model, lines[1:], ["x"], longer)
    narrow = dataclasses.replace(longer, buckets=(6,))
    for text, source, reference in (("source", "x" * 9, "x"), ("reference", "x", "x" * 9)):
        short = [dataclasses.replace(lines[1], text=source)]
        with pytest.raises(UserError, match=f"^line 2 of the {text} needs .* tokens"):
            score_lines(inference_model, short, [reference], narrow)


def test_a_cache_longer_than_the_rows_is_refused():
    """The growing cache is checked in the decoding step: no position beyond the table is read."""
    config = small_config("prefix", positions=("learned", ROWS))
    batch = unpacked(LAYOUTS["prefix"], random_pairs(1))
    model = build_model(config, VOCAB)
    params = jax.eval_shape(model.init, jax.random.key(0), batch)
    static = {name: array for name, array in batch.items() if not name.startswith("target")}

    def step(steps: int):
        prefill = lambda p: model.apply(p, static, beam=1, max_steps=steps, method="prefill")  # noqa: E731
        cache = jax.eval_shape(prefill, params)
        tokens = jax.ShapeDtypeStruct((1, 1), np.int32)
        return jax.eval_shape(lambda *a: model.apply(*a, method="step"), params, tokens, cache)

    step(ROWS)
    with pytest.raises(UserError, match=f"the target span has {ROWS + 1} positions"):
        step(ROWS + 1)
