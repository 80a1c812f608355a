"""Preparation in passes: the same bytes from any number of processes, and what is dropped."""

from __future__ import annotations

import collections
import json
import multiprocessing
import os
import random
import re
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.cache_writer import write_cache
from mnmt_jax.data.corpus import Selection
from mnmt_jax.data.mixtures import cache_task_sources, plan_tasks
from mnmt_jax.data.parallel_corpora import JoinedCorpus, ParallelFiles, PatternFiles, TsvFile
from mnmt_jax.data.preparation import passes
from mnmt_jax.data.preparation.chunk_files import KEY, repeated
from mnmt_jax.data.preparation.outputs import CacheOutput, TextOutput
from mnmt_jax.data.preparation.pair_rules import Score
from mnmt_jax.data.preparation.passes import Group
from mnmt_jax.data.preparation.prepare import prepare
from mnmt_jax.data.preparation.report import GroupCounts, sum_groups
from mnmt_jax.data.preparation.runners import LocalRunner
from mnmt_jax.data.preparation.score_files import ScoreFiles
from mnmt_jax.data.preparation.stages import Counts, make_stages
from mnmt_jax.data.preparation.steps import PairBatch
from mnmt_jax.data.text_reader import Cleaning
from mnmt_jax.data.translation_file_corpus import BitextFiles
from mnmt_jax.errors import UserError
from mnmt_jax.files.atomic_write import lock
from tests.unit import made_text
from tests.unit.made_preparation import (
    DIRECTIONS,
    SHARD_EXAMPLES,
    SIZES,
    STEPS,
    Even,
    Lower,
    Nothing,
    content,
    corpus,
    made_recipe,
    run,
    start_of,
    vocabulary,
)

__all__ = ["corpus", "vocabulary"]  # fixtures


def test_without_steps_it_is_the_cache_of_the_same_text(corpus, vocabulary, tmp_path):
    encoder = made_text.vocabulary()
    write_cache(
        tmp_path / "plain",
        cache_task_sources(corpus, DIRECTIONS, encoder),
        vocabulary=encoder,
        shard_examples=SHARD_EXAMPLES,
    )
    run(corpus, vocabulary, tmp_path / "prepared", ())
    expected = content(tmp_path / "plain")
    assert content(tmp_path / "prepared") == expected and len(expected) > 25
    assert not (tmp_path / "prepared.unfinished").exists()


def test_a_sample_of_one_direction_is_that_of_the_cache(vocabulary, tmp_path):
    """Published samples are of a direction whose codes may not be sorted, as Romanian to Dutch."""
    for code in ("de", "en"):
        text = "\n".join(made_text.sentences(code, 20))
        (tmp_path / f"train.{code}").write_text(text, encoding="utf-8")
    patterns = {"train": (str(tmp_path / "train.{language}"),)}
    selection = Selection(sample_sizes={("en", "de"): 7})
    files = PatternFiles("made", patterns, ("de", "en"), selection=selection)
    encoder, directions = made_text.vocabulary(), (("en", "de"),)
    sources = cache_task_sources(files, directions, encoder)
    cache = write_cache(tmp_path / "plain", sources, vocabulary=encoder)
    assert cache.split("made_en_de", "train").examples == 7
    output = tmp_path / "prepared"
    options = {"form": CacheOutput(vocabulary), "output": output, "runner": LocalRunner(1)}
    both = plan_tasks(files, (*directions, ("de", "en")))
    with pytest.raises(UserError, match="different samples of .*prepare one direction"):
        prepare(files, both, made_recipe(()), **options)
    prepare(files, both[:1], made_recipe(()), **options)
    assert content(output) == content(tmp_path / "plain")


def test_directions_with_different_text_are_not_prepared_together(vocabulary, tmp_path):
    """Each direction alone is that of its own files."""
    for folder, count in (("de-en", 9), ("en-de", 8)):
        (tmp_path / folder).mkdir()
        for code in ("de", "en"):
            text = "\n".join(made_text.sentences(code, count))
            (tmp_path / folder / f"train.{code}").write_text(text, encoding="utf-8")
    files = ParallelFiles("made", str(tmp_path / "{pair}" / "{split}.{language}"), ("de", "en"))
    options = {"form": TextOutput(), "output": tmp_path / "text", "runner": LocalRunner(1)}
    both = plan_tasks(files, (("de", "en"), ("en", "de")))
    with pytest.raises(UserError, match=r"de-en/train.de.* de-en and en-de have different text"):
        prepare(files, both, made_recipe(()), **options)
    prepare(files, both[1:], made_recipe(()), **options)
    assert len((tmp_path / "text" / "train.de-en.de").read_text().splitlines()) == 8


def slowly(corpus, languages) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """Return the kept pairs, and the number that each step drops."""
    encoder = made_text.vocabulary()
    dropped: collections.Counter[str] = collections.Counter()
    sources, starts, kept = set(), (set(), set()), []
    for pair in corpus.pairs("train", languages):
        one, other = (side.lower() for side in pair)
        if one == other:
            dropped["2. differ"] += 1
            continue
        if one in sources:
            dropped["3. sources"] += 1
            continue
        sources.add(one)
        pair_starts = start_of(one), start_of(other)
        repeats = any(start in seen for start, seen in zip(pair_starts, starts, strict=True))
        for start, seen in zip(pair_starts, starts, strict=True):
            seen.add(start)  # a dropped pair counts too
        if repeats:
            dropped["4. starts"] += 1
        elif len(encoder.encode(one)) % 2:
            dropped["6. even"] += 1
        else:
            kept.append((one, other))
    return kept, dropped


@pytest.mark.parametrize("direction", [("en", "de"), ("fr", "en")])
def test_what_is_kept_equals_a_loop_over_all_pairs(corpus, vocabulary, tmp_path, direction):
    counts = run(corpus, vocabulary, tmp_path / "cache")
    cache = TokenCache.open(tmp_path / "cache")
    languages = tuple(sorted(direction))
    kept, dropped = slowly(corpus, languages)
    if direction != languages:
        kept = [pair[::-1] for pair in kept]
    name = f"made_{direction[0]}_{direction[1]}"
    found = [cache.pair(name, "train", i) for i in range(cache.split(name, "train").examples)]
    decode = made_text.vocabulary().decode
    assert [tuple(decode(side.tolist()) for side in pair) for pair in found] == kept and kept
    (group,) = [c for c in counts if c.group.split == "train" and c.group.languages == languages]
    assert {label: count for label, count in group.dropped.items() if count} == dropped
    assert (group.read, group.kept) == (250, len(kept))
    assert min(dropped[label] for label in ("3. sources", "4. starts", "6. even")) > 5, dropped
    assert {label: len(pairs) for label, pairs in group.examples.items()} == {
        label: min(10, count) for label, count in group.dropped.items()
    }


def test_held_out_text_is_changed_and_kept(corpus, vocabulary, tmp_path):
    run(corpus, vocabulary, tmp_path / "cache")
    cache = TokenCache.open(tmp_path / "cache")
    assert cache.split("made_de_fr", "validation").examples == 30  # zero-shot, repeated pairs too
    decode = made_text.vocabulary().decode
    texts = [decode(cache.pair("made_en_de", "validation", i)[0].tolist()) for i in range(30)]
    assert texts == [one.lower() for one, _ in corpus.pairs("validation", ("en", "de"))]


def test_any_number_of_processes_and_any_chunks_make_the_same_bytes(corpus, vocabulary, tmp_path):
    run(corpus, vocabulary, tmp_path / "one")
    run(corpus, vocabulary, tmp_path / "two", processes=2)
    run(corpus, vocabulary, tmp_path / "whole", chunk_pairs=10**6, partition_keys=10**6)
    expected = content(tmp_path / "one")
    assert content(tmp_path / "two") == expected == content(tmp_path / "whole")
    assert TokenCache.open(tmp_path / "two").tasks


def test_killed_at_ten_moments_it_continues(corpus, vocabulary, tmp_path):
    """kill -9 after some files of the work folder; then the bytes are those of one go."""
    run(corpus, vocabulary, tmp_path / "straight")
    processes, draw = multiprocessing.get_context("forkserver"), random.Random(0)
    output, work = tmp_path / "broken", tmp_path / "broken.unfinished"
    files = []
    for _ in range(10):
        process = processes.Process(target=run, args=(corpus, vocabulary, output))
        process.start()
        limit = len(list(work.rglob("*"))) + draw.randrange(1, 25)
        while process.is_alive() and len(list(work.rglob("*"))) < limit:
            time.sleep(0.001)
        process.kill()
        process.join()
        files.append(len(list(work.rglob("*"))))
    assert len(set(files)) > 5 and not output.exists(), files
    run(corpus, vocabulary, output)
    assert content(output) == content(tmp_path / "straight")
    assert not work.exists()


def test_another_preparation_does_not_continue_it(corpus, vocabulary, tmp_path):
    output = tmp_path / "cache"
    with pytest.raises(UserError, match="keeps none of 250 pairs; step 1. nothing drops 250"):
        run(corpus, vocabulary, output, (Nothing(),))
    work = re.escape(f"{output}.unfinished")
    with pytest.raises(
        UserError, match=f"^{work}: is of another preparation .changed: recipe.; rem"
    ):
        run(corpus, vocabulary, output)
    with pytest.raises(UserError, match="changed: recipe, sizes"):
        run(corpus, vocabulary, output, chunk_pairs=41)
    assert not output.exists()
    run(corpus, vocabulary, output, overwrite=True)
    assert output.exists() and not Path(f"{output}.unfinished").exists()


class StoppedError(Exception):
    """A removal that is killed."""


def break_removal_after(monkeypatch, work: Path, count: int) -> None:
    """Make the removal of a work folder stop after some of its entries."""
    entries = iter(range(count))

    def counted(remove):
        def remove_or_stop(path, *args, **options):
            is_entry = path == work or path.parent == work and path.name[0] != "."
            if is_entry and next(entries, None) is None:
                for file in sorted(path.rglob("*.*"))[::2]:  # half of a folder
                    os.remove(file) if file.is_file() else None
                raise StoppedError
            remove(path, *args, **options)

        return remove_or_stop

    for owner, name in ((shutil, "rmtree"), (Path, "unlink")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))


def stop_after_the_filters(function, job, units):
    if function is passes.write_output:
        raise StoppedError
    LocalRunner(1)(function, job, units)


@pytest.mark.parametrize("entries", range(2))
def test_old_units_are_not_used_after_an_interrupted_removal(
    corpus, vocabulary, tmp_path, monkeypatch, entries
):
    run(corpus, vocabulary, tmp_path / "straight")
    output, tasks = tmp_path / "cache", plan_tasks(corpus, DIRECTIONS)
    options = {"form": CacheOutput(vocabulary, SHARD_EXAMPLES), "output": output, **SIZES}
    with pytest.raises(StoppedError):
        prepare(corpus, tasks, made_recipe(()), runner=stop_after_the_filters, **options)
    with monkeypatch.context() as patch, pytest.raises(StoppedError):
        break_removal_after(patch, Path(f"{output}.unfinished"), entries)
        run(corpus, vocabulary, output, overwrite=True)
    assert not output.exists()
    run(corpus, vocabulary, output, overwrite=True)
    assert content(output) == content(tmp_path / "straight")


@pytest.mark.parametrize("entries", [1, 2, 3])  # one at the start
def test_a_result_is_complete_before_its_work_folder_is_removed(
    corpus, vocabulary, tmp_path, monkeypatch, entries
):
    def add_files(folder, counts):
        (folder / "preparation.json").write_text(f"{len(counts)}\n")

    options = {"form": TextOutput(), "add_files": add_files}
    run(corpus, vocabulary, tmp_path / "straight", (), **options)
    with monkeypatch.context() as patch, pytest.raises(StoppedError):
        break_removal_after(patch, tmp_path / "text.unfinished", entries)
        run(corpus, vocabulary, tmp_path / "text", (), **options)
    expected = content(tmp_path / "straight")
    assert content(tmp_path / "text") == expected and "preparation.json" in expected
    run(corpus, vocabulary, tmp_path / "text", (), overwrite=True, **options)
    assert content(tmp_path / "text") == expected
    assert not (tmp_path / "text.unfinished").exists()


def test_a_changed_file_is_named(vocabulary, tmp_path):
    for code in ("de", "en"):
        text = "\n".join(made_text.sentences(code, 20))
        (tmp_path / f"train.{code}").write_text(text, encoding="utf-8")
    files = ParallelFiles("made", str(tmp_path / "{split}.{language}"), ("de", "en"))
    form = CacheOutput(vocabulary)
    options = {"form": form, "output": tmp_path / "cache", "runner": LocalRunner(1)}
    tasks = plan_tasks(files, (("de", "en"),))
    with pytest.raises(UserError, match="keeps none"):
        prepare(files, tasks, made_recipe((Nothing(),)), **options)
    (tmp_path / "train.en").write_text("new\n" * 20, encoding="utf-8")
    with pytest.raises(UserError, match=re.escape(f"(changed: {tmp_path / 'train.en'})")):
        prepare(files, tasks, made_recipe((Nothing(),)), **options)


def read_and_stop(function, job, units):
    if function is not passes.write_clean_text:
        raise StoppedError
    LocalRunner(1)(function, job, units)


def test_text_that_is_read_in_another_way_is_noticed(tmp_path):
    """By other tags, rules for bad lines or columns, or exchanged files or scores."""
    tags = "".join(
        f'<tuv xml:lang="{tag}"><seg>{tag}</seg></tuv>' for tag in ("en-US", "en-GB", "de")
    )
    tmx = f'<tmx version="1.4"><header/><body><tu>{tags}</tu></body></tmx>'
    for name in ("x", "y"):
        (tmp_path / f"{name}.tmx").write_text(tmx, encoding="utf-8")
    (tmp_path / "train.tsv").write_text("de\ten\n", encoding="utf-8")
    row = {"plain": {"de": "eins", "en": "one"}, "other": {"de": "zwei", "en": "two"}}
    (tmp_path / "train.jsonl").write_text(f"{json.dumps(row)}\n", encoding="utf-8")
    for name in ("a", "b"):
        (tmp_path / f"train.de-en.{name}").write_text("1\n", encoding="utf-8")

    def rows(column, on_bad_line="error"):
        pattern = f"{tmp_path}/{{split}}.jsonl#{column}.{{language}}"
        return ParallelFiles("made", pattern, ("de", "en"), cleaning=Cleaning(on_bad_line))

    def memory(names, english="en-US"):
        files = [str(tmp_path / f"{name}.tmx") for name in names]
        return BitextFiles("made", files, (english, "de"), splits={"train": ""})

    def table(*columns):
        return TsvFile("made", f"{tmp_path}/{{split}}.tsv", columns=columns or None)

    def scored(*names):
        files = [str(tmp_path / f"train.{{pair}}.{name}") for name in names]
        return {"scores": [*map(ScoreFiles, ("x", "y"), files)]}

    steps = (Score("x", minimum=0), Score("y", minimum=0))
    for name, changed, first, second in (
        ("tags", "languages", (memory("x"), {}), (memory("x", "en-GB"), {})),
        ("order", "order_of_files", (memory("xy"), {}), (memory("yx"), {})),
        ("table", "columns", (table("de", "en"), {}), (table("en", "de"), {})),
        ("header", "header", (table("de", "en"), {}), (table(), {})),
        ("rule", "on_bad_line", (rows("plain"), {}), (rows("plain", "drop"), {})),
        ("column", "columns", (rows("plain"), {}), (rows("other"), {})),
        ("scores", "scores", (rows("plain"), scored("a", "b")), (rows("plain"), scored("b", "a"))),
    ):
        options = {"form": TextOutput(), "output": tmp_path / name}
        recipe = made_recipe(steps if name == "scores" else ())
        tasks = plan_tasks(first[0], (("de", "en"),))
        for text, more in (first, first):
            with pytest.raises(StoppedError):
                prepare(text, tasks, recipe, runner=read_and_stop, **options, **more)
        text, more = second
        with pytest.raises(UserError, match=rf"another preparation \(changed: {changed}\)"):
            prepare(text, tasks, recipe, runner=read_and_stop, **options, **more)


def test_files_of_a_joined_corpus_are_named_counted_and_scored(vocabulary, tmp_path):
    """Training text of one corpus and validation text of another, as that of NLLB and Flores+."""
    lines = {code: made_text.sentences(code, 20) for code in ("de", "en")}
    parts = {}
    for split in ("train", "validation"):
        folder = tmp_path / split
        folder.mkdir()
        for code, text in lines.items():
            bad = [""] if code == "de" else ["one"]
            (folder / f"{split}.{code}").write_text("\n".join([*bad, *text]), encoding="utf-8")
        parts[split] = ParallelFiles(
            "made",
            str(folder / f"{split}.{{language}}"),
            ("de", "en"),
            splits={split: split},
            cleaning=Cleaning(on_bad_line="drop"),
        )
    scores = tmp_path / "train.de-en.laser"
    scores.write_text("".join(f"{n}\n" for n in range(21)), encoding="utf-8")
    joined = JoinedCorpus("made", ("de", "en"), parts)
    missing = (str(tmp_path / "train" / "train.fr"),)
    assert joined.missing_files("train", ("de", "fr")) == missing
    options = {
        "form": TextOutput(),
        "output": tmp_path / "text",
        "runner": LocalRunner(1),
        "scores": [ScoreFiles("laser", str(tmp_path / "train.{pair}.laser"))],
    }
    tasks = plan_tasks(joined, (("de", "en"),))
    with pytest.raises(UserError, match="keeps none of 20 pairs"):
        prepare(joined, tasks, made_recipe((Score("laser", minimum=50),)), **options)
    (tmp_path / "validation" / "validation.en").write_text("new\n" * 21, encoding="utf-8")
    with pytest.raises(UserError, match=r"\(changed: .*/validation/validation.en\)"):
        prepare(joined, tasks, made_recipe((Score("laser", minimum=50),)), **options)
    counts = prepare(
        joined, tasks, made_recipe((Score("laser", minimum=15),)), overwrite=True, **options
    )
    facts = [(item.unclean, item.read, item.kept) for item in counts]
    assert facts == [({"blank": 1}, 20, 6), ({"blank": 1}, 20, 20)]


def test_changed_files_of_a_recipe_are_noticed(corpus, vocabulary, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="keeps none of 250 pairs; step 1. nothing drops 250"):
        run(corpus, vocabulary, tmp_path / "cache", (Nothing(),))
    monkeypatch.setattr(Nothing, "dependencies", lambda self, languages: {"histogram": "new"})
    with pytest.raises(UserError, match="another preparation .changed: dependencies"):
        run(corpus, vocabulary, tmp_path / "cache", (Nothing(),))


def test_a_folder_has_one_preparation_at_a_time(corpus, vocabulary, tmp_path):
    work = tmp_path / "cache.unfinished"
    work.mkdir()
    with open(work / "lock", "w", encoding="utf-8") as file:
        assert lock(file)
        with pytest.raises(UserError, match="another process prepares this text; wait"):
            run(corpus, vocabulary, tmp_path / "cache")


def test_rules_of_pieces_come_last():
    with pytest.raises(UserError, match="step 2. lower: rules of pieces come last, but 1. even"):
        make_stages((Even(), Lower()))


def test_finished_units_are_not_repeated(corpus, vocabulary, tmp_path):
    work, tasks = tmp_path / "cache.unfinished", plan_tasks(corpus, DIRECTIONS)
    options = {"form": CacheOutput(vocabulary), "output": tmp_path / "cache", **SIZES}

    def times() -> dict[Path, int]:
        files = [*work.rglob("[0-9]*.json"), *work.rglob("*.text"), *work.rglob("chunks.json")]
        return {path: path.stat().st_mtime_ns for path in files}

    def stop_before_writing(function, job, units):
        if function is passes.write_output:
            raise KeyboardInterrupt
        LocalRunner(1)(function, job, units)

    lines = []
    with pytest.raises(KeyboardInterrupt):
        prepare(
            corpus,
            tasks,
            made_recipe(STEPS),
            runner=stop_before_writing,
            report=lines.append,
            **options,
        )
    assert lines[-1] == f"finished units are kept in {work}: run the same command again to resume"
    finished, seen = times(), []
    assert len(finished) > 40

    def look_before_writing(function, job, units):
        if function is passes.write_output:
            seen.append(times())
        LocalRunner(1)(function, job, units)

    prepare(corpus, tasks, made_recipe(STEPS), runner=look_before_writing, **options)
    assert seen == [finished]


def test_at_most_two_passes_have_text_at_a_time(corpus, vocabulary, tmp_path):
    """The rest of the disk is free: only the facts of earlier passes stay."""
    work, tasks, seen = tmp_path / "text.unfinished", plan_tasks(corpus, DIRECTIONS), []

    def look_after(function, job, units):
        LocalRunner(1)(function, job, units)
        files = [*work.glob("*/*/train.*/*.text"), *work.glob("*/*/train.*/*.keys.npy")]
        seen.append(sorted({path.relative_to(work).parts[1] for path in files}))

    options = {"form": TextOutput(vocabulary), "output": tmp_path / "text", **SIZES}
    prepare(corpus, tasks, made_recipe(STEPS), runner=look_after, **options)
    first, second, third, last = "text", "stage_0", "stage_1", "stage_2"
    assert seen[:3] == [[first], [second, first], [second]]  # read, filter, find repeats
    assert seen[3:5] == [[second, third], [third]] and seen[5:] == [[third, last], [last]]


def test_keys_repeat_in_their_column_alone_and_the_first_pair_stays():
    table = np.array([(7, 0, 0), (7, 1, 1), (7, 3, 0), (7, 2, 0), (8, 2, 0), (8, 2, 1)], KEY)
    assert repeated(table).tolist() == [2, 3]
    assert repeated(table[[2, 3, 0, 1]]).tolist() == [2, 3]


def test_a_few_dropped_pairs_are_kept_as_examples():
    counts, texts = Counts(), [str(n) for n in range(30)]
    batch = PairBatch(texts, texts, ("de", "en"))
    for _ in range(2):
        batch = counts.keep("rule", batch, np.arange(len(batch.sources)) >= 6)
    facts = counts.as_facts()
    assert facts["dropped"] == {"rule": 12} and len(batch.sources) == 18
    assert [one for one, _ in facts["examples"]["rule"]] == texts[:10]


def test_examples_are_of_all_languages_in_turn():
    counts = [
        GroupCounts(Group("train", pair), {}, 9, 4, {"rule": 5}, {"rule": [("a", pair[1])] * 5})
        for pair in (("de", "en"), ("en", "fr"), ("en", "it"))
    ]
    (step,) = sum_groups(["rule"], counts)
    assert (step.reached, step.dropped, len(step.examples)) == (27, 15, 10)
    assert [languages for languages, *_ in step.examples[:4]] == [
        "de-en",
        "en-fr",
        "en-it",
        "de-en",
    ]


def test_it_says_that_it_continues(corpus, vocabulary, tmp_path):
    for expected in (False, True):
        lines: list[str] = []
        with pytest.raises(UserError, match="keeps none"):
            run(corpus, vocabulary, tmp_path / "cache", (Nothing(),), report=lines.append)
        assert (f"continues what is done in {tmp_path / 'cache'}.unfinished" in lines) is expected
    assert any(line.startswith("read: done in ") for line in lines)
