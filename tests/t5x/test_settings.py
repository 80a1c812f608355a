"""Values that t5x's gin files get from this project's configuration. Needs no t5x."""

from __future__ import annotations

from pathlib import Path

import gin
import pytest

from mnmt_jax.config.loading import load_config
from mnmt_jax.distributed.sharding import RULES
from mnmt_jax.errors import UserError
from mnmt_jax.interop.t5x import errors as t5x_errors
from mnmt_jax.interop.t5x import settings as t5x_settings
from mnmt_jax.interop.t5x.parsed import parsed_config

MODEL = "gin_configs/models/register_tiny.gin"
RUN = "gin_configs/runs/own_text.gin"
BINDINGS = ["Optimizer.accumulate = 4", "Data.rows = 6", "Decode.buckets = (8, 24)"]


@gin.configurable("made_elsewhere")
def made_elsewhere(size=1):
    return size


@pytest.fixture
def parse():
    """Parse as t5x does, in a gin state that ends with the test."""
    gin.clear_config()
    yield lambda *bindings: gin.parse_config_files_and_bindings([MODEL, RUN], list(bindings))
    gin.clear_config()


def test_a_configuration_parsed_by_gin_equals_the_commands_configuration(parse):
    expected = load_config([MODEL, RUN], BINDINGS)
    parse(*BINDINGS, "train/made_elsewhere.size = 3", "made_elsewhere.size = %SIZE", "SIZE = 2")
    assert parsed_config() == expected
    assert expected.model.layout == "register" and expected.data.rows == 6


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        ("train/Data.rows = 4", "train/Data.rows"),
        ("STEPS = 4", "macro 'STEPS' is never used"),
        ("Data.rows = 0", "Data.rows"),
    ],
)
def test_invalid_keys_are_refused_under_t5x_too(parse, binding, message):
    parse(binding)
    with pytest.raises(UserError, match=message):
        parsed_config()


def test_t5x_values_come_from_the_projects_keys(parse):
    parse(*BINDINGS)
    config = parsed_config()
    assert (t5x_settings.rows(), t5x_settings.micro_batches()) == (24, 4)
    assert t5x_settings.validation_batches() == -(-config.data.validation_examples // 24)
    lengths = {"inputs": 128, "targets": 128, "source_lang": 1, "target_lang": 1}
    assert t5x_settings.training_lengths() == lengths
    assert t5x_settings.inference_lengths()["inputs"] == 24
    assert t5x_settings.steps() == 20000 and t5x_settings.save_every() == 1000
    assert float(t5x_settings.learning_rate()(gin_step(1000))) == pytest.approx(1e-3)


def test_checkpoints_that_t5x_would_delete_are_refused(parse):
    parse("Train.keep_every = 5000", "Train.keep_last = 3")
    with pytest.raises(UserError, match="Train.keep_every=5000: t5x keeps the newest"):
        t5x_settings.keep_last()


def test_patience_is_refused_under_t5x(parse):
    parse("Train.eval_every = 100", "Train.patience = 300")
    with pytest.raises(UserError, match="Train.patience=300: t5x trains to Train.steps"):
        t5x_settings.eval_every()


def test_translations_at_validations_are_refused_under_t5x(parse):
    parse("Train.translate_pairs = 50", "Train.best_by = 'supervised/bleu'")
    with pytest.raises(UserError, match="Train.translate_pairs=50: t5x translates at no valid"):
        t5x_settings.eval_every()


@pytest.mark.parametrize("binding", ["weights = (('*-en', 0.5),)", "noise = (('typos', 0.1),)"])
def test_weights_and_noise_are_refused_under_t5x(parse, binding):
    parse(f"Data.{binding}")
    with pytest.raises(UserError, match="t5x reads the mixture's text in the mixture's order; set"):
        t5x_settings.training_lengths()


def test_other_trackers_are_refused_under_t5x(parse):
    parse("Train.trackers = ('tensorboard', 'mlflow')")
    with pytest.raises(UserError, match="t5x writes TensorBoard's events and not to mlflow"):
        t5x_settings.log_every()


def test_epochs_are_refused_under_t5x(parse):
    parse("Train.epochs = 3")
    with pytest.raises(UserError, match="Train.epochs=3: t5x trains to Train.steps"):
        t5x_settings.steps()


def gin_step(step: int):
    import jax.numpy as jnp

    return jnp.asarray(step, jnp.int32)


def test_axis_rules_equal_the_sharding_table(parse):
    parse()
    rules = dict(t5x_settings.axis_rules())
    assert rules.keys() == RULES.keys()
    assert {"batch": "data", "embed": None, "mlp": "model", "length": None}.items() <= rules.items()
    split = load_config([MODEL, RUN], ["Mesh.fsdp = 2"])
    assert dict(t5x_settings.logical_axis_rules(split))["embed"] == "data"


def test_gin_files_with_dynamic_registration_are_parsed(parse, tmp_path):
    (tmp_path / "train.gin").write_text(
        "from __gin__ import dynamic_registration\nfrom mnmt_jax import config\n"
        f"config.Data.rows = 6\ninclude '{MODEL}'\n"
    )
    gin.parse_config_file(str(tmp_path / "train.gin"))
    assert parsed_config() == load_config([MODEL], ["Data.rows = 6"])


def test_paths_passed_to_t5x_are_absolute(tmp_path, monkeypatch):
    """Orbax refuses relative ones, from a thread and at the first save."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model" / "checkpoint_2" / "state").mkdir(parents=True)
    assert t5x_settings.output_folder("runs/new") == str(tmp_path / "runs" / "new")
    assert Path("runs/new").is_dir()
    assert t5x_settings.checkpoint("model/checkpoint_2") == str(tmp_path / "model/checkpoint_2")
    for path in ("gs://bucket/model", str(tmp_path / "model" / "checkpoint_2")):
        assert t5x_settings.output_folder(path) == path == t5x_settings.checkpoint(path)


def test_invalid_paths_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model" / "checkpoint_2" / "state").mkdir(parents=True)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="^file/x: Not a directory; choose another folder"):
        t5x_settings.output_folder("file/x")
    for path in ("model", "model/checkpoint_3"):
        with pytest.raises(UserError, match=f"^{path}: no checkpoint.*; give model/checkpoint_2$"):
            t5x_settings.checkpoint(path)
    with pytest.raises(UserError, match="train one first"):
        t5x_settings.checkpoint("elsewhere/checkpoint_3")


@pytest.mark.parametrize(("rank", "lora"), [(0, []), (4, [".*/lora_[ab]"])])
def test_restoring_excludes_only_existing_lora_parameters(parse, rank, lora):
    """t5x refuses a pattern that matches nothing."""
    parse(f"Model.lora_rank = {rank}")
    assert t5x_settings.not_restored() == tuple((name, None) for name in ["state/.*", *lora])


GRAFT = "Train.methods = ('graft',)", "Graft.parts = (('lm', 'embedding', 'embedding'),)"


def test_a_graft_must_be_made_before_training_under_t5x(parse):
    parse(*GRAFT)
    with pytest.raises(UserError, match=r"steps=0', then 'mnmt export .*start_from.gin$") as caught:
        t5x_settings.seed()
    assert "\n" not in str(caught.value)
    assert t5x_settings.inference_rows()  # evaluation takes no seed


def test_a_graft_made_by_this_trainer_trains_under_t5x(parse):
    """Bound as in `start_from.gin`, whose other lines need t5x."""
    parse(*GRAFT, "INITIAL_CHECKPOINT_PATH = 'a'", "made_elsewhere.size = %INITIAL_CHECKPOINT_PATH")
    assert t5x_settings.seed() == 1


def test_an_invalid_configuration_is_one_error_line_under_t5x(capsys, monkeypatch):
    """Also after gin has added lines to it; a bug keeps its traceback."""
    others = []
    monkeypatch.setattr(t5x_errors, "_DEFAULT", lambda *error: others.append(error))
    mistake, bug = UserError("a: no b; give c\n  In call to configurable 'train'"), ValueError("d")
    with pytest.raises(SystemExit) as stop:
        t5x_errors.end(UserError, mistake, None)
    assert stop.value.code == 2 and capsys.readouterr().err == "error: a: no b; give c\n"
    t5x_errors.end(ValueError, bug, None)
    assert others == [(ValueError, bug, None)]


def test_a_misspelt_key_is_one_error_line_under_t5x(capsys):
    """gin reports it before any code of this project runs."""
    with pytest.raises(ValueError) as actual:
        gin.parse_config_files_and_bindings([], ["Model.embd = 3"])
    with pytest.raises(SystemExit) as stop:
        t5x_errors.end(ValueError, actual.value, None)
    error_line = "error: Model.embd: no such name; did you mean Model.embed?\n"
    assert (stop.value.code, capsys.readouterr().err) == (2, error_line)
