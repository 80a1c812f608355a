"""Compilation for TPUs that are not attached; needs libtpu (scripts/test_tpu.sh)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import commands, make_root, shell

pytest.importorskip("libtpu", reason="libtpu is not installed: run scripts/test_tpu.sh")

ROOT = Path(__file__).resolve().parents[2]
CHIP = 16 * 2**30
RUN = "gin_configs/runs/cldr_quickstart.gin"


def compile_ahead(topology: str, model: str, *more: str) -> dict:
    script = [sys.executable, str(ROOT / "scripts" / "compile_ahead.py"), "--vocab_size=1504"]
    files = [f"--gin_file=gin_configs/models/{model}.gin", f"--gin_file={RUN}"]
    done = subprocess.run(
        [*script, *files, f"--topology={topology}", *more],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_data_parallel_all_reduces_the_gradient_once(tmp_path):
    """Run the command of the documentation, and compare the figure below it."""
    [text] = (c.text for c in commands("docs/tpu.md") if "models/register_tiny.gin" in c.text)
    actual = json.loads(shell(make_root(tmp_path), text).stdout)
    assert (actual["chips"], actual["mesh"]) == (4, {"data": 4, "fsdp": 1, "tensor": 1})
    assert set(actual["programs"]) == {"train_step", "prefill", "decode_step"}
    for program in actual["programs"].values():
        sizes = program["bytes"]
        parts = ("arguments", "outputs", "temporaries", "program")
        assert program["fits"] and sizes["of_chip"] == CHIP
        assert sizes["peak"] == sum(sizes[part] for part in parts) < CHIP
        assert all(sizes[part] > 0 for part in ("arguments", "temporaries", "program"))
        assert program["flops"] > 0 and (program["cycles"] > 0 and program["seconds"] > 0)
    step = actual["programs"]["train_step"]
    assert 0 < step["model_flops_utilization"] < 1
    (sums,) = step["collectives"]
    assert (sums["kind"], sums["axes"], sums["count"]) == ("all-reduce", ["data"], 1)
    # Gradients of biases are products with eight rows of ones; XLA sums the eight equal rows of one
    # layer's biases (f32[8,128] twice, f32[8,4,32], f32[8,512]) before it takes the first.
    repeated = 4 * 7 * (128 + 128 + 128 + 512)
    every_parameter = 4 * 985_856
    assert 0 <= sums["bytes"] - every_parameter - repeated < 1000  # the rest: the sums to report
    page = (ROOT / "docs" / "tpu.md").read_text(encoding="utf-8")
    assert f"the sum of the gradient, {sums['bytes']:,} bytes" in " ".join(page.split())
    assert step["without_estimate"]["all-reduce"] == 1 and step["random_bits_share"] == 0
    assert 0.5 < step["model_flops"] / step["flops"] < 1.1
    assert actual["programs"]["prefill"]["collectives"] == []


def test_sharded_parameters_are_gathered_and_use_less_memory():
    more = "--programs=train_step", "--gin.Data.rows=16"
    whole, parts = (
        compile_ahead("v5e:4x4", "two_stage_tiny", *more, *mesh)["programs"]["train_step"]
        for mesh in ((), ("--gin.Mesh.fsdp=-1",))
    )
    assert {one["kind"] for one in whole["collectives"]} == {"all-reduce"}
    counts = {one["kind"]: one["count"] for one in parts["collectives"]}
    assert counts["all-gather"] > 0
    assert counts["all-to-all"] == 2  # the look-up in the embedding, and its gradient
    assert all(one["axes"] == ["fsdp"] for one in parts["collectives"])
    assert parts["bytes"]["arguments"] < whole["bytes"]["arguments"] / 8


def test_only_the_gradient_is_exchanged_between_slices():
    """Parameters are sharded within a slice; accumulating adds no exchange between slices."""
    more = "--slices=2", "--programs=train_step", "--gin.Mesh.fsdp=-1"
    rows = []
    for accumulate in (1, 4):
        actual = compile_ahead(
            "v5e:2x2", "register_tiny", *more, f"--gin.Optimizer.accumulate={accumulate}"
        )
        assert (actual["chips"], actual["mesh"]) == (8, {"data": 2, "fsdp": 4, "tensor": 1})
        collectives = actual["programs"]["train_step"]["collectives"]
        (between,) = (one for one in collectives if one["between_slices"])
        within = [one for one in collectives if not one["between_slices"]]
        assert (between["kind"], between["axes"]) == ("all-reduce", ["data"])
        assert within and all(one["axes"] == ["fsdp"] for one in within)
        assert 985_856 < between["bytes"] < 2 * 985_856  # a quarter of the gradient, and padding
        megabytes = sum(one["bytes"] for one in within) / 1e6
        rows.append(f"| {accumulate} | {megabytes:.1f} MB | {between['bytes'] / 1e6:.1f} MB |")
    page = (ROOT / "docs" / "tpu.md").read_text(encoding="utf-8")
    assert "\n".join(rows) in page


def test_a_layer_scan_gathers_each_parameter_once_for_all_roles():
    """Three passes (remat has two forward); the CPU compiler merges the roles by itself."""
    more = "--gin.Model.stage_layers=(12,)", "--gin.Model.remat=True", "--gin.Data.rows=16"
    actual = compile_ahead(
        "v5e:4x4", "register_tiny", "--programs=train_step", "--gin.Mesh.fsdp=-1", *more
    )
    exchanged = actual["programs"]["train_step"]["collectives"]
    gathered = sum(one["bytes"] for one in exchanged if one["kind"] == "all-gather")
    kernels = 12 * 4 * (4 * 128 * 128 + 2 * 128 * 512)
    assert gathered < 4.5 * kernels  # and the embedding; 6.1 if each role collects them


def test_random_bits_of_dropout_are_counted_in_cycles():
    more = "--programs=train_step", "--gin.Model.dropout=0.1", "--gin.Model.stage_layers=(1,)"
    step = compile_ahead("v5e:2x2", "register_tiny", *more)["programs"]["train_step"]
    assert 0.1 < step["random_bits_share"] < 1
    assert step["without_estimate"]["random bits"] > 0  # of the keys, folded in


def test_a_program_too_large_for_memory_is_reported_with_a_remedy():
    large = "--gin.Data.rows=131072", "--gin.Data.source_length=512", "--gin.Data.target_length=512"
    actual = compile_ahead("v5e:2x2", "prefix_tiny", "--programs=train_step", *large)
    step = actual["programs"]["train_step"]
    assert not step["fits"] and step["bytes"]["over"] > 0
    assert step["bytes"]["peak"] - step["bytes"]["of_chip"] == step["bytes"]["over"]
    assert step["fits_with"] is None or step["fits_with"].startswith("--gin.Model.remat=True")


@pytest.mark.parametrize(
    ("spans", "least"),
    [("256 f 256", 1), ("272 ff 256 272", 1), ("256 fc 272 256", 1), ("544 ff 544 544", 0.9)],
)
def test_kernels_declare_the_cycles_that_libtpu_schedules(spans, least, tmp_path):
    """MITRE's source, registers and target, and the longest spans that are taken."""
    dump = f"--xla_jf_dump_to={tmp_path} --xla_jf_dump_llo_text=true"
    done = subprocess.run(
        [sys.executable, "-m", "tests.tpu.schedule", str(tmp_path), *spans.split()],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"LIBTPU_INIT_ARGS": dump, "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    for each in json.loads(done.stdout).values():
        assert least * each["bundles"] <= each["stated"] < 1.3 * each["bundles"]


def test_the_attention_kernel_is_counted_in_the_cycle_estimate():
    """It adds no collectives, and its cycles are part of the step's."""
    more = "--programs=train_step", "--gin.Model.dtype='bfloat16'", "--gin.Data.max_segments=16"
    more += "--gin.Model.attention_dropout=0.1", "--gin.Mesh.tensor=2", "--gin.Data.rows=16"
    split, fused = (
        compile_ahead("v5e:2x2", "register_tiny", *more, f"--gin.Model.attention='{name}'")
        for name in ("split", "fused")
    )
    split, fused = (actual["programs"]["train_step"] for actual in (split, fused))
    assert split["kernels"] == {"cycles": 0}
    assert fused["kernels"]["cycles"] > fused["kernels"]["core_cycles"] > 0
    assert fused["cycles"] > fused["kernels"]["cycles"]
    assert "custom-call tpu_custom_call" not in fused["without_estimate"]
    assert fused["collectives"] == split["collectives"]


def loads_libtpu(topology: str, **variables: str) -> subprocess.Popen[str]:
    """Start a process that opens a topology, prints the result and stays until its input ends."""
    code = (
        "import sys\n"
        "from mnmt_jax.cost.topologies import topology_devices\n"
        "from mnmt_jax.errors import UserError\n"
        "try:\n"
        f"    print(len(topology_devices({topology!r})), flush=True)\n"
        "except UserError as error:\n"
        "    print(error, flush=True)\n"
        "sys.stdin.read()\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"} | variables,
    )


def test_two_processes_compile_concurrently():
    """Also while another process has libtpu's lock, like a process that uses the chips."""
    with loads_libtpu("v5e:2x2", ALLOW_MULTIPLE_LIBTPU_LOAD="0") as first:
        assert first.stdout.readline() == "4\n"
        second, _ = loads_libtpu("v5e:4x4").communicate()
        unknown, _ = loads_libtpu("v9z:2x2").communicate()
        locked, _ = loads_libtpu("v5e:2x2", ALLOW_MULTIPLE_LIBTPU_LOAD="0").communicate()
        first.communicate()
    assert second == "16\n"
    assert unknown.startswith("--topology=v9z:2x2: the compiler knows no such topology (Invalid")
    assert "another process on this machine has loaded libtpu" in locked and "rm" not in locked
