"""Activation patching, ablation and steering of heads, on toy models with one known head."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.analysis import translation_heads
from mnmt_jax.analysis.activation_patching import (
    HeadOutputs,
    Patch,
    attention_sublayers,
    patched_log_probs,
    run_with_activations,
    state_sites,
)
from mnmt_jax.analysis.head_edits import HeadEvaluation, draw_heads, edit_heads
from mnmt_jax.analysis.teacher_forcing import ForcedSentences, iterate_batches
from mnmt_jax.analysis.translation_heads import (
    Contrast,
    Effects,
    Head,
    HeadMeans,
    language_contrasts,
    list_heads,
    meaning_contrasts,
    measure_effects,
    other_target,
)
from mnmt_jax.commands import analyse_heads
from mnmt_jax.config.sections import Config, Data, Decode, Mesh, Model, Optimizer, Train
from mnmt_jax.data.converter import Example
from mnmt_jax.data.instruction import get_instruction
from mnmt_jax.decoding.inference_model import InferenceModel
from mnmt_jax.errors import UserError
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.model.network import build_model
from mnmt_jax.runs.new_run import write_run
from tests.random_params import random_params
from tests.run_commands import command
from tests.sample_batches import make, small_config, unpacked
from tests.unit.made_text import vocabulary

ATOL = 1e-5
LANGUAGE_HEAD = Head(1, "attention", 3)


def labelled(layout, pairs):
    batch = unpacked(layout, pairs)
    return {**batch, "target_labels": np.roll(batch["target_tokens"], -1, axis=1)}


def two_batches(model):
    """Return batches with the same targets: other tags in the first row, other sources below."""
    targets = [[5, 6, 7], [8, 9], [4]]
    one = [([3, 4, 5], targets[0], 15), ([6, 7], targets[1], 15), ([9], targets[2], 16)]
    other = [([3, 4, 5], targets[0], 16), ([10, 4], targets[1], 15), ([11], targets[2], 16)]
    return labelled(model.layout, one), labelled(model.layout, other)


@pytest.mark.parametrize("layout", ["prefix", "register", "encoder_decoder", "two_stage_trigger"])
def test_nothing_patched_changes_nothing_and_everything_is_the_other_pass(layout):
    model, params = make(small_config(layout))
    source, base = two_batches(model)
    sublayers, sites = attention_sublayers(model.plan), state_sites(model.layout)
    both = np.array([False, True])
    patches = Patch(
        {sublayer: np.stack([both, both], 1) for sublayer in sublayers}, dict.fromkeys(sites, both)
    )
    log_probs, _ = patched_log_probs(params, source, base, patches, model=model, position=0)
    nothing, everything = np.asarray(log_probs.patched)
    np.testing.assert_array_equal(nothing, log_probs.base)
    np.testing.assert_array_equal(everything, log_probs.source)
    assert (np.abs(log_probs.source - log_probs.base) > 1e-3).all()
    for batch, actual in ((source, log_probs.source), (base, log_probs.base)):
        logits = model.apply({"params": params}, batch, method="logits")[:, 0]
        labels = batch["target_labels"][:, :1]
        expected = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), labels, axis=1)
        np.testing.assert_allclose(actual, expected[:, 0], atol=ATOL)


def test_a_cross_attention_is_patched_apart_from_the_self_attention():
    model, params = make(small_config("encoder_decoder"))
    source, base = two_batches(model)
    sublayers = attention_sublayers(model.plan)
    assert [sublayer for sublayer in sublayers if sublayer.layer == 3] == [
        (3, "attention"),
        (3, "memory_attention"),
    ]
    chosen = np.eye(len(sublayers), dtype=bool)
    patches = Patch(
        {sublayer: np.stack([chosen[i]] * 2, axis=1) for i, sublayer in enumerate(sublayers)},
        dict.fromkeys(state_sites(model.layout), np.zeros(len(sublayers), bool)),
    )
    log_probs, _ = patched_log_probs(params, source, base, patches, model=model, position=0)
    effects = np.abs(np.asarray(log_probs.patched) - np.asarray(log_probs.base))
    changed = effects.max(axis=1) > ATOL
    # The first decoder position attends to itself alone, before it has read the source.
    unread = [sublayer == (3, "attention") for sublayer in sublayers]
    np.testing.assert_array_equal(changed, ~np.array(unread))


def language_head_model(layout="prefix", instruction="1"):
    """Return a model of one layer with four heads, of which the third alone reads the language.

    Tags differ only in two coordinates, which no projection reads but the values of
    `LANGUAGE_HEAD`. Norms are last, so that they do not mix these coordinates with the others.
    """
    vocab = vocabulary()
    config = Model(layout=layout, embed=16, mlp=16, heads=4, stage_layers=(1,), norm="post")
    model = build_model(config, vocab.size)
    params = jax.tree.map(np.array, random_params(model, seed=4))
    tags = [vocab.tag_id(code) for code in ("en", "de", "fr")]
    params["embedding"][tags] = params["embedding"][tags[0]]
    params["embedding"][tags[1], :2] = (3, -3)
    params["embedding"][tags[2], :2] = (-3, 3)
    params["embedding"][tags[0], :2] = 0
    layer = params["layer_0"]
    for name in ("query", "key", "value"):
        layer["attention"][name]["kernel"][:2] = 0
    layer["attention"]["value"]["kernel"][:2, LANGUAGE_HEAD.number - 1] = [
        [1, 2, 1, -2],
        [-1, -2, -1, 2],
    ]
    params = jax.tree.map(jnp.asarray, params)
    return InferenceModel(model, params, vocab, get_instruction(instruction))


def example(inference_model, sources, target_token, direction):
    vocab = inference_model.vocabulary
    codes = [vocab.language_index(code) for code in direction]
    examples = [
        Example(np.array(source, np.int32), np.array([target_token, 9], np.int32), *codes)
        for source in sources
    ]
    return ForcedSentences(
        direction,
        tuple(map(str, sources)),
        tuple(f"{target_token} {n}" for n in range(len(sources))),
        tuple(examples),
    )


SOURCES = [[10, 11], [12, 13, 14], [15, 16], [10, 11]]


def contrast_with_positive_gap(inference_model):
    """Return a language contrast whose first target token is likelier in the source pass."""
    position = int(inference_model.instruction.target_tag)
    forced = example(inference_model, SOURCES, 9, ("en", "de"))
    (contrast,) = language_contrasts(
        inference_model, [forced, dataclasses.replace(forced, direction=("en", "fr"))]
    )[:1]
    rows = next(iter(iterate_batches(inference_model, [contrast.source], 16)))
    others = next(iter(iterate_batches(inference_model, [contrast.base], 16)))
    model, params = inference_model.model, inference_model.params
    first, second = (
        np.asarray(jax.nn.log_softmax(model.apply({"params": params}, b.batch, method="logits")))
        for b in (rows, others)
    )
    token = int((first - second)[:, position].sum(axis=0).argmax())
    targets = tuple(
        dataclasses.replace(one, target=np.array([token, 9], np.int32)) for one in forced.examples
    )
    source = dataclasses.replace(contrast.source, examples=targets)
    base = tuple(
        dataclasses.replace(one, target_lang=other.target_lang)
        for one, other in zip(targets, contrast.base.examples, strict=True)
    )
    return Contrast(source, dataclasses.replace(contrast.base, examples=base))


@pytest.mark.parametrize("layout", ["prefix", "register"])
def test_the_head_that_carries_the_language_is_identified(layout):
    inference_model = language_head_model(layout)
    effects = measure_effects(inference_model, [contrast_with_positive_gap(inference_model)], 16)
    assert effects.sentences == 4 and effects.gap > 0.01
    assert effects.top(1) == (LANGUAGE_HEAD,)
    shares = {head.number: share for head, share in effects.heads.items()}
    expected = {1: 0, 2: 0, 3: 1, 4: 0}
    assert shares == pytest.approx(expected, abs=1e-3)
    assert effects.all_heads == pytest.approx(1, abs=1e-3)
    carrier = "register" if layout == "register" else "source"
    roles = {state.role: share for state, share in effects.states.items()}
    assert roles[carrier] == pytest.approx(1, abs=1e-3) and roles["target"] == 0
    assert effects.roles == {
        role: pytest.approx(float(role == carrier), abs=1e-3) for role in roles if role != "target"
    }


def test_the_first_token_is_the_one_behind_a_tag_of_the_target():
    """The tag is in the target alone, so its embedding carries all of the language."""
    inference_model = language_head_model(instruction="2")
    effects = measure_effects(inference_model, [contrast_with_positive_gap(inference_model)], 16)
    states = {state.role: share for state, share in effects.states.items()}
    assert states == {"source": 0, "target": pytest.approx(1, abs=1e-3)}
    shares = [share for head, share in effects.heads.items() if head != LANGUAGE_HEAD]
    assert shares == pytest.approx([0, 0, 0], abs=1e-3) and effects.gap > 0.01


def test_a_model_that_ignores_its_input_is_an_error():
    inference_model = language_head_model()
    params = jax.tree.map(jnp.zeros_like, inference_model.params)
    silent = dataclasses.replace(inference_model, params=params)
    forced = example(silent, SOURCES, 9, ("en", "de"))
    with pytest.raises(UserError, match="^the model does not distinguish the sentences"):
        measure_effects(silent, [Contrast(forced, forced)], 16)


def test_means_leave_out_padding_and_are_by_language():
    inference_model = language_head_model()
    one = example(inference_model, SOURCES[:2], 9, ("en", "de"))
    other = example(inference_model, SOURCES[1:3], 9, ("en", "fr"))
    means, expected = HeadMeans(), {}
    for rows in iterate_batches(inference_model, [one, other], 16):
        _, activations = run_with_activations(
            inference_model.model, inference_model.params, rows.batch
        )
        outputs = {site: v for site, v in activations.items() if isinstance(site, HeadOutputs)}
        means.add(rows, outputs)
        expected[rows.forced.direction[1]] = np.concatenate(
            [
                np.asarray(value)[rows.batch[f"{site.role}_segment_ids"] > 0]
                for site, value in outputs.items()
            ]
        )[:, LANGUAGE_HEAD.number - 1]
    assert means.languages == ("de", "fr") and len(expected["de"]) < 2 * 16
    for language, values in expected.items():
        np.testing.assert_allclose(
            means.mean(LANGUAGE_HEAD, language), values.mean(axis=0), atol=ATOL
        )
    every = np.concatenate([*expected.values()])
    np.testing.assert_allclose(means.mean(LANGUAGE_HEAD), every.mean(axis=0), atol=ATOL)


@pytest.mark.parametrize("ablate", [True, False])
def test_edited_parameters_are_edited_heads(ablate):
    """In cross-attention too; other heads and the given parameters stay as they are."""
    model, params = make(small_config("encoder_decoder"))
    batch, _ = two_batches(model)
    rng = np.random.default_rng(0)
    heads = (
        Head(1, "attention", 2),
        Head(3, "memory_attention", 1),
        Head(3, "memory_attention", 2),
    )
    vectors = {head: rng.normal(size=8).astype(np.float32) for head in heads}

    def edit(site, value):
        if isinstance(site, HeadOutputs):
            for head, vector in vectors.items():
                if head[:2] == site.attention:
                    index = head.number - 1
                    edited = value.at[..., index, :]
                    value = edited.set(vector) if ablate else edited.add(vector)
        return value

    expected, _ = run_with_activations(model, params, batch, edit=edit)
    unedited, _ = run_with_activations(model, params, batch)
    edited = edit_heads(params, vectors, ablate=ablate)
    actual, _ = run_with_activations(model, edited, batch)
    np.testing.assert_allclose(actual, expected, atol=ATOL)
    assert (np.abs(actual - unedited) > 1e-3).all()
    np.testing.assert_array_equal(run_with_activations(model, params, batch)[0], unedited)


def test_lora_of_an_output_projection_is_to_be_merged_first():
    model, params = make(small_config("prefix", lora_rank=1, lora=("out",)))
    del model
    message = "^layer_0/attention/out: has LoRA; merge it first"
    with pytest.raises(UserError, match=message):
        edit_heads(params, {Head(1, "attention", 1): np.zeros(8)}, ablate=True)


def test_random_heads_are_distinct_and_reproducible():
    heads = [Head(1, "attention", number) for number in range(1, 9)]
    draws = draw_heads(heads, 3, 4, seed=1)
    assert all(len(set(drawn)) == 3 for drawn in draws) and len(set(draws)) > 1
    assert draws == draw_heads(heads, 3, 4, seed=1) != draw_heads(heads, 3, 4, seed=2)


def test_a_direction_is_contrasted_with_the_next_target():
    targets = ("de", "fr", "de", "en")
    assert other_target(("en", "de"), targets) == "fr"
    assert other_target(("de", "fr"), targets) == "en"
    assert other_target(("fr", "en"), targets) == "de"
    assert other_target(("fr", "de"), ("de", "fr")) is None
    inference_model = language_head_model()
    forced = example(inference_model, SOURCES, 9, ("en", "de"))
    with pytest.raises(UserError, match="^--directions: heads for language need .* en-de,en-fr$"):
        language_contrasts(inference_model, [forced])
    into_french = example(inference_model, SOURCES, 9, ("en", "fr"))
    contrast, back = language_contrasts(inference_model, [forced, into_french])
    assert contrast.base.direction == ("en", "fr") and back.base.direction == ("en", "de")
    index = inference_model.vocabulary.language_index("fr")
    for one, other in zip(contrast.source.examples, contrast.base.examples, strict=True):
        assert other.target_lang == index != one.target_lang
        assert other.source is one.source and other.target is one.target


def test_sources_of_one_length_are_exchanged_for_the_meaning():
    inference_model = language_head_model()
    forced = example(inference_model, SOURCES, 9, ("en", "de"))
    (contrast,) = meaning_contrasts([forced])
    # The first and last sources are equal; the second has no other of its length.
    assert contrast.source.sources == ("[10, 11]", "[15, 16]", "[10, 11]")
    assert contrast.base.sources == ("[15, 16]", "[10, 11]", "[15, 16]")
    for one, other, text in zip(
        contrast.source.examples, contrast.base.examples, contrast.base.sources, strict=True
    ):
        assert str(other.source.tolist()) == text and len(other.source) == len(one.source)
        assert other.target is one.target and other.target_lang == one.target_lang
    assert meaning_contrasts([example(inference_model, SOURCES[:2], 9, ("en", "de"))]) == []


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Make a run of the model whose third head carries the language."""
    folder = tmp_path_factory.mktemp("runs") / "toy"
    inference_model = language_head_model("register")
    config = Config(
        Data(instruction="1"), inference_model.model.config, Optimizer(), Train(), Decode(), Mesh()
    )
    params = jax.tree.map(lambda leaf: LazyArray.of(np.asarray(leaf)), inference_model.params)
    write_run(folder, config, inference_model.vocabulary, params, origin=("nobody", "toy"))
    return folder


def edited_rows(selections, value):
    """Return rows of both kinds of edits."""
    rows = []
    for name, sets in selections.items():
        row = {"heads": name, "chosen": sets, "chrf": 1, "off_target": value}
        row |= {"target": value, "other": 2}
        draws = [{**row, "other": other, "chrf": 1} for other in (1.25, 3.5, 2)]
        rows.append({**row, "draws": draws} if len(sets) > 1 else row)
    return rows


def effects_of(model, count, top):
    """Return effects in which one head carries all."""
    shares = {head: float(head.number == top) for head in list_heads(model)}
    states = {site: 0.25 for site in state_sites(model.layout)}
    return Effects(count, 1.5, shares, states, {"source": 0.0, "register": 0.75}, 1.0)


def test_the_command_reports_both_subtasks(run, tmp_path, monkeypatch):
    seen = {}

    def measured(inference_model, contrasts, max_length, means):
        name = "language" if not seen else "meaning"
        seen[name] = contrasts
        means._sums |= {"de": {}, "fr": {}}
        count = sum(len(contrast.source.sources) for contrast in contrasts)
        return effects_of(inference_model.model, count, 3 if name == "language" else 1)

    def rows(self, selections, *strength):
        seen["selections"], seen["directions"] = selections, self.directions
        return edited_rows(selections, strength[0] if strength else 7)

    monkeypatch.setattr(translation_heads, "measure_effects", measured)
    monkeypatch.setattr(HeadEvaluation, "ablation", rows)
    monkeypatch.setattr(HeadEvaluation, "steering", rows)
    flags = ["--task=cldr_quickstart", "--directions=en-de,en-fr", "--limit=30", "--top=1"]
    flags += ["--gin.Decode.buckets=(128,)", "--strength=9", "--seed=5"]
    command("analyse", "heads", "--run", run, "--output", tmp_path / "x", *flags)
    page = (tmp_path / "x" / "analysis.html").read_text("utf-8")
    assert {c.base.direction for c in seen["language"]} == {("en", "fr"), ("en", "de")}
    assert seen["meaning"]
    assert all(c.source.direction == c.base.direction for c in seen["meaning"])
    assert seen["directions"] == (("en", "de"), ("en", "fr"))
    assert "Not steered" not in page and "Without off-target ratio" not in page
    selections = seen["selections"]
    assert [len(heads) for heads in selections.values()] == [1, 1, 1, analyse_heads._DRAWS]
    assert selections["language"][0][0].number == 3 and selections["meaning"][0][0].number == 1
    assert {len(heads) for sets in selections.values() for heads in sets} == {0, 1}
    drawn = {head.number for heads in selections["random"] for head in heads}
    assert drawn <= {2, 4}
    for text in (
        "register, all layers together",
        "75",
        "Steering, heads: 1, strength 9",
        "layer 1, att",
        "<td>1.3</td>",
        "2.0 (1.2 to 3.5)",
        "of 60 sentences have no partner for the meaning",
        "shares of the language are of 60 sentences; below 100",
    ):
        assert text in page


def test_without_sources_of_equal_length_the_language_is_measured(
    run, tmp_path, monkeypatch, capsys
):
    def measured(inference_model, contrasts, max_length, means):
        means._sums |= {contrast.source.direction[1]: {} for contrast in contrasts}
        return effects_of(inference_model.model, 2, 3)

    monkeypatch.setattr(translation_heads, "measure_effects", measured)
    monkeypatch.setattr(HeadEvaluation, "ablation", lambda self, sets: edited_rows(sets, 7))
    monkeypatch.setattr(HeadEvaluation, "steering", lambda self, sets, _: edited_rows(sets, 7))
    flags = ["--task=cldr_quickstart", "--limit=1", "--top=1", "--gin.Decode.buckets=(128,)"]
    directions = "--directions=en-de,en-fr"
    command("analyse", "heads", "--run", run, "--output", tmp_path, *flags, directions)
    page = (tmp_path / "analysis.html").read_text("utf-8")
    assert "The meaning is not measured: no two sources" in page
    assert '<th scope="row">meaning</th>' not in page
    assert "warning: shares of the language are of 2 sentences" in capsys.readouterr().err
    # French has no other target language here, so that only its meaning could be compared.
    with pytest.raises(UserError, match="^--directions: nothing to compare in .* into fr; "):
        flags += ["--directions=en-de,de-fr", "--overwrite"]
        command("analyse", "heads", "--run", run, "--output", tmp_path, *flags)


@pytest.mark.parametrize(
    ("kind", "flags", "message"),
    [
        ("heads", ["--top=2"], "^--top=2: the model has 4 heads; choose 1 at most"),
        ("heads", ["--layers=1"], "--layers does not apply to analyse heads"),
        ("heads", ["--directions=en-de", "--top=1"], "^--directions: heads for language need"),
        ("similarity", ["--strength=2"], "--strength does not apply to analyse similarity"),
    ],
)
def test_invalid_arguments_are_one_error_line(kind, flags, message, run, tmp_path):
    flags = ["--task=cldr_quickstart", "--gin.Decode.buckets=(128,)", *flags]
    with pytest.raises(UserError, match=message) as caught:
        command("analyse", kind, "--run", run, "--output", tmp_path, *flags)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())
