"""Parameter patterns against a table of examples."""

import pytest

from mnmt_jax.errors import UserError
from mnmt_jax.model.param_patterns import check_patterns, matches

SELF, MEMORY = "layer_0/attention/query/kernel", "layer_9/memory_attention/query/bias"
WIDE, TABLE, NORM = "layer_12/mlp/wi/kernel", "embedding", "stage_0_norm/scale"


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("query", {SELF, MEMORY}),
        ("attention/query", {SELF}),
        ("*attention/query", {SELF, MEMORY}),
        ("layer_[0-5]", {SELF}),
        ("layer_*", {SELF, MEMORY, WIDE}),
        ("layer_?/*", {SELF, MEMORY}),
        ("layer_1", set()),
        ("kernel", {SELF, WIDE}),
        ("layer_*/kernel", set()),
        ("embedding", {TABLE}),
        ("embed", set()),
        ("*norm/scale", {NORM}),
        ("stage_0_norm/scale/more", set()),
        ("*", {SELF, MEMORY, WIDE, TABLE, NORM}),
        ("", set()),
    ],
)
def test_patterns_and_matching_paths(pattern, fits):
    assert {path for path in (SELF, MEMORY, WIDE, TABLE, NORM) if matches(pattern, path)} == fits


def test_a_pattern_without_match_is_one_error_line_with_similar_names():
    paths = [SELF, MEMORY, WIDE, TABLE]
    check_patterns("Optimizer.frozen", ("embedding", "mlp"), paths)
    with pytest.raises(UserError) as caught:
        check_patterns("Optimizer.frozen", ("embedding", "attenton/query"), paths)
    message = str(caught.value)
    assert "\n" not in message and message.startswith(
        "Optimizer.frozen=('embedding', 'attenton/query')"
    )
    assert "'attenton/query' matches nothing; did you mean attention/query" in message
    assert "layer_*" in message and "layer_0" not in message
