"""Translates lines of text with a trained model: one output line per input line."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from mnmt_jax.cli import CommandParser, import_modules, parse_command_line
from mnmt_jax.decoding.files import check_output_file, format_json, open_output, read_lines
from mnmt_jax.errors import listed, run_command

if TYPE_CHECKING:
    from mnmt_jax.decoding.translate import Translation


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(description=__doc__)
    parser.add_argument("--run", required=True, help="directory of a trained or imported model")
    parser.add_argument("--source", required=True, help="code of the input's language")
    parser.add_argument("--target", required=True, help="code of the language wanted")
    parser.add_argument("--input", help="UTF-8 text or gzip; default: standard input")
    parser.add_argument(
        "--output", help="written when complete, gzip if it ends in .gz; default: standard output"
    )
    parser.add_argument(
        "--beam_size",
        type=int,
        help="hypotheses per line: 1 is greedy, more are a beam; default: the run's search",
    )
    parser.add_argument(
        "--format",
        choices=("text", "jsonl"),
        default="text",
        help="jsonl adds score, n-best list, and marks of input and output that was cut",
    )
    parser.add_argument(
        "--step", help="step of the checkpoint, 'best' or 'average'; default: the newest"
    )
    return parser


def main() -> None:
    """Runs the command."""
    flags, gin_files, bindings = parse_command_line(_parser())
    if flags.output:
        check_output_file(flags.output, flags.input)
    import_modules(flags.module_import)
    from mnmt_jax.translator import Translator

    step = int(flags.step) if (flags.step or "").isdigit() else flags.step
    translator = Translator.load(flags.run, step, gin_files=gin_files, bindings=bindings)
    for_output, for_model = itertools.tee(read_lines(flags.input))
    translations = translator.stream(
        for_model, source=flags.source, target=flags.target, beam_size=flags.beam_size
    )
    cut, limited = [], []
    with open_output(flags.output) as file:
        pairs = zip(_progress(translations), for_output, strict=False)
        for number, (translation, line) in enumerate(pairs, start=1):
            as_json = flags.format == "jsonl"
            print(
                format_json(number, line, translation) if as_json else translation.text, file=file
            )
            if translation.truncated:
                cut.append(number)
            if translation.limited:
                limited.append(number)
    decode = translator.config.decode
    _warn(
        cut,
        f"lines have more than {max(decode.buckets)} tokens with tags and were cut",
        "add a larger bucket to --gin.Decode.buckets or split them",
    )
    _warn(
        limited,
        f"translations reached the length limit (Decode.max_length={decode.max_length}) and may "
        "lack their end",
        "raise --gin.Decode.max_length",
    )


def _progress(translations: Iterable[Translation]) -> Iterator[Translation]:
    """Passes translations on, with a bar if this is a terminal, and says how many there were."""
    from tqdm import tqdm

    count, start = 0, time.monotonic()
    for translation in tqdm(translations, unit=" lines", file=sys.stderr, disable=None):
        count += 1
        yield translation
    seconds = time.monotonic() - start
    rate = count / max(seconds, 1e-9)
    print(
        f"{count} lines in {seconds:.1f} s ({rate:.1f} lines/s with compilation)", file=sys.stderr
    )


def _warn(numbers: list[int], what: str, remedy: str) -> None:
    """Says which lines something happened to, if any."""
    if numbers:
        shown = listed([str(number) for number in numbers])
        print(f"warning: {len(numbers)} {what} (line {shown}); {remedy}", file=sys.stderr)


if __name__ == "__main__":
    run_command(main)
