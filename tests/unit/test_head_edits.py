"""Measures of translations with edited heads, by nearest rendering and by a language detector."""

from __future__ import annotations

import types
from collections import Counter

import numpy as np
import pytest
from lxml import html

from mnmt_jax.analysis.head_edits import HeadEvaluation
from mnmt_jax.analysis.page_sections import render_sections
from mnmt_jax.analysis.translation_heads import Head
from mnmt_jax.evaluation.off_target import detect_off_target
from mnmt_jax.vocabulary.language_detectors import make_lid176
from tests.unit import made_analyses

LID = types.SimpleNamespace(nearest=None, detector=make_lid176())
TEXTS = {
    "de": ["Gestern war das Wetter sehr schön.", "Ich lese abends gern ein Buch."],
    "nb": ["Været var veldig fint i går, og vi gikk på tur.", "Jeg liker å lese bøker om kvelden."],
    "zh": ["昨天天氣非常好，我們去了山上。", "我喜歡看書和聽音樂。"],
    "zu": ["Abantu bathanda ukuhamba emini.", "Ngiyabonga kakhulu ngosizo lwakho."],
}


def result(direction, detected, ratio):
    """Return what the evaluation reads of a direction's scores, by lid.176."""
    return types.SimpleNamespace(
        direction=direction,
        chrf=50.0,
        sentences=sum(detected.values()),
        detected=detected,
        off_target_nearest=None,
        off_target_lid=ratio,
    )


class MadeMeans:
    """Means that name their language: 1 for de, 2 for fr, 5 for all."""

    def mean(self, head, language=None):
        return np.full(2, {"de": 1.0, "fr": 2.0, None: 5.0}[language])


def test_steering_adds_the_difference_of_two_languages(monkeypatch):
    """And rows are means over directions and random selections."""
    asked = []

    def edit(params, vectors, *, ablate):
        asked.append(({head: float(vector[0]) for head, vector in vectors.items()}, ablate))
        return len(vectors)

    def score(self, params, direction):
        into = {"de": 4 - params, "fr": params} if direction[1] == "de" else {"fr": 3, "": 1}
        wrong = sum(into.values()) - into.get(direction[1], 0) - into.get("", 0)
        scores = result(direction, into, 100 * wrong / 4)
        scores.chrf += params
        return scores

    monkeypatch.setattr("mnmt_jax.analysis.head_edits.edit_heads", edit)
    monkeypatch.setattr(HeadEvaluation, "_score", score)
    translator = types.SimpleNamespace(inference_model=types.SimpleNamespace(params=None))
    directions = (("en", "de"), ("en", "fr"))
    evaluation = HeadEvaluation(translator, LID, directions, MadeMeans())
    heads = [Head(1, "attention", number) for number in (1, 2)]
    selections = {"none": [()], "random": [(heads[0],), tuple(heads)]}
    none, random = evaluation.steering(selections, 3)
    assert none == {"heads": "none", "target": 100, "other": 0}
    # Into German one and two of four are French; from French none is German.
    draws = [{"target": 87.5, "other": 12.5}, {"target": 75, "other": 25}]
    assert random == {"heads": "random", "target": 81.25, "other": 18.75, "draws": draws}
    assert asked[2:4] == [({heads[0]: 3.0}, False), ({heads[0]: -3.0}, False)]
    asked.clear()
    none, random = evaluation.ablation(selections)
    assert none == {"heads": "none", "chosen": [[]], "chrf": 50, "off_target": 0}
    assert random["chrf"] == 51.5 and random["off_target"] == 75 / 4
    assert [draw["chrf"] for draw in random["draws"]] == [51, 52]
    assert asked[-1] == ({head: 5.0 for head in heads}, True)


def evaluated(monkeypatch, outputs, benchmark=LID):
    """Evaluate no heads with fixed translations, by direction, and return it with both rows."""

    def score(self, params, direction):
        lines = outputs[direction]
        lid = detect_off_target(LID.detector, lines, direction[1])
        scores = result(direction, dict(Counter(lid.detected)), lid.ratio)
        if benchmark.nearest:  # by which every translation is right
            scores.off_target_nearest, scores.detected = 0.0, {direction[1]: len(lines)}
        return scores

    monkeypatch.setattr(HeadEvaluation, "_score", score)
    translator = types.SimpleNamespace(inference_model=types.SimpleNamespace(params=None))
    evaluation = HeadEvaluation(translator, benchmark, tuple(outputs), MadeMeans())
    (ablation,) = evaluation.ablation({"none": [()]})
    (steering,) = evaluation.steering({"none": [()]}, 1)
    return evaluation, ablation, steering


def test_a_target_that_the_detector_does_not_know_has_no_ratio(monkeypatch):
    outputs = {("en", "zu"): TEXTS["zu"], ("en", "de"): [TEXTS["de"][0], TEXTS["nb"][0]]}
    evaluation, ablation, steering = evaluated(monkeypatch, outputs)
    assert evaluation.undetected() == [("en", "zu")] and not evaluation.steered()
    assert ablation["off_target"] == 50 and ablation["chrf"] == 50
    assert steering == {"heads": "none", "target": None, "other": None}
    _, ablation, _ = evaluated(monkeypatch, {("en", "zu"): TEXTS["zu"]})
    assert ablation["off_target"] is None
    # Nearest rendering knows all languages.
    nearest = types.SimpleNamespace(nearest=True)
    evaluation, ablation, steering = evaluated(monkeypatch, outputs, nearest)
    assert not evaluation.undetected() and len(evaluation.steered()) == 2
    assert ablation["off_target"] == 0 and steering["target"] == 100


@pytest.mark.parametrize("other", ["nb", "zh_Hant"])
def test_the_other_language_is_compared_by_its_label(other, monkeypatch):
    """The detector's labels are `no` and `zh`."""
    texts = TEXTS[other.partition("_")[0]]
    outputs = {("en", "de"): texts, ("en", other): texts}
    _, _, steering = evaluated(monkeypatch, outputs)
    assert steering == {"heads": "none", "target": 50, "other": 50}


def test_languages_with_one_label_are_not_steered_to_each_other(monkeypatch):
    outputs = {("en", "zh"): TEXTS["zh"], ("en", "zh_Hant"): TEXTS["zh"]}
    evaluation, ablation, _ = evaluated(monkeypatch, outputs)
    assert not evaluation.steered() and ablation["off_target"] == 0


def test_the_page_lists_directions_without_measures():
    facts = made_analyses.heads()
    row = facts["ablation"][-1] | {
        "off_target": None,
        "draws": [{"chrf": 9, "off_target": None}] * 2,
    }
    facts |= {"undetected": ["en-zu"], "unsteered": ["en-zu", "en-zh"], "ablation": [row]}
    page = html.fromstring("".join(str(part) for part in render_sections(facts))).text_content()
    assert "has no reliable label for the target language: en-zu." in page
    assert "tells from the target's: en-zu, en-zh." in page and "–" in page
