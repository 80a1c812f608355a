"""Numeric fields of the configuration refuse impossible numbers in one line."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import math
import pkgutil
import sys
import types
import typing
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

import mnmt_jax.methods
from mnmt_jax.config.loading import load_config, save_config
from mnmt_jax.config.sections import SECTIONS, Decode, Model
from mnmt_jax.decoding.search_limits import (
    check_beam_size,
    check_memory,
    device_bytes,
    memory_errors,
    with_memory_errors,
)
from mnmt_jax.decoding.search_settings import length_limit, with_beam_size
from mnmt_jax.design.fields import CheckedFields, NamedValues, field_types
from mnmt_jax.design.method import Method
from mnmt_jax.errors import UserError
from mnmt_jax.runs.new_language import NewRows
from mnmt_jax.runtime.run_command import run_command
from mnmt_jax.vocabulary.sentencepiece_options import SentencePieceOptions

IMPOSSIBLE = (math.nan, math.inf, -math.inf, 1e308, -1e308, 10**400, -(10**400), 2.0**70)


def checked_classes() -> list[type[CheckedFields]]:
    for module in pkgutil.iter_modules(mnmt_jax.methods.__path__):
        importlib.import_module(f"mnmt_jax.methods.{module.name}")

    def below(kind: type) -> Iterator[type]:
        for child in kind.__subclasses__():
            yield from (child, *below(child))

    # Other tests import modules anew: of a class that is there twice, the module's own counts.
    methods = {kind for kind in below(Method) if _is_own(kind)}
    return [*SECTIONS.values(), NewRows, *sorted(methods, key=lambda kind: kind.__name__)]


def _is_own(kind: type) -> bool:
    module = sys.modules[kind.__module__]
    return kind.__module__.startswith("mnmt_jax.") and getattr(module, kind.__name__, None) is kind


def numeric_fields(kind: type[CheckedFields]) -> Iterator[tuple[str, Any]]:
    """Yield the fields that hold numbers, and how a number is written in them."""
    for name, annotation in field_types(kind).items():
        metadata = getattr(annotation, "__metadata__", ())
        if any(isinstance(one, NamedValues) for one in metadata):
            for word, inner in metadata[0].kinds.items():
                if base_of(inner) in (int, float):
                    yield name, lambda value, word=word: (word, value)
        elif typing.get_origin(annotation) is tuple:
            if base_of(typing.get_args(annotation)[0]) in (int, float):
                yield name, lambda value: (value,)
        elif base_of(annotation) in (int, float):
            yield name, lambda value: value


def base_of(annotation: Any) -> Any:
    if hasattr(annotation, "__metadata__"):
        return typing.get_args(annotation)[0]
    return annotation


FIELDS = [
    pytest.param(kind, name, form, id=f"{kind.__name__}.{name}")
    for kind in checked_classes()
    for name, form in numeric_fields(kind)
]


@pytest.mark.parametrize(("kind", "name", "form"), FIELDS)
def test_impossible_numbers_are_refused(kind, name, form):
    for value in IMPOSSIBLE:
        made = copy.copy(kind())  # past `__init__`, whose types the tests check before
        object.__setattr__(made, name, form(value))
        with pytest.raises(UserError) as caught:
            made.__post_init__()
        text = str(caught.value)
        assert text.startswith(f"{kind.__name__}.{name}") and "\n" not in text and len(text) < 300


def test_all_sections_and_methods_are_checked():
    names = [parameter.id for parameter in FIELDS]
    assert len(names) > 60 and len(set(names)) >= len(names) - 1  # two forms of Model.positions
    for name in ("Decode.length_penalty", "Data.rows", "Mesh.fsdp", "TPDM.temperature"):
        assert name in names
    assert {"Model.stage_layers", "Model.positions", "Decode.buckets"} <= set(names)


NEGATIVE = {"Decode.length_penalty", "Mesh.fsdp"}


@pytest.mark.parametrize(("kind", "name", "form"), FIELDS)
def test_negative_numbers_are_refused_unless_they_have_a_meaning(kind, name, form):
    if f"{kind.__name__}.{name}" in NEGATIVE:
        dataclasses.replace(kind(), **{name: form(-1)})
        return
    with pytest.raises(UserError, match=f"^{kind.__name__}.{name}"):
        dataclasses.replace(kind(), **{name: form(-1)})


@pytest.mark.parametrize(
    "binding",
    [
        "Decode.max_length_per_source=1e308",
        "Decode.length_penalty=400",
        "Decode.beam_size=1000000000000",
        "Decode.temperature=1e-30",
        "Optimizer.learning_rate=1e999",
        "Model.stage_layers=(1000000000000,)",
    ],
)
def test_gin_files_and_flags_are_refused_alike(tmp_path, binding):
    field = binding.partition("=")[0]
    with pytest.raises(UserError, match=f"{field}="):
        load_config([], [binding])
    save_config(load_config([], []), tmp_path / "config.gin")
    lines = (tmp_path / "config.gin").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(f"{field} ")]
    (tmp_path / "config.gin").write_text("\n".join([*kept, binding, ""]))
    with pytest.raises(UserError, match=f"{field}="):
        load_config([], [], run=tmp_path / "config.gin")


def test_scores_stay_finite_and_nonzero():
    lengths = np.array([1, 2, 200, 2**16 + 1], np.float32)
    for penalty in (-5.0, 0.0, 1.0, 5.0):
        Decode(length_penalty=penalty)
        for total in np.array([-1e-3, -1.0, -1e6], np.float32):
            scores = total / lengths ** np.float32(penalty)
            assert np.isfinite(scores).all() and (scores < 0).all()


def test_the_length_limit_is_a_number_for_every_source():
    decode = Decode(max_length_per_source=1000, max_length=2**16)
    assert length_limit(decode, 2**16) == 2**16


@pytest.mark.parametrize("beam_size", [0, -1, 10**12, 2.5, "5", math.nan])
def test_beam_sizes_as_arguments_are_refused(beam_size):
    with pytest.raises(UserError, match="beam_size="):
        with_beam_size(Decode(), beam_size)


def test_a_beam_is_at_most_the_vocabulary():
    check_beam_size(Decode(beam_size=60), 60)
    check_beam_size(Decode(beam_size=61, temperature=1.0), 60)  # samples may repeat
    with pytest.raises(UserError, match="^Decode.beam_size=61 must be at most the 60 ids"):
        check_beam_size(Decode(beam_size=61), 60)


def test_a_batch_too_large_for_memory_is_refused_before_compiling(monkeypatch):
    inference_model = types.SimpleNamespace(
        vocabulary=types.SimpleNamespace(size=50_000),
        model=types.SimpleNamespace(config=Model(embed=16, heads=2, stage_layers=(3, 1))),
        mesh=None,
    )
    decode, logits, keys = Decode(beam_size=32), 4 * 50_000, 2 * 16 * 10 * 4
    needed = 64 * 32 * (logits + keys)
    for available in (needed, needed - 1):
        monkeypatch.setattr(
            "mnmt_jax.decoding.search_limits.device_bytes", lambda device, most=available: most
        )
        if available == needed:
            check_memory(inference_model, decode, rows=64, steps=10)
            continue
        message = r"^64 sentences .*beam_size=32 need at least 0\.4 GiB .*; lower Decode"
        with pytest.raises(UserError, match=message):
            check_memory(inference_model, decode, rows=64, steps=10)
    inference_model.mesh = types.SimpleNamespace(size=2)
    check_memory(inference_model, decode, rows=64, steps=10)


def test_device_memory():
    assert device_bytes(jax.local_devices()[0]) > 1 << 28
    chip = types.SimpleNamespace(memory_stats=lambda: None, device_kind="TPU v4")
    assert device_bytes(chip) == 32 << 30
    limited = types.SimpleNamespace(memory_stats=lambda: {"bytes_limit": 7}, device_kind="TPU v4")
    assert device_bytes(limited) == 7


@pytest.mark.parametrize(
    "error", [RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes."), MemoryError()]
)
def test_out_of_memory_is_one_error_line(error, capsys):
    def results() -> Iterator[int]:
        yield 1
        raise error

    with pytest.raises(UserError, match="^Decode.batch=32 with Decode.beam_size=5: the device is"):
        list(with_memory_errors(results(), Decode()))

    def fail() -> None:
        raise error

    with pytest.raises(SystemExit) as exit_info:
        run_command(fail)
    printed = capsys.readouterr().err
    assert exit_info.value.code == 2 and printed.startswith("error: out of memory (")
    assert printed.count("\n") == 1


def test_other_device_errors_are_unchanged():
    with pytest.raises(RuntimeError, match="^INTERNAL"), memory_errors(Decode()):
        raise RuntimeError("INTERNAL: a bug")
    assert list(with_memory_errors(iter([1, 2]), Decode())) == [1, 2]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", (math.nan, math.inf, 0, -1, 1e308)),
        ("character_coverage", (math.nan, math.inf, 0, -1)),
        ("vocab_size", (0, -1, 10**12)),
        ("sentences", (0, -1, 10**12)),
        ("seed", (-1, 10**12)),
    ],
)
def test_options_of_sentencepiece(name, values):
    for value in values:
        with pytest.raises(UserError, match=name):
            SentencePieceOptions(**{name: value})
