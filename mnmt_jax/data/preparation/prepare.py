"""Preparation of text: clean, filter, deduplicate and encode or write it in passes over chunks.

The result is the same bytes from one process, several, and Apache Beam. The work folder has what is
done; the same call continues after any stop.

OUTPUT.unfinished/plan.json    everything that the result depends on
OUTPUT.unfinished/DIGEST/      finished units (`passes`)

DIGEST is that of the plan, so that no other preparation takes the units of a worker that outlived
its command.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mnmt_jax.data.cache_writer import no_examples_error
from mnmt_jax.data.cldr import SPLITS
from mnmt_jax.data.corpus import Corpus, FileCorpus
from mnmt_jax.data.mixtures import PlannedTask, no_text_error
from mnmt_jax.data.opposite_directions import has_same_sample, has_same_text
from mnmt_jax.data.preparation import passes
from mnmt_jax.data.preparation.chunk_files import read_facts
from mnmt_jax.data.preparation.pair_rules import Score
from mnmt_jax.data.preparation.passes import Group, Job, Output
from mnmt_jax.data.preparation.recipes import Recipe
from mnmt_jax.data.preparation.report import GroupCounts, sum_chunks
from mnmt_jax.data.preparation.runners import Runner, Unit
from mnmt_jax.data.preparation.score_files import ScoreFiles
from mnmt_jax.data.preparation.stages import make_stages
from mnmt_jax.data.preparation.steps import PairBatch, PieceRule
from mnmt_jax.errors import OutageError, UserError, join_names, pluralize
from mnmt_jax.files.atomic_write import lock, new_folder, write_text
from mnmt_jax.files.file_digest import short_digest
from mnmt_jax.files.json_objects import differing_keys
from mnmt_jax.files.work_folder import clear_work_folder, open_work_folder
from mnmt_jax.vocabulary.language_codes import Direction
from mnmt_jax.vocabulary.vocabulary import Vocabulary

CHUNK_PAIRS = 50_000
PARTITION_KEYS = 4_000_000  # at most, on average; each takes 17 bytes
_PLAN = "plan.json"


def prepare(
    corpus: Corpus,
    tasks: Sequence[PlannedTask],
    recipe: Recipe,
    *,
    form: Output,
    output: Path,
    runner: Runner,
    scores: Sequence[ScoreFiles] = (),
    overwrite: bool = False,
    chunk_pairs: int = CHUNK_PAIRS,
    partition_keys: int = PARTITION_KEYS,
    report: Callable[[str], None] = lambda line: None,
    add_files: Callable[[Path, list[GroupCounts]], object] = lambda folder, counts: None,
) -> list[GroupCounts]:
    """Write the pairs that a recipe keeps.

    Args:
        corpus: the text; picklable.
        tasks: the directions and their splits.
        recipe: what is done to training text; of other text, the transforms alone.
        form: a token cache or text files.
        output: folder of the result.
        runner: runs the units of a pass.
        scores: files with scores of the training pairs, for the step `score`.
        overwrite: replace an existing result.
        chunk_pairs: pairs of a chunk of text.
        partition_keys: keys of a partition in a deduplication.
        report: called with a line at the start and the end of each pass.
        add_files: writes further files of the result, such as a report, into its folder.

    Returns:
        What each step dropped.

    Raises:
        UserError: if the text or the recipe is wrong, the output exists, or the work folder is of
            another preparation or in use.
    """
    form.check(output, overwrite)
    _check_languages(tasks, recipe, form.vocabulary)
    _check_scores(corpus, tasks, recipe, scores)
    _check_text(corpus, tasks)
    work = output.with_name(f"{output.name}.unfinished")
    identity = {
        **_identity(corpus, tasks, recipe, scores),
        **form.identity(),
        "sizes": [chunk_pairs, partition_keys],
    }
    units = work.absolute() / short_digest(json.dumps(identity, sort_keys=True))
    job = Job(units, corpus, form, make_stages(recipe.steps), chunk_pairs, tuple(scores))
    with _locked_work(work, identity, overwrite, report, form.flag):
        units.mkdir(exist_ok=True)
        runs = _PassRunner(job, runner, report)
        counts = _run_passes(job, tasks, partition_keys, runs)
        runs.run("write", passes.write_output, form.units(tasks, [c.group for c in counts]))
        with new_folder(output, overwrite=overwrite, flag=form.flag) as partial:
            form.assemble(job, tasks, partial)
            add_files(partial, counts)
        clear_work_folder(work / _PLAN)
    shutil.rmtree(work)
    return counts


def _languages(tasks: Sequence[PlannedTask]) -> list[str]:
    return list(dict.fromkeys(code for task in tasks for code in task.direction))


def _check_languages(tasks: Sequence[PlannedTask], recipe: Recipe, vocabulary: Path | None) -> None:
    """Check that the vocabulary and the recipe have all languages, and that tasks have two.

    Raises:
        UserError: if not.
    """
    if any(source == target for source, target in (task.direction for task in tasks)):
        raise UserError("text of single languages has no pairs to prepare; use 'mnmt cache'")
    if vocabulary is not None:
        encoder = Vocabulary.load(vocabulary)
        for code in _languages(tasks):
            encoder.tag_id(code)
    elif rules := [step.name for step in recipe.steps if isinstance(step, PieceRule)]:
        raise UserError(
            f"recipe '{recipe.name}' has rules on pieces ({join_names(rules)}); add --vocabulary, "
            "or leave them out in a copy of the recipe"
        )
    recipe.check_languages(_languages(tasks))


def _check_scores(
    corpus: Corpus, tasks: Sequence[PlannedTask], recipe: Recipe, scores: Sequence[ScoreFiles]
) -> None:
    """Check that the recipe's scores, and no others, have a file for each trained pair.

    Raises:
        UserError: if not.
    """
    needed = {step.column for step in recipe.steps if isinstance(step, Score)}
    named = [item.name for item in scores]
    if repeated := sorted(name for name in named if named.count(name) > 1):
        raise UserError(f"--scores={repeated[0]}: is named twice; leave one out")
    if missing := sorted(needed.difference(named)):
        name = missing[0]
        raise UserError(f"the recipe needs the score '{name}'; add --scores {name}=PATTERN")
    if unused := sorted(set(named) - needed):
        raise UserError(f"--scores={unused[0]}: no step of the recipe reads it; leave it out")
    if scores and not isinstance(corpus.part("train"), FileCorpus):
        raise UserError(f"--scores: corpus '{corpus.name}' is not in files; leave it out")
    trained = {
        Group.of("train", task.direction).languages for task in tasks if "train" in task.splits
    }
    for item in scores:
        if len(trained) > 1 and "{pair}" not in item.pattern:
            pairs = join_names(["-".join(pair) for pair in sorted(trained)])
            raise UserError(
                f"--scores={item.name}={item.pattern}: is one file for the text of {pairs}; name "
                "one for each, with {pair} in its name"
            )
    _score_paths(tasks, scores)


def _check_text(corpus: Corpus, tasks: Sequence[PlannedTask]) -> None:
    """Check that opposite directions have the same text, as the result has one for both.

    Raises:
        UserError: if two have not.
    """
    planned = {(split, task.direction) for task in tasks for split in task.splits}
    for split, pair in sorted(planned):
        if (split, pair[::-1]) in planned and not has_same_text(corpus, split, pair):
            files = [file for one in (pair, pair[::-1]) for file in corpus.files(split, one)]
            difference, remedy = ("text", "move two of the files away, or prepare")
            if not has_same_sample(corpus, split, pair):
                difference, remedy = ("samples of the text", "prepare")
            raise UserError(
                f"{join_names([*dict.fromkeys(files)])}: {'-'.join(pair)} and "
                f"{'-'.join(pair[::-1])} have different {difference}, but a preparation writes one "
                f"for both; {remedy} one direction (--directions), or use 'mnmt cache'"
            )


def _score_paths(tasks: Sequence[PlannedTask], scores: Sequence[ScoreFiles]) -> set[str]:
    """Return the files with the scores of all training text.

    Raises:
        UserError: if one is missing.
    """
    trained = [task.direction for task in tasks if "train" in task.splits]
    return {str(item.path("train", pair)) for item in scores for pair in trained}


def _identity(
    corpus: Corpus, tasks: Sequence[PlannedTask], recipe: Recipe, scores: Sequence[ScoreFiles]
) -> dict[str, Any]:
    """Return what must be equal to continue: the recipe, tasks, files and their reading."""
    paths = {
        path
        for task in tasks
        for split in task.splits
        for path in corpus.files(split, task.direction)
    }
    paths |= _score_paths(tasks, scores)
    files = {path: [Path(path).stat().st_size, Path(path).stat().st_mtime_ns] for path in paths}
    return {
        **_settings(corpus, tasks),
        "scores": [[item.name, item.pattern] for item in scores],
        "recipe": [f"{step!r}" for step in recipe.steps],
        "dependencies": recipe.dependencies(_languages(tasks)),
        "corpus": corpus.name,
        "tasks": [[task.name, *task.direction, *task.splits] for task in tasks],
        "files": {path: files[path] for path in sorted(files)},
    }


def _settings(corpus: Corpus, tasks: Sequence[PlannedTask]) -> dict[str, dict[str, Any]]:
    """Return the settings of the corpora that the tasks are read from, by setting and split."""
    settings: dict[str, dict[str, Any]] = {}
    for split in SPLITS:
        if any(split in task.splits for task in tasks):
            for name, value in corpus.part(split).settings().items():
                settings.setdefault(name, {})[split] = value
    return settings


@contextlib.contextmanager
def _locked_work(
    work: Path,
    identity: Mapping[str, Any],
    overwrite: bool,
    report: Callable[[str], None],
    flag: str,
) -> Iterator[None]:
    """Create or continue the work folder, in one process at a time.

    Raises:
        UserError: if it is of another preparation and `overwrite` is not set, another process
            works in it, or it is not a work folder.
    """
    with open_work_folder(work, flag) as file:
        if not lock(file):
            raise UserError(f"{work}: another process prepares this text; wait for its end")
        plan = work / _PLAN
        has_plan = plan.is_file()
        changes = _changes(read_facts(plan), identity) if has_plan else []
        if changes and not overwrite:
            raise UserError(
                f"{work}: is of another preparation (changed: {join_names(changes)}); remove the "
                f"folder, pass --overwrite, or choose another {flag}"
            )
        if changes or not has_plan:
            clear_work_folder(plan)
        else:
            report(f"continues what is done in {work}")
        write_text(plan, json.dumps(identity, ensure_ascii=False) + "\n")
        try:
            yield
        except OutageError:
            raise
        except UserError as error:
            remedy = f"after changing text or flags, add --overwrite to replace {work}"
            raise UserError(f"{error}; {remedy}") from error
        except KeyboardInterrupt:
            report(f"finished units are kept in {work}: run the same command again to resume")
            raise


def _changes(before: Mapping[str, Any], identity: Mapping[str, Any]) -> list[str]:
    """Return the names of what has changed since a preparation began, and the first file."""
    changes = differing_keys(dict(before), dict(identity))
    if changes != ["files"]:
        return changes
    old, new = before["files"], identity["files"]
    return [path for path in sorted({*old, *new}) if old.get(path) != new.get(path)][:1]


class _PassRunner:
    """Runs passes and reports them."""

    def __init__(self, job: Job, runner: Runner, report: Callable[[str], None]) -> None:
        self._job, self._runner, self._report = job, runner, report

    def run(self, name: str, function: Callable[..., None], units: Sequence[Unit]) -> None:
        """Run the units of a pass."""
        self._report(f"{name}: {pluralize(len(units), 'unit')}")
        start = time.monotonic()
        self._runner(function, self._job, units)
        self._report(f"{name}: done in {time.monotonic() - start:.1f} s")


def _run_passes(
    job: Job, tasks: Sequence[PlannedTask], partition_keys: int, runs: _PassRunner
) -> list[GroupCounts]:
    """Run all passes before the last; return what was dropped of each group, in order."""
    directions = _directions_of(tasks)
    groups = list(directions)
    runs.run("read", passes.write_clean_text, list(directions.items()))
    for group, direction in directions.items():
        if not passes.chunk_sizes(job, group) and group.split == "train":
            raise no_text_error(job.corpus, group.split, direction)
    for task in tasks:
        if not any(passes.chunk_sizes(job, Group.of(s, task.direction)) for s in task.splits):
            raise no_examples_error(task.name)
    for stage in range(len(job.stages)):
        _run_stage(job, groups, stage, partition_keys, runs)
    counts = [sum_chunks(job, group) for group in groups]
    for item in counts:
        _check_kept(item)
    return counts


def _directions_of(tasks: Sequence[PlannedTask]) -> dict[Group, Direction]:
    """Return the groups of the tasks, training text first, with a direction of a task to read.

    Of two directions it is the one of the sorted codes.
    """
    directions: dict[Group, Direction] = {}
    for split in SPLITS:
        for direction in (task.direction for task in tasks if split in task.splits):
            group = Group.of(split, direction)
            directions[group] = min(direction, directions.get(group, direction))
    return directions


def _run_stage(
    job: Job, groups: Sequence[Group], stage: int, partition_keys: int, runs: _PassRunner
) -> None:
    """Filter the chunks of a stage, and find the pairs that its deduplication drops."""
    present = [group for group in groups if stage < len(job.stages_of(group.split))]
    parts = {group: _partitions(job, group, stage, partition_keys) for group in present}
    units: list[Unit] = [
        (group, stage, number, parts[group])
        for group in present
        for number in range(len(passes.chunk_sizes(job, group)))
    ]
    runs.run(f"filter, stage {stage + 1}", passes.filter_chunk, units)
    for group in present:
        passes.remove_input(job, group, stage)
    if job.stages[stage].repeats is not None:
        units = [
            (group, stage, partition)
            for group in present
            if len(job.stages_of(group.split)) > 1
            for partition in range(parts[group])
        ]
        runs.run("find repeats", passes.find_repeats, units)


def _check_kept(counts: GroupCounts) -> None:
    """Check that the recipe keeps training text.

    Raises:
        UserError: if it keeps none of two languages; names the step that dropped most.
    """
    if counts.group.split == "train" and counts.read and not counts.kept:
        label, dropped = max(counts.dropped.items(), key=lambda item: item[1])
        raise UserError(
            f"{'-'.join(counts.group.languages)}: the recipe keeps none of {counts.read:,} pairs; "
            f"step {label} drops {dropped:,}; change it, or leave these languages out"
        )


def _partitions(job: Job, group: Group, stage: int, partition_keys: int) -> int:
    """Return the number of partitions of a group's keys, by the number of pairs that were read."""
    rule = job.stages_of(group.split)[stage].repeats
    if rule is None:
        return 1
    columns = rule.keys(PairBatch([], [], group.languages)).shape[1]
    return max(1, math.ceil(sum(passes.chunk_sizes(job, group)) * columns / partition_keys))
