"""Speed, memory and equality of `mnmt prepare` on made noise in 24 languages (docs/scale.md).

Example:
    python benchmarks/preparation.py DIR --pairs 1000000 --processes 1,2,4 [--beam]
"""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mnmt_jax.commands.common_flags import CommandParser, positive_int
from mnmt_jax.runtime.run_command import run_command
from mnmt_jax.vocabulary.languages import MITRE_LANGUAGES, mitre_directions
from mnmt_jax.vocabulary.sentencepiece_options import SentencePieceOptions
from mnmt_jax.vocabulary.sentencepiece_training import train_sentencepiece

# First letter of an alphabet for each language; others are Latin.
_ALPHABETS = {"ru": 0x430, "bg": 0x430, "uk": 0x430, "ja": 0x3042, "zh": 0x4E00, "ko": 0xAC00}
_WORDS, _SENTENCES = 3000, 4000


def main() -> None:
    """Run the benchmark."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--pairs", type=positive_int, default=1_000_000, metavar="N")
    parser.add_argument("--processes", default="1,2", metavar="LIST")
    parser.add_argument("--recipe", default="plain", metavar="NAME|FILE")
    parser.add_argument("--beam", action="store_true", help="Apache Beam too, in one process")
    flags = parser.parse_args()
    text = flags.folder / f"text_{flags.pairs}"
    if not text.is_dir():
        write_noise(text, flags.pairs)
    runs = {count: ["--processes", count] for count in flags.processes.split(",")}
    if flags.beam:
        runs["beam"] = ["--runner", "beam"]
    seconds = {}
    for name, arguments in runs.items():
        output = flags.folder / f"cache_{name}"
        shutil.rmtree(output, ignore_errors=True)
        seconds[name] = run(text, output, flags.recipe, arguments)
        first = next(iter(seconds.values()))
        print(
            f"{name}: {seconds[name]:.1f} s, {flags.pairs / seconds[name]:,.0f} pairs/s, "
            f"{first / seconds[name]:.2f} times the first, largest process "
            f"{resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20:.2f} GiB so far, "
            f"SHA-256 {fingerprint(output)}",
            flush=True,
        )


def run(text: Path, output: Path, recipe: str, arguments: list[str]) -> float:
    """Prepare the text; return the seconds."""
    command = [sys.executable, "-m", "mnmt_jax", "prepare", "--recipe", recipe]
    command += ["--parallel", str(text / "{split}.{pair}.{language}")]
    command += ["--languages", ",".join(MITRE_LANGUAGES), "--on_bad_line", "drop"]
    command += ["--vocabulary", str(text / "vocabulary"), "--output", str(output), *arguments]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ)
    return time.perf_counter() - start


def fingerprint(folder: Path) -> str:
    """Return the start of a hash of all files of a cache but its page."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.stem != "preparation":
            total.update(str(path.relative_to(folder)).encode())
            with open(path, "rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()[:16]


def write_noise(folder: Path, pairs: int) -> None:
    """Write made sentences of 24 languages in the pairs of MITRE, and a vocabulary of them."""
    folder.mkdir(parents=True)
    pools = {code: sentence_pool(code) for code in MITRE_LANGUAGES}
    options = SentencePieceOptions(vocab_size=8000, byte_fallback=False)
    train_sentencepiece(
        {c: p[:400] for c, p in pools.items()}, folder / "vocabulary", options=options
    )
    languages = sorted({tuple(sorted(pair)) for pair in mitre_directions()})
    shares = np.arange(1, len(languages) + 1) ** -0.5  # some pairs are large
    sizes = (pairs * shares / shares.sum()).astype(int)
    for number, (pair, size) in enumerate(zip(languages, sizes.tolist(), strict=True)):
        draw = np.random.default_rng(number)
        paths = [folder / f"train.{'-'.join(pair)}.{code}" for code in pair]
        with (
            open(paths[0], "w", encoding="utf-8") as one,
            open(paths[1], "w", encoding="utf-8") as other,
        ):
            for first, second in noise_pairs(draw, size, *(pools[code] for code in pair)):
                one.write(first + "\n")
                other.write(second + "\n")


def sentence_pool(code: str) -> list[str]:
    """Return made sentences of a language."""
    draw = np.random.default_rng(list(code.encode()))
    start = _ALPHABETS.get(code, 0x61)
    letters = [chr(start + n) for n in range(26)]
    lengths = draw.integers(2, 9, _WORDS)
    words = ["".join(draw.choice(letters, length)) for length in lengths]
    return [" ".join(draw.choice(words, n)) for n in draw.integers(4, 25, _SENTENCES)]


def noise_pairs(
    draw: np.random.Generator, size: int, first: list[str], second: list[str]
) -> Iterator[tuple[str, str]]:
    """Yield pairs; some repeat, are copies, punctuation, or of very different lengths."""
    rows = draw.integers(0, _SENTENCES, (size, 2)).tolist()
    kinds = draw.random(size).tolist()
    numbers = draw.integers(0, 50_000, size).tolist()
    for (one, other), kind, number in zip(rows, kinds, numbers, strict=True):
        source, target = f"{first[one]} {number}", f"{second[other]} {number}"
        if kind < 0.02:
            target = source
        elif kind < 0.04:
            source = "... !!! ---"
        elif kind < 0.06:
            target = target[:4]
        elif kind < 0.2:  # repeats
            source, target = first[number % 50], second[number % 50]
        yield source, target


if __name__ == "__main__":
    run_command(main)
