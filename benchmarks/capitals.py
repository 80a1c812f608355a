"""Translation of sentences in capitals: as they are, and by `Translator.translate_text`.

Example:
    python benchmarks/capitals.py RUN --source en --target de --input test.en --reference test.de

Prints chrF++ against the references in capitals.
"""

from __future__ import annotations

from pathlib import Path

import sacrebleu

from mnmt_jax.commands.common_flags import CommandParser, positive_int
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.runtime.run_command import run_command


def main() -> None:
    """Translate and score."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("run", metavar="RUN")
    for name in ("source", "target"):
        parser.add_argument(f"--{name}", required=True, metavar="CODE")
    for name in ("input", "reference"):
        parser.add_argument(f"--{name}", required=True, type=Path, metavar="FILE")
    parser.add_argument("--lines", type=positive_int, default=100, metavar="N")
    flags = parser.parse_args()
    sources, references = (
        path.read_text(encoding="utf-8").splitlines()[: flags.lines]
        for path in (flags.input, flags.reference)
    )
    translator = Translator.load(flags.run)
    codes = {"source": flags.source, "target": flags.target}
    capitals = [line.upper() for line in sources]
    expected = [line.upper() for line in references]
    plain = translator.translate(capitals, **codes)
    texts = [translator.translate_text(line, **codes).text for line in capitals]
    for name, hypotheses in (
        ("as they are", plain),
        ("as they are, output in capitals", [line.upper() for line in plain]),
        ("by translate_text", texts),
    ):
        score = sacrebleu.corpus_chrf(hypotheses, [expected], word_order=2).score
        print(f"{name}: chrF++ {score:.1f}")


if __name__ == "__main__":
    run_command(main)
