"""Print log-probabilities of texts or translations as JSON lines, and the perplexity.

A language model scores texts of one language (`--language`), a translation model scores the lines
of `--reference` as translations of the lines of `--input` (`--source`, `--target`).
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from mnmt_jax.commands.common_flags import (
    CommandParser,
    add_gin_flags,
    add_step,
    import_modules,
    parse_command_line,
)
from mnmt_jax.commands.text_files import (
    check_input_file,
    check_output_file,
    format_record,
    open_output,
    read_lines,
)
from mnmt_jax.errors import UserError, pluralize
from mnmt_jax.runtime.first_results import note_first_results

if TYPE_CHECKING:
    from mnmt_jax.decoding.scoring import Score

_OF_PAIRS = ("source", "target", "reference")


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(description=__doc__)
    parser.add_argument(
        "--run", required=True, metavar="RUN", help="run directory of a trained or imported model"
    )
    parser.add_argument(
        "--language", metavar="CODE", help="language of the input, for a language model"
    )
    parser.add_argument("--source", metavar="CODE", help="source language, for a translation model")
    parser.add_argument("--target", metavar="CODE", help="target language, for a translation model")
    parser.add_argument(
        "--reference", metavar="FILE", help="text file with one translation per input line"
    )
    parser.add_argument(
        "--input",
        metavar="FILE",
        help="text file, UTF-8 or UTF-16 with a byte order mark, or gzip of one; default: standard "
        "input",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="JSON lines with line, log_prob (nats, summed over tokens and eos) and tokens; gzip "
        "if it ends in .gz; default: standard output",
    )
    add_step(parser)
    add_gin_flags(parser)
    return parser


def main() -> None:
    """Run the command."""
    flags, gin_files, bindings = parse_command_line(make_parser())
    _check(flags)
    check_input_file(flags.input)
    check_input_file(flags.reference, "--reference")
    if flags.output:
        check_output_file(flags.output, flags.input)
        if flags.reference:
            check_output_file(flags.output, flags.reference, "--reference")
    import_modules(flags.module_import)
    from mnmt_jax.decoding.scoring import perplexity

    scores, name = _scores(flags, gin_files, bindings)
    total = perplexity(scores)
    with open_output(flags.output) as file:
        for number, score in enumerate(scores, start=1):
            record = {"line": number, "log_prob": score.log_prob, "tokens": score.tokens}
            print(format_record(record), file=file)
    tokens = pluralize(sum(score.tokens for score in scores), "token")
    print(f"{name} {total:.4f} ({tokens} of {pluralize(len(scores), 'line')})", file=sys.stderr)


def _check(flags: argparse.Namespace) -> None:
    """Check that the flags belong to one kind of model.

    Raises:
        UserError: if they do not.
    """
    pair_flags = [name for name in _OF_PAIRS if getattr(flags, name) is not None]
    if flags.language is not None and pair_flags:
        raise UserError(
            f"--language needs a language model, --{pair_flags[0]} a translation model; give one "
            "of them"
        )
    if flags.language is None and not pair_flags:
        raise UserError(
            "whose text --input has is missing; name --language for a language model, --source, "
            "--target and --reference for a translator"
        )
    if flags.language is None and len(pair_flags) < len(_OF_PAIRS):
        missing = [f"--{name}" for name in _OF_PAIRS if name not in pair_flags]
        raise UserError(
            f"{', '.join(missing)} missing; a language model needs --language, a translator "
            "--source, --target and --reference"
        )


def _scores(
    flags: argparse.Namespace, gin_files: list[str], bindings: list[str]
) -> tuple[list[Score], str]:
    """Return the score of each line, and the name of their perplexity."""
    code = flags.language or flags.source
    lines = list(read_lines(flags.input, has_on_bad_line=False, language=code))
    if flags.language is not None:
        from mnmt_jax.decoding.language_model import LanguageModel

        model = LanguageModel.load(flags.run, flags.step, gin_files=gin_files, bindings=bindings)
        name = (
            "perplexity"
            if model.inference_model.model.layout.is_autoregressive
            else "pseudo-perplexity"
        )
        with note_first_results() as note:
            note(0)
            return model.score(lines, language=flags.language), name
    from mnmt_jax.decoding.translator import Translator

    references = list(read_lines(flags.reference, has_on_bad_line=False, language=flags.target))
    if len(references) != len(lines):
        raise UserError(
            f"--reference={flags.reference}: has {pluralize(len(references), 'line')}, but the "
            f"input has {len(lines)}; give one translation per line"
        )
    translator = Translator.load(flags.run, flags.step, gin_files=gin_files, bindings=bindings)
    sides = {"source": flags.source, "target": flags.target}
    with note_first_results() as note:
        note(0)
        return translator.log_probs(lines, references, **sides), "perplexity"
