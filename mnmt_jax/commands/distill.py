"""Distil teachers: replace the targets of training data by translations of their sources."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from mnmt_jax.commands.common_flags import (
    CommandParser,
    add_beam_size,
    add_gin_flags,
    add_step,
    import_modules,
    parse_command_line,
)
from mnmt_jax.commands.direction_flags import parse_directions
from mnmt_jax.distributed.work_shards import add_work_shard_flags, work_shard_of
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.vocabulary.language_codes import Direction

_DIRECTIONS_AND_COLON = re.compile(r"\w+-\w+(,\w+-\w+)*:")


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(
        description=__doc__ + " This is sequence-level knowledge distillation (Kim and Rush 2016), "
        "from one teacher or from several into one student. The output is a token cache to train "
        "the student on. After an interruption, the same command resumes."
    )
    parser.add_argument(
        "--teacher",
        required=True,
        action="append",
        metavar="[DIRECTION=]RUN",
        help="run directory of the teacher of all directions, or of some, e.g. de-en=runs/de_en; "
        "repeatable; monolingual tasks and others without a teacher stay as they are",
    )
    add_step(parser, "; of every teacher")
    parser.add_argument(
        "--cache", required=True, metavar="CACHE", help="token cache of the real pairs"
    )
    parser.add_argument("--output", required=True, metavar="CACHE", help="token cache to write")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep the real pairs and add the distilled ones as tasks named distilled_TASK",
    )
    add_beam_size(parser)
    add_work_shard_flags(parser, "sentences")
    add_gin_flags(parser)
    return parser


def main() -> None:
    """Run the command."""
    flags, gin_files, bindings = parse_command_line(make_parser())
    if any(binding.startswith("Train.") for binding in bindings):
        raise UserError("--gin.Train...: this command does not train; omit the flag")
    work_shard = work_shard_of(flags)
    import_modules(flags.module_import)
    from mnmt_jax.commands.distillation import Teachers
    from mnmt_jax.commands.translated_cache import report_context_tasks
    from mnmt_jax.data.cache import TokenCache
    from mnmt_jax.data.cache_writer import check_cache_directory
    from mnmt_jax.data.distillation import DistilledPairs, assign_teachers

    check_cache_directory(flags.output, overwrite=None)
    cache = TokenCache.open(flags.cache)
    of_sentences = [name for name in cache.tasks_with("train") if not cache.tasks[name].context]
    trained = DistilledPairs(cache, tuple(of_sentences))
    directions = {name: trained.direction(name) for name in trained.names}
    teachers = read_teachers(flags.teacher, directions.values())
    assigned = assign_teachers(directions, teachers)
    if not assigned:
        raise UserError(
            f"--cache={flags.cache}: no training task of sentences has two languages; name a "
            "cache of pairs"
        )
    report_context_tasks(cache, "left as they are")
    runs = {directions[name]: run for name, run in assigned.items()}
    pairs = DistilledPairs(cache, tuple(assigned), flags.keep)
    settings = Teachers(runs, flags.step, flags.beam_size, (gin_files, bindings))
    written = settings.write_cache(pairs, Path(flags.output), work_shard)
    if written is not None:
        names = written.tasks_with("train")
        examples = {name: written.split(name, "train").examples for name in names}
        print(json.dumps({"output": flags.output, "examples": examples}, indent=2))


def read_teachers(
    values: Iterable[str], directions: Iterable[Direction]
) -> Mapping[Direction | None, str]:
    """Return the run of each direction; None is the teacher of all other directions.

    Args:
        values: of `--teacher`.
        directions: directions of the training tasks.

    Raises:
        UserError: if a direction is not trained, or has two teachers.
    """
    known = tuple(dict.fromkeys(directions))
    languages = tuple(dict.fromkeys(code for pair in known for code in pair))
    teachers: dict[Direction | None, str] = {}
    for value in values:
        text, separator, run = value.partition("=")
        if "/" in text or Path(value).exists():  # a path with '='; directions have no '/'
            separator = ""
        flag = f"--teacher={value}"
        if not (run if separator else value).strip():
            raise UserError(f"{flag}: names no run; write --teacher=RUN or --teacher=de-en=RUN")
        if not separator and _DIRECTIONS_AND_COLON.match(value) and not Path(value).exists():
            raise UserError(f"{flag}: no such run; '=' stands between directions and run")
        named = parse_directions(text, languages, flag=flag) if separator else (None,)
        for direction in named:
            if direction is not None and direction not in known:
                raise UserError(
                    f"{flag}: no training task has the direction {'-'.join(direction)}; there are "
                    f"{join_names(list(map('-'.join, known)))}"
                )
            if direction in teachers:
                raise UserError(f"{flag}: the directions have a teacher already; name one for each")
            teachers[direction] = run if separator else value
    return teachers
