"""Header of an analysis page: title, summary line and warnings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from mnmt_jax.analysis.page_elements import JsonObject
from mnmt_jax.errors import join_names, pluralize
from mnmt_jax.pages.html_elements import language_name
from mnmt_jax.pages.html_page import run_title

MIN_SENTENCES_PER_DIMENSION = 10  # with fewer, SVCCA is high for any two sets of states
_MIN_SENTENCES = 100  # with fewer, `heads` warns

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
    """Return one line about the data and the model of an analysis."""
    return (
        ". ".join(
            filter(None, (_data_summary(facts), _svcca_summary(facts), _model_summary(facts)))
        )
        + "."
    )


def result_warnings(facts: JsonObject) -> list[str]:
    """Return warnings about unreliable results."""
    if facts["analysis"] == "heads":
        return _few_sentences(facts["effects"])
    small_samples = sorted(
        {
            (count, kept)
            for count, kept in _svcca_sizes(facts)
            if count < MIN_SENTENCES_PER_DIMENSION * kept
        }
    )
    if not small_samples:
        return []
    sentences, kept = min(small_samples, key=lambda size: size[0] / size[1])
    return [
        f"SVCCA of {pluralize(sentences, 'sentence')} with {pluralize(kept, 'dimension')} kept: "
        f"below {MIN_SENTENCES_PER_DIMENSION} sentences for each dimension it is high for any two "
        "sets of states, up to 1; read it beside the value of other sentences, or raise --limit"
    ]


def _few_sentences(effects: Mapping[str, JsonObject]) -> list[str]:
    return [
        f"shares of the {name} are of {pluralize(effect['sentences'], 'sentence')}; below "
        f"{_MIN_SENTENCES} the largest heads depend on which are read, so raise --limit"
        for name, effect in effects.items()
        if effect["sentences"] < _MIN_SENTENCES
    ]


def comparison_gaps(facts: JsonObject) -> list[str]:
    """Return sentences about languages that could not be compared."""
    subjects = facts.get("subjects") or [facts]
    locations_by_subject = [subject["languages"] for subject in subjects if "languages" in subject]
    if facts["analysis"] == "retrieval":
        locations_by_subject = [facts["places"]]
    if not locations_by_subject:
        return []
    if not all(locations_by_subject):
        return [_NOT_COMPARED]
    pairs = [
        pair
        for locations in locations_by_subject
        for location in locations
        for pair in location["pairs"]
    ]
    compared_codes = {code for pair in pairs for code in _languages(pair)}
    source_codes = {direction.split("-")[0] for direction in facts.get("read_directions", ())}
    if uncompared := sorted(source_codes - compared_codes):
        return [
            f"Not compared: {join_names(list(map(language_name, uncompared)))}, which has no two "
            "references in common with another language."
        ]
    return []


def _languages(pair: JsonObject) -> tuple[str, ...]:
    return tuple(pair.get("languages") or (pair["from"], pair["to"]))


def _data_summary(facts: JsonObject) -> str:
    """Return the task, the number of directions and the number of sentences per split."""
    phrases = [facts["task"]] if facts.get("task") else []
    if directions := facts.get("read_directions"):
        phrases.append(pluralize(len(directions), "direction"))
    for split, count in (facts.get("read_sentences") or {}).items():
        noun = "sentence" if split == "input" else f"{split} sentence"
        phrases.append(f"{count:,} {noun}{'' if count == 1 else 's'}")
    return ", ".join(phrases)


def model_labels(facts: JsonObject) -> list[str]:
    """Return the run, checkpoint and number of parameters of each of several models."""
    others = facts.get("others") or ()
    return [f"{model['run']}, {_checkpoint(model)}" for model in (facts, *others) if others]


def _model_summary(facts: JsonObject) -> str:
    """Return layout and checkpoint of one model; of several, `model_labels` has them."""
    return "" if facts.get("others") else f"Layout {facts['layout']}, {_checkpoint(facts)}"


def _checkpoint(facts: JsonObject) -> str:
    count = facts.get("parameter_count")
    return facts["checkpoint"] + (f", {count:,} parameters" if count else "")


def _svcca_summary(facts: JsonObject) -> str:
    """Return the number of dimensions that SVCCA keeps, and of sentences per comparison."""
    sizes = list(_svcca_sizes(facts))
    if not sizes:
        return ""
    kept, sentences = _range(kept for _, kept in sizes), _range(count for count, _ in sizes)
    return f"SVCCA keeps {kept} dimensions of {sentences} sentences a comparison"


def _range(values: Iterable[int]) -> str:
    numbers = list(values)
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _svcca_sizes(facts: JsonObject) -> Iterator[tuple[int, int]]:
    """Yield the number of sentences and of kept dimensions of each SVCCA comparison."""
    if facts["analysis"] != "svcca":
        return
    for subject in facts["subjects"]:
        for location in subject["languages"]:
            yield from ((pair["sentences"], pair["kept"]) for pair in location["pairs"])
    for comparison in facts.get("between") or ():
        if "kept" in comparison:
            yield comparison["sentences"], comparison["kept"]
