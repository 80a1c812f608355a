"""Ahead-of-time compilation: memory figures, and suggested settings."""

import importlib.util
import math
import shlex
import subprocess
import sys
import types
from pathlib import Path

import jax
import pytest

from mnmt_jax.config.loading import load_config
from mnmt_jax.config.sections import Mesh
from mnmt_jax.cost import compile_ahead
from mnmt_jax.cost.topologies import has_cuda_plugin, topology_devices
from mnmt_jax.distributed.chips import chip_of
from mnmt_jax.distributed.sharding import make_mesh
from mnmt_jax.errors import UserError
from mnmt_jax.methods.instructcl import InstruCL
from mnmt_jax.methods.mrasp2 import MRASP2
from scripts.make_tpu_table import SLICES, gin_files_of
from tests.made_run import make_config

ROOT = Path(__file__).resolve().parents[2]
FILES = ["gin_configs/models/register_mitre_466m.gin", "gin_configs/runs/mitre.gin"]


def test_an_error_of_the_compiler_becomes_bytes():
    text = "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space "
    text += "hbm. Used 20.50G of 15.75G hbm. Exceeded hbm capacity by 4.75G."
    actual = compile_ahead._does_not_fit(RuntimeError(text))
    gib = 1 << 30
    expected = {"peak": int(20.5 * gib), "of_chip": int(15.75 * gib), "over": int(4.75 * gib)}
    assert actual == {"fits": False, "bytes": expected}
    text = "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
    text += "temporaries (1.5T) exceeds available HBM (15.75G)."
    actual = compile_ahead._does_not_fit(RuntimeError(text))
    assert actual["bytes"]["over"] == int(1536 * gib - 15.75 * gib)


def test_other_errors_are_not_memory_errors():
    with pytest.raises(RuntimeError, match="something else"):
        compile_ahead._does_not_fit(RuntimeError("something else"))


@pytest.mark.parametrize(("is_tpu", "temporaries"), [(True, 40), (False, 90)])
def test_tpu_memory_counts_buffers_alive_at_once(is_tpu, temporaries):
    memory = types.SimpleNamespace(
        argument_size_in_bytes=100,
        output_size_in_bytes=80,
        alias_size_in_bytes=70,
        temp_size_in_bytes=90,
        peak_memory_in_bytes=150,
        generated_code_size_in_bytes=5,
    )
    actual = compile_ahead._bytes(memory, is_tpu=is_tpu)
    assert (actual["outputs"], actual["temporaries"]) == (10, temporaries)
    assert actual.pop("peak") == sum(actual.values()) == 115 + temporaries


def test_kernel_compute_and_copy_cycles_are_added():
    chip = chip_of("TPU v5 lite")
    stated = {"core_cycles": 4000, "moved_bytes": 819_000}
    assert compile_ahead._kernel_cycles(stated, chip) == 4000 + 1500
    assert compile_ahead._kernel_cycles(stated, None) == 4000
    assert compile_ahead._kernel_cycles({}, chip) == 0


@pytest.mark.parametrize("name", SLICES)
def test_every_slice_does_the_same_update(name):
    config = load_config(gin_files_of("466m", name))
    data, chips = config.data, math.prod(map(int, SLICES[name].split(":")[1].split("x")))
    assert data.rows * config.optimizer.accumulate * data.source_length == 4352 * 256
    assert data.rows % chips == 0 and chips % config.mesh.fsdp == 0


def test_remedies_keep_the_tokens_of_an_update():
    config = load_config(FILES, ["Data.rows=512", "Optimizer.accumulate=2"])
    tried = list(compile_ahead.memory_remedies(config))
    assert [text for text, _ in tried[:4]] == [
        """--gin.Model.remat="'elementwise'\"""",
        """--gin.Model.remat="'mlp'\"""",
        "--gin.Model.remat=True",
        "--gin.Model.remat=True --gin.Mesh.fsdp=-1",
    ]
    for text, changed in tried:
        assert changed.data.rows * changed.optimizer.accumulate == 1024
        bindings = [part.removeprefix("--gin.") for part in shlex.split(text)]
        assert load_config(FILES, ["Data.rows=512", "Optimizer.accumulate=2", *bindings]) == changed
    assert tried[-1][1].data.rows == 64


def test_remedies_start_from_what_is_recomputed():
    config = load_config(FILES, ["Model.remat='mlp'"])
    assert [text for text, _ in compile_ahead.memory_remedies(config)][:2] == [
        "--gin.Model.remat=True",
        "--gin.Model.remat=True --gin.Mesh.fsdp=-1",
    ]


@pytest.mark.parametrize(("groups", "fits"), [(1, True), (2, False)])
def test_rows_that_training_refuses_are_not_suggested(groups, fits):
    """Rows that the mesh does not divide get empty ones, unless a method groups them."""
    sizes = {"data": {"rows": 10}, "train": {"methods": (InstruCL(1, groups=groups),)}}
    config = make_config(Path("cache"), **sizes)
    assert len(jax.devices()) == 8
    assert compile_ahead.AheadOfTimeCompilation(config, 20, jax.devices()).fits() is fits


@pytest.mark.parametrize("method", [InstruCL(1, groups=16), MRASP2(1, groups=16)])
def test_rows_that_groups_do_not_divide_do_not_fit(method):
    """The search for a remedy halves the rows; the report must outlive it."""
    model = {"layout": "encoder_decoder", "stage_layers": (1, 1), "remat": True}
    config = make_config(
        Path("cache"), model=model, data={"rows": 16}, train={"methods": (method,)}
    )
    halved = list(compile_ahead.memory_remedies(config))[-3:]
    assert [changed.data.rows for _, changed in halved] == [8, 4, 2]
    for _, changed in halved:
        ahead = compile_ahead.AheadOfTimeCompilation(changed, 20, jax.devices()[:1])
        assert not ahead.fits()


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is not None, reason="libtpu is there: see tests/tpu"
)
def test_missing_libtpu_is_one_error_line():
    flags = [f"--gin_file={path}" for path in FILES]
    done = subprocess.run(
        [sys.executable, "scripts/compile_ahead.py", "--topology=v5e:2x2", *flags],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: ") and "'.[tpu]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("topology", ["h100", "h100:", "a100:0", "h200:two"])
def test_a_number_of_gpus_is_required(topology):
    with pytest.raises(UserError, match=f"--topology={topology}: needs a number of GPUs"):
        topology_devices(topology)


@pytest.mark.parametrize("topology", ["b200:8", "h1oo:4", "H100:8", ""])
def test_unknown_topologies_are_reported_with_known_ones(topology):
    with pytest.raises(UserError, match="v5e:4x4, or of GPUs \\(a100, h100, h200"):
        topology_devices(topology)


@pytest.mark.parametrize("rows", [12, 16])
def test_rows_are_split_evenly_with_the_empty_ones_of_a_run(rows):
    config = load_config([FILES[1], "gin_configs/models/register_tiny.gin"], [f"Data.rows={rows}"])
    ahead = compile_ahead.AheadOfTimeCompilation(config, 1504, jax.devices()[:8])
    shapes = [array.shape for array in ahead._batch().values()]
    assert shapes and {shape[1] for shape in shapes} == {16}


@pytest.mark.skipif(has_cuda_plugin(), reason="it is there: see tests/gpu")
def test_a_missing_plugin_is_one_error_line():
    with pytest.raises(UserError, match=r"--topology=h100:8 needs .*'\.\[gpu\]'"):
        topology_devices("h100:8")


class _Compiled:
    """Memory analysis of a GPU program by XLA."""

    def memory_analysis(self):
        names = "argument output alias temp generated_code".split()
        sizes = dict.fromkeys((f"{name}_size_in_bytes" for name in names), 30 * 10**9)
        return types.SimpleNamespace(**sizes, peak_memory_in_bytes=0)

    def cost_analysis(self):
        return None

    def as_text(self):
        return "HloModule step"

    def compile(self):
        return self


def test_programs_beyond_gpu_memory_do_not_fit(monkeypatch):
    device = types.SimpleNamespace(device_kind="NVIDIA H100", platform="gpu")
    ahead = compile_ahead.AheadOfTimeCompilation(load_config(FILES), 1504, [device])
    monkeypatch.setattr(
        compile_ahead.AheadOfTimeCompilation, "mesh", make_mesh(Mesh(), jax.devices()[:1])
    )
    monkeypatch.setattr(
        compile_ahead.AheadOfTimeCompilation, "_lower_prefill", lambda self: _Compiled()
    )
    actual = ahead.describe(["prefill"])["programs"]["prefill"]
    assert not actual["fits"] and actual["bytes"]["over"] == 10 * 10**9  # 90 of 80
    assert actual["flops"] is actual["seconds"] is actual["without_estimate"] is None


LOCKED = (
    'ABORTED: Internal error when accessing libtpu multi-process lockfile. Run "$ sudo rm '
    '/tmp/libtpu_lockfile".'
)
UNKNOWN = "INVALID_ARGUMENT: Invalid TPU external name:\n TPU v9z"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LOCKED, "another process on this machine has loaded libtpu; wait for its end, or set"),
        (UNKNOWN, r"knows no such topology \(Invalid TPU external name: TPU v9z\); choose another"),
    ],
)
def test_refusals_of_libtpu_are_explained(monkeypatch, text, message):
    environment = {"TPU_LIBRARY_PATH": "libtpu.so"}

    def refuse(**options):
        assert environment["ALLOW_MULTIPLE_LIBTPU_LOAD"] == "1"
        raise RuntimeError(text)

    fake = types.SimpleNamespace(environ=environment)
    monkeypatch.setattr("mnmt_jax.cost.topologies.os", fake)
    monkeypatch.setattr("jax.experimental.topologies.get_topology_desc", refuse)
    with pytest.raises(UserError, match=rf"^--topology=v9z:2x2: .*{message}") as caught:
        topology_devices("v9z:2x2")
    assert "rm " not in str(caught.value) and "\n" not in str(caught.value)


def test_the_users_libtpu_lock_setting_is_kept(monkeypatch):
    environment = {"TPU_LIBRARY_PATH": "libtpu.so", "ALLOW_MULTIPLE_LIBTPU_LOAD": "0"}
    devices = types.SimpleNamespace(devices=["a device"])
    fake = types.SimpleNamespace(environ=environment)
    monkeypatch.setattr("mnmt_jax.cost.topologies.os", fake)
    monkeypatch.setattr("jax.experimental.topologies.get_topology_desc", lambda **_: devices)
    assert topology_devices("v5e:2x2") == ["a device"]
    assert environment["ALLOW_MULTIPLE_LIBTPU_LOAD"] == "0"
