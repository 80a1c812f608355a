"""Export a run's model for Hugging Face (M2M-100 or MITRE layout), fairseq, t5x or CTranslate2."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from mnmt_jax.commands.common_flags import (
    CommandParser,
    DefaultsHelpFormatter,
    add_method_import,
    add_step,
    import_modules,
)
from mnmt_jax.errors import docs_page, warn


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(description=__doc__, formatter_class=DefaultsHelpFormatter)
    parser.synonyms = {"hf": "huggingface", "transformers": "huggingface", "ct2": "ctranslate2"}
    parser.add_argument("--run", required=True, metavar="RUN", help="run directory")
    parser.add_argument(
        "--format",
        choices=("huggingface", "fairseq", "t5x", "ctranslate2"),
        default="huggingface",
        help="huggingface: config.json, safetensors and tokenizer files; fairseq: a .pt file and "
        "dictionaries; t5x: a model directory; ctranslate2: a folder for its CPU engine (extra "
        "ctranslate2)",
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="folder to write")
    add_step(parser)
    add_method_import(parser)
    return parser


def main() -> None:
    """Export, print the files written, and warn of what `transformers` lacks."""
    flags = make_parser().parse_args()

    import_modules(flags.module_import)
    from mnmt_jax.interop.exporting import export_checkpoint

    files = export_checkpoint(flags.format, flags.run, flags.output, step=flags.step)
    for path in files:
        print(path)
    if flags.format == "huggingface" and (message := _lacking_in_transformers(files)):
        warn(message)


def _lacking_in_transformers(files: Sequence[Path]) -> str:
    """Return what `transformers` lacks to use exported files; empty if nothing."""
    by_name = {path.name: path for path in files}
    if json.loads(by_name["config.json"].read_bytes())["model_type"] == "mitre":
        return (
            "transformers has no class for layout 'register': only MITRE's own modelling code "
            "loads it; for a model that transformers or CTranslate2 loads, train layout "
            "'encoder_decoder' with Data.instruction='5' and Model.positions=('sinusoidal', 10000)"
        )
    if "tokenizer_config.json" in by_name:
        return ""
    return (
        "transformers has no tokenizer for this vocabulary: AutoTokenizer would give wrong ids; "
        f"{docs_page('checkpoints.md')} has code that gives the right ones"
    )
