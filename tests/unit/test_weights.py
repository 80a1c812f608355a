"""Quantized weights: rounding and products against NumPy, and accuracy of models."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.analysis.teacher_forcing import to_float32
from mnmt_jax.decoding.language_model import LanguageModel
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.decoding.weight_precision import compute_config, round_weights
from mnmt_jax.errors import UserError
from mnmt_jax.methods.language_layers import LanguageLayers
from mnmt_jax.model.quantized_weights import (
    QUANTIZED_TYPES,
    Bfloat16,
    Int8,
    affine,
    is_quantized,
    look_up,
    project,
    to_int8,
)
from tests.unit.made_language_model import logits_of, made_language_model, write_made_run
from tests.unit.made_text import LANGUAGES
from tests.unit.made_translator import LINES, assert_alike, forced_log_probs, made_translator

FEWER = ("bfloat16", "int8")
LAYOUTS = ("encoder_decoder", "register", "two_stage")
# Of logits, as a share of their spread: what rounding both sides of each product leaves open.
NEAR = {"bfloat16": 0.06, "int8": 0.1}
ULP = 2e-7
RNG = np.random.default_rng(3)
# Shapes of states and of kernels, and the kernel's axes that are summed over.
PRODUCTS = {
    "plain": ((2, 5, 6), (6, 7), (0,)),
    "to heads": ((2, 5, 6), (6, 3, 4), (0,)),
    "from heads": ((2, 5, 3, 4), (3, 4, 6), (0, 1)),
    "table": ((5, 6), (9, 6), (1,)),
}


def _rounded(array, axes):
    """Round as the module's docstring says, in NumPy."""
    largest = np.abs(array).max(axis=axes, keepdims=True)
    scale = np.where(largest == 0, np.float32(1), largest / np.float32(127))
    return np.rint(array / scale).astype(np.int64), scale


def _drawn(shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape, axes", [((6, 7), (0,)), ((3, 4, 6), (0, 1)), ((9, 6), (1,))])
def test_int8_rounding_error_is_at_most_half_a_scale(shape, axes):
    array = _drawn(shape)
    array[1] *= 1000
    array[(slice(None),) * (len(shape) - 1) + (2,)] = 0 if axes != (1,) else 5
    values, scale = map(np.asarray, to_int8(jnp.asarray(array), axes))
    assert values.dtype == np.int8 and np.abs(values).max() == 127
    expected, of = _rounded(array, axes)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_allclose(scale, of, rtol=ULP)
    error = np.abs(values * scale.astype(np.float64) - array)
    assert (error <= scale * (0.5 + 1e-5)).all() and error.max() > 0


@pytest.mark.parametrize("name", PRODUCTS)
def test_an_int8_product_is_exact_for_integers(name):
    states_shape, shape, inputs = PRODUCTS[name]
    states, kernel = _drawn(states_shape), _drawn(shape)
    states[1] *= 100
    states[0, 0] = 0
    (values, scale), last = _rounded(kernel, inputs), tuple(range(-len(inputs), 0))
    of_states, own = _rounded(states, last)
    sums = np.tensordot(of_states, values, (last, inputs))
    features = scale.squeeze(inputs)
    own = own.reshape(states_shape[: -len(inputs)] + (1,) * features.ndim)
    expected = sums.astype(np.float32) * own * features
    actual = Int8(jnp.asarray(values, jnp.int8), jnp.asarray(features), inputs)
    product = np.asarray(actual.product(jnp.asarray(states)))
    np.testing.assert_allclose(product, expected, rtol=3 * ULP)
    np.testing.assert_array_equal(np.rint(product / own / features), sums)
    bias = _drawn(features.shape)
    with_bias = affine(jnp.asarray(states), actual, jnp.asarray(bias), jnp.float32)
    np.testing.assert_allclose(with_bias, expected + bias, rtol=1e-5, atol=1e-6)
    assert np.abs(sums).max() > 10_000
    if name == "table":
        np.testing.assert_array_equal(project(jnp.asarray(states), actual), product)
        tokens = np.array([[3, 0], [8, 3]])
        np.testing.assert_allclose(look_up(actual, tokens), (values * scale)[tokens], rtol=ULP)


@pytest.mark.parametrize("name", PRODUCTS)
def test_an_int8_product_of_one_row_is_computed_as_one_of_eight(name):
    states_shape, shape, inputs = PRODUCTS[name]
    states = jnp.asarray(_drawn(states_shape))
    kernel = Int8(*to_int8(jnp.asarray(_drawn(shape)), inputs), inputs)
    kernel = dataclasses.replace(kernel, scale=jnp.squeeze(kernel.scale, inputs))
    leading = len(states_shape) - len(inputs)
    row = states[(slice(1, 2),) * leading]
    expected = kernel.product(states)[(slice(1, 2),) * leading]
    np.testing.assert_array_equal(kernel.product(row), expected)
    (product,) = (
        line for line in jax.jit(kernel.product).lower(row).as_text().splitlines() if "dot_" in line
    )
    sizes = "x".join(map(str, (8, *row.shape[1:])))
    assert f"(tensor<{sizes}xi8>" in product


def test_nan_stays_nan():
    kernel = Int8(jnp.ones((3, 2), jnp.int8), jnp.ones(2), (0,))
    actual = kernel.product(
        jnp.asarray([[1.0, jnp.nan, 2.0], [jnp.inf, 0.0, 1.0], [1.0, 2.0, 3.0]])
    )
    np.testing.assert_array_equal(np.isfinite(actual).all(axis=1), [False, False, True])


def test_a_bfloat16_product_is_summed_in_float32():
    states, kernel = (
        jnp.asarray(_drawn(shape)).astype(jnp.bfloat16) for shape in ((5, 64), (64, 7))
    )
    actual = Bfloat16(kernel, (0,)).product(states.astype(jnp.float32))
    expected = np.asarray(states, np.float64) @ np.asarray(kernel, np.float64)
    assert actual.dtype == jnp.float32
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.fixture(autouse=True)
def promoting(request):
    """Allow the dtype promotion of Flax's norms in bfloat16; int8 needs none."""
    with jax.numpy_dtype_promotion("standard" if "bfloat16" in request.node.name else "strict"):
        yield


def _with(model, weights):
    """Return the same model with other weights."""
    decode = dataclasses.replace(model.config.decode, weights=weights)
    config = dataclasses.replace(model.config, decode=decode)
    return type(model)(config, model.vocabulary, model.inference_model.params)


def _names(params, kept):
    flat = jax.tree_util.tree_leaves_with_path(
        params, is_leaf=lambda x: isinstance(x, QUANTIZED_TYPES)
    )
    names = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in flat}
    return {name for name, leaf in names.items() if isinstance(leaf, QUANTIZED_TYPES) != kept}


def _off(actual, expected):
    return np.abs(actual - expected).max() / expected.std()


def _scores_off(fewer, stored):
    """Return the maximum error of a line's score relative to the mean score."""
    actual, expected = (
        np.array(each.score(LINES, LINES, source="en", target="fr")) for each in (fewer, stored)
    )
    return np.abs(actual - expected).max() / np.abs(expected).mean()


@pytest.mark.parametrize("weights", FEWER)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_quantized_model_is_close(layout, weights):
    stored = made_translator(layout=layout)
    actual, expected = (
        forced_log_probs(each, LINES[0], "en", "fr")([5, 6, 7, 8])
        for each in (_with(stored, weights), stored)
    )
    assert 1e-4 < _off(actual, expected) < NEAR[weights]


def test_only_accelerators_compute_everything_in_bfloat16(monkeypatch):
    model = made_translator().config.model
    for name, dtype in (("cpu", "float32"), ("gpu", "bfloat16"), ("tpu", "bfloat16")):
        monkeypatch.setattr("mnmt_jax.decoding.weight_precision.platform", lambda name=name: name)
        assert compute_config(model, "bfloat16") == dataclasses.replace(model, dtype=dtype)
        assert compute_config(model, "int8") == compute_config(model, "stored") == model
    off = _off(
        *(
            forced_log_probs(each, LINES[0], "en", "fr")([5, 6, 7, 8])
            for each in (_with(made_translator(), "bfloat16"), made_translator())
        )
    )
    assert 1e-4 < off < NEAR["bfloat16"]


@pytest.mark.parametrize("weights", FEWER)
def test_exactly_the_weight_products_are_quantized(weights):
    params = _with(made_translator(layout="encoder_decoder"), weights).inference_model.params
    kept, rounded = _names(params, kept=True), _names(params, kept=False)
    assert {name.rpartition("/")[2] for name in kept} == {"bias", "scale"}
    assert {name.rpartition("/")[2] for name in rounded} == {"kernel", "embedding"}
    assert len(rounded) == 1 + 6 + 10


@pytest.mark.parametrize("weights", FEWER)
def test_a_quantized_language_model_is_close(weights):
    stored, rows = made_language_model(), [[9, 5, 6, 7, 8], [9, 8, 5, 4]]
    actual = logits_of(_with(stored, weights), rows)
    assert 1e-4 < _off(actual, logits_of(stored, rows)) < NEAR[weights]


@pytest.mark.parametrize("weights", FEWER)
def test_language_branches_and_lora_are_not_quantized(weights):
    method = LanguageLayers(LANGUAGES, without=("en",), mlp=8)
    changes = (("methods", (method,)), ("lora_rank", 2))
    stored = made_translator(changes=changes)
    fewer = _with(stored, weights)
    kept = {name for name in _names(fewer.inference_model.params, kept=True) if "bias" not in name}
    assert any("branch" in name and name.endswith("kernel") for name in kept)
    assert any(name.endswith("lora_a") for name in kept)
    assert 1e-4 < _scores_off(fewer, stored) < NEAR[weights]


def test_kernels_that_another_kind_lists_stay_as_stored():
    """They need not be of projections, nor have a bias."""
    kernel = {"kernel": jnp.ones((4, 4))}
    layer = {"gate": kernel, "mlp": {"wi": {**kernel, "bias": jnp.ones(4)}}}
    rounded = round_weights({"layer_0": layer}, "int8", ())["layer_0"]
    assert rounded["gate"]["kernel"] is kernel["kernel"]
    assert is_quantized(rounded["mlp"]["wi"]["kernel"])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_made_run(tmp_path_factory.mktemp("runs") / "run", made_translator())


@pytest.mark.parametrize("weights", FEWER)
def test_a_run_is_translated_with_quantized_weights(weights, run):
    stored = Translator.load(run)
    fewer = Translator.load(run, bindings=[f"Decode.weights='{weights}'"])
    directions = {"source": "en", "target": "fr"}
    actual = fewer.translate_nbest(LINES, **directions)
    assert_alike(_with(stored, weights).translate_nbest(LINES, **directions), actual)
    assert 1e-4 < _scores_off(fewer, stored) < NEAR[weights]
    assert fewer.identity == stored.identity and fewer.parameters == stored.parameters
    provenance = TranslationJob.create(stored).provenance()
    assert "weights" not in provenance  # as before there was a choice: what is kept stays valid
    assert TranslationJob.create(fewer).provenance() == provenance | {"weights": weights}


def test_weight_precision_is_set_at_loading(run):
    translator = Translator.load(run, bindings=["Decode.weights='int8'"])
    assert TranslationJob.create(translator, beam_size=2, weights="int8").decode.weights == "int8"
    with pytest.raises(UserError, match="weights: set when a model is loaded"):
        translator.translate(LINES[:1], source="en", target="fr", weights="stored")
    with pytest.raises(UserError, match="Decode.weights"):
        Translator.load(run, bindings=["Decode.weights='int4'"])
    with pytest.raises(UserError, match="analysed with its weights as they are stored"):
        to_float32(translator.inference_model)
    to_float32(Translator.load(run).inference_model)
    with pytest.raises(UserError):
        LanguageModel.load(run, bindings=["Decode.weights='int8'"])
