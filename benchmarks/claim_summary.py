"""Results of an experiment: a compact JSON file, and its tables as Markdown.

The file is sufficient to print the tables without the runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import PLAIN, Workspace, logged

from mnmt_jax.evaluation.result import read_result
from mnmt_jax.evaluation.seed_statistics import compare_means, summarize_scores
from mnmt_jax.pages.markdown_tables import format_difference, markdown_table

GROUPS = {"supervised": "supervised", "zero-shot": "zero-shot"}
_SCORES = {"bleu": "BLEU", "chrf": "chrF++", "exact_match": "exact", "off_target": "off-target"}
_TERMS = ("critic", "critic_minus_chance", "information", "mean_gate")


def summarize(workspace: Workspace) -> dict[str, Any]:
    """Return the recorded results of a workspace, with those of the runs in its folder."""
    experiment = workspace.experiment
    arms = {name: _arm(workspace, name) for name in experiment.arms}
    return {
        "title": experiment.title,
        "steps": experiment.steps,
        "levels": list(experiment.levels),
        "grid": [list(candidate) for candidate in experiment.grid],
        "arms": {name: arm for name, arm in arms.items() if arm["seeds"] or any(arm["losses"])},
    }


def _arm(workspace: Workspace, name: str) -> dict[str, Any]:
    arm = workspace.experiment.arms[name]
    losses = [None] if arm.tuned_as else workspace.losses(name)
    tuned = workspace.losses(arm.tuned_as) if arm.tuned_as else losses
    if None in tuned and len(tuned) > 1:
        return workspace.recorded.get(name, {"chosen": [], "losses": losses, "seeds": {}})
    candidate = workspace.choice(name)
    seeds = workspace.recorded_runs(name)
    for seed in workspace.experiment.seeds_of(arm):
        run = workspace.run(name, candidate, seed)
        if (run / "finished").is_file() and not workspace.is_recorded(name, seed):
            seeds[str(seed)] = _run(run, list(arm.decodings) if arm.evaluated else [])
    other = {"compared_with": arm.compared_with} if arm.compared_with else {}
    return {"chosen": workspace.chosen(name), "losses": losses, **other, "seeds": seeds}


def _run(run: Path, decodings: Sequence[str]) -> dict[str, Any]:
    """Return the validation curve, loss terms and scores of a run."""
    records = logged(run)
    curve = [
        [record["step"], *(round(v[g]["nll"], 4) for g in ("supervised", "zero_shot") if g in v)]
        for record in records
        if (v := record.get("validation"))
    ]
    terms = {
        term: [[record["step"], round(record[term], 4)] for record in records if term in record]
        for term in _TERMS
    }
    results: dict[str, Any] = {"curve": curve, **{k: v for k, v in terms.items() if v}}
    for decoding in decodings:
        report = run / f"report_{decoding}"
        if (report / "scores.json").is_file():
            results.setdefault("scores", {})[decoding] = _scores(report)
    return results


def _scores(report: Path) -> dict[str, Any]:
    result = read_result(report)
    directions = {}
    for item in result.directions:
        nearest = item.off_target_nearest
        scores = {
            "bleu": item.bleu,
            "chrf": item.chrf,
            "exact_match": item.exact_match,
            "off_target": item.off_target_lid if nearest is None else nearest,
        }
        row = {key: None if value is None else round(value, 3) for key, value in scores.items()}
        directions["-".join(item.direction)] = {
            "group": "supervised" if item.supervised else "zero-shot",
            **row,
        }
    return {
        "step": result.step,
        "parameters": result.parameters,
        "sentences": result.directions[0].sentences,
        "directions": directions,
    }


def means(arm: Mapping[str, Any], decoding: str, group: str, score: str) -> list[float]:
    """Return the mean of a score over a group of directions, for every evaluated seed."""
    seed_means = []
    for run in arm["seeds"].values():
        rows = run.get("scores", {}).get(decoding, {}).get("directions", {}).values()
        values = [row[score] for row in rows if row["group"] == group and row[score] is not None]
        if values:
            seed_means.append(sum(values) / len(values))
    return seed_means


def score_tables(summary: Mapping[str, Any], baseline: str = "") -> str:
    """Return tables of scores per group of directions, with comparisons to a baseline.

    Args:
        summary: from `summarize`.
        baseline: name of the arm that all others are compared with; empty is that which each arm
            names, or the first one if that has no scores.
    """
    arms = evaluated_arms(summary)
    if not arms:
        return f"## {summary['title']}\n\nNo run is finished."
    compared: dict[str, dict[str, Any]] = {}
    for name, arm in arms.items():
        other = baseline or arm.get("compared_with")
        compared.setdefault(other if other in arms else next(iter(arms)), {})[name] = arm
    parts = [f"## {summary['title']}"]
    for group in GROUPS:
        parts.append(f"### {group.capitalize()} directions")
        for other, members in compared.items():
            header = ["arm", "seeds", *_SCORES.values(), "variance of BLEU"]
            rows = list(_score_rows(members, group, other, arms[other]))
            parts.append(markdown_table([*header, f"BLEU - {other}", "p"], rows))
    return "\n\n".join(parts)


def evaluated_arms(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arms with scores by name."""
    return {
        name: arm
        for name, arm in summary["arms"].items()
        if any(run.get("scores") for run in arm["seeds"].values())
    }


def _score_rows(
    arms: Mapping[str, Any], group: str, baseline: str, baseline_arm: Mapping[str, Any]
) -> Iterator[list[str]]:
    baseline_bleu = means(baseline_arm, PLAIN, group, "bleu")
    for name, arm in arms.items():
        decodings = {d for run in arm["seeds"].values() for d in run.get("scores", {})}
        for decoding in sorted(decodings, key=lambda label: (label != PLAIN, label)):
            bleu = means(arm, decoding, group, "bleu")
            title = name if decoding == PLAIN else f"{name}, {decoding}"
            cells = [_range(means(arm, decoding, group, score)) for score in _SCORES]
            variance = summarize_scores(bleu).variance
            row = [title, str(len(bleu)), *cells, "–" if variance is None else f"{variance:.2f}"]
            if title == baseline:
                yield [*row, "–", "–"]
                continue
            gap = compare_means(bleu, baseline_bleu)
            mean, *ends = (
                "" if value is None else format_difference(value)
                for value in (gap.mean, gap.low, gap.high)
            )
            interval = f" ({' to '.join(ends)})" if all(ends) else ""
            p = "–" if gap.p is None else f"{gap.p:.3f}"
            yield [*row, f"{mean}{interval}", p]


def _range(values: Sequence[float]) -> str:
    if not values:
        return "–"
    scores = summarize_scores(values)
    if scores.count == 1:
        return f"{scores.mean:.1f}"
    return f"{scores.mean:.1f} ({scores.low:.1f} to {scores.high:.1f})"


def validation_table(summary: Mapping[str, Any]) -> str:
    """Return a table of the lowest supervised nll of each arm, means over seeds.

    Columns: that nll, the updates until then, the zero-shot nll there, and the lowest supervised
    loss of each candidate with the first seed. The checkpoint of that loss, which is evaluated, may
    be another.
    """
    rows = []
    for name, arm in summary["arms"].items():
        curves = [run["curve"] for run in arm["seeds"].values() if run["curve"]]
        if not curves:
            continue
        lowest = [min(curve, key=lambda point: point[1]) for curve in curves]
        steps, supervised, *zero_shot = (
            sum(values) / len(values) for values in zip(*lowest, strict=True)
        )
        losses = ", ".join("–" if loss is None else f"{loss:.3f}" for loss in arm["losses"])
        rows.append(
            [
                name,
                f"{supervised:.3f}",
                f"{steps:,.0f}",
                f"{zero_shot[0]:.3f}" if zero_shot else "–",
                losses,
            ]
        )
    return markdown_table(
        ["arm", "supervised nll", "updates", "zero-shot nll", "losses of candidates"], rows
    )


def equal_loss_table(summary: Mapping[str, Any], levels: Sequence[float]) -> str:
    """Return a table of zero-shot losses at the first validation at or below a supervised loss."""
    rows = []
    for name, arm in summary["arms"].items():
        cells = [name]
        for level in levels:
            points = [_first_below(run["curve"], level) for run in arm["seeds"].values()]
            reached = [point for point in points if point]
            if len(reached) < len(points):
                cells.append(f"reached by {len(reached)} of {len(points)}")
                continue
            steps = sum(step for step, _ in reached) / len(reached)
            losses = summarize_scores([loss for _, loss in reached])
            cells.append(f"{losses.mean:.3f} after {steps:,.0f}")
        rows.append(cells)
    return markdown_table(["arm", *(f"{level:g}" for level in levels)], rows)


def _first_below(curve: Sequence[Sequence[float]], level: float) -> tuple[float, float] | None:
    return next(((row[0], row[2]) for row in curve if len(row) > 2 and row[1] <= level), None)


def last_terms(summary: Mapping[str, Any]) -> str:
    """Return a table of the last logged value of each extra loss term, means over seeds."""
    rows = []
    for name, arm in summary["arms"].items():
        runs = list(arm["seeds"].values())
        if not any(term in run for run in runs for term in _TERMS):
            continue
        cells = [name]
        for term in _TERMS:
            values = [run[term][-1][1] for run in runs if run.get(term)]
            cells.append(f"{sum(values) / len(values):.3f}" if values else "–")
        rows.append(cells)
    return markdown_table(["arm", *_TERMS], rows) if rows else ""
