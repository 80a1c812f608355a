"""Figures of the papers in their axes: our points, and those that tables print."""

from __future__ import annotations

import dataclasses
import re
from decimal import Decimal

import pytest

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.seed_statistics import summarize_scores
from mnmt_jax.pages.svg_points import Point, Series, point_chart
from mnmt_jax.papers import figures, pages
from mnmt_jax.papers.cells import Cell
from mnmt_jax.papers.experiments import experiments
from mnmt_jax.papers.reproduction import Reproduction
from mnmt_jax.papers.tables import find_table, load_papers

PAPERS = load_papers()
TABLES = [table for paper in PAPERS.values() for table in paper.tables.values()]


def _reproduction(table, ours=None):
    """Return a table with its published numbers, and scores of ours by row and column."""
    made = {
        (row.name, key): Cell(number, None)
        for row in table.rows
        for key, number in row.published.items()
    }
    for key, (score, interval) in (ours or {}).items():
        published = made[key].published if key in made else None
        made[key] = Cell(published, summarize_scores([score]), interval)
    return Reproduction(table, made, {})


def _points(name, ours=None):
    """Return the points by title of chart, label of series and x."""
    table = find_table(name)
    charts = figures.charts_of(PAPERS[table.paper], _reproduction(table, ours))
    return {
        (chart.title or chart.y_title, series.label, point.x): point
        for chart in charts
        for series in chart.series
        for point in series.points
    }


def test_every_figure_that_runs_has_axes_and_points():
    """One figure is of training losses: its curves are those of training."""
    of_losses = "registers/figure7"
    for table in TABLES:
        paper = PAPERS[table.paper]
        figures.check_figure(paper, table)
        rows = [row for row in table.rows if experiments(paper, table, row)]
        name = f"{table.paper}/{table.name}"
        if table.name.startswith("figure") and rows and table.columns and name != of_losses:
            assert table.figure, name
            assert all("point" in row.facts for row in rows), name


@pytest.mark.parametrize(
    "name, key, published",
    [
        ("graformer/figure5", ("x→en BLEU", "Transformer", 100), 22.77),
        ("graformer/figure6", ("en→x BLEU", "Graformer", 100), 21.87),
        # the figure's own number, not the difference of the tables' scores, 5.78
        (
            "graformer/figure5",
            ("x→en BLEU, Graformer minus Transformer", "Graformer", 100),
            5.8,
        ),
        ("registers/figure3", ("all directions spBLEU", "12 layers", 1), 11.92),
        # (24.30 + 29.48) / 2 with and without InstruCL of Table 3, for example
        ("two_stage/figure6", ("TDO", "zero-shot BLEU", 9), 3.09),
        ("two_stage/figure5", ("OPUS-100 deep", "zero-shot BLEU", 12), -19.64),
        ("two_stage/figure7", ("zero-shot BLEU", "prefix decoder-only", 1), 8.18),
    ],
)
def test_published_points_are_those_of_the_printed_tables(name, key, published):
    point = _points(name)[key]
    assert point.published == pytest.approx(published, abs=0.005) and point.y is None


def test_the_gains_of_graformer_agree_with_its_tables():
    """The caption prints the gain at 100 %, the tables print the scores: two sources."""
    for name, title in (("graformer/figure5", "x→en"), ("graformer/figure6", "en→x")):
        points = _points(name)
        scores = [
            points[f"{title} BLEU", model, 100].published for model in ("Graformer", "Transformer")
        ]
        gain = points[f"{title} BLEU, Graformer minus Transformer", "Graformer", 100].published
        assert float(scores[0] - scores[1]) == pytest.approx(float(gain), abs=0.05)


def test_our_points_have_intervals_and_relative_changes_do_not():
    ours = {("12 layers: ratio 1.25", "all.spbleu"): (12.5, (12.0, 13.0))}
    point = _points("registers/figure3", ours)["all directions spBLEU", "12 layers", 1.25]
    assert point == Point(1.25, 12.5, (12.0, 13.0), None)
    ours = {
        ("TDO", "zero_shot.bleu"): (10.0, (9.0, 11.0)),
        ("TDO + InstruCL after layer 3", "zero_shot.bleu"): (12.0, (11.0, 13.0)),
    }
    point = _points("two_stage/figure6", ours)["TDO", "zero-shot BLEU", 3]
    assert point.y == pytest.approx(20) and point.interval is None
    without_base = dict(list(ours.items())[1:])
    assert ("TDO", "zero-shot BLEU", 3) not in _points("two_stage/figure6", without_base)
    zero_base = ours | {("TDO", "zero_shot.bleu"): (0.0, None)}
    assert ("TDO", "zero-shot BLEU", 3) not in _points("two_stage/figure6", zero_base)


def test_a_point_for_each_language():
    """Figure 7 of Graformer follows from three tables; Czech for example."""
    table, paper = find_table("graformer/figure7"), PAPERS["graformer"]
    ours = {("Graformer", "en-cs.bleu_gain"): (3.0, (2.5, 3.5))}
    ours["Transformer", "en_to_x.bleu"] = (20.0, None)  # no direction: in the table alone
    (chart,) = figures.charts_of(paper, _reproduction(table, ours))
    (series,) = chart.series
    point = next(point for point in series.points if point.label == "en→cs")
    assert point.x == pytest.approx(90_149_511 / 103_093)
    assert float(point.published) == pytest.approx(20.2 - 16.6)
    assert (point.y, point.interval) == (3.0, (2.5, 3.5))
    assert len(series.points) == 30 and not series.joined
    page = pages.html_report(paper, _reproduction(table, ours))
    assert "Graformer minus Transformer, en→cs: published 3.60" in page
    assert all(f">{tick}</text>" in page for tick in ("10", "100", "1000", "10k"))
    assert chart.y_title == "gain in BLEU"
    assert not re.search(r'<path d="M[\d. ]+L', page)  # no line joins languages
    latex = pages.latex_page(paper, _reproduction(table, ours), "")
    assert r"\addplot[blue, only marks, mark=*]" in latex and "xtick" not in latex
    wrong = _edited("graformer/figure7", ratio=["table10", "table1"])
    with pytest.raises(UserError, match="figure.ratio: table1 has no number of 'bg'"):
        figures.charts_of(paper, _reproduction(wrong))


def _edited(name, row=None, **changes):
    table = find_table(name)
    if row is None:
        return dataclasses.replace(table, figure={**table.figure, **changes})
    rows = list(table.rows)
    facts = {**rows[row].facts, "point": {**rows[row].facts["point"], **changes}}
    rows[row] = dataclasses.replace(rows[row], facts=facts)
    return dataclasses.replace(table, rows=tuple(rows))


def test_means_need_all_columns_of_the_other_table():
    columns = {"x_to_en.bleu": ["bg-en.bleu", "xx-en.bleu"]}
    table = _edited("graformer/figure5", columns=columns)
    charts = figures.charts_of(PAPERS["graformer"], _reproduction(table))
    assert [chart.y_title for chart in charts] == [table.columns[1].title]
    table = _edited("graformer/figure5", columns={"x_to_en.bleu": ["bg-en.bleu"]})
    charts = figures.charts_of(PAPERS["graformer"], _reproduction(table))
    assert [chart.y_title for chart in charts] == [column.title for column in table.columns]


@pytest.mark.parametrize(
    "table, message",
    [
        (_edited("registers/figure3", x_titel="x"), "unknown field 'x_titel'; did you mean"),
        (_edited("registers/figure3", x_title=""), "figure has no 'x_title'"),
        (_edited("registers/figure3", table="table99"), "no table 'table99' of this paper"),
        (_edited("registers/figure3", 0, seris="a"), "ratio 0.75': unknown field 'point.seris'"),
        (_edited("registers/figure3", 0, relative_to="a"), "relative_to 'a' is no row"),
        (_edited("registers/figure3", 0, printed="a"), "table5 has no row 'a'"),
        (
            dataclasses.replace(find_table("registers/figure3"), figure={}),
            "has a point; the table has no 'figure'",
        ),
    ],
)
def test_mistakes_in_a_figure_are_named(table, message):
    with pytest.raises(UserError, match=message) as raised:
        figures.charts_of(PAPERS[table.paper], _reproduction(table))
    assert str(raised.value).startswith(f"{table.paper}/{table.name}: ")


def test_points_are_drawn_at_their_places():
    """x from 1 to 100 on a logarithmic axis: 10 is in the middle of 56 and 508 pixels."""
    points = (Point(1, 0.0), Point(10, 5.0, (4.0, 6.0)), Point(100, 10.0, None, 2.0))
    axes = {"x_title": "share", "y_title": "BLEU", "logarithmic": True}
    page = point_chart("Figure", [Series("model", points)], **axes)
    assert re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', page)[:3] == [
        ("56.0", "252.0"),
        ("282.0", "131.0"),
        ("508.0", "10.0"),
    ]
    assert "M282.0 155.2V106.8" in page  # the interval from 4 to 6 of an axis from 0 to 10
    assert "M504.0 199.6h8v8h-8z" in page and "published 2.00" in page
    assert "model, ours" in page and "model, published" in page


def test_pages_draw_figures():
    table, paper = find_table("graformer/figure5"), PAPERS["graformer"]
    made = _reproduction(table, {("Transformer, 30% of the pairs", "x_to_en.bleu"): (20.0, None)})
    page = pages.html_report(paper, made)
    assert page.count('<figure class="points">') == 2 and "Transformer, 30: 20.00" in page
    latex = pages.latex_page(paper, made, "")
    assert latex.count(r"\begin{semilogxaxis}") == latex.count(r"\end{semilogxaxis}") == 2
    assert r"\addplot[blue, mark=*] coordinates {(30,20)};" in latex
    assert r"\addplot[red, dashed, mark=square] coordinates {(100,28.55)};" in latex
    assert r"\addlegendentry{Transformer, published}" in latex
    table = find_table("registers/table5")
    assert "points" not in pages.latex_page(PAPERS["registers"], _reproduction(table), "")


def test_numbers_of_another_table_are_not_added_to_the_table():
    """A figure's page shows them as points; its cells stay those of the figure."""
    table = find_table("registers/figure3")
    made = _reproduction(table)
    assert figures.charts_of(PAPERS["registers"], made) and not made.cells
    assert isinstance(find_table("registers/table5").rows[2].published["all.spbleu"], Decimal)
