"""Configuration from gin's parsed bindings, for t5x, which reads the same gin files."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

import gin

from mnmt_jax.config.loading import GIN_ROOT, build_config
from mnmt_jax.config.sections import SECTIONS, Config, Model, Train
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


class _MethodLists(dict[str, Any]):
    """gin's bindings of a section, with the methods in lists that later bindings replaced.

    Attributes:
        named: names of the methods.
    """

    def __init__(self) -> None:
        super().__init__()
        self.named: set[str] = set()

    def __setitem__(self, field: str, value: Any) -> None:
        """Bind a field."""
        if field == "methods" and isinstance(value, list | tuple):
            self.named |= {name for name in value if isinstance(name, str)}
        super().__setitem__(field, value)


_LISTING = tuple(("", f"{section.__module__}.{section.__name__}") for section in (Model, Train))


def register_methods() -> None:
    """Prepare gin, which refuses unknown sections and forgets replaced bindings; for t5x.

    Called before gin parses: it registers the methods' sections, and keeps which methods the lists
    of `Model` and `Train` have named.
    """
    for key in _LISTING:
        gin.config._CONFIG.setdefault(key, _MethodLists())  # no public accessor exists
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
    """Refuse what gin accepts silently: our fields under a scope, and macros that are not used.

    Sections of methods that a list named before a later binding replaced it are not refused.
    """
    operative = gin.operative_config_str()
    lists = [gin.config._CONFIG.get(key) for key in _LISTING]
    replaced = {
        get_method(name).__name__
        for bound in lists
        if isinstance(bound, _MethodLists)
        for name in bound.named
    }
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
            if scope or (unread and short not in replaced):
                full = f"{scope}/{short}" if scope else short
                raise UserError(
                    f"gin binding '{full}.{next(iter(fields))}' is never read; check its name, and "
                    "that Model.methods or Train.methods names its method"
                )
