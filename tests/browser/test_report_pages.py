"""Reports of evaluations are readable in narrow and wide windows."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from mnmt_jax.evaluation.report import report_page
from mnmt_jax.evaluation.seed_statistics import group_by_seed
from mnmt_jax.evaluation.significance import SentenceSignificance
from tests.browser.chromium import find_chromium, measure
from tests.unit.colours import contrast, difference, hexadecimal
from tests.unit.made_results import made_result
from tests.unit.test_paired_bootstrap import damaged
from tests.unit.test_significance import PAIRS, REFERENCES, made

if find_chromium() is None:
    pytest.skip("no Chromium (apt-get install chromium)", allow_module_level=True)

WIDTHS = (420, 760, 1300)
FOUR = ("en", "de", "fr", "cs")
MORE = ("de", "fr")  # a second target language
TEN = ("en", "de", "fr", "cs", "ja", "zh", "ko", "nl", "es", "it")
KINDS = (
    "two_stage_adaption_instructcl",
    "register_open_mitre_initialised",
    "prefix_cut_residual",
    "encoder_decoder_language_layers",
    "two_stage_adaption_only",
    "grafted_masked_and_causal",
    "causal_back_translated",
    "encoder_decoder_tpdm_disentangled",
)


@functools.cache
def compared() -> str:
    """Return the page of two systems with two seeds: intervals, tests, seeds, flags, languages."""
    results, statistics = [], []
    for number, kind in enumerate((KINDS[0], KINDS[0], KINDS[1], KINDS[1])):
        noise = 0.4 + 0.04 * number
        texts = {pair: damaged(REFERENCES, noise, seed) for seed, pair in enumerate((*PAIRS, MORE))}
        result, sentences = made(f"{kind}_{1 + number % 2}", texts)
        directions = [
            dataclasses.replace(
                item,
                calibration={"bleu": (50.0, 20.0), "chrf": (60.0, 15.0)},
                off_target_second=2.5,
                off_target_both=1.0,
                copied=3,
                repeated=12,
                length_ratio=93.4,
            )
            for item in result.directions
        ]
        config = {"model": {"layout": kind}, "train": {"steps": 3000, "seed": 1 + number % 2}}
        results.append(dataclasses.replace(result, directions=tuple(directions), config=config))
        statistics.append(sentences)
    significance = SentenceSignificance(results, statistics, 100)
    return report_page(results, significance=significance, by_seed=group_by_seed(results))


@pytest.fixture(scope="module")
def measurements(tmp_path_factory):
    names = [f"ted19_{kind}_12_layers_512_embed_seed_{n}" for n, kind in enumerate(KINDS)]
    eight = [made_result(name, FOUR, seed=n, layout="prefix") for n, name in enumerate(names)]
    pages = {
        "eight": report_page(eight),
        "two": report_page([made_result(name, TEN, seed=1) for name in names[:2]]),
        "one": report_page([made_result("register", FOUR, seed=1)]),
        "compared": compared(),
    }
    return measure(pages, WIDTHS, tmp_path_factory.mktemp("pages"))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", ["eight", "two", "one", "compared"])
def test_no_text_is_cut_off_or_overlaps(measurements, page, width):
    actual = measurements[page][str(width)]
    assert actual["viewport"] == width and actual["cells"] > 80
    assert actual["width"] <= width
    assert actual["outside"] == []
    assert actual["broken"] == []
    assert actual["hidden"] == []


def test_a_comparison_has_all_its_sections():
    page = compared()
    for title in ("Over seeds", "Differences to", "Quality flags", "Means across languages", "±"):
        assert title in page


def test_models_have_distinct_colours(measurements):
    for actual in measurements["eight"].values():
        colours = [hexadecimal(colour) for colour in actual["colours"]]
        assert len(colours) == 8
        for number, colour in enumerate(colours):
            assert contrast(colour, hexadecimal(actual["background"])) >= 3
            assert min([1.0, *(difference(colour, c) for c in colours[:number])]) > 0.1


def test_titles_are_short(measurements):
    assert measurements["eight"]["420"]["title"] == "8 models on cldr_en_x"
    assert measurements["one"]["420"]["title"] == "register on cldr_en_x"


@pytest.mark.parametrize("width", WIDTHS)
def test_chart_text_has_one_legible_font_size(measurements, width):
    sizes = measurements["eight"][str(width)]["chart_fonts"]
    assert sizes and min(sizes) >= 10 and max(sizes) <= 17


def test_measurements_detect_layout_faults(tmp_path):
    style = "th {position:sticky; left:0; background:#fff; overflow-wrap:anywhere}"
    row = '<tr><th style="min-width:350px">name</th><td>12.3</td><td>45.6</td></tr>'
    faults = {
        "covered": f'<section class="scroll" style="width:330px;overflow:auto">'
        f"<table>{row}</table></section>",
        "broken": '<section><p style="width:3em;overflow-wrap:anywhere">register</p></section>',
        "wide": '<section style="width:500px">text</section>',
    }
    head = f"<!DOCTYPE html><meta name=viewport content=width=device-width><style>{style}</style>"
    pages = {name: f"{head}<body>{text}" for name, text in faults.items()}
    actual = {name: each["420"] for name, each in measure(pages, (420,), tmp_path).items()}
    assert len(actual["covered"]["hidden"]) == 2
    assert actual["broken"]["broken"] and "|" in actual["broken"]["broken"][0]
    assert actual["wide"]["width"] > 420 and actual["wide"]["outside"]
    assert not actual["covered"]["broken"] and not actual["broken"]["hidden"]
