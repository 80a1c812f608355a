"""Notes on pages of analyses: inputs, warnings and omissions."""

import re

import numpy as np
import pytest

from mnmt_jax.analysis.attention_links import top_keys
from mnmt_jax.analysis.page_header import comparison_gaps, page_title, result_warnings, summary_line
from mnmt_jax.analysis.page_sections import render_sections
from tests.unit import made_analyses
from tests.unit.made_analyses import NAMES, facts_of, languages, model, similarity, svcca


def page(facts):
    return "".join(render_sections(facts)).replace("<wbr/>", "")


@pytest.mark.parametrize(
    "facts,line",
    [
        (
            similarity(),
            "flores, 6 directions, 6,000 test sentences. Layout encoder_decoder, step 2000, "
            "985,856 parameters.",
        ),
        (
            svcca(others=False),
            "flores, 6 directions, 6,000 test sentences. SVCCA keeps 20 dimensions of 1,000 "
            "sentences a comparison. Layout encoder_decoder, step 2000, 985,856 parameters.",
        ),
        (
            facts_of("scales", read_directions=(), read_sentences={}, task=""),
            "Layout encoder_decoder, step 2000, 985,856 parameters.",
        ),
        (
            facts_of("attention", read_directions=["de-en"], read_sentences={"input": 1}),
            "flores, 1 direction, 1 sentence. Layout encoder_decoder, step 2000, "
            "985,856 parameters.",
        ),
    ],
)
def test_one_line_describes_the_input(facts, line):
    assert summary_line(facts) == line
    if facts["analysis"] in ("similarity", "svcca"):
        assert f'<p class="muted">{line}</p>' in page(facts)


def test_titles_name_all_runs_or_count_them():
    facts = facts_of("probe", others=True)
    assert page_title(facts) == "2 runs: probe"
    facts["run"], facts["others"][0]["run"] = "prefix_1", "register_1"
    assert page_title(facts) == "prefix_1 and register_1: probe"
    facts["others"] = [{**model(), "run": "prefix_1", "checkpoint": f"step {n}"} for n in (4, 8)]
    assert page_title(facts) == "prefix_1, 3 checkpoints: probe"
    named = page(svcca())
    assert all(f"{name}, step 2000, 985,856 parameters" in named for name in NAMES)


def test_notes_of_users_are_at_the_top():
    noted = page({**similarity(), "note": "<made> text"}).partition("</header>")[0]
    assert '<p class="warning">&lt;made&gt; text</p>' in noted
    assert "made" not in page(similarity())


def test_svcca_of_few_sentences_warns():
    (warning,) = result_warnings(svcca(3, 2))
    assert warning.startswith("SVCCA of 3 sentences with 2 dimensions kept: below 10 sentences")
    assert f'<p class="warning">{warning}.</p>' in page(svcca(3, 2))
    assert result_warnings(svcca(199, 20)) and not result_warnings(svcca(200, 20))
    assert 'class="warning"' not in page(svcca(200, 20))
    between = svcca(200, 20)
    between["between"][0]["kept"] = 21
    assert result_warnings(between)


def test_omitted_parts_are_explained():
    assert comparison_gaps(similarity()) == []
    (none,) = comparison_gaps(similarity(compared=[], read_directions=["de-fr", "fr-de"]))
    assert none.startswith("Languages are not compared: no two of the directions have a target")
    assert none in page(similarity(compared=[]))
    (some,) = comparison_gaps(similarity(compared=languages(codes=("de", "en"))))
    assert some.startswith("Not compared: French, which")


def test_a_single_location_is_a_number_without_chart():
    """As in an encoder-decoder: a chart of one point is not informative."""
    once = page(similarity(layers=1, compared=[]))
    assert "<svg" not in once and "meet in the embedding alone" in once
    assert re.search(r"source and target, embedding</th><td>0.8</td>", once)
    assert "<svg" in page(similarity()) and "embedding alone" not in page(similarity())


def test_sentences_are_not_repeated():
    text = page(made_analyses.attention())
    for sentence in made_analyses.attention()["directions"][0]["sentences"]:
        assert text.count(sentence["source"]) == text.count(sentence["target"]) == 1


def _attention_page(weights, **settings):
    facts = made_analyses.attention()
    sentence = {**facts["directions"][0]["sentences"][0]}
    sentence["tokens"] = {"source": ["s1", "s2", "s3", "s4"], "target": ["t1", "t2"]}
    attention = {"layer": 1, "attention": "self-attention", "query": "target", "keys": ["source"]}
    sentence["maps"] = [{**attention, "weights": weights.tolist()}]
    direction = {**facts["directions"][0], "sentences": [sentence]}
    return page({**facts, "directions": [direction], "settings": settings})


def test_top_weights_are_drawn_as_lines():
    weights = np.array([[0.1, 0.2, 0.7, 0.0], [0.25, 0.25, 0.25, 0.25]])
    assert top_keys(weights, 3).tolist() == [[2, 1, 0], [0, 1, 2]]
    assert top_keys(weights, 9).shape == (2, 4)
    text = _attention_page(weights, top=3)
    assert '<div class="charts"><figure>' in text  # whose style has colours of text and page
    assert text.count("<line") == 6 and "<td" not in text
    assert text.index("t1 to s3: 70.0 %") < text.index("t1 to s2") < text.index("t1 to s1")
    assert "t1 to s4" not in text and "The 3 largest weights" in text
    assert "<line" not in _attention_page(weights)
    assert _attention_page(weights, top=4).count("<line") == 7  # none for a key without weight
