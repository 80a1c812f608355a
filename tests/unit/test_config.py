"""Configuration by gin: six dataclasses; unknown keys are one error line."""

import codecs
import dataclasses
import sys
import typing
from pathlib import Path

import gin
import pytest

from mnmt_jax.commands.common_flags import import_modules
from mnmt_jax.config.loading import load_config, save_config
from mnmt_jax.config.sections import Data, Decode, Mesh, Model, Optimizer, Train
from mnmt_jax.design.fields import NamedValues, Range, field_types
from mnmt_jax.design.layouts import LANGUAGE_MODELS, LAYOUTS
from mnmt_jax.design.method_registry import all_methods, get_method
from mnmt_jax.errors import UserError
from mnmt_jax.runs.run_directory import RunDirectory
from tests.made_run import make_config

ROOT = Path(__file__).parent.parent.parent
SECTIONS = (Data, Model, Optimizer, Train, Decode, Mesh)


@pytest.fixture
def gin_file(tmp_path):
    path = tmp_path / "model.gin"
    path.write_text("WIDTH = 64\nModel.embed = %WIDTH\nModel.heads = 4\nModel.layout = 'prefix'\n")
    return str(path)


def test_files_and_bindings_reach_the_dataclasses(gin_file):
    config = load_config([gin_file], ["Data.rows=3", "Model.stage_layers=(2,)"])
    assert (config.model.embed, config.model.layout, config.data.rows) == (64, "prefix", 3)
    assert config.model.head_dim == 16


def test_a_byte_order_mark_is_left_out(gin_file):
    config = load_config([gin_file])
    Path(gin_file).write_bytes(codecs.BOM_UTF8 + Path(gin_file).read_bytes())
    assert load_config([gin_file]) == config


def test_saved_configuration_reads_back(gin_file, tmp_path):
    config = load_config([gin_file], ["Decode.buckets=(4, 8)", "Data.tasks=('a', 'b')"])
    save_config(config, tmp_path / "config.gin")
    assert load_config([str(tmp_path / "config.gin")]) == config


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        ("Model.hedz=3", "hedz"),
        ("Modle.embed=3", "Modle"),
        ("train/Model.embed=8", "train/Model"),
        ("UNUSED=3", "UNUSED"),
        ("Model.embed=", "parse"),
        ("Model.norm='middle'", "Model.norm='middle' must be one of pre, post"),
        ("Model.heads=5", "Model.heads=5"),
        ("Optimizer.schedule='linear'", "inverse_sqrt, cosine, constant"),
        ("Model.embed=%NOWHERE", "%NOWHERE has no value; bind it, e.g. --gin.NOWHERE=1"),
        ("Train.steps=abc", "Train.steps=abc: Failed to parse token 'abc'"),
        ("Model.stage_layers=(1", "Model.stage_layers=(1: a bracket or quote is not closed"),
        ("Train.steps='x'", "Train.steps='x' must be an integer"),
        ("Train.steps=1e5", "Train.steps=100000.0 must be an integer"),
        ("Train.log_every=0", "Train.log_every=0 must be at least 1"),
        ("Train.log_every=True", "Train.log_every=True must be an integer"),
        ("Data.rows=0", "Data.rows=0 must be at least 1"),
        ("Data.temperature=0", "Data.temperature=0.0 must be at least 0.1 and at most 1e+09"),
        ("Data.tasks='a'", "Data.tasks='a' must be a tuple, such as ('a',)"),
        ("Data.cache=7", "Data.cache=7 must be a string in quotes"),
        ("Optimizer.accumulate=0", "Optimizer.accumulate=0 must be at least 1"),
        ("Optimizer.learning_rate=-1.0", "must be at least 0"),
        ("Optimizer.warmup_steps=0", "'inverse_sqrt' needs at least 1"),
        ("Model.dropout=1.0", "Model.dropout=1.0 must be at least 0 and below 1"),
        ("Model.stage_layers=(2, 0)", "Model.stage_layers=(2, 0) must be at least 1"),
        ("Model.remat=1", "Model.remat=1 must be one of False, elementwise, mlp, True"),
        ("Model.embedding_scale=1", "Model.embedding_scale=1 must be True or False"),
        ("Model.embed=63", "Model.embed=63 must be a multiple"),
        ("Model.positions='learned'", "('sinusoidal', a number), ('learned', an integer) or ()"),
        ("Model.positions=('learned',)", "Model.positions=('learned',) must be ('sinusoidal', a "),
        ("Model.positions=('learned', 2, 3)", "must be ('sinusoidal', a number)"),
        ("Model.positions=('rotary', 8)", "Model.positions=('rotary', 8) must be ('sinusoidal'"),
        ("Model.positions=(8, 'learned')", "Model.positions=(8, 'learned') must be ('sinusoidal'"),
        ("Model.positions=('learned', 0)", "Model.positions=('learned', 0) must be at least 1"),
        ("Model.positions=('learned', 8.0)", "Model.positions=8.0 must be an integer"),
        (
            "Model.positions=('sinusoidal', 0)",
            "Model.positions=('sinusoidal', 0) must be at least 1e-06",
        ),
        ("Model.position_base=9.0", "Model.position_base: is Model.positions now, which is ('sinu"),
        ("Train.loss_chunk=8", "Train.loss_chunk: is gone"),
        ("Decode.buckets=()", "Decode.buckets=()"),
        ("Model.embde=4", "Model.embde: no such name; did you mean Model.embed?"),
        ("Modle.embed=4", "Modle: no such name; did you mean Model?"),
        (
            "Mesh.zzz=4",
            "Mesh.zzz: no such name; there are fsdp, tensor; 'mnmt keys Mesh' describes them",
        ),
        ("Mesh.rows=4", "Mesh.rows: no such name; did you mean Data.rows?"),
        ("Train.label_smoothing=0.1", "no such name; did you mean Optimizer.label_smoothing?"),
        ("Model.layer=2", "did you mean Model.stage_layers or CutResidual.layer or InstruCL.layer"),
        ("Model.seed=2", "Model.seed: no such name; did you mean Train.seed or Decode.seed?"),
        ("label_smoothing=0.1", "is never used; did you mean Optimizer.label_smoothing?"),
        ("smoothing=0.1", "gin macro 'smoothing' is never used; remove it or use %smoothing"),
        ("Decode.epsilon_cutoff=1", "Decode.epsilon_cutoff=1"),
        ("Decode.top_p=0", "Decode.top_p=0.0 must be above 0 and at most 1"),
        ("Mesh.fsdp=-2", "Mesh.fsdp=-2 must be at least -1"),
        ("TPDM.norms=1", "TPDM.norms=1 must be one of 0, 2, 3"),
        ("TPDM.norms=False", "TPDM.norms=False must be one of 0, 2, 3"),
        ("Train.save_every=300", "Train.eval_every=1000 and Train.save_every=300: one must be"),
    ],
)
def test_invalid_bindings_are_one_error_line(gin_file, binding, message):
    also = ["Model.methods=('tpdm',)"] if binding.startswith("TPDM") else []
    with pytest.raises(UserError, match=".") as caught:
        load_config([gin_file], [binding, *also])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        ("Model.embde=4", "Model.embde: no such name; did you mean Model.embed?"),
        ("Modle.embed=4", "Modle: no such name; did you mean Model?"),
        ("Model.position_base=9.0", "Model.position_base: is Model.positions now, "),
        ("a/Model.embed=4", "gin binding 'a/Model.embed' is never read; check its name"),
    ],
)
def test_an_unknown_name_is_reported_once(tmp_path, binding, message):
    with pytest.raises(UserError) as caught:
        load_config([], [binding])
    assert str(caught.value).startswith(message)
    (tmp_path / "mine.gin").write_text(f"\n{binding}\n")
    with pytest.raises(UserError) as caught:
        load_config([str(tmp_path / "mine.gin")])
    assert str(caught.value).startswith(f"{tmp_path}/mine.gin:2: {message}")


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("gin_configs/runs/own_txt.gin", "; did you mean gin_configs/runs/own_text.gin"),
        ("own_text.gin", "; did you mean gin_configs/runs/own_text.gin?"),
        ("gin_configs/models/own_text.gin", "; did you mean gin_configs/runs/own_text.gin?"),
        ("zzzzzzzz.gin", ""),
    ],
)
def test_a_misspelt_gin_file_gets_similar_names(path, hint):
    with pytest.raises(UserError) as caught:
        load_config([path])
    start = f"--gin_file={path}: no such file{hint}"
    assert str(caught.value).startswith(start) and (hint or str(caught.value) == start)


def test_a_gin_file_in_a_bucket_is_refused():
    with pytest.raises(UserError, match="^--gin_file=gs://b/config.gin: is in a bucket; copy it"):
        load_config(["gs://b/config.gin"])


def test_a_folder_for_a_gin_file_names_the_configuration_inside(tmp_path):
    with pytest.raises(UserError, match=f"^--gin_file={tmp_path}: is a folder$"):
        load_config([str(tmp_path)])
    (tmp_path / "config.gin").touch()
    with pytest.raises(UserError, match=f"is a folder; did you mean {tmp_path}/config.gin\\?"):
        load_config([str(tmp_path)])


def test_a_string_without_quotes_is_explained(gin_file):
    with pytest.raises(UserError, match="strings need quotes of their own") as caught:
        load_config([gin_file], ["Data.cache=runs/mine/cache"])
    assert "runs" in str(caught.value)
    with pytest.raises(UserError, match="strings need quotes of their own"):
        load_config([gin_file], ["Data.cache=/absolute/data-cache"])
    assert "ast.Name" not in str(caught.value)
    with pytest.raises(UserError, match="e\\.g\\. --gin\\.Optimizer\\.name=\"'muon'\"$"):
        load_config([gin_file], ["Optimizer.name = muon"])


@pytest.mark.parametrize(
    "line", ["Train.steps = abc", "Model.stage_layers = (1", "Train.stesp = 1"]
)
def test_errors_in_a_file_name_the_file(tmp_path, line):
    (tmp_path / "mine.gin").write_text(f"Train.keep_last = 3\n{line}\n")
    with pytest.raises(UserError, match=r"mine\.gin") as caught:
        load_config([str(tmp_path / "mine.gin")])
    assert "\n" not in str(caught.value)


def test_includes_are_found_from_any_folder_without_output(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.gin").write_text("include 'gin_configs/models/register_tiny.gin'\n")
    assert load_config(["mine.gin"]).model.layout == "register"
    assert load_config(["gin_configs/runs/cldr_quickstart.gin"]).train.steps == 2000
    assert capfd.readouterr() == ("", "")


def test_a_file_for_t5x_is_refused_in_one_line():
    with pytest.raises(UserError, match=r"\w+") as caught:
        load_config([str(T5X / "train.gin")])
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(capfd):
    with pytest.raises(UserError, match=r"nowhere\.gin"):
        load_config(["nowhere.gin"])
    assert capfd.readouterr() == ("", "")


def test_a_failed_load_leaves_no_gin_state(gin_file):
    with pytest.raises(UserError):
        load_config([gin_file], ["UNUSED=3"])
    assert load_config([]).model == Model()


def test_values_are_converted_to_their_declared_types():
    config = load_config([], ["Data.temperature=5", "Decode.buckets=[4, 8]", "Train.seed=3"])
    assert isinstance(config.data.temperature, float) and config.decode.buckets == (4, 8)
    assert dataclasses.replace(config.data, temperature=2).temperature == 2.0
    for binding, expected in (("('sinusoidal', 100)", 100.0), ("['learned', 9]", 9)):
        _, number = load_config([], [f"Model.positions={binding}"]).model.positions
        assert number == expected and type(number) is type(expected)


def test_every_number_has_a_range():
    numbers = 0
    for section in (*SECTIONS, *map(get_method, all_methods())):
        for name, kind in field_types(section).items():
            part = typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else kind
            allowed = next(iter(getattr(part, "__metadata__", ())), None)
            for each in allowed.kinds.values() if isinstance(allowed, NamedValues) else [part]:
                assert each not in (int, float), f"{section.__name__}.{name}"
                numbers += isinstance(next(iter(getattr(each, "__metadata__", ())), None), Range)
    assert numbers > 40


def test_best_checkpoints_need_losses_at_their_steps():
    """Every validation is saved or every save is validated, unless no best is kept."""
    for aligned in (dict(eval_every=5, save_every=10), dict(eval_every=10, save_every=5)):
        assert Train(**aligned).keep_best == 1
    assert Train(eval_every=4, save_every=6, keep_best=0).save_every == 6
    assert Train(save_every=1000, keep_every=5000).keep_every == 5000
    with pytest.raises(UserError, match="keep_every=1500 must be a multiple of Train.save_every"):
        Train(save_every=1000, keep_every=1500)
    with pytest.raises(UserError, match="Train.eval_every=4 and Train.save_every=6"):
        Train(eval_every=4, save_every=6)


@pytest.mark.parametrize("bindings", [["Data.rows=9"], ["Data.rows=0"], ["UNUSED=3"]])
def test_the_gin_state_of_the_process_is_kept(bindings):
    """Notebooks and t5x use gin too; loading a configuration must not clear their state."""
    gin.parse_config("Data.rows = 7")
    gin.finalize()
    try:
        if bindings == ["Data.rows=9"]:
            assert load_config([], bindings).data.rows == 9
        else:
            with pytest.raises(UserError):
                load_config([], bindings)
        assert gin.query_parameter("Data.rows") == 7
        assert gin.config_is_locked()
        assert load_config([]).data.rows == 64  # the default, not the host's 7
    finally:
        gin.clear_config()


def test_the_number_of_gin_keys_is_limited():
    assert 40 < sum(len(dataclasses.fields(section)) for section in SECTIONS) <= 84


T5X = ROOT / "gin_configs" / "t5x"  # read by t5x, whose modules they import: tests/t5x
SHIPPED = sorted(p for p in (ROOT / "gin_configs").rglob("*.gin") if p.parent != T5X)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_shipped_file_loads(path):
    config = load_config([str(path)])
    assert config.model.layout in LAYOUTS | LANGUAGE_MODELS


def test_every_layout_has_a_model_file():
    layouts = {load_config([str(path)]).model.layout for path in SHIPPED if "models" in path.parts}
    assert layouts == set(LAYOUTS | LANGUAGE_MODELS)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module `x_made_here` into the current folder; it creates a file when imported."""
    (tmp_path / "x_made_here.py").write_text(
        f"from pathlib import Path\nPath({str(tmp_path / 'imported')!r}).touch()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "imported"
    sys.modules.pop("x_made_here", None)


@pytest.mark.parametrize("line", ["import x_made_here", "from x_made_here import y as z"])
def test_gin_files_cannot_import_modules(module, line):
    Path("mine.gin").write_text(f"Train.steps = 3\n\n{line}\n")
    remedy = rf"mine\.gin:3: {line}: .*--module_import=x_made_here"
    with pytest.raises(UserError, match=remedy):
        load_config(["mine.gin"])
    with pytest.raises(UserError, match="must be NAME=VALUE"):
        load_config([], ["import x_made_here"])
    with pytest.raises(UserError, match="must be NAME=VALUE"):
        load_config([], [f"Train.steps=3\n{line}"])
    assert not module.exists()
    import_modules(["x_made_here"])
    assert module.exists()
    if not line.startswith("from"):
        assert load_config(["mine.gin"]).train.steps == 3


@pytest.mark.parametrize("line", ["import os", "import x_made_here", "include 'other.gin'"])
def test_the_configuration_of_a_run_contains_only_values(module, line):
    Path("other.gin").write_text("Train.steps = 4\n")
    Path("config.gin").write_text(f"Train.steps = 3\n{line}\n")
    with pytest.raises(UserError, match=rf"config\.gin:2: {line}: .* only values; remove the line"):
        RunDirectory(Path.cwd()).config()
    assert not module.exists()
    Path("config.gin").write_text("Train.steps = 3\n")
    Path("mine.gin").write_text("include 'other.gin'\n")
    assert RunDirectory(Path.cwd()).config(["mine.gin"], ["Train.seed=9"]).train.steps == 4


@gin.configurable("called_by_gin")
def called_by_gin():
    raise AssertionError("a configuration called a function")


@pytest.mark.parametrize("value", ["@called_by_gin()", "(1, @called_by_gin)", "{'a': @a/b.c()}"])
def test_a_value_cannot_be_a_call(tmp_path, value):
    (tmp_path / "config.gin").write_text(f"Train.seed = 3\nTrain.steps = {value}\n")
    for load in (RunDirectory(tmp_path).config, lambda: load_config([tmp_path / "config.gin"])):
        with pytest.raises(UserError, match=r"config\.gin:2: @.* would be called; write the value"):
            load()
    with pytest.raises(UserError, match="would be called"):
        load_config([], [f"Train.steps={value}"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("include 'a.gin'\n", r"^a\.gin:1: include 'a\.gin': .* in a cycle"),
        ("\ninclude 'b.gin'\n", r"^b\.gin:1: include 'a\.gin': .* in a cycle"),
        ("include 'c.gin'\n", r"^a\.gin:1: include 'c\.gin': no such file"),
        (
            "include 'gin_configs/models/regster_tiny.gin'\n",
            r"no such file; did you mean gin_configs/models/register_tiny\.gin or gin",
        ),
        ("A = %A\nTrain.steps = %A\n", r"^a\.gin:2: macros .* in a cycle \(%A\)"),
        ("A = %B\nB = (%A, 1)\nTrain.steps = %B\n", r"^a\.gin:3: macros .* in a cycle \(%B %A\)"),
        ("Train.steps = " + "(" * 5000 + "\n", r"^a\.gin"),
        ("Model.norm = 'middle'\n", r"^a\.gin:1: Model\.norm='middle' must be one of"),
        ("\nA = 'middle'\nModel.norm = %A\n", r"^a\.gin:3: Model\.norm='middle' must be one of"),
        ("Train:\n  steps = 'x'\n", r"^a\.gin:2: Train\.steps='x' must be an integer"),
        ("Trian:\n  steps = 3\n", r"^a\.gin:1: Trian: no such name; did you mean Train\?"),
        ("Model.stage_layers = ((1, 2),)\n", r"^a\.gin:1: Model.stage_layers=.* an integer"),
        ("Model.stage_layers = (((1, 2),),)\n", r"^a\.gin:1: a list inside a list"),
        ("A = (1,)\nModel.stage_layers = (%A, 1)\n", r"^a\.gin:2: a list inside a list"),
        ("A = (1,)\nModel.stage_layers = ((%A, 1),)\n", r"^a\.gin:2: a list inside a list"),
    ],
)
def test_errors_in_a_file_name_the_line(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    Path("a.gin").write_text(text)
    Path("b.gin").write_text("include 'a.gin'\n")
    with pytest.raises(UserError, match=message) as caught:
        load_config(["a.gin"])
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_an_error_of_a_file_and_of_the_command_line_names_no_line(tmp_path):
    file = tmp_path / "a.gin"
    file.write_text("Decode.source_contrast = 0.5\n", encoding="utf-8")
    files, languages = [str(file)], "Decode.contrast_languages=('source',)"
    with pytest.raises(UserError, match=r"^Decode\.source_contrast=0\.5 and Decode\.language"):
        load_config(files, [languages, "Decode.language_contrast=0.6"])
    file.write_text("Decode.source_contrast = 1.5\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"a\.gin:1: Decode\.source_contrast=1\.5"):
        load_config(files, [])


def test_macros_do_not_expand_exponentially():
    """Each holds the next one twice: 2**60 values if they were followed to the end."""
    doubled = [f"M{n}=(%M{n + 1}, %M{n + 1})" for n in range(60)]
    with pytest.raises(UserError, match="a list inside a list"):
        load_config([], [*doubled, "M60=1", "Data.rows=%M0"])


def test_text_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / "a.gin").write_bytes(b"Train.steps = 3 # \xff\n")
    with pytest.raises(UserError, match=r"a\.gin: not UTF-8 text"):
        load_config([str(tmp_path / "a.gin")])


def test_exponential_includes_are_refused(tmp_path, monkeypatch):
    """26 files that include the next twice are read 2 ** 26 times."""
    monkeypatch.chdir(tmp_path)
    for number in range(26):
        (tmp_path / f"{number}.gin").write_text(f"include '{number + 1}.gin'\n" * 2)
    (tmp_path / "26.gin").write_text("Train.seed = 3\n")
    with pytest.raises(UserError, match=r"\d+\.gin:\d: include .*more than 1000 inclusions"):
        load_config(["0.gin"])
    with pytest.raises(UserError, match="more than 1000 inclusions"):
        load_config(["18.gin"] * 10)
    assert load_config(["20.gin"] * 3).train.seed == 3


def test_nested_includes_have_a_depth_limit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(5000):
        (tmp_path / f"{number}.gin").write_text(f"include '{number + 1}.gin'\n")
    (tmp_path / "5000.gin").write_text("Train.seed = 3\n")
    with pytest.raises(UserError, match=r"50\.gin:1: include '51.gin': .*50 nested"):
        load_config(["0.gin"])
    assert load_config(["4951.gin"]).train.seed == 3


def test_config_file_round_trip(tmp_path):
    config = make_config(tmp_path / "cache")
    save_config(config, tmp_path / "run.gin")
    assert load_config([str(tmp_path / "run.gin")]) == config
