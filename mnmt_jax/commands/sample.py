"""Sample texts from a language model, with or without prompts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mnmt_jax.commands.common_flags import (
    CommandParser,
    add_gin_flags,
    add_step,
    import_modules,
    parse_command_line,
    positive_int,
    seed_value,
)
from mnmt_jax.commands.text_files import (
    check_input_file,
    check_output_file,
    format_record,
    open_output,
    read_lines,
)
from mnmt_jax.errors import pluralize, warn
from mnmt_jax.runtime.first_results import note_first_results


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(
        description=__doc__,
        epilog="Sampling settings: --gin.Decode.temperature (default: 1), top_k, top_p, max_length "
        "and batch.",
    )
    parser.add_argument(
        "--run", required=True, metavar="RUN", help="run directory of a trained or imported model"
    )
    parser.add_argument("--language", required=True, metavar="CODE", help="language of the texts")
    parser.add_argument(
        "--count",
        type=positive_int,
        default=1,
        metavar="N",
        help="texts per prompt; default: %(default)s",
    )
    parser.add_argument(
        "--input", metavar="FILE", help="text file with one prompt per line; default: no prompt"
    )
    parser.add_argument(
        "--seed", type=seed_value, metavar="N", help="random seed; default: Decode.seed"
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="output file, gzip if it ends in .gz, written when complete; default: standard output",
    )
    parser.add_argument(
        "--format",
        choices=("text", "jsonl"),
        default="text",
        help="output format; jsonl adds the prompt and sample number, log-probability and token "
        "count of the continuation, and a truncation mark; default: %(default)s",
    )
    add_step(parser)
    add_gin_flags(parser)
    return parser


def main() -> None:
    """Run the command."""
    flags, gin_files, bindings = parse_command_line(make_parser())
    check_input_file(flags.input)
    if flags.output:
        check_output_file(flags.output, flags.input)
    import_modules(flags.module_import)
    from mnmt_jax.config.loading import is_bound
    from mnmt_jax.decoding.language_model import LanguageModel

    prompts: Iterable[str] = [""]
    if flags.input:
        prompts = read_lines(flags.input, has_on_bad_line=False, language=flags.language)
    model = LanguageModel.load(flags.run, flags.step, gin_files=gin_files, bindings=bindings)
    settings: dict[str, Any] = {} if flags.seed is None else {"seed": flags.seed}
    if is_bound("Decode", "temperature", gin_files, bindings):
        settings["temperature"] = model.config.decode.temperature  # 0 too, which is rejected
    continuations = model.continuations(
        prompts, language=flags.language, count=flags.count, **settings
    )
    limited = 0
    with open_output(flags.output) as file, note_first_results() as note:
        note(0)
        for continuation in continuations:
            note(1)
            limited += continuation.limited
            record = {
                "line": continuation.prompt + 1,
                "draw": continuation.draw + 1,
                "text": continuation.text,
                "log_prob": continuation.log_prob,
                "tokens": len(continuation.tokens),
                "limited": continuation.limited,
            }
            print(
                format_record(record) if flags.format == "jsonl" else continuation.text, file=file
            )
    if limited:
        warn(
            f"{pluralize(limited, 'text')} at the length limit "
            f"(Decode.max_length={model.config.decode.max_length}), possibly incomplete; raise "
            "--gin.Decode.max_length"
        )
