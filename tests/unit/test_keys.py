"""`mnmt keys`: sections, keys with range and default, and the values of a configuration."""

from __future__ import annotations

import dataclasses
import sys

import pytest

from mnmt_jax.commands import keys
from mnmt_jax.commands.key_reference import all_sections, find_keys, section_keys, section_summary
from mnmt_jax.config.sections import SECTIONS, Decode
from mnmt_jax.design.method import Method
from mnmt_jax.design.method_files import library_methods
from mnmt_jax.design.method_registry import get_method
from mnmt_jax.errors import UserError


@pytest.fixture(autouse=True)
def methods_of_the_library(monkeypatch):
    """Hide methods that other tests of the process have registered."""
    methods = {name: get_method(name) for name in library_methods()}
    monkeypatch.setattr(Method, "registered", methods)


@pytest.fixture
def printed(monkeypatch, capsys):
    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["mnmt keys", *arguments])
        keys.main()
        return capsys.readouterr().out

    return run


def test_every_key_of_every_section_has_a_meaning():
    sections = all_sections()
    assert len(sections) >= len(SECTIONS) + len(library_methods())
    for title, section in sections.items():
        for key in section_keys(section):
            assert key.name.startswith(f"{title}.") and key.meaning and key.values, key.name
            assert "MISSING" not in key.default and "Annotated" not in key.values, key.name


def test_ranges_choices_and_defaults():
    (beam,) = find_keys("Decode.beam_size")
    assert (beam.values, beam.default) == ("int, at least 1 and at most 4096", "5")
    assert beam.meaning.startswith("hypotheses per sentence")
    (schedule,) = find_keys("Optimizer.schedule")
    assert schedule.values == "'inverse_sqrt', 'cosine', 'constant'"
    (layout,) = find_keys("Model.layout")
    assert {"'register'", "'grafted'", "'causal_lm'"} <= {*layout.values.split(", ")}
    (instruction,) = find_keys("Data.instruction")
    assert instruction.values == "'1', '2', '3', '4', '5', 'register', 'none'"


def test_methods_are_listed_where_they_are_allowed():
    (of_model,), (of_training,) = find_keys("Model.methods"), find_keys("Train.methods")
    assert of_model.values.startswith("tuple of: 'adaption', 'cut_residual', ")
    assert "'mrasp2'" in of_training.values and "'mrasp2'" not in of_model.values
    names = [key.name for key in find_keys("Decode")]
    assert names == [f"Decode.{field.name}" for field in dataclasses.fields(Decode)]


def test_without_a_name_all_sections_are_listed(printed):
    text = printed()
    lines = {line.split()[0]: line for line in text.splitlines() if line}
    assert {*all_sections()} <= lines.keys()
    assert lines["TPDM"].endswith("Selected by Model.methods=('tpdm',).")
    assert lines["MRASP2"].endswith("Selected by Train.methods=('mrasp2',).")
    assert "Selected" not in lines["Data"] and " = " not in text


def test_defaults_and_configured_values(printed):
    text = printed("Optimizer.label_smoothing", "Decode.batch")
    assert "Optimizer.label_smoothing = 0.1\n    float, at least 0 and below 1\n" in text
    assert "Decode.batch = 32\n" in text and "Decode.beam_size" not in text
    file = "--gin_file=gin_configs/models/tpdm_base.gin"
    text = printed("TPDM.layer", "Decode", file, "--gin.Decode.batch=8", "--gin.TPDM.layer=3")
    assert "Decode.batch = 8  (default: 32)\n" in text and "Decode.beam_size = 5\n" in text
    assert "TPDM.layer = 3  (default: 4)\n" in text


def test_methods_of_the_user_are_listed(printed):
    @dataclasses.dataclass(frozen=True)
    class Mine(Method, name="mine_for_keys"):
        """A method of the user.

        Attributes:
            strength: how strong it is.
        """

        strength: float = 2.0

    text = printed("Mine")
    assert text.startswith(f"Mine: {section_summary(Mine)}\n")
    assert "Mine.strength = 2.0\n    float\n    how strong it is." in text


@pytest.mark.parametrize(
    "name, message",
    [
        ("Optimiser", "Optimiser: no such section; did you mean 'Optimizer'"),
        ("Optimizer.smoothing", "no such key; did you mean 'label_smoothing'"),
    ],
)
def test_unknown_names_are_one_line(name, message):
    with pytest.raises(UserError, match=message):
        find_keys(name)


def test_a_key_without_its_section_is_named():
    with pytest.raises(UserError, match="label_smoothing: .*the key is Optimizer.label_smoothing"):
        find_keys("label_smoothing")
