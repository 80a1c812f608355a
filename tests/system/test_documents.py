"""The commands of docs/ as written, and the tables that say which are shortened or not run."""

from __future__ import annotations

import configparser
import dataclasses
import fnmatch
import functools
import json
import re
import shutil
import sys
import types

import jax
import numpy as np
import pytest
from lxml import etree

from mnmt_jax.config.loading import load_config
from mnmt_jax.cost.configurations import parameter_counts
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.design import layouts
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.design.method import Method
from mnmt_jax.evaluation.result import read_result
from mnmt_jax.model.sublayers import make_plan
from mnmt_jax.runs.parameters import load_params
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.vocabulary.vocabulary import Vocabulary
from tests import made_pages
from tests.documents import (
    LISTED,
    PAGES,
    REPLACED,
    ROOT,
    RUN_BY,
    SHORTENED,
    check_flags,
    commands,
    make_root,
    run_page,
)
from tests.made_run import steps_of
from tests.run_commands import SCRIPTS
from tests.unit import made_text


@pytest.fixture
def root(tmp_path, monkeypatch, relaxed_dtypes):
    monkeypatch.delenv("MNMT_JAX_DATA", raising=False)
    return make_root(tmp_path)


def test_the_tables_hold_what_the_pages_do():
    found = {page: commands(page) for page in PAGES}
    everything = [one for page in PAGES for one in found[page]]
    assert {one.listed for one in everything} == {*LISTED, ""}
    text = "\n".join(one.text for one in everything)
    assert all(word in text for word in REPLACED)
    quickstart = (ROOT / "scripts" / "quickstart.sh").read_text(encoding="utf-8")
    joined = (text + quickstart).replace("\\\n", " ")
    started = re.findall(r'(?:python"?|(mnmt [\w-]+)) (.*)', joined)
    calls = [f"{SCRIPTS.get(own[5:], own)} {rest}" if own else rest for own, rest in started]
    calls = [" ".join(call.split()) for call in calls]
    assert all(fnmatch.filter(calls, pattern) for pattern, _ in SHORTENED)
    assert RUN_BY.keys() == {p for p in PAGES if not all(one.listed for one in found[p])}
    for page, test in RUN_BY.items():
        assert f'run_page("{page}", ' in (ROOT / test).read_text(encoding="utf-8"), page


def test_the_extras_that_pip_installs_exist():
    metadata = configparser.ConfigParser(interpolation=None)
    metadata.read(ROOT / "setup.cfg", encoding="utf-8")
    text = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    named = set(re.findall(r"`(?:pip install (?:-e )?\")?\.\[([\w-]+)\]", text))
    named |= set(re.findall(r"pip install (?:-e )?\"\.\[([\w-]+)\]", text))
    assert len(named) > 4
    assert named <= set(metadata["options.extras_require"])


@pytest.mark.parametrize("page", sorted(set(PAGES) - RUN_BY.keys()))
def test_what_is_not_run_takes_its_flags(page, root, monkeypatch):
    monkeypatch.chdir(root)
    for one in commands(page):
        check_flags(one, root)


COUNTED = ("parameters_fingerprint", "parameter_count")


def check_states(found):
    """What the six kinds find of two equal runs, whose text is the same in all languages."""
    first, second = found["PROBE"]["subjects"]
    assert first["places"] == second["places"] and len(first["places"]) == 3
    assert [(one["gained"], one["types"] > 0) for one in found["PROBE"]["gains"]] == [(0, True)] * 3
    own = {name: found["PROBE"][name] for name in (*COUNTED, "checkpoint")}
    assert found["PROBE"]["others"] == [{"run": "RUN2", **own}]  # a copy
    assert first["places"][0]["classes"].keys() == {"all", "Latin", "eos", "tag"}
    for place in found["SIMILARITY"]["languages"]:
        assert place["parallel"] == pytest.approx(1) and place["others"] < 0.9
    assert [one["accuracy"] for one in found["RETRIEVAL"]["places"]] == [1, 1, 1]
    assert found["RETRIEVAL"]["chance"] == 0.25
    same = [one for one in found["SVCCA"]["between"] if one["first"] == one["second"]]
    assert len(same) == 3 and all(one["svcca"] == pytest.approx(1) for one in same)
    for place in found["SVCCA"]["subjects"][0]["preference"]:
        assert 0 < place["least"] < place["most"] < 1 and len(place["directions"]) == 6
    layers = [(one["layer"], one["ended"]) for one in found["STATES"]["planes"]]
    assert layers == [(0, False), (1, False), (1, True), (2, False), (2, True)]
    roles = [each["role"] for each in found["STATES"]["planes"][0]["classes"]]
    assert roles == ["source", "source", "target", "target"]
    (cross,) = found["ALIGNMENT"]["directions"][0]["layers"]
    assert cross["attention"] == "decoder cross-attention" and cross["query"] == "target"
    assert sum(cross["mass"].values()) == pytest.approx(1) and cross["mass"]["tag"] > 0


def test_the_keys_of_the_server(root):
    printed = list(run_page("docs/serving.md", root).values())
    assert printed[0].startswith("mnmt-")
    assert "weblate" in printed[1] and "500000" in printed[1]


def test_reproducing_a_table(root):
    printed = run_page("docs/reproduce.md", root)
    listed, shown, plan = list(printed.values())[:3]
    assert "| registers/table1 " in listed and "| two_stage/figure5 " in listed
    assert "Residual without tags" in shown and "32.95" in shown
    assert "6 trainings, 6 evaluations, 14 steps" in plan
    # The names in the table of commands; the speed of this machine is measured each time.
    shown_again, plan_again, prompt = list(printed.values())[3:]
    assert shown_again == shown
    texts = [re.sub("this machine .*", "", text) for text in (plan_again, plan)]
    assert texts[0] == texts[1]
    assert "prompt of GPT-4o mini: Translating the following sentence" in prompt


def test_analysis(root):
    """Every kind; the pages are well formed and have nothing from elsewhere."""
    made_pages.run_with_branches(root, "RUN")
    shutil.copytree(root / "RUN", root / "RUN2")
    made_pages.flores(root, made_text.LANGUAGES)
    made_pages.write_lines(root / "LINES", ["eins zwei", "", "drei"])
    printed = run_page("docs/analysis.md", root)
    found = {}
    for path in root.glob("*/analysis.json"):
        found[path.parent.name] = json.loads(path.read_text(encoding="utf-8"))
        page = (path.parent / "analysis.html").read_text(encoding="utf-8")
        closed = re.sub(r"<meta ([^>]*)>", r"<meta \1/>", page.split("\n", 1)[1])
        etree.fromstring(closed.replace("<details open>", "<details>"))
        assert "http" not in page and "<script" not in page and page.count("<section>") > 0
    states = {"PROBE", "SIMILARITY", "RETRIEVAL", "SVCCA", "STATES", "ALIGNMENT"}
    branches = {"ATTRIBUTION", "ATTENTION", "ABLATION", "SCALES", "HEADS"}
    assert found.keys() == branches | states
    check_states(found)
    scales = found["SCALES"]["mean"]
    *_, of_scales, of_svcca = commands("docs/analysis.md")
    assert printed[of_scales.text] == f"{scales}\n"
    assert float(printed[of_svcca.text]) == pytest.approx(1)
    assert list(scales) == ["de", "fr"]
    for one in found["ATTRIBUTION"]["directions"]:
        (sentence,) = one["sentences"]
        rows = sentence["layers"][0]["signed"]
        assert one["tokens"] == len(rows["lsl2"]) == len(sentence["tokens"]) > 2
        assert one["branch"] == (one["target"] != "en") == (np.ptp(rows["lsl2"]) > 0)
        assert one["layers"][0]["layer"] == 2
        assert one["layers"][0]["signed"]["ffn1"] == pytest.approx(np.mean(rows["ffn1"]), rel=1e-4)
    assert [one["branch"] for one in found["ATTRIBUTION"]["directions"]].count(True) == 4
    shown = [(one["source"], one["target"]) for one in found["ATTENTION"]["directions"]]
    assert shown == [("de", "fr"), ("fr", "de")]
    targets = [found[name]["targets"] for name in ("ATTRIBUTION", "HEADS")]
    assert targets == ["reference", "output"]
    (attention,) = found["HEADS"]["directions"]
    assert [one["source"] for one in attention["sentences"]] == ["eins zwei", "drei"]
    (heads,) = attention["sentences"][0]["maps"]
    weights = np.array(heads["weights"])
    tokens = attention["sentences"][0]["tokens"]["source"]
    assert weights.shape == (2, len(tokens), len(tokens)) and tokens[0] == "__fr__"
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-4)
    maps = found["ATTENTION"]["directions"][0]["sentences"][0]["maps"]
    assert [one["attention"].split()[-1] for one in maps] == ["self-attention"] * 2 + [
        "cross-attention"
    ]
    rows = found["ABLATION"]["rows"]
    assert [(row["row"], row["zero_shot"]["directions"]) for row in rows] == [
        *((number, 2) for number in (1, 2, 3, None))
    ]
    off = read_result(root / "ABLATION" / "off").config["model"]["methods"][0]
    assert off["off"] and not read_result(root / "ABLATION/on").config["model"]["methods"][0]["off"]


def test_checkpoints(root):
    made_pages.foreign_checkpoints(root)
    made_pages.flores(root)
    made_pages.gin_file(root, "F", "runs/own_text.gin")
    run_page("docs/checkpoints.md", root)
    assert (root / "DIR" / "model.safetensors").is_file()
    assert steps_of(root / "NEW") == [2]
    assert RunDirectory(root / "NEW").config().model.layout == "encoder_decoder"
    origin = json.loads((root / "NEW" / "origin.json").read_text(encoding="utf-8"))
    assert origin["origin"] == "RUN" and "73 arrays" in origin["report"]


def test_configurations(root):
    made_pages.gin_file(root, "FILE", "models/prefix_ted19.gin")
    made_pages.cache(root, "CACHE")
    _, described = (printed := run_page("docs/configurations.md", root))
    assert json.loads(printed[described])["parameters"]["total"] == 63_438_848
    assert steps_of(root / "RUN") == [2]


def test_data(root):
    made_pages.own_text(root)
    made_pages.bridge(root)
    made_pages.spm_model(root)
    made_pages.seqio_module(root)
    printed = run_page("docs/data.md", root)
    assert Vocabulary.load(root / "VOCABULARY").languages == ("en", "de", "fr", "cs")
    assert {code for _, code in Vocabulary.load(root / "SPLIT").copies} == {"en", "cs"}
    assert TokenCache.open(root / "CACHE").tasks_with("train") == ("cldr_quickstart_en_cs",)
    assert len(TokenCache.open(root / "BRIDGED").tasks_with("train")) == 24
    figures = json.loads(next(text for one, text in printed.items() if "cldr_rendering" in one))
    assert figures["drawn_and_rendered_lines_per_second"] > 0


def test_distributed(root):
    for run in ("mine", "quickstart"):
        made_pages.cache(root, f"runs/{run}/cache")
    (root / "text.de").write_text("\n".join(made_text.sentences("de", 9)) + "\n", encoding="utf-8")
    printed = run_page("docs/distributed.md", root)
    assert (root / "text.en").read_text(encoding="utf-8").count("\n") == 9
    for run in ("split", "two"):
        assert steps_of(root / "runs" / run) == [2]
    figures = json.loads(next(text for one, text in printed.items() if "saves.py" in one))
    assert figures["state_bytes"] > 0 and figures["on_disk"] > 0


def test_evaluation(root):
    made_pages.run(root, "RUN")
    shutil.copytree(root / "RUN", root / "runs/quickstart/register")
    made_pages.flores(root, made_text.LANGUAGES)
    made_pages.ted19(root)
    run_page("docs/evaluation.md", root)
    result = read_result(root / "TED")
    assert result.task == "ted19" and len(result.directions) == 2
    assert read_result(root / "OUT").task == "flores"


def test_graft(root):
    """Two language models on text, a graft of them on pairs, and a translation."""
    made_pages.own_text(root)
    made_pages.text(root)
    run_page("docs/graft.md", root)
    graft = RunDirectory(root / "runs/graft/translator")
    (method,) = graft.config().model.methods
    assert method.name == "graformer" and method.decoder == "freeze"
    lm, found = (load_params(root / "runs/graft" / name)[0] for name in ("lm", "translator"))
    np.testing.assert_array_equal(found["target_embedding"], lm["embedding"])
    source, translated = ((root / f"text.{code}").read_text() for code in ("de", "fr"))
    assert translated.count("\n") == source.count("\n") > 0
    scores = [json.loads(line) for line in (root / "scores.jsonl").read_text().splitlines()]
    assert len(scores) == source.count("\n") and all(each["log_prob"] < 0 for each in scores)
    assert (root / "texts.de").read_text().strip()
    mlm, frozen, tuned = (
        load_params(root / run)[0]["layer_0"]["mlp"]["wi"]["kernel"]
        for run in ("runs/graft/mlm", "runs/lamate/frozen", "runs/lamate/tuned")
    )
    np.testing.assert_array_equal(frozen, mlm)
    assert not np.array_equal(tuned, frozen)


def test_guide(root):
    printed = run_page("docs/guide.md", root)
    (described,) = (text for command, text in printed.items() if "describe" in command)
    assert json.loads(described)["parameters"]["total"] == 985_856
    decode, smoothing = (text for command, text in printed.items() if " keys " in command)
    assert "Decode.beam_size = 5\n" in decode
    assert "Optimizer.label_smoothing = 0.0  (default: 0.1)\n" in smoothing


def assert_smooths_others(method):
    """Compare the objective of a packed row with a loop: German, English, padding."""
    logits = np.random.default_rng(0).normal(size=(1, 5, 7)).astype(np.float32)
    batch = {
        "target_segment_ids": np.array([[1, 1, 2, 2, 0]], np.int32),
        "target_lang": np.array([[0, 1, -1]], np.int32),
    }
    forward = types.SimpleNamespace(batch=batch, map_logits=lambda function: function(logits))
    (objective,) = method.objectives()
    log_probs = logits[0] - np.log(np.exp(logits[0]).sum(axis=-1, keepdims=True))
    expected = 0.5 * sum(-log_probs[position].mean() for position in (0, 1))
    np.testing.assert_allclose(objective.value(forward), expected, rtol=1e-5)


def test_methods(root, request, monkeypatch):
    """The page's methods are the files that its commands import, and its test passes."""
    *_, own, described, loss, _, smoothing, kind, layout, test = (
        one for one in commands("docs/methods.md") if not one.listed
    )
    made_pages.cache(root, "runs/quickstart/cache")
    made_pages.run(root, "runs/quickstart/register")
    for name, block in (("own_method", own), ("own_loss", loss)):
        (root / f"{name}.py").write_text(block.text, encoding="utf-8")
    # The library's methods, imported by the commands, stay registered.
    for name in ("attention_only", "state_norm", "smooth_others"):
        request.addfinalizer(functools.partial(Method.registered.pop, name, None))
    request.addfinalizer(functools.partial(sys.modules.pop, "own_loss", None))
    printed = run_page("docs/methods.md", root)
    exec(test.text, namespace := {})
    namespace["test_the_named_layer_has_no_feed_forward"]()
    exec(kind.text, namespace := {"__name__": "own_kind"})
    scale, states = namespace["Scale"](), np.ones((1, 2, 3), np.float32)
    params = scale.init(jax.random.key(0), states, None, method="change")
    doubled = jax.tree.map(lambda weight: 2 * weight, params)
    np.testing.assert_array_equal(scale.apply(doubled, states, None, method="change"), 2 * states)
    monkeypatch.setattr(layouts, "LAYOUTS", dict(layouts.LAYOUTS))
    exec(layout.text, {})
    assert layouts.get_layout("encoder_causal_decoder", (1, 2)).layers == 3
    code = compile(smoothing.text, "own_smoothing.py", "exec", dont_inherit=True)
    exec(code, namespace := {"__name__": "own_smoothing"})
    assert_smooths_others(namespace["SmoothOthers"](languages=("de", "en"), weight=0.5))
    metrics = (root / "runs/state_norm/metrics.jsonl").read_text(encoding="utf-8")
    assert json.loads(metrics.splitlines()[0])["state_norm"] > 0
    assert Method.registered["attention_only"].__module__ == sys.modules.pop("own_method").__name__
    config = load_config([str(ROOT / "gin_configs/models/register_tiny.gin")]).model
    plain = parameter_counts(dataclasses.replace(config, vocab_size=1500))["mlp"]
    found = json.loads(printed[described.text])["parameters"]["mlp"]
    assert found == plain * (config.stage_layers[0] - 1) / config.stage_layers[0]
    for name, term in (("unlikelihood", "unlikelihood"), ("cpo", "preference")):
        metrics = (root / "runs" / name / "metrics.jsonl").read_text(encoding="utf-8")
        assert json.loads(metrics.splitlines()[0])[term] > 0
    trained = RunDirectory(root / "runs" / "sd").config().model
    branches, cut = trained.methods
    assert branches.languages == made_text.LANGUAGES and (cut.layer, cut.sublayer) == (2, "mlp")
    layout = get_layout("encoder_decoder", (2, 2))
    middle = dataclasses.replace(cut, layer=0)  # what the page says of it
    plan = make_plan(dataclasses.replace(trained, methods=(branches,)), layout)
    given, chosen = (each.edit(plan, trained) for each in (cut, middle))
    assert given == chosen != plan


def test_recipes(root):
    """From the corpus's files to scores of all directions, by the commands of the page."""
    made_pages.iwslt17(root)
    run_page("docs/recipes.md", root)
    cache = TokenCache.open(root / "runs/iwslt17/cache")
    splits = ("train", "validation")
    assert [len(cache.tasks_with(split)) for split in splits] == [6, 12]
    result = read_result(root / "runs/iwslt17/fcll/report")
    assert result.task == "iwslt17" and len(result.directions) == 12
    trained = RunDirectory(root / "runs/iwslt17/fcll").config()
    assert trained.data.validation_examples == 10_000 and trained.train.best_by == "all"
    assert trained.model.methods[0].languages == cache.vocabulary.languages


def test_scale(root):
    printed = run_page("docs/scale.md", root)
    assert (root / "histograms" / "de").read_text(encoding="utf-8").startswith(" \t")
    (table,) = (text for command, text in printed.items() if "preparation_steps" in command)
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    steps = re.findall(r"^(\| `.*\|) (?:over )?[\d,]+ \|$", table, re.MULTILINE)
    assert len(steps) > 20 and all(step in page for step in steps)


def test_tutorials_of_own_text(root):
    """The second page uses the run of the first."""
    printed = run_page("docs/tutorials/own_text.md", root)
    (translated,) = (text for command, text in printed.items() if command.startswith("head"))
    assert translated.count("\n") == 3
    assert len(read_result(root / "runs/mine/trial/report").directions) == 6
    run_page("docs/tutorials/zero_shot.md", root)
    for name in ("plain", "pivot", "contrast"):
        assert len(read_result(root / "runs/mine" / name).directions) == 2
    assert (root / "runs/mine/zero_shot.html").is_file()


def test_tutorial_of_an_own_method(root, request):
    method, *_ = commands("docs/tutorials/own_method.md")
    made_pages.cache(root, "runs/quickstart/cache")
    (root / "thin_layers.py").write_text(method.text, encoding="utf-8")
    request.addfinalizer(lambda: Method.registered.pop("thin_layers", None))
    printed = run_page("docs/tutorials/own_method.md", root)
    (described,) = (text for command, text in printed.items() if "describe" in command)
    config = load_config([str(ROOT / "gin_configs/models/register_tiny.gin")]).model
    plain = parameter_counts(dataclasses.replace(config, vocab_size=1500))["mlp"]
    found = json.loads(described)["parameters"]["mlp"]
    assert found == plain * (config.stage_layers[0] - 1) / config.stage_layers[0]
    (method,) = RunDirectory(root / "runs/thin").config().model.methods
    assert method.name == "thin_layers"
    sys.modules.pop("thin_layers", None)
