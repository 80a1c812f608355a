"""What users of translation servers complain about: tags, comments and attributes.

Numbers are those of issues in the public tracker of LibreTranslate.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.unit.made_server import MadeJob, made_service, serving
from tests.unit.test_serving import call


@pytest.fixture
def job() -> MadeJob:
    return MadeJob()


@pytest.fixture
def translate(job):
    """Return the translation of HTML by the served translator."""
    with serving(made_service(job, wait_milliseconds=0)) as address:

        def translated(text: str, **fields) -> str:
            body = {"q": text, "source": "en", "target": "de", "format": "html", **fields}
            status, answer = call(address, "/translate", body)
            assert status == 200, answer
            return answer

        yield translated


def sentences(job: MadeJob) -> list[str]:
    return [sentence for batch in job.batches for sentence in batch]


def test_libretranslate_806_a_sentence_is_not_split_at_nested_inline_tags(translate, job):
    answer = translate("<p>This is <b>a <i>very <u>nested</u></i> sentence</b> of one piece.</p>")
    assert sentences(job) == ["This is a very nested sentence of one piece."]
    assert answer["translatedText"].startswith("<p>[de] This ")


def test_libretranslate_288_text_around_a_link_is_translated_with_it(translate, job):
    answer = translate('Click <a href="/a?b=1&amp;c=2" class=x>this <em>link</em></a> to go on.')
    assert sentences(job) == ["Click this link to go on."]
    assert re.search(
        '<a href="/a\\?b=1&amp;c=2" class=x>.*<em>.*</em>.*</a>', answer["translatedText"]
    )


def test_libretranslate_552_comments_and_attributes_are_kept(translate):
    document = (
        "<!DOCTYPE html>\n<!-- head -->\n<DIV data-a='1>2' title=\"Not < translated\">"
        "One<!-- inner --> word <img src=\"a.png\" alt='An &quot;image&quot;'/></DIV>\n<!-- end -->"
    )
    text = translate(document)["translatedText"]
    kinds = "<!--.*?-->|<!DOCTYPE html>|<(?:[^>'\"]|'[^']*'|\"[^\"]*\")*>"
    assert Counter(re.findall(kinds, text)) == Counter(re.findall(kinds, document))
    assert text.startswith(document[: document.index("One")]) and text.endswith("\n<!-- end -->")


def test_libretranslate_760_no_tag_is_lost_or_doubled(translate):
    document = (
        "<ul><li>One <br>line</li><li><b></b>Two <i class='icon'></i> words</li><li>"
        "<code>x()</code> is <span translate=no>Kept</span></li></ul>"
        "<script>if (a < b) { c() }</script>"
    )
    text = translate(document)["translatedText"]
    assert re.findall("</?(?:ul|li|br|script).*?>", text) == re.findall(
        "</?(?:ul|li|br|script).*?>", document
    )
    assert Counter(re.findall("</?[a-z].*?>", text)) == Counter(
        re.findall("</?[a-z].*?>", document)
    )
    assert "<code>x()</code>" in text and "<span translate=no>Kept</span>" in text
    assert "<i class='icon'></i>" in text and text.endswith("<script>if (a < b) { c() }</script>")


def test_the_language_of_a_document_is_that_of_its_text(translate):
    title = "These are some English words that a reader of the page does not see. " * 3
    document = f'<div title="{title}">Das ist gut.</div>'
    answer = translate(document, source="auto", target="fr")
    assert answer["detectedLanguage"]["language"] == "de"


def test_alternatives_without_tags_are_not_offered(translate):
    assert translate("<b>One</b> word", alternatives=2)["alternatives"] == []
