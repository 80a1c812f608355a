"""Interface of methods: hooks that edit a model's plan and extend its training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from mnmt_jax.design.fields import Checked
from mnmt_jax.design.generated_batch import GeneratedBatch
from mnmt_jax.design.mask_shares import MaskShares
from mnmt_jax.design.method_registry import check_names
from mnmt_jax.design.objective import Objective, Player
from mnmt_jax.design.param_mapping import ParamMapping, RequiredSource
from mnmt_jax.design.plan import Plan
from mnmt_jax.errors import UserError

Config = Any  # `mnmt_jax.config.sections.Config`, one layer above
Model = Any  # `mnmt_jax.config.sections.Model`
FindCode = Callable[[str, Sequence[str]], str | None]
"""Looks up a language code of any form in a list of codes; None if the language is not in it."""

Rows = tuple[str, tuple[int, ...]]
"""A parameter pattern (`mnmt_jax.model.param_patterns`), and indices along the first axis of these
parameters."""


class Method(Checked):
    """A method: a frozen dataclass of settings, bound by gin under the name of the class.

    `class Adaption(Method, name="adaption")` is selected by `Model.methods = ('adaption',)`, or by
    `Train.methods` if it does not edit the model, and configured by `Adaption.mlp = 512`. Every
    hook
    has a no-op default.

    Attributes:
        languages_field: name of the field that holds the codes of the vocabulary's languages in tag
            order; empty if the method needs no languages.
        code_fields: names of the fields that hold some of these codes, in any form until
            `bind_languages`.
    """

    name: ClassVar[str]
    languages_field: ClassVar[str] = ""
    code_fields: ClassVar[tuple[str, ...]] = ()
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

    def bind_languages(self, languages: Sequence[str], find_code: FindCode) -> Self:
        """Return the method with a vocabulary's languages filled in, if it has a field for them.

        Args:
            languages: codes of the vocabulary's languages, in the order of their tags.
            find_code: looks up a code of another form among them.

        Raises:
            UserError: if the field names other languages.
        """
        if not self.languages_field:
            return self
        codes = getattr(self, self.languages_field)
        if codes and tuple(find_code(code, languages) or code for code in codes) != tuple(
            languages
        ):
            raise UserError(
                f"{self._languages_key}={codes!r}, but the vocabulary (in training that of "
                f"Data.cache) has {tuple(languages)!r}; give that of the model, or name these"
            )
        fields = {
            field: tuple(find_code(code, languages) or code for code in getattr(self, field))
            for field in self.code_fields
        }
        method: Any = self._with_languages(languages)  # a dataclass, as are all methods
        bound: Self = dataclasses.replace(method, **fields)
        return bound

    def known_languages(self) -> tuple[str, ...]:
        """Return the languages of the vocabulary.

        Raises:
            UserError: if they were not set.
        """
        languages: tuple[str, ...] = getattr(self, self.languages_field)
        if not languages:
            raise UserError(
                f"{self._languages_key}=(): name the vocabulary's languages in the order of their "
                "tags"
            )
        return languages

    @property
    def _languages_key(self) -> str:
        return f"{type(self).__name__}.{self.languages_field}"

    def _with_languages(self, languages: Iterable[str]) -> Self:
        method: Any = self  # a dataclass, as are all methods
        updated: Self = dataclasses.replace(method, **{self.languages_field: tuple(languages)})
        return updated

    def edit(self, plan: Plan, config: Model) -> Plan:
        """Return the plan of a model with the method applied.

        Args:
            plan: plan of the model without it.
            config: sizes.

        Raises:
            UserError: if the layout does not support the method.
        """
        del config
        return plan

    def check(self, config: Config, plan: Plan) -> None:
        """Check that the method can be used in a training run.

        Args:
            config: configuration of the run.
            plan: plan of its model.

        Raises:
            UserError: if it cannot.
        """
        del config, plan

    def objectives(self) -> tuple[Objective, ...]:
        """Return the training objectives added to the cross entropy."""
        return ()

    def players(self) -> tuple[Player, ...]:
        """Return the players, in the order in which they are updated before the model."""
        return ()

    def mask_shares(self) -> MaskShares | None:
        """Return the masking rates of a masked language model; None keeps the defaults."""
        return None

    def with_language(self, language: str) -> Self:
        """Return the method for a model with one more language, last in the vocabulary's order.

        Args:
            language: its code.
        """
        if not self.languages_field:
            return self
        return self._with_languages((*self.known_languages(), language))

    def resize_param(self, name: str, array: np.ndarray) -> np.ndarray | None:
        """Return a parameter resized for a model with one more language.

        Args:
            name: its path, e.g. `layer_3/mlp/branch/scale`.
            array: its value in the smaller model.

        Returns:
            The resized array; None if the parameter is not the method's or does not depend on the
            number of languages.
        """
        del name, array
        return None

    def frozen_rows(self) -> tuple[Rows, ...]:
        """Return the parameter rows that are not trained."""
        return ()

    def generated_batches(self, config: Config) -> tuple[GeneratedBatch, ...]:
        """Return the batches that training generates from each micro-batch and also learns from.

        Args:
            config: configuration of the run.

        Raises:
            UserError: if they cannot be generated.
        """
        del config
        return ()

    def frozen_patterns(self, config: Model) -> tuple[str, ...]:
        """Return patterns (`mnmt_jax.model.param_patterns`) of parameters that are not trained.

        Args:
            config: sizes.
        """
        del config
        return ()

    def param_mappings(self, config: Model) -> tuple[ParamMapping, ...]:
        """Return the parameters to copy from source runs; used only when a run is created.

        Args:
            config: sizes of the new run's model.
        """
        del config
        return ()

    def required_sources(self, config: Model) -> tuple[RequiredSource, ...]:
        """Return the requirements on the source runs named in `param_mappings`.

        A source run without an entry may be any run.

        Args:
            config: sizes of the new run's model.
        """
        del config
        return ()

    def for_resume(self) -> Method | None:
        """Return the method with creation-only settings set to their defaults.

        A run may be resumed with other values of these settings. None means that the method has no
        effect after creation.
        """
        return self


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
                f"Model.methods=('{method.name}',) is a method of training and leaves the model as "
                f"it is; name it in Train.methods=('{method.name}',)"
            )


def all_objectives(methods: Iterable[Method]) -> tuple[Objective, ...]:
    """Return the objectives of methods, including those of their players."""
    objectives: list[Objective] = []
    for method in methods:
        objectives += method.objectives()
        objectives += (objective for player in method.players() for objective in player.objectives)
    return tuple(objectives)


def all_param_mappings(
    config: Config, *, without: Iterable[Method] = ()
) -> tuple[ParamMapping, ...]:
    """Return the parameter mappings of a run's methods, in their order.

    Args:
        config: configuration of the run.
        without: methods to skip, by name.
    """
    skipped = {method.name for method in without}
    methods = (method for method in config.methods if method.name not in skipped)
    return tuple(mapping for method in methods for mapping in method.param_mappings(config.model))


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


def check_once(title: str, methods: Iterable[Method]) -> None:
    """Check that a list names no method twice.

    Args:
        title: name of the section that holds the list.
        methods: the list.

    Raises:
        UserError: if it names one twice.
    """
    names = [method.name for method in methods]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{title}.methods names '{name}' twice; leave one of them out")
