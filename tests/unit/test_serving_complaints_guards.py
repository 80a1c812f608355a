"""Complaints of users of other servers about wrong output and wrong detection, and their remedies.

Each test names the public issue. The server's model is a dictionary.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from mnmt_jax.config.sections import Decode
from mnmt_jax.decoding.guards import TranslationChecker
from mnmt_jax.decoding.retry import Attempt, Retry
from mnmt_jax.decoding.translation import Hypothesis, Translation
from mnmt_jax.errors import UserError
from mnmt_jax.serving.settings import Settings
from mnmt_jax.vocabulary.language_detectors import make_lid176
from tests.unit.made_server import MadeJob, made_service, serving
from tests.unit.test_serving import call
from tests.waiting import wait_until

LANGUAGES = ("en", "de", "fr", "it", "bn", "ru", "pt")
LOOP = "pre-pre- pre-pre-" + " pre-" * 40


class DictionaryJob(MadeJob):
    """A job that translates by a dictionary, and other lines to themselves."""

    pivot = "en"

    def __init__(self, dictionary: Mapping[str, str | Translation]) -> None:
        super().__init__(LANGUAGES)
        self.decode = Decode(language_contrast=0.4)
        self._dictionary = dictionary

    def as_completed(self, lines: Any) -> Iterator[Any]:
        self.batches.append([line.text for line in lines])
        assert self.gate.wait(60)
        for line in lines:
            text = self._dictionary.get(line.text, line.text)
            if isinstance(text, Translation):
                yield line, text
            else:
                yield line, Translation((Hypothesis(text, -1.0, (1,)),))


def job_with_retry(first: Mapping, contrast: Mapping, pivot: Mapping) -> DictionaryJob:
    job = DictionaryJob(first)
    attempts = [
        Attempt("contrast", DictionaryJob(contrast)),
        Attempt("pivot", DictionaryJob(pivot)),
    ]
    job.retry = Retry(TranslationChecker(make_lid176(), LANGUAGES), tuple(attempts))  # type: ignore
    return job


def translate(job: MadeJob, q: str | list[str], source: str, target: str, **fields: Any) -> Any:
    with serving(made_service(job, wait_milliseconds=0)) as url:
        body = {"q": q, "source": source, "target": target, **fields}
        status, answer = call(url, "/translate", body)
    assert status == 200, answer
    return answer


# Endless repetition: LibreTranslate 183, argos-translate 428 and 212


def test_libretranslate_183_a_loop_is_searched_again_with_contrast():
    job = job_with_retry({"заранее": LOOP}, {"заранее": "in advance"}, {})
    answer = translate(job, "заранее", "ru", "en")
    assert answer == {"translatedText": "in advance", "retried": "contrast"}


def test_argos_translate_428_a_loop_is_searched_again_through_a_pivot():
    three = "matriculados matriculados matriculados"
    job = job_with_retry({"inscrit": three}, {"inscrit": three}, {"inscrit": "matriculado"})
    answer = translate(job, ["inscrit", "12"], "fr", "pt")
    assert answer == {"translatedText": ["matriculado", "12"], "retried": ["pivot", None]}


def test_argos_translate_212_a_loop_that_stays_is_marked():
    loop = "cada vez " * 30
    job = job_with_retry(*({"increasingly": loop},) * 3)
    answer = translate(job, "increasingly", "en", "pt", checks=True)
    assert answer["translatedText"] == loop and "retried" not in answer
    assert answer["checks"]["repeated"] and not answer["checks"]["sentences"][0]["empty"]


# Sentences silently omitted: fairseq 5108 and 5549, transformers 24169


class FirstSentenceJob(DictionaryJob):
    """A job that translates the first sentence of a line and omits the others."""

    def as_completed(self, lines: Any) -> Iterator[Any]:
        for line in lines:
            text = line.text.partition(". ")[0]
            yield line, Translation((Hypothesis(f"[{text}]", -1.0, (1,)),))


def test_fairseq_5108_and_5549_no_sentence_of_a_text_is_omitted():
    text = "I came home. It was late. Nobody was there."
    answer = translate(FirstSentenceJob({}), text, "en", "de", checks=True)
    assert answer["translatedText"] == "[I came home.] [It was late.] [Nobody was there.]"
    sources = [sentence["source"] for sentence in answer["checks"]["sentences"]]
    assert sources == ["I came home.", "It was late.", "Nobody was there."]


def test_transformers_24169_a_translation_that_may_be_incomplete_is_marked():
    cut = Translation((Hypothesis("Ich kam nach Hause und", -1.0, (1,)),), limited=True)
    answer = translate(
        DictionaryJob({"I came home.": cut}), "I came home. It.", "en", "de", checks="1"
    )
    assert answer["checks"]["cut"]
    assert [sentence["cut"] for sentence in answer["checks"]["sentences"]] == [True, False]
    empty = translate(DictionaryJob({"It.": Translation()}), "It.", "en", "de", checks=True)
    assert empty["checks"]["empty"]


# Wrong detection of short texts and of mixed batches: LibreTranslate 902, 508, 779


def detect(text: str) -> tuple[str, float]:
    detected = made_service(DictionaryJob({})).detect(text)
    assert detected
    return detected


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("hello handsome", "en"),  # 902: Bengali
        ("hello handsome man", "en"),
        ("La tua password non è corretta", "it"),  # 508: English
        ("LA TUA PASSWORD NON È CORRETTA", "it"),
        ("Dankeschön", "de"),
    ],
)
def test_libretranslate_902_and_508_short_texts_are_in_a_language_of_the_model(text, language):
    assert detect(text)[0] == language


def test_libretranslate_902_the_confidence_of_a_short_text_is_low():
    assert detect("la")[1] < 0.7 < 0.9 < detect("It has been raining since yesterday.")[1]
    assert made_service(DictionaryJob({})).detect("12:30 😀") is None


def test_text_in_a_language_of_no_model_is_not_forced_into_one():
    assert made_service(DictionaryJob({})).detect("昨日は山の天気がずっと良かったです。") is None


def test_libretranslate_779_each_text_of_a_batch_is_detected_alone():
    texts = [
        "Ciao, mi chiamo Carlo e ho diciotto anni.",
        "Je suis une fille, je suis française et j'ai treize ans.",
        "Mein Name ist Anna und ich wohne in einer kleinen Stadt.",
    ]
    answer = translate(DictionaryJob({}), [*texts, "12"], "auto", "en")
    detected = answer["detectedLanguage"]
    assert [one["language"] for one in detected[:3]] == ["it", "fr", "de"]
    assert all(one["confidence"] > 90 for one in detected[:3]) and detected[3]["confidence"] == 0


# The protocol


def test_checks_are_a_field_of_both_protocols():
    job = DictionaryJob({"I have 2 dogs in my garden.": "J'ai deux chiens dans mon jardin."})
    with serving(made_service(job, wait_milliseconds=0)) as url:
        body = {"text": ["I have 2 dogs in my garden."], "target_lang": "DE", "source_lang": "EN"}
        (plain,) = call(url, "/v2/translate", body)[1]["translations"]
        (checked,) = call(url, "/v2/translate", {**body, "checks": "true"})[1]["translations"]
        assert "checks" not in plain and plain["text"] == checked["text"]
        assert checked["checks"]["off_target"] and checked["checks"]["language"] == "fr"
        assert checked["checks"]["missing_numbers"] == ["2"]
        assert "not_translated" not in checked["checks"]
        (kept,) = call(url, "/v2/translate", {**body, "source_lang": "DE", "checks": "1"})[1][
            "translations"
        ]
        assert kept["checks"]["not_translated"] and not kept["checks"]["sentences"]
        path = "/translate?q=12&source=en&target=de&checks=yes"
        assert call(url, path, {}) == (400, {"error": "checks must be true or false"})


def test_an_answer_in_the_wrong_language_is_searched_again():
    source, good = "I have two dogs in my garden.", "Ich habe zwei Hunde in meinem Garten."
    job = job_with_retry({}, {}, {source: good})
    answer = translate(job, source, "en", "de")
    assert answer == {"translatedText": source}  # through English, the source: no pivot
    source, wrong = "J'ai deux chiens dans mon jardin.", "I have two dogs in my garden."
    job = job_with_retry({source: wrong}, {}, {source: good})
    answer = translate(job, source, "fr", "de")
    assert answer == {"translatedText": good, "retried": "pivot"}


def test_retries_do_not_hold_up_other_requests():
    job = job_with_retry({"заранее": LOOP}, {"заранее": "in advance"}, {})
    retry: Any = job.retry
    gate = retry.attempts[0].job.gate
    gate.clear()
    with (
        serving(made_service(job, wait_milliseconds=0)) as url,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        body = {"source": "ru", "target": "en"}
        first = pool.submit(call, url, "/translate", {**body, "q": "заранее"})
        wait_until(lambda: retry.attempts[0].job.batches)
        start = time.monotonic()
        assert call(url, "/translate", {**body, "q": "да"})[0] == 200
        assert time.monotonic() - start < 30 and not first.done()
        gate.set()
        assert first.result()[1]["retried"] == "contrast"


def test_a_retry_that_fails_or_finds_no_room_leaves_the_first_translation(caplog):
    job = job_with_retry({"заранее": LOOP}, {}, {})
    retry: Any = job.retry

    def fail(lines: Any) -> Iterator[Any]:
        raise ValueError("secret")

    for attempt in retry.attempts:
        attempt.job.as_completed = fail
    assert translate(job, "заранее", "ru", "de") == {"translatedText": LOOP}
    assert "contrast: UserError at " in caplog.text and "secret" not in caplog.text
    service = made_service(job, wait_milliseconds=0)
    with serving(service) as url:
        (model,) = service.models()
        for _, batcher in model.retries:
            batcher._batcher._max_waiting = 0
        status, answer = call(url, "/translate", {"q": "заранее", "source": "ru", "target": "de"})
        assert (status, answer) == (200, {"translatedText": LOOP})


def test_settings_of_retries_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="--retry_off_target is for --engine=jax"):
        Settings(retry_off_target=True, engine="ctranslate2")
    with pytest.raises(UserError, match="--retry_pivot is the pivot of --retry_off_target"):
        Settings(retry_pivot="en")
    assert Settings(retry_off_target=True, retry_pivot="en").retry_off_target


def test_a_precision_of_ctranslate2_is_refused_with_another_engine():
    with pytest.raises(UserError, match=r"^--compute_type=int8 is for --engine=ctranslate2;"):
        Settings(compute_type="int8")
    assert Settings(engine="ctranslate2", compute_type="int8").engine == "ctranslate2"
