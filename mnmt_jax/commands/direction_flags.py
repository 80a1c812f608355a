"""Sets of directions on the command line: a list, a mixture's name, or a file."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from mnmt_jax.commands.common_flags import split_list
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.files.storage_errors import one_line
from mnmt_jax.vocabulary.language_codes import (
    Direction,
    find_code,
    is_code,
    is_same_language,
    split_direction,
)

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


def to_corpus_codes(
    directions: Iterable[Direction], corpus_codes: Collection[str], languages: Collection[str]
) -> tuple[Direction, ...]:
    """Return directions of a model in the codes of a corpus, each once.

    Args:
        directions: directions that a model was trained on.
        corpus_codes: languages of the corpus.
        languages: languages of the model, in its own codes, e.g. `deu` for the corpus's `de`.

    Returns:
        The directions; a language that the corpus lacks keeps its code, one that the corpus has in
        several varieties stands for all of them.
    """
    varieties: dict[str, list[str]] = {}
    for code in corpus_codes:
        varieties.setdefault(find_code(code, languages) or code, []).append(code)

    def find(code: str) -> list[str]:
        return varieties.get(find_code(code, languages) or code, [code])

    pairs = (pair for source, target in directions for pair in product(find(source), find(target)))
    return tuple(dict.fromkeys(pairs))


def benchmark_codes(benchmark: Benchmark) -> tuple[str, ...]:
    """Return the languages of a benchmark's directions."""
    return tuple(dict.fromkeys(code for pair in benchmark.directions for code in pair))


def restrict(benchmark: Benchmark, text: str, also_allowed: str = "") -> Benchmark:
    """Return a benchmark restricted to the directions that `--directions` names.

    Args:
        benchmark: benchmark with all directions.
        text: value of the flag, as for `read_directions`.
        also_allowed: description of other allowed values, for errors.

    Raises:
        UserError: if a direction is malformed, or the benchmark does not have it.
    """
    directions = read_directions("--directions", text, benchmark_codes(benchmark), also_allowed)
    if missing := [pair for pair in directions if pair not in benchmark.directions]:
        raise UserError(
            f"--directions: task '{benchmark.task}' has no {'-'.join(missing[0])}; it has "
            f"{join_names(list(map('-'.join, benchmark.directions)))}"
        )
    return benchmark.only(directions)


def parse_directions(
    text: str,
    languages: Collection[str],
    also_allowed: str = "",
    flag: str = "--directions",
) -> tuple[Direction, ...]:
    """Parse a list of directions such as `en-de,de-en`.

    Args:
        text: value of the flag.
        languages: codes that may occur in it, in any form.
        also_allowed: description of other allowed values, for the error.
        flag: the flag, or the line of the file that it names, for the error.

    Returns:
        Directions between members of `languages`.

    Raises:
        UserError: if there is no item, or one is not a direction, has another language or is
            ambiguous.
    """
    directions: list[Direction] = []
    for item in _items(text, also_allowed, flag):
        split_pairs = _split_item(item, also_allowed, flag)
        try:
            pairs = _possible_directions(split_pairs, languages)
        except UserError as error:
            raise UserError(f"{flag}: '{item}': {error}") from None
        if len(pairs) > 1:
            raise UserError(
                f"{flag}: '{item}' is ambiguous; write codes with '_', such as "
                f"{' or '.join('-'.join(pair) for pair in pairs)}"
            )
        if not pairs:
            pair = next((pair for pair in split_pairs if all(map(is_code, pair))), split_pairs[0])
            missing = min(code for code in pair if find_code(code, languages) is None)
            raise UserError(
                f"{flag}: '{item}' has '{missing}', which is not among "
                f"{' '.join(languages)}{also_allowed}"
            )
        directions += pairs
    return tuple(dict.fromkeys(directions))


def check_direction_items(text: str, also_allowed: str = "") -> None:
    """Check that a list has the form of directions, for any languages.

    Args:
        text: value of `--directions`.
        also_allowed: description of other allowed values, for the error.

    Raises:
        UserError: if there is no item, or one is not a direction.
    """
    for item in _items(text, also_allowed, "--directions"):
        _split_item(item, also_allowed, "--directions")


def _items(text: str, also_allowed: str, flag: str) -> list[str]:
    """Return the items of a list of directions, at least one."""
    if items := split_list(text):
        return items
    raise UserError(f"{flag}: names no direction; write a list such as de-fr{also_allowed}")


def _possible_directions(
    pairs: Iterable[tuple[str, str]], languages: Collection[str]
) -> list[Direction]:
    """Return the directions that some pairs of codes can denote; exact matches if there are any."""
    exact: dict[Direction, None] = {}
    fallbacks: dict[Direction, None] = {}
    for pair in pairs:
        source, target = (find_code(code, languages) for code in pair)
        if source is None or target is None:
            continue
        fallbacks[source, target] = None
        if all(map(is_same_language, pair, (source, target))):
            exact[source, target] = None
    return list(exact or fallbacks)


def _split_item(item: str, alternatives: str, flag: str) -> list[tuple[str, str]]:
    """Return the pairs that a direction can be split into."""
    if "-" not in item or not all(item.split("-")):
        raise UserError(f"{flag}: '{item}' must be SOURCE-TARGET, e.g. en-de{alternatives}")
    return split_direction(item)


def _lines(flag: str, path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{flag}={path}: cannot be read ({one_line(error)})") from error
