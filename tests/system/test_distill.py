"""Distillation: caches of teachers' translations, stopped and shared, and a student of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mnmt_jax.commands.distill import main, read_teachers
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.cache_writer import TaskSource, write_cache
from mnmt_jax.data.document_context import Context
from mnmt_jax.decoding.translation import Translation
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.errors import UserError
from mnmt_jax.training.train import train
from tests.made_params import write_random_run
from tests.made_run import cache_json, make_cache, make_config, records
from tests.run_commands import ROOT
from tests.unit import made_text

DECODE = {"max_length": 6, "buckets": (12, 16), "batch": 16, "beam_size": 2}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A cache of 160 pairs in four directions, and two teachers of random parameters."""
    folder = tmp_path_factory.mktemp("distill")
    config = make_config(make_cache(folder / "cache"), decode=DECODE)
    for number, name in enumerate(("first", "second")):
        write_random_run(folder / name, config.model, number, config=config)
    return folder


def call(monkeypatch, made: Path, output: Path, *flags: object, teachers=("first",)) -> None:
    runs = (
        teacher.replace("=", f"={made}/") if "=" in teacher else made / teacher
        for teacher in teachers
    )
    given = [word for run in runs for word in ("--teacher", run)]
    given += ["--cache", made / "cache", "--output", output, *flags]
    monkeypatch.setattr("sys.argv", ["mnmt distill", *map(str, given)])
    main()


def rows(cache: TokenCache, task: str, split: str = "train") -> list[tuple[list[int], list[int]]]:
    count = cache.split(task, split).examples
    return [tuple(side.tolist() for side in cache.pair(task, split, n)) for n in range(count)]


@pytest.fixture(scope="module")
def straight(made, one_device) -> Path:
    """The cache of one teacher, written without a stop."""
    with pytest.MonkeyPatch.context() as patch:
        call(patch, made, made / "straight")
    return made / "straight"


def translations(made: Path, teacher: str, task: str) -> list[tuple[list[int], list[int]]]:
    """Return the sources of a task with the encoded beam translations of a teacher."""
    cache = TokenCache.open(made / "cache")
    source, target = cache.tasks[task].source_lang, cache.tasks[task].target_lang
    sources = [pair[0] for pair in rows(cache, task)]
    texts = list(map(cache.vocabulary.decode, sources))
    outputs = Translator.load(made / teacher).translate(texts, source=source, target=target)
    return list(zip(sources, cache.vocabulary.encode_lines(outputs, target), strict=True))


def test_targets_are_the_teachers_beam_search_and_the_rest_stays(made, straight):
    real, distilled = TokenCache.open(made / "cache"), TokenCache.open(straight)
    assert set(distilled.tasks) == set(real.tasks)
    for task in real.tasks_with("train"):
        expected = [pair for pair in translations(made, "first", task) if pair[1]]
        assert rows(distilled, task) == expected != rows(real, task)
        assert len(expected) > 30 and len({tuple(target) for _, target in expected}) > 1
    for task in real.tasks_with("validation"):
        assert rows(distilled, task, "validation") == rows(real, task, "validation")


def test_directions_have_their_own_teachers_and_real_pairs_can_stay(
    made, straight, monkeypatch, one_device
):
    teachers = ("en-de,fr-en=second", "de-en=first")
    call(monkeypatch, made, made / "several", "--keep", teachers=teachers)
    real, both = TokenCache.open(made / "cache"), TokenCache.open(made / "several")
    added = {"distilled_made_en_de", "distilled_made_fr_en", "distilled_made_de_en"}
    assert set(both.tasks) == {*real.tasks, *added}
    assert all(both.tasks[name] == task for name, task in real.tasks.items())
    of_second = [pair for pair in translations(made, "second", "made_fr_en") if pair[1]]
    assert rows(both, "distilled_made_fr_en") == of_second
    assert rows(both, "distilled_made_de_en") == rows(TokenCache.open(straight), "made_de_en")
    assert rows(both, "distilled_made_en_de") != rows(TokenCache.open(straight), "made_en_de")
    record = json.loads((made / "several" / "distillation.json").read_text())["teachers"]
    runs = {pair: Path(facts["run"]).name for pair, facts in record.items()}
    assert runs == {"en-de": "second", "fr-en": "second", "de-en": "first"}
    assert record["en-de"]["beam_size"] == 2 and record["en-de"]["step"] is not None
    assert record["en-de"]["parameters"] == record["fr-en"]["parameters"]
    assert record["en-de"]["parameters"] != record["de-en"]["parameters"]


def test_stopped_or_shared_by_processes_the_cache_is_the_same(
    made, straight, monkeypatch, one_device, capfd
):
    with monkeypatch.context() as patch:
        translate = TranslationJob.as_completed

        def stopping(self, lines, **options):
            for number, pair in enumerate(translate(self, lines, **options)):
                if number == 40:
                    raise KeyboardInterrupt
                yield pair

        patch.setattr(TranslationJob, "as_completed", stopping)
        with pytest.raises(KeyboardInterrupt):
            call(patch, made, made / "broken")
    assert not (made / "broken").exists()
    with pytest.raises(UserError, match=r"made with other settings \(teachers\)"):
        call(monkeypatch, made, made / "broken", "--beam_size=1")
    call(monkeypatch, made, made / "broken")
    assert "resumes after 40 lines" in capfd.readouterr().err
    assert cache_json(made / "broken") == cache_json(straight)
    for process in (0, 1):
        assert not (made / "shared").exists()
        flags = "--num_processes=2", f"--process_id={process}"
        call(monkeypatch, made, made / "shared", *flags)
    assert cache_json(made / "shared") == cache_json(straight)
    assert not list(made.glob("*.unfinished*"))


def test_a_student_learns_the_translations_of_its_teacher(made, straight, tmp_path, one_device):
    """Better than the references, which are random."""
    losses = {}
    for name, cache in (("teacher", straight), ("references", made / "cache")):
        settings = {"steps": 60, "log_every": 10, "eval_every": 60, "save_every": 60}
        config = make_config(
            cache,
            model={"dropout": 0.0},
            train=settings,
            optimizer={"label_smoothing": 0.0},
        )
        assert train(config, tmp_path / name) is None
        losses[name] = [record["nll"] for record in records(tmp_path / name) if "nll" in record]
    assert losses["teacher"][-1] < 0.6 * losses["teacher"][0]
    assert losses["teacher"][-1] < 0.8 * losses["references"][-1]


def test_blank_translations_are_left_out_or_refused(made, monkeypatch, one_device, capfd):
    translate = TranslationJob.as_completed

    def blank(self, lines, **options):
        for line, translation in translate(self, lines, **options):
            yield line, Translation() if line.number % 2 or is_all else translation

    monkeypatch.setattr(TranslationJob, "as_completed", blank)
    is_all = False
    call(monkeypatch, made, made / "half", teachers=("en-de=first",))
    half = rows(TokenCache.open(made / "half"), "made_en_de")
    expected = translations(made, "first", "made_en_de")
    assert half == [pair for pair in expected[::2] if pair[1]]
    omitted = f"skipped {len(expected) - len(half)} sentences with a blank translation\n"
    assert omitted in (lines := capfd.readouterr().err) and "tokens with tags" not in lines
    is_all = True
    with pytest.raises(UserError, match="every translation is blank; train .*first for longer"):
        call(monkeypatch, made, made / "blank")
    assert not list(made.glob("blank*"))


def test_translations_at_the_length_limit_are_counted_in_a_warning(
    made, monkeypatch, one_device, capfd
):
    flags = ("--gin.Decode.max_length=1", "--gin.Decode.beam_size=1")
    call(monkeypatch, made, made / "cut", *flags, teachers=("en-de=first",))
    count = len(rows(TokenCache.open(made / "cut"), "made_en_de"))
    assert count > 30 and (
        f"warning: {count} translations reached the length limit and may lack their end; raise "
        "--gin.Decode.max_length\n" in capfd.readouterr().err
    )


@pytest.mark.parametrize("kind", ["ensemble", "minimum Bayes risk"])
def test_a_teacher_may_be_an_ensemble_or_select_samples(
    kind, made, straight, monkeypatch, one_device
):
    output, settings = made / kind, "gin_configs/runs/settings/minimum_bayes_risk.gin"
    bindings = {
        "ensemble": [f"Decode.ensemble=('{made / 'second'}',)"],
        "minimum Bayes risk": ["Decode.beam_size=4"],
    }[kind]
    files = [str(ROOT / settings)] if kind != "ensemble" else []
    flags = [f"--gin_file={file}" for file in files] + [f"--gin.{one}" for one in bindings]
    call(monkeypatch, made, output, *flags, teachers=("en-de=first",))
    selected, searched = (rows(TokenCache.open(c), "made_en_de") for c in (output, straight))
    cache = TokenCache.open(made / "cache")
    texts = [cache.vocabulary.decode(source) for source, _ in rows(cache, "made_en_de")]
    teacher = Translator.load(made / "first", gin_files=files, bindings=bindings)
    outputs = teacher.translate(texts, source="en", target="de")
    assert [target for _, target in selected] == cache.vocabulary.encode_lines(outputs, "de")
    assert sum(one != other for one, other in zip(selected, searched, strict=True)) > 10


def test_sources_longer_than_the_largest_bucket_are_left_out(made, monkeypatch, one_device, capfd):
    call(monkeypatch, made, made / "short", "--gin.Decode.buckets=(6,)", teachers=("en-de=first",))
    real, short = (rows(TokenCache.open(made / name), "made_en_de") for name in ("cache", "short"))
    vocabulary = made_text.vocabulary()
    lengths = [len(vocabulary.encode(vocabulary.decode(source))) + 2 for source, _ in real]
    sources = [source for (source, _), length in zip(real, lengths, strict=True) if length <= 6]
    assert [source for source, _ in short] == sources and 5 < len(sources) < len(real)
    omitted = len(real) - len(sources)
    assert f"skipped {omitted} sentences of more than 6 tokens with tags; add" in (
        capfd.readouterr().err
    )
    config = make_config(made / "cache", decode=DECODE | {"buckets": (6,)})
    write_random_run(made / "narrow", config.model, 0, config=config)
    teachers = ("de-en=first", "en-de=narrow")
    call(monkeypatch, made, made / "mixed", teachers=teachers)
    assert rows(TokenCache.open(made / "mixed"), "made_en_de") == short
    assert f"skipped {omitted} sentences longer than the largest bucket of their model; add" in (
        capfd.readouterr().err
    )


@pytest.mark.parametrize(
    ("teachers", "flags", "message"),
    [
        (("first", "second"), (), "the directions have a teacher already; name one for each"),
        (("de-fr=first",), (), "no training task has the direction de-fr; there are en-de, de-en"),
        (("de-nl=first",), (), "--teacher=de-nl=.*'nl', which is not among"),
        (("nowhere",), (), "nowhere/config.gin: no such file; name a run"),
        (("first",), ("--gin.Train.steps=3",), "this command does not train; omit the flag"),
        (
            ("first",),
            ("--gin.Decode.source_contrast=0.5", "--gin.Decode.seed=3"),
            "--teacher=.*: Decode.source_contrast=0.5 contrasts sentences with others, which "
            "distillation .*; add --gin.Decode.source_contrast=0 --gin.Decode.seed=0$",
        ),
        (("first",), ("--num_processes=2",), "--process_id is missing beside the other flags"),
    ],
)
def test_invalid_arguments_are_one_error_line(
    teachers, flags, message, made, monkeypatch, tmp_path
):
    with pytest.raises(UserError, match=message) as caught:
        call(monkeypatch, made, tmp_path / "x", *flags, teachers=teachers)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "--teacher=: names no run; write --teacher=RUN or --teacher=de-en=RUN"),
        ("de-en=", "--teacher=de-en=: names no run; write"),
        ("de-en:runs/x", "--teacher=de-en:runs/x: no such run; '=' stands between directions"),
        ("de-en,en-de:x", "no such run; '=' stands between directions and run"),
    ],
)
def test_a_teacher_without_a_run_is_refused(value, message):
    with pytest.raises(UserError, match=message):
        read_teachers([value], [("de", "en"), ("en", "de")])
    for run in ("gs://bucket/de-en", "gs://bucket/rate=3", "runs/rate=3e-4"):
        assert read_teachers([run], [("de", "en")]) == {None: run}


def test_a_run_with_an_equals_sign_is_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rate=3").mkdir()
    directions = [("de", "en")]
    assert read_teachers(["rate=3"], directions) == {None: "rate=3"}
    assert read_teachers(["de-en=rate=3"], directions) == {directions[0]: "rate=3"}


def test_an_existing_cache_is_not_replaced(made, monkeypatch):
    with pytest.raises(UserError, match="cache: already exists; choose another --output$"):
        call(monkeypatch, made, made / "cache", teachers=("first",))


def test_a_distilled_cache_cannot_be_distilled_beside_itself(made, monkeypatch, tmp_path):
    task = TaskSource("distilled_x", "de", "en", {"train": lambda: [([3], [4])]})
    write_cache(tmp_path / "cache", [task], vocabulary=made_text.vocabulary())
    with pytest.raises(UserError, match="'distilled_x' was distilled already"):
        call(monkeypatch, made, tmp_path / "x", "--cache", tmp_path / "cache", "--keep")


def test_tasks_of_one_language_and_of_context_stay_as_they_are(
    made, monkeypatch, tmp_path, one_device, capfd
):
    """Text comes from beside pairs; only a teacher named for `de-de` would translate it.

    A chunk of sentences would be translated as one line, with any number of separators.
    """
    text = [([20, 21], [20, 21]), ([22], [22])]
    mono = TaskSource("mono_de", "de", "de", {"train": lambda: text})
    chunks = TaskSource("chunks_en_de", "en", "de", {"train": lambda: text}, context=Context(9))
    real = [([20 + number, 21], [22, 23]) for number in range(8)]
    pairs = TaskSource("made_en_de", "en", "de", {"train": lambda: real})
    for name, tasks in (("text", [mono, chunks]), ("both", [mono, chunks, pairs])):
        write_cache(tmp_path / name, tasks, vocabulary=made_text.vocabulary())
    with pytest.raises(UserError, match="--cache=.*text: no training task of sentences has two"):
        call(monkeypatch, made, tmp_path / "x", "--cache", tmp_path / "text")
    call(monkeypatch, made, tmp_path / "x", "--cache", tmp_path / "both")
    distilled = TokenCache.open(tmp_path / "x")
    assert rows(distilled, "mono_de") == rows(distilled, "chunks_en_de") == text
    assert distilled.tasks["chunks_en_de"].context == Context(9)
    said = "left as they are, because they have document context: chunks_en_de\n"
    assert capfd.readouterr().err.count(said) == 1
    assert [22, 23] not in [target for _, target in rows(distilled, "made_en_de")]
    record = json.loads((tmp_path / "x" / "distillation.json").read_text())["teachers"]
    assert set(record) == {"en-de"}
