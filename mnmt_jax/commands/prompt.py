"""Write a paper's prompts for the test sentences of a task, for language models.

Prints JSON lines with direction, line, source and prompt. `--output` writes a file per direction
(de-fr.jsonl) instead; with a field `hypothesis` added to each line, its folder is that of
`mnmt evaluate --hypotheses`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnmt_jax.commands.benchmark_corpus import benchmark_corpus
from mnmt_jax.commands.common_flags import (
    CommandParser,
    add_module_import,
    amount,
    import_modules,
)
from mnmt_jax.commands.corpus_flags import add_user_file_flags
from mnmt_jax.commands.direction_flags import FORMS, restrict
from mnmt_jax.commands.text_files import format_record
from mnmt_jax.errors import UserError, join_names, pluralize, say
from mnmt_jax.files.atomic_write import check_writable, write_text
from mnmt_jax.vocabulary.language_codes import Direction
from mnmt_jax.vocabulary.languages import get_language

if TYPE_CHECKING:
    from mnmt_jax.evaluation.benchmark import Benchmark

_PAPER = "registers"
_SOURCE, _TARGET, _INPUT = _PLACEHOLDERS = ("[SRC]", "[TGT]", "[INPUT]")


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--task", required=True, help="corpus or mixture whose test sentences are translated"
    )
    parser.add_argument(
        "--directions", metavar="WHICH", help=f"{FORMS}; default: all directions of the task"
    )
    parser.add_argument(
        "--limit", type=amount, default=0, help="sentences per direction; default: %(default)s, all"
    )
    parser.add_argument(
        "--paper", metavar="PAPER", help=f"paper whose prompt is used; default: {_PAPER}"
    )
    parser.add_argument(
        "--template",
        metavar="TEXT",
        help="prompt to use instead of the paper's; [SRC] and [TGT] are replaced by the English "
        "names of the languages, [INPUT] by the sentence",
    )
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="folder to write to")
    add_user_file_flags(parser)
    add_module_import(parser, "module that registers seqio mixtures")
    return parser


def main() -> None:
    """Run the command."""
    flags = make_parser().parse_args()
    if flags.paper is not None and flags.template is not None:
        raise UserError("--template replaces the prompt of --paper; leave one of them out")
    template = flags.template
    if template is None:
        template = _paper_template(_PAPER if flags.paper is None else flags.paper)
    if _INPUT not in template:
        raise UserError(f"--template: has no {_INPUT}, which stands for the sentence; add it")
    for name in re.findall(r"\[[A-Z]+\]", template):
        if name not in _PLACEHOLDERS:
            replaced = join_names(list(_PLACEHOLDERS))
            say(f"warning: --template: {name} stays as it is; replaced are {replaced}")
    import_modules(flags.module_import)
    from mnmt_jax.evaluation.benchmark import Benchmark

    corpus, languages = benchmark_corpus(flags)
    benchmark = Benchmark(flags.task, corpus, languages=languages, limit=flags.limit)
    if flags.directions is not None:
        benchmark = restrict(benchmark, flags.directions)
    if flags.output:
        _write(flags.output, benchmark, template)
        return
    for direction in benchmark.directions:
        for record in _records(benchmark, direction, template):
            print(format_record({"direction": "-".join(direction), **record}))


def fill_template(template: str, direction: Direction, sentence: str) -> str:
    """Return the prompt for a sentence.

    Args:
        template: text with `[SRC]`, `[TGT]` and `[INPUT]`.
        direction: source and target.
        sentence: the source sentence, which is inserted as it is wherever `[INPUT]` stands.
    """
    source, target = (get_language(code).name for code in direction)
    return sentence.join(template.replace(_SOURCE, source).replace(_TARGET, target).split(_INPUT))


def _paper_template(name: str) -> str:
    """Return the prompt of a paper.

    Raises:
        UserError: if the paper is unknown or has no prompt.
    """
    from mnmt_jax.papers.tables import find_paper, load_papers

    prompts = find_paper(name).prompts
    if not prompts:
        papers = [paper.name for paper in load_papers().values() if paper.prompts]
        raise UserError(
            f"--paper={name}: has no prompt; choose {' or '.join(papers)}, or write one with "
            "--template"
        )
    return next(iter(prompts.values()))


def _records(benchmark: Benchmark, direction: Direction, template: str) -> Iterator[dict[str, Any]]:
    """Yield number, source and prompt of each test sentence of a direction."""
    for number, source in enumerate(benchmark.texts(direction).sources, start=1):
        prompt = fill_template(template, direction, source)
        yield {"line": number, "source": source, "prompt": prompt}


def _write(folder: Path, benchmark: Benchmark, template: str) -> None:
    """Write a file for each direction.

    Raises:
        UserError: if a file exists, which may have hypotheses already.
    """
    check_writable(folder)
    paths = {pair: folder / f"{'-'.join(pair)}.jsonl" for pair in benchmark.directions}
    if existing := [path for path in paths.values() if path.exists()]:
        raise UserError(f"{existing[0]}: already exists; move it, or choose another --output")
    folder.mkdir(parents=True, exist_ok=True)
    for pair, path in paths.items():
        records = _records(benchmark, pair, template)
        write_text(path, "".join(f"{format_record(record)}\n" for record in records))
    say(f"{pluralize(len(paths), 'file')} in {folder}")
