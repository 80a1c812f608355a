"""Sizes of a reproduction: the paper's, and one that takes minutes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from mnmt_jax.errors import UserError
from mnmt_jax.files.atomic_write import write_text

_RECORD, _DATA_RECORD = "scale", "data_folder"  # files in an output folder


@dataclasses.dataclass(frozen=True)
class Scale:
    """Size of a reproduction.

    Attributes:
        name: `full` or `tiny`.
        vocabulary: flags of `mnmt vocabulary` that replace the paper's on miniatures.
        new_language: flags of `mnmt add-language` that replace the paper's; empty for those.
        rows: smallest number of rows of a micro-batch; 0 for the paper's.
        bindings: gin bindings that are read last in every training.
        decode: gin bindings that are read last in every evaluation.
        evaluate: further flags of `mnmt evaluate`.
        benchmark: further flags of `mnmt benchmark`.
        analyse: further flags of `mnmt analyse`, by kind.
        miniature: whether the corpora are made miniatures.
        notice: text for the top of every page.
    """

    name: str
    vocabulary: tuple[str, ...] = ()
    new_language: tuple[str, ...] = ()
    rows: int = 0
    bindings: tuple[str, ...] = ()
    decode: tuple[str, ...] = ()
    evaluate: tuple[str, ...] = ()
    benchmark: tuple[str, ...] = ()
    analyse: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    miniature: bool = False
    notice: str = ""

    def check_folder(self, output: Path, data: Path) -> None:
        """Check that an output folder is not of another scale or other text.

        Their steps have the same names, so that they would count as done.

        Args:
            output: the folder; may not exist yet.
            data: folder of the corpora. A miniature has its own below `output`.

        Raises:
            UserError: if the folder has results of another scale or data folder.
        """
        if (other := _recorded(output / _RECORD)) not in ("", self.name):
            raise UserError(
                f"--output={output}: has results of --scale={other}; choose another folder for "
                f"--scale={self.name}"
            )
        if self.miniature:
            return
        if (other := _recorded(output / _DATA_RECORD)) not in ("", str(data.resolve())):
            raise UserError(
                f"--output={output}: has results of --data={other}; choose another folder for "
                f"--data={data}, or remove {output / _DATA_RECORD} if the files are the same"
            )

    def record(self, output: Path, data: Path) -> None:
        """Record in an output folder that its steps are of this scale, and of the data folder."""
        output.mkdir(parents=True, exist_ok=True)
        write_text(output / _RECORD, f"{self.name}\n")
        if not self.miniature:
            write_text(output / _DATA_RECORD, f"{data.resolve()}\n")


def _recorded(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""


TINY_SIZES = {"embed": 16, "heads": 2, "mlp": 32}
FULL = Scale("full")
TINY = Scale(
    "tiny",
    vocabulary=("--text_normalization", "none"),
    new_language=("--language", "de", "--vocab_size", "150"),
    rows=8,
    bindings=(
        *(f"Model.{name}={value}" for name, value in TINY_SIZES.items()),
        "Model.stage_mlp=()",
        "Model.vocab_size=0",
        "Data.source_length=64",
        "Data.target_length=64",
        "Data.max_segments=2",
        "Data.validation_examples=4",
        "Optimizer.accumulate=1",
        "Optimizer.warmup_steps=1",
        "Train.steps=4",
        "Train.log_every=1",
        "Train.eval_every=2",
        "Train.save_every=2",
    ),
    decode=("Decode.beam_size=2", "Decode.max_length=8", "Decode.buckets=(64,)", "Decode.batch=8"),
    evaluate=("--limit", "2"),
    benchmark=("--sentences", "3", "--repeats", "2"),
    analyse={
        "attention": ("--limit", "1"),
        "alignment": ("--limit", "2"),
        "attribution": ("--limit", "1", "--nodes", "2"),
        "probe": ("--limit", "2", "--updates", "5", "--min_count", "1"),
        "similarity": ("--limit", "2"),
        "states": ("--limit", "2"),
        "svcca": ("--limit", "2"),
    },
    miniature=True,
    notice="Made with --scale tiny, by tiny models on made text: our numbers mean nothing. They "
    "show that every step runs.",
)
SCALES: Mapping[str, Scale] = {scale.name: scale for scale in (TINY, FULL)}
