"""Languages that differ in region or script alone, of one model and of several."""

from __future__ import annotations

import pytest

from tests.unit.made_server import MadeJob, made_service, serving
from tests.unit.test_serving import call

ENTRIES = {"entries": "frase\tSatz", "entries_format": "tsv"}


@pytest.fixture(scope="module")
def regions():
    """Serve `made` with Brazilian and `made1` with European Portuguese; German is in the second."""
    jobs = MadeJob(("en", "pt_BR"), "A "), MadeJob(("en", "de", "pt_PT"), "B ")
    with serving(made_service(*jobs, wait_milliseconds=0)) as url:
        yield url


def translated(address: str, text: str, source: str, target: str) -> object:
    _, answer = call(address, "/translate", {"q": text, "source": source, "target": target})
    return answer.get("translatedText") or answer["error"]


def translated_by_deepl(address: str, text: str, target: str, **fields: str) -> object:
    _, answer = call(address, "/v2/translate", {"text": [text], "target_lang": target, **fields})
    return answer["translations"][0]["text"] if "translations" in answer else answer["message"]


# Codes without a region


@pytest.mark.parametrize(
    ("path", "source", "target", "expected"),
    [
        ("/models/made1", "pt", "de", "[B de] Vai."),
        ("/models/made1", "en", "pt", "[B pt_PT] Vai."),
        ("/models/made", "en", "pt", "[A pt_BR] Vai."),
        ("", "pt", "de", "[B de] Vai."),
        ("", "pt", "en", "[A en] Vai."),
        ("", "pt", "pt-BR", "Vai."),  # nothing else is translated into it
        ("", "en", "pt", "language {!r} is ambiguous: name pt_BR or pt_PT"),
    ],
)
def test_a_code_without_region_is_of_the_models_that_translate_it(
    regions, path, source, target, expected
):
    address = f"{regions}{path}"
    assert translated(address, "Vai.", source, target) == expected.format(target)
    answer = translated_by_deepl(address, "Vai.", target.upper(), source_lang=source.upper())
    assert answer.removeprefix("target_lang: ") == expected.format(target.upper())


def test_a_code_without_region_means_the_other_region_of_the_target():
    with serving(made_service(MadeJob(("pt_BR", "pt_PT")), wait_milliseconds=0)) as address:
        assert translated(address, "Vai.", "pt", "pt_BR") == "[pt_BR] Vai."
        assert translated(address, "Vai.", "pt", "pt_PT") == "[pt_PT] Vai."


def test_a_glossary_may_be_of_every_listed_pair(regions):
    _, answer = call(regions, "/v2/glossary-language-pairs")
    pairs = [(pair["source_lang"], pair["target_lang"]) for pair in answer["supported_languages"]]
    assert ("pt", "de") in pairs and ("de", "pt") in pairs
    for source, target in pairs:
        languages = {"source_lang": source, "target_lang": target}
        status, answer = call(regions, "/v2/glossaries", {"name": "x", **languages, **ENTRIES})
        assert status == 201 and {**answer, **languages} == answer
    pair = {"source_lang": "pt", "target_lang": "pt", "name": "x", **ENTRIES}
    assert call(regions, "/v2/glossaries", pair)[0] == 400
