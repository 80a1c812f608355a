"""Translators of random parameters, and their log-probabilities on the slow path."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence

import jax
import numpy as np

from mnmt_jax.config.sections import Config, Data, Decode, Mesh, Model, Optimizer, Train
from mnmt_jax.data.converter import Converter, Example, Lengths, segments_from_rows
from mnmt_jax.data.instruction import INSTRUCTIONS
from mnmt_jax.decoding.inference_model import model_inputs
from mnmt_jax.decoding.translation import Translation
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.model.network import build_model
from tests.unit.made_text import sentence, vocabulary

BUCKETS = (9, 14)
_SHORT = (n for n in itertools.count(1) if len(vocabulary().encode(sentence(n, "en"))) < 8)
LINES = [sentence(number, "en") for number in itertools.islice(_SHORT, 7)]


@functools.cache
def _params(layout: str, changes: tuple[tuple[str, object], ...]):
    vocab = vocabulary()
    stage_layers = (2,) if len(LAYOUTS[layout].stages) == 1 else (1, 1)
    model = Model(layout=layout, stage_layers=stage_layers, embed=16, mlp=24, heads=2)
    model = dataclasses.replace(model, **dict(changes))
    network = build_model(model, vocab.size)
    roles = LAYOUTS[layout].embedded_roles()
    converter = Converter(vocab, INSTRUCTIONS["1"], roles, Lengths(8, 8))
    example = Example(np.array([5, 6]), np.array([7]), 0, 1)
    batch = converter.batch(segments_from_rows([[example]]), 1)
    params = jax.jit(network.init)(jax.random.key(0), batch)["params"]
    return model, jax.tree.map(lambda array: 3 * array, params)


@functools.cache
def made_translator(
    instruction: str = "register",
    layout: str = "register",
    changes: tuple[tuple[str, object], ...] = (),
    **decode,
) -> Translator:
    """Return a translator of a small random model.

    Args:
        instruction: of `INSTRUCTIONS`.
        layout: of `LAYOUTS`.
        changes: fields of `Model` with their values.
        decode: fields of `Decode`.
    """
    model, params = _params(layout, changes)
    decode = {"batch": 4, "max_length": 11, "buckets": BUCKETS, "beam_size": 3} | decode
    config = Config(
        Data(instruction=instruction), model, Optimizer(), Train(), Decode(**decode), Mesh()
    )
    return Translator(config, vocabulary(), params)


def assert_alike(
    actual: Sequence[Translation],
    expected: Sequence[Translation],
    disturbed: Sequence[Sequence[Translation]] = (),
) -> None:
    """Assert equal translations, with scores equal up to rounding.

    Args:
        actual: what is tested.
        expected: what it should be.
        disturbed: `expected` by each of `disturbed_translators`, where sums are in another order.
    """
    assert [_unscored(each) for each in actual] == [_unscored(each) for each in expected]
    for other in disturbed:
        assert [_unscored(each) for each in other] == [_unscored(each) for each in expected]
    assert_equal_scores(*map(_scores, (actual, expected)), [_scores(other) for other in disturbed])


def assert_equal_scores(
    actual: Sequence[float], expected: Sequence[float], disturbed: Sequence[Sequence[float]] = ()
) -> None:
    """Assert that scores differ by a hundred-thousandth, or by what `disturbed` differ by."""
    tolerance = 1e-5 * np.abs(expected)
    for scores in disturbed:
        tolerance = np.maximum(tolerance, np.abs(np.subtract(scores, expected)))
    differences = np.abs(np.subtract(actual, expected))
    assert (differences <= tolerance).all(), (actual, expected, tolerance)


def disturbed_translators(translator: Translator) -> list[Translator]:
    """Return translators of three models that differ by the rounding errors of sums.

    A float32 sum of n terms in another order is that of terms which differ by n - 1 units of 2^-24
    at most (Higham, "Accuracy and Stability of Numerical Algorithms", section 4.2). So these have
    each parameter multiplied by 1 + d with random |d| <= (n - 1) 2^-24, n the longest sum of a
    layer, and show by how much the order alone may move a score.
    """
    model = translator.config.model
    largest = (max(model.embed, model.mlp) - 1) * 2.0**-24
    random = np.random.default_rng(1)

    def disturb(array: jax.Array) -> np.ndarray:
        factors = 1 + random.uniform(-largest, largest, array.shape)
        return (np.asarray(array) * factors).astype(np.float32)

    params = [jax.tree.map(disturb, translator.inference_model.params) for _ in range(3)]
    return [Translator(translator.config, translator.vocabulary, tree) for tree in params]


def _scores(translations: Sequence[Translation]) -> list[float]:
    return [h.score for translation in translations for h in translation.hypotheses]


def _unscored(translation: Translation) -> Translation:
    hypotheses = tuple(dataclasses.replace(h, score=0.0) for h in translation.hypotheses)
    return dataclasses.replace(translation, hypotheses=hypotheses)


def forced_log_probs(
    translator: Translator, line: str, source: str, target: str
) -> Callable[[Sequence[int]], np.ndarray]:
    """Return next-token log-probabilities by teacher forcing, laid out as training does."""
    vocab, inference_model = translator.vocabulary, translator._inference_model
    longest = Lengths(BUCKETS[-1], BUCKETS[-1] + 2)
    converter = dataclasses.replace(inference_model.converter(BUCKETS[-1]), lengths=longest)
    forced = inference_model.instruction.target_extra - 1
    pieces = np.array(vocab.encode(line))
    languages = vocab.language_index(source), vocab.language_index(target)

    def log_probs(tokens: Sequence[int]) -> np.ndarray:
        segments = segments_from_rows([[Example(pieces, np.array(tokens, int), *languages)]])
        batch = model_inputs(converter.batch(segments, 1))
        logits = _logits(inference_model.model, inference_model.params, batch)[
            0, len(tokens) + forced
        ]
        return np.asarray(jax.nn.log_softmax(logits))

    return log_probs


@functools.partial(jax.jit, static_argnums=0)
def _logits(model, params, batch):
    return model.apply({"params": params}, batch)
