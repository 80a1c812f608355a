"""Convert a checkpoint of fairseq, Hugging Face or t5x into a run directory.

MITRE, M2M-100, NLLB and PhasedDecoder models are supported. No code in a file is executed: pickles
may contain weights and plain data only, and are rejected otherwise.
"""

import argparse

from mnmt_jax.commands.common_flags import CommandParser


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.synonyms = {"hf": "huggingface", "transformers": "huggingface"}
    parser.add_argument(
        "--format",
        required=True,
        choices=("fairseq", "huggingface", "t5x", "golden"),
        help="fairseq: a .pt file; huggingface: a directory; t5x: what t5x.train wrote, or one "
        "checkpoint_N of it; golden: an .npz of the parity tests",
    )
    parser.add_argument("--input", required=True, metavar="P", help="file or directory to read")
    parser.add_argument("--output", required=True, metavar="RUN", help="run directory to make")
    parser.add_argument(
        "--vocabulary",
        metavar="DIR",
        help="SentencePiece model with the toolkit's lists (fairseq: *dict*.txt, *languages*.txt), "
        "or what 'mnmt vocabulary' wrote; default: what lies beside the weights",
    )
    return parser


def main() -> None:
    """Parse the command line, import, and print the run's directory."""
    flags = make_parser().parse_args()

    from mnmt_jax.interop.importing import import_checkpoint

    import_checkpoint(flags.format, flags.input, flags.output, vocabulary=flags.vocabulary)
    print(flags.output)
