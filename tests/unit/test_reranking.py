"""Reranking by quality metrics, and by the model in the other direction."""

import types

import numpy as np
import pytest

from mnmt_jax.commands import evaluate as evaluate_command
from mnmt_jax.decoding import translate_lines as lines_module
from mnmt_jax.decoding import utilities
from mnmt_jax.decoding.translate_lines import translate_lines
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.decoding.utilities import register_quality_metric
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation import neural_utilities
from mnmt_jax.evaluation.metrics_environment import VARIABLE, MetricWorker
from tests.unit.made_metrics import made_environment
from tests.unit.made_translator import LINES, forced_log_probs, made_translator

INTO_FRENCH = {"source": "en", "target": "fr"}
BACKWARD = {**INTO_FRENCH, "utility": "backward"}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Drop utilities that a test registers."""
    monkeypatch.setattr(utilities, "_UTILITIES", dict(utilities._UTILITIES))
    yield
    utilities.get_utility.cache_clear()


def test_backward_adds_the_mean_log_probability_of_the_source():
    translator, changed = made_translator(), 0
    plain = translator.translate_nbest(LINES, **INTO_FRENCH)
    ranked = translator.translate_nbest(LINES, **BACKWARD)
    for line, before, after in zip(LINES, plain, ranked, strict=True):
        source = [*translator.vocabulary.encode(line, "en"), translator.vocabulary.eos_id]
        expected = []
        for hypothesis in before.hypotheses:
            log_probs = forced_log_probs(translator, hypothesis.text, "fr", "en")
            backward = [log_probs(source[:n])[token] for n, token in enumerate(source)]
            expected.append(hypothesis.score + np.mean(backward))
        order = np.argsort(-np.array(expected), kind="stable")
        assert [one.tokens for one in after.hypotheses] == [
            before.hypotheses[rank].tokens for rank in order
        ]
        utilities = [one.utility for one in after.hypotheses]
        np.testing.assert_allclose(utilities, np.take(expected, order), atol=1e-4)
        changed += order[0] != 0
    assert changed


def test_lines_do_not_depend_on_finished_ones(monkeypatch):
    """Bit for bit, although the pairs of all lines share batches: all have the same rows."""
    shapes, original = set(), lines_module.score_batch

    def score_batch(params, batch, **options):
        shapes.add(batch["source_tokens"].shape[0])
        return original(params, batch, **options)

    monkeypatch.setattr(lines_module, "score_batch", score_batch)
    translator = made_translator(utility="backward", batch=64)
    decode, model = translator.config.decode, translator.inference_model
    lines = list(TranslationJob.create(translator).number_lines(LINES, **INTO_FRENCH))
    together = dict(translate_lines(model, lines, decode))
    rest = dict(translate_lines(model, lines, decode, done=range(5)))
    assert rest == {i: together[i] for i in (5, 6)}
    assert shapes == {64}


def test_a_line_that_does_not_fit_backwards_keeps_the_order_of_scores():
    translator, long = made_translator(), "two " * 30
    (plain, ranked) = (
        translator.translate_nbest([LINES[0], long], **settings)
        for settings in (INTO_FRENCH, BACKWARD)
    )
    assert plain[1].truncated and ranked[1] == plain[1]
    assert ranked[0].hypotheses[0].utility is not None


def test_a_registered_quality_metric_scores_all_candidates_in_one_call():
    calls = []

    def shortness(lines, translations):
        calls.append([line.text for line in lines])
        return [-len(text) for text in translations]

    register_quality_metric("short", shortness)
    translator = made_translator()
    plain = translator.translate_nbest(LINES, **INTO_FRENCH)
    ranked = translator.translate_nbest(LINES, **INTO_FRENCH, utility="short")
    for before, after in zip(plain, ranked, strict=True):
        ordered = sorted(before.hypotheses, key=lambda one: len(one.text))
        assert [one.tokens for one in after.hypotheses] == [one.tokens for one in ordered]
    (sources,) = calls
    counts = {line: len(before.hypotheses) for line, before in zip(LINES, plain, strict=True)}
    assert {line: sources.count(line) for line in LINES} == counts


def test_neural_metrics_are_utilities(tmp_path, monkeypatch):
    """COMET's stand-in is 1 for equal texts, CometKiwi's 1 / length."""
    worker = MetricWorker(made_environment(tmp_path / "metrics"))
    monkeypatch.setattr(neural_utilities, "_worker", lambda: worker)
    (tmp_path / "model.ckpt").write_text("weights")
    translator, samples = made_translator(), {"temperature": 0.7, "beam_size": 6}
    plain = translator.translate_nbest(LINES, **INTO_FRENCH, **samples)
    for name, expected in (
        ("comet", lambda text, texts: texts.count(text) / len(texts)),
        ("kiwi", lambda text, texts: 1 / len(text)),
    ):
        model = f"{name}:{tmp_path}/model.ckpt"
        ranked = translator.translate_nbest(LINES, **INTO_FRENCH, **samples, utility=model)
        for before, after in zip(plain, ranked, strict=True):
            texts = [one.text for one in before.hypotheses]
            best = max(expected(text, texts) for text in texts)
            assert after.hypotheses[0].utility == pytest.approx(best)
            assert expected(after.text, texts) == pytest.approx(best)
    with pytest.raises(UserError, match="Decode.utility='kiwi:none': no such file or folder"):
        translator.translate(LINES, **INTO_FRENCH, utility="kiwi:none")
    with pytest.raises(UserError, match="Decode.utility='kiwi': must be one of .*kiwi:MODEL"):
        translator.translate(LINES, **INTO_FRENCH, utility="kiwi")


def test_utilities_use_the_environment_of_the_flag(tmp_path, monkeypatch):
    """The message on a missing one names what all commands have, not the flag of one."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "a"))
    message = rf"none in {tmp_path}/a; 'mnmt metrics setup' makes it, \$MNMT_JAX_METRICS names"
    with pytest.raises(UserError, match=message):
        MetricWorker().check_environment()
    flags = {"task": "cldr_quickstart", "hypotheses": tmp_path / "none", "output": tmp_path / "out"}
    flags["metrics_environment"] = tmp_path / "b"
    words = [f"--{name}={value}" for name, value in flags.items()]
    monkeypatch.setattr("sys.argv", ["evaluate", *words])
    with pytest.raises(UserError, match="no such folder"):
        evaluate_command.main()
    with pytest.raises(UserError, match=f"there is none in {tmp_path}/b;"):
        MetricWorker().check_environment()


def test_metricx_counts_errors(tmp_path, monkeypatch):
    """The translation with the fewest expected errors is the one that was drawn most often."""

    def errors(metric, model, rows):
        assert (metric, model) == ("metricx", str(tmp_path))
        return [float(row["mt"] != row["ref"]) for row in rows]

    worker = types.SimpleNamespace(score=errors)
    monkeypatch.setattr(neural_utilities, "_worker", lambda: worker)
    translator, samples = made_translator(), {"temperature": 0.4, "beam_size": 6}
    plain = translator.translate_nbest(LINES, **INTO_FRENCH, **samples)
    metric = f"metricx:{tmp_path}"
    ranked = translator.translate_nbest(LINES, **INTO_FRENCH, **samples, utility=metric)
    shares = []
    for before, after in zip(plain, ranked, strict=True):
        texts = [one.text for one in before.hypotheses]
        counts = sorted(map(texts.count, texts))
        assert texts.count(after.text) == counts[-1]
        assert after.hypotheses[0].utility == pytest.approx(counts[-1] / len(texts) - 1)
        shares.append((counts[0], counts[-1]))
    assert any(fewest < most for fewest, most in shares)
