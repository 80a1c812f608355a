"""Segments of targets, and paired codes, in XLIFF and TMX."""

from __future__ import annotations

import re

import pytest

from mnmt_jax.documents.formats import read_document
from mnmt_jax.documents.segments import DocumentOptions
from mnmt_jax.errors import UserError
from tests.processor_time import is_quicker_than
from tests.unit.made_documents import identity, translated
from tests.unit.made_markup import reverse_words
from tests.unit.made_markup import translate as markup_translation

SEGMENT = '<mrk mtype="seg" mid="{}">{}</mrk>'.format
CODE = '<x id="3"/>'
XLIFF = (
    '<xliff version="1.2"><file source-language="en" target-language="de"><body>'
    '<trans-unit id="1" approved="yes">{}</trans-unit></body></file></xliff>'
)
SEGMENTED = XLIFF.format(
    f"<source>One. Two {CODE}here.</source><seg-source>{SEGMENT(1, 'One.')} "
    f"{SEGMENT(2, f'Two {CODE}here.')}{SEGMENT(3, '')}</seg-source>"
    '<target state="{}">{}</target>'
)
TRANSLATED = SEGMENT(2, f"TWO {CODE}HERE.")


@pytest.mark.parametrize(
    ("target", "texts", "expected"),
    [
        (
            f"{SEGMENT(1, '')} {SEGMENT(2, ' ')}",
            ["One.", 'Two <x id="1"/>here.'],
            f"{SEGMENT(1, 'ONE.')} {TRANSLATED}{SEGMENT(3, '')}",
        ),
        (
            f"{SEGMENT(2, '')}!{SEGMENT(1, 'Eins.')}{SEGMENT(3, '')}",
            ['Two <x id="1"/>here.'],
            f"{TRANSLATED}!{SEGMENT(1, 'Eins.')}{SEGMENT(3, '')}",
        ),
    ],
)
def test_empty_segments_of_a_target_are_translated(target, texts, expected):
    after, segments = translated(SEGMENTED.format("final", target), "a.xlf")
    assert [one.text for one in segments] == texts
    written = after.decode().replace(SEGMENT(3, "").replace("></mrk>", "/>"), SEGMENT(3, ""))
    assert f'<target state="translated">{expected}</target>' in written
    assert "approved" not in written


@pytest.mark.parametrize(
    "target",
    [f"{SEGMENT(4, '')}{CODE}", "<g>Eins</g>", SEGMENT(1, "Eins."), SEGMENT(3, "") + CODE],
)
def test_a_target_with_content_is_kept(target):
    with pytest.raises(UserError, match="there is nothing to translate"):
        translated(SEGMENTED.format("final", target), "a.xlf")


def reversed_words(segments):
    """Translate segments to their words in reverse order."""
    return [markup_translation(one.text, reverse_words, markup=one.markup)[0] for one in segments]


def target_of(source: str, name: str = "a.xlf", translate=reversed_words) -> str:
    """Return the translation of the content of a source."""
    page = XLIFF.format(f"<source>{source}</source>")
    if name == "a.tmx":
        page = (
            '<tmx version="1.4"><header srclang="en"/><body><tu><tuv xml:lang="en">'
            f"<seg>{source}</seg></tuv></tu></body></tmx>"
        )
    tag = "seg" if name == "a.tmx" else "target"
    after = translated(page, name, translate)[0].decode()
    return after.rpartition(f"</{tag}>")[0].rpartition(f"<{tag}>")[2]


@pytest.mark.parametrize(
    ("name", "source", "target"),
    [
        (
            "a.xlf",
            'Press <bpt id="1">&lt;b&gt;</bpt>Enter<ept id="1">&lt;/b&gt;</ept> now please',
            'please now <bpt id="1">&lt;b&gt;</bpt>Enter<ept id="1">&lt;/b&gt;</ept> Press',
        ),
        (
            "a.xlf",
            'A <bx id="1" rid="a"/>big <bx id="2"/>red<ex id="2"/> key<ex id="3" rid="a"/> now',
            'now <bx id="1" rid="a"/>key <bx id="2"/>red<ex id="2"/> big<ex id="3" rid="a"/> A',
        ),
        (
            "a.xlf",
            'A <sc id="1"/>key<ec startRef="1"/> now <g><sm id="m"/>it<em startRef="m"/> is</g>',
            '<g>is <sm id="m"/>it<em startRef="m"/></g> now <sc id="1"/>key<ec startRef="1"/> A',
        ),
        (
            "a.tmx",
            'A <bpt i="1">b</bpt>red <ph/><ept i="1">/b</ept> key <bpt i="1"/>so<ept i="1"/>',
            '<bpt i="1"/>so<ept i="1"/> key <bpt i="1">b</bpt>red <ph/><ept i="1">/b</ept> A',
        ),
    ],
)
def test_paired_codes_stay_around_their_words(name, source, target):
    assert target_of(source, name) == target
    assert target_of(source, name, identity) == source


@pytest.mark.parametrize(
    "source",
    [
        'A <bpt id="1"/>b <bpt id="2"/>c<ept id="1"/> d<ept id="2"/>',
        'A<bpt id="1"/><x id="2"/><ept id="1"/> d',
        'A <ept id="1"/>b<bpt id="1"/> c <bpt id="2"/><g>d<ept id="2"/></g>',
        'A <mrk mtype="protected">b <bpt id="1">x</bpt>c<ept id="1"/></mrk> d',
        'A <sm id="1" translate="no"/>b <bpt id="1">x</bpt>c<ept id="1"/><em startRef="1"/> d',
        "<bpt/>a<ept/> <!-- c -->b <?d e?>",
        '<bpt id="1"/>12<ept id="1"/> a',
        "".join(f'<bpt id="{n}"/>a ' for n in range(50)) + '<ept id="49"/><ept id="0"/>',
    ],
)
def test_codes_of_any_order_are_kept(source):
    assert target_of(source, translate=identity) == source
    tags = re.compile("<[^>]*>")
    assert sorted(tags.findall(target_of(source))) == sorted(tags.findall(source))


@pytest.mark.parametrize("codes", ['<bpt id="1"/>a<ept id="1"/> ', '<bpt id="1"/>a ', "a <ept/>"])
def test_many_codes_take_little_time(codes):
    page = XLIFF.format(f"<source>{codes * 20_000}</source>").encode()
    assert is_quicker_than(10, lambda: read_document(page, "a.xlf", DocumentOptions("de", "en")))
