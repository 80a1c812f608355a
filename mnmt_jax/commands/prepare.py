"""Clean, filter, deduplicate and tokenize text by a recipe into the token cache of a training.

With --text_output, write text files instead, such as for a vocabulary or other programs. With
--evaluation_text, write validation and test text with the recipe's changes and all its lines.

The work is divided into chunks, which several processes of this machine share, or the workers of
Apache Beam; the result is the same. After any stop the same command continues. Arguments after
`--` go to Beam, e.g. `-- --runner=FlinkRunner`.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mnmt_jax.commands.common_flags import positive_int
from mnmt_jax.commands.corpus_flags import add_corpus_flags
from mnmt_jax.commands.pass_through import PassThroughParser, make_beam_runner
from mnmt_jax.data.preparation.recipe_files import recipe_names
from mnmt_jax.errors import UserError, docs_page, pluralize, warn
from mnmt_jax.runtime.processors import count_processors

if TYPE_CHECKING:
    from mnmt_jax.data.preparation.passes import Output
    from mnmt_jax.data.preparation.recipes import Recipe
    from mnmt_jax.data.preparation.runners import Runner


def make_parser() -> PassThroughParser:
    """Make the parser of the command line."""
    parser = PassThroughParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_corpus_flags(parser)
    parser.add_argument(
        "--recipe",
        required=True,
        metavar="NAME|FILE",
        help=f"{', '.join(recipe_names())}, or a TOML file ({docs_page('scale.md')})",
    )
    parser.add_argument(
        "--scores",
        action="append",
        default=[],
        metavar="NAME=PATTERN",
        help="files with a number for each line of training text, for the step 'score' of recipes, "
        "e.g. laser='data/train.{pair}.laser'; repeatable",
    )
    parser.add_argument(
        "--vocabulary",
        metavar="DIR",
        help="vocabulary folder; --output needs it, and --text_output with rules on pieces",
    )
    result = parser.add_mutually_exclusive_group(required=True)
    result.add_argument("--output", type=Path, metavar="CACHE", help="token cache to write")
    result.add_argument(
        "--text_output",
        type=Path,
        metavar="DIR",
        help="write text files SPLIT.FIRST-SECOND.LANGUAGE to this folder instead of a cache",
    )
    result.add_argument(
        "--evaluation_text",
        type=Path,
        metavar="DIR",
        help="write the validation and test text to such files: only the steps that change text, "
        "no pair is dropped",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace an existing result, and what is left of another preparation",
    )
    parser.add_argument(
        "--runner",
        choices=("local", "beam"),
        default="local",
        help="local: processes of this machine; beam: Apache Beam; default: %(default)s",
    )
    parser.add_argument(
        "--processes",
        type=positive_int,
        metavar="N",
        help="processes of this machine; default: one for each processor",
    )
    parser.add_pass_through("beam")
    return parser


def main() -> None:
    """Run the command."""
    flags = make_parser().parse_args()
    from mnmt_jax.commands.cache import warn_without_validation
    from mnmt_jax.commands.corpus_flags import (
        corpus_and_directions,
        validation_hint,
        zero_shot_directions,
    )
    from mnmt_jax.data.cache import TokenCache
    from mnmt_jax.data.mixtures import EVALUATION_SPLITS, plan_evaluation_tasks, plan_tasks
    from mnmt_jax.data.preparation.prepare import prepare
    from mnmt_jax.data.preparation.recipes import read_recipe
    from mnmt_jax.data.preparation.score_files import ScoreFiles
    from mnmt_jax.evaluation.preparation_page import PAGE, steps_table, write_page

    recipe = read_recipe(flags.recipe)
    if flags.evaluation_text:
        recipe = recipe.without_rules()
    form, output = _output(flags, recipe)
    if flags.evaluation_text:
        corpus, directions = corpus_and_directions(flags, EVALUATION_SPLITS)
        tasks = plan_evaluation_tasks(corpus, directions)
    else:
        corpus, directions = corpus_and_directions(flags)
        tasks = plan_tasks(corpus, directions, zero_shot=zero_shot_directions(flags))
        if hint := validation_hint(flags, corpus):
            warn(hint)
    with contextlib.ExitStack() as stack:
        counts = prepare(
            corpus,
            tasks,
            recipe,
            form=form,
            output=output,
            runner=_make_runner(flags, stack),
            scores=[ScoreFiles.parse(text) for text in flags.scores],
            overwrite=flags.overwrite,
            report=lambda line: print(line, file=sys.stderr),
            add_files=lambda folder, counts: write_page(folder, recipe, counts),
        )
    print(steps_table(recipe, counts))
    if not flags.output:
        print(f"Text: {output}, {pluralize(2 * len(counts), 'file')}", file=sys.stderr)
    else:
        print(f"Cache: {output}, {pluralize(len(tasks), 'task')}", file=sys.stderr)
    print(f"Report: {output / PAGE}", file=sys.stderr)
    if flags.output:
        warn_without_validation(TokenCache.open(output))


def _output(flags: argparse.Namespace, recipe: Recipe) -> tuple[Output, Path]:
    """Return what to write, and where.

    Raises:
        UserError: if a cache has no vocabulary, or text has one that no step of the recipe reads.
    """
    from mnmt_jax.data.preparation.outputs import CacheOutput, TextOutput
    from mnmt_jax.data.preparation.steps import PieceRule

    vocabulary = Path(flags.vocabulary) if flags.vocabulary else None
    if folder := flags.text_output or flags.evaluation_text:
        if vocabulary and not any(isinstance(step, PieceRule) for step in recipe.steps):
            raise UserError(
                f"--vocabulary={vocabulary}: text is written, and no step that it takes encodes "
                "it; leave it out"
            )
        return TextOutput(vocabulary), folder
    if vocabulary is None:
        raise UserError("--output needs --vocabulary; 'mnmt vocabulary' makes one")
    return CacheOutput(vocabulary), flags.output


def _make_runner(flags: argparse.Namespace, stack: contextlib.ExitStack) -> Runner:
    """Return the runner of the flags.

    Raises:
        UserError: if a flag is of the other runner, or Beam is not installed.
    """
    from mnmt_jax.data.preparation.runners import LocalRunner

    if runner := make_beam_runner(flags, ("processes",)):
        return runner
    return stack.enter_context(LocalRunner(flags.processes or count_processors()))
