"""Damaged checkpoints are set aside; other errors leave them in place."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.errors import UserError
from mnmt_jax.runs.parameters import available_steps, best_steps, load_params
from mnmt_jax.training.checkpoints import Checkpoints
from mnmt_jax.training.state import LogWindow, TrainState


def make_state(step: int, width: int = 4) -> TrainState:
    table = jnp.arange(60 * width, dtype=jnp.float32).reshape(60, width) + step
    params = {"embedding": table, "stage_0_norm": {"scale": jnp.ones(width) * step}}
    moments = jax.tree.map(lambda p: p / 7, params)
    return TrainState(jnp.asarray(step, jnp.int32), params, moments, LogWindow.empty(("source",)))


def shapes_of(state: TrainState) -> TrainState:
    return jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), state
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    checkpoints = Checkpoints(folder)
    for step in (1, 2):
        checkpoints.save(make_state(step), {"data": {"chunk": step}})
    checkpoints.close()
    return folder


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    shutil.copytree(saved, tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


def restore(folder: Path, like: TrainState, required=("data",)):
    reports: list[str] = []
    checkpoints = Checkpoints(folder, report=reports.append, required=required)
    try:
        return checkpoints.restore(like), reports
    finally:
        checkpoints.close()


def data_of(step: Path) -> list[Path]:
    """Return all data files, including unreferenced ones."""
    return list((step / "params").rglob("d/*"))


def edit_record(step: Path, **changes: object) -> None:
    """Replace values of the record of a step; None removes them."""
    path = step / "extra" / "metadata"
    record = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in record.items() if value is not None}))


DAMAGE = {
    "training gone": lambda step: shutil.rmtree(step / "training"),
    "extra gone": lambda step: shutil.rmtree(step / "extra"),
    "extra cut": lambda step: next((step / "extra").glob("*")).write_text("{"),
    "extra null": lambda step: (step / "extra" / "metadata").write_text("null"),
    "extra empty": lambda step: (step / "extra" / "metadata").write_text("{}"),
    "values gone": lambda step: edit_record(step, extra=None),
    "values empty": lambda step: edit_record(step, extra={}),
    "values null": lambda step: edit_record(step, extra={"data": None}),
    "position empty": lambda step: edit_record(step, extra={"data": {}}),
    "fingerprints null": lambda step: edit_record(step, fingerprints="x"),
    "fingerprint gone": lambda step: edit_record(step, fingerprints={"training": 1}),
    "data gone": lambda step: [path.unlink() for path in data_of(step)],
    "data cut": lambda step: [path.write_bytes(b"cut") for path in data_of(step)],
    "manifest empty": lambda step: [
        path.write_bytes(b"") for path in (step / "training").rglob("manifest*")
    ],
}


def test_checkpoints_are_restored(folder):
    restored, reports = restore(folder, shapes_of(make_state(0)))
    jax.tree.map(np.testing.assert_array_equal, restored.state, make_state(2))
    assert restored.extra == {"data": {"chunk": 2}} and not reports


@pytest.mark.parametrize("damage_kind", DAMAGE)
def test_damaged_files_are_set_aside(damage_kind, folder):
    DAMAGE[damage_kind](folder / "2")
    restored, reports = restore(folder, shapes_of(make_state(0)))
    assert int(restored.state.step) == 1
    assert "checkpoint 2 cannot be read" in reports[0] and "was moved" in reports[1]
    assert not (folder / "2").exists()
    assert (folder.with_name("checkpoints_damaged") / "2").is_dir()


def test_a_damaged_checkpoint_is_moved_to_another_file_system(folder, monkeypatch):
    """Where `checkpoints` is a link or a mount."""
    rename = os.rename

    def rename_beside(source, target, **options):
        if Path(source).parent.name != Path(target).parent.name:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source)
        rename(source, target, **options)

    monkeypatch.setattr(os, "rename", rename_beside)
    files = sorted(path.relative_to(folder) for path in (folder / "2").rglob("*"))
    DAMAGE["manifest empty"](folder / "2")
    assert int(restore(folder, shapes_of(make_state(0)))[0].state.step) == 1
    moved = folder.with_name("checkpoints_damaged")
    assert sorted(path.relative_to(moved) for path in (moved / "2").rglob("*")) == files


def test_a_damaged_checkpoint_that_cannot_be_moved_is_named(folder, monkeypatch):
    def refuse(source, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "move", refuse)
    DAMAGE["extra gone"](folder / "2")
    with pytest.raises(UserError, match="2: is damaged and cannot be moved to .*No space.*it away"):
        restore(folder, shapes_of(make_state(0)))


def test_a_copy_of_a_checkpoint_by_hand_is_no_step(folder):
    for name in ("best_7", "0009"):
        shutil.copytree(folder / "2", folder / name)
    assert available_steps(folder) == [1, 2]
    checkpoints = Checkpoints(folder)
    assert checkpoints.steps() == [1, 2]
    assert int(checkpoints.restore(shapes_of(make_state(0))).state.step) == 2
    checkpoints.close()


@pytest.mark.parametrize(
    "damaged",
    [b"", b"\0" * 20, b'{"loss": 3.', b"{}", b'{"loss": null}'],
    ids=["empty", "zeros", "cut", "no loss", "no number"],
)
def test_a_damaged_loss_is_removed(damaged, tmp_path):
    """Orbax reads those of all steps; without a loss a checkpoint is kept only if it is new."""
    folder, reports = tmp_path / "checkpoints", []
    checkpoints = Checkpoints(folder)
    for step in (1, 2, 3):
        checkpoints.save(make_state(step), {}, loss=float(step))
    checkpoints.close()
    (folder / "1" / "metrics" / "metrics").write_bytes(damaged)
    again = Checkpoints(folder, keep_last=1, keep_best=1, report=reports.append)
    assert int(again.restore(shapes_of(make_state(0))).state.step) == 3
    again.save(make_state(4), {}, loss=4.0)
    again.close()
    (report,) = reports
    assert report.startswith(f"{folder / '1' / 'metrics' / 'metrics'}: is damaged (")
    assert report.endswith("; removed, so that checkpoint 1 counts as not validated")
    assert best_steps(tmp_path, 9) == [2, 4]


def test_all_reads_finish_when_one_fails(tmp_path, monkeypatch, caplog):
    """Closing the event loop earlier gives tracebacks from tensorstore's threads."""
    many = {f"array_{n:02}": jnp.full((4,), n, jnp.float32) for n in range(40)}
    state = TrainState(jnp.asarray(1, jnp.int32), many, many, LogWindow.empty(("source",)))
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(state, {})
    checkpoints.close()
    DAMAGE["data cut"](tmp_path / "checkpoints" / "1")
    left: list[int] = []
    close = asyncio.SelectorEventLoop.close

    def counting(loop):
        left.append(0 if loop.is_closed() else len(asyncio.all_tasks(loop)))
        close(loop)

    monkeypatch.setattr(asyncio.SelectorEventLoop, "close", counting)
    policy = asyncio.get_event_loop_policy()
    with pytest.raises(UserError, match="none of the checkpoints"):
        restore(tmp_path / "checkpoints", shapes_of(state), required=())
    assert left and not any(left)
    assert asyncio.get_event_loop_policy() is policy and not caplog.records


@pytest.mark.parametrize("damage_kind", ["extra gone", "extra null", "extra empty", "data cut"])
def test_translating_from_a_damaged_step_names_the_others(damage_kind, folder):
    DAMAGE[damage_kind](folder / "2")
    with pytest.raises(UserError, match=r"cannot be read .*; choose another step, of \[1\]"):
        load_params(folder.parent)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("no room"),
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while allocating 9 bytes"),
        RuntimeError("a bug of ours"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_machine_errors_keep_the_checkpoint(error, folder, monkeypatch):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("orbax.checkpoint.CheckpointManager.restore", fail)
    with pytest.raises(type(error), match=str(error)):
        restore(folder, shapes_of(make_state(0)))
    assert (folder / "1").is_dir() and (folder / "2").is_dir()
    assert not folder.with_name("checkpoints_damaged").exists()


def test_memory_errors_on_the_second_read_keep_the_checkpoint(folder, monkeypatch):
    def fail(*_, **__):
        raise MemoryError("no room")

    DAMAGE["data gone"](folder / "2")
    monkeypatch.setattr("mnmt_jax.runs.checkpoint_files.load_numpy", fail)
    with pytest.raises(MemoryError):
        restore(folder, shapes_of(make_state(0)))
    assert (folder / "2").is_dir()


def test_checkpoints_of_another_model_are_refused(folder):
    for like, named in (
        (make_state(0, width=6), r"'embedding' is float32\[60, 4\] there, float32\[60, 6\] now"),
        (
            make_state(0).replace(params={"embedding": jnp.zeros((60, 4))}),
            r"'stage_0_norm/scale' is float32\[4\] there, absent now",
        ),
    ):
        with pytest.raises(UserError, match=f"another configuration or version: {named}"):
            restore(folder, shapes_of(like))
    assert (folder / "2").is_dir()


def test_no_readable_checkpoint_is_an_error(folder):
    for step in ("1", "2"):
        shutil.rmtree(folder / step / "params")
    with pytest.raises(UserError, match=r"none of the checkpoints \[1, 2\] can be read"):
        restore(folder, shapes_of(make_state(0)))
