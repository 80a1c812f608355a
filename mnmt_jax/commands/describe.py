"""Print parameters, FLOPs per token, memory and updates of a configuration as JSON."""

from __future__ import annotations

from typing import Any

from mnmt_jax.commands.common_flags import (
    CommandParser,
    add_gin_flags,
    import_modules,
    parse_command_line,
    positive_int,
)
from mnmt_jax.errors import UserError


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(description=__doc__)
    parser.add_argument(
        "--source_length",
        type=positive_int,
        default=32,
        metavar="N",
        help="source tokens; default: %(default)s",
    )
    parser.add_argument(
        "--target_length",
        type=positive_int,
        default=32,
        metavar="N",
        help="target tokens; default: %(default)s",
    )
    parser.add_argument(
        "--vocab_size",
        type=positive_int,
        default=0,
        metavar="N",
        help="vocabulary size; default: that of Data.cache, else Model.vocab_size",
    )
    add_gin_flags(parser)
    return parser


def main() -> None:
    """Parse the command line and print the description."""
    arguments, gin_files, bindings = parse_command_line(make_parser())
    if not gin_files:
        raise UserError("--gin_file is missing; pass one of gin_configs/models or gin_configs/runs")

    import json

    from mnmt_jax.commands.vocabulary_size import bind_vocabulary
    from mnmt_jax.config.loading import load_config
    from mnmt_jax.cost.describe import describe
    from mnmt_jax.cost.state_memory import count_state_bytes
    from mnmt_jax.training.epochs import convert_epochs

    import_modules(arguments.module_import)
    config = load_config(gin_files, bindings)
    config, vocab_size, cache = bind_vocabulary(config, arguments.vocab_size)
    training: dict[str, Any] = {"updates": config.train.steps}
    if config.train.epochs:
        steps = convert_epochs(config, cache).train.steps if cache else None
        training = {"epochs": config.train.epochs, "updates": steps}
    description = describe(
        config.model,
        vocab_size,
        source_length=arguments.source_length,
        target_length=arguments.target_length,
        beam=config.decode.beam_size,
        optimizer=config.optimizer,
    )
    training["state_bytes"] = count_state_bytes(config, vocab_size)
    print(json.dumps({**description, "training": training}, indent=2))
