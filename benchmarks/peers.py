"""Decoding speed against Hugging Face and CTranslate2 with the same weights.

    bash benchmarks/peers.sh DIR [--models trained,random] [--engines ours,...] [--rounds 3]
        [--lines 64]
    python benchmarks/peers.py DIR --device=gpu --models=big --batch=32 \
        --engines="transformers,ours bfloat16"

The models are encoder-decoders: `trained` has the quickstart's size and is trained on its phrases;
`random` has 12 + 12 layers of 512, `big` of 1,024, and random weights, and generates `--steps`
tokens per line. All are exported. All engines translate the same tokens, in interleaved rounds;
compilation and loading are not counted. Prints Markdown: seconds (the minimum over rounds), their
ratio to the first engine, the peak memory, and the fraction of lines with the same output as the
first engine, by default ours in float32. `--engines="ours,ours bfloat16,ours int8"` needs no other
package.

Every engine is a separate process. On `cpu` it has one thread on one core; seconds are the
processor's and memory is that of the process. On `gpu` seconds are those of the clock, memory is
the device's, and Hugging Face's model is in bfloat16; CTranslate2 is not among the engines.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from engines import Worker, ask_in_turns

from mnmt_jax.commands.common_flags import CommandParser
from mnmt_jax.config.loading import load_config
from mnmt_jax.config.sections import Config
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.benchmark import Benchmark, find_corpus
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.interop.exporting import export_checkpoint
from mnmt_jax.interop.tags import tag_tokens
from mnmt_jax.interop.token_table import rows_of_vocabulary, tokens_for_export
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.pages.markdown_tables import markdown_table
from mnmt_jax.runs.parameters import write_params
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.runtime.run_command import run_command
from mnmt_jax.vocabulary.vocabulary import Vocabulary

ROOT = Path(__file__).resolve().parents[1]
TASK, SOURCE, TARGET = "cldr_quickstart", "en", "de"
FILES = ("gin_configs/models/encoder_decoder_tiny.gin", f"gin_configs/runs/{TASK}.gin")
# The architecture of M2M-100, which Hugging Face implements.
M2M100_BINDINGS = (
    "Data.instruction='5'",
    "Model.positions=('sinusoidal', 10000.0)",
    "Model.norm='pre'",
)
LARGE = (
    "Model.stage_layers=(12,12)",
    "Model.embed=512",
    "Model.mlp=2048",
    "Model.heads=8",
    "Decode.buckets=(32,)",
    "Decode.batch=32",
)
BIG = (
    *LARGE,
    "Model.embed=1024",
    "Model.mlp=4096",
    "Model.heads=16",
)
SIZES = {"trained": (), "random": LARGE, "big": BIG}
OURS = ("ours", "ours bfloat16", "ours int8")
ENGINES = (*OURS, "transformers", "ctranslate2 float32", "ctranslate2 int8")
EXPORTS = {"transformers": ("huggingface", "hf"), "ctranslate2": ("ctranslate2", "ct2")}


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model of the comparison.

    Attributes:
        folder: contains `run`, `hf`, `ct2` and `input.json`.
        words: minimum number of pieces per line; phrases are joined to reach it.
        updates: number of training updates; 0 leaves the weights random.
    """

    folder: Path
    words: int
    updates: int


def main() -> None:
    """Prepare the models, run the engines and print the table."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--models", default="trained,random")
    parser.add_argument(
        "--engines", default=",".join(ENGINES), help="comma-separated; the first is the baseline"
    )
    parser.add_argument(
        "--updates", type=int, default=2000, help="training updates of the trained model"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lines", type=int, default=64)
    parser.add_argument("--steps", type=int, default=32, help="tokens per line of the random model")
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--batch", type=int, default=32, help="lines translated together")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--output", type=Path, help="file of the table as JSON")
    flags = parser.parse_args()
    for flag, known in (("models", SIZES), ("engines", ENGINES)):
        if unknown := [name for name in getattr(flags, flag).split(",") if name not in known]:
            raise UserError(f"--{flag}: {unknown[0]!r} must be one of {', '.join(known)}")
    vocabulary = flags.folder / "vocabulary"
    if not vocabulary.is_dir():
        run_script(
            "train_vocabulary", f"--mixture={TASK}", "--vocab_size=1500", f"--output={vocabulary}"
        )
    rows = []
    engines = flags.engines.split(",")
    for name in flags.models.split(","):
        is_trained = name == "trained"
        subject = Subject(
            flags.folder / name, 1 if is_trained else 20, flags.updates if is_trained else 0
        )
        prepare(subject, vocabulary, flags.lines, engines)
        for beam in flags.beams:
            steps = 40 if is_trained else flags.steps
            request = {"beam": beam, "steps": steps, "exactly": not is_trained}
            measurements = run_interleaved(subject, engines, request, flags)
            rows += [[name, *row] for row in measurements]
    titles = ["model", "beam", "engine", "seconds", "ratio", "memory, GiB", "same output"]
    print(markdown_table(titles, rows))
    if flags.output:
        table = [dict(zip(titles, row, strict=True)) for row in rows]
        flags.output.write_text(json.dumps(table, indent=1), encoding="utf-8")
    if failed := sorted({row[2] for row in rows if row[3] == "failed"}):
        raise UserError(f"{', '.join(failed)}: ended before the first measurement; see above")


def prepare(subject: Subject, vocabulary: Path, lines: int, engines: Sequence[str]) -> None:
    """Write the run of a model, its exports and the input, unless they exist."""
    run = subject.folder / "run"
    if subject.updates:
        train(run, subject.folder.parent / "cache", vocabulary, subject.updates)
    elif not run.is_dir():
        config = load_config(FILES, [*M2M100_BINDINGS, *SIZES[subject.folder.name]])
        draw(run, config, Vocabulary.load(vocabulary))
    packages = {engine.partition(" ")[0] for engine in engines}
    for kind, name in (EXPORTS[package] for package in EXPORTS if package in packages):
        if not (subject.folder / name).is_dir():
            export_checkpoint(kind, run, subject.folder / name)
    input_data = inputs(Vocabulary.load(vocabulary), lines, subject.words)
    (subject.folder / "input.json").write_text(json.dumps(input_data), encoding="utf-8")


def train(run: Path, cache: Path, vocabulary: Path, steps: int) -> None:
    """Train the trained model; write its token cache if it does not exist."""
    if not cache.is_dir():
        folders = f"--vocabulary={vocabulary}", f"--output={cache}"
        run_script("cache_tasks", f"--mixture={TASK}", *folders)
    every = max(steps // 4, 1)
    steps_of = {"steps": steps, "eval_every": every, "save_every": every}
    bindings = [f"Train.{name}={value}" for name, value in steps_of.items()]
    bindings += [f"Data.cache='{cache}'", *M2M100_BINDINGS]
    files = [f"--gin_file={file}" for file in FILES]
    flags = [f"--gin.{binding}" for binding in bindings]
    run_script("train", f"--workdir={run}", *files, *flags)


def run_script(script: str, *arguments: str) -> None:
    """Run a script without its output; its progress stays visible.

    Raises:
        SystemExit: with the status of the script, if it fails.
    """
    command = [sys.executable, f"scripts/{script}.py", *arguments]
    if status := subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode:
        raise SystemExit(status)


def draw(run: Path, config: Config, vocabulary: Vocabulary) -> None:
    """Write a run with random parameters; its model hardly ever generates eos."""
    rng = np.random.default_rng(1)

    def random_array(path: Any, shape: Any) -> LazyArray:
        name = jax.tree_util.keystr(path)
        array = rng.standard_normal(shape.shape, np.float32) * config.model.embed**-0.5
        if "scale" in name or "bias" in name:
            array = np.full_like(array, "scale" in name)
        elif "embedding" in name:
            array[vocabulary.eos_id] = 0.0
        return LazyArray.of(array)

    shapes = parameter_shapes(config.model, vocabulary.size)
    RunDirectory(run).prepare(config, vocabulary, has_checkpoint=False)
    write_params(run, jax.tree_util.tree_map_with_path(random_array, shapes))


def inputs(vocabulary: Vocabulary, lines: int, words: int) -> dict[str, Any]:
    """Return lines as text, as ids of Hugging Face and as tokens of CTranslate2."""
    corpus, languages = find_corpus(TASK)
    texts_of_pair = Benchmark(TASK, corpus, languages=languages).texts((SOURCE, TARGET))
    phrases = itertools.cycle(texts_of_pair.sources)
    texts = []
    for _ in range(lines):
        text = next(phrases)
        while len(vocabulary.encode(text)) < words:
            text = f"{text} {next(phrases)}"
        texts.append(text)
    rows = rows_of_vocabulary(vocabulary, tags_last=False)
    token_names = tokens_for_export(vocabulary, tag_tokens(vocabulary.languages), rows)
    tag = vocabulary.tag_id(SOURCE)
    ids = [rows[[tag, *vocabulary.encode(text), vocabulary.eos_id]].tolist() for text in texts]
    return {
        "texts": texts,
        "ids": ids,
        "tokens": [[token_names[i] for i in line] for line in ids],
        "names": token_names,
        "languages": [SOURCE, TARGET],
        "target": int(rows[vocabulary.tag_id(TARGET)]),
    }


def run_interleaved(
    subject: Subject, engines: Sequence[str], request: dict[str, Any], flags: argparse.Namespace
) -> list[list[str]]:
    """Run the engines in interleaved rounds; return a row of the table for each engine."""
    script = str(Path(__file__).with_name("peers_worker.py"))
    core = flags.core if flags.device == "cpu" else None
    settings = (str(subject.folder), flags.device, str(flags.batch))
    workers = {name: Worker([sys.executable, script, name, *settings], core) for name in engines}
    answers = ask_in_turns(workers, engines, request, flags.rounds)
    for worker in workers.values():
        worker.end()
    first = answers[engines[0]]
    rows = []
    for name in engines:
        row = [str(request["beam"]), name]
        if not answers[name]:
            rows.append([*row, "failed", *[""] * 3])
            continue
        seconds, answer = _seconds(answers[name]), answers[name][-1]
        row += [f"{seconds:.2f}", f"{seconds / _seconds(first):.2f}" if first else ""]
        row.append(f"{answer['memory'] / 2**30:.2f}")
        if first:
            same = list(map(list.__eq__, first[-1]["translations"], answer["translations"]))
            row.append(f"{sum(same) / len(same):.0%}")
        rows.append(row if first else [*row, ""])
    return rows


def _seconds(answers: Sequence[dict[str, Any]]) -> float:
    return min(answer["seconds"] for answer in answers)


if __name__ == "__main__":
    run_command(main)
