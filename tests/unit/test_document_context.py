"""Document context in training: chunks, document ids, tasks of a cache, records of a run."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from mnmt_jax.config.sections import Config, Data, Decode, Mesh, Model, Optimizer, Train
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.document_context import SEPARATOR, Context, even_sizes
from mnmt_jax.data.document_corpus import ChunkCounts, ContextCorpus, check_separator, documents
from mnmt_jax.data.document_ids import DocumentIds
from mnmt_jax.data.input_pipeline import Pipeline
from mnmt_jax.data.parallel_corpora import ParallelFiles
from mnmt_jax.data.text_reader import Cleaning
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.errors import UserError
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.training import open_run
from mnmt_jax.vocabulary.sentencepiece_options import SentencePieceOptions
from mnmt_jax.vocabulary.sentencepiece_training import train_sentencepiece
from mnmt_jax.vocabulary.vocabulary import Vocabulary
from tests.run_commands import command
from tests.unit import made_text

IDS = ["a", "a", "a", "a", "b", "c", "c", "a", "a", "a"]
CODES = ("en", "de")


@pytest.fixture
def folder(tmp_path):
    for code in CODES:
        text = made_text.sentences(code, len(IDS))
        (tmp_path / f"train.{code}").write_text("\n".join(text) + "\n", encoding="utf-8")
    write_ids(tmp_path, [f"{name}\tparagraph {n}" for n, name in enumerate(IDS)])
    return tmp_path


def write_ids(folder, ids: Sequence[str]) -> None:
    (folder / "train.ids").write_text("\n".join(ids) + "\n", encoding="utf-8")


def corpus_of(folder, on_bad_line: str = "error") -> ParallelFiles:
    cleaning = Cleaning(on_bad_line=on_bad_line)
    corpus = ParallelFiles("mine", f"{folder}/{{split}}.{{language}}", CODES, cleaning=cleaning)
    corpus.document_ids = DocumentIds.of_splits(f"{folder}/{{split}}.ids", {"train": "train"})
    return corpus


def divisions(lengths: Sequence[int]) -> list[list[list[int]]]:
    """Return all divisions of a sequence, one for each set of cuts."""
    result = []
    for cuts in itertools.product((False, True), repeat=len(lengths) - 1):
        parts = [[lengths[0]]]
        for is_cut, length in zip(cuts, lengths[1:], strict=True):
            if is_cut:
                parts.append([])
            parts[-1].append(length)
        result.append(parts)
    return result


def cost(parts: Sequence[Sequence[int]], limit: int, between: int) -> tuple[int, int] | None:
    """Return parts and squares of a division; None if a part of several items is too long."""
    totals = [sum(part) + between * (len(part) - 1) for part in parts]
    if any(len(part) > 1 and total > limit for part, total in zip(parts, totals, strict=True)):
        return None
    return len(parts), sum(total**2 for total in totals)


def test_divisions_are_the_best_of_all():
    draw = random.Random(1)
    for _ in range(500):
        lengths = [draw.randrange(12) for _ in range(draw.randrange(1, 9))]
        limit, between = draw.randrange(1, 30), draw.randrange(3)
        items = iter(lengths)
        parts = [
            list(itertools.islice(items, size)) for size in even_sizes(lengths, limit, between)
        ]
        assert list(itertools.chain(*parts)) == lengths
        best = min(
            filter(None, (cost(division, limit, between) for division in divisions(lengths)))
        )
        assert cost(parts, limit, between) == best
    assert even_sizes([], 10, 1) == []
    assert even_sizes([3, 3, 3, 3], 11, 1) == [2, 2]  # a greedy division would be 3 and 1


def test_chunks_fit_as_they_are_encoded():
    vocabulary, context = made_text.vocabulary(), Context(25, "green")
    sentences = made_text.sentences("en", 60)
    sizes = context.chunk_sizes(sentences, vocabulary, "en")
    assert sum(sizes) == 60 and max(sizes) > 1
    remaining = iter(sentences)
    for size in sizes:
        chunk = list(itertools.islice(remaining, size))
        if size > 1:
            assert len(vocabulary.encode(context.join(chunk), "en")) <= context.pieces
            assert context.split(context.join(chunk)) == chunk
    assert context.chunk_sizes(["one", "green two", "three"], vocabulary, "en") == [1, 1, 1]
    assert context.chunk_sizes(["one", "two", "three"], vocabulary, "en") == [3]
    assert context.chunk_sizes(["one", "two", "\u200b", "three"], vocabulary, "en") == [2, 1, 1]


@pytest.mark.parametrize(
    "values", [{"pieces": 0}, {"pieces": 9, "separator": "a b"}, {"pieces": 9, "separator": ""}]
)
def test_invalid_contexts_are_refused(values):
    with pytest.raises(UserError, match=r"must be"):
        Context(**values)


def test_a_vocabulary_has_a_piece_for_the_separator():
    text = {code: made_text.sentences(code, 300) for code in CODES}
    options = SentencePieceOptions(vocab_size=45, byte_fallback=False, symbols=(SEPARATOR,))
    vocabulary = train_sentencepiece(text, None, options=options)
    check_separator(Context(9), vocabulary)
    pieces = vocabulary.encode_as_pieces(f"one{SEPARATOR} two", "en")
    assert [text for _, text in pieces].count(SEPARATOR) == 1
    with pytest.raises(UserError, match="--separator=.*no piece"):
        check_separator(Context(9), made_text.vocabulary())
    with_bytes = dataclasses.replace(options, vocab_size=300, byte_fallback=True, symbols=())
    with pytest.raises(UserError, match="--separator=.*no piece"):
        check_separator(Context(9), train_sentencepiece(text, None, options=with_bytes))


def test_a_vocabulary_command_makes_a_separator(folder, tmp_path):
    flags = f"--parallel={folder}", "--languages=en,de", "--vocab_size=45", "--no-byte_fallback"
    command("train_vocabulary", *flags, "--separator=|", "--output", tmp_path / "made")
    check_separator(Context(9, "|"), Vocabulary.load(tmp_path / "made"))


def test_documents_are_consecutive_lines_with_one_id(folder):
    actual = list(documents(corpus_of(folder), "train", ("en", "de")))
    assert [len(document) for document in actual] == [4, 1, 2, 3]
    sides = [list(side) for side in zip(*itertools.chain(*actual), strict=True)]
    assert sides == [made_text.sentences(code, len(IDS)) for code in CODES]


def test_dropped_lines_keep_the_others_in_their_documents(folder):
    text = made_text.sentences("en", len(IDS))
    text[3] = text[4] = text[9] = ""
    (folder / "train.en").write_text("\n".join(text) + "\n", encoding="utf-8")
    corpus = corpus_of(folder, "drop")
    actual = [[source for source, _ in one] for one in documents(corpus, "train", ("en", "de"))]
    assert actual == [text[:3], text[5:7], text[7:9]]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (IDS[:-1], "train.ids: has 9 lines, but the text has at least 10;"),
        ([*IDS, "d"], "train.ids: has 11 lines, but the text has 10;"),
        (["a", "", *IDS[2:]], "train.ids:2: no document id; .* blank and bad ones included"),
    ],
)
def test_wrong_ids_are_refused(folder, ids, message):
    write_ids(folder, ids)
    with pytest.raises(UserError, match=message):
        list(documents(corpus_of(folder), "train", ("en", "de")))


def test_a_corpus_without_ids_is_refused(folder):
    corpus = corpus_of(folder)
    corpus.document_ids = DocumentIds({"train": [f"{folder}/none.{{pair}}"]})
    with pytest.raises(UserError, match="none.en-de, .*none.de-en: no such file"):
        list(documents(corpus, "train", ("en", "de")))
    assert ContextCorpus(corpus, Context(9), made_text.vocabulary()).splits() == ()
    corpus.document_ids = None
    with pytest.raises(UserError, match="--document_ids"):
        list(documents(corpus, "train", ("en", "de")))


def test_ids_of_a_pair_are_those_of_its_opposite(folder):
    (folder / "train.ids").rename(folder / "train.de-en.ids")
    ids = DocumentIds({"train": [f"{folder}/train.{{pair}}.ids"]})
    assert list(ids.read("train", ("en", "de"))) == list(ids.read("train", ("de", "en"))) == IDS


def _cache(folder, *flags: str) -> TokenCache:
    command(
        "cache_tasks",
        f"--parallel={folder}/{{split}}.{{language}}",
        "--languages=en,de",
        "--name=mine",
        *flags,
        "--output",
        folder / "cache",
    )
    return TokenCache.open(folder / "cache")


def test_a_cache_has_tasks_of_sentences_and_of_chunks(folder, capsys):
    flags = "--vocab_size=45", "--no-byte_fallback", f"--document_ids={folder}/{{split}}.ids"
    cache = _cache(folder, *flags, "--context=30,60")
    names = ["mine", "mine_context30", "mine_context60"]
    tasks = [f"{name}_{pair}" for name in names for pair in ("en_de", "de_en")]
    assert list(cache.tasks) == tasks
    contexts = [task.context for task in cache.tasks.values()]
    assert contexts == [None, None, Context(30), Context(30), Context(60), Context(60)]
    for name, task in cache.tasks.items():
        pair = task.source_lang, task.target_lang
        corpus = corpus_of(folder)
        if task.context:
            corpus = ContextCorpus(corpus, task.context, cache.vocabulary)
        texts = [
            tuple(map(cache.vocabulary.decode, pieces)) for pieces in cache.pairs(name, "train")
        ]
        assert texts == list(corpus.pairs("train", pair))
        for source, target in texts:
            assert source.count(SEPARATOR) == target.count(SEPARATOR)
    whole = [source.split(f"{SEPARATOR} ") for source, _ in texts]
    assert [len(document) for document in whole] != [1] * len(IDS)
    again = json.loads((folder / "cache" / "cache.json").read_text())["tasks"][-1]
    assert again["context"] == {"pieces": 60, "separator": SEPARATOR}
    log = capsys.readouterr().err
    assert f"mine_context60_de_en train: 4 documents of 10 sentences, {len(texts)} chunks of" in log
    assert f"{10 / len(texts):.1f} sentences on average" in log and "warning: --context" not in log


def test_chunks_with_the_separator_in_a_target_are_left_out(folder, capsys):
    """The division depends on sources alone, so a single sentence keeps it."""
    path, context, reports = folder / "train.de", Context(60, "␤"), []
    lines = path.read_text(encoding="utf-8").splitlines()
    corpus = ContextCorpus(corpus_of(folder), context, made_text.vocabulary(), reports.append)
    expected = list(corpus.pairs("train", CODES))
    lines[1], lines[4] = f"{lines[1]} ␤ eins", f"␤ {lines[4]}"  # in a chunk of several, and alone
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    chunks = list(corpus.pairs("train", CODES))
    single = tuple(made_text.sentence(5, code) for code in CODES)
    expected[expected.index(single)] = single[0], f"␤ {single[1]}"
    assert chunks == expected[1:]
    assert reports[1].endswith(", 1 chunk left out (a target has the separator)")
    path.write_text("␤\n" * len(lines), encoding="utf-8")
    with pytest.raises(UserError, match="are single sentences, . chunks left out .* --separator=␤"):
        list(corpus.pairs("train", CODES))


def test_separators_of_the_rule_of_a_vocabulary_are_seen(folder):
    """The rule nmt_nfkc makes the separator of U+FF5C."""
    text = {code: made_text.sentences(code, 300) for code in CODES}
    options = SentencePieceOptions(
        vocab_size=45, byte_fallback=False, normalization="nmt_nfkc", symbols=("|",)
    )
    vocabulary, reports = train_sentencepiece(text, None, options=options), []
    lines = made_text.sentences("en", len(IDS))
    lines[1] += " ｜"
    (folder / "train.en").write_text("\n".join(lines) + "\n", encoding="utf-8")
    corpus = ContextCorpus(corpus_of(folder), Context(90, "|"), vocabulary, reports.append)
    pairs, opposite = list(corpus.pairs("train", CODES)), list(corpus.pairs("train", CODES[::-1]))
    alone = lines[1], made_text.sentence(2, "de")
    assert [pair for pair in pairs if "｜" in pair[0]] == [alone] and len(pairs) < len(lines)
    assert not any("｜" in target for _, target in opposite)
    assert ["1 chunk left out" in report for report in reports] == [False, True]


SEPARATE = [f"{n}" for n in range(len(IDS))]


@pytest.mark.parametrize(
    ("ids", "separator", "message"),
    [
        (SEPARATE, SEPARATOR, "all 10 chunks are single sentences; check that --document_ids"),
        (IDS, "e", "all 10 chunks are single sentences; .* do not contain --separator=e"),
    ],
)
def test_chunks_of_single_sentences_are_refused(folder, ids, separator, message):
    write_ids(folder, ids)
    corpus = corpus_of(folder)
    context = Context(60, separator)
    with pytest.raises(UserError, match=message):
        list(ContextCorpus(corpus, context, made_text.vocabulary()).pairs("train", ("en", "de")))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([[1]] * 17 + [[2]], ""),
        ([[1]] * 19 + [[1, 1]], "all 21 chunks are single sentences"),
        ([[1]] * 28 + [[2]], "only 2 of 30 sentences are in chunks of several"),
        ([[2, 3]], "all 5 sentences have the same document id"),
        ([[5]], ""),
    ],
)
def test_suspicious_chunks_are_reported(sizes, message, capsys):
    counts = ChunkCounts()
    for document in sizes:
        counts.add(document)
    try:
        counts.check(Context(9))
    except UserError as error:
        assert message and message in str(error)
        return
    output = capsys.readouterr().err
    assert message in output if message else output == ""


def test_a_context_whose_chunks_are_all_too_long_is_refused(folder):
    write_ids(folder, ["a"] * 5 + ["b"] * 5)
    flags = "--vocab_size=45", "--no-byte_fallback", f"--document_ids={folder}/{{split}}.ids"
    cache = _cache(folder, *flags, "--context=90")
    name = "mine_context90_en_de"
    shortest = int(cache.lengths(name, "train")[:, 0].min())
    data = Data(source_length=shortest + 1, target_length=1000, temperature=1.0)
    sentences = dataclasses.replace(data, tasks=("mine_en_de", "mine_de_en"))
    Pipeline(cache, LAYOUTS["prefix"], sentences).check_fits()
    with pytest.raises(UserError, match=f"{name}: all . training pairs .* out of Data.tasks"):
        Pipeline(
            cache, LAYOUTS["prefix"], dataclasses.replace(data, tasks=("mine_de_en", name))
        ).check_fits()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--context=30"], "--context needs --document_ids"),
        (
            ["--document_ids={}/{{split}}.ids", "--context=30", "--monolingual"],
            "^--context is for pairs of languages; leave it or --monolingual out$",
        ),
        (["--separator=|"], "--separator needs --context"),
        (["--document_ids={}/{{split}}.ids"], "--document_ids needs --context"),
        (["--document_ids={}/{{split}}.ids", "--context=a"], "'a' must be a number of pieces"),
        (["--document_ids={}/{{split}}.ids", "--context=30,60,030"], "context: 30 is named twice"),
        (["--document_ids={}/{{split}}.ids", "--context=30", "--share=0.5"], "leave --share out"),
    ],
)
def test_flags_that_do_not_fit_are_refused(folder, flags, message):
    with pytest.raises(UserError, match=message):
        _cache(folder, *(flag.format(folder) for flag in flags))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (IDS[:-1], "train.ids: has 9 lines"),
        (SEPARATE, "train.ids: no document has two sentences"),
        (None, "train.ids: no such file of document"),
    ],
)
def test_wrong_ids_are_reported_before_a_vocabulary_is_trained(folder, ids, message, monkeypatch):
    monkeypatch.setattr("mnmt_jax.vocabulary.sentencepiece_training.train_sentencepiece", None)
    write_ids(folder, ids or [])
    if ids is None:
        (folder / "train.ids").unlink()
    with pytest.raises(UserError, match=message):
        _cache(folder, f"--document_ids={folder}/{{split}}.ids", "--context=30")


def test_a_run_records_the_contexts_of_its_tasks(tmp_path):
    run = RunDirectory(tmp_path)
    assert run.trained_contexts() == {}
    directions = {"mine_en_de": ("en", "de"), "chunks_en_de": ("en", "de")}
    run.write_tasks(directions, {"chunks_en_de": Context(60, "|")})
    assert run.trained_tasks() == directions
    assert run.trained_contexts() == {"chunks_en_de": Context(60, "|")}
    run.write_tasks(directions)
    assert run.trained_contexts() == {}
    run.tasks_file.write_text('{"a": {"context": {"pieces": 1, "size": 2}}}')
    with pytest.raises(UserError, match="tasks.json: cannot be read"):
        run.trained_contexts()


def test_training_records_the_contexts_of_its_cache(folder):
    flags = "--vocab_size=45", "--no-byte_fallback", f"--document_ids={folder}/{{split}}.ids"
    cache = _cache(folder, *flags, "--context=30")
    trained = "mine_en_de", "mine_context30_de_en"
    config = Config(Data(), Model(), Optimizer(), Train(), Decode(), Mesh())
    setup = SimpleNamespace(
        config=config, cache=cache, pipeline=SimpleNamespace(task_names=trained)
    )
    run = RunDirectory(folder / "run")
    open_run._write_run_files(setup, run, False)
    assert run.trained_tasks() == {trained[0]: ("en", "de"), trained[1]: ("de", "en")}
    assert run.trained_contexts() == {trained[1]: Context(30)}
