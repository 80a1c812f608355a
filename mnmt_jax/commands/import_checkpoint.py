"""Convert a checkpoint of fairseq, Hugging Face or t5x into a run directory.

Hugging Face: M2M-100, NLLB and MITRE. fairseq: MITRE, PhasedDecoder, AdapNonCenter, Graformer (also
its language models) and the plain transformer. t5x: models trained with this project's layouts. No
code in a file is executed: a pickle that contains anything except weights and plain data is
rejected.
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
        help="fairseq: a .pt file; huggingface: a local directory; t5x: a model directory of "
        "t5x.train, or one of its checkpoint_N; golden: an .npz of the parity tests",
    )
    parser.add_argument(
        "--input",
        required=True,
        metavar="P",
        help="file or directory to read; nothing is downloaded: for a model of the Hugging Face "
        "hub, first 'hf download NAME --local-dir DIR'",
    )
    parser.add_argument("--output", required=True, metavar="RUN", help="run directory to write")
    parser.add_argument(
        "--vocabulary",
        metavar="DIR",
        help="folder with the toolkit's SentencePiece model and lists (fairseq: *dict*.txt, "
        "*languages*.txt), or a folder from 'mnmt vocabulary'; default: the files beside the "
        "weights",
    )
    return parser


def main() -> None:
    """Parse the command line, import, and print the run's directory."""
    flags = make_parser().parse_args()

    from mnmt_jax.interop.importing import import_checkpoint

    import_checkpoint(flags.format, flags.input, flags.output, vocabulary=flags.vocabulary)
    print(flags.output)
