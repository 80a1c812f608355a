"""A run in a bucket: real clients of Google Cloud Storage talk to a server of this process."""

from __future__ import annotations

import dataclasses
import http.client
import itertools
import json
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

import jax
import numpy as np
import pytest

from mnmt_jax import Translator
from mnmt_jax.config.loading import save_config
from mnmt_jax.errors import TRY_AGAIN_STATUS, UserError
from mnmt_jax.files import bucket_reader
from mnmt_jax.files.bucket import Mirror, bucket_path, copy_files, files_below
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.files.local_copies import FOLDER_VARIABLE
from mnmt_jax.files.storage_errors import is_machine_error, storage_error_reason
from mnmt_jax.runs.average import average_checkpoints
from mnmt_jax.runs.new_run import write_run
from mnmt_jax.runs.parameters import load_params
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.training.build import build
from mnmt_jax.training.checkpoints import Checkpoints
from mnmt_jax.training.hooks import save_checkpoint
from mnmt_jax.training.open_run import open_session
from mnmt_jax.training.session import Session
from mnmt_jax.training.train import train
from mnmt_jax.vocabulary.vocabulary import Vocabulary
from tests import fresh_process
from tests.made_bucket import FORBIDDEN, NONSENSE, TROUBLES, download, serve
from tests.made_run import (
    assert_same_training,
    make_cache,
    make_config,
)
from tests.unit.test_checkpoint import make_state, shapes_of

pytestmark = pytest.mark.usefixtures("one_device", "kept_programs")

RUN = "gs://bucket/runs/one"
STEPS = 8  # saved and validated every 4


@pytest.fixture(scope="module")
def server():
    """Of the bucket."""
    with serve() as store:
        yield store


@pytest.fixture(scope="module")
def objects(server):
    """What the bucket holds, by name."""
    return server.objects


@pytest.fixture(scope="module")
def bucket(server):
    """The root of the bucket."""
    return bucket_path("gs://bucket")


@pytest.fixture(scope="module")
def straight(bucket, tmp_path_factory):
    """A configuration, and a run of it in a folder."""
    folder = tmp_path_factory.mktemp("straight")
    config = make_config(make_cache(folder / "cache"))
    assert train(config, folder / "run") is None
    return config, folder / "run"


@pytest.fixture(scope="module")
def trained(bucket, straight):
    """The same run in the bucket, in two starts."""
    config, _ = straight
    half = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=STEPS // 2))
    assert train(half, RUN) is None
    assert train(config, RUN) is None
    return bucket / "runs" / "one"


def test_a_run_in_a_bucket_is_that_of_a_folder(trained, straight, tmp_path):
    copy = download(trained, tmp_path / "copy")
    assert_same_training(copy, straight[1], STEPS)
    assert {path.name for path in copy.iterdir()} >= {"config.gin", "vocabulary", "tasks.json"}
    assert sorted(path.name for path in (copy / "checkpoints").iterdir()) == ["4", "8"]


def test_a_placeholder_of_a_folder_is_no_file(trained, objects):
    """Google's console and gcsfuse make them."""
    for name in ("runs/one/", "runs/one/vocabulary/"):
        objects[name] = (1, b"")
    assert RunDirectory.open(RUN).config().train.steps == STEPS


def test_it_translates_and_gives_its_average(trained, straight):
    lines, languages = ["aa bb cc", "dd ee"], {"source": "en", "target": "de"}
    expected = Translator.load(straight[1]).translate(lines, **languages)
    assert Translator.load(RUN).translate(lines, **languages) == expected
    for _ in range(2):  # the second time in the place of the first
        average_checkpoints(RUN, [4, 8])
    average_checkpoints(straight[1], [4, 8])
    found, step = load_params(RUN, "average")
    wanted, _ = load_params(straight[1], "average")
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


def test_a_run_copied_to_a_bucket_continues_there(bucket, straight, tmp_path):
    """Lines beyond its last checkpoint, as a killed run leaves them, do not stay."""
    config, run = straight
    other = bucket / "runs" / "other"
    copy_files(run, other)
    (other / "checkpoints" / "8").rmtree()
    assert train(config, str(other)) is None
    assert_same_training(download(other, tmp_path / "copy"), run, STEPS)


def test_a_checkpoint_without_its_mark_is_not_taken_for_half_of_one(bucket, straight):
    """Orbax would remove it."""
    config, run = straight
    other = bucket / "runs" / "unmarked"
    copy_files(run, other)
    (other / "checkpoints" / "8" / "commit_success.txt").unlink()
    with pytest.raises(UserError, match=r"unmarked/checkpoints/8 has no commit_success.txt"):
        train(config, str(other))
    (other / "checkpoints" / "8" / "_CHECKPOINT_METADATA").write_text("{")
    with pytest.raises(UserError, match=r"8/_CHECKPOINT_METADATA is damaged; copy .*8 again, or"):
        train(config, str(other))
    assert (other / "checkpoints" / "8" / "params").is_dir()


def test_a_run_made_of_parameters_can_be_copied(bucket, straight, tmp_path):
    config, run = straight
    params, _ = load_params(run)
    lazy = jax.tree.map(lambda a: LazyArray.of(np.asarray(a)), params)
    vocabulary = Vocabulary.load(run / "vocabulary")
    write_run(tmp_path / "made", config, vocabulary, lazy, origin=("a test", "made"))
    copy_files(tmp_path / "made", bucket / "runs" / "made")
    found, step = load_params("gs://bucket/runs/made")
    assert step == 0 and (found["embedding"] == params["embedding"]).all()


def test_a_token_cache_in_the_bucket_trains_as_in_a_folder(
    server, bucket, straight, tmp_path, monkeypatch
):
    """Through an outage or a wrong answer for every file, in two starts."""
    config, run = straight
    copy_files(Path(config.data.cache), bucket / "caches" / "one")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "copies"))
    monkeypatch.setattr(bucket_reader, "_SHORTEST_PAUSE", 0.01)
    monkeypatch.setattr(bucket_reader, "_TIMEOUT", (30.0, 1.0))
    troubles = itertools.cycle(TROUBLES)
    server.read.clear()
    server.trouble = lambda name: next(troubles) if server.read.count(name) == 1 else ""
    data = dataclasses.replace(config.data, cache="gs://bucket/caches/one")
    shards = []
    for steps in (STEPS // 2, STEPS):
        settings = dataclasses.replace(config.train, steps=steps)
        changed = dataclasses.replace(config, data=data, train=settings)
        assert train(changed, tmp_path / "run") is None
        shards.append([name for name in server.read if name.endswith(".array_record")])
    server.trouble = lambda name: ""
    assert_same_training(tmp_path / "run", run, STEPS)
    assert all(shards[0].count(name) > 1 for name in shards[0]) and len(shards[0]) > 10
    assert shards[1] == shards[0]  # copies of the first start are used


def test_killed_and_continued(objects, straight, tmp_path):
    """What lies in the bucket at any moment is enough: the process's own copy is lost with it."""
    config, run = straight
    often = dataclasses.replace(config, train=dataclasses.replace(config.train, save_every=1))
    save_config(often, tmp_path / "run.gin")
    child = fresh_process.start(
        "train.py",
        f"--gin_file={tmp_path / 'run.gin'}",
        "--workdir=gs://bucket/runs/killed",
    )
    while "runs/killed/checkpoints/5/commit_success.txt" not in objects:
        assert child.poll() is None, child.said()
        time.sleep(0.01)
    child.kill()
    assert child.wait() == -signal.SIGKILL
    lines = objects["runs/killed/metrics.jsonl"][1].decode().splitlines()
    assert [json.loads(line)["step"] for line in lines][:2] == [2, 4]
    assert train(config, "gs://bucket/runs/killed") is None
    copy = download(bucket_path("gs://bucket/runs/killed"), tmp_path / "copy")
    assert_same_training(copy, run, STEPS)


def test_a_stop_during_an_outage_ends_soon_and_continues(objects, server, straight, tmp_path):
    """The clients of checkpoints repeat their requests for a quarter of an hour."""
    changes = {"save_every": 1, "steps": 100_000}
    config = dataclasses.replace(
        straight[0], train=dataclasses.replace(straight[0].train, **changes)
    )
    save_config(config, tmp_path / "run.gin")
    child = fresh_process.start(
        "train.py", f"--gin_file={tmp_path / 'run.gin'}", "--workdir=gs://bucket/runs/stopped"
    )
    while "runs/stopped/checkpoints/2/commit_success.txt" not in objects:
        assert child.poll() is None, child.said()
        time.sleep(0.01)
    server.refuses = 503, b"{}"
    start = time.monotonic()
    child.send_signal(signal.SIGTERM)
    assert child.wait() == TRY_AGAIN_STATUS
    server.refuses = None
    assert time.monotonic() - start < 60
    errors = [line for line in child.said().splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "gs://bucket/runs/stopped: no answer for 1" in errors[0]
    assert "(503 Service Unavailable), so that nothing can be saved after SIGTERM" in errors[0]
    run = RunDirectory.open("gs://bucket/runs/stopped")
    step = max(int(path.name) for path in run.checkpoints.iterdir() if path.name.isdigit())
    settings = dataclasses.replace(config.train, steps=step + 1)
    assert train(dataclasses.replace(config, train=settings), str(run.location)) is None


def test_a_stop_while_shards_stall_ends_at_once(server, bucket, straight, tmp_path):
    """Threads of the process wait for the rest of an answer for a minute, also when it ends."""
    config, _ = straight
    copy_files(Path(config.data.cache), bucket / "caches" / "stalled")
    data = dataclasses.replace(config.data, cache="gs://bucket/caches/stalled")
    save_config(dataclasses.replace(config, data=data), tmp_path / "run.gin")
    server.read.clear()
    server.trouble = lambda name: "stalled" if "train-0" in name else ""
    child = fresh_process.start(
        "train.py",
        f"--gin_file={tmp_path / 'run.gin'}",
        f"--workdir={tmp_path / 'run'}",
        variables={FOLDER_VARIABLE: str(tmp_path / "copies")},
    )
    while not any("train-0" in name for name in server.read):
        assert child.poll() is None, child.said()
        time.sleep(0.01)
    time.sleep(5)  # until the loop waits for a batch
    start = time.monotonic()
    child.send_signal(signal.SIGTERM)
    assert child.wait() == 128 + signal.SIGTERM
    assert time.monotonic() - start < 30
    server.trouble = lambda name: ""
    server.released.set()
    server.released.clear()
    assert "error" not in child.said()
    assert train(config, tmp_path / "run") is None


@pytest.mark.parametrize("answer", [FORBIDDEN, NONSENSE], ids=["forbidden", "nonsense"])
def test_training_goes_on_while_the_bucket_refuses(answer, server, bucket, request):
    run = bucket / request.node.callspec.id / "checkpoints"
    said: list[str] = []
    checkpoints = Checkpoints(run, report=said.append)
    checkpoints.save(make_state(1), {"data": {}})
    checkpoints.wait()
    server.refuses = answer
    for step in (2, 3):
        checkpoints.save(make_state(step), {"data": {}})
        checkpoints.wait()
    server.refuses = None
    assert len(said) == 2 and "checkpoint 3 could not be written" in said[1]
    assert said[1].endswith("the last good one is 1")
    checkpoints.save(make_state(4), {"data": {}})
    checkpoints.close()
    again = Checkpoints(run)
    assert again.steps() == [1, 4]
    assert int(again.restore(shapes_of(make_state(0))).state.step) == 4
    again.close()


def test_an_answer_that_the_client_does_not_understand_is_the_networks_fault(server, bucket):
    (bucket / "file").write_bytes(b"content")
    server.refuses = NONSENSE
    with pytest.raises(KeyError) as caught:
        (bucket / "file").exists()
    server.refuses = None
    assert storage_error_reason(caught.value) == "KeyError: 'name'"
    assert is_machine_error(caught.value) and (bucket / "file").exists()


def test_the_server_of_these_tests_gives_each_request_one_answer(server, monkeypatch):
    """Else clients that keep their connection take the second for the answer to their next."""
    answers = iter([FORBIDDEN, None, None])
    monkeypatch.setattr(type(server), "refuses", property(lambda _: next(answers)), raising=False)
    monkeypatch.delitem(vars(server), "refuses")
    connection = http.client.HTTPConnection("localhost", server.server_address[1])
    statuses = []
    for path in ("/storage/v1/b/bucket/o", "/storage/v1/b/bucket"):
        connection.request("GET", path)
        answer = connection.getresponse()
        statuses.append((answer.status, json.loads(answer.read()).get("kind")))
    assert statuses == [(403, None), (200, "storage#bucket")]


def test_small_files_that_cannot_be_copied_are_said_at_once_and_an_error_at_the_end(
    bucket, straight, monkeypatch, capfd
):
    def refuse(mirror: Mirror, skipped: Collection[str]) -> None:
        raise UserError("the bucket is away")

    def session() -> Session:
        run = RunDirectory.open("gs://bucket/runs/refused")
        return open_session(build(straight[0]), run)

    with pytest.raises(KeyError, match="a bug"), session(), monkeypatch.context() as patch:
        patch.setattr(Mirror, "publish", refuse)
        raise KeyError("a bug")  # which says more
    with pytest.raises(UserError, match="the bucket is away"), session() as begun:
        monkeypatch.setattr(Mirror, "publish", refuse)
        begun.advance()
        save_checkpoint(begun)
    assert capfd.readouterr().err.count("the bucket is away") == 1
    assert (bucket / "runs" / "refused" / "checkpoints" / "1" / "commit_success.txt").exists()


def test_unfinished_writes_are_not_copied(objects, bucket):
    """A journal in the bucket would roll the database of the next start back."""
    left = ("trackers/mlflow.db-journal", "trackers/.mlflow.json.partial-host-1-2")
    for name in (*left, "trackers/mlflow.db"):
        (bucket / "runs" / "mirror" / name).write_bytes(b"old")
    mirror = Mirror("gs://bucket/runs/mirror")
    assert [path.name for path in (mirror.folder / "trackers").iterdir()] == ["mlflow.db"]
    for name in ("new.db", "new.db-journal", "new.db-wal", "new.db-shm", ".new.partial-host/file"):
        (mirror.folder / "trackers" / name).parent.mkdir(exist_ok=True)
        (mirror.folder / "trackers" / name).write_bytes(b"new")
    mirror.publish(("trackers",))
    assert not [name for name in objects if name.startswith("runs/mirror") and "new" in name]
    mirror.publish()
    names = [name for name in objects if name.startswith("runs/mirror") and "new" in name]
    assert names == ["runs/mirror/trackers/new.db"]


def test_files_that_vanish_are_not_published(objects, bucket, monkeypatch):
    """Before their size is read, and before their content is."""
    mirror = Mirror("gs://bucket/runs/vanishing")
    for name in ("kept", "vanishing"):
        (mirror.folder / name).write_text("text")
    status, listed = Path.stat, Path.rglob

    def vanish(path: Path, **settings: bool) -> os.stat_result:
        result = status(path, **settings)
        if path.name == "vanishing":
            path.unlink()
        return result

    monkeypatch.setattr(Path, "stat", vanish)
    monkeypatch.setattr(
        Path, "rglob", lambda path, pattern: [*listed(path, pattern), path / "vanished"]
    )
    mirror.publish()
    assert [name for name in objects if name.startswith("runs/vanish")] == ["runs/vanishing/kept"]


def test_a_start_at_step_0_removes_the_origin_and_no_average(objects, bucket, straight):
    run = bucket / "runs" / "again"
    for name in ("config.gin", "origin.json", "average/params/file"):
        (run / name).write_text("an earlier start")
    with pytest.raises(UserError, match="has an average but no checkpoints"):
        open_session(build(straight[0]), RunDirectory.open("gs://bucket/runs/again"))
    (run / "average" / "params" / "file").unlink()
    with open_session(build(straight[0]), RunDirectory.open("gs://bucket/runs/again")):
        pass
    names = {name.split("/")[2] for name in objects if name.startswith("runs/again/")}
    assert "tasks.json" in names and "origin.json" not in names


def test_files_of_trackers_are_published_when_they_have_ended(objects, bucket, straight):
    run = RunDirectory.open("gs://bucket/runs/tracked")
    name = "runs/tracked/trackers/mlflow.db"
    with open_session(build(straight[0]), run) as session:
        run.trackers.mkdir()
        (run.trackers / "mlflow.db").write_text("half")
        session.advance()
        save_checkpoint(session)
        assert name not in objects and "runs/tracked/config.gin" in objects
        (run.trackers / "mlflow.db").write_text("whole")
    assert objects[name][1] == b"whole"


def test_what_cannot_be_a_run_is_refused(bucket, monkeypatch):
    with pytest.raises(UserError, match=r"gs://bucket/none/config.gin: no such file"):
        Translator.load("gs://bucket/none")
    with pytest.raises(UserError, match="only gs:// is understood"):
        RunDirectory.open("s3://bucket/run")
    with pytest.raises(UserError, match="gs://bucket/made: must not be in a bucket"):
        write_run(Path("gs://bucket/made"), *[None] * 3, origin=("", ""))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install '\.\[gcs\]'"):
        RunDirectory.open("gs://bucket/run")
