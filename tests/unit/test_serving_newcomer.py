"""What a newcomer stumbles over: variables, limits that cannot be met, texts in the target."""

from __future__ import annotations

import asyncio
import http.client
import json

import pytest

from mnmt_jax.commands import serve
from mnmt_jax.commands.common_flags import CommandParser
from mnmt_jax.decoding.text.translated_text import TextToTranslate
from mnmt_jax.errors import UserError
from mnmt_jax.interop.ctranslate2_job import CTranslate2Job
from mnmt_jax.serving.connections import Server, make_config
from mnmt_jax.serving.document_store import DocumentStore, StoredDocument
from mnmt_jax.serving.service import TranslationOptions
from mnmt_jax.serving.settings import Settings, add_variables
from mnmt_jax.serving.users import User
from tests.unit.made_server import MadeJob, made_service, serving
from tests.unit.test_serving import call

TEXT = "Das ist ein langer deutscher Satz mit Wörtern."


@pytest.fixture
def job() -> MadeJob:
    return MadeJob()


@pytest.fixture
def address(job):
    with serving(made_service(job, wait_milliseconds=0)) as url:
        yield url


# Variables


def parsed(monkeypatch, variables: dict[str, str], *arguments: str):
    for name, value in variables.items():
        monkeypatch.setenv(f"MNMT_SERVE_{name}", value)
    return serve.make_parser().parse_args(arguments)


def test_every_flag_of_a_setting_is_a_variable(monkeypatch):
    variables = {"RUN": "a, b=c", "BEAM_SIZE": "4", "PIVOT": "en", "STEP": "9", "LID": "langdetect"}
    flags = parsed(monkeypatch, variables)
    assert flags.run == ["a", "b=c"] and flags.beam_size == 4
    assert (flags.pivot, flags.step, flags.lid) == ("en", 9, "langdetect")
    flags = parsed(monkeypatch, {}, "--run=d", "--run=e", "--beam_size=2")
    assert flags.run == ["d", "e"] and flags.beam_size == 2


def test_without_a_run_the_flag_is_missing():
    with pytest.raises(UserError, match="--run"):
        serve.make_parser().parse_args([])


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PROT": "81"}, "MNMT_SERVE_PROT: no such variable; did you mean 'MNMT_SERVE_PORT'?"),
        ({"QQQQQQQQ": "81"}, "MNMT_SERVE_QQQQQQQQ: no such variable; see mnmt serve --help"),
        ({"BEAM_SIZE": "x"}, "MNMT_SERVE_BEAM_SIZE: 'x' must be a whole number from 1 to"),
    ],
)
def test_wrong_variables_are_named(monkeypatch, variables, message):
    with pytest.raises(UserError) as caught:
        parsed(monkeypatch, variables, "--run=a")
    assert message in str(caught.value)


def test_variables_of_other_programs_are_ignored():
    parser = CommandParser()
    parser.add_argument("--port", type=int, default=8000)
    add_variables(parser, ["port"], {"MNMT_SERVER": "x", "PORT": "81"})
    assert parser.parse_args([]).port == 8000


def test_help_names_kinds_of_values(capsys):
    with pytest.raises(SystemExit):
        serve.make_parser().parse_args(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "--database FILE" in text and "variable MNMT_SERVE_BEAM_SIZE" in text
    assert "variable MNMT_SERVE_LOG_TEXT; default: off" in text
    assert "variable MNMT_SERVE_THREADS; default: 0" in text
    assert "--max_sentences N most sentences, or texts to be detected, of a request" in text


@pytest.mark.parametrize("value", ["foo", "https://a.org/", "https://a.org, b.org", "a b"])
def test_origins_that_no_browser_sends_are_refused(value):
    with pytest.raises(UserError, match=f"--cors_origins={value}: .* must be an origin"):
        Settings(cors_origins=value)


def test_origins_are_separated_by_commas():
    origins = "https://a.org, http://localhost:8000,moz-extension://1-2,"
    assert Settings(cors_origins=origins).origins == [
        "https://a.org",
        "http://localhost:8000",
        "moz-extension://1-2",
    ]
    assert Settings(cors_origins="*").origins == ["*"] and not Settings(cors_origins="").origins


# Limits


def test_a_request_that_can_never_wait_is_too_large(job):
    service = made_service(job, wait_milliseconds=0, max_waiting=2)
    with serving(service) as url:
        body = {"q": "One. Two. Three.", "source": "en", "target": "de"}
        message = "3 sentences; the limit is 2 (the server's --max_waiting)"
        assert call(url, "/translate", body) == (413, {"error": message})
        assert call(url, "/translate", {**body, "q": "One. Two."})[0] == 200


def test_documents_of_more_sentences_than_may_wait_are_translated(job):
    service = made_service(job, wait_milliseconds=0, max_waiting=2)
    text = TextToTranslate("One. Two. Three. Four. Five.", "en", "de")
    options = TranslationOptions("de", "en")
    translation = service.translate_document([text], options, User("me"), characters=len(text.text))
    try:
        (result,) = asyncio.run(translation)
    finally:
        service.stop()
    assert result.text == "[de] One. [de] Two. [de] Three. [de] Four. [de] Five."


# Texts in the target language


def test_text_in_the_target_language_is_unchanged(address, job):
    text = f"  {TEXT}\n\n{TEXT}"
    body = {"q": text, "source": "de", "target": "de"}
    assert call(address, "/translate", body) == (200, {"translatedText": text})
    status, answer = call(
        address, "/translate", {"q": [text, "I am here and you are not."], "target": "de"}
    )
    assert status == 200
    assert answer["translatedText"] == [text, "[de] I am here and you are not."]
    status, answer = call(address, "/v2/translate", {"text": [text], "target_lang": "DE"})
    assert status == 200 and answer["translations"][0]["text"] == text
    assert sum(job.batches, []) == ["I am here and you are not."]


def test_unchanged_text_has_checks_and_no_alternatives(address):
    body = {"q": TEXT, "source": "de", "target": "de", "checks": True, "alternatives": 2}
    status, answer = call(address, "/translate", body)
    assert status == 200 and answer["alternatives"] == [] and not answer["checks"]["copied"]


# Messages


def test_an_unknown_language_is_answered_with_the_languages(address):
    fields = {"text": ["Go."], "target_lang": "xh"}
    message = "target_lang: xh is not supported; the languages are en, de, fr, pt, zh"
    assert call(address, "/v2/translate", fields) == (400, {"message": message})
    _, answer = call(address, "/translate", {"q": "Go.", "target": "de", "source": "xh"})
    hint = "source: the languages are en, de, fr, pt, zh"
    assert answer == {"error": "xh is not supported", "hint": hint}


def test_the_message_about_a_run_that_ctranslate2_lacks_has_a_remedy(monkeypatch, job):
    def refuse(*_: object) -> None:
        raise UserError("CTranslate2 has no model like 'register', only encoder_decoder")

    monkeypatch.setattr(CTranslate2Job, "of", refuse)
    job.pretrained.run = "runs/a"
    with pytest.raises(
        UserError, match="--run=runs/a: .*, only encoder_decoder; or use --engine=jax"
    ):
        serve._exported(job, Settings(engine="ctranslate2"))


# Pages and the end


def test_pages_with_relative_links_have_one_address(address):
    connection = http.client.HTTPConnection(address.removeprefix("http://"))
    for path, location in (("/models/made", "made/"), ("/models/made/docs/", "../docs")):
        connection.request("GET", path)
        response = connection.getresponse()
        assert (response.status, response.headers["Location"]) == (307, location)
        response.read()
    message = "model: nope is not served; the models are made"
    for path in ("/models/nope/", "/models/nope/page.js", "/models/nope"):
        assert call(address, path) == (404, {"error": message})


@pytest.mark.parametrize("path", ["/translate/", "/models/made1/translate/", "/v2/translate//"])
def test_a_slash_at_the_end_of_a_path_changes_nothing(path):
    fields = {"q": "Hello", "text": "Hello", "source_lang": "en", "source": "en"}
    fields |= {"target_lang": "DE", "target": "de"}
    with serving(made_service(MadeJob(), MadeJob(name="small:"), wait_milliseconds=0)) as url:
        status, answer = call(url, path, fields)
    assert status == 200
    assert ("[small:de] Hello" if "made1" in path else "[de] Hello") in json.dumps(answer)


@pytest.mark.parametrize(
    ("count", "documents", "line"),
    [
        (0, 0, "stops"),
        (1, 0, "stops after 1 request"),
        (2, 0, "stops after 2 requests"),
        (0, 1, "stops; waits for 1 document to be translated or fetched"),
        (2, 3, "stops after 2 requests; waits for 3 documents to be translated or fetched"),
    ],
)
def test_the_server_says_for_what_it_waits(capsys, count, documents, line):
    async def end() -> None:
        store = DocumentStore(1, 9, 1)
        for number in range(documents):
            name, _ = store.add("a.txt", "de", str(number), has_key=True)
            store.start(name, _translate)
        server = Server(make_config(None, Settings()), store, 60)
        server.servers, server.lifespan = [], _Lifespan()
        waiting = {asyncio.create_task(asyncio.sleep(0)) for _ in range(count)}
        for task in waiting:
            task.add_done_callback(server.server_state.tasks.discard)
        server.server_state.tasks.update(waiting)
        await server.shutdown([])

    asyncio.run(end())
    assert capsys.readouterr().err.splitlines() == [line]


async def _translate(document: StoredDocument) -> bytes:
    document.is_fetched = True
    return b"x"


class _Lifespan:
    async def shutdown(self) -> None:
        """Do nothing."""
