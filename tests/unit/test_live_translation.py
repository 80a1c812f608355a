"""Lines that arrive at any time: translated as in a file, in turn, and alone if one fails."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.decoding import alignment, live_translation
from mnmt_jax.decoding.live_translation import LiveTranslation, fitting_size
from mnmt_jax.decoding.search_arrays import StopAfter, repeat_until
from mnmt_jax.decoding.text.translated_text import LineOfText
from mnmt_jax.decoding.translation import Hypothesis, Translation
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.errors import UserError
from mnmt_jax.serving.line_engines import BatchEngine, JobEngine
from mnmt_jax.serving.live_batcher import LiveBatcher
from mnmt_jax.serving.warm_up import warm_up
from tests.unit.made_server import MadeJob
from tests.unit.made_translator import BUCKETS, LINES, assert_alike, made_translator

# Outputs of different lengths; for some, a first search does not suffice.
OPTIONS = {"batch": 8, "buckets": (9, 40), "beam_size": 2, "max_length": 60}
OPTIONS["max_length_per_source"] = 1.5
TEXTS = [LINES[n % len(LINES)] for n in range(20)]
TEXTS[3] = TEXTS[11] = " ".join(LINES)
TEXTS[5] = ""


@pytest.fixture(scope="module")
def job() -> TranslationJob:
    return TranslationJob.create(made_translator(**OPTIONS))


@pytest.fixture(scope="module")
def expected(job) -> list[Translation]:
    return [translation for _, translation in job.in_order(numbered(job))]


def finished(engine) -> dict:
    """Run an engine until no line is left; return the results by key."""
    results = {}
    while len(engine):
        results |= dict(engine.run())
    return results


def numbered(job: TranslationJob):
    return job.number_lines(TEXTS, source="en", target="de")


@pytest.mark.parametrize("arrivals", [(20,), (1, 2, 17), (9, 1, 0, 1, 9), (1,) * 20])
def test_lines_that_arrive_at_any_time_are_translated_as_in_a_file(job, expected, arrivals):
    lines, results = list(numbered(job)), {}
    engine = JobEngine(job)
    for count in arrivals:
        engine.add([(line.number, line) for line in lines[:count]])
        del lines[:count]
        results |= dict(engine.run())
    results |= finished(engine)
    assert not lines and len(results) == 20
    assert_alike([results[number] for number in range(20)], expected)


def test_as_many_lines_as_slots_are_bit_equal_to_a_file(job, expected):
    live = LiveTranslation[int](job)
    live.add([(line.number, line) for line in numbered(job)])
    results = finished(live)
    short = [n for n in range(20) if n not in (3, 5, 11) and not limited(expected[n])]
    assert len(short) > 4
    for number in short:
        assert results[number] == expected[number]


def limited(translation: Translation) -> bool:
    """Return whether a line was searched again, in a batch whose size depends on the others."""
    return any(len(hypothesis.tokens) > 20 for hypothesis in translation.hypotheses)


def test_lines_enter_slots_while_others_are_searched(job, expected, monkeypatch):
    together, admitted = recorded_batches(monkeypatch)
    live = LiveTranslation[int](job)
    lines = [line for line, text in zip(numbered(job), expected, strict=True) if text.hypotheses]
    short = [line for line in lines if not limited(expected[line.number])]
    assert len({len(expected[line.number].hypotheses[0].tokens) for line in short}) > 1
    live.add([(number, short[number % len(short)]) for number in range(32)])
    while len(live) > 12:
        list(live.run())
    assert not together and len(admitted) > 5 and max(admitted) == 2
    live.abandon()
    live.add([(0, short[0])])
    list(live.run())
    assert together == [1]


def recorded_batches(monkeypatch) -> tuple[list[int], list[int]]:
    """Return lists that get the number of lines of batches, and of admissions to slots."""
    together, admitted = [], []
    search, admit = live_translation.search_together, live_translation.Slots.admit

    def searched(model, algorithm, admission):
        if admission.batch["source_tokens"].shape[1] == min(OPTIONS["buckets"]):
            together.append(len(admission.numbers))
        return search(model, algorithm, admission)

    def recorded(slots, admission, stop):
        admitted.append(len(admission.numbers))
        return admit(slots, admission, stop)

    monkeypatch.setattr(live_translation, "search_together", searched)
    monkeypatch.setattr(live_translation.Slots, "admit", recorded)
    return together, admitted


def test_a_batch_is_not_padded_by_more_than_a_quarter():
    sizes = [1, 2, 4, 8, 16, 32]
    fits = {1: 1, 2: 2, 3: 4, 4: 4, 5: 4, 6: 8, 11: 8, 12: 16, 23: 16, 24: 32, 32: 32, 99: 32}
    assert {lines: fitting_size(sizes, lines) for lines in fits} == fits
    assert fitting_size([8, 16], 1) == 8  # at least one row on each of eight devices


@pytest.mark.parametrize(
    ("stop", "steps"),
    [(StopAfter(2, 99), 5), (StopAfter(2, 3), 3), (StopAfter(2, 0), 0), (2, 5), (None, 7)],
)
def test_a_program_ends_after_its_steps_or_lines(stop, steps):
    """Three lines end after 4, 5 and 7 steps."""
    lengths = jnp.array([4, 5, 7])
    state = repeat_until(stop, lambda step: step >= lengths, lambda step: step + 1, jnp.int32(0))
    assert state == steps


def test_groups_of_a_beam_have_a_text_once(job):
    greedy = TranslationJob.create(job.pretrained, beam_size=1)
    groups = {"beam_size": 3, "beam_groups": 3, "diversity_penalty": 0.0}  # three greedy searches
    equal = TranslationJob.create(job.pretrained, **groups)
    lines = list(numbered(equal))[:4]
    searched = [translation for _, translation in equal.in_order(iter(lines))]
    engine = JobEngine(equal)
    engine.add([(line.number, line) for line in lines])
    served = finished(engine)
    expected = [translation for _, translation in greedy.in_order(iter(lines))]
    assert all(len(translation.hypotheses) == 1 for translation in expected)
    assert_alike(searched, expected)
    assert_alike([served[line.number] for line in lines], expected)


def test_a_shape_with_few_lines_waits_for_a_few_programs_alone(job):
    live = LiveTranslation[int](job)
    lines = list(numbered(job))
    live.add([(number, lines[3]) for number in range(30)])  # long ones, which fill the slots
    live.add([(number, lines[0]) for number in range(30, 32)])
    done = [number for _ in range(4) for number, _ in live.run()]
    assert {30, 31} <= set(done) and len(live) > 20
    assert len(live.abandon()) == 32 - len(done)
    assert len(live) == 0 and not dict(live.run())


def test_lines_that_are_aligned_get_their_alignment(job):
    engine, (line, other, *_) = JobEngine(job), numbered(job)
    engine.add([(0, dataclasses.replace(line, aligned=True)), (1, other)])
    results = finished(engine)
    assert results[0].alignment is not None and results[1].alignment is None


def test_an_output_that_is_not_a_number_is_the_error_of_its_line(job, monkeypatch):
    search = live_translation.search_together

    def broken(model, algorithm, admission):
        results = search(model, algorithm, admission)
        hypotheses = results[0].hypotheses
        scores = np.where(
            np.arange(len(hypotheses.scores))[:, None] == 1, np.nan, hypotheses.scores
        )
        broken_ones = dataclasses.replace(hypotheses, scores=scores)
        return [dataclasses.replace(result, hypotheses=broken_ones) for result in results]

    monkeypatch.setattr(live_translation, "search_together", broken)
    live = LiveTranslation[str](job)
    line, *_ = numbered(job)
    live.add([("a", line), ("b", line)])
    results = finished(live)
    assert isinstance(results["a"], Translation)
    assert isinstance(results["b"], UserError) and "not a number" in str(results["b"])


def test_lines_of_a_program_that_failed_are_translated_alone(job, expected, monkeypatch, caplog):
    def fail(*args):
        raise RuntimeError("a device was lost")

    monkeypatch.setattr(live_translation, "search_together", fail)
    engine = JobEngine(job)
    lines = list(numbered(job))[:2]
    engine.add([(line.number, line) for line in lines])
    results = dict(engine.run())
    assert_alike([results[0], results[1]], expected[:2])
    assert "continuous batching: RuntimeError at " in caplog.text
    assert "a device was lost" not in caplog.text  # which may have a user's words


def test_lines_whose_search_does_not_fit_the_memory_keep_their_places(job, expected, monkeypatch):
    """The long line is refused after the short one found its shape; both are translated once."""
    refuse_longest_searches(monkeypatch)
    lines = list(numbered(job))
    engine, results = JobEngine(job), []
    engine.add([(number, lines[number]) for number in (0, 3)])
    while len(engine):
        results += engine.run()
    assert [number for number, _ in results] == [0, 3]
    assert_alike([result for _, result in results], [expected[0], expected[3]])


def test_a_line_whose_second_search_does_not_fit_the_memory_is_translated(monkeypatch):
    job = TranslationJob.create(made_translator(beam_size=1, max_length=60))
    lines = list(numbered(job))[:2]
    expected = [translation for _, translation in job.in_order(iter(lines))]
    assert any(len(translation.hypotheses[0].tokens) > 30 for translation in expected)
    refuse_longest_searches(monkeypatch)
    engine = JobEngine(job)
    engine.add(list(enumerate(lines)))
    monkeypatch.setattr(engine._live, "abandon", None)  # other lines go on
    results = finished(engine)
    assert_alike([results[0], results[1]], expected)


def refuse_longest_searches(monkeypatch) -> None:
    """Let the check of the memory refuse searches of the maximum length in slots."""

    class Pool(live_translation._Pool):
        def __init__(self, owner, shape):
            if shape.steps == 61:
                raise UserError("too large")
            super().__init__(owner, shape)

    monkeypatch.setattr(live_translation, "_Pool", Pool)


def test_lines_that_wait_for_an_alignment_that_fails_have_results(job, expected, monkeypatch):
    def fail(*args):
        raise RuntimeError("a device was lost")

    monkeypatch.setattr(alignment, "align_lines", fail)
    engine, lines = JobEngine(job), list(numbered(job))
    engine.add([(0, lines[0]), (1, dataclasses.replace(lines[1], aligned=True))])
    results = finished(engine)
    assert_alike([results[0]], [expected[0]])
    assert isinstance(results[1], RuntimeError)


def test_an_engine_that_fails_ends_its_lines_and_no_thread():
    class Engine(BatchEngine):
        def add(self, lines):
            if any(line.text == "Fail." for _, line in lines):
                raise KeyError(0)
            super().add(lines)

    engine = Engine(MadeJob().as_completed)
    batcher = LiveBatcher([engine], wait_seconds=0, max_waiting=9, window=1)
    texts = ("Fail.", "Go.")
    failed, later = batcher.submit([LineOfText(text, "en", "de") for text in texts], "a")
    assert isinstance(failed.exception(30), UserError) and later.result(30).text == "[de] Go."
    batcher.stop()


def test_shapes_of_second_searches_are_compiled_at_the_start_and_refused_ones_named(
    monkeypatch, capsys
):
    job = TranslationJob.create(made_translator(beam_size=1, max_length=60))
    shapes, search = [], live_translation.search_together

    def recorded(model, algorithm, admission):
        """Search as if the first search of every line sufficed."""
        bucket = admission.batch["source_tokens"].shape[1]
        shapes.append((bucket, admission.request.max_steps))
        ended = search(model, algorithm, admission)
        return [dataclasses.replace(result, done=True) for result in ended]

    monkeypatch.setattr(live_translation, "search_together", recorded)
    warm_up(job, 1)
    first, second = BUCKETS
    assert shapes == [(first, 21), (second, 29), (second, 61)]
    monkeypatch.setattr(JobEngine, "run", failing_run)
    warm_up(job, 2)
    (line, *_) = capsys.readouterr().err.splitlines()
    assert line == f"warning: 1 sentence of {first} tokens cannot be translated together: too large"


def failing_run(engine):
    """Yield errors instead of translations."""
    yield from ((key, UserError("too large")) for key, _ in engine._live.abandon())


def test_a_failing_line_fails_alone_in_a_batch():
    def translate(lines):
        for line in lines:
            if line.text == TEXTS[1]:
                raise ValueError("broken")
            yield line, Translation((Hypothesis(line.text.upper(), 0.0, ()),))

    engine = BatchEngine(translate)
    lines = TranslationJob.create(made_translator(**OPTIONS)).number_lines(
        TEXTS[:3], source="en", target="de"
    )
    engine.add([(10 + line.number, line) for line in lines])
    results = dict(engine.run())
    assert [results[10].text, results[12].text] == [TEXTS[0].upper(), TEXTS[2].upper()]
    assert isinstance(results[11], ValueError) and len(engine) == 0


def test_lines_that_are_not_aligned_are_encoded_once(job, monkeypatch):
    encoded = []
    encode = alignment.encode_lines
    monkeypatch.setattr(alignment, "encode_lines", lambda *args: encoded.append(1) or encode(*args))
    engine, (line, *_) = JobEngine(job), numbered(job)
    engine.add([(0, line)])
    assert finished(engine)[0].text and not encoded
    engine.add([(0, dataclasses.replace(line, aligned=True))])
    assert finished(engine)[0].alignment is not None and encoded
