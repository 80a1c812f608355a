"""Sets of directions on the command line: a list, a mixture's name, or a file."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from mnmt_jax.commands.corpus_flags import parse_directions
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.files.storage_errors import one_line
from mnmt_jax.vocabulary.languages import Direction

if TYPE_CHECKING:
    from mnmt_jax.evaluation.benchmark import Benchmark

FORMS = "a list such as de-fr,fr-de, a mixture's name, or a file with a direction per line"
_COMMENT = "#"


def read_directions(
    flag: str, text: str, languages: Collection[str], also_allowed: str = ""
) -> tuple[Direction, ...]:
    """Return the directions that a flag names, each once.

    Args:
        flag: name of the flag, for errors.
        text: its value: a list such as `de-fr,fr-de`, the name of a mixture, whose training
            directions are meant, or a file with a direction per line, `#` before comments.
        languages: codes that may occur in a list or a file, in any form.
        also_allowed: description of other allowed values, for errors.

    Raises:
        UserError: if an item is not a direction or has another language, or the file has none.
    """
    from mnmt_jax.data.mixtures import MIXTURES

    if text in MIXTURES:
        return MIXTURES[text].directions
    if not Path(text).is_file():
        also_allowed += "; also a mixture's name or a file"
        return parse_directions(text, languages, also_allowed, flag)
    directions: dict[Direction, None] = {}
    for number, line in enumerate(_lines(flag, text), start=1):
        item = line.partition(_COMMENT)[0].strip()
        if item:
            parsed = parse_directions(item, languages, flag=f"{flag}={text}:{number}")
            directions |= dict.fromkeys(parsed)
    if not directions:
        raise UserError(f"{flag}={text}: has no direction; write one per line, such as de-fr")
    return tuple(directions)


def restrict(benchmark: Benchmark, text: str, also_allowed: str = "") -> Benchmark:
    """Return a benchmark restricted to the directions that `--directions` names.

    Args:
        benchmark: benchmark with all directions.
        text: value of the flag, as for `read_directions`.
        also_allowed: description of other allowed values, for errors.

    Raises:
        UserError: if a direction is malformed, or the benchmark does not have it.
    """
    codes = dict.fromkeys(code for direction in benchmark.directions for code in direction)
    directions = read_directions("--directions", text, tuple(codes), also_allowed)
    if missing := [pair for pair in directions if pair not in benchmark.directions]:
        raise UserError(
            f"--directions: task '{benchmark.task}' has no {'-'.join(missing[0])}; it has "
            f"{join_names(list(map('-'.join, benchmark.directions)))}"
        )
    return benchmark.only(directions)


def _lines(flag: str, path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{flag}={path}: cannot be read ({one_line(error)})") from error
