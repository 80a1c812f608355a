"""Migration of run configurations written by earlier versions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class _Moved:
    """The new location of a field of an earlier version.

    Attributes:
        now: new name of the field.
        value: converts a value of the old field.
        methods: field that lists the method that now has the setting; empty if no method has it.
        method: that method.
        note: text added to the error message.
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


# A method was used if its first field in this table was not 0.
_MOVED = {
    "Model.adaption_mlp": _to_method("Model.methods", "adaption", "Adaption.mlp"),
    "Model.adaption_dropout": _to_method("Model.methods", "adaption", "Adaption.dropout"),
    "Train.contrastive_layer": _to_method("Train.methods", "instructcl", "InstruCL.layer"),
    "Train.contrastive_form": _to_method("Train.methods", "instructcl", "InstruCL.form"),
    "Model.position_base": _Moved(
        "Model.positions", _sinusoidal, note="which is ('sinusoidal', 10000.0) for base 10000"
    ),
}
# Removed fields with their error messages; in the configuration of a run they are dropped.
_GONE = {"Train.loss_chunk": "is gone, 4608 tokens for all runs; leave it out"}
_SWITCHES = ("Model.adaption_mlp", "Train.contrastive_layer")
# Values in all versions that did not write these fields.
_ALWAYS = {"activation": "relu", "embedding_scale": True}


def legacy_field_error(field: str) -> str:
    """Return an error message about a field of an earlier version; empty if it is not one.

    Args:
        field: `Section.name`.
    """
    if field in _GONE:
        return f"{field}: {_GONE[field]}"
    moved = _MOVED.get(field)
    return f"{field}: is {moved.now} now, {moved.note}" if moved else ""


def migrate(statements: Iterable[Any]) -> list[Any]:
    """Return gin's statements of a run as this version would write them.

    Args:
        statements: bindings of plain values; other statements are not changed.
    """
    migrated, legacy = [], {}
    for statement in statements:
        field = f"{statement.selector}.{statement.arg_name}" if _is_binding(statement) else ""
        if field in _MOVED:
            legacy[field] = statement
        elif field not in _GONE:
            migrated.append(statement)
    used = {_MOVED[field].method for field in _SWITCHES if field in legacy and legacy[field].value}
    for field, statement in legacy.items():
        moved = _MOVED[field]
        if moved.method in {"", *used}:
            migrated.append(_renamed(statement, moved.now, moved.value(statement.value)))
            if field in _SWITCHES:
                migrated.append(_renamed(statement, moved.methods, (moved.method,)))
    return migrated


def migrate_facts(model: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, Any]:
    """Return an adapter's description of its model as this version would write it.

    Args:
        model: description in the adapter's file.
        current: description of the current model, used for rates that earlier versions did not
            write.
    """
    facts = _ALWAYS | dict(model)
    if "position_base" in facts:
        facts["positions"] = [*_sinusoidal(facts.pop("position_base"))]
    mlp = facts.pop("adaption_mlp", 0)
    if "methods" not in facts:
        rates = {method["name"]: method.get("dropout") for method in current["methods"]}
        adaption = {"name": "adaption", "mlp": mlp, "dropout": rates.get("adaption")}
        facts["methods"] = [adaption] if mlp else []
    return facts


def _is_binding(statement: Any) -> bool:
    return bool(getattr(statement, "arg_name", ""))


def _renamed(statement: Any, name: str, value: Any) -> Any:
    section, _, field = name.partition(".")
    return statement._replace(selector=section, arg_name=field, value=value)
