"""Time and peak memory of importing, translating with and exporting a full-size MITRE checkpoint.

    python benchmarks/checkpoints.py --vocabulary VOCABULARY --folder FOLDER [--model 466m]

VOCABULARY contains MITRE's `mitre_spm.model` and `mitre_dict.txt`. The weights are random, in the
layout of Hugging Face; the time to read and write them does not depend on their values. Each
command runs in a separate process; its peak resident memory is compared with the size of the model.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from mnmt_jax.config.loading import load_config
from mnmt_jax.config.sections import Model
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.errors import UserError
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.interop.names import MITRE, parameter_entries
from mnmt_jax.interop.safetensors import write_safetensors
from mnmt_jax.runtime.run_command import run_command

ROOT = Path(__file__).resolve().parents[1]
GIB = 1 << 30
_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")


def main() -> None:
    """Run the three commands and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=Path, required=True)
    parser.add_argument(
        "--folder",
        type=Path,
        required=True,
        help="new folder; takes three times the size of the model",
    )
    parser.add_argument("--model", choices=("466m", "913m"), default="466m")
    flags = parser.parse_args()
    if flags.folder.exists():
        raise UserError(f"--folder={flags.folder}: exists already; choose a new folder")
    config = load_config([f"gin_configs/models/register_mitre_{flags.model}.gin"]).model
    source, run, exported = (flags.folder / name for name in ("huggingface", "run", "exported"))
    size = write_checkpoint(source, config, flags.vocabulary)
    print(f"{flags.model}: {size / GIB:.2f} GiB of float32 parameters\n")
    print("| command | seconds | peak memory, GiB | peak / model |\n| --- | ---: | ---: | ---: |")
    hugging_face = ("--format", "huggingface")
    report(size, "import_checkpoint.py", *hugging_face, "--input", source, "--output", run)
    languages = ("--source", "en", "--target", "de", "--gin.Decode.max_length=16")
    report(
        size, "infer.py", "--run", run, *languages, "--gin.Decode.buckets=(32,)", text="A test.\n"
    )
    report(size, "export_checkpoint.py", "--run", run, *hugging_face, "--output", exported)
    files = source / "model.safetensors", exported / "model.safetensors"
    same = filecmp.cmp(*files, shallow=False)
    print(f"\nexported weights {'equal' if same else 'DIFFER FROM'} the imported file bit for bit")


def write_checkpoint(folder: Path, config: Model, vocabulary: Path) -> int:
    """Write a directory in the format of the released MITRE; return the bytes of its parameters."""
    folder.mkdir(parents=True)
    shutil.copy(vocabulary / "mitre_spm.model", folder)
    lines = (vocabulary / "mitre_dict.txt").read_text(encoding="utf-8").split("\n")
    tokens = [*_SPECIALS, *(line.rpartition(" ")[0] for line in lines if line)]
    ids = {token: number for number, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    values = {
        "model_type": "mitre",
        "d_model": config.embed,
        "decoder_layers": sum(config.stage_layers),
        "decoder_ffn_dim": config.mlp,
        "decoder_attention_heads": config.heads,
        "vocab_size": config.vocab_size,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
        "scale_embedding": True,
    }
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    layout = get_layout(config.layout, config.stage_layers)
    table = parameter_entries(config, layout, MITRE, np.arange(config.vocab_size))
    tensors = [
        (entry.export_names[0], _random(entry.other_shape, seed))
        for seed, entry in enumerate(table)
    ]
    write_safetensors(folder, tensors, shard_bytes=1 << 40)
    return sum(tensor.bytes for _, tensor in tensors)


def _random(shape: tuple[int, ...], seed: int) -> LazyArray:
    def draw() -> np.ndarray:
        values = np.random.default_rng(seed).standard_normal(shape, np.float32)
        return values * np.float32(shape[-1] ** -0.5)

    return LazyArray(shape, np.dtype(np.float32), draw)


def report(size: int, script: str, *arguments: object, text: str = "") -> None:
    """Run a command and print its row of the table."""
    command = [sys.executable, str(ROOT / "scripts" / script), *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    started = time.monotonic()
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment, text=True
    )
    assert process.stdin
    process.stdin.write(text)
    process.stdin.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise UserError(f"{script} failed; its message is above")
    peak = _peak_bytes(usage)
    seconds = time.monotonic() - started
    print(f"| {script} | {seconds:.0f} | {peak / GIB:.2f} | {peak / size:.2f} |", flush=True)


def _peak_bytes(usage: resource.struct_rusage) -> int:
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    run_command(main)
