"""Off-target translations before and after `--retry_off_target`, its scores and its time.

Example:
    python benchmarks/retry_off_target.py RUN --task cldr_quickstart --limit 100
    python benchmarks/retry_off_target.py RUN --task mine --parallel FOLDER --languages en,de,fr

Translates the directions without English. Prints a table with a row per search: BLEU and chrF++
(means of the directions), off-target by nearest rendering, which knows all languages of each
sentence, the share of translations that fail the checks and that were retried, and seconds without
compilation. Then how far the check of the language agrees with nearest rendering.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from mnmt_jax.commands.benchmark_corpus import benchmark_corpus
from mnmt_jax.commands.common_flags import (
    CommandParser,
    add_gin_flags,
    add_step,
    list_of,
    parse_command_line,
    positive_int,
)
from mnmt_jax.commands.corpus_flags import add_user_file_flags
from mnmt_jax.decoding.guards import TranslationChecker, TranslationChecks
from mnmt_jax.decoding.translation import Translation
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.benchmark import Benchmark, Direction
from mnmt_jax.evaluation.metrics import corpus_scores
from mnmt_jax.evaluation.off_target import NearestRendering
from mnmt_jax.runtime.run_command import run_command
from mnmt_jax.vocabulary.language_detectors import make_lid176

SEARCHES: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "contrast 0.1 for all": {"language_contrast": 0.1},
    "contrast 0.4 for all": {"language_contrast": 0.4},
    "pivot for all": {"pivot": "en"},
    "retry": {"retry_off_target": True},
}


@dataclasses.dataclass(frozen=True)
class TestLine:
    """A sentence of a direction.

    Attributes:
        direction: source and target.
        item: index of the sentence in the test set.
        source: its text.
        reference: its translation.
    """

    direction: Direction
    item: int
    source: str
    reference: str


def main() -> None:
    """Translate with each search, and print the tables."""
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--task", required=True, metavar="NAME")
    parser.add_argument(
        "--limit", type=positive_int, default=100, metavar="N", help="per direction"
    )
    parser.add_argument("--searches", default=",".join(SEARCHES), metavar="NAMES")
    add_step(parser)
    add_user_file_flags(parser)
    add_gin_flags(parser)
    flags, gin_files, bindings = parse_command_line(parser)
    names = list_of("--searches", flags.searches)
    if unknown := [name for name in names if name not in SEARCHES]:
        raise UserError(f"--searches: {unknown[0]!r} must be one of {', '.join(SEARCHES)}")
    translator = Translator.load(flags.run, flags.step, gin_files=gin_files, bindings=bindings)
    lines, nearest = _test_lines(flags, translator.languages)
    checker = TranslationChecker(make_lid176(), translator.languages)
    print(f"{len(lines)} sentences")
    print("| search | BLEU | chrF++ | off-target | fail | contrast | pivot | seconds |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    agreement = ""
    for name in names:
        translations, seconds = _translate(translator, lines, SEARCHES[name])
        checks = [_check(checker, *pair) for pair in zip(lines, translations, strict=True)]
        columns = _columns(lines, translations, checks, nearest)
        print(f"| {name} | {' | '.join(columns)} | {seconds:.1f} |", flush=True)
        if name == "plain":
            agreement = _agreement(lines, translations, checks, nearest)
    if agreement:
        print(agreement)


def _test_lines(
    flags: argparse.Namespace, languages: Sequence[str]
) -> tuple[list[TestLine], NearestRendering]:
    """Return the sentences of directions without English, and the detector of their outputs."""
    corpus, _ = benchmark_corpus(flags)
    benchmark = Benchmark(flags.task, corpus, limit=flags.limit, candidates=languages)
    nearest = benchmark.nearest
    if nearest is None:
        nearest = NearestRendering(_renderings(benchmark))
    lines = []
    for direction in benchmark.directions:
        if "en" not in direction:
            pairs = zip(*dataclasses.astuple(benchmark.texts(direction))[:2], strict=True)
            lines += [TestLine(direction, item, *pair) for item, pair in enumerate(pairs)]
    if not lines:
        raise UserError(f"--task={flags.task}: no direction without English; name more languages")
    return lines, nearest


def _renderings(benchmark: Benchmark) -> list[dict[str, str]]:
    """Return each sentence in all languages.

    Raises:
        UserError: if the sentences of the directions are not the same, in the same order.
    """
    texts: dict[str, list[str]] = {}
    for direction in benchmark.directions:
        test_set = benchmark.texts(direction)
        for code, side in zip(direction, (test_set.sources, test_set.references), strict=True):
            if texts.setdefault(code, list(side)) != list(side):
                raise UserError(
                    f"--task={benchmark.task}: {'-'.join(direction)} has other sentences in "
                    f"'{code}' than the directions before; use files that are parallel in all "
                    "languages"
                )
    items = zip(*texts.values(), strict=True)
    return [dict(zip(texts, item, strict=True)) for item in items]


def _translate(
    translator: Translator, lines: Sequence[TestLine], options: Mapping[str, Any]
) -> tuple[list[Translation], float]:
    """Translate twice; return the translations and the seconds of the second time."""
    texts = [line.source for line in lines]
    source, target = map(list, zip(*(line.direction for line in lines), strict=True))
    seconds = 0.0
    for _ in range(2):
        start = time.perf_counter()
        result = translator.translate_nbest(texts, source=source, target=target, **options)
        seconds = time.perf_counter() - start
    return result, seconds


def _check(
    checker: TranslationChecker, line: TestLine, translation: Translation
) -> TranslationChecks:
    source, target = line.direction
    return checker.check(line.source, source, translation, target)


def _columns(
    lines: Sequence[TestLine],
    translations: Sequence[Translation],
    checks: Sequence[TranslationChecks],
    nearest: NearestRendering,
) -> list[str]:
    """Return the columns of a row but the seconds."""
    bleu, chrf = [], []
    for direction in dict.fromkeys(line.direction for line in lines):
        members = [i for i, line in enumerate(lines) if line.direction == direction]
        hypotheses = [translations[i].text for i in members]
        scores = corpus_scores(hypotheses, [lines[i].reference for i in members], direction[1])
        bleu.append(scores.bleu or 0.0)
        chrf.append(scores.chrf)
    wrong = [_is_off_target(*pair, nearest) for pair in zip(lines, translations, strict=True)]
    shares = [wrong, [check.failed for check in checks]]
    shares += [[check.retried == name for check in checks] for name in ("contrast", "pivot")]
    means = [sum(bleu) / len(bleu), sum(chrf) / len(chrf)]
    return [f"{mean:.1f}" for mean in means] + [f"{_percent(share):.1f}" for share in shares]


def _agreement(
    lines: Sequence[TestLine],
    translations: Sequence[Translation],
    checks: Sequence[TranslationChecks],
    nearest: NearestRendering,
) -> str:
    """Return precision and recall of the check of the language against nearest rendering."""
    wrong = [_is_off_target(*pair, nearest) for pair in zip(lines, translations, strict=True)]
    marked = [check.off_target for check in checks]
    both = sum(one and other for one, other in zip(wrong, marked, strict=True))
    return (
        f"check of the language: {sum(marked)} marked, {sum(wrong)} off-target, {both} both; "
        f"{both / max(sum(marked), 1):.2f} of the marked are, {both / max(sum(wrong), 1):.2f} of "
        "those that are are marked"
    )


def _is_off_target(line: TestLine, translation: Translation, nearest: NearestRendering) -> bool:
    candidates = nearest.nearest(line.item, translation.text)
    return bool(candidates) and line.direction[1] not in candidates


def _percent(flags: Sequence[bool]) -> float:
    return 100 * sum(flags) / len(flags)


if __name__ == "__main__":
    run_command(main)
