"""Input files for the commands of the documentation: text, corpora, checkpoints, runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import jax
import numpy as np

from mnmt_jax.config.sections import Config, Data, Decode, Mesh, Model, Optimizer, Train
from mnmt_jax.data.parallel_corpora import CldrPhrases
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.methods.language_layers import LanguageLayers
from mnmt_jax.model.network import build_model
from mnmt_jax.runs.new_run import write_run
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.training.train import train
from mnmt_jax.vocabulary.languages import LANGUAGES, MITRE_LANGUAGES
from tests import made_foreign
from tests.made_run import SUPERVISED, make_cache, make_config, one_device
from tests.random_params import random_params
from tests.run_commands import ROOT
from tests.unit import made_text

# The columns of the talks' tables as they come, in their order.
TED_HEADER = (
    "talk_name en es pt-br fr ru he ar ko zh-cn it ja zh-tw nl ro tr de vi pl pt bg el fa sr hu "
    "hr uk cs id th sv sk sq lt da calv my sl mk fr-ca fi hy hi nb ka mn et ku gl mr zh ur eo ms "
    "az ta bn kk be eu bs"
).split()


def talk(**cells):
    """Return one row; languages not given have no sentence."""
    words = {"zh": "zh-cn"}
    given = {words.get(code, code): text for code, text in cells.items()}
    row = [given.get(word, "_ _ NULL _ _") for word in TED_HEADER[1:]]
    return "\t".join(["kelly_mcgonigal_how_to_make_stress_your_friend", *row])


def write_lines(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def own_text(root: Path) -> None:
    """Write user text under the file names of README and docs/data.md."""
    splits = {"train": (1, 60), "validation": (100, 6), "dev": (100, 6), "test": (200, 3)}
    for split, (start, count) in splits.items():
        sides = {code: made_text.sentences(code, count, start) for code in made_text.LANGUAGES}
        for code, lines in sides.items():
            write_lines(root / "data" / f"{split}.{code}", lines)
        table = ["\t".join(row) for row in zip(*sides.values(), strict=True)]
        write_lines(root / "data" / f"{split}.tsv", ["\t".join(sides), *table])
        write_lines(root / "data" / f"{split}.tmx", [tmx(sides)])


def bridge(root: Path) -> None:
    """Write the strategy of docs/data.md, and text of its languages that `own_text` lacks."""
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    strategy = page.partition("```toml\n")[2].partition("```")[0]
    (root / "bridge.toml").write_text(strategy, encoding="utf-8")
    for split, (start, count) in {"train": (1, 60), "validation": (100, 6)}.items():
        for code in ("nl", "sv", "es"):
            write_lines(root / "data" / f"{split}.{code}", made_text.sentences("de", count, start))


def text(root: Path) -> None:
    """Write monolingual text under the file names of docs/graft.md, and lines to translate."""
    for split, (start, count) in {"train": (300, 60), "validation": (400, 6)}.items():
        for code in made_text.LANGUAGES:
            lines = made_text.sentences(code, count, start)
            write_lines(root / "text" / f"{split}.{code}", lines)
    write_lines(root / "text.de", made_text.sentences("de", 3, 200))
    write_lines(root / "prompts.de", [made_text.sentences("de", 1, 200)[0].split()[0]])


def tmx(sides: Mapping[str, Iterable[str]]) -> str:
    """Write a translation memory: line i of each language is a translation of the others."""
    units = []
    for row in zip(*sides.values(), strict=True):
        texts = zip(sides, row, strict=True)
        variants = (f'<tuv xml:lang="{tag}"><seg>{text}</seg></tuv>' for tag, text in texts)
        units.append(f"<tu>{''.join(variants)}</tu>")
    return f'<tmx version="1.4"><body>{"".join(units)}</body></tmx>'


def flores(root: Path, languages: Iterable[str] = MITRE_LANGUAGES) -> None:
    """Write Flores-200 as unpacked, at the path of docs/data.md."""
    for split, first in (("dev", 1), ("devtest", 50)):
        for code in languages:
            name = f"{LANGUAGES[code].flores}.{split}"
            write_lines(root / "data/flores" / split / name, made_text.sentences("en", 6, first))


def ted19(root: Path) -> None:
    """Write the tables of TED-19 with the languages of the generated text."""
    for split in ("train", "dev", "test"):
        sides = [made_text.sentences(code, 6) for code in made_text.LANGUAGES]
        rows = (
            dict(zip(made_text.LANGUAGES, row, strict=True)) for row in zip(*sides, strict=True)
        )
        table = ["\t".join(TED_HEADER), *(talk(**row) for row in rows)]
        write_lines(root / f"data/ted19/all_talks_{split}.tsv", table)


def foreign_checkpoints(root: Path) -> None:
    """Write the checkpoints that docs/checkpoints.md imports."""
    made_foreign.m2m100_directory(root / "m2m100_418M")
    made_foreign.nllb_directory(root / "nllb-200-distilled-600M")
    made_foreign.mitre_directory(root / "mitre_466m")
    made_foreign.fairseq_checkpoint(root / "DICTS", "mitre")
    (root / "DICTS" / "checkpoint.pt").rename(root / "checkpoint.pt")


def iwslt17(root: Path) -> None:
    """Write IWSLT 2017 under the file names of docs/data.md, with parallel phrases."""
    languages = ("en", "it", "ro", "nl")
    corpus = CldrPhrases(languages, sizes={"train": 600, "validation": 8, "test": 3})
    for split, word in (("train", "train"), ("validation", "dev"), ("test", "test")):
        for code in languages[1:]:
            sides = zip(*corpus.pairs(split, ("en", code)), strict=True)
            for name, lines in zip(("en", code), sides, strict=True):
                write_lines(root / f"data/iwslt17/{word}.{name}", lines)


def gin_file(root: Path, name: str, target: str) -> None:
    """Copy a file of gin_configs/ to the placeholder name used in a page."""
    (root / name).symlink_to(root / "gin_configs" / target)


def cache(root: Path, name: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    make_cache(root / name)


def run(root: Path, name: str) -> None:
    """Train the smallest size of a model for one update on English-centric directions."""
    cache(root, "made_cache")
    config = make_config(root / "made_cache", train={"steps": 1, "save_every": 1, "eval_every": 1})
    with one_device():
        assert train(config, root / name) is None


def run_with_branches(root: Path, name: str) -> None:
    """Write a run with random parameters and language layers for English-centric directions."""
    method = LanguageLayers(made_text.LANGUAGES, without=("en",), mlp=12)
    sizes = {"embed": 16, "mlp": 24, "heads": 2, "stage_layers": (1, 1)}
    model = Model(layout="encoder_decoder", methods=(method,), **sizes)
    vocabulary = made_text.vocabulary()
    network = build_model(model, vocabulary.size)
    drawn = jax.tree.map(lambda leaf: LazyArray.of(np.asarray(leaf)), random_params(network))
    whole = Config(Data(instruction="1"), model, Optimizer(), Train(), Decode(), Mesh())
    write_run(root / name, whole, vocabulary, drawn, origin=("nobody", "drawn"))
    tasks = {"_".join(pair): pair for pair in SUPERVISED}
    RunDirectory.open(root / name).write_tasks(tasks)


def spm_model(root: Path) -> None:
    (root / "any.model").write_bytes(made_foreign.spm_model())


def seqio_module(root: Path) -> None:
    """Write a module that registers `wmt19` with local text instead of TFDS."""
    lines = (
        "import seqio",
        "from mnmt_jax.interop.seqio.tasks import add_mixture, add_task",
        "from tests.t5x.made_tasks import VOCABULARY, source",
        "seqio.MixtureRegistry.remove('wmt19')",  # the page's own, in the same process
        "text = source('de', 'en')",
        "add_task('wmt19_made', text, direction=('de', 'en'), vocabulary=VOCABULARY)",
        "add_mixture('wmt19', ['wmt19_made'], temperature=1.0)",
    )
    write_lines(root / "my_tasks.py", lines)
