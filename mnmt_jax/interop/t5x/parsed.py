"""Configuration from gin's parsed bindings, for t5x, which reads the same gin files."""

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


class _GinBindings:
    """gin's parsed bindings with the interface of `Bindings`."""

    def value(self, title: str, field: str, default: Any) -> Any:
        try:
            return copy.deepcopy(gin.query_parameter(f"{title}.{field}"))  # evaluates macros
        except ValueError:
            return default

    def location(self, title: str, field: str) -> str:
        del title, field
        return ""

    def section(self, section: type, overrides: Mapping[str, Any] | None = None) -> Any:
        return gin.get_configurable(section)(**dict(overrides or {}))


def register_methods() -> None:
    """Register the methods' sections with gin, which refuses unknown sections; for t5x."""
    for name in all_methods():
        method = get_method(name)
        if f"{method.__module__}.{method.__name__}" not in gin.config._REGISTRY:
            gin.register(method)


def parsed_config() -> Config:
    """Return the configuration from gin files that other code, such as t5x, has parsed.

    Raises:
        UserError: if a value is out of range, or a binding of our sections is never read.
    """
    config = build_config(_GinBindings())
    _check_all_consumed()
    return config


def _check_all_consumed() -> None:
    """Refuse what gin accepts silently: our fields under a scope, and macros that are not used."""
    operative = gin.operative_config_str()
    our_sections = {f"{section.__module__}.{section.__name__}" for section in SECTIONS.values()}
    our_sections |= {
        f"{section.__module__}.{section.__name__}" for section in map(get_method, all_methods())
    }
    for (scope, name), fields in gin.config._CONFIG.items():  # no public accessor exists
        short = name.rsplit(".", 1)[-1]
        if short == "macro":
            if not re.search(rf"%{re.escape(scope)}\b", gin.config_str()):
                raise UserError(f"gin macro '{scope}' is never used; remove it or use %{scope}")
        elif name in our_sections:
            unread = fields and not re.search(rf"\b{short}\.", operative)  # perhaps under a scope
            if scope or unread:
                full = f"{scope}/{short}" if scope else short
                raise UserError(
                    f"gin binding '{full}.{next(iter(fields))}' is never read; check its name, and "
                    "that Model.methods or Train.methods names its method"
                )
