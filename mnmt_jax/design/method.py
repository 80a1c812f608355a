"""Base class of methods, and functions over the methods of a run.

The hooks that a method may override are in `mnmt_jax.design.method_hooks`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, ClassVar

from mnmt_jax.design.fields import CheckedFields
from mnmt_jax.design.method_files import check_names
from mnmt_jax.design.method_hooks import (
    Config,
    ModelHooks,
    SourceRunHooks,
    TrainingHooks,
    VocabularyHooks,
)
from mnmt_jax.design.objective import Objective
from mnmt_jax.design.param_mapping import ParamMapping
from mnmt_jax.errors import UserError


class Method(CheckedFields, ModelHooks, TrainingHooks, SourceRunHooks, VocabularyHooks):
    """A method: a frozen dataclass of settings, bound by gin under the name of the class.

    `class Adaption(Method, name="adaption")` is selected by `Model.methods = ('adaption',)`, or by
    `Train.methods` if it does not edit the model, and configured by `Adaption.mlp = 512`. Every
    hook has a no-op default. Most methods override only `edit`, `objectives` and `check`.

    Attributes:
        name: name that selects the method.
        registered: all methods that were imported, by name.
        inert_fields: names of the fields that change neither the parameters nor what a trained
            model computes with them, such as a dropout rate.
    """

    name: ClassVar[str]
    inert_fields: ClassVar[tuple[str, ...]] = ()
    registered: ClassVar[dict[str, type[Method]]] = {}

    def __init_subclass__(cls, *, name: str = "", **rest: Any) -> None:
        """Register the method.

        Args:
            name: name that selects it in `Model.methods` and `Train.methods`; empty for the
                subclasses that gin creates.
            rest: further class keyword arguments.

        Raises:
            UserError: if the library has a method or a section of that name.
        """
        super().__init_subclass__(**rest)
        if not name:
            return
        check_names(name, cls)
        cls.name = name
        cls.registered[name] = cls

    @classmethod
    def edits(cls) -> bool:
        """Return whether the method changes the model."""
        return cls.edit is not Method.edit


def check_edits(methods: Iterable[Method]) -> None:
    """Check that the methods of `Model.methods` change the model.

    Args:
        methods: the list. Runs of earlier versions may also list training methods in it.

    Raises:
        UserError: if one of them is a training method; the message names the right field.
    """
    for method in methods:
        if not method.edits() and not method.players():
            raise UserError(
                f"Model.methods=('{method.name}',) changes training, not the model; name it in "
                f"Train.methods=('{method.name}',)"
            )


def all_objectives(methods: Iterable[Method]) -> tuple[Objective, ...]:
    """Return the objectives of methods, including those of their players."""
    objectives: list[Objective] = []
    for method in methods:
        objectives += method.objectives()
        objectives += (objective for player in method.players() for objective in player.objectives)
    return tuple(objectives)


def all_param_mappings(
    config: Config, *, exclude: Iterable[Method] = ()
) -> tuple[ParamMapping, ...]:
    """Return the parameter mappings of a run's methods, in their order.

    Args:
        config: configuration of the run.
        exclude: methods to skip, by name.
    """
    skipped = {method.name for method in exclude}
    methods = (method for method in config.methods if method.name not in skipped)
    return tuple(mapping for method in methods for mapping in method.param_mappings(config.model))


def languages_of_slots(methods: Iterable[Method], name: str) -> tuple[str, ...]:
    """Return the languages of a parameter's slots; () if no method says that it has any.

    Args:
        methods: methods of a model.
        name: path of the parameter.
    """
    return next((codes for method in methods if (codes := method.slot_languages(name))), ())


def all_for_resume(methods: Iterable[Method]) -> tuple[Method, ...]:
    """Return the method settings that a resumed run must share with the original."""
    return tuple(resumed for method in methods if (resumed := method.for_resume()) is not None)


def as_facts(section: Any) -> dict[str, Any]:
    """Return a section or configuration as JSON-serialisable values; methods get their names.

    Args:
        section: a dataclass of `mnmt_jax.config.sections`.
    """
    facts: dict[str, Any] = {}
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if field.name == "methods":
            value = [{"name": method.name, **dataclasses.asdict(method)} for method in value]
        facts[field.name] = as_facts(value) if dataclasses.is_dataclass(value) else value
    return facts
