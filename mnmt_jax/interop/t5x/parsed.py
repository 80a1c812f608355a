"""What gin itself has parsed of our sections: t5x, which reads the same gin files, uses it."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

import gin

from mnmt_jax.config.loading import GIN_ROOT, build_config
from mnmt_jax.config.sections import SECTIONS, Config
from mnmt_jax.design.method_registry import all_methods, get_method
from mnmt_jax.errors import UserError

gin.add_config_file_search_path(str(GIN_ROOT))


class _Gin:
    """What gin itself has parsed, as `Bindings` gives what this module has."""

    def value(self, title: str, field: str, default: Any) -> Any:
        try:
            return copy.deepcopy(gin.query_parameter(f"{title}.{field}"))  # evaluates macros
        except ValueError:
            return default

    def place(self, title: str, field: str) -> str:
        del title, field
        return ""

    def section(self, section: type, further: Mapping[str, Any] | None = None) -> Any:
        return gin.get_configurable(section)(**dict(further or {}))


def register_methods() -> None:
    """Makes the methods' sections known to gin, which refuses what it does not know; for t5x."""
    for name in all_methods():
        method = get_method(name)
        if f"{method.__module__}.{method.__name__}" not in gin.config._REGISTRY:
            gin.register(method)


def parsed_config() -> Config:
    """Returns what gin files that somebody else has parsed, as t5x does, bind of our sections.

    Raises:
        UserError: if a value is out of range, or something of ours is bound that nothing reads.
    """
    config = build_config(_Gin())
    _check_all_consumed()
    return config


def _check_all_consumed() -> None:
    """Refuses what gin accepts in silence: our fields under a scope, and macros nobody reads."""
    operative = gin.operative_config_str()
    ours = {f"{each.__module__}.{each.__name__}" for each in SECTIONS.values()}
    ours |= {f"{each.__module__}.{each.__name__}" for each in map(get_method, all_methods())}
    for (scope, name), fields in gin.config._CONFIG.items():  # no public accessor exists
        short = name.rsplit(".", 1)[-1]
        if short == "macro":
            if not re.search(rf"%{re.escape(scope)}\b", gin.config_str()):
                raise UserError(f"gin macro '{scope}' is never used; remove it or use %{scope}")
        elif name in ours:
            unread = fields and not re.search(rf"\b{short}\.", operative)  # perhaps under a scope
            if scope or unread:
                full = f"{scope}/{short}" if scope else short
                raise UserError(
                    f"gin binding '{full}.{next(iter(fields))}' is never read; check its name, and "
                    "that Model.methods or Train.methods names its method"
                )
