"""Rounds of back-translation, stopped anywhere, end as those that were not."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import jax
import pytest

from mnmt_jax.commands.back_translate import main
from mnmt_jax.commands.back_translation_rounds import BackTranslationRounds
from mnmt_jax.data.back_translation import BackTranslationDraws
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.decoding.translation import Translation
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.distributed import local
from mnmt_jax.distributed.processes import LOST_STATUS
from mnmt_jax.errors import UserError
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.training.checkpoints import Checkpoints
from mnmt_jax.training.epochs import count_updates
from mnmt_jax.training.source_runs import SourceRunSpec
from tests.made_params import write_random_run
from tests.made_run import assert_same_training, cache_json, make_cache, make_config, records
from tests.processes import Processes, grandchild
from tests.unit.test_train import stop_after

DECODE = {"max_length": 6, "buckets": (12, 16), "batch": 16}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A cache, and a run of random parameters."""
    folder = tmp_path_factory.mktemp("rounds")
    config = make_config(
        make_cache(folder / "cache"),
        decode=DECODE,
        data={"chunk_examples": 16, "temperature": 1.0},
        train={"log_every": 1, "eval_every": 1000, "save_every": 1000, "keep_best": 0},
    )
    write_random_run(folder / "run", config.model, config=config)
    return folder


def call(monkeypatch, made: Path, *flags: object) -> int | None:
    given = ["--run", made / "run", "--cache", made / "cache", "--languages=en,de,fr", *flags]
    monkeypatch.setattr("sys.argv", ["back_translate", *map(str, given)])
    return main()


@pytest.fixture(scope="module")
def straight(made, one_device, kept_programs) -> Path:
    """Two rounds that nothing stopped."""
    with pytest.MonkeyPatch.context() as patch:
        assert not call(patch, made, "--workdir", made / "straight", "--rounds=2")
    return made / "straight"


def test_a_round_translates_with_the_run_before_and_trains_an_epoch_on_both(made, straight):
    real, caches = cache_json(made / "cache"), [straight / f"round_{n}" / "cache" for n in (1, 2)]
    first, second = map(cache_json, caches)
    names = [task["name"] for task in first["tasks"]]
    added = names[len(real["tasks"]) :]
    assert first["tasks"][: len(real["tasks"])] == real["tasks"]
    assert [name.removeprefix("back_translated_") for name in added] == [
        "de_en",
        "de_fr",
        "fr_de",
        "fr_en",
    ]
    assert first["tasks"] != second["tasks"]
    run = RunDirectory(straight / "round_2" / "run")
    origin = json.loads(run.origin_file.read_text(encoding="utf-8"))
    assert origin["origin"] == str(straight / "round_1" / "run")
    config = run.config()
    assert set(config.data.tasks) == set(TokenCache.open(caches[1]).tasks_with("train"))
    seeds = [RunDirectory(straight / f"round_{n}" / "run").config().train.seed for n in (1, 2)]
    assert seeds == [2, 3]
    translator = Translator.load(made / "run")
    cache = TokenCache.open(caches[0])
    source, target = cache.pair("back_translated_fr_de", "train", 0)
    text = cache.vocabulary.decode(target)
    (found,) = translator.translate([text], source="de", target="fr", beam_size=1)
    assert cache.vocabulary.encode_lines([found], "fr") == [source.tolist()]


@pytest.mark.parametrize(
    ("lines", "bindings", "epochs", "recorded"),
    [
        ("", [], 1, "an epoch"),
        ("", ["Train.epochs=3"], 3, "3 epochs"),
        ("", ["Train.steps = 7"], 0, 7),
        ("", ["Train.steps=7", "Train.epochs=0"], 0, 7),
        ("Train.steps = 7", [], 0, 7),
        ("Train.steps = 7\nTrain.epochs = 0.0", [], 0, 7),  # as in a run's config.gin
        ("Train.epochs = 3.0", [], 3, "3 epochs"),
        ("Train.epochs = 3.0", ["Train.steps=7"], 0, 7),
        ("Train.steps = 7", ["Train.epochs=3"], 3, "3 epochs"),
        ("Train.epochs = 0.0", [], 1, "an epoch"),
    ],
)
def test_the_length_of_a_round_is_an_epoch_or_that_of_flags_and_files(
    made, lines, bindings, epochs, recorded, tmp_path
):
    cache, draws = TokenCache.open(made / "cache"), BackTranslationDraws(("de", "fr"))
    origin = SourceRunSpec(made / "run")
    (tmp_path / "length.gin").write_text(lines)
    configuration = [str(tmp_path / "length.gin")], bindings
    rounds = BackTranslationRounds(draws, cache, origin, 1, configuration)
    config = rounds._config(cache, 1)
    assert config.train.steps == (count_updates(config, cache, epochs) if epochs else 7)
    assert rounds._training_facts()["Train.steps"] == recorded


def test_stopped_while_translating_and_while_training_it_ends_the_same(
    made, straight, monkeypatch, one_device, capfd
):
    folder = made / "broken"
    with monkeypatch.context() as patch:
        translate = TranslationJob.as_completed

        def stopping(self, lines, **options):
            for number, pair in enumerate(translate(self, lines, **options)):
                if number == 40:
                    raise KeyboardInterrupt
                yield pair

        patch.setattr(TranslationJob, "as_completed", stopping)
        with pytest.raises(KeyboardInterrupt):
            call(patch, made, "--workdir", folder, "--rounds=1")
    assert not (folder / "round_1" / "cache").exists()
    assert "40 translated lines kept" in capfd.readouterr().err
    with monkeypatch.context() as patch:
        stop_after(patch, 2, lambda: signal.raise_signal(signal.SIGTERM))
        assert call(patch, made, "--workdir", folder, "--rounds=1") == 128 + signal.SIGTERM
    assert "resumes after 40 lines" in capfd.readouterr().err
    assert not call(monkeypatch, made, "--workdir", folder, "--rounds=1")
    assert cache_json(folder / "round_1" / "cache") == cache_json(straight / "round_1" / "cache")
    (step,) = Checkpoints(folder / "round_1" / "run" / "checkpoints").steps()[-1:]
    assert step > 3
    assert_same_training(folder / "round_1" / "run", straight / "round_1" / "run", step)


def test_a_cache_alone_is_that_of_the_round(made, straight, monkeypatch, one_device, capsys):
    """By two processes."""
    output = made / "alone"
    output.mkdir()  # an empty folder is no obstacle
    for process in (0, 1):
        assert not any(output.iterdir())
        shares = "--num_processes=2", f"--process_id={process}"
        assert not call(monkeypatch, made, "--output", output, *shares)
    assert cache_json(output) == cache_json(straight / "round_1" / "cache")
    assert not Path(f"{output}.unfinished").exists()
    assert sum(json.loads(capsys.readouterr().out)["examples"].values()) == 2 * 160
    with pytest.raises(UserError, match="alone: already exists; choose another --output$"):
        call(monkeypatch, made, "--output", output)


def test_processes_that_train_together_share_the_sentences(made, straight):
    """One is killed while they translate; the same commands end as one process does."""
    folder = made / "together"
    given = ["--run", made / "run", "--cache", made / "cache", "--languages=en,de,fr"]
    given += ["--workdir", folder, "--rounds=2"]
    parts = [folder / "round_1" / f"cache.unfinished.{number}-of-2" for number in (0, 1)]
    with Processes("back_translate.py", 2, lambda number: given, devices=2) as two:
        two.wait_for(lambda: parts[1].is_file() and parts[1].read_text().count("\n") > 8)
        os.kill(grandchild(two.children[1]), signal.SIGKILL)
        (said,) = two.finish((0,), LOST_STATUS)
    assert "another process has exited or does not respond; start the same command" in said
    assert not (folder / "round_1" / "cache").exists()
    with Processes("back_translate.py", 2, lambda number: given, devices=2) as two:
        said = two.finish((0, 1), 0)
    assert "resumes after" in said[1]
    assert ["round 2 of 2" in each for each in said] == [True, False]
    assert cache_json(folder / "round_1" / "cache") == cache_json(straight / "round_1" / "cache")
    runs = [each / "round_1" / "run" for each in (folder, straight)]
    steps = [Checkpoints(run / "checkpoints").steps()[-1] for run in runs]
    assert steps[0] == steps[1]
    losses = [[record["loss"] for record in records(run)] for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)  # sums over devices
    assert len(list((folder / "round_2" / "run" / "checkpoints").iterdir())) > 0
    assert not list(folder.glob("*/*unfinished*"))


def test_blank_translations_leave_nothing_that_the_same_command_would_meet(
    made, monkeypatch, one_device, capfd
):
    translate = TranslationJob.as_completed

    def blank(self, lines, **options):
        for line, _ in translate(self, lines, **options):
            yield line, Translation()

    monkeypatch.setattr(TranslationJob, "as_completed", blank)
    for _ in range(2):
        with pytest.raises(UserError, match="every translation is blank; train .*run for longer"):
            call(monkeypatch, made, "--output", made / "blank")
        assert "goes on" not in capfd.readouterr().err
    assert not list(made.glob("blank*"))


def test_all_devices_translate_as_one_does(made, monkeypatch, straight):
    monkeypatch.setattr(local, "local_devices", jax.local_devices)
    assert not call(monkeypatch, made, "--output", made / "devices")
    assert cache_json(made / "devices") == cache_json(straight / "round_1" / "cache")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--output=x", "--rounds=2"), "--rounds needs --workdir, not --output"),
        (("--workdir=x", "--round=2"), "--round needs --output"),
        (("--workdir=x", "--num_processes=2"), "--coordinator_address is missing beside the other"),
        (("--output=x", "--distributed"), "not needed with --output; give only"),
        (("--workdir={straight}", "--seed=2"), "rounds were made with other settings .seed.; use"),
        (("--workdir={straight}", "--gin.Train.steps=60"), "other settings .Train.steps.; use"),
        (
            ("--workdir={straight}", "--gin.Train.patience=10", "--gin.Train.eval_every=10"),
            "other settings .*Train.patience.; use",
        ),
        (
            ("--workdir={straight}", "--gin.Decode.max_length=5", "--gin.Optimizer.eps=1e-4"),
            "other settings .Optimizer.eps, max_length.; use",
        ),
        (("--output=x", "--gin.Decode.source_contrast=0.5"), "add --gin.Decode.source_contrast=0$"),
        (("--workdir=x", "--gin.Decode.source_contrast=0.5"), "which back-translation does not do"),
        (("--output=x", "--gin.Train.steps=3"), "--output does not train; omit the flag"),
        (("--workdir={made}",), "--workdir=.*: already exists; choose another folder"),
        (("--workdir=x", "--run=nowhere"), "nowhere/config.gin: no such file; name a run"),
        (("--workdir=gs://bucket/x",), "gs://bucket/x"),
    ],
)
def test_mistakes_are_one_line_and_make_nothing(
    flags, message, made, straight, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    given = [flag.format(made=made, straight=straight) for flag in flags]
    with pytest.raises(UserError, match=message) as caught:
        call(monkeypatch, made, *given)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())
