"""Similarity, retrieval, SVCCA, preference, alignment and t-SNE on small arrays, by brute force."""

from __future__ import annotations

import math
import re
import sys

import numpy as np
import pytest

from mnmt_jax.analysis.attention_statistics import mass_by_group, token_group, top_key_statistics
from mnmt_jax.analysis.page_sections import render_sections
from mnmt_jax.analysis.parallel_sentences import (
    align_by_reference,
    check_has_parallel,
    group_by_languages,
)
from mnmt_jax.analysis.projection_2d import (
    check_scikit_learn,
    clipped_perplexity,
    run_tsne,
    sample_indices,
)
from mnmt_jax.analysis.retrieval import chance_accuracy, language_retrieval, retrieval_accuracy
from mnmt_jax.analysis.scatter import PointGroup, scatter_chart
from mnmt_jax.analysis.similarity import language_similarity, mean_cosines, role_similarity
from mnmt_jax.analysis.svcca import (
    checkpoint_svcca,
    language_svcca,
    pearson,
    preference_by_location,
    principal_basis,
    svcca,
    target_preference,
)
from mnmt_jax.analysis.teacher_forcing import ForcedSentences
from mnmt_jax.design.objective import States
from mnmt_jax.errors import UserError
from tests.unit.made_text import vocabulary

RNG = np.random.default_rng(0)


def cosine(one, other):
    return float(one @ other / math.sqrt(one @ one) / math.sqrt(other @ other))


def forced(source, target, sources, targets):
    return ForcedSentences(
        (source, target), tuple(sources), tuple(targets), tuple("e" for _ in sources)
    )


# de and fr into en in other orders; it has one sentence of them; en into de alone.
DE = forced("de", "en", ["a", "b", "c", "c"], ["A", "B", "C", "D"])
FR = forced("fr", "en", ["z", "x", "w", "y", "v"], ["C", "A", "A", "B", "D"])
IT = forced("it", "en", ["q", "r"], ["A", "E"])
BACK = forced("en", "de", ["A"], ["a"])


def test_sentences_are_aligned_by_their_references():
    actual = align_by_reference([FR, BACK, DE, IT])
    (pair,) = actual
    assert pair.languages == ("de", "fr") and pair.first is DE
    # D has the source of C, and the second A is a repetition.
    assert dict(zip(pair.first_rows.tolist(), pair.second_rows.tolist(), strict=True)) == {
        0: 1,
        1: 3,
        2: 0,
    }
    assert [(names, len(each)) for names, each in group_by_languages(actual)] == [(("de", "fr"), 1)]
    with pytest.raises(UserError, match="^task 't': no two of the .* raise --limit"):
        check_has_parallel(align_by_reference([DE, BACK]), "t")


def states_of(locations=2):
    rng = np.random.default_rng(1)
    return {f: rng.normal(size=(len(f.sources), locations, 5)).astype(np.float32) for f in (DE, FR)}


def test_mean_cosines_are_those_of_all_pairs():
    one, other = RNG.normal(size=(2, 6, 4))
    table = [[cosine(a, b) for b in other] for a in one]
    same = [table[n][n] for n in range(6)]
    rest = [table[n][m] for n in range(6) for m in range(6) if n != m]
    assert mean_cosines(one, other) == (pytest.approx(np.mean(same)), pytest.approx(np.mean(rest)))
    assert mean_cosines(np.zeros((2, 4)), one[:2]) == (0, 0)


def test_languages_and_roles_are_compared_at_each_location():
    pooled, pairs = states_of(3), align_by_reference([DE, FR])
    locations = (States(1), States(1, "register"), States(2, ended=True))
    actual = language_similarity(pooled, pairs, locations)
    assert [(f["layer"], f["role"], f["ended"]) for f in actual] == [
        (1, "source", False),
        (1, "register", False),
        (2, "source", True),
    ]
    expected = [cosine(pooled[DE][d, 1], pooled[FR][f, 1]) for d, f in ((0, 1), (1, 3), (2, 0))]
    assert actual[1]["parallel"] == pytest.approx(np.mean(expected), abs=1e-6)
    assert actual[1]["pairs"][0]["sentences"] == 3
    (roles,) = role_similarity(pooled, locations)
    every = [cosine(row[0], row[1]) for f in (DE, FR) for row in pooled[f]]
    assert roles["roles"] == ["source", "register"] and roles["layer"] == 1
    assert roles["cosine"] == pytest.approx(np.mean(every), abs=1e-6)


def test_retrieval_equals_a_brute_force_search():
    one = RNG.normal(size=(30, 6))
    other = one + 0.9 * RNG.normal(size=one.shape)

    def found_by_hand(queries, among):
        hits = 0
        for number, query in enumerate(queries):
            values = [cosine(query, each) for each in among]
            hits += values.index(max(values)) == number
        return hits / len(queries)

    forward, backward = retrieval_accuracy(one, other)
    assert forward == found_by_hand(one, other) and backward == found_by_hand(other, one)
    assert 0.2 < forward < 1 and forward != backward
    assert retrieval_accuracy(one, one * 7) == (1, 1)
    pooled, pairs = states_of(1), align_by_reference([DE, FR])
    for d, f in ((0, 1), (1, 3), (2, 0)):
        pooled[FR][f] = 2 * pooled[DE][d]
    (location,) = language_retrieval(pooled, pairs, (States(1),))
    assert location["accuracy"] == 1 and chance_accuracy(pairs) == pytest.approx(1 / 3)
    assert [(p["from"], p["to"]) for p in location["pairs"]] == [("de", "fr"), ("fr", "de")]


def rotation(size, seed):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))[0]


def test_svcca_is_rotation_invariant_and_low_for_independent_states():
    states = RNG.normal(size=(400, 6)) * np.array([5, 3, 2, 1, 1, 0.5])
    assert svcca(states, 3 * states @ rotation(6, 1) + 4) == pytest.approx(1)
    assert svcca(states, RNG.normal(size=(400, 6))) < 0.15
    half = np.concatenate([states[:, :3] @ rotation(3, 2), RNG.normal(size=(400, 3))], axis=1)
    assert 0.4 < svcca(states, half, variance_fraction=1.0) < 0.65
    assert svcca(states, np.ones((400, 6))) is None


def test_svcca_equals_textbook_cca():
    """The roots of the eigenvalues of Sxx^-1 Sxy Syy^-1 Syx."""
    one = RNG.normal(size=(50, 3))
    other = np.concatenate([one[:, :2] + RNG.normal(size=(50, 2)), RNG.normal(size=(50, 2))], 1)
    joint = np.cov(np.concatenate([one, other], axis=1).T)
    xx, xy, yy = joint[:3, :3], joint[:3, 3:], joint[3:, 3:]
    squares = np.linalg.eigvals(np.linalg.inv(xx) @ xy @ np.linalg.inv(yy) @ xy.T).real
    assert svcca(one, other, variance_fraction=1.0) == pytest.approx(np.sqrt(squares).mean())


def test_subspaces_keep_the_requested_variance():
    states = RNG.normal(size=(200, 4)) * np.array([10, 10, 1, 0.1])
    centred = states - states.mean(axis=0)
    for kept, count in ((0.99, 2), (0.9999, 3), (1.0, 4)):
        basis = principal_basis(states, kept)
        assert basis.shape == (200, count)
        np.testing.assert_allclose(basis.T @ basis, np.eye(count), atol=1e-9)
        held = ((basis.T @ centred) ** 2).sum() / (centred**2).sum()
        assert held >= kept - 1e-9
    doubled = np.concatenate([states, states], axis=1)  # no rank of its own
    assert principal_basis(doubled, 1.0).shape == (200, 4)


def test_languages_and_checkpoints_by_svcca():
    rng = np.random.default_rng(3)
    texts = [f"t{n}" for n in range(60)]
    one, other = (forced(c, "en", [f"{c}{t}" for t in texts], texts) for c in ("de", "fr"))
    base = rng.normal(size=(60, 1, 4))
    pooled = {one: base, other: base @ rotation(4, 5)}
    (location,) = language_svcca(pooled, align_by_reference([one, other]), (States(1),))
    assert location["parallel"] == pytest.approx(1) and location["others"] < 0.5
    assert (location["kept"], location["sentences"]) == (4, 60)
    turned = {
        each: np.concatenate([rng.normal(size=(60, 1, 4)), states @ rotation(4, 6)], axis=1)
        for each, states in pooled.items()
    }
    locations = (States(1),), (States(1), States(2))
    actual = checkpoint_svcca((pooled, turned), locations)
    assert [each["second"]["layer"] for each in actual] == [1, 2]
    assert actual[0]["svcca"] < 0.5 and actual[1]["svcca"] == pytest.approx(1)
    assert actual[1]["others"] < 0.5
    expected = np.mean([svcca(pooled[e][:, 0], turned[e][:, 0]) for e in (one, other)])
    assert actual[0]["svcca"] == pytest.approx(expected)


def test_preference_correlates_over_features():
    pair, source, target = RNG.normal(size=(3, 5, 8))
    actual = pearson(pair, source)
    by_hand = [np.corrcoef(a, b)[0, 1] for a, b in zip(pair, source, strict=True)]
    np.testing.assert_allclose(actual, by_hand)
    of_target = np.abs([np.corrcoef(a, b)[0, 1] for a, b in zip(pair, target, strict=True)])
    expected = of_target / (np.abs(by_hand) + of_target)
    np.testing.assert_allclose(target_preference(pair, source, target), expected)
    assert (target_preference(-target, source, target) > 0.5).all()
    assert (target_preference(source, source, target) < 0.5).all()
    assert target_preference(np.ones((1, 8)), source[:1], target[:1]).tolist() == [0.5]
    arrays = [each[:, None] for each in (pair, source, target)]
    swapped = [arrays[0], arrays[2], arrays[1]]
    (location,) = preference_by_location(
        [(("de", "fr"), arrays), (("fr", "de"), swapped)], (States(2),)
    )
    first, second = (each["preference"] for each in location["directions"])
    assert first == pytest.approx(expected.mean()) and first + second == pytest.approx(1)
    assert (location["least"], location["most"]) == tuple(sorted((first, second)))
    assert location["mean"] == pytest.approx(0.5)


def test_choices_by_hand():
    weights = np.array([[0.1, 0.5, 0.2], [0.3, 0.3, 0.0], [0.0, 0.1, 0.6], [0.0, 0.4, 0.2]])
    actual = top_key_statistics(weights)
    assert actual.first == pytest.approx((0.5 + 0.3 + 0.6 + 0.4) / 4)
    assert actual.second == pytest.approx((0.2 + 0.3 + 0.1 + 0.2) / 4)
    assert actual.distance == 1  # 1-2, 0-1, 2-1, 1-2
    assert actual.entropy == pytest.approx(-(0.5 * math.log2(0.5) + 0.5 * math.log2(0.25)))
    assert actual.diagonal == 1 / 4  # the third alone
    one = top_key_statistics(np.ones((3, 1)))
    assert one.entropy == 0 and math.isnan(one.second) and math.isnan(one.distance)
    even = top_key_statistics(np.eye(8))
    assert (even.entropy, even.diagonal) == (3, 1)


def test_attention_mass_per_group_of_source_tokens():
    known = vocabulary()
    tokens = [known.tag_id("de"), known.encode("Haus")[0], known.eos_id, known.unk_id]
    groups = [token_group(known, token) for token in tokens]
    assert groups == ["tag", "content", "eos", "content"]
    actual = mass_by_group(np.array([[0.1, 0.2, 0.3, 0.0], [0.3, 0.4, 0.1, 0.2]]), groups)
    expected = {"tag": 0.2, "content": 0.4, "eos": 0.2}
    assert {name: pytest.approx(value) for name, value in expected.items()} == actual


def test_t_sne_keeps_clusters_and_is_reproducible():
    centres = 20 * np.eye(3, 6)
    states = np.concatenate([c + RNG.normal(size=(8, 6)) for c in centres])
    actual = run_tsne(states, perplexity=5)
    np.testing.assert_array_equal(run_tsne(states, perplexity=5), actual)
    own = np.arange(24) // 8
    for number, point in enumerate(actual):
        distance = np.linalg.norm(actual - point, axis=1)
        nearest = np.argsort(distance)[1:8]
        assert (own[nearest] == own[number]).all()
    assert not run_tsne(np.ones((5, 3))).any()


def test_the_reported_t_sne_perplexity_is_the_one_used():
    assert [clipped_perplexity(n) for n in (4, 31, 91, 400)] == [1, 10, 30, 30]
    assert clipped_perplexity(31, 8.0) == 8
    states = RNG.normal(size=(13, 6))
    np.testing.assert_array_equal(run_tsne(states, 30), run_tsne(states, clipped_perplexity(13)))
    facts = {"analysis": "states", "run": "r", "layout": "prefix", "checkpoint": "step 1"}
    point = {"role": "source", "source": "de", "target": "en", "points": [[0, 0], [1, 1]]}
    plane = {"ended": False, "classes": [point]}
    planes = [{**plane, "layer": 1, "perplexity": 4.0}, {**plane, "layer": 2, "perplexity": 29 / 3}]
    facts |= {"tokens": False, "perplexity": 30.0, "seed": 0}
    assert "perplexity 4 to 9.67," in "".join(render_sections(facts | {"planes": planes}))
    assert "perplexity 9.67," in "".join(render_sections(facts | {"planes": planes[1:]}))


def test_a_sum_without_values_is_a_dash():
    choices = {"first": 0.5, "second": None, "distance": 1.5, "entropy": 0.0, "diagonal": 0.25}
    layers = [
        {"layer": n, "query": "target", "mass": {"content": 1.0}, "choices": {"source": choices}}
        for n in (1, 2)
    ]
    one = {"source": "de", "target": "en", "sentences": 3, "layers": layers}
    facts = {"analysis": "alignment", "run": "r", "layout": "prefix", "checkpoint": "step 1"}
    text = re.sub("<[^>]+>", " ", "".join(render_sections({**facts, "directions": [one]})))
    assert "sum  1  –  3  0  0.5" in text


def test_the_sentence_count_is_the_minimum_of_a_pair():
    """For target languages with more and fewer sentences, in cosines and SVCCA."""
    few = [forced(c, "it", ["a", "b"], ["A", "B"]) for c in ("de", "fr")]
    pooled = states_of() | {each: RNG.normal(size=(2, 2, 5)) for each in few}
    pairs = align_by_reference([DE, FR, *few])
    for compare in (language_similarity, language_svcca):
        (location,) = compare(pooled, pairs, (States(1),))
        assert [pair["sentences"] for pair in location["pairs"]] == [2]


def test_tokens_are_sampled_without_replacement():
    actual = sample_indices(50, 20, np.random.default_rng(0))
    assert len(set(actual.tolist())) == 20 and (np.diff(actual) > 0).all() and actual.max() < 50
    assert sample_indices(5, 20, np.random.default_rng(0)).tolist() == [0, 1, 2, 3, 4]


def test_missing_scikit_learn_names_the_extra(monkeypatch):
    check_scikit_learn()
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(UserError, match=r"pip install '\.\[analysis\]' in a clone of mnmt-jax$"):
        check_scikit_learn()


def test_a_scatter_chart_has_every_point_within_its_frame():
    groups = [PointGroup("a <b>", [(0, 0), (10, 5)], 0, 0), PointGroup("c", [(4, -10)], 1, 2)]
    text = scatter_chart("title", groups)
    circles = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', text)
    assert [(float(x), float(y)) for x, y in circles] == [(12, 144.0), (276.0, 12.0)]
    assert text.count("<polygon") == 1 and "a &lt;b&gt;" in text
    assert re.findall(r'class="(run-\d+)"', text) == ["run-0", "run-1"] and "hsl" not in text
    many = scatter_chart("many", [PointGroup(str(n), [(n, n)], n, 0) for n in range(15)])
    assert len(set(re.findall(r"hsl\((\d+)", many))) == 15
    same = scatter_chart("one", [PointGroup("a", [(1, 1)], 0, 1)])
    assert "nan" not in same and same.count("<polygon") == 1
