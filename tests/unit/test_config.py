"""gin fills six dataclasses; what nobody reads is refused in one line."""

import dataclasses
from pathlib import Path

import pytest

from mnmt_jax.config import (
    Data,
    Decode,
    Mesh,
    Model,
    Optimizer,
    Train,
    load_config,
    save_config,
)
from mnmt_jax.errors import UserError
from mnmt_jax.layouts import LAYOUTS

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def gin_file(tmp_path):
    path = tmp_path / "model.gin"
    path.write_text("WIDTH = 64\nModel.embed = %WIDTH\nModel.heads = 4\nModel.layout = 'prefix'\n")
    return str(path)


def test_files_and_bindings_reach_the_dataclasses(gin_file):
    config = load_config([gin_file], ["Data.rows=3", "Model.stage_layers=(2,)"])
    assert (config.model.embed, config.model.layout, config.data.rows) == (64, "prefix", 3)
    assert config.model.head_dim == 16


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
        ("Model.embed=%NOWHERE", "NOWHERE"),
    ],
)
def test_mistakes_are_one_clear_line(gin_file, binding, message):
    with pytest.raises(UserError, match=".") as caught:
        load_config([gin_file], [binding])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(capfd):
    with pytest.raises(UserError, match=r"nowhere\.gin"):
        load_config(["nowhere.gin"])
    assert capfd.readouterr() == ("", "")


def test_a_failed_load_leaves_nothing_behind(gin_file):
    with pytest.raises(UserError):
        load_config([gin_file], ["UNUSED=3"])
    assert load_config([]).model == Model()


def test_there_are_few_keys():
    sections = (Data, Model, Optimizer, Train, Decode, Mesh)
    assert 40 < sum(len(dataclasses.fields(section)) for section in sections) <= 64


SHIPPED = sorted((ROOT / "gin_configs").rglob("*.gin"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_shipped_file_loads(path):
    config = load_config([str(path)])
    assert config.model.layout in LAYOUTS


def test_every_layout_has_a_model_file():
    layouts = {load_config([str(path)]).model.layout for path in SHIPPED if "models" in path.parts}
    assert layouts == set(LAYOUTS)
