"""Lines of unusual Unicode text, and the expected results by independent code.

`python -m tests.unicode_lines --run RUN --source CODE --target CODE --lines 100000` sends them
through `mnmt translate` and compares every record.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from mnmt_jax.vocabulary.vocabulary import Vocabulary

# First and last code point of blocks of 30 scripts.
SCRIPTS = (
    "0041-007a 00c0-017f 0370-03ff 0400-04ff 0530-058f 0590-05ff 0600-06ff 0700-074f 0780-07bf "
    "0900-097f 0980-09ff 0a00-0a7f 0a80-0aff 0b00-0b7f 0b80-0bff 0c00-0c7f 0c80-0cff 0d00-0d7f "
    "0d80-0dff 0e00-0e7f 0e80-0eff 0f00-0fff 1000-109f 10a0-10ff 1100-11ff 1200-137f 13a0-13ff "
    "1780-17ff 1800-18af 3040-30ff 4e00-4fff ac00-adff 1f600-1f64f 10330-1034f"
)
MARKS = "0300-036f 1ab0-1ac0 20d0-20f0 fe00-fe0f"
CONTROLS = (
    "0001-0009 000b-000c 000e-001f 007f-00a0 00ad-00ad 200b-200f 2028-202f 2060-2064 feff-feff"
)
SPACES = "0020-0020 3000-3000 2000-200a 205f-205f 1680-1680 2581-2581"
_REMOVED = "\u200b\u2060\ufeff"
_MARK = "\u2581"


def _characters(ranges: str) -> list[str]:
    spans = (map(lambda end: int(end, 16), item.split("-")) for item in ranges.split())
    return [chr(point) for first, last in spans for point in range(first, last + 1)]


def odd_lines(count: int, words: list[str], seed: int = 0) -> Iterator[str]:
    """Yield lines of known words, odd characters, marks, controls and spaces, some blank.

    Args:
        count: of lines.
        words: that a vocabulary knows.
        seed: of the draw.
    """
    rng = random.Random(seed)
    scripts = [_characters(block) for block in SCRIPTS.split()]
    marks, controls, spaces = _characters(MARKS), _characters(CONTROLS), _characters(SPACES)
    for _ in range(count):
        script = rng.choice(scripts)
        parts = []
        for _ in range(rng.randrange(7)):
            kind = rng.randrange(8)
            if kind < 4:
                parts.append(rng.choice(words))
            elif kind < 6:
                parts.append("".join(rng.choices(script, k=rng.randint(1, 4))))
            elif kind == 6:
                parts.append(rng.choice(words) + "".join(rng.choices(marks, k=rng.randint(1, 3))))
            else:
                parts.append(rng.choice(controls))
            parts.append(rng.choice(spaces) if rng.randrange(4) == 0 else " ")
        yield "".join(parts)


def seen(text: str) -> str:
    """Return a line as a reader sees it: one kind of space, no invisible ones, composed."""
    text = "".join(c for c in text if c not in _REMOVED)
    text = "".join(" " if c.isspace() or c == _MARK else c for c in text)
    return unicodedata.normalize("NFC", text)


def kept(text: str) -> str:
    """Return what decoding gives back: runs of spaces are one, none at the ends."""
    return " ".join(part for part in seen(text).split(" ") if part)


def unknown(text: str, known: set[str]) -> Counter[str]:
    """Count the characters of a line that are not among the known ones."""
    counts = Counter(c for c in seen(text) if c != " " and c not in known)
    return counts + Counter({_MARK: text.count(_MARK)})


def known_characters(vocabulary: Vocabulary) -> set[str]:
    """Return the characters that have a piece of their own."""
    return {piece for piece in vocabulary.named_pieces if len(piece) == 1}


def main() -> None:
    """Translate odd lines and compare each record with its line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--lines", type=int, default=100_000)
    flags, others = parser.parse_known_args()
    vocabulary = Vocabulary.load(Path(flags.run) / "vocabulary")
    known = known_characters(vocabulary)
    words = [p.strip(_MARK) for p in vocabulary.named_pieces if p.startswith(_MARK) and p != _MARK]
    lines = list(odd_lines(flags.lines, words))
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder) / "in.txt", Path(folder) / "out.jsonl"
        source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
        command = [sys.executable, "-m", "mnmt_jax", "translate", f"--run={flags.run}"]
        command += [f"--source={flags.source}", f"--target={flags.target}", f"--input={source}"]
        subprocess.run([*command, f"--output={output}", "--format=jsonl", *others], check=True)
        records = [json.loads(row) for row in output.read_text(encoding="utf-8").split("\n")[:-1]]
    wrong = [
        r["line"] for r, line in zip(records, lines, strict=True) if not _right(r, line, known)
    ]
    total = sum((unknown(line, known) for line in lines), Counter()).total()
    print(
        f"{len(records)} records of {len(lines)} lines, {total} unknown characters, wrong: {wrong}"
    )
    sys.exit(bool(wrong))


def _right(record: dict, line: str, known: set[str]) -> bool:
    """Return whether a record is of its line and counts its unknown characters."""
    counts = Counter(record.get("unknown_characters", ""))
    blank = not kept(line)
    return (
        record["source"] == line
        and counts == unknown(line, known)
        and (not record["nbest"]) == blank
        and "\n" not in record["translation"]
    )


if __name__ == "__main__":
    main()
