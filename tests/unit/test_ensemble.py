"""Ensembles against the mean of their members' probabilities under teacher forcing."""

import dataclasses
import types

import jax
import numpy as np
import pytest

from mnmt_jax.commands.analysis_inputs import translator_facts
from mnmt_jax.config.sections import Mesh
from mnmt_jax.decoding import model_loading
from mnmt_jax.decoding import translate_lines as lines_module
from mnmt_jax.decoding.alignment import align_lines
from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.ensemble import check_member
from mnmt_jax.decoding.translate_lines import translate_lines
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.distributed.sharding import make_mesh
from mnmt_jax.errors import UserError
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.training.checkpoints import Checkpoints
from mnmt_jax.training.state import LogWindow, TrainState
from tests.slow_search import contrasted, slow_beam_search
from tests.unit.made_translator import LINES, assert_alike, forced_log_probs, made_translator

INTO_FRENCH = {"source": "en", "target": "fr"}
WIDER = (("mlp", 40),)
CONTRAST = {"language_contrast": 0.3, "contrast_languages": ("de",)}
LAYOUTS = [("register", "register"), ("prefix_trigger", "2"), ("encoder_decoder", "3")]
SCORE_ATOL = 2e-5


def _members(layout="register", instruction="register", **decode) -> list[Translator]:
    sizes = ((), WIDER)
    return [made_translator(instruction, layout, changes, **decode) for changes in sizes]


def _ensemble(first: Translator, *others: Translator) -> Translator:
    members = [(one.config.model, one.inference_model.params) for one in others]
    params = first.inference_model.params
    return Translator(first.config, first.vocabulary, params, members=members)


def _mean(*members):
    def log_probs(tokens):
        probs = [np.exp(one(tokens).astype(np.float64)) for one in members]
        return np.log(np.mean(probs, axis=0)).astype(np.float32)

    return log_probs


@pytest.mark.parametrize(("layout", "instruction"), LAYOUTS)
def test_hypotheses_and_scores_are_those_of_the_mean_probability(layout, instruction, monkeypatch):
    """In slots, and after a second search."""
    members = _members(layout, instruction, max_length=6, batch=4, buckets=(9,))
    ensemble = _ensemble(*members)
    monkeypatch.setattr(lines_module, "initial_step_limit", lambda _, steps: steps - 1)
    actual = ensemble.translate_nbest(LINES, **INTO_FRENCH)
    for line, translation in zip(LINES, actual, strict=True):
        log_probs = _mean(*(forced_log_probs(one, line, "en", "fr") for one in members))
        expected = slow_beam_search(log_probs, beam=3, max_length=6)
        assert [list(h.tokens) for h in translation.hypotheses] == [t for _, t in expected]
        scores = [h.score for h in translation.hypotheses]
        np.testing.assert_allclose(scores, [s for s, _ in expected], atol=SCORE_ATOL)
    texts = [one.text for one in actual]
    alone = [one.translate(LINES, **INTO_FRENCH) for one in members]
    assert texts not in alone and alone[0] != alone[1]
    references = [ensemble.vocabulary.decode([5, 6, 7]) for _ in LINES]
    totals = ensemble.log_probs(LINES, references, **INTO_FRENCH)
    for line, reference, total in zip(LINES, references, totals, strict=True):
        tokens = [*ensemble.vocabulary.encode(reference, "fr"), 1]
        log_probs = _mean(*(forced_log_probs(one, line, "en", "fr") for one in members))
        expected = sum(log_probs(tokens[:n])[token] for n, token in enumerate(tokens))
        assert total.log_prob == pytest.approx(expected, abs=1e-4)


def test_contrasts_are_scored_by_the_ensemble():
    members = _members(max_length=5, beam_size=2, buckets=(9,), **CONTRAST)
    (translation,) = _ensemble(*members).translate_nbest(LINES[:1], **INTO_FRENCH)
    inputs = [
        _mean(*(forced_log_probs(one, LINES[0], "en", target) for one in members))
        for target in ("fr", "de")
    ]
    expected = slow_beam_search(contrasted(inputs, [0.3], 5), beam=2, max_length=5)
    assert [list(h.tokens) for h in translation.hypotheses] == [t for _, t in expected]


def test_a_line_does_not_depend_on_others_or_finished_ones():
    ensemble = _ensemble(*_members(batch=3))
    decode, model = ensemble.config.decode, ensemble.inference_model
    lines = list(TranslationJob.create(ensemble).number_lines(LINES, **INTO_FRENCH))
    together = dict(translate_lines(model, lines, decode))
    ((_, alone),) = translate_lines(model, [lines[2]], decode)
    assert_alike([alone], [together[2]])
    assert dict(translate_lines(model, lines, decode, done=range(4))) == {
        i: together[i] for i in range(4, 7)
    }


def test_the_first_member_aligns():
    members = _members()
    ensemble = _ensemble(*members)
    line = Line(0, LINES[0], "en", "fr", aligned=True)
    translation = made_translator().translate_nbest([line.text], **INTO_FRENCH)[0]
    decode = ensemble.config.decode
    actual, first, second = (
        align_lines(one.inference_model, [(line, translation)], decode)[0].weights
        for one in (ensemble, *members)
    )
    np.testing.assert_array_equal(actual, first)
    assert np.abs(first - second).max() > 1e-3


def _save(translator: Translator, folder, *steps: int, **changes) -> None:
    """Write a run; parameters of step n are multiplied by n."""
    config = dataclasses.replace(translator.config, **changes)
    RunDirectory(folder).prepare(config, translator.vocabulary, has_checkpoint=False)
    checkpoints = Checkpoints(folder / "checkpoints")
    roles = translator.inference_model.model.layout.embedded_roles()
    for step in steps:
        params = translator.inference_model.params
        params = {name: array for name, array in params.items()}
        params["embedding"] = params["embedding"] * step
        checkpoints.save(TrainState(np.int32(step), params, {}, LogWindow.empty(roles)), {})
    checkpoints.close()


def test_runs_are_loaded_by_their_paths_and_steps(tmp_path):
    first, second = _members()
    _save(first, tmp_path / "first", 1)
    _save(second, tmp_path / "second", 1, 2)
    load = f"Decode.ensemble=('{tmp_path}/second@1',)"
    loaded = Translator.load(tmp_path / "first", bindings=[load])
    expected = _ensemble(first, second).translate_nbest(LINES, **INTO_FRENCH)
    assert_alike(loaded.translate_nbest(LINES, **INTO_FRENCH), expected)
    assert loaded.parameters == first.parameters + second.parameters
    newest = Translator.load(tmp_path / "first", bindings=[load.replace("@1", "")])
    assert len({one.identity["parameters"] for one in (first, loaded, newest)}) == 3
    assert TranslationJob.create(loaded).provenance()["ensemble"] == (f"{tmp_path}/second@1",)
    assert "ensemble" not in TranslationJob.create(first).provenance()
    with pytest.raises(UserError, match="ensemble: set when a model is loaded"):
        loaded.translate(LINES, **INTO_FRENCH, ensemble=())
    with pytest.raises(UserError, match="one model at a time is analysed"):
        translator_facts("", loaded, None)


def test_files_bindings_and_the_mesh_apply_to_all_members(tmp_path, monkeypatch):
    first, second = _members()
    _save(first, tmp_path / "first", 1)
    _save(second, tmp_path / "second", 1)
    sizes = []

    def local_mesh(_, splittable, size, devices):
        sizes.append((list(splittable), size))
        return make_mesh(Mesh(), jax.devices()[:2])

    monkeypatch.setattr(model_loading, "local_mesh", local_mesh)
    (tmp_path / "model.gin").write_text("Model.dropout = 0.25\n")
    loaded = Translator.load(
        tmp_path / "first",
        gin_files=[str(tmp_path / "model.gin")],
        bindings=[f"Decode.ensemble=('{tmp_path}/second',)", "Data.instruction='none'"],
    )
    model, params = loaded.inference_model.model, loaded.inference_model.params
    assert [one.config.dropout for one in model.members] == [0.25] * 2
    heads = first.config.model.heads
    leaves = jax.tree.leaves(params)
    assert sizes == [([heads, 24, heads, 40], sum(leaf.nbytes for leaf in leaves))]
    assert all(len(leaf.sharding.device_set) == 2 for leaf in leaves)


def test_members_that_do_not_fit_are_refused(tmp_path):
    first, _ = _members()
    _save(first, tmp_path / "first", 1)
    other = made_translator("1", "prefix")
    _save(other, tmp_path / "prefix", 1)
    model = dataclasses.replace(first.config.model, register_factor=2.0)
    _save(first, tmp_path / "fewer", 1, model=model)
    for name, message in (
        ("prefix", "prefix has Data.instruction='1', the first model 'register'"),
        ("fewer", "fewer has Model.register_factor=2.0, the first model 1.0"),
        ("none", "none"),
        ("first@7", "7"),
    ):
        binding = f"Decode.ensemble=('{tmp_path}/{name}',)"
        with pytest.raises(UserError, match=message):
            Translator.load(tmp_path / "first", bindings=[binding])


def test_members_have_one_vocabulary():
    first = made_translator()
    vocabularies = types.SimpleNamespace(fingerprint=1), first.vocabulary
    with pytest.raises(UserError, match="runs/other has another vocabulary"):
        check_member("runs/other", first.config, vocabularies[0], first.config, vocabularies[1])
    check_member("runs/other", first.config, vocabularies[1], first.config, vocabularies[1])
