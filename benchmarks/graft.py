"""Trains translators on shares of a corpus's pairs, grafted on two language models and not.

    python benchmarks/graft.py DIR [--corpus cldr_quickstart] [--seeds 1,2,3] [--shares 1,10,100]

The language models see all of the training text, language by language; translators see a share of
the pairs, with equal updates: `graft`, the same model initialized at random (`drawn`), and an
encoder-decoder of as many layers. Runs lie in DIR/NAME_SEED; what is there is not done again.
Prints Markdown: means over seeds and their range.
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
    """A corpus, and how large models of it are.

    Attributes:
        size: ends the names of model files.
        layers: of an encoder-decoder as deep as the graft.
        pieces: entries of the vocabulary.
        text_steps: updates of a language model.
        steps: updates of a translator.
        limit: sentences scored per direction; 0 is all.
        smaller: bindings that make models and batches smaller than their files do.
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
        """What every training is told."""
        return ["--gin.Data.instruction='3'", *(f"--gin.{each}" for each in self.smaller)]


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
    """Trains, scores and prints."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--corpus", choices=list(CORPORA), default="cldr_quickstart")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--shares", default="1,10,100", help="of the pairs, in per cent")
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
    found = {
        f"{name}, {share} %": [
            read_result(work.run(name, share, seed) / "report") for seed in seeds
        ]
        for share in shares
        for name in SYSTEMS
    }
    print(table(found))


@dataclasses.dataclass(frozen=True)
class Work:
    """Makes what is lacking in a folder.

    Attributes:
        folder: of all runs.
        task: name of the corpus.
        corpus: sizes.
    """

    folder: Path
    task: str
    corpus: Corpus

    def run(self, name: str, share: int, seed: int) -> Path:
        """Returns the directory of a translator."""
        return self.folder / f"{name}_{share}_{seed}"

    def language_model(self, name: str, seed: int) -> Path:
        """Returns the run of a language model, trained to its end."""
        run = self.folder / f"{name}_{seed}"
        steps = self.corpus.text_steps
        self._train(run, LANGUAGE_MODELS[name], self.cache(0), seed, [], steps)
        return run

    def translator(self, name: str, share: int, seed: int) -> None:
        """Trains and scores a translator on a share of the pairs."""
        run = self.run(name, share, seed)
        if (run / "report" / "scores.json").is_file():
            return
        model, bindings = SYSTEMS[name]
        flags = [each.format(layers=self.corpus.layers) for each in bindings]
        if name == "graft":
            flags += [
                f"--initialize_from={n}={self.folder / f'{n}_{seed}'}" for n in LANGUAGE_MODELS
            ]
        self._train(run, model, self.cache(share), seed, flags, self.corpus.steps)
        limit = [f"--limit={self.corpus.limit}"] if self.corpus.limit else []
        report = f"--output={run / 'report'}"
        run_script("evaluate", f"--run={run}", f"--task={self.task}", report, *limit)

    def cache(self, share: int) -> Path:
        """Returns the cache of a share of the pairs, or with 0 of the text of each language."""
        size = f"--vocab_size={self.corpus.pieces}"
        folder = self.folder / "vocabulary"
        vocabulary = train_vocabulary(folder, self.task, size, *PUBLISHED_VOCABULARY)
        cache = self.folder / (f"cache_{share}" if share else "cache_text")
        kept = ["--monolingual"] if not share else [f"--share={share / 100}"][: share < 100]
        return make_cache(cache, self.task, vocabulary, *kept)

    def _train(
        self, run: Path, model: str, cache: Path, seed: int, flags: list[str], steps: int
    ) -> None:
        configuration = f"{model}_{self.corpus.size}", self.task
        own = f"--gin.Train.seed={seed}", *self.corpus.flags, *flags
        train(run, configuration, cache, steps, *own)


if __name__ == "__main__":
    run_command(main)
