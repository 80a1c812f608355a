"""Comparison of systems in zero-shot translation, trained on one corpus with equal updates.

    python benchmarks/zero_shot.py DIR [--corpus cldr_quickstart] [--seeds 1,2,3] [--cheap]

A system is an entry of `SYSTEMS`. Its run is in DIR/SYSTEM_SEED, with the evaluation in `report/`;
finished work is not repeated. Prints Markdown: means over seeds and their range.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from several_runs import (
    PUBLISHED_VOCABULARY,
    make_cache,
    run_script,
    table,
    train,
    train_vocabulary,
)

from mnmt_jax.commands.common_flags import CommandParser
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.result import read_result
from mnmt_jax.runtime.run_command import run_command


@dataclasses.dataclass(frozen=True)
class System:
    """A system: a model to train, or another decoding of a trained system.

    Attributes:
        model: file of `gin_configs/models`, without its size.
        bindings: gin bindings of the model and its training.
        of: system whose run is evaluated; if empty, a run of this system is trained.
        decode: flags of `mnmt evaluate`.
        vocabulary: vocabulary of the training cache, `plain` or `lavs`.
    """

    model: str = "encoder_decoder"
    bindings: tuple[str, ...] = ()
    of: str = ""
    decode: tuple[str, ...] = ()
    vocabulary: str = "plain"


_BRANCHES = ("LanguageLayers.without=('en',)", "LanguageLayers.dropout=0.0")
_FCLL = ("Model.methods=('language_layers',)", *_BRANCHES)
_TPDM = ("Model.methods=('tpdm',)", "TPDM.layer={encoder_middle}")
SYSTEMS = {
    "encoder_decoder": System(),
    "residual": System(bindings=("Model.methods=('cut_residual',)",)),
    "fcll": System(bindings=_FCLL),
    "sd": System(
        bindings=(
            "Model.methods=('language_layers','cut_residual')",
            *_BRANCHES,
            "LanguageLayers.layers=({decoder_middle},)",
            "CutResidual.sublayer='mlp'",
        )
    ),
    "lcs": System(bindings=("Model.methods=('lcs',)", "Data.instruction='5'")),
    "lavs": System(vocabulary="lavs"),
    "mrasp2": System(bindings=("Train.methods=('mrasp2',)", "MRASP2.layer={half}")),
    "tpdm": System(bindings=_TPDM),
    "gtpdm": System(bindings=(*_TPDM, "TPDM.gated=True")),
    "prefix": System("prefix"),
    "register": System("register"),
    "register_fcll": System("register", _FCLL),
    "two_stage": System(
        "two_stage_trigger",
        (
            "Model.methods=('adaption',)",
            "Adaption.mlp={mlp}",
            "Adaption.dropout=0.0",
            "Train.methods=('instructcl',)",
            "InstruCL.layer={contrast}",
        ),
    ),
    "pivot": System(of="encoder_decoder", decode=("--pivot=en",)),
    "contrast": System(of="encoder_decoder", decode=("--gin.Decode.language_contrast=0.4",)),
}


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A corpus and the sizes of its models.

    Attributes:
        size: suffix of the model files.
        half: layers of one of two stages.
        mlp: width of a feed-forward.
        pieces: size of the vocabulary.
        threshold: `--lavs_threshold` of the LAVS vocabulary.
        steps: updates.
        limit: sentences scored per direction; 0 is all.
        systems: rows of the table; empty is all.
        smaller: bindings for smaller models and batches than in the files, so that the table takes
            hours on two cores.
    """

    size: str
    half: int
    mlp: int
    pieces: int
    threshold: int
    steps: int
    limit: int
    systems: tuple[str, ...] = ()
    smaller: tuple[str, ...] = ()

    def bindings(self, system: System) -> list[str]:
        """Return the training flags of a system, with its placeholders filled in."""
        names = {
            "half": self.half,
            "encoder_middle": self.half // 2 + 1,
            "decoder_middle": self.half + self.half // 2 + 1,
            "contrast": self.half + max(self.half // 2, 1),
            "mlp": self.mlp,
        }
        bindings = [binding.format(**names) for binding in system.bindings]
        if any(binding.startswith("Model.methods=('language_layers'") for binding in bindings):
            bindings.append(f"LanguageLayers.mlp={self.mlp // 2}")
        return [f"--gin.{binding}" for binding in (*self.smaller, *bindings)]


CORPORA = {
    "cldr_quickstart": Corpus("tiny", 2, 512, 1500, 20, 2000, 200),
    "libreoffice_help": Corpus(
        *("small", 3, 512, 8000, 200, 6000, 100),
        systems=("encoder_decoder", "fcll", "sd", "prefix", "register", "two_stage", "pivot"),
        smaller=(
            "Model.embed=128",
            "Model.mlp=512",
            "Model.dropout=0.0",  # almost no pair is seen twice
            "Data.rows=4",
            "Optimizer.learning_rate=3e-3",
            "Decode.beam_size=1",
        ),
    ),
}


def main() -> None:
    """Train and evaluate the systems, and print the table."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--corpus", choices=CORPORA, default="cldr_quickstart")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument(
        "--systems", help="comma-separated; default: those of docs/results_systems.md"
    )
    parser.add_argument("--cheap", action="store_true", help="one seed, a tenth of the updates")
    flags = parser.parse_args()
    corpus = CORPORA[flags.corpus]
    names = flags.systems.split(",") if flags.systems else corpus.systems or tuple(SYSTEMS)
    if unknown := [name for name in names if name not in SYSTEMS]:
        raise UserError(f"--systems={unknown[0]}: no such system; choose from {', '.join(SYSTEMS)}")
    if flags.cheap:
        corpus = dataclasses.replace(corpus, steps=corpus.steps // 10, limit=20)
    seeds = [int(seed) for seed in flags.seeds.split(",")][: 1 if flags.cheap else None]
    for seed in seeds:
        for name in names:
            evaluate(flags.folder, flags.corpus, corpus, name, seed)
    results = {
        name: [read_result(flags.folder / f"{name}_{s}" / "report") for s in seeds]
        for name in names
    }
    print(table(results))


def evaluate(folder: Path, task: str, corpus: Corpus, name: str, seed: int) -> None:
    """Evaluate a system with one seed; train its run first."""
    system = SYSTEMS[name]
    run = folder / f"{system.of or name}_{seed}"
    report = folder / f"{name}_{seed}" / "report"
    if (report / "scores.json").is_file():
        return
    cache = cache_of(folder, task, corpus, SYSTEMS[system.of or name].vocabulary)
    if not system.of:
        configuration = f"{system.model}_{corpus.size}", task
        train_flags = f"--gin.Train.seed={seed}", *corpus.bindings(system)
        train(run, configuration, cache, corpus.steps, *train_flags)
    else:
        evaluate(folder, task, corpus, system.of, seed)
    limit = [f"--limit={corpus.limit}"] if corpus.limit else []
    run_script(
        "evaluate", f"--run={run}", f"--task={task}", f"--output={report}", *limit, *system.decode
    )


def cache_of(folder: Path, task: str, corpus: Corpus, kind: str) -> Path:
    """Return the token cache of a kind of vocabulary; write it if it does not exist."""
    size = f"--vocab_size={corpus.pieces}"
    vocabulary = plain = train_vocabulary(folder / "vocabulary", task, size, *PUBLISHED_VOCABULARY)
    if kind == "lavs":
        lavs_flags = f"--vocabulary={plain}", "--lavs=code", f"--lavs_threshold={corpus.threshold}"
        vocabulary = train_vocabulary(folder / "vocabulary_lavs", task, *lavs_flags)
    return make_cache(folder / f"cache_{kind}", task, vocabulary)


if __name__ == "__main__":
    run_command(main)
