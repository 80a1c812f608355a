"""Reads the configuration of a run that an earlier version wrote: what moved, and where to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# Section.field -> the method that has it now and the field's name there. A method was in use if its
# first field here was not 0.
_MOVED = {
    "Model.adaption_mlp": ("Model.methods", "adaption", "Adaption.mlp"),
    "Model.adaption_dropout": ("Model.methods", "adaption", "Adaption.dropout"),
    "Train.contrastive_layer": ("Train.methods", "instructcl", "InstruCL.layer"),
    "Train.contrastive_form": ("Train.methods", "instructcl", "InstruCL.form"),
}
_SWITCHES = ("Model.adaption_mlp", "Train.contrastive_layer")
# What every model of a version that did not write it had.
_ALWAYS = {"activation": "relu"}


def told(field: str) -> str:
    """Returns where a field of an earlier version went, for an error; empty if it is no such.

    Args:
        field: `Section.name`.
    """
    if field not in _MOVED:
        return ""
    methods, method, now = _MOVED[field]
    return f"{field}: is {now} now, with {methods} = ('{method}',)"


def renewed(statements: Iterable[Any]) -> list[Any]:
    """Returns gin's statements of a run as this version would have written them.

    Args:
        statements: bindings of plain values; others are left as they are.
    """
    kept, moved = [], {}
    for statement in statements:
        field = f"{statement.selector}.{statement.arg_name}" if _is_binding(statement) else ""
        if field in _MOVED:
            moved[field] = statement
        else:
            kept.append(statement)
    used = {_MOVED[field][1] for field in _SWITCHES if field in moved and moved[field].value}
    for field, statement in moved.items():
        methods, method, now = _MOVED[field]
        if method in used:
            kept.append(_renamed(statement, now, statement.value))
            if field in _SWITCHES:
                kept.append(_renamed(statement, methods, (method,)))
    return kept


def renewed_facts(model: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what an adapter says of the model it is for, as this version would have written it.

    Args:
        model: of the adapter's file.
        here: the same of the model at hand; rates that earlier versions did not write are its.
    """
    facts = _ALWAYS | dict(model)
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
