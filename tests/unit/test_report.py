"""Reports and tables: complete, self-contained, well-formed and equal to the results."""

import dataclasses
import json
import re
from html.parser import HTMLParser

import pytest

from mnmt_jax.analysis.page_elements import format_percent
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.report import report_page, write_report
from mnmt_jax.evaluation.result import STANDARD_METRICS, languages_of
from mnmt_jax.evaluation.result_labels import disambiguate_names
from mnmt_jax.evaluation.result_tables import (
    comparison_table,
    group_mean,
    leading_metrics,
    result_page,
    sample_lines,
    sample_status,
)
from mnmt_jax.evaluation.training_log import read_training_log
from mnmt_jax.pages.heatmap import color_range
from mnmt_jax.pages.html_elements import Html, tag, text_in
from mnmt_jax.pages.markdown_tables import format_score, markdown_table
from mnmt_jax.pages.svg_charts import Line, line_chart, ticks
from tests.unit.made_results import made_result

FOUR = ("en", "de", "fr", "cs")
_VOID = {"meta"}  # and <wbr/>, which closes itself
# Whatever could fetch something or run code.
_FORBIDDEN = {"script", "link", "img", "iframe", "object", "embed", "base", "form", "image", "use"}


class _Page(HTMLParser):
    """HTML parser that checks nesting and collects elements with attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict]] = []
        self.elements: list[tuple[str, dict]] = []
        self.texts: list[tuple[str, dict, str]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, name, attributes):
        self.elements.append((name, dict(attributes)))
        if name not in _VOID:
            self.open.append((name, dict(attributes)))

    def handle_endtag(self, name):
        assert self.open.pop()[0] == name

    def handle_data(self, data):
        if self.open:
            self.texts.append((*self.open[-1], data))

    def all(self, name: str, class_: str = "") -> list[str]:
        return [
            text
            for element, attributes, text in self.texts
            if element == name and class_ in attributes.get("class", "").split() + [""]
        ]


@pytest.fixture(scope="module")
def runs():
    return [
        made_result("first", FOUR, seed=1, layout="prefix", zero_shot=47),
        made_result("register", FOUR, seed=2, zero_shot=64),
    ]


@pytest.fixture(scope="module")
def page(runs):
    return _Page(report_page(runs))


def test_report_is_self_contained(runs, page):
    names = {name for name, _ in page.elements}
    assert names >= {"table", "svg", "style", "title"} and not names & _FORBIDDEN
    for name, attributes in page.elements:
        assert not {key for key in attributes if key.startswith("on")}, name
        assert not {"src", "href", "xlink:href", "srcset", "data", "action"} & attributes.keys()
    text = report_page(runs)
    assert not re.search(r"url\(|@import|@font-face|https?:|//\w", text)
    assert text.startswith('<!DOCTYPE html>\n<html lang="en">') and '<meta charset="utf-8">' in text
    assert 'name="viewport"' in text and "prefers-color-scheme: dark" in text


def test_notes_of_users_are_at_the_top_of_pages(runs):
    noted = [dataclasses.replace(run, note="<made> text") for run in runs]
    header = report_page(noted).partition("</header>")[0]
    assert header.count('<p class="warning">&lt;made&gt; text</p>') == 1
    assert 'class="warning"' not in report_page(runs).partition("</header>")[0]
    lines = result_page(noted[0]).splitlines()
    assert lines[2] == "<made> text" and result_page(runs[0]).splitlines()[2].startswith("|")


def test_every_score_appears_in_its_cell(runs, page):
    cells = {
        (attributes["title"], text)
        for name, attributes, text in page.texts
        if name == "td" and "title" in attributes
    }
    assert len(cells) > 100
    kinds = {True: "trained on", False: "not trained on"}
    names = {"en": "English", "de": "German", "fr": "French", "cs": "Czech"}
    checked = 0
    for run in runs:
        for metric in STANDARD_METRICS:
            for (source, target), value in run.values(metric.key).items():
                kind = kinds[(source, target) in run.supervised]
                title = f"{names[source]} to {names[target]} ({kind}): {value:.2f}"
                assert (title, format_score(value)) in cells
                checked += 1
    assert checked == 2 * 5 * 12


def test_trained_directions_are_outlined(page):
    outlined = [
        attributes["title"]
        for name, attributes in page.elements
        if name == "td" and "trained" in attributes.get("class", "").split()
    ]
    assert len(outlined) == 2 * 5 * 6 and all("(trained on)" in title for title in outlined)


def test_summary_marks_the_best_of_several_runs(runs, page):
    best = page.all("td", "best")
    better = max(runs, key=lambda run: group_mean(run, "bleu", "zero_shot").mean)
    assert better.name == "register"
    assert format_score(group_mean(better, "bleu", "zero_shot").mean) in best
    assert format_score(group_mean(better, "off_target_nearest", "zero_shot").mean) in best
    assert page.all("span", "name")[:2] == ["first (prefix)", "register"]
    alone = _Page(report_page(runs[:1]))
    assert alone.all("td", "best") == []


def test_samples_are_shown_beside_their_references(runs, page):
    languages = {
        (attributes.get("lang"), attributes.get("dir"), text)
        for _, attributes, text in page.texts
        if "text" in attributes.get("class", "").split()
    }
    for run in runs:
        for sample in run.samples:
            assert (sample.source, "ltr", sample.source_text) in languages
            assert (sample.target, "ltr", sample.reference) in languages
    marks = page.all("span", "mark")
    exact = sum(sample_status(sample) == "exact" for run in runs for sample in run.samples)
    off = sum(sample_status(sample) == "off-target: en" for run in runs for sample in run.samples)
    assert marks.count("✓ exact") == exact > 0
    assert marks.count("✗ off-target: English") == off > 0
    cards = [item for name, item in page.elements if item.get("class") == "sample"]
    assert {card["style"] for card in cards} == {"--columns:4"}


def test_each_published_procedure_is_described(runs):
    scored = [
        dataclasses.replace(run, paper={"procedure": name, "label": f"as {name}", "averages": {}})
        for run, name in zip(runs, ("mitre", "ted19"), strict=True)
    ]
    texts = _Page(report_page(scored)).all("p", "muted")
    assert texts.count("mitre, as mitre.") == texts.count("ted19, as ted19.") == 1
    texts = _Page(report_page([scored[0], scored[0]])).all("p", "muted")
    assert texts.count("mitre, as mitre.") == 1


def test_text_is_escaped(runs):
    nasty = '<script>alert("x")</script> & more'
    sample = dataclasses.replace(runs[0].samples[0], hypothesis=nasty)
    run = dataclasses.replace(runs[0], samples=(sample,), name="a<b>", notes=(nasty,))
    text = report_page([run])
    assert "<script" not in text and "a<b>" not in text
    assert nasty in [content for _, _, content in _Page(text).texts]


def test_each_model_says_which_version_scored_it(runs):
    pair = [dataclasses.replace(runs[0], version="0.9.1"), runs[1]]
    text = report_page(pair)
    assert text.count("<dt>mnmt-jax</dt><dd>0.9.1</dd>") == text.count("<dt>mnmt-jax</dt>") == 1


def test_right_to_left_and_unknown_languages():
    assert str(text_in("ar", "x")) == '<span class="text" lang="ar" dir="rtl">x</span>'
    for code in ("he", "dv", "nqo", "syr", "ff_Adlm"):
        assert 'dir="rtl"' in text_in(code, "x")
    assert 'dir="auto"' in text_in("", "x") and "lang" not in text_in("", "x")
    assert 'lang="fil"' in text_in("tl", "x")
    assert "(empty)" in text_in("de", " ")


@pytest.mark.parametrize("english", ["en", "en_GB"])
def test_english_is_the_first_language(english):
    result = made_result("a", ("de", english, "fr"), seed=1)
    assert languages_of([result]) == (english, "de", "fr")


def test_losses_from_and_to_english_have_a_separate_chart(runs, tmp_path):
    groups = {"supervised": 1.0, "from_english": 2.0, "to_english": 3.0}
    record = {"step": 5, "validation": {name: {"nll": value} for name, value in groups.items()}}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    curves = read_training_log(tmp_path / "metrics.jsonl").curves
    assert curves == {name: ((5, value),) for name, value in groups.items()}
    title = "Validation loss to and from English"
    assert title in report_page([dataclasses.replace(runs[0], curves=curves)])
    assert title not in report_page(runs)


def test_missing_scores_and_unknown_supervision(runs):
    directions = tuple(
        dataclasses.replace(item, supervised=None, bleu=None, off_target_nearest=None)
        for item in runs[0].directions
    )
    run = dataclasses.replace(runs[0], directions=directions, curves={}, samples=())
    page = _Page(report_page([run]))
    titles = page.all("summary")
    assert "BLEU" not in titles and "Off-target" not in titles
    assert "Off-target (lid.176)" in titles
    assert any("all, 12 directions" in text for text in page.all("th", "group"))
    assert "–" in page.all("td") and "Training" not in page.all("h2")
    table = comparison_table([run])
    assert "all (12)" in table and "Off-target (lid.176)" in table


def test_a_missing_score_is_a_dash():
    page = _Page(report_page([made_result("run", ("en", "de", "ko"), seed=1, layout="prefix")]))
    dashes = [
        attributes["title"]
        for name, attributes, text in page.texts
        if name == "td" and text == "–"
        if "title" in attributes
    ]
    assert dashes == ["English to Korean: left out", "German to Korean: left out"]


def test_means_of_both_kinds_of_directions_are_named(runs):
    remark = "Means of rows and columns are over directions trained on and others together."
    assert remark in report_page(runs)
    zero_shot = tuple(item for item in runs[0].directions if not item.supervised)
    assert remark not in report_page([dataclasses.replace(runs[0], directions=zero_shot)])


def test_a_report_is_written_into_a_new_folder(tmp_path, runs):
    write_report(tmp_path / "new" / "report.html", runs)
    assert (tmp_path / "new" / "report.html").read_text(encoding="utf-8") == report_page(runs)
    with pytest.raises(UserError, match="at least one run"):
        write_report(tmp_path / "report.html", [])


def test_comparison_table(runs):
    lines = comparison_table(runs).splitlines()
    assert len({len(line) for line in lines}) == 1
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    header = (
        "model,steps,training seconds,decoding,directions,sentences,BLEU,chrF++,Exact,Off-target"
    )
    assert rows[0] == header.split(",")
    assert [row[0] for row in rows[2:]] == ["first (prefix)", "register"] * 2
    assert [row[4] for row in rows[2:]] == ["supervised (6)"] * 2 + ["zero-shot (6)"] * 2
    assert rows[2][1:4] == ["3,000", "219", "beam 5"]
    assert {row[5] for row in rows[2:]} == {"1,200"}
    keys = ("bleu", "chrf", "exact_match", "off_target_nearest")
    for row, run in zip(rows[4:], runs, strict=True):
        assert row[6:] == [format_score(group_mean(run, key, "zero_shot").mean) for key in keys]


def _with_scores(run, **scores):
    """Return a run whose directions have further scores."""
    directions = tuple(dataclasses.replace(item, **scores) for item in run.directions)
    return dataclasses.replace(run, directions=directions)


def test_optional_metrics_of_all_runs_are_in_the_summary(runs):
    first, second = runs
    both = [_with_scores(first, comet=80.0, spbleu=7.0), _with_scores(second, comet=81.0)]
    assert [metric.key for metric in leading_metrics(both)][:2] == ["comet", "bleu"]
    assert "| COMET |" in comparison_table(both) and "spBLEU" not in comparison_table(both)


def test_named_metrics_lead_in_their_order(runs):
    both = [_with_scores(run, comet=80.0, spbleu=7.0) for run in runs]
    names = ["comet", "spbleu"]
    header = comparison_table(both, names).splitlines()[0]
    assert [cell.strip() for cell in header.strip("|").split("|")][6:] == ["COMET", "spBLEU"]
    summary = report_page(both, names).split("<h3>")[0]
    assert re.findall(r'scope="col">(\w+)</th>', summary)[:3] == ["model", "COMET", "spBLEU"]
    with pytest.raises(UserError, match="--metrics: unknown 'spblue'; did you mean 'spbleu'"):
        leading_metrics(both, ["spblue"])
    with pytest.raises(UserError, match="no evaluation has COMET"):
        leading_metrics(runs, ["comet"])


def test_results_of_equal_name_are_named_by_their_decoding_settings(runs):
    plain = dataclasses.replace(runs[0], decoding={"method": "beam", "beam_size": 5})
    samples = (
        {},
        {"seed": 0, "source_contrast": 0.7, "contrast_languages": ["en", "source"]},
        {"beam_size": 1, "method": "greedy", "pivot": "en"},
        {"language_contrast": 0.1, "contrast_languages": ["de", "fr"]},
    )
    results = [dataclasses.replace(plain, decoding={**plain.decoding, **more}) for more in samples]
    name = plain.name
    assert [result.name for result in disambiguate_names([*results, runs[1]])] == [
        name,
        f"{name}, source_contrast=0.7",
        f"{name}, beam_size=1, pivot=en",
        f"{name}, language_contrast=0.1, contrast_languages=de fr",
        runs[1].name,
    ]
    assert [result.name for result in disambiguate_names([plain, plain, runs[1]])] == [
        name,
        name,
        runs[1].name,
    ]


def test_result_page_lists_every_direction_and_signature(runs):
    text = result_page(runs[0])
    assert sum(line.startswith("| en → ") for line in text.splitlines()) == 3 + 1
    assert "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0" in text
    assert "| Germanic →" in text and "| → Slavic" in text and "English →" not in text


def test_the_off_target_ratio_of_outputs_without_a_language_is_a_dash(runs):
    first, *others = runs[0].directions
    nothing = dict.fromkeys(("off_target_lid", "off_target_nearest"), 0.0)
    first = dataclasses.replace(first, detected={"": 200}, **nothing)
    result = dataclasses.replace(runs[0], directions=(first, *others))
    page = result_page(result)
    header = re.search(r"\| direction .*", page)[0].split("|")
    row = re.search(rf"\| {first.source} → {first.target} .*", page)[0].split("|")
    cells = [cell.strip() for title, cell in zip(header, row, strict=True) if "Off-t" in title]
    assert cells and set(cells) == {"–"}
    assert result.scores("off_target_lid")[first.direction] is None
    assert result.values("off_target_lid")[first.direction] == 0.0


def test_samples_alternate_between_zero_shot_directions(runs):
    title, *blocks = sample_lines(runs, 5).split("\n\n")
    assert title == "Translations, in directions never trained on:"
    assert len(blocks) == 5
    assert len({block.splitlines()[0] for block in blocks}) == 5
    for block in blocks:
        lines = block.splitlines()
        assert "en" not in lines[0].split()
        assert [line.split()[0] for line in lines[1:]] == [
            "source",
            "reference",
            "first",
            "register",
        ]
        assert re.search(r"\[(exact|differs|empty|off-target: en)\]$", lines[3])


def test_titles_of_samples_name_the_model_that_is_known(runs):
    def of_training(run, supervised):
        items = [dataclasses.replace(item, supervised=supervised) for item in run.directions]
        return dataclasses.replace(run, name="other", directions=tuple(items))

    run, title = runs[0], f"Translations, in directions that {runs[0].name} was not trained on:"
    for others in ([run, of_training(run, None)], [of_training(run, None), run]):
        first, *blocks = sample_lines(others, 5).split("\n\n")
        assert first == title and blocks
        assert not any("en" in block.splitlines()[0].split() for block in blocks)
        page = report_page(others)
        assert ">  not trained on</span>" in page and ">  trained on</span>" in page
    assert sample_lines([run, of_training(run, True)]).startswith(title)
    for supervised in (None, True):
        lines = sample_lines([of_training(run, supervised)]).splitlines()
        assert lines[0] == "Translations:" and "→" in lines[2]


def test_markdown_cells_are_escaped():
    assert markdown_table(["a", "b"], [["x|y", "1"]]).splitlines() == [
        "| a    |   b |",
        "| ---- | --: |",
        "| x\\|y |   1 |",
    ]


@pytest.mark.parametrize(
    "values,ends",
    [
        ([], (0, 100)),
        ([0.0], (0, 10)),
        ([31.0, 44.9], (30, 50)),
        ([3.0, 44.9], (0, 50)),
        ([100.0], (100 - 100, 100)),
        ([97.2, 100.0], (90, 100)),
        ([40.0, 50.0], (40, 50)),
    ],
)
def test_colour_scale(values, ends):
    assert color_range(values) == ends


@pytest.mark.parametrize(
    "low,high,expected",
    [
        (0, 3000, [0, 1000, 2000, 3000]),
        (0.2, 2.1, [0, 0.5, 1, 1.5, 2, 2.5]),
        (2, 2, None),
        (33.3, 33.300000000000004, None),
        (0, 3e-11, None),
    ],
)
def test_ticks_enclose_the_values(low, high, expected):
    actual = ticks(low, high)
    assert actual[0] <= low and actual[-1] >= high and len({*actual}) == len(actual) >= 2
    assert expected is None or actual == expected


@pytest.mark.parametrize(
    "high,expected",
    [(2, [0, 1, 2]), (6, [0, 2, 4, 6]), (12, [0, 3, 6, 9, 12]), (110, [0, 30, 60, 90, 120])],
)
def test_ticks_of_whole_numbers_are_whole(high, expected):
    assert ticks(0, high, integral=True) == expected


def test_chart_points_have_the_right_coordinates():
    drawing = line_chart(
        "Loss", [Line("run", ((0, 0.0), (50, 1.0), (100, 2.0)), 0)], x_title="x", y_title="y"
    )
    path = re.search(r'd="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"', drawing)
    x0, y0, x1, y1, x2, y2 = map(float, path.groups())
    assert x1 == pytest.approx((x0 + x2) / 2, abs=0.1) and y1 == pytest.approx(
        (y0 + y2) / 2, abs=0.1
    )
    assert x0 < x2 and y0 > y2  # upwards is a smaller y
    assert "run: 2.000" in drawing
    dot = line_chart("Loss", [Line("run", ((3, 1.0),), 0)], x_title="x", y_title="y")
    assert re.search(r'd="M[\d.]+ [\d.]+h0"', dot)


def test_markup_escapes_text():
    assert tag("p", "a < b", Html("<br>"), [tag("b", "&")], class_='"x"') == (
        '<p class="&quot;x&quot;">a &lt; b<br><b>&amp;</b></p>'
    )


def test_samples_are_of_sentences_that_all_systems_translated():
    run = made_result("run", ("en", "de", "fr"), seed=1)
    outside = made_result("outside", ("en", "de", "fr"), seed=2)
    samples = tuple(sample for sample in outside.samples if sample.direction == ("fr", "de"))
    outside = dataclasses.replace(outside, samples=samples)
    blocks = sample_lines([run, outside], 3).split("\n\n")[1:]
    assert len(blocks) == 3
    assert all(block.startswith("fr → de") and "\n  outside " in block for block in blocks)
    assert "different directions" not in report_page([run, outside])
    fewer = dataclasses.replace(outside, directions=outside.directions[:3])
    page = report_page([run, fewer])
    assert "evaluated in different directions: means are over those of each" in page
    cards = page[page.index("Sample translations") :]
    assert cards.index("French → German") < cards.index("German → French")


def test_samples_of_other_sentences_are_not_shown_together():
    """A test set in another order has other sentences under the same numbers."""
    run = made_result("run", ("en", "de"), seed=1)
    for changes in ({"source_text": "other"}, {"reference": "other"}):
        samples = tuple(dataclasses.replace(sample, **changes) for sample in run.samples)
        other = dataclasses.replace(run, name="reordered", samples=samples)
        blocks = sample_lines([run, other], 3).split("\n\n")[1:]
        assert len(blocks) == 3 and not any("reordered" in block for block in blocks)
        page = report_page([run, other])
        cards = page[page.index("Sample translations") :].partition("</section>")[0]
        assert run.samples[0].hypothesis in cards and "reordered" not in cards


@pytest.mark.parametrize("value", [-0.0004, -0.0, 0.0])
def test_zero_has_no_sign(value):
    assert format_score(value) == "0.0" and format_percent(value) == "0"
