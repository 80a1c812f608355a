"""Imported Hugging Face models against outputs of `transformers`."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.data.converter import Converter, Example, Lengths, segments_from_rows
from mnmt_jax.data.instruction import get_instruction
from mnmt_jax.decoding.scoring import score_labels
from mnmt_jax.decoding.search import log_normalizer
from mnmt_jax.design.layouts import SOURCE, get_layout
from mnmt_jax.interop.huggingface import open_huggingface
from mnmt_jax.interop.names import parameter_entries, read_params
from mnmt_jax.model.network import build_model
from mnmt_jax.training.losses import token_loss
from tests.made_params import plain_rows, read_all
from tests.parity.hugging_face_search import slow_hugging_face_search
from tests.parity.reference import FOLDER, SHIPPED, permute_ids
from tests.sample_batches import pack
from tests.unit.made_text import vocabulary as made_vocabulary

DIRECTORIES = sorted(path.parent for path in FOLDER.glob("*/expected.npz"))
LOGITS_ATOL = 2e-5
LOSS_RTOL = 1e-5
SCORE_ATOL = 1e-4
IGNORED, START = -100, 1
# How the golden files were made (golden README).
BEAM, MAX_LENGTH, LENGTH_PENALTY = 4, 20, 1.0


@dataclasses.dataclass(frozen=True)
class Case:
    """A directory, the imported model, and the expected values in this project's ids."""

    foreign: object
    model: object
    params: dict
    values: dict
    rows: np.ndarray
    sources: list
    inputs: list
    labels: list

    def batch(self, sources, inputs):
        lengths = {"source": max(map(len, sources)), "target": max(map(len, inputs))}
        spans = [[{"source": s, "target": t}] for s, t in zip(sources, inputs, strict=True)]
        return pack(spans, lengths)


def test_reference_directories_exist():
    assert DIRECTORIES or FOLDER != SHIPPED, f"no directory with expected.npz in {FOLDER}"


@pytest.fixture(scope="module", params=DIRECTORIES, ids=lambda path: path.name)
def case(request):
    foreign = open_huggingface(request.param)
    with np.load(request.param / "expected.npz") as archive:
        values = {name: archive[name] for name in archive.files}
    rows = plain_rows(values["logits"].shape[-1])
    layout = get_layout(foreign.model.layout, foreign.model.stage_layers)
    table = parameter_entries(foreign.model, layout, foreign.dialect, rows)
    labels = [row[row != IGNORED] for row in values["labels"]]
    pad = int(rows[0])
    return Case(
        foreign,
        build_model(dataclasses.replace(foreign.model, dropout=0.0), len(rows)),
        jax.tree.map(jnp.asarray, read_all(read_params(foreign.tensors, table))),
        values,
        rows,
        [permute_ids(row[row != pad]).tolist() for row in values["source_tokens"]],
        [
            permute_ids(row[: len(label)]).tolist()
            for row, label in zip(values["decoder_input_tokens"], labels, strict=True)
        ],
        [permute_ids(label).tolist() for label in labels],
    )


def test_encoder_output(case, batch):
    def encode(module, batch):
        return module._run(batch, module.plan.stages, True)[1][SOURCE]

    apply = functools.partial(case.model.apply, method=encode)
    actual = np.asarray(jax.jit(apply)({"params": case.params}, batch))
    valid = batch["source_segment_ids"] != 0
    assert valid.sum() > 10
    np.testing.assert_allclose(
        actual[valid], case.values["encoder_output"][valid], atol=LOGITS_ATOL, rtol=0
    )


@pytest.fixture(scope="module")
def batch(case):
    return case.batch(case.sources, case.inputs)


@pytest.fixture(scope="module")
def logits(case, batch):
    return jax.jit(case.model.apply)({"params": case.params}, batch)


def test_logits(case, batch, logits):
    valid = batch["target_segment_ids"] != 0
    expected = case.values["logits"][..., case.rows]
    assert valid.sum() > 10
    np.testing.assert_allclose(np.asarray(logits)[valid], expected[valid], atol=LOGITS_ATOL, rtol=0)


def test_loss(case, batch, logits):
    labels = np.zeros_like(batch["target_tokens"])
    for row, label in enumerate(case.labels):
        labels[row, : len(label)] = label
    valid = jnp.asarray(batch["target_segment_ids"] != 0)
    nll = token_loss(logits, jnp.asarray(labels), valid, 0.0)[1]
    assert float(nll) == pytest.approx(float(case.values["nll_sum"]), rel=LOSS_RTOL)


def next_log_probs(case, source):
    """Return the function that gives log-probabilities after histories without the start token."""

    @jax.jit
    def logits_of(batch):
        return case.model.apply({"params": case.params}, batch)

    def log_probs(histories):
        rows = [[START, *history] for history in histories]
        rows += [[START]] * (BEAM - len(rows))  # one shape for all steps
        padded = [row + [START] * (MAX_LENGTH - len(row)) for row in rows]
        logits = logits_of(case.batch([source] * BEAM, padded))
        actual = logits - log_normalizer(logits)[..., None]
        return np.asarray(actual)[: len(histories), len(histories[0])]

    return log_probs


def test_beam_search_by_the_rules_of_transformers(case):
    """The hypotheses of `transformers` follow from our log-probabilities by its rules."""
    compared = 0
    for number, source in enumerate(case.sources):
        expected = permute_ids(case.values[f"beam/{number}/tokens"])
        actual = slow_hugging_face_search(
            next_log_probs(case, source),
            forced=int(expected[0][1]),
            eos=1,
            beam=BEAM,
            max_length=MAX_LENGTH,
            length_penalty=LENGTH_PENALTY,
        )
        scores = case.values[f"beam/{number}/scores"]
        for (score, tokens), row, wanted in zip(actual, expected, scores, strict=False):
            assert [START, *tokens] == row[: len(tokens) + 1].tolist()
            assert (row[len(tokens) + 1 :] == 0).all()
            assert score == pytest.approx(float(wanted), abs=SCORE_ATOL)
            compared += 1
    assert compared == sum(len(case.values[f"beam/{n}/tokens"]) for n in range(len(case.sources)))


def test_scores_equal_those_of_transformers_except_for_the_tag(case):
    """The sums are equal; `transformers` divides by one more token, the forced tag."""
    numbers = range(len(case.sources))
    scores = np.concatenate([case.values[f"beam/{n}/scores"] for n in numbers])
    hypotheses = [
        (source, np.trim_zeros(row, "b").tolist())
        for n, source in enumerate(case.sources)
        for row in permute_ids(case.values[f"beam/{n}/tokens"])
    ]
    batch = case.batch([s for s, _ in hypotheses], [tokens[:-1] for _, tokens in hypotheses])
    labels = np.zeros_like(batch["target_tokens"])
    for row, (_, tokens) in enumerate(hypotheses):
        labels[row, : len(tokens) - 1] = tokens[1:]
    scored = (batch["target_segment_ids"] != 0) & (batch["target_positions"] > 0)
    logits = jax.jit(case.model.apply)({"params": case.params}, batch)
    ours = np.asarray(score_labels(logits, jnp.asarray(labels), jnp.asarray(scored)))
    generated = scored.sum(1)
    assert len(hypotheses) == len(scores) > len(case.sources)
    np.testing.assert_allclose(ours * generated / (generated + 1), scores, atol=SCORE_ATOL, rtol=0)


def test_token_layout(case):
    """The instruction of the imported model gives the layout of its tokenizer."""
    instruction = get_instruction(case.foreign.instruction)
    first_tag = min(row[0] for row in case.sources + case.labels)
    languages = tuple(f"language{n}" for n in range(len(case.rows) - first_tag))
    pieces = tuple(f"piece{n}" for n in range(first_tag - 3))
    vocabulary = dataclasses.replace(made_vocabulary(), languages=languages, pieces=pieces)
    assert vocabulary.size == len(case.rows)
    length = max(map(len, case.sources + case.inputs))
    converter = Converter(vocabulary, instruction, ("source", "target"), Lengths(length, length))
    for source, tokens, labels in zip(case.sources, case.inputs, case.labels, strict=True):
        example = Example(
            np.array(source[1:-1], np.int32),
            np.array(labels[1:-1], np.int32),
            source[0] - first_tag,
            labels[0] - first_tag,
        )
        batch = converter.batch(segments_from_rows([[example]]), 1)
        assert batch["source_tokens"][0, : len(source)].tolist() == source
        assert batch["target_tokens"][0, : len(tokens)].tolist() == tokens
        assert batch["target_labels"][0, : len(labels)].tolist() == labels
