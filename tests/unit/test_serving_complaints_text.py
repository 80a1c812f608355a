"""What users of translation servers complain about: text, and what is translated beside it.

Numbers are those of issues in the public trackers of the servers named.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from mnmt_jax.decoding.text.sentence_job import SentenceJob
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.serving.line_engines import JobEngine
from mnmt_jax.serving.service import TranslationOptions, TranslationService
from mnmt_jax.serving.settings import Settings
from mnmt_jax.serving.users import User
from mnmt_jax.vocabulary.language_detectors import make_lid176
from tests.unit.made_server import MadeJob, made_service, serving
from tests.unit.made_translator import LINES, assert_alike, made_translator
from tests.unit.test_serving import call

WRAPPED = "A line of text that is as long as wrapped ones"


@pytest.fixture
def job() -> MadeJob:
    return MadeJob()


@pytest.fixture
def translate(job):
    """Return the translation of a text by the served translator, and the sentences it got."""
    with serving(made_service(job, wait_milliseconds=0)) as address:

        def translated(text: str) -> str:
            body = {"q": text, "source": "en", "target": "de"}
            status, answer = call(address, "/translate", body)
            assert status == 200, answer
            return answer["translatedText"]

        yield translated


def sentences(job: MadeJob) -> list[str]:
    return [sentence for batch in job.batches for sentence in batch]


@pytest.mark.parametrize(
    "name", ["{name}", "%s", "%1$s", "%(count)d", "__VAR__", "${HOME}", "{{ user.name }}"]
)
def test_libretranslate_944_and_123_placeholders_are_translated(translate, job, name):
    job.respond = lambda sentence: sentence.replace(name, "X").upper()  # a model that loses it
    assert translate(f"Hello {name}, you have mail.") == f"HELLO {name}, YOU HAVE MAIL."


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [WRAPPED, "goes on here."]),
        ({"split_sentences": "1"}, [WRAPPED, "goes on here."]),
        ({"split_sentences": "nonewlines"}, [f"{WRAPPED} goes on here."]),
    ],
)
def test_line_breaks_end_sentences_by_deepl_s_split_sentences(job, fields, expected):
    body = {"text": [f"{WRAPPED}\ngoes on here."]} | fields
    with serving(made_service(job, wait_milliseconds=0)) as address:
        status, _ = call(
            address, "/v2/translate", {**body, "source_lang": "EN", "target_lang": "DE"}
        )
    assert status == 200 and sentences(job) == expected


def test_libretranslate_439_an_emoji_cuts_off_the_rest(translate, job):
    assert (
        translate("I am happy 😀 and you? Yes 👍🏽.")
        == "[de] I am happy 😀 and you? [de] Yes 👍🏽."
    )
    assert sentences(job) == ["I am happy 😀 and you?", "Yes 👍🏽."]


def test_libretranslate_710_and_917_capitals_are_left_or_mangled(translate, job):
    assert translate("DO NOT OPEN THE DOOR!") == "[DE] DO NOT OPEN THE DOOR!"
    assert sentences(job) == ["Do not open the door!"]  # as the model was trained


def test_libretranslate_610_wrapped_lines_are_translated_one_by_one(translate, job):
    text = "The cat of the neighbours sat on the\nmat and slept.\n\nThen it rained."
    assert translate(text).count("\n") == text.count("\n")
    assert sentences(job) == [
        "The cat of the neighbours sat on the mat and slept.",
        "Then it rained.",
    ]


def test_lines_of_a_list_are_translated_one_by_one(translate, job):
    assert translate("in 3 days\nin 4 days\nthen") == "[de] in 3 days\n[de] in 4 days\n[de] then"


def test_fairseq_5108_and_5549_and_transformers_24169_sentences_are_omitted(translate, job):
    text = "One. Two! Three? Four; and five: six. (Seven.) „Eight.“ Nine"
    translated = translate(text)
    assert all(
        word in translated for word in "One Two Three Four five six Seven Eight Nine".split()
    )
    long = ", ".join(f"word{n}" for n in range(100)) + "."  # more than the model takes
    translated = translate(long)
    assert all(f"word{n}" in translated for n in range(100))


def test_opennmt_py_2208_and_1547_and_ctranslate2_546_batch_mates_change_a_translation():
    job = TranslationJob.create(made_translator(beam_size=2))
    texts = [LINES[n % len(LINES)] for n in range(24)]
    expected = [
        translation
        for _, translation in job.in_order(job.number_lines(texts, source="en", target="de"))
    ]
    random.Random(0).shuffle(order := list(range(24)))
    lines = list(job.number_lines(texts, source="en", target="de"))
    engine, results = JobEngine(job), {}
    for number in order:
        engine.add([(number, lines[number])])
        results |= dict(engine.run()) if number % 5 == 0 else {}
    while len(engine):
        results |= dict(engine.run())
    assert_alike([results[number] for number in range(24)], expected)


@pytest.mark.parametrize("utility", ["", "chrf"])
def test_samples_of_a_text_are_those_of_translate_text_whoever_else_asks(utility):
    translator = made_translator(beam_size=2, temperature=1.0, utility=utility)
    job = SentenceJob.create(translator)
    text, other = f"{LINES[0]}\n\n{LINES[1]}\n\n{LINES[0]}", LINES[2]
    expected = translator.translate_text(text, source="en", target="de")
    service = TranslationService({"made": job}, Settings(window=3), make_lid176())
    options = TranslationOptions("de", source="en")
    answers = asyncio.run(service.translate([other, text, text], options, User("a")))
    service.stop()
    assert [answer.translation.text for answer in answers[1:]] == [expected.text] * 2
    first, _, third = expected.sentences
    assert first.text != third.text  # equal sentences are drawn anew
