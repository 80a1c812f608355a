"""The image, the compose file and the unit of `mnmt serve`: parsed, and built by a fake docker.

No container and no service is started here: that needs Docker's daemon, and systemd as first
process.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mnmt_jax.commands import serve
from mnmt_jax.serving.connections import _ANSWER_SECONDS
from mnmt_jax.serving.settings import Settings
from tests.fake_docker import Image, build
from tests.unit.made_server import MadeJob, made_service, serving

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "scripts" / "serving"
STOP_SECONDS = 150
VARIABLES = {f"MNMT_SERVE_{name.upper()}" for name in vars(Settings())}


@pytest.fixture
def image(tmp_path) -> Image:
    """The image, whose commands only write down how they were called."""
    commands, checkout = tmp_path / "commands", tmp_path / "checkout"
    commands.mkdir()
    for name in ("python3", "useradd", "mkdir", "chown"):
        (commands / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/calls\n')
        (commands / name).chmod(0o755)
    for name in ("mnmt_jax/a.py", ".git/HEAD", ".venv/bin/python", "runs/x/config.gin"):
        (checkout / name).parent.mkdir(parents=True)
        (checkout / name).write_text("")
    path = f"{commands}:{os.environ['PATH']}"
    return build(FOLDER / "Dockerfile", checkout, tmp_path / "image", path=path, arguments={})


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(FOLDER / "mnmt-serve.service")
    return parser


def service() -> dict:
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
    (only,) = compose["services"].values()
    return only


def commands(image: Image) -> list[list[str]]:
    """Return the arguments of `mnmt serve` in all files."""
    entry = json.loads(image.stated["ENTRYPOINT"])
    started = shlex.split(unit()["Service"]["ExecStart"])
    assert entry == ["mnmt", "serve"] and started[1] == "serve"
    return [json.loads(image.stated["CMD"]), service()["command"], started[2:]]


def test_flags_and_variables_are_those_of_the_command(image):
    for arguments in commands(image):
        flags = serve.make_parser().parse_args(arguments)
        assert flags.run and Settings.of_flags(flags)
    texts = [path.read_text(encoding="utf-8") for path in FOLDER.iterdir()]
    variables = re.findall(r"MNMT_SERVE_\w+", " ".join(texts))
    assert len(variables) >= 5 and set(variables) <= VARIABLES


def test_the_image_is_of_plain_names_and_its_user_is_not_root(image, tmp_path):
    calls = (tmp_path / "calls").read_text().splitlines()
    assert image.base == "python:3.12-slim"
    assert calls[0] == "python3 -m pip install .[serve,ctranslate2]"
    (user,) = [call.split()[-1] for call in calls if call.startswith("useradd")]
    assert image.stated["USER"] == user == "mnmt"
    assert f"chown {user} {image.stated['VOLUME']}" in calls
    assert not list((tmp_path / "image").glob(".*")) and not (tmp_path / "image" / "runs").exists()


def test_the_image_listens_where_it_says(image):
    variables = image.variables
    assert variables["MNMT_SERVE_PORT"] == image.stated["EXPOSE"] == "5000"
    assert variables["MNMT_SERVE_HOST"] == "0.0.0.0"
    assert variables["MNMT_SERVE_DATABASE"].startswith(image.stated["VOLUME"])
    assert image.stated["STOPSIGNAL"] == "SIGTERM"


@pytest.mark.parametrize(("ready", "status"), [(True, 0), (False, 1)])
def test_the_health_check_asks_whether_the_server_is_ready(image, ready, status, tmp_path):
    _, _, command = image.stated["HEALTHCHECK"].partition("CMD ")
    program, *arguments = json.loads(command)
    settings = {"require_keys": True, "database": str(tmp_path / "keys.sqlite")}
    with serving(made_service(MadeJob(), **settings), ready=ready) as url:
        environment = {**os.environ, "MNMT_SERVE_PORT": url.rpartition(":")[2]}
        done = subprocess.run(
            [sys.executable, *arguments], stderr=subprocess.PIPE, check=False, env=environment
        )
    assert program == "python3" and image.variables["MNMT_SERVE_HOST"] == "0.0.0.0"
    assert done.returncode == status and (status == 0 or b"503" in done.stderr)


def test_the_compose_file_gives_the_container_only_its_data(image):
    definition = service()
    model, data = definition["volumes"]
    assert model.endswith(f":{definition['command'][1]}:ro") and "${RUN:?" in model
    assert data.split(":")[1] == image.stated["VOLUME"]
    assert definition["ports"] == ["127.0.0.1:${PORT:-5000}:" + image.stated["EXPOSE"]]
    assert definition["read_only"] and definition["cap_drop"] == ["ALL"]
    assert definition["build"]["dockerfile"] == str((FOLDER / "Dockerfile").relative_to(ROOT))
    assert "privileged" not in definition and "/" not in definition["image"]


def test_services_are_stopped_after_the_requests_that_they_have():
    assert STOP_SECONDS > Settings().timeout + _ANSWER_SECONDS
    assert unit()["Service"]["TimeoutStopSec"] == str(STOP_SECONDS)
    assert service()["stop_grace_period"] == f"{STOP_SECONDS}s"
    assert unit()["Service"]["Restart"] == "on-failure"


def test_the_unit_may_write_only_its_own_folders():
    section = unit()["Service"]
    assert section["DynamicUser"] == section["ProtectHome"] == section["PrivateTmp"] == "yes"
    assert section["ProtectSystem"] == "strict" and section["CapabilityBoundingSet"] == ""
    text = (FOLDER / "mnmt-serve.service").read_text(encoding="utf-8")
    folders = {f"%S/{section['StateDirectory']}", f"%C/{section['CacheDirectory']}"}
    written = re.findall(r"=(%[SC]/[\w-]+)", text)
    assert len(written) == 3 and set(written) == folders
    assert "MemoryDenyWriteExecute" not in section  # XLA compiles at run time
