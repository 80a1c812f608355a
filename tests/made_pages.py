"""Makes the files that the pages' commands expect of a reader: text, corpora, checkpoints, runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mnmt_jax.languages import LANGUAGES, MITRE_LANGUAGES
from mnmt_jax.training.train import train
from tests import made_foreign
from tests.made_run import make_cache, make_config, one_device
from tests.unit import made_text

# The columns of the talks' tables as they come, in their order.
TED_HEADER = (
    "talk_name en es pt-br fr ru he ar ko zh-cn it ja zh-tw nl ro tr de vi pl pt bg el fa sr hu "
    "hr uk cs id th sv sk sq lt da calv my sl mk fr-ca fi hy hi nb ka mn et ku gl mr zh ur eo ms "
    "az ta bn kk be eu bs"
).split()


def talk(**cells):
    """One row: languages not given have no sentence."""
    words = {"zh": "zh-cn"}
    given = {words.get(code, code): text for code, text in cells.items()}
    row = [given.get(word, "_ _ NULL _ _") for word in TED_HEADER[1:]]
    return "\t".join(["kelly_mcgonigal_how_to_make_stress_your_friend", *row])


def write_lines(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def own_text(root: Path) -> None:
    """Text of one's own, as README and docs/data.md name its files."""
    splits = {"train": (1, 60), "validation": (100, 6), "dev": (100, 6), "test": (200, 3)}
    for split, (start, count) in splits.items():
        sides = {code: made_text.sentences(code, count, start) for code in made_text.LANGUAGES}
        for code, lines in sides.items():
            write_lines(root / "data" / f"{split}.{code}", lines)
        table = ["\t".join(row) for row in zip(*sides.values(), strict=True)]
        write_lines(root / "data" / f"{split}.tsv", ["\t".join(sides), *table])
        write_lines(root / "data" / f"{split}.tmx", [tmx(sides)])


def tmx(sides: Mapping[str, Iterable[str]]) -> str:
    """A translation memory: line i of one language is the translation of line i of another."""
    units = []
    for row in zip(*sides.values(), strict=True):
        texts = zip(sides, row, strict=True)
        variants = (f'<tuv xml:lang="{tag}"><seg>{text}</seg></tuv>' for tag, text in texts)
        units.append(f"<tu>{''.join(variants)}</tu>")
    return f'<tmx version="1.4"><body>{"".join(units)}</body></tmx>'


def flores(root: Path, languages: Iterable[str] = MITRE_LANGUAGES) -> None:
    """Flores-200 as it is unpacked, where docs/data.md says."""
    for split, first in (("dev", 1), ("devtest", 50)):
        for code in languages:
            name = f"{LANGUAGES[code].flores}.{split}"
            write_lines(root / "data/flores" / split / name, made_text.sentences("en", 6, first))


def ted19(root: Path) -> None:
    """The tables of TED-19 with the languages of made text."""
    for split in ("train", "dev", "test"):
        sides = [made_text.sentences(code, 6) for code in made_text.LANGUAGES]
        rows = (
            dict(zip(made_text.LANGUAGES, row, strict=True)) for row in zip(*sides, strict=True)
        )
        table = ["\t".join(TED_HEADER), *(talk(**row) for row in rows)]
        write_lines(root / f"data/ted19/all_talks_{split}.tsv", table)


def foreign_checkpoints(root: Path) -> None:
    """What docs/checkpoints.md imports."""
    made_foreign.m2m100_directory(root / "m2m100_418M")
    made_foreign.nllb_directory(root / "nllb-200-distilled-600M")
    made_foreign.mitre_directory(root / "mitre_466m")
    made_foreign.fairseq_checkpoint(root / "DICTS", "mitre")
    (root / "DICTS" / "checkpoint.pt").rename(root / "checkpoint.pt")


def gin_file(root: Path, name: str, target: str) -> None:
    """Gives a file of gin_configs/ the name that stands for any in a page."""
    (root / name).symlink_to(root / "gin_configs" / target)


def cache(root: Path, name: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    make_cache(root / name)


def run(root: Path, name: str, **model: Any) -> None:
    """A run in a model's smallest size, trained for an update on English-centric directions."""
    cache(root, "made_cache")
    updates = {"steps": 1, "save_every": 1, "eval_every": 1}
    config = make_config(root / "made_cache", train=updates, model=model)
    with one_device():
        assert train(config, root / name) is None


def spm_model(root: Path) -> None:
    (root / "any.model").write_bytes(made_foreign.spm_model())


def seqio_module(root: Path) -> None:
    """A module that registers `wmt14` with text at hand, as the page's own does with TFDS."""
    lines = (
        "import seqio",
        "from mnmt_jax.seqio.tasks import add_mixture, add_task",
        "from tests.t5x.made_tasks import VOCABULARY, source",
        "seqio.MixtureRegistry.remove('wmt14')",  # the page's own, in the same process
        "text = source('de', 'en')",
        "add_task('wmt14_made', text, direction=('de', 'en'), vocabulary=VOCABULARY)",
        "add_mixture('wmt14', ['wmt14_made'], temperature=1.0)",
    )
    write_lines(root / "my_tasks.py", lines)
