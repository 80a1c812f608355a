"""Steps of a workflow, and the resources of each kind of step."""

from __future__ import annotations

import dataclasses
import difflib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

# Kind of step -> what it needs from a cluster; on one machine nothing limits it.
RESOURCES: Mapping[str, Mapping[str, int]] = {
    "vocabulary": {"mem_mb": 32_000, "runtime": 24 * 60},
    "cache": {"mem_mb": 32_000, "runtime": 24 * 60},
    "distill": {"mem_mb": 32_000, "runtime": 24 * 60, "gpu": 1},
    "train": {"mem_mb": 64_000, "runtime": 3 * 24 * 60, "gpu": 1},
    "average": {"mem_mb": 64_000, "runtime": 60},
    "benchmark": {"mem_mb": 32_000, "runtime": 4 * 60, "gpu": 1},
    "evaluate": {"mem_mb": 32_000, "runtime": 12 * 60, "gpu": 1},
    "count": {"mem_mb": 8_000, "runtime": 12 * 60},
    "analyse": {"mem_mb": 32_000, "runtime": 12 * 60, "gpu": 1},
    "metrics": {"mem_mb": 32_000, "runtime": 12 * 60, "gpu": 1},
}


@dataclasses.dataclass(frozen=True)
class Step:
    """A command of a workflow.

    Attributes:
        name: unique name, `KIND/SUBJECT` or `KIND/SUBJECT/seedN`.
        command: the command line, in words.
        inputs: names of the steps that finish before it starts.
    """

    name: str
    command: tuple[str, ...]
    inputs: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What it does: `vocabulary`, `cache`, `train`, ..."""
        return self.name.partition("/")[0]


def differing_words(one: Sequence[str], other: Sequence[str]) -> tuple[str, str] | None:
    """Return the first words in which two commands differ, quoted; None if they are the same.

    A file that is elsewhere under the same name is no difference.
    """
    if one == other:
        return None
    names, other_names = ([_without_folder(word) for word in command] for command in (one, other))
    for kind, start, end, other_start, other_end in difflib.SequenceMatcher(
        None, names, other_names, autojunk=False
    ).get_opcodes():
        if kind != "equal":
            return _quoted(one[start:end]), _quoted(other[other_start:other_end])
    return None


def _without_folder(word: str) -> str:
    return Path(word).name if Path(word).is_absolute() else word


def _quoted(words: Sequence[str]) -> str:
    return f"`{shlex.join(words)}`" if words else "nothing"
