"""Translation with document context: the chunks of training, one line for each line."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random

import pytest

from mnmt_jax.commands import translate
from mnmt_jax.data.document_context import Context
from mnmt_jax.data.document_corpus import ContextCorpus
from mnmt_jax.data.document_ids import DocumentIds
from mnmt_jax.data.parallel_corpora import ParallelFiles
from mnmt_jax.decoding.context_job import ContextJob
from mnmt_jax.decoding.translation import Hypothesis, Translation
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.errors import MnmtWarning, UserError
from mnmt_jax.evaluation.benchmark import Benchmark
from mnmt_jax.evaluation.evaluate import evaluate
from mnmt_jax.evaluation.evaluated_model import EvaluatedModel, with_documents
from mnmt_jax.evaluation.translations import TranslatedSentence
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.vocabulary.language_codes import Direction
from mnmt_jax.vocabulary.normalization import NONE
from tests.run_commands import command
from tests.unit.made_language_model import write_made_run
from tests.unit.made_translator import made_translator

BAR = Context(11, "|")
DOCUMENTS = [["one", "two", "three", "house"], ["river"], ["one two", "green green", "and"]]
LINES = [line for document in DOCUMENTS for line in (*document, "")][:-1]


@pytest.fixture
def translator() -> Translator:
    made = made_translator()
    params = made.inference_model.params
    return Translator(made.config, made.vocabulary, params, contexts=[Context(5, "|"), BAR])


@pytest.fixture
def searched(monkeypatch) -> list[str]:
    """Replace the search by capitals; return the texts that are searched."""
    texts: list[str] = []

    def as_completed(job, lines, *, done=()):
        for line in lines:
            if line.number not in done:
                texts.append(line.text)
                yield line, capitals(line.text)

    monkeypatch.setattr(TranslationJob, "as_completed", as_completed)
    return texts


def capitals(*texts: str) -> Translation:
    hypotheses = (Hypothesis(text.upper(), -position, (3,)) for position, text in enumerate(texts))
    return Translation(tuple(hypotheses) if texts[0].strip() else ())


def job_of(translator: Translator, pieces: int = 0, **options) -> ContextJob:
    return ContextJob.create(translator, **options).with_context(pieces)


def run_job(job: ContextJob, lines=LINES, **options) -> dict[int, Translation]:
    numbered = list(job.number_lines(lines, source="en", target="de"))
    completed = list(job.as_completed(numbered, **options))
    assert len({line.number for line, _ in completed}) == len(completed)
    return {line.number: translation for line, translation in completed}


def test_each_line_has_its_part_of_the_chunk(translator, searched):
    completed = run_job(job_of(translator))
    assert [completed[number].text for number in range(len(LINES))] == list(map(str.upper, LINES))
    assert not any(translation.without_context for translation in completed.values())
    assert [text for text in searched if "|" in text]
    assert [text.count("|") for text in searched if text.strip()] != [0] * len(LINES)
    assert completed[0].score == 0 and completed[4].hypotheses == ()


def test_chunks_are_those_of_training(translator, searched, tmp_path):
    draw = random.Random(1)
    words = "one two three house river green small and runs behind".split()
    flat = [
        (f"{n}", " ".join(draw.choices(words, k=draw.choice((1, 1, 2)))))
        for n in range(6)
        for _ in range(draw.randrange(1, 12))
    ]
    for code in ("en", "de"):
        (tmp_path / f"train.{code}").write_text("".join(f"{line}\n" for _, line in flat))
    (tmp_path / "train.ids").write_text("".join(f"{name}\n" for name, _ in flat))
    corpus = ParallelFiles("mine", f"{tmp_path}/{{split}}.{{language}}", ("en", "de"))
    corpus.document_ids = DocumentIds.of_splits(f"{tmp_path}/{{split}}.ids", {"train": "train"})
    lines = []
    for _, document in itertools.groupby(flat, key=lambda item: item[0]):
        lines += [*(line for _, line in document), ""]
    translator.contexts = tuple(Context(pieces, "|") for pieces in range(5, 13))
    divisions = set()
    for context in translator.contexts:
        chunks = ContextCorpus(corpus, context, translator.vocabulary)
        trained = [source for source, _ in chunks.pairs("train", ("en", "de"))]
        searched.clear()
        run_job(job_of(translator, context.pieces, max_length=13), lines)
        assert [text for text in searched if text] == trained
        divisions.add(tuple(trained))
    assert len(divisions) > len(translator.contexts) / 2  # the limits show


def test_lines_of_a_chunk_with_other_sentences_are_translated_alone(
    translator, searched, monkeypatch
):
    replaced = TranslationJob.as_completed
    outputs = {"one| two| three| house": ["ONE| TWO", "A||B|C", "x"]}

    def as_completed(job, lines, *, done=()):
        for line, translation in replaced(job, lines, done=done):
            texts = outputs.get(line.text)
            yield line, capitals(*texts) if texts else translation

    monkeypatch.setattr(TranslationJob, "as_completed", as_completed)
    completed = run_job(job_of(translator))
    assert [completed[n].text for n in range(4)] == ["ONE", "TWO", "THREE", "HOUSE"]
    marked = [n for n, translation in completed.items() if translation.without_context]
    assert sorted(marked) == [0, 1, 2, 3]
    outputs["one| two| three| house"] = ["A|B", "a| b|c|d", "e|f|g|h"]
    completed = run_job(job_of(translator))
    assert [completed[n].text for n in range(4)] == ["A", "B", "C", "D"]
    assert [h.text for h in completed[3].hypotheses] == ["D", "H"]
    assert [h.score for h in completed[3].hypotheses] == [-1, -2]


@pytest.mark.parametrize(
    ("lengths", "options", "limited"),
    [
        ((12, 5), {}, False),
        ((5, 12), {}, True),
        ((12, 11), {}, False),
        ((5, 11), {"max_length_per_source": 0.1}, True),
        ((12, 10), {"max_length_per_source": 0.1}, False),
    ],
)
def test_only_lines_of_the_chosen_hypothesis_of_maximum_length_are_limited(
    translator, lengths, options, limited
):
    """The first hypothesis has another number of sentences than the chunk."""
    job = job_of(translator, **options)
    chunk = list(job.number_lines(["one", "two"], source="en", target="de"))
    texts = zip(("A", "A|B"), lengths, strict=True)
    hypotheses = (Hypothesis(text, -1.0, (3,) * length) for text, length in texts)
    translation = Translation(tuple(hypotheses), limited=not limited)
    parts = job._divide(translation, chunk)
    assert [(part.text, part.limited) for part in parts] == [("A", limited), ("B", limited)]


@pytest.mark.parametrize(
    ("pivot", "expected"),
    [("un| deux", ["un", "deux"]), ("un deux", [None, None]), (None, [None, None])],
)
def test_each_line_has_its_part_of_the_pivot(translator, pivot, expected):
    job = job_of(translator)
    chunk = list(job.number_lines(["one", "two"], source="en", target="de"))
    translation = dataclasses.replace(capitals("one| two"), pivot=pivot, retried="pivot")
    parts = job._divide(translation, chunk)
    assert [part.pivot for part in parts] == expected


def test_characters_are_copied_into_the_line_that_has_them(translator, monkeypatch):
    lines = ["one two 🙂", "three", "ж house 🙂 river", "and two ж three"]
    searches: list[str] = []

    def search(plan, wanted, count):
        for i in wanted:
            source = translator.vocabulary.decode(plan.encoded_lines[i].inputs[0].source)
            searches.append(source)
            text = source.replace(" green", "green")  # as a separator is in translations
            yield i, tuple(Hypothesis(text, -1.0, (3,)) for text in (f"{text}green", text))

    monkeypatch.setattr("mnmt_jax.decoding.translate_lines._Plan.search", search)
    translator.contexts = (Context(60, "green"),)
    job = job_of(translator, copy_unknown=True, max_length=60, buckets=(70,))
    completed = run_job(job, lines)
    assert [completed[n].text for n in range(4)] == lines
    assert searches == ["one twogreen threegreen house rivergreen and two three"]
    assert [completed[n].unknown_characters for n in range(4)] == ["🙂", "", "ж🙂", "ж"]


def test_the_only_line_of_a_chunk_is_marked_in_a_document_of_several(translator, searched):
    longest = " ".join(["one"] * 12)
    lines = ["one", "two", "one | two", longest, "", "", "river", "", "one | two"]
    completed = run_job(job_of(translator), lines)
    marked = [n for n, translation in completed.items() if translation.without_context]
    assert sorted(marked) == [2, 3]
    assert {"one| two", "one | two", longest, "river"} < set(searched)


@pytest.mark.parametrize("blank", ["\u200b", " \u2060", "\ufeff", "\u2581"])
def test_invisible_lines_end_documents(translator, blank):
    lines = [line or blank for line in LINES]
    job = job_of(translator)
    numbered, expected = (
        list(job.number_lines(texts, source="en", target="de")) for texts in (lines, LINES)
    )
    sizes = [[len(chunk) for chunk in job.chunks(texts)] for texts in (numbered, expected)]
    assert sizes[0] == sizes[1]
    unchanged = dataclasses.replace(translator.vocabulary, normalization=NONE)
    params = translator.inference_model.params
    published = Translator(translator.config, unchanged, params, contexts=[BAR])
    blanks = run_job(job_of(published), [blank, blank])
    assert not any(one.hypotheses or one.without_context for one in blanks.values())


def test_finished_lines_are_left_out(translator, searched):
    completed = run_job(job_of(translator), done={0, 1, 2, 3, 7})
    assert set(completed) == set(range(len(LINES))) - {0, 1, 2, 3, 7}
    assert "one| two| three| house" not in searched


def test_languages_are_not_mixed_in_a_chunk(translator):
    job = job_of(translator)
    lines = job.number_lines(["one", "two"], source=["en", "fr"], target="de")
    assert [len(chunk) for chunk in job.chunks(list(lines))] == [1, 1]


@pytest.mark.parametrize(
    ("pieces", "options", "message"),
    [
        (7, {}, "--context=7: the model was trained with 5, 11"),
        (0, {"pivot": "fr"}, "leave --pivot out"),
        (0, {"pivot": "fr", "source_contrast": 0.7}, "leave --pivot, Decode.source_contrast out"),
        (0, {"max_length": 10}, "--context=11: .* longer than Decode.max_length=10; raise it"),
        (0, {"buckets": (4, 8)}, "--context=11: chunks may be longer than the largest bucket"),
    ],
)
def test_what_does_not_fit_is_refused(translator, pieces, options, message):
    with pytest.raises(UserError, match=message):
        job_of(translator, pieces, **options)


def test_a_model_of_sentences_has_no_context():
    with pytest.raises(UserError, match="was not trained with document context"):
        made_translator().translate(["one"], source="en", target="de", context=0)


def test_the_context_is_part_of_what_a_file_was_made_by(translator):
    plain, job = ContextJob.create(translator), job_of(translator)
    assert job.provenance()["context"] == dataclasses.asdict(BAR)
    assert plain.provenance() != job.provenance()


def test_a_translator_warns_of_lines_without_context(translator):
    alone = translator.translate(LINES, source="en", target="de")
    with pytest.warns(MnmtWarning, match="7 lines translated without context"):
        assert translator.translate(LINES, source="en", target="de", context=0) == alone


@pytest.mark.parametrize(("context", "expected"), [(True, {"context": 0}), (False, {})])
def test_context_may_be_true_or_false(translator, searched, context, expected):
    options = {"source": "en", "target": "de"}
    actual = list(translator.stream(LINES, **options, context=context))
    texts = list(searched)
    searched.clear()
    assert actual == list(translator.stream(LINES, **options, **expected))
    assert texts == searched


def test_the_command_writes_a_line_for_each_line(translator, searched, tmp_path, monkeypatch):
    run = write_made_run(tmp_path / "run", translator)
    RunDirectory(run).write_tasks({"chunks": ("en", "de")}, {"chunks": BAR})
    (tmp_path / "in").write_text("\n".join(LINES) + "\n")
    flags = [f"--run={run}", "--source=en", "--target=de", f"--input={tmp_path / 'in'}"]

    def call(*more: str) -> list[str]:
        argv = ["mnmt translate", *flags, f"--output={tmp_path / 'out'}", *more]
        monkeypatch.setattr("sys.argv", argv)
        translate.main()
        return (tmp_path / "out").read_text().split("\n")[:-1]

    assert call("--context") == call("--context=11") == list(map(str.upper, LINES))
    assert "one| two| three| house" in searched
    record = json.loads(call("--context", "--format=jsonl")[0])
    assert record["source"] == "one" and "without_context" not in record
    for more in ("--split_sentences", "--num_processes=2"):
        with pytest.raises(UserError, match=r"--context translates"):
            call("--context", more, *(["--process_id=0"] if "num" in more else []))


def test_lines_without_context_are_counted(translator, tmp_path, monkeypatch, capsys):
    run = write_made_run(tmp_path / "run", translator)
    RunDirectory(run).write_tasks({"chunks": ("en", "de")}, {"chunks": BAR})
    (tmp_path / "in").write_text("\n".join(LINES) + "\n")
    flags = ["--source=en", "--target=de", f"--input={tmp_path / 'in'}", "--context"]
    argv = ["mnmt translate", f"--run={run}", *flags, f"--output={tmp_path / 'out'}"]
    monkeypatch.setattr("sys.argv", [*argv, "--format=jsonl"])
    translate.main()
    assert "7 lines translated without context" in capsys.readouterr().err
    records = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [r["line"] for r in records if r.get("without_context")] == [1, 2, 3, 4, 8, 9, 10]


def test_document_ids_of_an_evaluation_need_context():
    flags = ["--run=run", "--task=mine", "--output=out", "--document_ids={split}.ids"]
    with pytest.raises(UserError, match="--document_ids needs --context"):
        command("evaluate", *flags)


def documents_corpus(folder):
    """Write files of documents, with the ids of each pair; return the corpus."""
    flat = [(f"{n}", line) for n, document in enumerate(DOCUMENTS) for line in document]
    for code in ("en", "de"):
        (folder / f"test.{code}").write_text("".join(f"{line}\n" for _, line in flat))
    (folder / "test.ids").write_text("".join(f"{name}\n" for name, _ in flat))
    splits = {"test": "test"}
    corpus = ParallelFiles("mine", f"{folder}/{{split}}.{{language}}", ("en", "de"), splits=splits)
    corpus.document_ids = DocumentIds.of_splits(f"{folder}/{{split}}.ids", splits)
    return corpus


def test_an_evaluation_translates_its_documents(tmp_path):
    corpus = documents_corpus(tmp_path)
    read: list[list[str]] = []

    def lines_in_capitals(lines, direction):
        read.append(list(lines))
        return [TranslatedSentence(line.upper()) for line in lines]

    model = EvaluatedModel("made", lines_in_capitals, None, {})
    for limit, texts in ((0, LINES), (6, [*LINES[:6], "", "one two"])):
        benchmark = Benchmark("mine", corpus, limit=limit)
        evaluated = with_documents(model, benchmark)
        sources = benchmark.texts(("en", "de")).sources
        outputs = evaluated.translate(sources, ("en", "de"))
        assert [output.text for output in outputs] == [line.upper() for line in sources]
        assert read[-1] == [*texts, ""]
        assert evaluated.identity["documents"]
    sizes = {
        limit: with_documents(model, Benchmark("mine", corpus, limit=limit)).identity
        for limit in (0, 6)
    }
    assert sizes[0] != sizes[6]


def test_an_evaluation_with_context_gains_directions(tmp_path):
    benchmark = Benchmark("mine", documents_corpus(tmp_path))
    called: list[Direction] = []

    def copies(lines, direction):
        called.append(direction)
        return [TranslatedSentence(line) for line in lines]

    model, output = EvaluatedModel("made", copies, None, {"context": 64}), tmp_path / "out"
    pairs = [("en", "de"), ("de", "en")]
    for directions in (pairs[:1], pairs, pairs):
        selected = benchmark.only(directions)
        evaluate(with_documents(model, selected), selected, output)
    assert called == pairs
    ids = tmp_path / "test.ids"
    ids.write_text("one\n" * len(ids.read_text().splitlines()))  # other documents
    changed = with_documents(model, benchmark)
    for _ in ("finished", "unfinished"):
        with pytest.raises(UserError, match=r"with other settings \(documents\)"):
            evaluate(changed, benchmark, output)
        (output / "scores.json").unlink(missing_ok=True)
    selected = benchmark.only(pairs[:1])
    evaluate(with_documents(model, selected), selected, output, overwrite=True)
    assert called == [*pairs, pairs[0]]
    stored = [path.name for path in (output / "translations").glob("*.jsonl")]
    assert stored == ["en-de.jsonl"]
