"""Made-up evaluations for tests of tables and reports."""

import random

from mnmt_jax.evaluation.result import DirectionResult, RunResult, Sample
from mnmt_jax.vocabulary.languages import english_centric_directions, many_to_many_directions

TEXTS = {
    "en": "Thursday, March 5, 1987: Germany, Greece, or Egypt",
    "de": "Donnerstag, 5. März 1987: Deutschland, Griechenland oder Ägypten",
    "fr": "jeudi 5 mars 1987 : Allemagne, Grèce ou Égypte",
    "cs": "čtvrtek 5. března 1987: Německo, Řecko nebo Egypt",
    "ja": "1987年3月5日木曜日：ドイツ、ギリシャ、またはエジプト",
    "zh": "1987年3月5日星期四：德国、希腊或埃及",
    "ko": "1987년 3월 5일 목요일: 독일, 그리스 또는 이집트",
}


def made_result(
    name: str, languages: tuple[str, ...], *, seed: int, layout: str = "", zero_shot: float = 60.0
) -> RunResult:
    """Make a result with random scores; directions between English and others are supervised."""
    draw = random.Random(seed)
    trained = set(english_centric_directions(languages))
    directions = tuple(
        _direction(pair, draw, trained=pair in trained, level=zero_shot)
        for pair in many_to_many_directions(languages)
    )
    samples = tuple(
        _sample(pair, index, draw, trained=pair in trained)
        for pair in list(many_to_many_directions(languages))[:: max(1, len(directions) // 24)]
        for index in range(3)
    )
    steps = range(50, 3001, 50)
    curves = {
        "train": tuple((step, 8 * step**-0.35 + draw.random() * 0.1) for step in steps),
        "supervised": tuple((step, 7 * step**-0.4) for step in steps[::4]),
        "zero_shot": tuple((step, 1.2 + 7 * step**-0.3 - zero_shot / 100) for step in steps[::4]),
    }
    return RunResult(
        name=name,
        task="cldr_en_x",
        layout=layout or name,
        step=3000,
        seconds=219.4,
        parameters=1_053_184,
        directions=directions,
        signatures={
            "bleu": {"de fr cs": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"},
            "chrf": "nrefs:1|case:mixed|eff:yes|nc:6|nw:2|space:no|version:2.6.0",
        },
        curves=curves,
        samples=samples,
        config={"model": {"layout": name, "embed": 128}, "train": {"steps": 3000}},
        decoding={"method": "beam", "beam_size": 5},
        notes=("lid.176 is unreliable on <short> phrases",),
    )


def _direction(pair, draw, *, trained: bool, level: float) -> DirectionResult:
    base = 97.0 if trained else level
    bleu = max(0.0, min(100.0, draw.gauss(base, 1 if trained else 9)))
    off = 0.2 if trained else max(0.0, draw.gauss(100 - level, 9) / 2)
    return DirectionResult(
        *pair,
        supervised=trained,
        sentences=200,
        bleu=None if pair[1] == "ko" else bleu,
        chrf=min(100.0, bleu + 1.7),
        exact_match=bleu * 0.8,
        off_target_nearest=off,
        off_target_lid=off + 11.5,
        off_target_lid_reference=11.25,
        empty=0,
        detected={pair[1]: 200 - int(2 * off), "en": int(2 * off)},
    )


def _sample(pair, index: int, draw, *, trained: bool) -> Sample:
    source, target = pair
    texts = [TEXTS.get(code, f"{TEXTS['en']} ({code})") for code in pair]
    exact = trained or draw.random() < 0.4
    hypothesis = texts[1] if exact else draw.choice([TEXTS["en"], texts[1][: 15 + index], ""])
    detected = "en" if hypothesis == TEXTS["en"] and target != "en" else target
    if not hypothesis:
        detected = ""
    return Sample(source, target, index, texts[0], hypothesis, texts[1], detected)
