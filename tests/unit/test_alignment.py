"""Word alignment by attention: an independent product, offsets, batches, pivots."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnmt_jax.analysis import attention_maps
from mnmt_jax.analysis.teacher_forcing import make_forced_sentences
from mnmt_jax.config.sections import Model
from mnmt_jax.decoding.alignment import (
    align_lines,
    alignment_path,
    alignment_paths,
    compose,
    path_weights,
)
from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.translation import Alignment, Hypothesis, Translation
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.model.network import build_model
from mnmt_jax.serving.line_engines import JobEngine
from mnmt_jax.serving.warm_up import warm_up
from mnmt_jax.vocabulary.piece_offsets import decoded_spans, encoded_spans
from tests.unit.made_text import vocabulary
from tests.unit.made_translator import BUCKETS, LINES, made_translator

ATOL = 1e-5


def translated(layout: str, lines, *, instruction="register", **fields):
    """Return the translations of lines, by number."""
    job = TranslationJob.create(made_translator(instruction, layout), **fields)
    return {line.number: translation for line, translation in job.as_completed(lines)}


def aligned_lines(texts=LINES):
    return [Line(n, text, "en", "de", aligned=True) for n, text in enumerate(texts)]


@pytest.mark.parametrize("layout, instruction", [("register", "register"), ("prefix", "4")])
def test_an_alignment_is_the_product_of_attention_maps(layout, instruction, monkeypatch):
    """`mnmt analyse attention` computes the maps of the same sentences."""
    monkeypatch.setattr(attention_maps, "_DIGITS", 60)
    translator = made_translator(instruction, layout)
    translation = translated(layout, aligned_lines(), instruction=instruction)[3]
    path = alignment_path(translator.inference_model.model.plan)
    forced = make_forced_sentences(translator, ("en", "de"), [LINES[3]], None, beam_size=3)
    maps = attention_maps.compute_attention_maps(translator.inference_model, [forced], 40)
    (direction,) = maps["directions"]
    (sentence,) = direction["sentences"]
    extra = translator.inference_model.instruction
    matrices = []
    for spec, key in zip(path, [*(spec.query for spec in path[1:]), "source"], strict=True):
        (one,) = [
            item
            for item in sentence["maps"]
            if (item["layer"], item["query"]) == (spec.layer, spec.query)
        ]
        start = sum(len(sentence["tokens"][role]) for role in spec.keys[: spec.keys.index(key)])
        size = len(sentence["tokens"][key])
        matrices.append(np.array(one["weights"])[:, start : start + size])
    product = functools.reduce(np.matmul, matrices)
    product = product[extra.target_extra - 1 : -1, extra.source_extra - 1 : -1]
    expected = product / product.sum(axis=1, keepdims=True)
    assert translation.alignment.weights.shape == expected.shape and expected.shape[0] > 1
    np.testing.assert_allclose(translation.alignment.weights, expected, atol=ATOL)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_has_a_path_from_the_target_to_the_source(layout):
    stage_layers = (2,) * len(LAYOUTS[layout].stages)
    model = Model(layout=layout, stage_layers=stage_layers, embed=16, mlp=24, heads=2)
    plan = build_model(model, 40).plan
    path = alignment_path(plan)
    assert path in alignment_paths(plan)
    assert path[0].query == plan.layout.generated and "source" in path[-1].keys
    assert len(path) == (2 if "register" in layout and "open" not in layout else 1)


def test_rows_sum_to_one_and_spans_are_the_texts():
    for number, translation in translated("encoder_decoder", aligned_lines()).items():
        alignment = translation.alignment
        np.testing.assert_allclose(alignment.weights.sum(axis=1), 1, atol=ATOL)
        assert [LINES[number][start:end] for start, end in alignment.source] == LINES[
            number
        ].split()
        assert "".join(translation.text[s:e] for s, e in alignment.target) == translation.text


def test_only_lines_that_ask_are_aligned_and_their_translation_is_the_same():
    lines = aligned_lines()
    some = [dataclasses.replace(line, aligned=line.number % 2 == 0) for line in lines]
    mixed, plain = translated("register", some), translated("register", [])
    plain = translated("register", [dataclasses.replace(line, aligned=False) for line in lines])
    for number, translation in mixed.items():
        assert (translation.alignment is None) == bool(number % 2)
        assert dataclasses.replace(translation, alignment=None) == plain[number]


def test_an_alignment_does_not_depend_on_the_batch():
    together, alone = (
        translated("register", lines)[2].alignment.weights
        for lines in (aligned_lines() + [aligned_lines()[0]], aligned_lines()[2:3])
    )
    np.testing.assert_array_equal(together, alone)


def test_a_blank_line_and_copied_text_have_no_alignment():
    by_number = translated("register", aligned_lines(["", f"{LINES[0]} ☃"]), copy_unknown=True)
    assert [by_number[n].alignment for n in (0, 1)] == [None, None]
    assert by_number[1].text


def test_through_a_pivot_the_alignments_are_multiplied():
    lines = [Line(0, LINES[0], "en", "de", aligned=True)]
    alignment = translated("register", lines, pivot="fr")[0].alignment
    assert alignment.source[-1][1] == len(LINES[0])
    np.testing.assert_allclose(alignment.weights.sum(axis=1), 1, atol=ATOL)


def test_pieces_of_the_pivot_are_matched_by_their_characters():
    """The text "ab cd" is written as "ab", " cd" and read as "a", "b", "cd"."""
    first = Alignment(((0, 1), (2, 3)), ((0, 2), (2, 5)), np.array([[1.0, 0.0], [0.0, 1.0]]))
    second = Alignment(
        ((0, 1), (1, 2), (3, 5)),
        ((0, 4), (4, 8)),
        np.array([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]]),
    )
    composed = compose(first, second)
    assert (composed.source, composed.target) == (first.source, second.target)
    # Half of the first word comes from "b", one of the characters of "ab", half from both of "cd".
    np.testing.assert_allclose(composed.weights, [[1 / 3, 2 / 3], [1.0, 0.0]])


@given(st.text("abe\u0301 \u200b☃öH", max_size=12))
@settings(deadline=None, derandomize=True, max_examples=200)
def test_spans_are_in_order_and_inside_of_the_text(text):
    spans = encoded_spans(vocabulary(), text, "en")
    assert len(spans) == len(vocabulary().encode(text, "en"))
    flat = [position for span in spans for position in span]
    assert flat == sorted(flat) and all(0 <= position <= len(text) for position in flat)


def test_spans_count_characters_before_normalisation():
    text = "two\u200b \u00a0three e\u0301nd"
    words = [text[start:end] for start, end in encoded_spans(vocabulary(), text, "en")]
    assert words[:2] == ["two\u200b", "three"]
    assert "".join(words[2:]) == "e\u0301nd"


def test_decoded_spans_are_the_text():
    ids = vocabulary().encode("two green houses", "en")
    text = vocabulary().decode(ids)
    spans = decoded_spans(vocabulary(), [*ids, vocabulary().eos_id])
    assert "".join(text[start:end] for start, end in spans) == text
    assert spans[-1] == (len(text), len(text)) and len(spans) == len(ids) + 1


def test_lines_of_a_server_are_aligned_as_those_of_a_job():
    job = TranslationJob.create(made_translator("register", "register"))
    lines = [dataclasses.replace(line, aligned=line.number < 2) for line in aligned_lines()]
    engine = JobEngine(job)  # type: ignore[arg-type]
    engine.add(list(enumerate(lines)))
    served = {}
    while len(engine):
        served.update(engine.run())
    expected = translated("register", lines)
    assert [served[n].alignment is None for n in range(len(lines))] == [False] * 2 + [True] * 5
    for number in range(2):
        np.testing.assert_array_equal(
            served[number].alignment.weights, expected[number].alignment.weights
        )


def test_all_shapes_of_alignments_are_compiled_before_the_first_request():
    job = TranslationJob.create(made_translator("register", "register", beam_size=1))
    path_weights.clear_cache()
    warm_up(job, 1)
    compiled = path_weights._cache_size()
    assert compiled == len(BUCKETS)  # the longest translation fits the largest one
    lines = aligned_lines()
    tokens = job.pretrained.vocabulary.encode("two", "en")
    for length in range(1, job.decode.max_length + 1):
        translation = Translation((Hypothesis("", 0.0, (tokens * length)[:length]),))
        pairs = [(line, translation) for line in lines]
        alignments = align_lines(job.pretrained.inference_model, pairs, job.decode)
        assert len(alignments) == len(lines) > 0 and all(alignments)
    assert path_weights._cache_size() == compiled


@pytest.mark.parametrize(
    ("layout", "layers", "expected"),
    [("encoder_decoder", (2, 4), [6]), ("prefix", (5,), [3]), ("register", (4,), [4, 1])],
)
def test_the_path_is_through_the_measured_layers(layout, layers, expected):
    model = Model(layout=layout, stage_layers=layers, embed=16, mlp=24, heads=2)
    assert [spec.layer for spec in alignment_path(build_model(model, 40).plan)] == expected
