"""Compile a configuration for TPUs or GPUs that are not attached; print a report as JSON.

The report has memory in bytes per chip, collectives and, for TPUs only, the compiler's estimates of
FLOPs and seconds. If the training step does not fit into memory, it suggests the cheapest change of
settings that makes it fit. Needs the extra tpu or, for GPUs, gpu.
"""

from __future__ import annotations

import json
import os
import sys

from mnmt_jax.commands.common_flags import (
    CommandParser,
    add_gin_flags,
    import_modules,
    list_of,
    parse_command_line,
    positive_int,
)
from mnmt_jax.errors import UserError


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(description=__doc__)
    parser.add_argument(
        "--topology", required=True, metavar="TOPOLOGY", help="e.g. v5e:4x4, v5p:4x4x8, h100:8"
    )
    parser.add_argument(
        "--slices",
        type=positive_int,
        default=1,
        metavar="N",
        help="number of slices; default: %(default)s",
    )
    parser.add_argument(
        "--vocab_size",
        type=positive_int,
        default=0,
        metavar="N",
        help="vocabulary size; default: that of Data.cache, else Model.vocab_size",
    )
    parser.add_argument(
        "--programs",
        default="train_step,prefill,decode_step",
        metavar="LIST",
        help="programs to compile; default: %(default)s",
    )
    add_gin_flags(parser)
    return parser


def main() -> None:
    """Parse the command line and print the description."""
    flags, gin_files, bindings = parse_command_line(make_parser())
    if not gin_files:
        raise UserError("--gin_file is missing; pass one of gin_configs/models and one of runs")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

    from mnmt_jax.commands.vocabulary_size import bind_vocabulary
    from mnmt_jax.config.loading import load_config
    from mnmt_jax.cost.compile_ahead import AheadOfTimeCompilation, memory_remedies
    from mnmt_jax.cost.topologies import topology_devices

    import_modules(flags.module_import)
    config = load_config(gin_files, bindings)
    config, vocab_size, _ = bind_vocabulary(config, flags.vocab_size)
    devices = topology_devices(flags.topology, flags.slices)
    programs = list_of("--programs", flags.programs)
    description = AheadOfTimeCompilation(config, vocab_size, devices).describe(programs)
    step = description["programs"].get("train_step")
    if step and not step["fits"]:
        print("train_step does not fit; searching for settings that do", file=sys.stderr)
        trials = (
            (text, AheadOfTimeCompilation(smaller_config, vocab_size, devices))
            for text, smaller_config in memory_remedies(config)
        )
        step["fits_with"] = next((text for text, ahead in trials if ahead.fits()), None)
    described = {"topology": flags.topology, "slices": flags.slices, **description}
    print(json.dumps(described, indent=2))
