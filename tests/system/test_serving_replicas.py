"""Replicas of a model: sets of devices behind one server."""

from __future__ import annotations

import asyncio

import jax
import pytest

from mnmt_jax.commands import serve
from mnmt_jax.decoding.text.sentence_job import SentenceJob
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.distributed import local
from mnmt_jax.distributed.local import device_sets
from mnmt_jax.errors import UserError
from mnmt_jax.serving.line_engines import BatchEngine
from mnmt_jax.serving.service import TranslationOptions, TranslationService
from mnmt_jax.serving.settings import Settings
from mnmt_jax.serving.users import User
from mnmt_jax.vocabulary.language_detectors import make_lid176
from tests.unit.made_language_model import write_made_run
from tests.unit.made_translator import LINES, made_translator


@pytest.fixture(autouse=True)
def all_devices(monkeypatch):
    monkeypatch.setattr(local, "local_devices", jax.local_devices)


def devices_of(translator: Translator) -> set[jax.Device]:
    return {
        device
        for leaf in jax.tree.leaves(translator.inference_model.params)
        for device in leaf.devices()
    }


def test_devices_are_divided_into_equal_sets():
    devices = jax.local_devices()
    assert device_sets(1) == [devices] and device_sets(8) == [[device] for device in devices]
    assert device_sets(2) == [devices[:4], devices[4:]]
    with pytest.raises(UserError, match="--replicas=3 must divide the 8 devices of this process"):
        device_sets(3)


@pytest.mark.parametrize("count", [8, 2])
def test_each_replica_is_on_its_devices_alone(tmp_path, count):
    run = write_made_run(tmp_path / "run", made_translator("1", "register", beam_size=1))
    translator = Translator.load_replicas(run, count)
    sets = [devices_of(model) for model in (translator, *translator.replicas)]
    assert list(map(len, sets)) == [8 // count] * count
    assert set.union(*sets) == set(jax.local_devices())
    assert translator.replicas[0].replicas == () and translator.replicas[0].run == translator.run


def test_replicas_share_the_lines_of_a_server(tmp_path):
    run = write_made_run(tmp_path / "run", made_translator("1", "register", beam_size=1))
    translator = Translator.load_replicas(run, 4)
    expected = Translator.load(run, mesh=None).translate(LINES, source="en", target="de")

    used = []

    def make_engine(job: TranslationJob) -> BatchEngine:
        def translate(lines):
            used.extend([devices_of(job.pretrained)] * len(lines))
            return TranslationJob.as_completed(job, lines)

        return BatchEngine(translate)

    job = SentenceJob.create(translator)
    settings = Settings(wait_milliseconds=200)
    service = TranslationService({"run": job}, settings, make_lid176(), make_engine=make_engine)
    options = TranslationOptions("de", "en", sentence_ends="none")
    answers = asyncio.run(service.translate(LINES, options, User("127.0.0.1")))
    service.stop()
    assert [answer.translation.text for answer in answers] == expected
    assert len(set(map(frozenset, used))) == 4 and len(used) == len(LINES)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--replicas=3"], "--replicas=3 must divide the 8 devices of this process"),
        (["--replicas=2", "--engine=ctranslate2"], "--replicas is for --engine=jax"),
        (["--replicas=0"], "--replicas=0 must be at least 1"),
        (
            ["--engine=ctranslate2"],
            "--run=.*/run: CTranslate2 has no model like 'register', only encoder_decod",
        ),
        (["--engine=onnx"], "--engine=onnx must be jax or ctranslate2"),
    ],
)
def test_other_replicas_layouts_and_engines_are_one_line(tmp_path, monkeypatch, flags, message):
    run = write_made_run(tmp_path / "run", made_translator("1", "register"))
    monkeypatch.setenv("PJRT_NPROC", "8")  # else `main` sets it, for the whole process
    monkeypatch.setattr("sys.argv", ["mnmt serve", f"--run={run}", *flags])
    with pytest.raises(UserError, match=message):
        serve.main()
