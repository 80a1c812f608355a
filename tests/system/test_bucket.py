"""A run in a bucket: real clients of Google Cloud Storage talk to a server of this process."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

import pytest
from gcp_storage_emulator.server import create_server

from mnmt_jax import Translator
from mnmt_jax.bucket import files_below
from mnmt_jax.checkpoint import restore_params
from mnmt_jax.checkpoint_average import average_checkpoints
from mnmt_jax.errors import UserError
from mnmt_jax.run_directory import RunDirectory
from mnmt_jax.train import train
from tests.made_run import (
    assert_same_training,
    compilation_cache,
    make_cache,
    make_config,
    records,
)

RUN = "gs://bucket/runs/one"
STEPS = 8  # saved and validated every 4


@pytest.fixture(scope="module")
def bucket():
    """The root of an empty bucket."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    server = create_server("localhost", port, in_memory=True, default_bucket="bucket")
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL"):
            patch.setenv(name, f"http://localhost:{port}")
        patch.setenv("GOOGLE_CLOUD_PROJECT", "none")
        patch.setenv("EPATH_USE_TF", "false")
        from etils import epath

        yield epath.Path("gs://bucket")
    server.stop()


@pytest.fixture(scope="module")
def straight(bucket, tmp_path_factory):
    """A configuration, and a run of it in a folder."""
    folder = tmp_path_factory.mktemp("straight")
    config = make_config(make_cache(folder / "cache"))
    with compilation_cache(folder / "compiled"):
        assert train(config, folder / "run") is None
        yield config, folder / "run"


@pytest.fixture(scope="module")
def trained(bucket, straight):
    """The same run in the bucket, in two starts."""
    config, _ = straight
    half = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=STEPS // 2))
    assert train(half, RUN) is None
    assert train(config, RUN) is None
    return bucket / "runs" / "one"


def copy_files(folder, copy) -> None:
    for path in files_below(folder):
        target = copy / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())


def download(folder, copy: Path) -> Path:
    copy_files(folder, copy)
    return copy


def test_a_run_in_a_bucket_is_that_of_a_folder(trained, straight, tmp_path):
    copy = download(trained, tmp_path / "copy")
    assert_same_training(copy, straight[1], STEPS)
    assert {path.name for path in copy.iterdir()} >= {"config.gin", "vocabulary", "tasks.json"}
    assert sorted(path.name for path in (copy / "checkpoints").iterdir()) == ["4", "8"]


def test_it_translates_and_gives_its_average(trained, straight):
    lines, languages = ["aa bb cc", "dd ee"], {"source": "en", "target": "de"}
    expected = Translator.load(straight[1]).translate(lines, **languages)
    assert Translator.load(RUN).translate(lines, **languages) == expected
    for _ in range(2):  # the second time in the place of the first
        average_checkpoints(RUN, [4, 8])
    average_checkpoints(straight[1], [4, 8])
    found, step = restore_params(RUN, "average")
    wanted, _ = restore_params(straight[1], "average")
    assert step == 8 and (found["embedding"] == wanted["embedding"]).all()


def test_a_damaged_newest_checkpoint_is_set_aside(trained, straight, capfd, tmp_path):
    for file in files_below(trained / "checkpoints" / "8" / "params"):
        if file.parent.name == "d":
            file.write_bytes(file.read_bytes()[:-40])
    assert train(straight[0], RUN) is None
    said = capfd.readouterr().err
    assert "checkpoint 8 cannot be read" in said
    assert f"checkpoint 8 was moved to {RUN}/checkpoints_damaged/8" in said
    assert (trained / "checkpoints_damaged" / "8" / "params").is_dir()
    assert_same_training(download(trained, tmp_path / "copy"), straight[1], STEPS)


def test_lines_after_the_last_checkpoint_are_dropped(bucket, straight, tmp_path):
    """What a killed run published beyond its checkpoint does not stay."""
    config, run = straight
    other = bucket / "runs" / "other"
    copy_files(run, other)
    (other / "checkpoints" / "8").rmtree()
    for step in (other / "checkpoints").iterdir():
        (step / "commit_success.txt").write_text("")  # Orbax's mark of a complete folder
    assert train(config, str(other)) is None
    copy = download(other, tmp_path / "copy")
    assert_same_training(copy, run, STEPS)
    assert len(records(copy)) == len(records(run))


def test_what_cannot_be_a_run_is_refused(bucket, monkeypatch):
    with pytest.raises(UserError, match=r"gs://bucket/none/config.gin: no such file"):
        Translator.load("gs://bucket/none")
    with pytest.raises(UserError, match="only gs:// is understood"):
        RunDirectory.open("s3://bucket/run")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'mnmt-jax\[gcs\]'"):
        RunDirectory.open("gs://bucket/run")
