"""The rules of the layout, and the table against masks drawn by hand."""

import ast
import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.config.loading import load_config
from mnmt_jax.design.layout import Layout, Sees, Stage
from mnmt_jax.design.layouts import LANGUAGE_MODELS, LAYOUTS, get_layout
from mnmt_jax.distributed.sharding import make_mesh
from mnmt_jax.errors import UserError
from mnmt_jax.model.attention.core import pair_mask
from mnmt_jax.model.attention.dense import dense_mask
from mnmt_jax.runs.run_directory import changed_fields
from mnmt_jax.training.learner import Learner
from tests.drawn_masks import MASKS, labelled, read_pictures

ROWS = LAYOUTS | LANGUAGE_MODELS


def test_every_layout_has_a_drawn_mask():
    assert {path.stem for path in MASKS.glob("*.txt")} == set(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_masks_equal_the_drawn_masks(name):
    layout = ROWS[name]
    pictures, memories = read_pictures(name)
    assert len(pictures) == len(layout.stages)
    assert len(memories) == sum(len(stage.memory) for stage in layout.stages)
    compared = 0
    for stage, picture in zip(layout.stages, pictures, strict=True):
        assert picture.rows == picture.columns
        mask = np.asarray(dense_mask(stage, segment_ids_of(picture.columns)))[0, 0]
        for row, expected in picture.cells.items():
            assert mask[row].tolist() == expected, f"{name}: row {row} ({picture.rows[row]})"
            compared += 1
    edges = [edge for stage in layout.stages for edge in stage.memory]
    for (reader, read), picture in zip(edges, memories, strict=True):
        queries = segment_ids_of(picture.rows)[reader]
        keys = segment_ids_of(picture.columns)[read]
        mask = np.asarray(pair_mask(Sees.FULL, queries, keys))[0, 0]
        for row, expected in picture.cells.items():
            assert mask[row].tolist() == expected
            compared += 1
    assert compared >= 7


def segment_ids_of(labels: list[str]) -> dict[str, jax.Array]:
    """Convert labels such as S1 S1 S2 S0 to role -> [1, length] segment ids."""
    return {role: jnp.array([ids], jnp.int32) for role, ids in labelled(labels).items()}


@pytest.mark.parametrize(
    ("roles", "sees", "rule"),
    [
        (("source", "target"), ("f.", "cc"), "rule 1"),
        (("source", "target"), ("ff", "fc"), "rule 2"),
        (("source", "target"), ("..", "fc"), "rule 3"),
        (("source", "target"), ("f.",), "table must be"),
    ],
)
def test_broken_tables_are_refused(roles, sees, rule):
    with pytest.raises(ValueError, match=rule):
        Layout("broken", (Stage(roles, sees),))


def test_a_role_cannot_reappear_after_it_ended():
    stages = (
        Stage(("source", "target"), ("f.", "fc")),
        Stage(("target",), ("c",)),
        Stage(("source", "target"), ("f.", "fc")),
    )
    with pytest.raises(ValueError, match="rule 4"):
        Layout("broken", stages)


def test_memory_must_read_an_ended_role():
    stages = (
        Stage(("source",), ("f",)),
        Stage(("source", "target"), ("f.", "fc"), memory=(("target", "source"),)),
    )
    with pytest.raises(ValueError, match="memory"):
        Layout("broken", stages)


def test_wrong_names_and_layer_counts_name_the_field():
    with pytest.raises(
        ValueError, match=r"Model\.layout='registers' is unknown; choose one of causal"
    ):
        get_layout("registers", (2,))
    with pytest.raises(ValueError, match=r"Model\.stage_layers=\(2,\).*needs 2 entries"):
        get_layout("two_stage", (2,))


def named_layouts(source: str) -> list[str]:
    """Return the layout names that code compares, looks up in a literal, or matches."""
    return [
        f"line {constant.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Compare | ast.MatchValue)
        for constant in ast.walk(node)
        if isinstance(constant, ast.Constant) and constant.value in ROWS
    ]


@pytest.mark.parametrize(
    "source",
    [
        "a.layout == 'prefix'",
        "'causal' != x",
        "x in ('register', 'y')",
        "x not in {'register'}",
        "match x:\n  case 'two_stage' | 'z':\n    pass",
    ],
)
def test_comparisons_with_layout_names_are_found_in_any_form(source):
    assert len(named_layouts(source)) == 1
    assert not named_layouts("x = 'prefix'\nf(layout='prefix')\ny == 'something'")


def test_layout_names_are_compared_only_in_layouts():
    """All other code reads the structure from the layout."""
    root = Path(__file__).parent.parent.parent
    looked_at = 0
    for folder in ("mnmt_jax", "scripts", "tasks"):
        for path in (root / folder).rglob("*.py"):
            if path.name != "layouts.py":
                looked_at += 1
                actual = named_layouts(path.read_text(encoding="utf-8"))
                assert not actual, f"{path.relative_to(root)} compares a layout's name: {actual}"
    assert looked_at > 60


@pytest.mark.parametrize("name", ROWS)
def test_register_factor_needs_a_layout_with_registers(name):
    """Runs that have it without registers continue with the default."""
    layers = f"Model.stage_layers={(1,) * len(ROWS[name].stages)}"
    config = load_config([], [f"Model.layout='{name}'", layers, "Model.register_factor=2.0"])
    plain = dataclasses.replace(config.model, register_factor=1.0)
    changed = changed_fields(config, dataclasses.replace(config, model=plain))
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    if "register" in ROWS[name].embedded_roles():
        assert Learner.from_config(config, 40, mesh)
        (message,) = changed
        assert "Model.register_factor was 2.0, now 1.0 (the number of registers" in message
        return
    assert changed == []
    with pytest.raises(UserError, match=f"Model.register_factor=2: layout '{name}' has no reg"):
        Learner.from_config(config, 40, mesh)
