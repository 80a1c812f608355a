"""Finds the words that files of one's own may have for a split that was not found."""

from __future__ import annotations

import collections
import glob
import re
from collections.abc import Sequence

_LIKELY = {"train": "train", "validation": "val|dev", "test": "test|tst|newstest"}


def likely_word(pattern: str, languages: Sequence[str], split: str) -> str:
    """Returns the word for a split that most files have; empty if no file looks like it.

    Args:
        pattern: path with `{split}`, and perhaps `{language}` and `{pair}`.
        languages: codes that `{language}` stands for.
        split: "train", "validation" or "test".
    """
    path = pattern.partition("#")[0]
    form = glob.escape(path)
    shape = re.escape(path).replace(r"\{split\}", rf"(?P<split>(?:{_LIKELY[split]})[\w-]*)", 1)
    shape = shape.replace(r"\{split\}", "(?P=split)").replace(r"\{pair\}", r"[\w-]+")
    shape = shape.replace(r"\{language\}", f"(?:{'|'.join(map(re.escape, languages))})")
    for field in ("{split}", "{language}", "{pair}"):
        form = form.replace(field, "*")
    files = glob.glob(form) + glob.glob(f"{form}.gz")
    found = (re.fullmatch(shape, file.removesuffix(".gz")) for file in sorted(files))
    words = collections.Counter(match["split"] for match in found if match)
    return words.most_common(1)[0][0] if words else ""
