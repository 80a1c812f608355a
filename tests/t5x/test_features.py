"""The TensorFlow layout of spans against the NumPy one, packed and unpacked. Needs no t5x."""

from __future__ import annotations

import numpy as np
import pytest
import seqio
import tensorflow as tf

from mnmt_jax.data.converter import Converter, Example, Lengths, segments_from_rows
from mnmt_jax.data.instruction import INSTRUCTIONS
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.design.views import View
from mnmt_jax.interop.t5x.feature_names import LOSS_WEIGHTS, our_batch
from mnmt_jax.interop.t5x.features import RoleFeatureConverter
from tests.t5x.made import dataset
from tests.unit import made_text

LENGTHS = Lengths(source=24, target=20, max_segments=3)
SPANS = {"inputs": LENGTHS.source, "targets": LENGTHS.target, "source_lang": 1, "target_lang": 1}
EVERY_ROLE = ("source", "register", "trigger", "target")
ROLES = {LAYOUTS[name].embedded_roles() for name in LAYOUTS}
# Every instruction with all roles at once, and the roles of every layout.
CASES = [(EVERY_ROLE, instruction) for instruction in INSTRUCTIONS]
CASES += [(roles, "4") for roles in sorted(ROLES)]


def converter(roles: tuple[str, ...], instruction: str, factor: float = 1.0, **more) -> Converter:
    row = INSTRUCTIONS[instruction]
    return Converter(made_text.vocabulary(), row, roles, LENGTHS, factor, **more)


def examples(count: int, longest: int = 9, seed: int = 0) -> list[Example]:
    rng = np.random.default_rng(seed)
    sides = [[rng.integers(3, 57, rng.integers(1, longest)) for _ in range(count)] for _ in "st"]
    languages = rng.integers(0, 3, (count, 2)).tolist()
    return [Example(*pair, *langs) for *pair, langs in zip(*sides, languages, strict=True)]


def laid_out(spec: Converter, given: list[Example], **options) -> dict[str, np.ndarray]:
    converted = RoleFeatureConverter(spec, **options)(dataset(given), SPANS)
    # Optimising the graph of the pipeline takes longer than converting sixty examples.
    unoptimized = tf.data.Options()
    unoptimized.experimental_optimization.apply_default_optimizations = False
    unoptimized.autotune.enabled = False
    rows = list(converted.with_options(unoptimized).as_numpy_iterator())
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def assert_as_numpy(spec: Converter, found: dict[str, np.ndarray], rows: list[list[Example]]):
    expected = spec.batch(segments_from_rows(rows), len(rows))
    del expected["task"]  # seqio's examples do not say which task they are of
    weights = found[LOSS_WEIGHTS]
    np.testing.assert_array_equal(weights, expected["target_segment_ids"] != 0)
    found = our_batch(found)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == np.int32
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parametrize(("roles", "instruction"), CASES)
def test_packed_rows_are_those_of_the_numpy_converter(roles, instruction):
    """seqio packs in order, so the segments of each row say which examples it holds."""
    assert_packed_as_numpy(converter(roles, instruction, 1.5))


@pytest.mark.parametrize("instruction", ["1", "4", "register"])
def test_identity_pairs_are_those_of_the_numpy_converter(instruction):
    """Those of InstruCL: laid out while training, absent while decoding."""
    spec = converter(EVERY_ROLE, instruction, 1.5, views=(View("identity"),))
    found = assert_packed_as_numpy(spec)
    assert (found["identity_register_segment_ids"].max(axis=1) > 1).any()
    assert "identity_source_tokens" not in laid_out(spec, examples(3), pack=False)


def assert_packed_as_numpy(spec: Converter) -> dict[str, np.ndarray]:
    given = examples(60)
    found = laid_out(spec, given, pack=True)
    counts = found["encoder_segment_ids"].max(axis=1)
    assert counts.sum() == len(given) and set(counts) >= {2, 3} and counts.max() == 3
    remaining = iter(given)
    rows = [[next(remaining) for _ in range(count)] for count in counts]
    assert_as_numpy(spec, found, rows)
    return found


@pytest.mark.parametrize(("roles", "instruction"), CASES)
def test_unpacked_rows_are_those_of_the_numpy_converter(roles, instruction):
    spec, given = converter(roles, instruction), examples(20)
    alone = Converter(spec.vocabulary, spec.instruction, roles, Lengths(24, 20))
    assert_as_numpy(alone, laid_out(spec, given, pack=False), [[example] for example in given])
    assert_as_numpy(alone, laid_out(alone, given, pack=True), [[example] for example in given])


@pytest.mark.parametrize("factor", [0.7, 1.0, 1.5, 3.0])
def test_registers_are_counted_as_the_published_code_does(factor):
    roles = LAYOUTS["register"].embedded_roles()
    spec, given = converter(roles, "register", factor), examples(40, longest=22)
    lengths = Lengths(LENGTHS.source, LENGTHS.target)
    alone = Converter(spec.vocabulary, spec.instruction, roles, lengths, factor)
    given = [e for e in given if len(e.target) < LENGTHS.target]
    found = laid_out(alone, given, pack=True)
    assert_as_numpy(alone, found, [[example] for example in given])
    assert len(set((found["register_segment_ids"] != 0).sum(axis=1))) > 5


def test_training_leaves_out_what_does_not_fit_and_inference_cuts_it():
    """Source spans hold 24 tokens: a tag, eos and 22 pieces."""
    spec = converter(LAYOUTS["register"].embedded_roles(), "register")
    given = [Example(np.arange(3, 3 + n), np.array([3]), 0, 1) for n in (21, 22, 23, 24)]
    packed = laid_out(spec, given, pack=True)
    assert packed["encoder_segment_ids"].max(axis=1).tolist() == [1, 1]
    cut = laid_out(spec, given, pack=False)["encoder_input_tokens"]
    assert (cut != 0).sum(axis=1).tolist() == [23, 24, 24, 24]
    assert cut[-1, -2:].tolist() == [3 + 21, 1]


def test_evaluation_reads_every_example_of_a_task():
    """`seqio.Evaluator` pairs predictions with references by their place."""
    from mnmt_jax.interop.seqio.tasks import add_task
    from mnmt_jax.interop.seqio.vocabulary import PieceVocabulary

    lines = list(zip(made_text.sentences("de", 7), made_text.sentences("en", 7), strict=True))

    def text(split, shuffle_files, seed=None):
        tensors = [tf.constant(side) for side in zip(*lines, strict=True)]
        data = tf.data.Dataset.from_tensor_slices(tuple(tensors))
        return data.map(lambda source, target: {"inputs": source, "targets": target})

    source = seqio.FunctionDataSource(text, splits=["test"], num_input_examples={"test": 7})
    vocabulary = PieceVocabulary(made_text.vocabulary)
    add_task("t5x_de_en", source, direction=("de", "en"), vocabulary=vocabulary)
    spec = converter(LAYOUTS["register"].embedded_roles(), "register")
    evaluator = seqio.Evaluator(
        "t5x_de_en",
        RoleFeatureConverter(spec, pack=False),
        eval_split="test",
        sequence_length=SPANS,
        logger_cls=(),
    )

    def right_answers(examples, model_feature_shapes=None):
        return [(i, np.asarray(row["decoder_target_tokens"]).tolist()) for i, row in examples]

    metrics, outputs = evaluator.evaluate(
        compute_metrics=True, predict_fn=right_answers, score_fn=None
    )
    [found] = outputs["t5x_de_en"].values()
    assert len(found) == 7
    found = metrics.result()["t5x_de_en"]
    assert found["exact_match"] == 100 and found["bleu"] == pytest.approx(100)
