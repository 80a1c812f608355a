"""Translation by RunInference: that of a translator, whatever Beam batches together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mnmt_jax.config.sections import Model
from mnmt_jax.decoding.translator import Translator
from tests.made_params import write_random_run
from tests.unit import made_text

beam = pytest.importorskip("apache_beam", reason="Apache Beam is not installed: test_beam.sh")

ROOT = Path(__file__).resolve().parents[2]
RUNNER = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
MODEL = Model("prefix", (2,), embed=32, mlp=64, heads=2, norm="pre")


@pytest.mark.parametrize("max_batch", [3, 1024])
def test_lines_are_translated_as_by_a_translator(tmp_path, max_batch):
    from apache_beam.ml.inference.base import KeyedModelHandler, RunInference
    from apache_beam.testing.util import assert_that, equal_to

    from mnmt_jax.interop.beam_inference import TranslationHandler

    write_random_run(tmp_path / "run", MODEL, seed=3)
    lines = ["", *made_text.sentences("en", 10)]
    options = {"source": "en", "target": "de", "beam_size": 2, "max_length": 12}
    expected = Translator.load(tmp_path / "run").translate(lines, **options)
    assert len(set(expected)) > 4
    handler = TranslationHandler(str(tmp_path / "run"), max_batch=max_batch, **options)
    with beam.Pipeline(runner=RUNNER) as pipeline:
        translated = (
            pipeline
            | beam.Create(list(enumerate(lines)))
            | RunInference(KeyedModelHandler(handler))
            | beam.MapTuple(lambda number, translation: (number, translation.text))
        )
        assert_that(translated, equal_to(list(enumerate(expected))))


def test_the_example_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_random_run(Path("runs/register"), MODEL, seed=3)
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    exec(re.search(r"```text\n(import apache_beam.*?)```", page, re.DOTALL)[1], {})
    (written,) = tmp_path.glob("pairs-*")
    german, english = written.read_text(encoding="utf-8").rstrip("\n").split("\t")
    assert german == "vor zwei Tagen" and english
