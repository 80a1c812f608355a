"""Grafting on two language models, compared with training without them, on few sentence pairs.

    python benchmarks/graft.py DIR [--corpus cldr_quickstart] [--seeds 1,2,3] [--shares 1,10,100]

The language models are trained on all training text of every language. The translators are trained
on a share of the pairs, with equal updates: `graft`, the same model with random initialization
(`drawn`), and an encoder-decoder of the same depth. Language models are in DIR/NAME_SEED,
translators in DIR/NAME_SHARE_SEED; finished work is not repeated. Prints Markdown: means over seeds
and their range.
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
from mnmt_jax.evaluation.result import read_result
from mnmt_jax.runtime.run_command import run_command

_DRAWN = ("--gin.Graformer.encoder='none'", "--gin.Graformer.decoder='none'")
_TABLES = "--gin.Model.methods=('tables',)"
SYSTEMS = {
    "graft": ("grafted", ()),
    "drawn": ("grafted", _DRAWN),
    "encoder_decoder": ("encoder_decoder", (_TABLES, "--gin.Model.stage_layers={layers}")),
}
LANGUAGE_MODELS = {"mlm": "masked_lm", "lm": "causal_lm"}


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A corpus and the sizes of its models.

    Attributes:
        size: suffix of the model files.
        layers: encoder and decoder layers of an encoder-decoder as deep as the graft.
        pieces: size of the vocabulary.
        text_steps: updates of a language model.
        steps: updates of a translator.
        limit: sentences scored per direction; 0 is all.
        smaller: bindings for smaller models and batches than in the files.
    """

    size: str
    layers: tuple[int, int]
    pieces: int
    text_steps: int
    steps: int
    limit: int
    smaller: tuple[str, ...] = ()

    @property
    def flags(self) -> list[str]:
        """Flags of every training."""
        return ["--gin.Data.instruction='3'", *(f"--gin.{binding}" for binding in self.smaller)]


CORPORA = {
    "cldr_quickstart": Corpus("tiny", (4, 4), 1500, 2000, 1000, 200),
    "libreoffice_help": Corpus(
        *("tiny", (4, 4), 8000, 4000, 3000, 100),
        (
            "Model.positions=('sinusoidal', 10000.0)",
            "Data.rows=4",
            "Optimizer.learning_rate=3e-3",
            "Decode.beam_size=1",
        ),
    ),
}


def main() -> None:
    """Train and evaluate the runs, and print the table."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--corpus", choices=list(CORPORA), default="cldr_quickstart")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument(
        "--shares", default="1,10,100", help="shares of the pairs in per cent, comma-separated"
    )
    parser.add_argument("--cheap", action="store_true", help="one seed, a fifth of the updates")
    flags = parser.parse_args()
    shares = [int(share) for share in flags.shares.split(",")]
    seeds = [int(seed) for seed in flags.seeds.split(",")][: 1 if flags.cheap else None]
    corpus = CORPORA[flags.corpus]
    if flags.cheap:
        steps = corpus.text_steps // 5, corpus.steps // 5
        corpus = dataclasses.replace(corpus, text_steps=steps[0], steps=steps[1], limit=20)
    work = Work(flags.folder, flags.corpus, corpus)
    for seed in seeds:
        for name in LANGUAGE_MODELS:
            work.language_model(name, seed)
        for share in shares:
            for name in SYSTEMS:
                work.translator(name, share, seed)
    results = {
        f"{name}, {share} %": [
            read_result(work.run(name, share, seed) / "report") for seed in seeds
        ]
        for share in shares
        for name in SYSTEMS
    }
    print(table(results))


@dataclasses.dataclass(frozen=True)
class Work:
    """The runs and caches of the benchmark in a folder; missing ones are written.

    Attributes:
        folder: folder of all runs.
        task: name of the corpus.
        corpus: sizes of its models.
    """

    folder: Path
    task: str
    corpus: Corpus

    def run(self, name: str, share: int, seed: int) -> Path:
        """Return the run directory of a translator."""
        return self.folder / f"{name}_{share}_{seed}"

    def language_model(self, name: str, seed: int) -> Path:
        """Return the run of a language model; train it if it is not finished."""
        run = self.folder / f"{name}_{seed}"
        steps = self.corpus.text_steps
        self._train(run, LANGUAGE_MODELS[name], self.cache(0), seed, [], steps)
        return run

    def translator(self, name: str, share: int, seed: int) -> None:
        """Train a translator on a share of the pairs, and evaluate it."""
        run = self.run(name, share, seed)
        if (run / "report" / "scores.json").is_file():
            return
        model, bindings = SYSTEMS[name]
        flags = [binding.format(layers=self.corpus.layers) for binding in bindings]
        if name == "graft":
            flags += [
                f"--initialize_from={source}={self.folder / f'{source}_{seed}'}"
                for source in LANGUAGE_MODELS
            ]
        self._train(run, model, self.cache(share), seed, flags, self.corpus.steps)
        limit = [f"--limit={self.corpus.limit}"] if self.corpus.limit else []
        report = f"--output={run / 'report'}"
        run_script("evaluate", f"--run={run}", f"--task={self.task}", report, *limit)

    def cache(self, share: int) -> Path:
        """Return the token cache of a share of the pairs; 0 is the monolingual text."""
        size = f"--vocab_size={self.corpus.pieces}"
        folder = self.folder / "vocabulary"
        vocabulary = train_vocabulary(folder, self.task, size, *PUBLISHED_VOCABULARY)
        cache = self.folder / (f"cache_{share}" if share else "cache_text")
        subset = ["--monolingual"] if not share else [f"--share={share / 100}"][: share < 100]
        return make_cache(cache, self.task, vocabulary, *subset)

    def _train(
        self, run: Path, model: str, cache: Path, seed: int, flags: list[str], steps: int
    ) -> None:
        configuration = f"{model}_{self.corpus.size}", self.task
        all_flags = f"--gin.Train.seed={seed}", *self.corpus.flags, *flags
        train(run, configuration, cache, steps, *all_flags)


if __name__ == "__main__":
    run_command(main)
