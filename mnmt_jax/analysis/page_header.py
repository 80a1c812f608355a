"""Title, line of facts and warnings of an analysis page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mnmt_jax.analysis.page_elements import JsonObject
from mnmt_jax.errors import join_names, pluralize
from mnmt_jax.evaluation.html_elements import language_name
from mnmt_jax.evaluation.html_page import run_title

MIN_SENTENCES_PER_DIMENSION = (
    10  # sentences for each dimension kept, from which SVCCA is no artefact of few
)

_NOT_COMPARED = (
    "Languages are not compared: no two of the directions have a target language and two or more "
    "references in common. Read three languages or more of a test set that is parallel in them, "
    "without --directions."
)


def page_title(facts: JsonObject) -> str:
    """Return the title of an analysis: its runs and its kind."""
    models = [facts, *(facts.get("others") or ())]
    runs = list(dict.fromkeys(model["run"] for model in models))
    steps = f", {len(models)} checkpoints" if len(models) > len(runs) else ""
    return f"{run_title(runs, 'runs')}{steps}: {facts['analysis']}"


def summary_line(facts: JsonObject) -> str:
    """Return one line about what an analysis read and of which model."""
    return ". ".join(filter(None, (_sentences(facts), _kept(facts), _model(facts)))) + "."


def result_warnings(facts: JsonObject) -> list[str]:
    """Return what weakens the figures of an analysis, a text each."""
    few = sorted({(n, kept) for n, kept in _sizes(facts) if n < MIN_SENTENCES_PER_DIMENSION * kept})
    if not few:
        return []
    sentences, kept = min(few, key=lambda size: size[0] / size[1])
    return [
        f"SVCCA of {pluralize(sentences, 'sentence')} with {pluralize(kept, 'dimension')} kept: below "
        f"{MIN_SENTENCES_PER_DIMENSION} sentences for each dimension it is high for any two sets of states, up "
        "to 1; read it beside the value of other sentences, or raise --limit"
    ]


def comparison_gaps(facts: JsonObject) -> list[str]:
    """Return what an analysis of several languages could not compare, a sentence each."""
    models = facts.get("subjects") or [facts]
    compared = [model["languages"] for model in models if "languages" in model]
    if facts["analysis"] == "retrieval":
        compared = [facts["places"]]
    if not compared:
        return []
    if not all(compared):
        return [_NOT_COMPARED]
    pairs = [pair for places in compared for place in places for pair in place["pairs"]]
    names = {code for pair in pairs for code in _languages(pair)}
    read = {direction.split("-")[0] for direction in facts.get("read_directions", ())}
    if lacking := sorted(read - names):
        return [
            f"Not compared: {join_names(list(map(language_name, lacking)))}, which has no two "
            "references in common with another language."
        ]
    return []


def _languages(pair: JsonObject) -> tuple[str, ...]:
    return tuple(pair.get("languages") or (pair["from"], pair["to"]))


def _sentences(facts: JsonObject) -> str:
    """Return the task with the number of directions and of sentences of each split."""
    parts = [facts["task"]] if facts.get("task") else []
    if directions := facts.get("read_directions"):
        parts.append(pluralize(len(directions), "direction"))
    for split, count in (facts.get("read_sentences") or {}).items():
        noun = "sentence" if split == "input" else f"{split} sentence"
        parts.append(f"{count:,} {noun}{'' if count == 1 else 's'}")
    return ", ".join(parts)


def model_labels(facts: JsonObject) -> list[str]:
    """Return the run, checkpoint and number of parameters of each of several models."""
    others = facts.get("others") or ()
    return [f"{model['run']}, {_checkpoint(model)}" for model in (facts, *others) if others]


def _model(facts: JsonObject) -> str:
    """Return the layout and checkpoint; those of several models are beside their names."""
    return "" if facts.get("others") else f"Layout {facts['layout']}, {_checkpoint(facts)}"


def _checkpoint(facts: JsonObject) -> str:
    count = facts.get("parameter_count")
    return facts["checkpoint"] + (f", {count:,} parameters" if count else "")


def _kept(facts: JsonObject) -> str:
    """Return how many dimensions SVCCA kept, and the sentences of a comparison."""
    sizes = list(_sizes(facts))
    if not sizes:
        return ""
    kept, sentences = _range(kept for _, kept in sizes), _range(count for count, _ in sizes)
    return f"SVCCA keeps {kept} dimensions of {sentences} sentences a comparison"


def _range(values: Iterable[int]) -> str:
    low, *_, high = sorted([*(known := list(values)), *known])
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _sizes(facts: JsonObject) -> Iterator[tuple[int, int]]:
    """Yield the sentences and the dimensions kept of each comparison by SVCCA."""
    if facts["analysis"] != "svcca":
        return
    for subject in facts["subjects"]:
        for place in subject["languages"]:
            yield from ((pair["sentences"], pair["kept"]) for pair in place["pairs"])
    for each in facts.get("between") or ():
        if "kept" in each:
            yield each["sentences"], each["kept"]
