"""Imports, uses and exports a synthetic checkpoint of a published size; times and peak memory.

    python benchmarks/checkpoints.py --model mitre_913m --folder /path/with/space

Writes a Hugging Face directory with MITRE's true configuration, random float32 weights and a
SentencePiece model of made-up pieces of the true number, then runs the project's own commands on
it: import, translation of a sentence, export. Prints JSON: seconds and peak resident memory of each
command, the latter also as a share of the model's size, and whether the exported weights equal the
first ones. The folder needs about four times the model's size and is removed again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mnmt_jax.config import Model
from mnmt_jax.errors import run_command
from mnmt_jax.interchange.names import MITRE, Entry, entries
from mnmt_jax.interchange.safetensors import read_safetensors, write_safetensors
from mnmt_jax.layouts import get_layout
from mnmt_jax.lazy_array import LazyArray

ROOT = Path(__file__).resolve().parent.parent
LANGUAGES, PIECES = 24, 160_000
MODELS = {
    "mitre_466m": Model("register", (24,), 1024, 4096, 16),
    "mitre_913m": Model("register", (36,), 1280, 5120, 20),
    "tiny": Model("register", (2,), 64, 128, 4),
}


def main() -> None:
    """Parses the command line, runs everything, prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="mitre_466m")
    parser.add_argument("--folder", required=True, help="made, filled and removed")
    parser.add_argument("--no_translation", action="store_true", help="import and export alone")
    flags = parser.parse_args()
    folder = Path(flags.folder)
    folder.mkdir(parents=True)
    try:
        print(json.dumps(measure(folder, flags.model, not flags.no_translation), indent=1))
    finally:
        shutil.rmtree(folder)


def measure(folder: Path, name: str, translates: bool) -> dict:
    """Makes the checkpoint in `folder` and returns the figures."""
    model, run = MODELS[name], folder / "run"
    start = time.monotonic()
    parameters = write_directory(folder / "given", model)
    size = 4 * parameters
    facts: dict = {"model": name, "parameters": parameters, "megabytes": round(size / 1e6)}
    facts["made_seconds"] = round(time.monotonic() - start, 1)
    given = "--format", "huggingface", "--input", folder / "given", "--output", run
    facts["import"] = timed(size, "import_checkpoint.py", *given)
    if translates:
        (folder / "line").write_text("a b c\n", encoding="utf-8")
        lines = "--input", folder / "line", "--output", folder / "translated"
        limits = "--gin.Decode.batch=1", "--gin.Decode.max_length=8", "--gin.Decode.buckets=(16,)"
        languages = "--source", "en", "--target", "de"
        facts["translate"] = timed(size, "infer.py", "--run", run, *languages, *lines, *limits)
        facts["translated"] = (folder / "translated").read_text(encoding="utf-8")
    facts["export"] = timed(size, "export_checkpoint.py", "--run", run, "--output", folder / "out")
    facts["bit_equal"] = same_tensors(folder / "given", folder / "out")
    return facts


def write_directory(folder: Path, model: Model) -> int:
    """Writes the checkpoint, one tensor in memory at a time; returns its parameters."""
    folder.mkdir()
    size = PIECES + 1 + LANGUAGES
    layout = get_layout(model.layout, model.stage_layers)
    table = entries(model, layout, MITRE, np.arange(size))
    write_safetensors(folder, random_tensors(table))
    config = {
        "model_type": "mitre",
        "d_model": model.embed,
        "decoder_layers": model.stage_layers[0],
        "decoder_ffn_dim": model.mlp,
        "decoder_attention_heads": model.heads,
        "vocab_size": size,
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
        "max_position_embeddings": 256,
        "scale_embedding": True,
        "activation_function": "relu",
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_vocabulary(folder)
    return sum(int(np.prod(entry.other_shape)) for entry in table)


def random_tensors(table: list[Entry]) -> Iterator[tuple[str, LazyArray]]:
    """Yields a tensor of small random numbers for each entry."""
    for number, entry in enumerate(table):

        def read(number: int = number, entry: Entry = entry) -> np.ndarray:
            values = np.random.default_rng(number).random(entry.other_shape, np.float32)
            values -= np.float32(0.5)
            values *= np.float32(0.05)
            return values

        yield entry.written[0], LazyArray(entry.other_shape, np.dtype(np.float32), read)


def write_vocabulary(folder: Path) -> None:
    """Writes a SentencePiece model of made-up pieces and the list of tokens."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    kinds = sentencepiece_model_pb2.ModelProto.SentencePiece
    specials = (("<unk>", kinds.UNKNOWN), ("<s>", kinds.CONTROL), ("</s>", kinds.CONTROL))
    for name, kind in specials:
        model.pieces.add(piece=name, score=0.0, type=kind)
    names = ["\u2581a", "\u2581b", "\u2581c"]
    names += [f"piece{n}" for n in range(PIECES - len(specials) - len(names))]
    for number, name in enumerate(names):
        model.pieces.add(piece=name, score=-float(number), type=kinds.NORMAL)
    model.trainer_spec.model_type = model.trainer_spec.UNIGRAM
    model.trainer_spec.vocab_size = PIECES
    (folder / "mitre_spm.model").write_bytes(model.SerializeToString())
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *names]
    text = json.dumps({token: i for i, token in enumerate(tokens)})
    (folder / "vocab.json").write_text(text, encoding="utf-8")


def timed(size: int, script: str, *arguments: object) -> dict[str, float]:
    """Runs a command of the project; returns seconds and peak memory."""
    command = [sys.executable, str(ROOT / "scripts" / script), *map(str, arguments)]
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    peak = usage.ru_maxrss * 1024
    return {
        "seconds": round(time.monotonic() - start, 1),
        "peak_megabytes": round(peak / 1e6),
        "peak_per_model": round(peak / size, 3),
    }


def same_tensors(first: Path, second: Path) -> bool:
    """Compares two directories' weights bit for bit, one tensor at a time."""
    one, other = (read_safetensors(folder / "model.safetensors") for folder in (first, second))
    return one.keys() == other.keys() and all(
        np.array_equal(one[name].read().view(np.uint8), other[name].read().view(np.uint8))
        for name in one
    )


if __name__ == "__main__":
    run_command(main)
