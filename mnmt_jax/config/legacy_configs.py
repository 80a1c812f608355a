"""Reads the configuration of a run that an earlier version wrote: what moved, and where to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class _Moved:
    """Where a field of an earlier version went.

    Attributes:
        now: the field that has it.
        value: of its value there; here it is written as this makes of it.
        methods: where the method that has it now is named, if one has.
        method: that method.
        note: added to the error message.
    """

    now: str
    value: Callable[[Any], Any] = lambda value: value
    methods: str = ""
    method: str = ""
    note: str = ""


def _to_method(methods: str, method: str, now: str) -> _Moved:
    return _Moved(now, methods=methods, method=method, note=f"with {methods} = ('{method}',)")


def _sinusoidal(base: Any) -> tuple[str, Any]:
    return "sinusoidal", base


# A method was in use if its first field here was not 0.
_MOVED = {
    "Model.adaption_mlp": _to_method("Model.methods", "adaption", "Adaption.mlp"),
    "Model.adaption_dropout": _to_method("Model.methods", "adaption", "Adaption.dropout"),
    "Train.contrastive_layer": _to_method("Train.methods", "instructcl", "InstruCL.layer"),
    "Train.contrastive_form": _to_method("Train.methods", "instructcl", "InstruCL.form"),
    "Model.position_base": _Moved(
        "Model.positions", _sinusoidal, note="which is ('sinusoidal', 10000.0) for base 10000"
    ),
}
# What an earlier version let choose, and an error says of it; a run's own is left out.
_GONE = {"Train.loss_chunk": "is gone, 4608 tokens for all runs; leave it out"}
_SWITCHES = ("Model.adaption_mlp", "Train.contrastive_layer")
# What every model of a version that did not write it had.
_ALWAYS = {"activation": "relu", "embedding_scale": True}


def was_legacy(field: str) -> str:
    """Returns what became of a field of an earlier version, for an error; empty if it is no such.

    Args:
        field: `Section.name`.
    """
    if field in _GONE:
        return f"{field}: {_GONE[field]}"
    moved = _MOVED.get(field)
    return f"{field}: is {moved.now} now, {moved.note}" if moved else ""


def migrate(statements: Iterable[Any]) -> list[Any]:
    """Returns gin's statements of a run as this version would have written them.

    Args:
        statements: bindings of plain values; others are left as they are.
    """
    kept, found = [], {}
    for statement in statements:
        field = f"{statement.selector}.{statement.arg_name}" if _is_binding(statement) else ""
        if field in _MOVED:
            found[field] = statement
        elif field not in _GONE:
            kept.append(statement)
    used = {_MOVED[field].method for field in _SWITCHES if field in found and found[field].value}
    for field, statement in found.items():
        moved = _MOVED[field]
        if moved.method in {"", *used}:
            kept.append(_renamed(statement, moved.now, moved.value(statement.value)))
            if field in _SWITCHES:
                kept.append(_renamed(statement, moved.methods, (moved.method,)))
    return kept


def migrate_facts(model: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what an adapter says of the model it is for, as this version would have written it.

    Args:
        model: of the adapter's file.
        here: the same of the model at hand; rates that earlier versions did not write are its.
    """
    facts = _ALWAYS | dict(model)
    if "position_base" in facts:
        facts["positions"] = [*_sinusoidal(facts.pop("position_base"))]
    mlp = facts.pop("adaption_mlp", 0)
    if "methods" not in facts:
        rates = {each["name"]: each.get("dropout") for each in here["methods"]}
        adaption = {"name": "adaption", "mlp": mlp, "dropout": rates.get("adaption")}
        facts["methods"] = [adaption] if mlp else []
    return facts


def _is_binding(statement: Any) -> bool:
    return bool(getattr(statement, "arg_name", ""))


def _renamed(statement: Any, name: str, value: Any) -> Any:
    section, _, field = name.partition(".")
    return statement._replace(selector=section, arg_name=field, value=value)
