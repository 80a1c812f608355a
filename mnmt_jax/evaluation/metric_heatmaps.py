"""Heat maps of a metric over language pairs, as HTML tables; all values are also text."""

from __future__ import annotations

from collections.abc import Sequence

from mnmt_jax.evaluation.result import Metric, RunResult
from mnmt_jax.pages.heatmap import color_range
from mnmt_jax.pages.html_elements import Html, language_name, tag
from mnmt_jax.pages.html_page import run_name
from mnmt_jax.pages.markdown_tables import format_score

_DENSE = 9  # number of languages from which cells are small


def metric_heatmaps(results: Sequence[RunResult], metric: Metric, languages: Sequence[str]) -> Html:
    """Return heat maps of one metric for several runs, side by side and with a common scale.

    Args:
        results: evaluations of the runs.
        metric: the metric to show.
        languages: language codes in the order of rows and columns.
    """
    values = [value for result in results for value in result.scores(metric.key).values()]
    low, high = color_range([value for value in values if value is not None])
    maps = [
        tag("div", _table(result, metric, languages, (low, high), number), class_="map scroll")
        for number, result in enumerate(results)
    ]
    hue = "good" if metric.higher_is_better else "bad"
    dense = " dense" if len(languages) >= _DENSE else ""
    known = all(result.supervised is not None for result in results)
    return tag(
        "div",
        _legend(metric, low, high, outlined=known),
        tag("div", maps, class_="maps"),
        class_=f"{hue}{dense}",
    )


def _legend(metric: Metric, low: float, high: float, *, outlined: bool) -> Html:
    better = "higher is better" if metric.higher_is_better else "lower is better"
    ramp = tag("span", f"{low:.0f}", tag("span", "", class_="ramp"), f"{high:.0f}")
    items = [ramp, tag("span", better)]
    if outlined:
        items.append(tag("span", tag("span", "", class_="box"), "trained on; the others not"))
    return tag("div", items, class_="legend")


def _table(
    result: RunResult,
    metric: Metric,
    languages: Sequence[str],
    ends: tuple[float, float],
    number: int,
) -> Html:
    values = result.scores(metric.key)
    averages = result.averages[metric.key]
    supervised = result.supervised
    sources = [code for code in languages if code in averages.by_source]
    targets = [code for code in languages if code in averages.by_target]
    head = [tag("th", "from ↓ to →", scope="col", class_="corner")]
    head += [_language_head(code, "col") for code in targets]
    head.append(tag("th", "mean", scope="col"))
    rows = []
    for source in sources:
        cells = [_language_head(source, "row")]
        for target in targets:
            pair = (source, target)
            trained = None if supervised is None else pair in supervised
            cells.append(_cell(pair, values, ends, trained=trained))
        cells.append(tag("td", format_score(averages.by_source[source].mean), class_="mean"))
        rows.append(tag("tr", cells))
    means = [
        tag("td", format_score(averages.by_target[code].mean), class_="mean") for code in targets
    ]
    means.append(tag("td", format_score(averages.all.mean), class_="mean"))
    rows.append(tag("tr", tag("th", "mean", scope="row"), means))
    caption = tag("caption", run_name(result.name, number))
    return tag("table", caption, tag("thead", tag("tr", head)), tag("tbody", rows), class_="heat")


def _cell(
    pair: tuple[str, str],
    values: dict[tuple[str, str], float | None],
    ends: tuple[float, float],
    *,
    trained: bool | None,
) -> Html:
    names = f"{language_name(pair[0])} to {language_name(pair[1])}"
    if pair not in values:
        return tag("td", "" if pair[0] == pair[1] else "·", class_="none")
    value = values[pair]
    if value is None:
        return tag("td", "–", class_="none", title=f"{names}: left out")
    share = (value - ends[0]) / (ends[1] - ends[0])
    status = {True: " (trained on)", False: " (not trained on)", None: ""}[trained]
    return tag(
        "td",
        format_score(value),
        class_="trained" if trained else "",
        style=f"--share:{100 * min(1.0, max(0.0, share)):.0f}%",
        title=f"{names}{status}: {value:.2f}",
    )


def _language_head(code: str, scope: str) -> Html:
    return tag("th", tag("abbr", code, title=language_name(code)), scope=scope)
