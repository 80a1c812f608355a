"""Decorator that copies the parameters of one method to another."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


def with_parameters_of(
    method: Callable[P, Any],
) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Return a decorator that gives a function the parameters of another one.

    The function itself takes `*args, **kwargs` and passes them on. Type checkers and `help` show
    the parameters of `method`, and an error about them names the function.
    """

    def decorate(function: Callable[..., R]) -> Callable[P, R]:
        returned = inspect.signature(function).return_annotation
        signature = inspect.signature(method).replace(return_annotation=returned)

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> R:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__qualname__}: {error}") from None
            return function(*args, **kwargs)

        checked.__signature__ = signature  # type: ignore[attr-defined]
        return cast(Callable[P, R], checked)

    return decorate
