"""The image of scripts/kubernetes/Dockerfile, built by a fake docker and used by a fake cluster."""

from __future__ import annotations

import configparser
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fake_docker import Image, build
from tests.unit.test_kubernetes import GPU, PYTHON, calls, printed

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "scripts" / "kubernetes" / "Dockerfile"
# The interpreter of an environment: writes down what pip installs, and trains as in PYTHON.
INTERPRETER = PYTHON.replace(
    "fake =",
    """if sys.argv[1:] == ["-m", "pip", "--version"]:
    sys.exit()
if sys.argv[1:3] == ["-m", "pip"] and pathlib.Path("offline").exists():
    sys.exit(1)
if sys.argv[1:3] == ["-m", "pip"]:
    call = {"arguments": sys.argv[3:], "cache": os.environ.get("PIP_NO_CACHE_DIR")}
    sys.exit(pathlib.Path("installed").write_text(json.dumps(call)) and 0)
fake =""",
)
PYTHON3 = f"""#!{sys.executable}
import pathlib, subprocess, sys
if sys.argv[1:3] != ["-m", "venv"]:
    sys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode)
python = pathlib.Path(sys.argv[3], "bin", "python")
python.parent.mkdir(parents=True)
python.write_text({INTERPRETER!r})
python.chmod(0o755)
"""


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A small checkout with files of other environments and runs."""
    folder = tmp_path / "checkout"
    for name in ("scripts", "setup.cfg"):
        folder.mkdir(exist_ok=True)
        (folder / name).symlink_to(ROOT / name)
    for name in (".git/HEAD", ".venv/bin/python", "runs/x/config.gin", "a/__pycache__/b.pyc"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("not for the image")
    return folder


def built(checkout: Path, tmp_path: Path, **arguments: str) -> tuple[Image, Path]:
    commands, target = tmp_path / "commands", tmp_path / "image"
    commands.mkdir(exist_ok=True)
    (commands / "python3").write_text(PYTHON3)
    (commands / "python3").chmod(0o755)
    path = f"{commands}:{os.environ['PATH']}"
    return build(DOCKERFILE, checkout, target, path=path, arguments=arguments), target


def test_pods_train_in_the_built_image(checkout, tmp_path):
    image, folder = built(checkout, tmp_path)
    installed = json.loads((folder / "installed").read_text())
    assert installed["arguments"][0] == "install" and installed["cache"] == "1"
    assert installed["arguments"][-2:] == ["--editable", ".[gpu,gcs]"]
    assert f"cd {image.folder} && " in printed(**GPU).container["command"][2]
    (tmp_path / "statuses").write_text("[[0, 0]]")
    jobs = printed("--workdir=gs://b/r", **GPU, FOLDER=str(folder))
    assert jobs.run({"FAKE": str(tmp_path)}, tmp_path / "attempt") == ("Completed", 1)
    assert [call["argv"][0] for call in calls(tmp_path).values()] == ["scripts/train.py"] * 2


def test_a_failed_installation_is_no_image(checkout, tmp_path):
    (checkout / "offline").touch()
    with pytest.raises(subprocess.CalledProcessError, match="prepare_environment"):
        built(checkout, tmp_path)


def test_arguments_choose_the_base_and_the_extras(checkout, tmp_path):
    image, folder = built(checkout, tmp_path, BASE="other:1", EXTRAS="tpu,gcs,wandb")
    assert image.base == "other:1"
    assert ".[tpu,gcs,wandb]" in json.loads((folder / "installed").read_text())["arguments"]
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(ROOT / "setup.cfg")
    assert {"tpu", "gpu", "gcs", "wandb"} <= set(setup["options.extras_require"])


def test_the_image_has_no_environment_history_or_run_of_the_builder(checkout, tmp_path):
    _, folder = built(checkout, tmp_path)
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    assert not [name for name in names if name.startswith((".git", "runs")) or "pycache" in name]
    assert (folder / ".venv" / "bin" / "python").read_text() != "not for the image"
    ignored = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().split()
    for line in (ROOT / ".gitignore").read_text().split():
        assert {line.strip("/"), f"**/{line.strip('/')}"} & set(ignored), line
