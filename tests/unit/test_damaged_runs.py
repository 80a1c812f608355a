"""Commands that open a run name a damaged or edited file in one line."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mnmt_jax.decoding.translator import Translator
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.evaluated_model import load_evaluated_model
from mnmt_jax.evaluation.result import read_result
from mnmt_jax.interop.adapters import merge_adapter
from mnmt_jax.interop.exporting import export_checkpoint
from mnmt_jax.runs.parameters import best_steps, load_params
from mnmt_jax.runs.run_directory import RunDirectory
from tests.made_params import write_zero_run
from tests.unit import made_text


@pytest.fixture(scope="module")
def original_run(tmp_path_factory) -> Path:
    return write_zero_run(tmp_path_factory.mktemp("made") / "run")


@pytest.fixture
def run(original_run, tmp_path) -> Path:
    shutil.copytree(original_run, tmp_path / "run")
    return tmp_path / "run"


OPENERS: dict[str, Callable[[Path], object]] = {
    "infer": Translator.load,
    "evaluate": load_evaluated_model,
    "export": lambda run: export_checkpoint("t5x", run, run.parent / "out"),
    "adapters": lambda run: merge_adapter(run, run.parent / "out"),
}


def _edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    def edit(run: Path) -> None:
        text = (run / name).read_text()
        assert old in text
        (run / name).write_text(text.replace(old, new))

    return edit


def _flip(name: str) -> Callable[[Path], None]:
    def flip(run: Path) -> None:
        data = bytearray((run / name).read_bytes())
        data[len(data) // 2] ^= 0x41
        (run / name).write_bytes(data)

    return flip


def _write(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda run: (run / name).write_bytes(data) and None


DAMAGE = {
    "embed": (
        _edit("config.gin", "Model.embed = 16", "Model.embed = 32"),
        r"checkpoints was written with another configuration.*'embedding' is float32\[63, 16\]",
    ),
    "layers": (
        _edit("config.gin", "stage_layers = (1,)", "stage_layers = (2,)"),
        r"checkpoints was written with another configuration.*absent there",
    ),
    "value": (
        _edit("config.gin", "Model.norm = 'pre'", "Model.norm = 'mid'"),
        r"config\.gin:\d+: ",
    ),
    "circle": (_edit("config.gin", "Model.heads = 2", "Model.heads = %A\nA = %A"), "in a cycle"),
    "facts": (_write("vocabulary/vocabulary.json", b"{"), r"vocabulary\.json: is damaged"),
    "facts list": (_write("vocabulary/vocabulary.json", b"[1]"), r"vocabulary\.json: is damaged"),
    "lost": (
        lambda run: shutil.rmtree(run / "vocabulary"),
        r"spm\.model: no such file; copy it from .* the cache that .*/config\.gin names \(Data\.",
    ),
    "model": (_flip("vocabulary/spm.model"), r"vocabulary\.json: .*one of them is damaged"),
    "languages": (_write("vocabulary/languages.txt", b"\xff"), r"languages\.txt: is damaged"),
    "pieces": (_write("vocabulary/pieces.json", b"{"), r"pieces\.json: is damaged"),
    "numbers": (_write("vocabulary/pieces.json", b"[1, 2]"), r"pieces\.json: is damaged"),
}


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("how", DAMAGE)
def test_the_damaged_file_is_named(how, opener, run):
    damage, message = DAMAGE[how]
    damage(run)
    with pytest.raises(UserError, match=message) as caught:
        OPENERS[opener](run)
    assert str(run) in str(caught.value) and "\n" not in str(caught.value)
    assert not (run.parent / "out").exists()


def test_an_undamaged_run_is_opened(run):
    assert Translator.load(run).languages == ("en", "de", "fr")
    assert export_checkpoint("t5x", run, run.parent / "out")


def test_training_with_a_lost_vocabulary_names_its_copy(run):
    """A new vocabulary would have other pieces."""
    shutil.rmtree(run / "vocabulary")
    config = RunDirectory(run).config()
    with pytest.raises(UserError, match=r"no such file; copy it from another copy of the run"):
        RunDirectory(run).check(config, made_text.vocabulary(), has_checkpoint=True)


def test_damaged_files_beside_the_parameters_are_named(run):
    (run / "average").mkdir()
    for text in ("{", "[]", "{}"):
        (run / "average" / "facts.json").write_text(text)
        with pytest.raises(UserError, match=r"facts\.json: is damaged .*mnmt average"):
            load_params(run, "average")
    (run / "checkpoints" / "0" / "metrics").mkdir()
    (run / "checkpoints" / "0" / "metrics" / "metrics").write_text("{")
    with pytest.raises(UserError, match=r"metrics: is damaged .*name a step"):
        best_steps(RunDirectory(run), 1)
    for text in ("{", '{"format": 3, "counts": 1, "averages": 1, "directions": [1]}'):
        (run / "scores.json").write_text(text)
        with pytest.raises(UserError, match=r"scores\.json: (is damaged|not a scores file)"):
            read_result(run)
