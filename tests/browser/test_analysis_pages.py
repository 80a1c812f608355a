"""Pages of analyses are readable in narrow and wide windows."""

from __future__ import annotations

import pytest

from mnmt_jax.analysis.page_header import page_title
from mnmt_jax.analysis.page_sections import render_sections
from mnmt_jax.pages.html_page import generator_mark, html_page
from tests.browser.chromium import find_chromium, measure
from tests.unit import made_analyses

if find_chromium() is None:
    pytest.skip("no Chromium (apt-get install chromium)", allow_module_level=True)

WIDTHS = (420, 760, 1300)
FACTS = {
    "svcca": made_analyses.svcca(3, 2),
    "similarity": made_analyses.similarity(),
    "probe": made_analyses.probe(),
    "attention": made_analyses.attention(),
    "heads": made_analyses.heads(),
}


@pytest.fixture(scope="module")
def measurements(tmp_path_factory):
    mark = generator_mark("test")
    pages = {
        name: html_page(page_title(facts), render_sections(facts), generator=mark)
        for name, facts in FACTS.items()
    }
    return measure(pages, WIDTHS, tmp_path_factory.mktemp("pages"))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", FACTS)
def test_no_text_is_cut_off_or_overlaps(measurements, page, width):
    actual = measurements[page][str(width)]
    assert actual["cells"] > 5 and actual["width"] <= width
    assert actual["outside"] == actual["broken"] == actual["hidden"] == []


@pytest.mark.parametrize("width", WIDTHS)
def test_text_of_one_kind_has_one_font_size(measurements, width):
    for actual in (measurements[page][str(width)] for page in FACTS):
        assert {name: sizes for name, sizes in actual["sizes"].items() if len(sizes) > 1} == {}
        assert len(actual["chart_fonts"]) < 2
        assert all(10 <= size <= 17 for size in actual["chart_fonts"])
