"""Configuration errors end a command with status 2 and one line that names the field."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mnmt_jax.commands import mnmt
from mnmt_jax.config.loading import save_config
from mnmt_jax.errors import UserError
from tests import fresh_process
from tests.made_run import make_cache, make_config

ROOT = Path(__file__).resolve().parents[2]
DESCRIBE, TRAIN = "describe.py", "train.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Make a valid configuration, so that only the tested binding is refused."""
    folder = tmp_path_factory.mktemp("mistakes")
    save_config(make_config(make_cache(folder / "cache")), folder / "run.gin")
    return folder


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return fresh_process.run(script, *arguments)


@pytest.mark.parametrize(
    ("script", "binding", "named"),
    [
        (DESCRIBE, "Model.layout='prefixes'", "Model.layout='prefixes' is unknown"),
        (DESCRIBE, "Model.stage_layers=(1, 2)", "Model.stage_layers=(1, 2)"),
        (TRAIN, "Train.log_every=0", "Train.log_every=0"),
        (TRAIN, "Model.vocab_size=5", "Model.vocab_size=5"),
        (TRAIN, "Mesh.fsdp=5", "Mesh.fsdp=5 x Mesh.tensor=1 must divide the"),
    ],
)
def test_invalid_configuration_is_one_line_and_status_2(script, binding, named, folder, tmp_path):
    own = [] if script == DESCRIBE else [f"--workdir={tmp_path / 'run'}"]
    done = run(script, f"--gin_file={folder / 'run.gin'}", *own, f"--gin.{binding}")
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("error: "), done.stderr
    assert named in done.stderr
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_name_of_the_hub_is_not_a_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name, message in {
        "facebook/nllb": "not a folder here, .* 'hf download facebook/nllb --local-dir nllb', then",
        "nowhere": "--input=nowhere: not a folder; name the folder with config.json",
    }.items():
        flags = ["--format=huggingface", f"--input={name}", "--output=run"]
        monkeypatch.setattr("sys.argv", ["mnmt", "import", *flags])
        with pytest.raises(UserError, match=message):
            mnmt.main()


@pytest.mark.parametrize(
    ("script", "flag"),
    [(TRAIN, "--workdir"), ("train_vocabulary.py", "--output"), ("cache_tasks.py", "--output")],
)
def test_an_invalid_path_is_one_error_line(script, flag, folder, tmp_path):
    (tmp_path / "file").write_text("in the way")
    (folder / "train.tsv").write_text("en\tde\n" + "one two\teins zwei\n" * 9)
    text = ["--languages=en,de", "--name=x", "--tsv", folder / "{split}.tsv", "--vocab_size=12"]
    own = [f"--gin_file={folder / 'run.gin'}"] if script == TRAIN else text
    done = run(script, *own, f"{flag}={tmp_path / 'file' / 'x'}")
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert f"error: {tmp_path / 'file'}" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("JAX_NUM_CPU_DEVICES", "four", "=four: JAX cannot read this environment variable; unset"),
        ("JAX_PLATFORMS", "abacus", "=abacus: JAX finds no such devices here (Unable to initiali"),
    ],
)
def test_invalid_jax_environment_variables_are_reported(variable, value, message):
    code = (
        "from mnmt_jax.runtime.run_command import run_command\n"
        "run_command(lambda: 0 * len(__import__('jax').devices()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, variable: value},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith(f"error: {variable}{message}"), done.stderr
