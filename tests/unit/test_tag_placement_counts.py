"""benchmarks/tag_placement.py: marked pairs, and how placements are counted."""

from __future__ import annotations

from benchmarks.tag_placement import Counts, Pair, cldr_pairs, help_pairs, score, spans_of_all
from mnmt_jax.decoding.text.tag_placement import relative_alignment


def test_phrases_have_the_same_parts_in_all_languages():
    pairs = cldr_pairs(("en", "de", "fr"), 20)
    assert len(pairs) == 6 and all(len(items) > 5 for items in pairs.values())
    for items in pairs.values():
        for pair in items:
            assert spans_of_all(pair.source).keys() == spans_of_all(pair.reference).keys()


def test_paragraphs_of_help_pages_are_paired_by_id_and_tags(tmp_path):
    english = (
        '<p id="par_1">Choose <span class="a">File</span> and <a href="x">Open it</a> now.</p>'
        '<p id="par_2">Only <b>here</b> is a tag.</p><p id="hd_3"><b>All of this</b></p>'
    )
    german = (
        '<p id="par_1">Jetzt <a href="x">öffnen</a> Sie <span class="a">Datei</span> bitte.</p>'
        '<p id="par_2">Nur hier nicht.</p><p id="hd_3"><b>Das alles</b></p>'
    )
    for folder, text in (("en-US", english), ("de", german)):
        for number in range(60):  # some of them are test pages
            path = tmp_path / folder / "text" / f"{number}.html"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    pairs = help_pairs(tmp_path, ("en", "de"), 10)
    assert pairs["en", "de"] == [
        Pair(
            "Choose <p0>File</p0> and <p1>Open it</p1> now.",
            "Jetzt <p1>öffnen</p1> Sie <p0>Datei</p0> bitte.",
        )
    ]


def test_a_right_placement_has_all_and_a_wrong_one_what_it_shares():
    counts = Counts()
    reference = "a <p0>b c</p0> <p1>d</p1>"
    counts.add(reference, reference)
    assert str(counts).split() == ["100.0", "100.0"]
    counts = Counts()
    counts.add("a <p0>b</p0> c <p1>d</p1>", reference)
    assert (counts.elements, counts.exact, counts.shared) == (2, 1, 2)
    assert (counts.placed, counts.true) == (2, 3)  # F1 is 4 / 5
    assert str(counts).split() == ["50.0", "80.0"]


def test_tags_are_placed_in_the_reference():
    pair = Pair("the <p0>red</p0> house", "das <p0>rote</p0> Haus")
    counts = Counts()
    score([pair], [relative_alignment("the red house", "das rote Haus")], counts)
    assert (counts.elements, counts.exact) == (1, 1)
