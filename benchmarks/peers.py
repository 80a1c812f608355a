"""Compares decoding on a CPU core with that of Hugging Face and CTranslate2, of the same weights.

    bash benchmarks/peers.sh DIR [--models trained,random] [--engines ours,...] [--rounds 3]
        [--lines 64]

Two encoder-decoders: `trained` has the quickstart's size and learns its phrases here; `random` has
12 and 12 layers of 512 with weights as drawn, and takes `--steps` steps for each line. Both are
exported, and an engine is a process of its own on one core, with one thread. All have the same
tokens and take turns; compilation and loading are not counted. Prints Markdown: processor seconds
(the least of all rounds), each engine's as a multiple of ours, the most memory that its process
took, and the share of lines that it translates as the first does, which is ours in float32.
`--engines="ours,ours bfloat16,ours int8"` needs nobody else's package.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from engines import Worker
from several_runs import make_cache, train, train_vocabulary

from mnmt_jax.commands.common_flags import CommandParser
from mnmt_jax.config.loading import load_config
from mnmt_jax.config.sections import Config
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.benchmark import Benchmark, find_corpus
from mnmt_jax.evaluation.markdown_tables import markdown_table
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.interop.exporting import export_checkpoint
from mnmt_jax.interop.tags import tag_tokens
from mnmt_jax.interop.token_table import rows_of_vocabulary, tokens_for_export
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.runs.parameters import write_params
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.runtime.run_command import run_command
from mnmt_jax.vocabulary.vocabulary import Vocabulary

TASK, SOURCE, TARGET = "cldr_quickstart", "en", "de"
FILES = ("gin_configs/models/encoder_decoder_tiny.gin", f"gin_configs/runs/{TASK}.gin")
# As M2M-100, the only one that Hugging Face knows.
ALIKE = ("Data.instruction='5'", "Model.positions=('sinusoidal', 10000.0)", "Model.norm='pre'")
LARGE = (
    "Model.stage_layers=(12,12)",
    "Model.embed=512",
    "Model.mlp=2048",
    "Model.heads=8",
    "Decode.buckets=(32,)",
    "Decode.batch=32",
)
MODELS = ("trained", "random")
OURS = ("ours", "ours bfloat16", "ours int8")
ENGINES = (*OURS, "transformers", "ctranslate2 float32", "ctranslate2 int8")
EXPORTS = {"transformers": ("huggingface", "hf"), "ctranslate2": ("ctranslate2", "ct2")}


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model to decode with.

    Attributes:
        folder: holds `run`, `hf`, `ct2` and `input.json`.
        words: pieces of a line at least; phrases are joined until there are so many.
        updates: of its training; 0 leaves it as drawn.
    """

    folder: Path
    words: int
    updates: int


def main() -> None:
    """Makes the models, lets engines take turns and prints."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--engines", default=",".join(ENGINES), help="the first is compared with")
    parser.add_argument("--updates", type=int, default=2000, help="of the trained model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lines", type=int, default=64)
    parser.add_argument("--steps", type=int, default=32, help="of a line of the random model")
    parser.add_argument("--core", type=int, default=0)
    flags = parser.parse_args()
    for flag, known in (("models", MODELS), ("engines", ENGINES)):
        if unknown := [name for name in getattr(flags, flag).split(",") if name not in known]:
            raise UserError(f"--{flag}: {unknown[0]!r} must be one of {', '.join(known)}")
    vocabulary = train_vocabulary(flags.folder / "vocabulary", TASK, "--vocab_size=1500")
    rows = []
    engines = flags.engines.split(",")
    for name in flags.models.split(","):
        trains = name == "trained"
        subject = Subject(flags.folder / name, 1 if trains else 20, flags.updates * trains)
        prepare(subject, vocabulary, flags.lines, engines)
        for beam in (1, 5):
            asked = {"beam": beam, "steps": 40 if trains else flags.steps, "exactly": not trains}
            found = turns(subject, engines, asked, flags.rounds, flags.core)
            rows += [[name, *row] for row in found]
    titles = ["model", "beam", "engine", "seconds", "of ours", "memory, GiB", "as ours"]
    print(markdown_table(titles, rows))


def prepare(subject: Subject, vocabulary: Path, lines: int, engines: Sequence[str]) -> None:
    """Makes a model, engines' exports and what it is to translate, where they are not there."""
    run = subject.folder / "run"
    if subject.updates:
        cache = make_cache(subject.folder.parent / "cache", TASK, vocabulary)
        train(
            run,
            ("encoder_decoder_tiny", TASK),
            cache,
            subject.updates,
            *(f"--gin.{each}" for each in ALIKE),
        )
    elif not run.is_dir():
        draw(run, load_config(FILES, [*ALIKE, *LARGE]), Vocabulary.load(vocabulary))
    packages = {engine.partition(" ")[0] for engine in engines}
    for kind, name in (EXPORTS[package] for package in EXPORTS if package in packages):
        if not (subject.folder / name).is_dir():
            export_checkpoint(kind, run, subject.folder / name)
    given = inputs(Vocabulary.load(vocabulary), lines, subject.words)
    (subject.folder / "input.json").write_text(json.dumps(given), encoding="utf-8")


def draw(run: Path, config: Config, vocabulary: Vocabulary) -> None:
    """Writes a run of random parameters, which hardly ever ends a translation."""
    rng = np.random.default_rng(1)

    def drawn(path: Any, shape: Any) -> LazyArray:
        name = jax.tree_util.keystr(path)
        array = rng.standard_normal(shape.shape, np.float32) * config.model.embed**-0.5
        if "scale" in name or "bias" in name:
            array = np.full_like(array, "scale" in name)
        elif "embedding" in name:
            array[vocabulary.eos_id] = 0.0
        return LazyArray.of(array)

    shapes = parameter_shapes(config.model, vocabulary.size)
    RunDirectory(run).prepare(config, vocabulary, has_checkpoint=False)
    write_params(run, jax.tree_util.tree_map_with_path(drawn, shapes))


def inputs(vocabulary: Vocabulary, lines: int, words: int) -> dict[str, Any]:
    """Returns lines as text, as Hugging Face's ids and as CTranslate2's tokens."""
    corpus, languages = find_corpus(TASK)
    phrases = iter(Benchmark(TASK, corpus, languages=languages).texts((SOURCE, TARGET)).sources)
    texts = []
    for _ in range(lines):
        text = next(phrases)
        while len(vocabulary.encode(text)) < words:
            text = f"{text} {next(phrases)}"
        texts.append(text)
    rows = rows_of_vocabulary(vocabulary, tags_last=False)
    named = tokens_for_export(vocabulary, tag_tokens(vocabulary.languages), rows)
    tag = vocabulary.tag_id(SOURCE)
    ids = [rows[[tag, *vocabulary.encode(text), vocabulary.eos_id]].tolist() for text in texts]
    return {
        "texts": texts,
        "ids": ids,
        "tokens": [[named[i] for i in line] for line in ids],
        "names": named,
        "languages": [SOURCE, TARGET],
        "target": int(rows[vocabulary.tag_id(TARGET)]),
    }


def turns(
    subject: Subject, engines: Sequence[str], asked: dict[str, Any], rounds: int, core: int
) -> list[list[str]]:
    """Lets engines translate by turns; returns a row of the table for each."""
    script = str(Path(__file__).with_name("peers_worker.py"))
    workers = {
        name: Worker([sys.executable, script, name, str(subject.folder)], core) for name in engines
    }
    told: dict[str, list[dict[str, Any]]] = {name: [] for name in engines}
    for _, name in itertools.product(range(rounds + 1), engines):
        told[name].append(workers[name].ask(asked))
    for worker in workers.values():
        worker.end()
    least = {name: min(each["seconds"] for each in told[name][1:]) for name in engines}
    ours = told[engines[0]][-1]["found"]
    rows = []
    for name in engines:
        last = told[name][-1]
        alike = sum(map(list.__eq__, ours, last["found"])) / len(ours)
        times = f"{least[name] / least[engines[0]]:.2f}"
        row = [str(asked["beam"]), name, f"{least[name]:.2f}", times]
        rows.append([*row, f"{last['memory'] / 2**20:.2f}", f"{alike:.0%}"])
    return rows


if __name__ == "__main__":
    run_command(main)
