"""Position probes: accuracy, counts by hand, and cached results."""

from __future__ import annotations

import argparse
import re

import numpy as np
import pytest
from lxml import html

from mnmt_jax.analysis import probe as probing
from mnmt_jax.analysis.analysis_files import write_analysis
from mnmt_jax.analysis.layer_states import state_locations
from mnmt_jax.analysis.page_sections import render_sections
from mnmt_jax.analysis.probe import (
    ProbeSettings,
    TypeAccuracy,
    accuracy_by_class,
    accuracy_by_type,
    class_gains,
    evaluate_probe,
    held_out_mask,
    predict_positions,
    train_probe,
)
from mnmt_jax.analysis.probe_features import ProbeFeatures
from mnmt_jax.analysis.probe_results import ProbedModel, run_probes
from mnmt_jax.analysis.teacher_forcing import ForcedSentences
from mnmt_jax.analysis.token_classes import piece_classes, token_id_classes
from mnmt_jax.commands import analyse_states
from mnmt_jax.commands.analyse import make_parser
from mnmt_jax.commands.analysis_inputs import (
    check_same_sentences,
    label_runs,
    sentence_facts,
    source_texts,
)
from mnmt_jax.config.sections import Decode
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.design.objective import States
from mnmt_jax.errors import UserError
from mnmt_jax.model.modules import sinusoid
from mnmt_jax.model.sublayers import make_plan
from tests.run_commands import command
from tests.sample_batches import small_config
from tests.unit.made_text import vocabulary

pytestmark = pytest.mark.usefixtures("relaxed_dtypes")  # of optax

EMBED, LONGEST = 16, 12
QUICK = ProbeSettings(updates=300, batch=128, learning_rate=1e-2)


def tokens(count: int, seed: int):
    """Return positions, and noisy states with sinusoidal positions."""
    rng = np.random.default_rng(seed)
    positions = rng.integers(0, LONGEST, count).astype(np.int32)
    rows = np.asarray(sinusoid(positions[None], EMBED, 100.0))[0]
    return positions, (rows + 0.1 * rng.normal(size=rows.shape)).astype(np.float32)


@pytest.mark.parametrize("hidden", [True, False])
def test_probes_read_positions_from_sinusoids_and_chance_from_shuffled_labels(hidden):
    learned, states = tokens(2000, 0)
    held_out_positions, held_out_states = tokens(400, 1)
    probe = ProbeSettings(hidden, updates=QUICK.updates, batch=128, learning_rate=1e-2)
    params = train_probe(states, learned, LONGEST, probe)
    assert [layer["weight"].shape for layer in params] == (
        [(EMBED, EMBED)] * hidden + [(EMBED, LONGEST)]
    )
    assert (predict_positions(params, held_out_states) == held_out_positions).mean() > 0.95
    shuffled = np.random.default_rng(2).permutation(learned)
    params = train_probe(states, shuffled, LONGEST, probe)
    assert (predict_positions(params, held_out_states) == held_out_positions).mean() < 2 / LONGEST


def test_a_linear_probe_equals_softmax_regression_by_gradient_descent():
    """On separable states both have the same signs: an independent fit tells the same."""
    positions, states = tokens(600, 3)
    params = train_probe(states, positions, LONGEST, ProbeSettings(False, 400, 600, 1e-2))
    targets = np.eye(LONGEST)[positions]
    weight, bias = np.zeros((EMBED, LONGEST)), np.zeros(LONGEST)
    for _ in range(2000):
        logits = states @ weight + bias
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        step = (shares - targets) / len(states)
        weight -= 2.0 * states.T @ step
        bias -= 2.0 * step.sum(axis=0)
    expected = (states @ weight + bias).argmax(axis=1)
    assert (predict_positions(params, states) == expected).mean() > 0.99


def test_a_tenth_of_whole_texts_is_held_out():
    texts = np.repeat(np.arange(20), np.arange(1, 21))
    out = held_out_mask(texts, 0)
    assert len(set(texts[out])) == 2 and set(texts[out]).isdisjoint(texts[~out])
    assert (held_out_mask(texts, 0) == out).all() and (held_out_mask(texts, 1) != out).any()
    assert not held_out_mask(np.zeros(4, int), 0).any()  # one text is learned from
    assert held_out_mask(np.array([3, 3, 8]), 0).sum() in (1, 2)


@pytest.mark.parametrize(
    ("piece", "classes"),
    [
        ("▁Haus", {"capital", "Latin"}),
        ("haus", {"Latin"}),
        ("▁Москва", {"capital", "Cyrillic"}),
        ("كتاب", {"Arabic"}),
        ("中文", {"Han"}),
        ("ひ", {"Hiragana"}),
        ("▁12", {"number"}),
        ("٣", {"number"}),
        ("²", set()),
        ("...", {"punctuation"}),
        ("▁€,", {"punctuation"}),
        ("a1", {"Latin"}),
        ("Aж", {"capital"}),
        ("▁", set()),
        ("'s", {"Latin"}),
        ("人々", {"Han"}),
        ("々", {"Han"}),
        ("カー", {"Katakana"}),
        ("らー", {"Hiragana"}),
        ("ー", set()),
        ("ｶﾅ", {"Katakana"}),
        ("Ａｂ", {"capital", "Latin"}),
        ("ª", {"Latin"}),
        ("µ", set()),
        ("▁µm", {"Latin"}),
        ("<0xE2>", set()),
        ("<0xE2>x", {"Latin"}),
    ],
)
def test_classes_of_pieces_by_hand(piece, classes):
    assert piece_classes(piece) == classes


def test_classes_of_ids():
    known = vocabulary()
    actual = [set(token_id_classes(known, i)) for i in (known.first_tag, known.size - 1, 0, 1, 2)]
    assert actual == [{"tag"}, {"tag"}, set(), {"eos"}, {"unknown"}]
    piece = known.encode("Haus")[0]
    assert token_id_classes(known, piece) == piece_classes(known.tokens([piece])[0]) != frozenset()


CLASSES = {3: frozenset("a"), 5: frozenset("ab"), 7: frozenset()}


def test_accuracy_by_type_and_class_by_hand():
    ids = np.array([5, 3, 3, 7, 5, 3, 3])
    right = np.array([1, 1, 0, 1, 1, 1, 1], bool)
    types = accuracy_by_type(ids, right)
    assert types.ids.tolist() == [3, 5, 7] and types.counts.tolist() == [4, 2, 1]
    assert types.accuracy.tolist() == [0.75, 1, 1]
    actual = accuracy_by_class(types, CLASSES, 2)
    assert list(actual) == ["all", "a", "b"]
    assert actual["all"] == {"tokens": 7, "micro": 6 / 7, "types": 2, "macro": 0.875}
    assert actual["a"] == {"tokens": 6, "micro": 5 / 6, "types": 2, "macro": 0.875}
    assert actual["b"] == {"tokens": 2, "micro": 1.0, "types": 1, "macro": 1.0}
    assert accuracy_by_class(types, CLASSES, 3)["b"]["macro"] is None


def test_gains_compare_the_second_model_with_the_first():
    ids, counts = np.array([3, 5, 7]), np.array([4, 2, 1])
    first = TypeAccuracy(ids, counts, np.array([0.5, 0.5, 0.0]))
    second = TypeAccuracy(ids, counts, np.array([0.75, 0.5, 1.0]))
    actual = class_gains(first, second, CLASSES, 1)
    assert (actual["types"], actual["gained"]) == (3, 2)
    assert actual["classes"]["a"] == {"all": pytest.approx(200 / 3), "gained": 50}
    assert actual["classes"]["b"] == {"all": pytest.approx(100 / 3), "gained": 0}
    actual = class_gains(first, second, CLASSES, 2)  # the rare type counts nowhere
    assert (actual["types"], actual["gained"]) == (2, 1)
    assert actual["classes"]["a"] == {"all": 100, "gained": 100}
    assert class_gains(second, first, CLASSES, 1)["gained"] == 0


def test_gains_use_the_token_types_of_both_models():
    """Another instruction has other tags, and so other ids."""
    first = TypeAccuracy(np.array([3, 5, 9]), np.array([4, 2, 5]), np.array([0.5, 0.5, 0.0]))
    second = TypeAccuracy(
        np.array([2, 3, 5, 7]), np.array([9, 1, 2, 5]), np.array([1.0, 0.5, 0.75, 1])
    )
    actual = class_gains(first, second, CLASSES, 1)
    assert (actual["types"], actual["gained"]) == (2, 1)
    assert actual["classes"] == {"a": {"all": 100, "gained": 100}, "b": {"all": 50, "gained": 100}}
    actual = class_gains(first, second, CLASSES, 2)  # the second has one token of 3
    assert (actual["types"], actual["gained"]) == (1, 1)


def features(folder, count, seed, shuffled=False):
    """Write features: sinusoids as layer 1, noise as layer 2."""
    positions, states = tokens(count, seed)
    if shuffled:
        positions = np.random.default_rng(seed).permutation(positions)
    folder.mkdir()
    np.save(folder / "states_0.npy", states)
    noise = np.random.default_rng(seed).normal(size=states.shape).astype(np.float32)
    np.save(folder / "states_1.npy", noise)
    places = (States(1), States(2))
    ids = (3 + positions % 5).astype(np.int32)
    return ProbeFeatures(folder, ids, positions, np.arange(count) // 10, places)


def test_probes_are_cached_and_recomputed_if_damaged(tmp_path, monkeypatch):
    learned, tested = features(tmp_path / "l", 600, 0), features(tmp_path / "t", 100, 1)
    kept = tmp_path / "probes"
    actual = evaluate_probe(learned, tested, 0, probe=QUICK, folder=kept)
    assert [len(each) for each in actual] == [60, 100] and actual[1].mean() > 0.9
    one_probe = evaluate_probe(learned, None, 0, probe=QUICK, folder=kept)
    np.testing.assert_array_equal(one_probe[0], actual[0])
    assert len(one_probe[1]) == 0 and len(list(kept.iterdir())) == 2
    trained = []
    plain = train_probe
    monkeypatch.setattr(probing, "train_probe", lambda *given: trained.append(1) or plain(*given))
    again = evaluate_probe(learned, tested, 0, probe=QUICK, folder=kept)
    np.testing.assert_array_equal(again[1], actual[1])
    assert not trained
    for path in kept.iterdir():
        path.write_bytes(path.read_bytes()[:50])
    again = evaluate_probe(learned, tested, 0, probe=QUICK, folder=kept)
    np.testing.assert_array_equal(again[1], actual[1])
    assert len(trained) == 1


def test_probes_distinguish_two_models(tmp_path):
    """One model has positions in a layer where the other has none."""
    test = features(tmp_path / "t", 200, 1)
    good = ProbedModel({"run": "good"}, features(tmp_path / "l", 600, 0), test)
    bad = ProbedModel({"run": "bad"}, features(tmp_path / "s", 600, 0, shuffled=True), test)
    facts = run_probes([bad, good], vocabulary(), probe=QUICK, min_count=5, folder=tmp_path / "p")
    accuracy = [[place["accuracy"] for place in each["places"]] for each in facts["subjects"]]
    assert accuracy[1][0] > 0.9 and max(accuracy[0] + accuracy[1][1:]) < 0.3
    layers = [(each["layer"], each["gained"], each["types"]) for each in facts["gains"]]
    assert layers[0] == (1, 5, 5)
    assert "gains" not in run_probes(
        [good], vocabulary(), probe=QUICK, min_count=5, folder=tmp_path / "p"
    )
    out = ProbedModel({"run": "good"}, good.train_features, None)
    (subject,) = run_probes([out], vocabulary(), probe=QUICK, min_count=5, folder=tmp_path / "p")[
        "subjects"
    ]
    assert subject["places"][0]["accuracy"] == subject["places"][0]["held_out"] > 0.9
    assert subject["places"][0]["classes"]["all"]["tokens"] == 60


def test_probed_locations_of_a_role():
    def places(name, roles, layers=(), **changes):
        config = small_config(name, norm="pre", **changes)
        plan = make_plan(config, get_layout(name, config.stage_layers))
        return [(p.layer, p.role, p.ended) for p in state_locations(plan, roles, layers)]

    source = [(n, "source", False) for n in range(3)]
    assert places("encoder_decoder", ("source", "register")) == [*source, (2, "source", True)]
    assert places("encoder_decoder", ("target",), (3, 4)) == [
        (3, "target", False),
        (4, "target", False),
        (4, "target", True),
    ]
    # The norm at the end of the last stage is for what is generated alone.
    assert places("register", ("source", "register")) == [
        *source,
        *((n, "register", False) for n in range(3)),
    ]
    assert places("two_stage", ("source",), (2, 4)) == [
        (2, "source", False),
        (2, "source", True),
        (4, "source", False),
    ]


def place_of(layer, accuracy, ended=False):
    actual = {"tokens": 9, "micro": accuracy, "types": 0, "macro": None}
    place = {"role": "source", "layer": layer, "ended": ended, "classes": {"all": actual}}
    return place | {"accuracy": accuracy, "held_out": None}


def page_of(subjects):
    facts = {"analysis": "probe", "run": "a", "layout": "prefix", "checkpoint": "step 1"}
    facts |= {"probe": {"hidden": True, "updates": 3}, "least": 5, "learned_from": "validation"}
    return {**facts, "tested_on": "test", "subjects": subjects}


def test_the_probe_table_names_each_location():
    """One model has states after its first stage's norm, the other has one more layer."""
    first = [place_of(1, 0.1), place_of(2, 0.2), place_of(2, 0.25, True), place_of(3, 0.3)]
    second = [place_of(2, 0.6), place_of(1, 0.5), place_of(3, 0.7), place_of(4, 0.8)]
    subjects = [
        {"run": run, "checkpoint": "step 1", "places": places}
        for run, places in (("a", first), ("b", second))
    ]
    (table,) = html.fromstring("".join(render_sections(page_of(subjects)))).xpath(
        "(//h2[.='Accuracy of position prediction']/following::table)[1]"
    )
    rows = [[cell.text_content() for cell in row] for row in table.xpath(".//tbody/tr")]
    assert rows == [
        ["layer 1", "0.1", "–", "0.5", "–"],
        ["layer 2", "0.2", "–", "0.6", "–"],
        ["layer 2, after its stage", "0.25", "–", "–", "–"],
        ["layer 3", "0.3", "–", "0.7", "–"],
        ["layer 4", "–", "–", "0.8", "–"],
    ]


def test_a_page_omits_checkpoints_without_accuracy():
    subjects = [
        {"run": "a", "checkpoint": f"step {step}", "places": [place_of(1, accuracy)]}
        for step, accuracy in ((10, None), (20, 0.25), (30, 0.5))
    ]
    assert "layer 1: 0.500" in "".join(render_sections(page_of(subjects)))
    facts = page_of(subjects) | {"tested_texts": 7, "learned_texts": 2}
    assert "2 of the 7 test texts are also in the training texts." in "".join(
        render_sections(facts)
    )
    assert "also in the training texts" not in "".join(
        render_sections(facts | {"learned_texts": 0})
    )


def spoken(source, target, *texts):
    return ForcedSentences((source, target), texts, texts, texts)


def test_two_models_read_the_same_sentences():
    names = [{"run": run, "checkpoint": "step 3"} for run in ("a", "b")]
    one = {"validation": [spoken("de", "en", "x")], "test": [spoken("de", "en", "y")]}
    check_same_sentences(one, {**one, "test": [spoken("de", "en", "y")]}, names)
    for other in (spoken("de", "fr", "y"), spoken("de", "en", "z")):
        with pytest.raises(
            UserError, match=r"^--run: b \(step 3\) does not have the test sentences of a"
        ):
            check_same_sentences(one, {**one, "test": [other]}, names)


def test_a_finished_analysis_of_other_directions_is_kept(tmp_path):
    flags = argparse.Namespace(output=str(tmp_path), overwrite=False, limit=2)
    splits = {"validation": [spoken("de", "en", "x")], "test": [spoken("de", "en", "y", "z")]}
    facts = sentence_facts(flags, splits)
    assert facts.pop("sentences_fingerprint").keys() == splits.keys()
    assert facts == {
        "read_directions": ["de-en"],
        "read_sentences": {"validation": 1, "test": 2},
        "limit": 2,
    }
    facts = sentence_facts(flags, splits)
    write_analysis(tmp_path, {"analysis": "probe", "run": "r", **facts}, "title", [])
    sentence_facts(flags, {"test": splits["test"]})
    for changed in ([spoken("de", "en", "y")], [spoken("de", "en", "y", "other")]):
        with pytest.raises(UserError, match=r"something else \(sentences\).* --overwrite$"):
            sentence_facts(flags, {"test": changed})
    other = {"test": [*splits["test"], spoken("fr", "en", "q")]}
    with pytest.raises(UserError, match=r"something else \(read_directions\).* --overwrite$"):
        sentence_facts(flags, other)
    flags.overwrite = True
    assert sentence_facts(flags, other)["read_directions"] == ["de-en", "fr-en"]


@pytest.mark.parametrize(
    ("learned_from", "validation", "test", "message"),
    [
        ("validation", ["x", "y"], ["y"], "^task 't': validation and test sentences are the same"),
        ("validation", ["x", "y"], ["y", "z"], None),
        ("test", [], ["x", "x"], "^--probe_split=test: task 't' has a single text"),
        ("test", [], ["x", "y"], None),
    ],
)
def test_test_texts_must_differ_from_training_texts(
    learned_from, validation, test, message, monkeypatch
):
    splits = {"validation": [spoken("de", "en", *validation)], "test": [spoken("de", "en", *test)]}
    read = lambda flags, translator, split="test": splits[split]  # noqa: E731
    monkeypatch.setattr(analyse_states, "forced_sentences", read)
    tested_on = "test" if learned_from == "validation" else "held out"
    arguments = argparse.Namespace(task="t"), None, learned_from, tested_on
    if message:
        with pytest.raises(UserError, match=message):
            analyse_states._probed_sentences(*arguments)
    else:
        assert set(analyse_states._probed_sentences(*arguments)) == {learned_from, "test"}
    assert source_texts(splits["test"]) == {("de", text) for text in test}


@pytest.mark.parametrize(
    ("there", "hint"), [(True, True), (False, False)], ids=["no validation text", "no task"]
)
def test_the_other_split_is_suggested_if_it_helps(there, hint, monkeypatch):
    def read(flags, translator, split="test"):
        raise UserError("--task=t: nothing to read")

    def benchmark(flags, languages, split="test"):
        if not there:
            raise UserError("--task=t: no such corpus")

    monkeypatch.setattr(analyse_states, "forced_sentences", read)
    monkeypatch.setattr(analyse_states, "benchmark_of", benchmark)
    translator = argparse.Namespace(languages=("de",))
    with pytest.raises(UserError, match="^--task=t: no") as caught:
        analyse_states._probed_sentences(
            argparse.Namespace(task="t"), translator, "validation", "test"
        )
    assert ("--probe_split=test" in str(caught.value)) == hint


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--layers=-1", "--layers=-1: '-1' must be a whole number, at least 0"),
        ("--layers=1-2", "--layers=1-2: '1-2' must be a whole number"),
        ("--directions=deen", "'deen' must be SOURCE-TARGET, e.g. en-de; or write all"),
    ],
)
def test_flags_are_checked_before_the_run_is_loaded(flag, message, tmp_path):
    with pytest.raises(UserError, match=re.escape(message)):
        command("analyse", "probe", "--run=nowhere", "--task=t", flag, "--output", tmp_path / "x")


def test_one_checkpoint_twice_is_refused(monkeypatch):
    """Also by two names: `best` may be a given step."""

    def load(run, step, **given):
        step = 8 if step in ("best", "average") else step
        identity = {"parameters": "p"}
        config = argparse.Namespace(decode=Decode())
        model = argparse.Namespace(params={})
        facts = {"identity": identity, "parameters": 1, "step": step, "config": config}
        return argparse.Namespace(inference_model=model, **facts)

    monkeypatch.setattr(Translator, "load", load)
    for steps, name in (
        ("8,8", "step 8"),
        ("best,4,8", "step 8"),
        ("average,8,average", "average, step 8"),
    ):
        flags = argparse.Namespace(kind="probe", step=steps, runs=["a/r"])
        with pytest.raises(UserError, match=f"^--step={steps}: names {name} of r twice"):
            next(analyse_states._models(flags, (), ()))
    flags = argparse.Namespace(kind="probe", step="average,8", runs=["a/r"])
    monkeypatch.setattr(analyse_states, "analysis_facts", lambda *given: given[-2:])
    _, (first, others) = next(analyse_states._models(flags, (), ()))
    names = [facts["checkpoint"] for facts in (first, *others)]
    assert names == ["average, step 8", "step 8"]


def test_a_finished_analysis_of_another_kind_is_kept(tmp_path):
    write_analysis(tmp_path, {"analysis": "states", "run": "r"}, "title", [])
    with pytest.raises(UserError, match=r"holds a finished analysis of something else \(analysis"):
        command("analyse", "probe", "--run=nowhere", "--task=t", "--output", tmp_path)


@pytest.mark.parametrize("text", ["-1", "4294967296", "1.5", "x"])
def test_an_invalid_seed_is_refused(text, capsys):
    flags = ["probe", "--run=r", "--output=o", "--task=t"]
    assert make_parser().parse_args([*flags, "--seed=4294967295"]).seed == 2**32 - 1
    with pytest.raises((UserError, SystemExit)) as caught:
        make_parser().parse_args([*flags, f"--seed={text}"])
    message = str(caught.value) + capsys.readouterr().err
    assert "must be a whole number from 0 to 4294967295" in message


def test_runs_of_one_name_are_labelled_by_more_of_their_path(tmp_path):
    runs = [str(tmp_path / name / "seed1") for name in ("a", "b")]
    assert label_runs(runs) == {runs[0]: "a/seed1", runs[1]: "b/seed1"}
    assert label_runs(runs[:1]) == {runs[0]: "seed1"}
    deep = [str(tmp_path / name) for name in ("x/a/run", "y/a/run", "y/b/run")]
    assert list(label_runs(deep).values()) == ["x/a/run", "y/a/run", "y/b/run"]


def test_a_run_that_is_listed_twice_is_refused(tmp_path):
    runs = ["--run", tmp_path / "a", "--run", tmp_path / "b" / ".." / "a"]
    with pytest.raises(UserError, match=r"^--run=.*/b/\.\./a: is given twice; remove one"):
        command("analyse", "probe", *runs, "--task=t", "--output", tmp_path / "x")
