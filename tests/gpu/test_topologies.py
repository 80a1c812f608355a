"""Compilation for GPUs that are not attached; needs the packages of scripts/test_gpu.sh."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mnmt_jax.config.loading import load_config
from mnmt_jax.cost.topologies import has_cuda_plugin
from tests.documents import commands, make_root, shell

if not has_cuda_plugin():
    pytest.skip("no plugin for CUDA: run scripts/test_gpu.sh", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
CHIP = 80 * 10**9
FILES = ["gin_configs/models/register_tiny.gin", "gin_configs/runs/cldr_quickstart.gin"]


@pytest.fixture(autouse=True)
def as_users_compile(monkeypatch):
    """Compile without the flags that make this suite fast."""
    monkeypatch.delenv("XLA_FLAGS")


def compile_ahead(topology: str, *more: str) -> dict:
    script = [sys.executable, str(ROOT / "scripts" / "compile_ahead.py"), "--vocab_size=1504"]
    files = [f"--gin_file={file}" for file in FILES]
    done = subprocess.run(
        [*script, *files, f"--topology={topology}", "--programs=train_step", *more],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["programs"]["train_step"]


def test_data_parallel_all_reduces_the_gradient_once(tmp_path):
    """Run the command of the documentation; the all-reduce is that of TPUs, biases in one row."""
    [text] = (c.text for c in commands("docs/gpu.md") if "models/register_tiny.gin" in c.text)
    actual = json.loads(shell(make_root(tmp_path), text).stdout)
    assert (actual["chip"], actual["chips"]) == ("NVIDIA H100", 4)
    assert set(actual["programs"]) == {"train_step", "prefill", "decode_step"}
    for program in actual["programs"].values():
        assert program["fits"] and program["bytes"]["of_chip"] == CHIP
        assert 0 < program["bytes"]["temporaries"] < program["bytes"]["peak"] < CHIP
        assert program["seconds"] is None and program["flops"] is None
    (sums,) = actual["programs"]["train_step"]["collectives"]
    assert (sums["kind"], sums["axes"], sums["count"]) == ("all-reduce", ["data"], 1)
    page = (ROOT / "docs" / "tpu.md").read_text(encoding="utf-8")
    on_tpu = sums["bytes"] + 4 * 7 * (128 + 128 + 128 + 512)  # seven more rows of a layer's biases
    assert f"the sum of the gradient, {on_tpu:,} bytes" in " ".join(page.split())


@pytest.mark.parametrize("topology", ["a100:1", "h100:2"])
def test_the_attention_kernel_compiles_without_storing_scores(topology):
    more = "--gin.Model.dtype='bfloat16'", "--gin.Model.attention_dropout=0.1"
    more += "--gin.Data.rows=256", "--gin.Model.remat=True"
    split, fused = (
        compile_ahead(topology, *more, f"--gin.Model.attention='{name}'")
        for name in ("split", "fused")
    )
    config = load_config(FILES, ["Data.rows=256"])
    length, rows = config.data.target_length, 256 // int(topology[-1])
    scores = 4 * rows * config.model.heads * length * 2 * length  # of targets, and those they see
    assert fused["bytes"]["arguments"] == split["bytes"]["arguments"]
    assert split["bytes"]["temporaries"] - fused["bytes"]["temporaries"] > scores
    assert fused["collectives"] == split["collectives"]


def test_a_program_too_large_for_memory_is_reported_with_a_remedy():
    step = compile_ahead("a100:1", "--gin.Data.rows=131072")
    sizes = step["bytes"]
    assert not step["fits"] and sizes["over"] == sizes["peak"] - CHIP > 0
    assert step["fits_with"] is None or step["fits_with"].startswith("--gin.Model.remat=True")
