"""Compare settings of the search on a test set, with confidence intervals.

Example:
    python benchmarks/search_settings.py RUN --source en --target de --input test.en \
        --reference test.de --settings "beam_size=5" --settings "beam_size=32, temperature=1.0"

Prints BLEU, chrF++ and the share of exact matches; the share of lines with an exact match among all
hypotheses, and the mean number of distinct ones; the 95 % interval of the difference in chrF++ from
the first settings (paired bootstrap, 1,000 samples); and CPU seconds of all cores without
compilation.
"""

from __future__ import annotations

import argparse
import ast
import time
from pathlib import Path
from typing import Any

import numpy as np
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import _bootstrap_resample

from mnmt_jax.commands.common_flags import CommandParser, positive_int
from mnmt_jax.decoding.translation import Translation
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.evaluation.sentence_bootstrap import SAMPLES, confidence_interval
from mnmt_jax.pages.markdown_tables import format_difference, markdown_table
from mnmt_jax.runtime.run_command import run_command


def main() -> None:
    """Translate with each setting and print the table."""
    parser = CommandParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", metavar="RUN")
    for name in ("source", "target"):
        parser.add_argument(f"--{name}", required=True, metavar="CODE")
    for name in ("input", "reference"):
        parser.add_argument(f"--{name}", required=True, type=Path, metavar="FILE")
    parser.add_argument("--lines", type=positive_int, default=1000, metavar="N")
    parser.add_argument(
        "--settings", action="append", required=True, metavar="NAME=VALUE,...", help="of Decode"
    )
    flags = parser.parse_args()
    sources, references = (
        path.read_text(encoding="utf-8").splitlines()[: flags.lines]
        for path in (flags.input, flags.reference)
    )
    codes = {"source": flags.source, "target": flags.target}
    rows, baseline = [], None
    for text in flags.settings:
        translations, seconds = _translate(flags.run, sources, codes, text)
        hypotheses = [one.text for one in translations]
        draws = _resampled_chrf(hypotheses, references)
        baseline = draws if baseline is None else baseline
        low, high = confidence_interval(draws - baseline)
        scores = *_scores(hypotheses, references), *_spread(translations, references)
        interval = " to ".join(format_difference(end, 2) for end in (low, high))
        rows.append([text, *scores, interval, f"{seconds:.1f}"])
        print(" | ".join(rows[-1]), flush=True)
    header = ["settings", "BLEU", "chrF++", "exact", "among all", "distinct"]
    header += ["difference in chrF++", "CPU seconds"]
    print(markdown_table(header, rows))


def _translate(
    run: str, sources: list[str], codes: dict[str, str], settings: str
) -> tuple[list[Translation], float]:
    """Return translations and the CPU seconds of a second pass, which compiles nothing."""
    values: dict[str, Any] = codes | parse_settings(settings)
    at_loading = {name: values.pop(name) for name in ("ensemble", "weights") if name in values}
    bindings = [f"Decode.{name}={value!r}" for name, value in at_loading.items()]
    translator = Translator.load(run, bindings=bindings)
    translator.translate(sources, **values)
    start = time.process_time()
    return translator.translate_nbest(sources, **values), time.process_time() - start


def parse_settings(text: str) -> dict[str, Any]:
    """Return the keyword arguments that a text such as `beam_size=5, utility="chrf"` has."""
    call = ast.parse(f"f({text})", mode="eval").body
    assert isinstance(call, ast.Call)
    return {str(item.arg): ast.literal_eval(item.value) for item in call.keywords}


def _scores(hypotheses: list[str], references: list[str]) -> list[str]:
    matches = [one == other for one, other in zip(hypotheses, references, strict=True)]
    scores = [BLEU(), CHRF(word_order=2)]
    corpus = [f"{metric.corpus_score(hypotheses, [references]).score:.1f}" for metric in scores]
    return [*corpus, f"{100 * sum(matches) / len(matches):.1f}"]


def _spread(translations: list[Translation], references: list[str]) -> list[str]:
    texts = [{hypothesis.text for hypothesis in one.hypotheses} for one in translations]
    matches = [reference in group for reference, group in zip(references, texts, strict=True)]
    distinct = sum(map(len, texts)) / len(texts)
    return [f"{100 * sum(matches) / len(matches):.1f}", f"{distinct:.1f}"]


def _resampled_chrf(hypotheses: list[str], references: list[str]) -> np.ndarray:
    """Return chrF++ of resampled test sets, the same lines for all systems."""
    metric = CHRF(word_order=2)
    statistics = metric._extract_corpus_statistics(hypotheses, [references])
    return np.array([one.score for one in _bootstrap_resample(statistics, metric, SAMPLES)[1]])


if __name__ == "__main__":
    run_command(main)
