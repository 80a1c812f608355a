"""Ablation, scales and pages of analyses, and errors of the command, without a forward pass."""

from __future__ import annotations

import dataclasses
import json
import shutil
from typing import ClassVar

import jax
import numpy as np
import pytest
from lxml import html

from mnmt_jax.analysis import ablation, attention_maps, teacher_forcing
from mnmt_jax.analysis.ablation import AblationPair, run_ablation, supervised_targets_by_source
from mnmt_jax.analysis.analysis_files import (
    check_analysis_folder,
    check_same_analysis,
    write_analysis,
)
from mnmt_jax.analysis.branch_scales import branch_scales
from mnmt_jax.analysis.page_header import page_title
from mnmt_jax.analysis.page_sections import render_sections
from mnmt_jax.analysis.teacher_forcing import ForcedSentences
from mnmt_jax.config.loading import load_config
from mnmt_jax.config.sections import Config, Data, Decode, Mesh, Model, Optimizer, Train
from mnmt_jax.data.parallel_corpora import CldrPhrases, Corpus
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.benchmark import Benchmark
from mnmt_jax.evaluation.evaluated_model import EvaluatedModel
from mnmt_jax.evaluation.result import read_result
from mnmt_jax.evaluation.translations import TranslatedSentence
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.methods.language_layers import LanguageLayers
from mnmt_jax.model.network import build_model
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.runs.new_run import write_run
from tests.run_commands import command
from tests.unit.made_text import vocabulary

LANGUAGES = ("en", "de", "fr")
# A triangle: each is trained into one other, so that the reverses are zero-shot.
TRAINED = frozenset({("en", "de"), ("de", "fr"), ("fr", "en")})
INTO = {"en": ("de",), "de": ("fr",), "fr": ("en",)}


@pytest.fixture(scope="module")
def benchmark():
    return Benchmark("phrases", CldrPhrases(LANGUAGES, sizes={"test": 8}, name="phrases"))


def subject(benchmark, name, choose):
    """A translator that answers in a chosen language per direction."""
    phrases = benchmark._phrases
    places = {code: {text: n for n, text in enumerate(texts)} for code, texts in phrases.items()}

    def translate(lines, direction):
        answer = phrases[choose(direction)]
        return [TranslatedSentence(answer[places[direction[0]][line]]) for line in lines]

    config = load_config([], ["Model.layout='prefix'", "Model.stage_layers=(2,)"])
    decoding = {"checkpoint": "step 7"}
    return EvaluatedModel(
        name, translate, config, decoding, {"parameters": name}, supervised=TRAINED, step=7
    )


def test_ablation_scores_zero_shot_output_by_the_supervised_target(benchmark, tmp_path):
    """A model that falls back to its supervised target is perfect only in row (3)."""
    right = subject(benchmark, "on", lambda direction: direction[1])
    back = subject(benchmark, "off", lambda direction: INTO[direction[0]][0])
    targets = supervised_targets_by_source(benchmark.directions, TRAINED)
    assert targets == INTO
    directions = benchmark.directions
    facts = run_ablation(
        AblationPair(right, back, LANGUAGES),
        benchmark,
        tmp_path,
        directions=directions,
        targets=targets,
    )
    rows = {(row["row"], row["branches"]): row for row in facts["rows"]}
    assert list(rows) == [(1, "on"), (2, "off"), (3, "off"), (None, "on")]
    assert [rows[1, "on"][group]["bleu"] for group in ("supervised", "zero_shot")] == [
        pytest.approx(100),
        pytest.approx(100),
    ]
    assert rows[2, "off"]["supervised"]["bleu"] == pytest.approx(100)
    assert rows[2, "off"]["zero_shot"]["bleu"] < 60
    assert rows[3, "off"]["zero_shot"] == {"bleu": pytest.approx(100), "chrf": 100, "directions": 3}
    assert rows[None, "on"]["zero_shot"]["bleu"] < 60
    by_name = {(one["source"], one["target"]): one for one in facts["directions"]}
    assert by_name["en", "de"]["against"] == {}
    assert by_name["en", "fr"]["against"].keys() == {"de"}
    assert by_name["en", "fr"]["against"]["de"]["off"]["bleu"] == pytest.approx(100)
    assert read_result(tmp_path / "off").averages["bleu"].zero_shot.mean < 60
    # Of given targets, and of some directions.
    facts = run_ablation(
        AblationPair(right, back, LANGUAGES),
        benchmark,
        tmp_path,
        directions=[("en", "fr"), ("de", "en")],
        targets={"de": ("fr",)},
        overwrite=True,
    )
    assert [len(one["against"]) for one in facts["directions"]] == [0, 1]
    assert facts["rows"][2]["zero_shot"]["directions"] == 1


def test_ablation_looks_up_references_by_source_text(benchmark, tmp_path):
    """Test sets of two directions may differ in order; a source without a reference is refused."""

    class Turned(Benchmark):
        def texts(self, direction):
            texts = super().texts(direction)
            if direction != ("en", "de"):
                return texts
            existing = slice(None, None, -1) if self.whole else slice(1, None)
            return dataclasses.replace(
                texts, sources=texts.sources[existing], references=texts.references[existing]
            )

    turned = Turned("phrases", CldrPhrases(LANGUAGES, sizes={"test": 8}, name="phrases"))
    turned.whole = True
    back = subject(benchmark, "off", lambda direction: INTO[direction[0]][0])
    given = {"directions": [("en", "fr")], "targets": INTO}
    ablated = AblationPair(back, back, LANGUAGES)
    facts = run_ablation(ablated, turned, tmp_path, **given)
    assert facts["rows"][2]["zero_shot"]["bleu"] == pytest.approx(100)
    turned.whole = False
    output = tmp_path / "partial"
    with pytest.raises(UserError, match="^en-fr: 1 of 8 source sentences have no reference in en"):
        run_ablation(ablated, turned, output, **given)
    assert not output.exists()  # nothing was translated before


class MadeCorpus(Corpus):
    """Test sentences of two directions from Italian, the second with one more, in another order."""

    texts: ClassVar = {
        ("it", "de"): [("uno", "eins"), ("due", "zwei"), ("uno", "einer"), ("tre", "drei")],
        ("it", "nl"): [
            ("zero", "nul"),
            ("tre", "drie"),
            ("uno", "een"),
            ("uno", "één"),
            ("due", "twee"),
        ],
    }

    def splits(self):
        return ("test",)

    def directions(self, split):
        return tuple(self.texts)

    def pairs(self, split, direction):
        yield from self.texts[direction]

    def size(self, split, direction):
        return len(self.texts[direction])


@pytest.mark.parametrize("limit", [1, 3, 4])
def test_references_are_of_all_sentences_and_of_the_same_occurrence(limit, monkeypatch):
    """A limit cuts the direction alone; the n-th "uno" has the n-th reference, or the last one."""
    benchmark = Benchmark("made", MadeCorpus("made", ("it", "de", "nl")), limit=limit)
    expected = ["een", "twee", "één", "drie"][:limit]
    assert ablation._references_in(benchmark, ("it", "de"), "nl") == expected
    # Sources in one order are paired line by line.
    lines = [("uno", "een"), ("due", "twee"), ("uno", "één"), ("tre", "drie")]
    monkeypatch.setitem(MadeCorpus.texts, ("it", "nl"), lines)
    assert ablation._references_in(benchmark, ("it", "de"), "nl") == expected
    monkeypatch.setitem(MadeCorpus.texts, ("it", "nl"), lines[1:2] + lines[:1] + lines[3:])
    expected = [text.replace("één", "een") for text in expected]
    assert ablation._references_in(benchmark, ("it", "de"), "nl") == expected


def model(**changes) -> Model:
    method = LanguageLayers(LANGUAGES, **({"without": ("en",), "mlp": 4} | changes))
    sizes = {"embed": 8, "mlp": 8, "heads": 2, "stage_layers": (1, 2)}
    return Model(layout="encoder_decoder", methods=(method,), **sizes)


def test_scales_follow_the_order_of_the_languages():
    config = model(layers=(2, 3), without=("de",))
    network = build_model(config, 60)
    params = {
        f"layer_{number}": {"mlp": {"branch": {"scale": np.array(values, np.float32)}}}
        for number, values in ((1, [0.5, -0.25]), (2, [0.25, 0.75]))
    }
    facts = branch_scales(network, params)
    assert facts["layers"] == [
        {"layer": 2, "scale": {"en": 0.5, "fr": -0.25}},
        {"layer": 3, "scale": {"en": 0.25, "fr": 0.75}},
    ]
    assert facts["mean"] == {"en": 0.375, "fr": 0.25} and facts["without"] == ["de"]
    assert list(facts["mean"]) == ["en", "fr"]


def test_a_page_shows_its_file_and_overwrites_no_foreign_files(tmp_path):
    scales = [{"layer": 2, "scale": {"de": -0.2, "fr": np.float32(0.1)}}]
    facts = {"analysis": "scales", "run": "<run>", "layout": "x", "checkpoint": "step 1"}
    facts |= {"without": ["en"], "layers": scales, "mean": {"de": -0.2, "fr": np.float32(0.1)}}
    for _ in range(2):  # its own it replaces
        check_analysis_folder(tmp_path)
        path = write_analysis(tmp_path, facts, page_title(facts), render_sections(facts))
    document = json.loads((tmp_path / "analysis.json").read_text("utf-8"))
    assert document["mean"] == {"de": -0.2, "fr": 0.1} and document["format"] == 1
    text = path.read_text("utf-8")
    assert "<run>" not in text and "http" not in text and "<script" not in text
    page = html.fromstring(text)
    bars = page.xpath("//svg//rect")
    assert len(bars) == 2
    widths = [float(bar.get("width")) for bar in bars]
    assert widths[0] == pytest.approx(2 * widths[1], rel=0.01)
    # The negative one ends where the other begins.
    assert float(bars[0].get("x")) + widths[0] == pytest.approx(float(bars[1].get("x")), abs=0.2)
    cells = page.xpath("//table[@class='heat']//td")
    assert [(c.text, c.get("class"), c.get("style")) for c in cells] == [
        ("-0.2", "bad", "--share:100%"),
        ("0.1", "good", "--share:50%"),
    ]
    for name in ("analysis.json", "analysis.html"):
        existing = (tmp_path / name).read_text("utf-8")
        (tmp_path / name).write_text("mine", encoding="utf-8")
        with pytest.raises(
            UserError, match=f"{name}: already exists and was not written by mnmt-jax"
        ):
            check_analysis_folder(tmp_path)
        (tmp_path / name).write_text(existing, encoding="utf-8")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Make runs of zeros with language layers and without."""
    folder = tmp_path_factory.mktemp("runs")
    usual = vocabulary()
    three_letters = dataclasses.replace(usual, languages=("eng", "deu", "fra"))
    for name, config, vocab in (
        ("layers", model(), usual),
        ("plain", dataclasses.replace(model(), methods=()), usual),
        ("three_letters", model(), three_letters),
    ):
        shapes = parameter_shapes(config, vocab.size)
        zeros = jax.tree.map(lambda one: LazyArray.of(np.zeros(one.shape, one.dtype)), shapes)
        whole = Config(Data(), config, Optimizer(), Train(), Decode(), Mesh())
        write_run(folder / name, whole, vocab, zeros, origin=("nobody", "zeros"))
    return folder


TASK = "--task=cldr_quickstart"


@pytest.mark.parametrize("kind", ["attribution", "ablation", "scales"])
def test_a_run_without_language_layers_is_an_error(kind, runs, tmp_path):
    flags = [] if kind == "scales" else [TASK]
    with pytest.raises(UserError, match="^the run's model has no language-specific") as caught:
        command("analyse", kind, "--run", runs / "plain", "--output", tmp_path, *flags)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "flags", "message"),
    [
        ("scales", [TASK], "--task does not apply to analyse scales"),
        ("scales", ["--limit=2"], "--limit does not apply to analyse scales"),
        ("scales", ["--tsv=x"], "--tsv does not apply to analyse scales"),
        ("ablation", [], "analyse ablation needs --task$"),
        ("attention", [], "analyse attention needs --task or --input"),
        ("ablation", ["--input=x"], "--input does not apply to analyse ablation"),
        ("attention", [TASK, "--nodes=3"], "--nodes does not apply to analyse attention"),
        ("attribution", [TASK, "--by_head"], "--by_head does not apply to analyse attribution"),
        ("attention", [TASK, "--source=en"], "--source does not apply to a task; name directions"),
        ("attention", ["--input=x", TASK], "--task does not apply to --input"),
        ("attention", ["--input=x", "--source=en"], "--input needs --source and --target"),
        ("attention", ["--input=x", "--targets=reference"], "--targets=reference: --input has no"),
        (
            "alignment",
            [TASK, "--beam_size=3"],
            "--beam_size does not apply to references; add --targets=output; leave it out",
        ),
        ("attention", [TASK, "--limit=-1"], "argument --limit: .-1. must be a whole"),
        ("attention", [TASK, "--layers=0"], "--layers=0: '0' must be a whole number"),
        ("attention", [TASK, "--layers=9"], "--layers: the model has 3 layers, not 9"),
        ("attribution", [TASK, "--layers=1"], "--layers: layer 1 has no branches .* from 2, 3"),
        ("attention", [TASK, "--common_to=en"], "--common_to=en: needs two languages or more"),
        ("attention", [TASK, "--common_to=en,xx"], "--common_to=xx: the model has no such"),
        ("attention", ["--input=x", "--common_to=en,de"], "--common_to does not apply to --input"),
        ("svcca", [TASK, "--top=3"], "--top does not apply to analyse svcca"),
        ("attention", [TASK, "--run=x"], "analyse attention accepts only one --run"),
        ("attention", [TASK, "--updates=3"], "--updates does not apply to analyse attention"),
        ("states", [TASK, "--targets=output"], "--targets does not apply to analyse states"),
        (
            "states",
            [TASK, "--roles=register"],
            "--roles: layout 'encoder_decoder' has no register;",
        ),
        ("states", [TASK, "--step=,"], "^--step: names nothing"),
        ("probe", [TASK, "--trained_on=test"], "^--trained_on: no such flag; use --probe_split"),
        ("states", [TASK, "--step=0,0"], "--step=0,0: analyse states accepts only one checkpoint"),
        ("probe", ["--input=x"], "--input does not apply to analyse probe"),
        ("probe", [TASK], "--directions=zero_shot: the run does not record .* --probe_split=test"),
        (
            "probe",
            [TASK, "--layers=3", "--directions=all"],
            "no source states after layer 3; choose",
        ),
        ("retrieval", [TASK, "--directions=en-de"], "'cldr_quickstart': no two of the languages"),
        ("similarity", [TASK, "--layers=-1"], "--layers=-1: '-1' must be a whole number"),
        ("attention", [TASK, "--directions=en-xx"], "--directions: 'en-xx' has 'xx', which is"),
        (
            "ablation",
            [TASK, "--supervised_targets=en-xx"],
            "^--supervised_targets: 'en-xx' has 'xx', which is not among",
        ),
        (
            "attention",
            [TASK, "--directions=some"],
            "--directions: 'some' must be SOURCE-TARGET, e.g. en-de; or write all, super",
        ),
        (
            "attention",
            [TASK, "--gin.Decode.buckets=(4,)", "--directions=en-de"],
            r"en-de: sentence 1 needs \d+ tokens, the largest of Decode.buckets is 4",
        ),
    ],
)
def test_invalid_arguments_are_one_error_line(kind, flags, message, runs, tmp_path):
    with pytest.raises(UserError, match=message) as caught:
        command("analyse", kind, "--run", runs / "layers", "--output", tmp_path, *flags)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_targets_of_an_ablation_have_the_codes_of_the_corpus(runs, tmp_path, monkeypatch):
    class Called(Exception):
        pass

    def called(*_, targets, **__):
        raise Called(targets)

    monkeypatch.setattr(ablation, "run_ablation", called)
    flags = ["--output", tmp_path / "out", TASK, "--supervised_targets=eng-deu,de-en"]
    with pytest.raises(Called) as caught:
        command("analyse", "ablation", "--run", runs / "three_letters", *flags)
    assert caught.value.args == ({"en": ("de",), "de": ("en",)},)


@pytest.mark.parametrize(
    "word,kind",
    [("tsne", "states"), ("t-SNE", "states"), ("cca", "svcca"), ("probing", "probe"), ("xyz", "")],
)
def test_a_synonym_of_an_analysis_is_answered_with_its_name(word, kind, tmp_path):
    with pytest.raises(UserError, match=f"^argument kind: invalid choice: '{word}'") as caught:
        command("analyse", word, "--run=r", "--output", tmp_path)
    assert (f"did you mean '{kind}'?" in str(caught.value)) == bool(kind)


def test_a_probe_is_tested_on_held_out_texts(runs, tmp_path):
    for code in ("en", "de"):
        (tmp_path / f"lines.{code}").write_text(f"one {code}\ntwo {code}\n", encoding="utf-8")
    flags = [f"--parallel={tmp_path}/lines.{{language}}", "--languages=en,de", "--task=mine"]
    given = ["--run", runs / "layers", "--directions=all", *flags]
    with pytest.raises(UserError, match="^task 'mine': validation and test sentences are the same"):
        command("analyse", "probe", "--output", tmp_path / "x", *given)
    assert not (tmp_path / "x").exists()


def test_probes_of_checkpoints_are_plotted_by_step():
    """Figure 1 (right) of the TPDM paper; one of two runs is not."""
    actual = {"tokens": 9, "micro": 0.5, "types": 0, "macro": None}

    def subject(run, step, accuracy):
        place = {"role": "source", "layer": 1, "ended": False, "classes": {"all": actual}}
        places = [place | {"accuracy": accuracy, "held_out": None}]
        return {"run": run, "checkpoint": f"step {step}", "places": places}

    facts = {"analysis": "probe", "run": "r", "layout": "prefix", "checkpoint": "step 20"}
    facts |= {"probe": {"hidden": True, "updates": 3}, "least": 5, "learned_from": "validation"}
    facts |= {"tested_on": "test", "subjects": [subject("r", 20, 0.5), subject("r", 9, 0.25)]}
    drawn = "".join(render_sections(facts))
    assert "Accuracy by step" in drawn and "layer 1: 0.500" in drawn  # the last step's value
    facts["subjects"][1]["run"] = "other"
    assert "Accuracy by step" not in "".join(render_sections(facts))


def test_a_finished_analysis_of_other_inputs_is_kept(runs, tmp_path, monkeypatch):
    """And a page calls lines by their file's name."""
    monkeypatch.setattr(
        teacher_forcing,
        "make_forced_sentences",
        lambda *_: ForcedSentences(("en", "de"), ("one",), ("x",), ("e",)),
    )
    maps = {"by_head": False, "heads": 1, "directions": []}
    monkeypatch.setattr(attention_maps, "compute_attention_maps", lambda *given, **flags: maps)
    scales = "analyse", "scales", "--output", tmp_path / "x", "--run"
    for _ in range(2):  # its own it replaces
        command(*scales, runs / "layers")
    existing = {path: path.read_bytes() for path in (tmp_path / "x").iterdir()}
    shutil.copytree(runs / "layers", tmp_path / "other")
    lines = tmp_path / "lines"
    lines.write_text("one\n", encoding="utf-8")
    read = ["--input", lines, "--source=en", "--target=de"]
    attention = "analyse", "attention", "--output", tmp_path / "x", "--run", runs / "layers", *read
    for call, message in (((*scales, tmp_path / "other"), "run"), (attention, "analysis")):
        with pytest.raises(UserError, match=rf"^--output=.* \({message}\); .* --overwrite$"):
            command(*call)
    assert {path: path.read_bytes() for path in (tmp_path / "x").iterdir()} == existing
    command(*attention, "--overwrite")
    actual = json.loads((tmp_path / "x" / "analysis.json").read_text("utf-8"))
    assert (actual["analysis"], actual["task"]) == ("attention", "lines")
    page = (tmp_path / "x" / "analysis.html").read_text("utf-8")
    assert "lines, 1 direction, 1 sentence. Layout " in page and str(tmp_path) not in page
    command(*attention)
    command(*scales, tmp_path / "other", "--overwrite")


def test_an_analysis_is_identified_by_its_facts(tmp_path):
    facts = {"analysis": "attention", "run": "r", "parameters_fingerprint": 2**32 - 1, "task": "t"}
    facts["others"] = [{"run": "s", "step": "newest"}]
    check_same_analysis(tmp_path, facts)
    write_analysis(tmp_path, {**facts, "layers": [1]}, "title", [])
    check_same_analysis(tmp_path, {**facts, "layers": [2]})
    for name in facts:
        with pytest.raises(UserError, match=rf"something else \({name}\)"):
            check_same_analysis(tmp_path, {**facts, name: "other"})
    for settings in ({"limit": 3}, {"limit": 1000, "layers": "1"}, {}):
        write_analysis(tmp_path, {**facts, "settings": {"limit": 1000}}, "title", [])
        message = "layers" if "layers" in settings else "limit"
        with pytest.raises(UserError, match=rf"something else \({message}\)"):
            check_same_analysis(tmp_path, {**facts, "settings": settings})
    check_same_analysis(tmp_path, {**facts, "settings": {"limit": 1000}})
    check_same_analysis(tmp_path, facts)  # known later
    del facts["parameters_fingerprint"]
    write_analysis(tmp_path, facts, "title", [])
    check_same_analysis(tmp_path, {**facts, "parameters_fingerprint": 3})


def test_fingerprints_of_earlier_versions_are_compared(tmp_path):
    """It was called `parameters`."""
    earlier = {"analysis": "svcca", "run": "r", "parameters": 7}
    write_analysis(tmp_path, {**earlier, "others": [{"run": "s", "parameters": 8}]}, "t", [])
    facts = {"analysis": "svcca", "run": "r", "parameters_fingerprint": 7}
    facts["others"] = [{"run": "s", "parameters_fingerprint": 8}]
    check_same_analysis(tmp_path, facts)
    with pytest.raises(UserError, match=r"\(parameters_fingerprint\)"):
        check_same_analysis(tmp_path, {**facts, "parameters_fingerprint": 9})


def test_the_split_of_earlier_probes_is_compared(tmp_path):
    """The setting was called `trained_on`."""
    write_analysis(tmp_path, {"analysis": "probe", "settings": {"trained_on": "test"}}, "t", [])
    check_same_analysis(tmp_path, {"analysis": "probe", "settings": {"probe_split": "test"}})
    with pytest.raises(UserError, match=r"\(probe_split\)"):
        check_same_analysis(tmp_path, {"analysis": "probe", "settings": {"probe_split": "dev"}})


def test_dropped_lines_of_the_input_are_counted(runs, tmp_path, capfd):
    (tmp_path / "lines").write_bytes(b"\xff\n\n")
    flags = ["--input", tmp_path / "lines", "--source=en", "--target=de", "--on_bad_line=drop"]
    with pytest.raises(UserError, match="lines: all sentences are blank$"):
        command("analyse", "attention", "--run", runs / "plain", "--output", tmp_path / "x", *flags)
    assert "1 line not UTF-8, treated as blank" in capfd.readouterr().err


def test_input_of_blank_lines_only_is_refused(runs, tmp_path):
    (tmp_path / "lines").write_text("\n \n", encoding="utf-8")
    flags = ["--input", tmp_path / "lines", "--source=en", "--target=de"]
    with pytest.raises(UserError, match="lines: all sentences are blank$"):
        command("analyse", "attention", "--run", runs / "plain", "--output", tmp_path / "x", *flags)
    assert not (tmp_path / "x").exists()
