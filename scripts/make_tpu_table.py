"""Compile MITRE's training step for TPU topologies and print the table of docs/tpu.md.

A compilation takes minutes. Its JSON is stored in --folder, so the command resumes after an
interruption. Needs the extra tpu.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

from mnmt_jax.commands.common_flags import CommandParser
from mnmt_jax.config.loading import load_config
from mnmt_jax.errors import UserError
from mnmt_jax.runtime.run_command import run_command

ROOT = Path(__file__).resolve().parents[1]
# Name -> topology; gin_configs/runs/settings/tpu_NAME.gin has the settings. The name of a v5p slice
# has the number of cores, two per chip.
SLICES = {
    "v5e-16": "v5e:4x4",
    "v5e-64": "v5e:8x8",
    "v5e-256": "v5e:16x16",
    "v5p-128": "v5p:4x4x4",
}
HEADER = (
    "| model | slice | mesh | micro-batch x accumulated | memory per chip | compute per update | "
    "MFU of it | exchanged per chip and update |\n|---|---|---|---|---:|---:|---:|---|"
)


def main() -> None:
    """Compile the missing entries and print the table."""
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/tpu_table"))
    parser.add_argument("--models", default="466m,913m", help="default %(default)s")
    parser.add_argument("--slices", default=",".join(SLICES), help="default %(default)s")
    flags = parser.parse_args()
    if unknown := set(flags.slices.split(",")) - set(SLICES):
        raise UserError(f"--slices: {min(unknown)!r} must be one of {', '.join(SLICES)}")
    flags.folder.mkdir(parents=True, exist_ok=True)
    rows = [
        _row(model, name, _compiled(flags.folder, model, name))
        for model in flags.models.split(",")
        for name in flags.slices.split(",")
    ]
    print("\n".join([HEADER, *rows]))


def _compiled(folder: Path, model: str, name: str) -> dict[str, Any]:
    config = repr(load_config(gin_files_of(model, name)))
    path = folder / f"{model}_{name}_{zlib.crc32(config.encode()):08x}.json"
    if not path.is_file():
        print(f"compiling {model} for {name}", file=sys.stderr)
        process = subprocess.run(
            [
                *(sys.executable, ROOT / "scripts" / "compile_ahead.py"),
                *(f"--topology={SLICES[name]}", "--programs=train_step"),
                *(f"--gin_file={path}" for path in gin_files_of(model, name)),
            ],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            cwd=ROOT,
        )
        if process.returncode:
            raise UserError(f"{model} for {name}: compile_ahead.py ended with {process.returncode}")
        path.write_text(process.stdout, encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))


def gin_files_of(model: str, name: str) -> list[str]:
    """Return the files of MITRE's run on a slice."""
    runs = ROOT / "gin_configs" / "runs"
    settings = runs / "settings" / f"tpu_{name.replace('-', '_')}.gin"
    family = ROOT / "gin_configs" / "models" / f"register_mitre_{model}.gin"
    return [str(path) for path in (family, runs / "mitre.gin", settings)]


def _row(model: str, name: str, report: dict[str, Any]) -> str:
    config = load_config(gin_files_of(model, name))
    step, mesh = report["programs"]["train_step"], report["mesh"]
    memory_bytes = step["bytes"]
    memory = f"{memory_bytes['peak'] / 2**30:.1f} of {memory_bytes['of_chip'] / 2**30:.0f} GiB"
    shape = " x ".join(str(mesh[axis]) for axis in ("data", "fsdp", "tensor"))
    cells = [f"MITRE-{model.upper()}", f"{name} ({report['chips']} chips)", shape]
    cells += [f"{config.data.rows} x {config.optimizer.accumulate}", memory]
    if not step["fits"]:
        excess = f"over by {memory_bytes['over'] / 2**30:.1f} GiB"
        return "| " + " | ".join([*cells, "", "", excess]) + " |"
    cells += [f"{step['seconds']:.2f} s", f"{step['model_flops_utilization']:.0%}"]
    totals: dict[str, int] = {}
    for collective in step["collectives"]:
        axes = " and ".join(collective["axes"])
        totals[axes] = totals.get(axes, 0) + collective["bytes"]
    gibibytes = {axes: f"{size / 2**30:.1f} GiB" for axes, size in totals.items()}
    cells.append(
        "; ".join(f"{axes}: {size}" for axes, size in gibibytes.items() if size != "0.0 GiB")
    )
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    run_command(main)
