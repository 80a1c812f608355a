"""Lower-cased Moses tokenization of parallel text, as Wu et al. (2021) prepare Multi30k.

Example:
    python benchmarks/moses_text.py data/multi30k ANCHOR_TEXT --languages en,de
    ANCHOR_TEXT=ANCHOR_TEXT python benchmarks/claims.py anchor runs/claims
"""

from __future__ import annotations

from pathlib import Path

from mnmt_jax.commands.common_flags import CommandParser
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.moses import Moses
from mnmt_jax.runtime.run_command import run_command

# Output split -> accepted names of the input files.
_SPLITS = {
    "train": ("train",),
    "val": ("val", "validation"),
    "test2016": ("test_2016_flickr", "test2016"),
}


def main() -> None:
    """Tokenize every file of the folder."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="files SPLIT.LANGUAGE")
    parser.add_argument("output", type=Path, metavar="OUT")
    parser.add_argument("--languages", default="en,de", help="comma-separated codes")
    flags = parser.parse_args()
    moses = Moses()
    flags.output.mkdir(parents=True, exist_ok=True)
    for language in flags.languages.split(","):
        for split in _SPLITS:
            lines = find_file(flags.folder, split, language).read_text(encoding="utf-8").split("\n")
            tokens = [moses.tokenize(line.strip().lower(), language) for line in lines[:-1]]
            target = flags.output / f"{split}.{language}"
            target.write_text("\n".join(tokens) + "\n", encoding="utf-8")


def find_file(folder: Path, split: str, language: str) -> Path:
    """Return the file of a split.

    Raises:
        UserError: if there is none.
    """
    files = [folder / f"{name}.{language}" for name in _SPLITS[split]]
    for file in files:
        if file.is_file():
            return file
    raise UserError(f"no file {' or '.join(map(str, files))}")


if __name__ == "__main__":
    run_command(main)
