"""Rates of the checks of translations on parallel text: false alarms and recall.

Example:
    python benchmarks/check_rates.py "FOLDER/{}.txt" --languages en,de,fr,cs

Reads line-parallel files, one for each language. A reference should fail no check; a sentence in a
third language should be off-target, and the source itself should be off-target or a copy. Prints
percentages, also for sentences that are cut after some words (twice as many characters in
languages without spaces).
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Mapping, Sequence

from mnmt_jax.commands.common_flags import CommandParser, list_of, positive_int
from mnmt_jax.commands.text_files import read_lines
from mnmt_jax.decoding.guards import TranslationChecker
from mnmt_jax.decoding.translation import Hypothesis, Translation
from mnmt_jax.errors import UserError, pluralize
from mnmt_jax.runtime.run_command import run_command
from mnmt_jax.vocabulary.language_codes import is_spaceless
from mnmt_jax.vocabulary.language_detectors import make_lid176

_COLUMNS = ("off_target", "copied", "repeated", "empty")


def main() -> None:
    """Print a row for each length."""
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", metavar="PATTERN", help="path with {} for the language")
    parser.add_argument("--languages", required=True, metavar="CODES")
    parser.add_argument("--lines", type=positive_int, default=400, metavar="N")
    parser.add_argument("--words", default="3,6,12,0", help="lengths; 0 is whole sentences")
    flags = parser.parse_args()
    texts = _parallel_lines(flags.files, flags.languages)
    count, lengths = len(next(iter(texts.values()))), list_of("--words", flags.words)
    if flags.lines > count:
        raise UserError(f"--lines={flags.lines}: the files have {count}; choose {count} at most")
    if not all(map(str.isdecimal, lengths)):
        raise UserError(f"--words={flags.words}: needs whole numbers, e.g. 3,6,0")
    drawn = random.Random(0).sample(range(count), flags.lines)
    print(f"| words | {' | '.join(_COLUMNS)} | third language | source |")
    for words in map(int, lengths):
        cut = {
            code: [_cut(lines[line], words, code) for line in drawn]
            for code, lines in texts.items()
        }
        rates = _rates(cut, TranslationChecker(make_lid176(), [*texts]))
        print(f"| {words or 'all'} | {' | '.join(f'{rate:.2f}' for rate in rates)} |")


def _parallel_lines(pattern: str, codes: str) -> dict[str, list[str]]:
    """Return the lines of each language.

    Raises:
        UserError: if there are fewer than three languages, or the files are not line-parallel.
    """
    languages = list(dict.fromkeys(list_of("--languages", codes)))
    if len(languages) < 3:
        raise UserError(f"--languages={codes}: needs three languages or more, e.g. en,de,fr")
    if "{}" not in pattern:
        raise UserError(f"{pattern}: needs {{}} for the language, e.g. FOLDER/{{}}.txt")
    paths = {code: pattern.replace("{}", code) for code in languages}
    texts = {code: [*read_lines(path, has_on_bad_line=False)] for code, path in paths.items()}
    count = len(texts[languages[0]])
    for code, lines in texts.items():
        if len(lines) != count or not count:
            raise UserError(
                f"{paths[code]}: has {pluralize(len(lines), 'line')}, {paths[languages[0]]} "
                f"{count}; the files need the same sentences, one a line"
            )
    return texts


def _cut(text: str, words: int, language: str) -> str:
    if not words:
        return text
    return text[: 2 * words] if is_spaceless(language) else " ".join(text.split()[:words])


def _rates(texts: Mapping[str, Sequence[str]], checker: TranslationChecker) -> list[float]:
    """Return percentages: false alarms by check, and the two kinds of recall."""
    generator, counts, total = random.Random(1), Counter[str](), 0
    for line in range(len(next(iter(texts.values())))):
        for target in texts:
            source, third = generator.sample([code for code in texts if code != target], 2)
            reference, wrong, untranslated = (
                checker.check(
                    texts[source][line],
                    source,
                    Translation((Hypothesis(texts[language][line], 0.0, ()),)),
                    target,
                )
                for language in (target, third, source)
            )
            total += 1
            counts.update(name for name in _COLUMNS if getattr(reference, name))
            counts["third"] += wrong.off_target
            counts["source"] += untranslated.off_target or untranslated.copied
    return [100 * counts[name] / total for name in (*_COLUMNS, "third", "source")]


if __name__ == "__main__":
    run_command(main)
