"""Example contents of `analysis.json`, with long names."""

from __future__ import annotations

from typing import Any

NAMES = (
    "ted19_encoder_decoder_language_layers_12_layers_512_embed_seed_1",
    "ted19_two_stage_adaption_instructcl_12_layers_512_embed_seed_2",
)
DIRECTIONS = ("de-en", "fr-en", "en-de", "fr-de", "en-fr", "de-fr")


def model(number: int = 0) -> dict[str, Any]:
    return {
        "run": NAMES[number],
        "parameters_fingerprint": 970202612 + number,
        "parameter_count": 985_856,
        "checkpoint": "step 2000",
    }


def facts_of(analysis: str, *, others: bool = False, **more: Any) -> dict[str, Any]:
    several = {"others": [model(1)]} if others else {}
    facts = {"analysis": analysis, **model(), "layout": "encoder_decoder", "task": "flores"}
    read = {"read_directions": sorted(DIRECTIONS), "read_sentences": {"test": 6_000}}
    return {**facts, **several, **read, "limit": 1000, **more}


def location(layer: int, role: str = "source", **more: Any) -> dict[str, Any]:
    return {"role": role, "layer": layer, "ended": False, **more}


def languages(
    sentences: int = 1000, kept: int = 20, codes: tuple[str, ...] = ("de", "en", "fr")
) -> list[dict[str, Any]]:
    values = {"parallel": 0.9, "others": 0.3, "sentences": sentences, "kept": kept}
    pairs = [
        {"languages": [one, other], **values} for one in codes for other in codes if one < other
    ]
    return [location(layer, **values, pairs=pairs) for layer in range(3)]


def svcca(sentences: int = 1000, kept: int = 20, *, others: bool = True) -> dict[str, Any]:
    preference = [
        location(
            layer,
            mean=0.5,
            least=0.4,
            most=0.625,
            directions=[
                {"source": d[:2], "target": d[3:], "preference": 0.5123} for d in DIRECTIONS
            ],
        )
        for layer in range(3)
    ]
    subjects = [
        {**model(number), "languages": languages(sentences, kept), "preference": preference}
        for number in range(1 + others)
    ]
    between = [
        {
            "first": location(one),
            "second": location(two),
            **{"svcca": 0.5, "others": 0.25, "kept": kept, "sentences": sentences},
        }
        for one in range(3)
        for two in range(3)
        if others
    ]
    return facts_of("svcca", others=others, subjects=subjects, between=between)


def similarity(
    layers: int = 3, compared: list[dict[str, Any]] | None = None, **more: Any
) -> dict[str, Any]:
    roles = [
        {"layer": n, "roles": ["source", "target"], "cosine": 0.8 + n / 100} for n in range(layers)
    ]
    actual = languages() if compared is None else compared
    return facts_of("similarity", roles=roles, languages=actual, **more)


def probe() -> dict[str, Any]:
    classes = {"all": {"macro": 0.5, "types": 12, "micro": 0.25, "tokens": 3456}}
    locations = [
        location(n, accuracy=0.9 - n / 10, held_out=0.875 - n / 10, classes=classes)
        for n in range(3)
    ]
    subjects = [{**model(number), "places": locations} for number in range(2)]
    gains = [
        location(1, gained=3, types=12, classes={"Latin": {"all": 0.5, "gained": 0.25}}),
    ]
    return facts_of(
        "probe",
        others=True,
        probe={"hidden": True, "updates": 2000},
        least=5,
        learned_from="validation",
        tested_on="test",
        subjects=subjects,
        gains=gains,
    )


def attention() -> dict[str, Any]:
    tokens = ["__en__", "▁Donau", "dampf", "schiff", "fahrts", "gesell", "schaft", "s", "kapitän"]
    tokens += ["</s>"]
    weights = [[0.1] * len(tokens) for _ in tokens]
    one = {"layer": 1, "attention": "encoder self-attention", "query": "source", "keys": ["source"]}
    sentences = [
        {
            "source": f"Satz {number} über den Kapitän der Donaudampfschifffahrt",
            "target": f"Sentence {number} about the captain",
            "tokens": {"source": tokens},
            "maps": [{**one, "weights": weights}],
        }
        for number in range(2)
    ]
    direction = {"source": "de", "target": "en", "sentences": sentences}
    return facts_of("attention", by_head=False, heads=8, directions=[direction])


def heads() -> dict[str, Any]:
    shares = [0.5, 0.25, -0.125, 0.0]
    effect = {
        "sentences": 600,
        "gap": 4.893,
        "heads": [
            {"layer": n, "attention": name, "shares": shares}
            for n, name in ((1, "attention"), (2, "attention"), (2, "memory_attention"))
        ],
        "states": [
            {"role": role, "layer": n, "share": 1 - n / 4}
            for role in ("source", "target")
            for n in range(3)
        ],
        "roles": {"source": 0.955},
        "all_heads": 0.979,
    }
    rows = [
        {"heads": name, "chosen": [], "chrf": 91.4, "off_target": 2.25, "target": 54.3, "other": 35}
        for name in ("none", "language", "meaning", "random")
    ]
    effects = {"language": effect, "meaning": effect}
    edits = {"top": 4, "strength": 4, "ablation": rows, "steering": rows}
    return facts_of("heads", effects=effects, **edits)
