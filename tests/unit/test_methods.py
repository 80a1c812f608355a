"""Selection, gin sections, registry and compatibility of methods."""

from __future__ import annotations

import ast
import dataclasses
import functools
import gc
import json
import re
import sys
from pathlib import Path

import gin
import jax
import pytest

import mnmt_jax.methods
from mnmt_jax.commands.common_flags import import_modules
from mnmt_jax.config.legacy_configs import migrate_facts
from mnmt_jax.config.loading import load_config, save_config
from mnmt_jax.config.sections import SECTIONS, Decode, Model
from mnmt_jax.cost.compile_ahead import AheadOfTimeCompilation
from mnmt_jax.design import method_files
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.design.method import Method, as_facts
from mnmt_jax.design.method_files import RESERVED_TITLES, library_methods
from mnmt_jax.design.method_registry import get_method, get_section, section_titles
from mnmt_jax.distributed.sharding import make_mesh
from mnmt_jax.errors import UserError
from mnmt_jax.interop.t5x.parsed import parsed_config, register_methods
from mnmt_jax.methods.adaption import Adaption
from mnmt_jax.methods.instructcl import InstruCL
from mnmt_jax.model.sublayers import make_plan
from mnmt_jax.runs.run_directory import changed_fields
from mnmt_jax.training.generated_batches import StepModel
from mnmt_jax.training.learner import Learner
from mnmt_jax.training.train_step import train_step
from mnmt_jax.vocabulary.language_codes import find_code

METHODS = library_methods()
ADAPTION = ["Model.methods=('adaption',)", "Adaption.mlp=12"]
INSTRUCTCL = ["Train.methods=('instructcl',)", "InstruCL.layer=2", "InstruCL.form='paper'"]


def plan_of(model: Model):
    return make_plan(model, get_layout(model.layout, model.stage_layers))


def test_methods_are_selected_by_name_and_configured_by_section():
    config = load_config([], [*ADAPTION, *INSTRUCTCL])
    assert config.model.methods == (Adaption(12, 0.1),)
    assert config.train.methods == (InstruCL(2, "paper"),)
    assert config.methods == (*config.model.methods, *config.train.methods)
    assert load_config([]).methods == ()


def test_every_file_defines_the_method_of_its_name():
    for name in METHODS:
        method = get_method(name)
        assert method.name == name
        assert get_section(method.__name__) is method and method.__name__ in section_titles()
        assert method.__module__ == f"mnmt_jax.methods.{name}"
        assert dataclasses.is_dataclass(method) and method() == method()


def test_the_registry_lists_the_folder():
    """Classes `class X(Method, name="file")` of the files, without importing them."""
    classes = {}
    for path in sorted(Path(mnmt_jax.methods.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [k.value.value for k in getattr(node, "keywords", []) if k.arg == "name"]
            if isinstance(node, ast.ClassDef) and names:
                assert names == [path.stem]
                classes[path.stem] = node.name
    assert [*classes] == METHODS and len(classes) > 12
    assert {*classes.values()} <= {*section_titles()}


DOCUMENTED = dict(
    re.findall(
        r"^\| \[`(\w+)`\].*?`((?:Model|Train)\.methods = \('\w+',\))`",
        (Path(__file__).resolve().parents[2] / "docs" / "methods.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
)
SMALL = [
    *("Model.embed=16", "Model.heads=2", "Model.mlp=8", "Model.vocab_size=0", "Data.rows=2"),
    *("Data.source_length=8", "Data.target_length=8", "Train.steps=1", "Optimizer.warmup_steps=1"),
]
ENCODER_DECODER = ["Model.layout='encoder_decoder'", "Model.stage_layers=(2, 2)"]
# Settings that a method needs besides those above; the others are traced in an encoder-decoder.
NEEDED = {
    "adaption": ["Model.layout='two_stage'", "Model.stage_layers=(1, 1)", "Adaption.mlp=8"],
    "instructcl": ["Model.layout='two_stage'", "Model.stage_layers=(1, 1)", "InstruCL.layer=1"],
    "back_translation": [
        *("Model.layout='register'", "Model.stage_layers=(1,)", "Data.max_segments=1"),
        "BackTranslation.vocabulary=('en', 'de', 'fr')",
    ],
    "language_layers": [
        *ENCODER_DECODER,
        *("LanguageLayers.languages=('en', 'de')", "LanguageLayers.without=('en',)"),
    ],
    "lcs": [*ENCODER_DECODER, "LCS.first=2", "LCS.languages=('en', 'de')"],
    "mrasp2": [*ENCODER_DECODER, "MRASP2.layer=2"],
    "cpo": [*ENCODER_DECODER, "Data.max_segments=1"],
    "unlikelihood": [*ENCODER_DECODER, "Unlikelihood.vocabulary=('en', 'de')"],
    "word_dropout": [*ENCODER_DECODER, "WordDropout.vocabulary=('en', 'de')"],
    "tpdm": [*ENCODER_DECODER, "TPDM.layer=2"],
    "graformer": [
        "Model.layout='grafted'",
        "Model.stage_layers=(2, 1, 1)",
        "Graformer.encoder_layers=1",
    ],
    "lamate": [
        "Model.layout='encoder_adaptor_decoder'",
        "Model.stage_layers=(2, 1, 1)",
        "LaMaTE.group=1",
    ],
    "masking": ["Model.layout='masked_lm'", "Model.stage_layers=(1,)"],
    "graft": [*ENCODER_DECODER, "Graft.parts=(('x', 'layer_1', 'layer_1'),)"],
}


def binding_of(name: str) -> str:
    """Return the binding that selects a method."""
    method = get_method(name)
    section = "Model" if method.edits() or method().players() else "Train"
    return f"{section}.methods = ('{name}',)"


def test_every_method_is_documented_with_its_binding():
    expected = {name: binding_of(name) for name in METHODS}
    assert expected == DOCUMENTED, "the table of docs/methods.md has one row for each method"
    assert NEEDED.keys() <= expected.keys()


@pytest.mark.parametrize("name", METHODS)
def test_an_update_with_each_method_can_be_traced(name, monkeypatch):
    """Nothing is compiled. `Decode.allow_unk` is fixed in a run whose updates translate."""
    searches, greedy = [], StepModel.greedy
    monkeypatch.setattr(StepModel, "greedy", lambda *a: searches.append(name) or greedy(*a))
    config = load_config([], [*SMALL, *NEEDED.get(name, ENCODER_DECODER), binding_of(name)])
    assert [method.name for method in config.methods] == [name]
    ahead = AheadOfTimeCompilation(config, 40, jax.devices()[:1])
    step = functools.partial(train_step, ahead.learner)
    state, metrics = jax.eval_shape(step, ahead._state, ahead._batch())
    assert state.step.shape == () and metrics["loss"].shape == ()
    changed = changed_fields(config, dataclasses.replace(config, decode=Decode(allow_unk=True)))
    assert [" (methods of the run translate" in line for line in changed] == [True] * bool(searches)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_in_the_wrong_field_is_an_error_with_the_right_one(name):
    wrong, right = ("Train", "Model") if "Model" in binding_of(name) else ("Model", "Train")
    binding = f"{wrong}.methods=('{name}',)"
    with pytest.raises(
        UserError,
        match=rf"{binding}.* name it in {right}\.methods".replace("(", "\\(").replace(")", "\\)"),
    ):
        load_config([], [binding])


def test_older_runs_may_name_training_methods_in_model_methods(tmp_path):
    (tmp_path / "config.gin").write_text("Model.methods = ('mrasp2',)\n", encoding="utf-8")
    assert load_config([], run=tmp_path / "config.gin").methods[0].name == "mrasp2"


def test_fields_with_codes_accept_any_form():
    bindings = ["LanguageLayers.languages=('EN', 'deu_Latn')", "LanguageLayers.without=('en-US',)"]
    config = load_config([], ["Model.methods=('language_layers',)", *bindings])
    (fitted,) = config.bind_languages(("en", "de"), find_code).methods
    assert (fitted.languages, fitted.without) == (("en", "de"), ("en",))
    with pytest.raises(UserError, match="LanguageLayers.languages="):
        config.bind_languages(("en", "fr"), find_code)
    bindings = ["BackTranslation.languages=('DE',)", "BackTranslation.pool=('zh-TW', 'de')"]
    config = load_config([], ["Train.methods=('back_translation',)", *bindings])
    (fitted,) = config.bind_languages(("en", "de", "zho_Hant"), find_code).methods
    assert (fitted.languages, fitted.pool) == (("de",), ("zho_Hant", "de"))


def test_a_saved_configuration_with_methods_reads_back(tmp_path):
    config = load_config([], [*ADAPTION, *INSTRUCTCL])
    save_config(config, tmp_path / "config.gin")
    text = (tmp_path / "config.gin").read_text(encoding="utf-8")
    assert "Model.methods = ('adaption',)" in text and "InstruCL.form = 'paper'" in text
    assert load_config([], run=tmp_path / "config.gin") == config
    facts = json.loads(json.dumps(as_facts(config)))
    assert facts["train"]["methods"] == [
        {"name": "instructcl", "layer": 2, "form": "paper", "groups": 1}
    ]


def test_methods_edit_the_plan_in_order():
    """Each method gets the plan edited by the previous ones."""
    names = []

    @dataclasses.dataclass(frozen=True)
    class Watching(Adaption, name="watching"):
        def edit(self, plan, config):
            names.append([each.name for each in plan.stages[-1].after])
            return plan

    @dataclasses.dataclass(frozen=True)
    class Again(Watching, name="again"):
        pass

    plan_of(Model("two_stage", (1, 1), methods=(Watching(), Adaption(), Again())))
    assert names == [["stage_1_norm"], ["adaption_output", "stage_1_norm"]]


@pytest.mark.parametrize(
    ("name", "bindings"),
    [
        ("back_translation", ["Data.max_segments=1"]),
        ("cpo", ["Data.max_segments=1"]),
        ("instructcl", ["InstruCL.layer=1"]),
        ("mrasp2", ["MRASP2.layer=1"]),
        ("lcs", ["LCS.languages=('en', 'de')"]),
    ],
)
@pytest.mark.parametrize("layout", ["causal_lm", "masked_lm"])
def test_methods_of_translators_refuse_language_models(name, bindings, layout):
    """LCS biases a source, which a masked language model has."""
    model = [f"Model.layout='{layout}'", "Model.stage_layers=(1,)", "Data.instruction='2'"]
    config = load_config([], [*SMALL, *model, *bindings, binding_of(name)])
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    if (name, layout) == ("lcs", "masked_lm"):
        assert Learner.from_config(config, 40, mesh)
        return
    reason = "the first stage of .* has no source" if name == "lcs" else ".* does not translate"
    with pytest.raises(UserError, match=f"^{name}: {reason}; leave '{name}' out of"):
        Learner.from_config(config, 40, mesh)


@pytest.mark.parametrize(
    ("bindings", "message"),
    [
        (["Model.methods=('adoption',)"], "no method 'adoption'; did you mean 'adaption'?"),
        (["Model.methods=('GTPDM',)"], "no method 'GTPDM'; did you mean 'tpdm'?"),
        (["Model.methods='adaption'"], r"Model.methods='adaption' must be a tuple"),
        (["Train.methods='cpo'"], r"Train.methods='cpo' must be a tuple, such as \('cpo',\)"),
        (["Train.methods=(3,)"], r"Train.methods=\(3,\) must be a tuple, such as \('rdrop',\)"),
        (["Model.methods=(3,)"], r"Model.methods=\(3,\) must be a tuple"),
        (["Model.methods=('adaption', 'adaption')"], "Model.methods names .adaption. twice"),
        (["Train.methods=('adaption',)"], "Train.methods=.*adaption.*name it in Model.methods"),
        (["Adaption.mlp=3"], "Adaption.mlp: nothing reads it; name 'adaption' in Model.methods"),
        ([*ADAPTION, "Adaption.mpl=3"], "Adaption.mpl: no such name; did you mean Adaption.mlp"),
        ([*ADAPTION, "Adoption.mlp=3"], "Adoption: no such name; did you mean Adaption"),
        ([*ADAPTION, "Adaption.mlp=0"], "Adaption.mlp=0 must be at least 1"),
        ([*INSTRUCTCL, "InstruCL.layer=0"], "InstruCL.layer=0 must be at least 1"),
        (["Model.methods=('instructcl',)", *INSTRUCTCL], "names 'instructcl' twice"),
        (["Model.adaption_mlp=8"], "is Adaption.mlp now, with Model.methods = .'adaption'"),
        (["Train.contrastive_layer=8"], "is InstruCL.layer now, with Train.methods"),
    ],
)
def test_invalid_arguments_are_one_error_line(bindings, message):
    with pytest.raises(UserError, match=message) as caught:
        load_config([], bindings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        (["'lcs'"], ["'cut_residual'"], ["Model.methods was ('lcs',), now ('cut_residual',)"]),
        (["'lcs'"], [], ["Model.methods was ('lcs',), now ()"]),
        (
            ["'lcs'", "'adaption'"],
            ["'adaption'", "'lcs'"],
            ["Model.methods was ('lcs', 'adaption'), now ('adaption', 'lcs')"],
        ),
        (
            ["'lcs'", "'adaption'", "LCS.first=0", "LCS.inject='once'"],
            ["'lcs'", "'adaption'", "LCS.first=2", "Adaption.mlp=3"],
            ["LCS.first was 0, now 2", "LCS.inject was 'once', now 'each'"]
            + ["Adaption.mlp was 2048, now 3"],
        ),
        (["'lcs'", "LCS.first=2"], ["'lcs'", "LCS.first=2"], []),
    ],
)
def test_changed_methods_of_a_run_are_reported_as_in_gin(before, after, changed):
    def config(words):
        names = [word for word in words if word.startswith("'")]
        settings = [word for word in words if not word.startswith("'")]
        return load_config([], [f"Model.methods=[{','.join(names)}]", *settings])

    assert changed_fields(config(before), config(after)) == changed


@pytest.mark.parametrize(
    ("method", "field", "reason"),
    [
        ("cpo", "beam_size=2", ""),
        ("", "max_length=9", "validation translates with it"),
        ("", "beam_size=2", ""),
    ],
)
def test_settings_of_decoding_that_training_uses_may_not_change(method, field, reason):
    same = [f"Train.methods=['{method}']"] if method else ["Train.translate_pairs=4"]
    changed = changed_fields(load_config([], same), load_config([], [*same, f"Decode.{field}"]))
    assert [line.partition(" (")[2] for line in changed] == [f"{reason})"] * bool(reason)


def test_errors_in_a_gin_file_name_the_line(tmp_path):
    file = tmp_path / "own.gin"
    for text, line in (("\nModel.methods = ('no',)\n", 2), ("\n\nAdaption.mlp = 2\n", 3)):
        file.write_text(text)
        with pytest.raises(UserError, match=f"own.gin:{line}: "):
            load_config([str(file)])


OWN = """
import dataclasses
from mnmt_jax.design.fields import Count
from mnmt_jax.design.method import Method

@dataclasses.dataclass(frozen=True)
class Twice(Method, name="twice"):
    layer: Count = 1

    def edit(self, plan, config):
        return plan.with_layers(lambda n, layer: layer * 2 if n == self.layer else layer)
"""


def test_a_user_method_needs_no_change_of_the_library(tmp_path, monkeypatch):
    (tmp_path / "method_of_this_test.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Method, "registered", dict(Method.registered))
    bindings = ["Model.methods=('twice',)", "Twice.layer=2", "Model.stage_layers=(3,)"]
    with pytest.raises(UserError, match="no method 'twice'.*--module_import"):
        load_config([], bindings[:1])
    import_modules(["method_of_this_test"])
    plan = plan_of(load_config([], bindings).model)
    assert [len(layer) for _, layer in plan.layers()] == [2, 4, 2]
    with pytest.raises(UserError, match="Twice.layer=0 must be at least 1"):
        load_config([], [*bindings, "Twice.layer=0"])


EARLIER = """# Written by mnmt-jax.
Model.layout = 'two_stage'
Model.stage_layers = (1, 1)
Model.adaption_mlp = {mlp}
Model.adaption_dropout = 0.2
Train.contrastive_layer = {layer}
Train.contrastive_form = 'paper'
"""


@pytest.mark.parametrize(("mlp", "layer"), [(8, 2), (0, 2), (8, 0), (0, 0)])
def test_runs_of_an_earlier_version_are_read(mlp, layer, tmp_path):
    (tmp_path / "config.gin").write_text(EARLIER.format(mlp=mlp, layer=layer))
    config = load_config([], run=tmp_path / "config.gin")
    assert config.model.methods == ((Adaption(mlp, 0.2),) if mlp else ())
    assert config.train.methods == ((InstruCL(layer, "paper"),) if layer else ())
    assert config.model.layout == "two_stage"


def test_positions_of_an_earlier_version_are_read(tmp_path):
    """In a run; in a gin file, the old name is an error (`test_config.py`)."""
    (tmp_path / "config.gin").write_text("Model.embed = 16\nModel.position_base = 100.0\n")
    assert load_config([], run=tmp_path / "config.gin").model.positions == ("sinusoidal", 100.0)


def test_removed_settings_of_older_runs_are_ignored(tmp_path):
    """In a gin file, the old name is an error (`test_config.py`)."""
    (tmp_path / "config.gin").write_text("Train.loss_chunk = 8\nTrain.steps = 7\n")
    assert load_config([], run=tmp_path / "config.gin").train.steps == 7


def test_sections_of_methods_removed_by_a_binding_are_ignored(tmp_path):
    """With a method in a file and a flag that removes it, its section is accepted."""
    file = tmp_path / "own.gin"
    file.write_text("Model.methods = ('adaption',)\nAdaption.mlp = 2\n")
    assert load_config([str(file)], ["Model.methods=()"]).methods == ()
    file.write_text("\nModel.methods = ('adaption',)\nAdaption.mlp = 0\n")
    with pytest.raises(UserError, match=r"^\S*own.gin:3: Adaption.mlp=0"):
        load_config([str(file)])
    with pytest.raises(UserError, match="^Adaption.mlp=-1"):
        load_config([str(file)], ["Adaption.mlp=-1"])


def test_a_file_added_to_the_folder_is_a_method(tmp_path, monkeypatch):
    """There is no list of methods; files with a leading underscore are ignored."""
    for name in ("two_fold", "_helper"):
        text = OWN.replace('"twice"', f'"{name}"').replace("class Twice", "class TwoFold")
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(method_files, "FOLDER", tmp_path)
    monkeypatch.setattr(mnmt_jax.methods, "__path__", [str(tmp_path)])
    monkeypatch.setattr(Method, "registered", {})
    assert library_methods() == ["two_fold"] and section_titles() == ["TwoFold"]
    try:
        bindings = ["Model.methods=('two_fold',)", "TwoFold.layer=2", "Model.stage_layers=(3,)"]
        plan = plan_of(load_config([], bindings).model)
        assert [len(layer) for _, layer in plan.layers()] == [2, 4, 2]
        with pytest.raises(UserError, match="TwoFolt: no such name; did you mean TwoFold"):
            load_config([], [*bindings, "TwoFolt.layer=2"])
    finally:
        sys.modules.pop("mnmt_jax.methods.two_fold", None)


def test_reserved_titles_are_the_configuration_sections():
    assert {*RESERVED_TITLES} == {section.__name__ for section in SECTIONS.values()}


def test_names_of_the_library_are_reserved(monkeypatch):
    """Whether its file was imported before or not."""
    for known in (dict(Method.registered), {}):
        monkeypatch.setattr(Method, "registered", known)
        message = "'adaption' is mnmt_jax.methods.adaption; rename yours"
        with pytest.raises(UserError, match=message):
            type("Mine", (Method,), {"__module__": "mine"}, name="adaption")
        for section in ("Adaption", "Model"):
            message = f"'{section}' is a section of the library; rename yours"
            with pytest.raises(UserError, match=message):
                type(section, (Method,), {"__module__": "mine"}, name="mine")
        assert "mine" not in known
    monkeypatch.undo()
    assert get_method("adaption") is Adaption


def test_a_method_must_be_a_frozen_dataclass(monkeypatch):
    monkeypatch.setattr(Method, "registered", dict(Method.registered))
    type("Plain", (Method,), {"__module__": "mine"}, name="plain")
    with pytest.raises(UserError, match="Model.methods: 'plain' .mine.Plain. must be a frozen"):
        load_config([], ["Model.methods=('plain',)"])


def test_settings_of_a_method_that_is_not_imported_have_a_remedy():
    message = "did you mean TuningLayers[?]; your own method needs --module_import"
    with pytest.raises(UserError, match=message):
        load_config([], ["ThinLayers.width=8"])


def test_a_class_without_its_keyword_and_an_edit_without_a_plan_are_named(monkeypatch):
    gc.collect()  # classes of other tests
    unnamed = type("Bottlenecks", (Method,), {"__module__": "mine"})
    with pytest.raises(UserError, match="write class Bottlenecks.Method, name='own'. in mine$"):
        load_config([], ["Model.methods=('own',)"])
    derived = type("Derived", (unnamed,), {"name": "derived"})
    with pytest.raises(UserError, match="your own needs --module_import$"):
        load_config([], ["Model.methods=('own',)"])
    assert derived
    mine = type("Mine", (unnamed,), {"__module__": "mine"})
    with pytest.raises(UserError, match="write class Mine.Bottlenecks, name='own'. in mine$"):
        load_config([], ["Model.methods=('own',)"])
    assert mine
    monkeypatch.setattr(unnamed, "name", "own", raising=False)
    monkeypatch.setattr(unnamed, "edit", lambda self, plan, config: None)
    with pytest.raises(UserError, match="^Bottlenecks.edit returned None; return the plan$"):
        plan_of(Model("prefix", (1,), methods=(unnamed(),)))


def test_gin_knows_the_sections_of_methods():
    """As under t5x, whose gin parses the same files."""
    register_methods()
    with gin.unlock_config():
        gin.parse_config([*ADAPTION, *INSTRUCTCL])
    try:
        expected = load_config([], [*ADAPTION, *INSTRUCTCL])
        assert parsed_config() == expected
        assert type(parsed_config().model.methods[0]) is Adaption
        gin.parse_config("CutResidual.layer = 2")
        with pytest.raises(UserError, match="CutResidual.layer' is never read.*names its method"):
            parsed_config()
    finally:
        gin.clear_config()


OLD_FACTS = {"layout": "two_stage", "embed": 16}


@pytest.mark.parametrize(
    ("methods", "adaption", "fits"),
    [((Adaption(8),), 8, True), ((), 0, True), ((Adaption(8),), 0, False), ((), 8, False)],
)
def test_adapters_of_an_earlier_version_are_checked(methods, adaption, fits):
    model = Model("two_stage", (1, 1), embed=16, heads=2, methods=methods)
    recorded = json.loads(json.dumps(as_facts(model)))
    facts = migrate_facts(OLD_FACTS | {"adaption_mlp": adaption}, recorded)
    assert all(recorded[name] == value for name, value in facts.items()) == fits


def test_older_adapters_imply_the_former_defaults():
    """Settings that did not exist had a single value then."""
    recorded = json.loads(json.dumps(as_facts(Model("two_stage", (1, 1), embed=16, heads=2))))
    facts = migrate_facts(OLD_FACTS, recorded)
    assert facts and all(recorded[name] == value for name, value in facts.items())
    of_base = migrate_facts(OLD_FACTS | {"position_base": 100.0}, recorded)
    assert of_base["positions"] == ["sinusoidal", 100.0] != recorded["positions"]
    assert (
        migrate_facts(OLD_FACTS | {"position_base": 10000.0}, recorded)["positions"]
        == recorded["positions"]
    )
    for name, other in (("activation", "gelu"), ("embedding_scale", False)):
        assert (
            facts[name] != other
            and migrate_facts(OLD_FACTS | {name: other}, recorded)[name] == other
        )
