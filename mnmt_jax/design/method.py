"""The interface of methods, which edit the plan of a model and extend its training."""

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

Config = Any  # `mnmt_jax.config.sections.Config`, a room above
Model = Any  # `mnmt_jax.config.sections.Model`
FindCode = Callable[[str, Sequence[str]], str | None]
"""Looks a language code of any form up in a list of codes; None if the language is not in it."""

Rows = tuple[str, tuple[int, ...]]
"""A pattern of parameters (`mnmt_jax.model.param_patterns`), and indices along their first axis."""


class Method(Checked):
    """A method: a frozen dataclass of its settings, which gin fills under the name of the class.

    `class Adaption(Method, name="adaption")` is chosen by `Model.methods = ('adaption',)`, or by
    `Train.methods` if it leaves the model as it is, and set by `Adaption.mlp = 512`. Whatever it
    does not say here stays as it is without it.

    Attributes:
        languages_field: of its fields, the one that holds the codes of the vocabulary's languages,
            in the order of their tags, where it must know them.
        code_fields: its fields that hold some of these codes, in any form until `fitted`.
    """

    name: ClassVar[str]
    languages_field: ClassVar[str] = ""
    code_fields: ClassVar[tuple[str, ...]] = ()
    registered: ClassVar[dict[str, type[Method]]] = {}

    def __init_subclass__(cls, *, name: str = "", **rest: Any) -> None:
        """Makes a method known.

        Args:
            name: by which `Model.methods` and `Train.methods` choose it; empty for a class that
                stands in for another, as gin makes them.
            rest: of the class.

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
        """Returns whether it changes the model."""
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
        own = getattr(self, self.languages_field)
        if own and tuple(find_code(code, languages) or code for code in own) != tuple(languages):
            raise UserError(
                f"{self._languages_key}={own!r}, but the vocabulary (in training that of "
                f"Data.cache) has {tuple(languages)!r}; give that of the model, or name these"
            )
        fields = {
            field: tuple(find_code(code, languages) or code for code in getattr(self, field))
            for field in self.code_fields
        }
        method: Any = self._with_languages(languages)  # a dataclass, as every method is
        fitted: Self = dataclasses.replace(method, **fields)
        return fitted

    def known_languages(self) -> tuple[str, ...]:
        """Returns the languages of the vocabulary.

        Raises:
            UserError: if it was not told.
        """
        known: tuple[str, ...] = getattr(self, self.languages_field)
        if not known:
            raise UserError(
                f"{self._languages_key}=(): name the vocabulary's languages in the order of their "
                "tags"
            )
        return known

    @property
    def _languages_key(self) -> str:
        return f"{type(self).__name__}.{self.languages_field}"

    def _with_languages(self, languages: Iterable[str]) -> Self:
        method: Any = self  # a dataclass, as every method is
        changed: Self = dataclasses.replace(method, **{self.languages_field: tuple(languages)})
        return changed

    def edit(self, plan: Plan, config: Model) -> Plan:
        """Returns the plan of a model with the method.

        Args:
            plan: of the model without it.
            config: sizes.

        Raises:
            UserError: if the layout has no place for it.
        """
        del config
        return plan

    def check(self, config: Config, plan: Plan) -> None:
        """Checks that a training can use it.

        Args:
            config: of the run.
            plan: of its model.

        Raises:
            UserError: otherwise.
        """
        del config, plan

    def objectives(self) -> tuple[Objective, ...]:
        """Returns what training minimises besides the cross entropy."""
        return ()

    def players(self) -> tuple[Player, ...]:
        """Returns who moves before the rest, in this order."""
        return ()

    def mask_shares(self) -> MaskShares | None:
        """Returns how tokens are hidden from a model that fills masks; None is as it is without."""
        return None

    def with_language(self, language: str) -> Self:
        """Returns it as of a model that has one language more, the last in the vocabulary's order.

        Args:
            language: its code.
        """
        if not self.languages_field:
            return self
        return self._with_languages((*self.known_languages(), language))

    def resize_param(self, name: str, array: np.ndarray) -> np.ndarray | None:
        """Returns a parameter as of a model that has one language more.

        Args:
            name: its path, e.g. `layer_3/mlp/branch/scale`.
            array: of the model before.

        Returns:
            None if it is not the method's own, or has nothing of a language's.
        """
        del name, array
        return None

    def frozen_rows(self) -> tuple[Rows, ...]:
        """Returns which parts of its parameters do not train."""
        return ()

    def generated_batches(self, config: Config) -> tuple[GeneratedBatch, ...]:
        """Returns the micro-batches that training makes of each and learns beside it.

        Args:
            config: of the run.

        Raises:
            UserError: if it cannot make them.
        """
        del config
        return ()

    def frozen_patterns(self, config: Model) -> tuple[str, ...]:
        """Returns patterns (`mnmt_jax.model.param_patterns`) of parameters that do not train.

        Args:
            config: sizes.
        """
        del config
        return ()

    def param_mappings(self, config: Model) -> tuple[ParamMapping, ...]:
        """Returns what a new run takes from other runs; asked for only when one is made.

        Args:
            config: sizes of the new run's model.
        """
        del config
        return ()

    def required_sources(self, config: Model) -> tuple[RequiredSource, ...]:
        """Returns what the runs must be that `moves` names; of others any run will do.

        Args:
            config: sizes of the new run's model.
        """
        del config
        return ()

    def for_resume(self) -> Method | None:
        """Returns it with what only matters when a run is made as by default.

        A run may be continued with other values of that. None is a method that does nothing later.
        """
        return self


def check_edits(methods: Iterable[Method]) -> None:
    """Check that the methods of `Model.methods` change the model.

    Args:
        methods: the list. Runs of earlier versions may have methods of training in it, too.

    Raises:
        UserError: if one is a method of training; names the field for it.
    """
    for method in methods:
        if not method.edits() and not method.players():
            raise UserError(
                f"Model.methods=('{method.name}',) is a method of training and leaves the model as "
                f"it is; name it in Train.methods=('{method.name}',)"
            )


def all_objectives(methods: Iterable[Method]) -> tuple[Objective, ...]:
    """Returns the objectives of methods, those of their players too."""
    found: list[Objective] = []
    for method in methods:
        found += method.objectives()
        found += (objective for player in method.players() for objective in player.objectives)
    return tuple(found)


def all_param_mappings(
    config: Config, *, without: Iterable[Method] = ()
) -> tuple[ParamMapping, ...]:
    """Returns the moves of a run's methods, in their order.

    Args:
        config: of the run.
        without: methods whose like is left out.
    """
    known = {method.name for method in without}
    methods = (method for method in config.methods if method.name not in known)
    return tuple(move for method in methods for move in method.param_mappings(config.model))


def all_for_resume(methods: Iterable[Method]) -> tuple[Method, ...]:
    """Returns what of methods a run that is continued must share with what it was."""
    return tuple(kept for method in methods if (kept := method.for_resume()) is not None)


def as_facts(section: Any) -> dict[str, Any]:
    """Returns a section, or a configuration, as what JSON holds; methods in order, with names.

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
    """Checks that no method stands twice in a list.

    Args:
        title: of the section whose list it is.
        methods: the list.

    Raises:
        UserError: otherwise.
    """
    names = [method.name for method in methods]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{title}.methods names '{name}' twice; leave one of them out")
