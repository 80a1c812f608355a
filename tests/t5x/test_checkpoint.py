"""Conversion of runs to t5x's folders and back. Needs no t5x, unlike test_commands.py."""

from __future__ import annotations

import dataclasses
import shutil

import jax
import numpy as np
import pytest

from mnmt_jax.config.loading import load_config, save_config
from mnmt_jax.errors import UserError
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.interop.exporting import export_checkpoint
from mnmt_jax.interop.importing import import_checkpoint
from mnmt_jax.interop.t5x_checkpoint import write_run_beside
from mnmt_jax.methods.adaption import Adaption
from mnmt_jax.methods.language_layers import LanguageLayers
from mnmt_jax.model.network import build_model
from mnmt_jax.runs.parameters import load_params, write_params
from mnmt_jax.runs.run_directory import RunDirectory
from tests.made_bucket import serve
from tests.random_params import random_params
from tests.t5x.made import make_config
from tests.unit import made_text


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    methods = (Adaption(8),)
    return made_run(tmp_path_factory.mktemp("run"), "two_stage_trigger", methods)


def made_run(path, layout, methods):
    """Write a run with random parameters; return its path."""
    config, folder = make_config(layout, model={"methods": methods}), RunDirectory(path)
    model = build_model(config.model, made_text.vocabulary().size)
    params = random_params(model)
    write_params(folder.path, jax.tree.map(lambda p: LazyArray.of(np.asarray(p)), params))
    made_text.vocabulary().save(folder.vocabulary)
    save_config(config, folder.config_file)
    return folder.path


@pytest.fixture
def exported(run, tmp_path):
    export_checkpoint("t5x", run, tmp_path / "t5x")
    return tmp_path / "t5x"


def test_a_run_round_trips_through_t5x(run, exported, tmp_path):
    names = {path.name for path in exported.iterdir()}
    assert names == {"checkpoint_0", "mnmt_jax"}
    for source, target in ((exported, "a"), (exported / "checkpoint_0", "b")):
        import_checkpoint("t5x", source, tmp_path / target)
        back = RunDirectory(tmp_path / target)
        assert back.config() == RunDirectory(run).config()
        (actual, step), (expected, _) = load_params(back.path), load_params(run)
        assert step == 0 and len(jax.tree.leaves(expected)) > 30
        jax.tree.map(np.testing.assert_array_equal, actual, expected)


def test_methods_take_the_languages_of_the_vocabulary(tmp_path):
    """As t5x trains them: it writes the configuration that gin gave."""
    methods = (LanguageLayers(languages=made_text.LANGUAGES, mlp=8),)
    made_run(tmp_path / "run", "encoder_decoder", methods)
    export_checkpoint("t5x", tmp_path / "run", tmp_path / "t5x")
    exported = RunDirectory(tmp_path / "t5x" / "mnmt_jax")
    config = exported.config()
    unbound = (dataclasses.replace(methods[0], languages=()),)
    model = dataclasses.replace(config.model, methods=unbound)
    exported.config_file.unlink()
    save_config(dataclasses.replace(config, model=model), exported.config_file)
    import_checkpoint("t5x", tmp_path / "t5x", tmp_path / "back")
    assert RunDirectory(tmp_path / "back").config() == config


def test_the_newest_checkpoint_is_converted(exported, tmp_path):
    shutil.copytree(exported / "checkpoint_0", exported / "checkpoint_9")
    (exported / "checkpoint_0").rename(exported / "checkpoint_10")
    (exported / "checkpoint_100.orbax-checkpoint-tmp").mkdir()
    shutil.rmtree(exported / "checkpoint_9" / "state" / "d")
    import_checkpoint("t5x", exported, tmp_path / "run")
    with pytest.raises(UserError, match="checkpoint_9: cannot be read"):
        import_checkpoint("t5x", exported / "checkpoint_9", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_mismatched_parameters_are_named(exported, tmp_path):
    file = exported / "mnmt_jax" / "config.gin"
    config = load_config([str(file)])
    wider = dataclasses.replace(config, model=dataclasses.replace(config.model, mlp=32))
    save_config(wider, file)
    with pytest.raises(UserError, match=r"layer_0/mlp/wi/bias is \(24,\), expected \(32,\)"):
        import_checkpoint("t5x", exported, tmp_path / "run")
    file.unlink()
    with pytest.raises(UserError, match="config.gin: no such file"):
        import_checkpoint("t5x", exported, tmp_path / "run")
    with pytest.raises(UserError, match="no checkpoint_N of t5x"):
        import_checkpoint("t5x", tmp_path, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_training_in_a_bucket_gets_configuration_and_vocabulary_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config, vocabulary = make_config("register"), made_text.vocabulary()
    with serve() as store:
        for _ in range(2):  # a start, and a continuation
            write_run_beside("gs://bucket/model", config, vocabulary)
        assert set(store.objects) == {
            f"model/mnmt_jax/{name}"
            for name in (
                "config.gin",
                "vocabulary/languages.txt",
                "vocabulary/spm.model",
                "vocabulary/vocabulary.json",
            )
        }
        with pytest.raises(UserError, match="gs://bucket/model/mnmt_jax was started with another"):
            write_run_beside("gs://bucket/model", make_config("prefix"), vocabulary)
    with pytest.raises(UserError, match="^gs://bucket/model: must not be in a bucket; copy it"):
        import_checkpoint("t5x", "gs://bucket/model", tmp_path / "run")
    assert not list(tmp_path.iterdir())
