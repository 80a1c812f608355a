"""Hooks of methods, one class for each moment at which they are called.

A method overrides the hooks that it needs; every hook has a no-op default.

    ModelHooks       when a model is built
    TrainingHooks    when training is set up
    SourceRunHooks   when a run copies parameters from source runs, and when it is resumed
    VocabularyHooks  when a vocabulary is known, and when a language is added to a trained model
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from mnmt_jax.design.generated_batch import BatchChange, GeneratedBatch
from mnmt_jax.design.mask_shares import MaskShares
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


class ModelHooks:
    """Hooks that change the model.

    They apply to methods in `Model.methods`. `edit` is called whenever a model is built: in
    training, translation, scoring, analysis and `mnmt describe`. `frozen_patterns` and
    `frozen_rows` are called when training selects its trainable parameters and when parameters are
    counted. A method that overrides neither `edit` nor `TrainingHooks.players` belongs in
    `Train.methods`.
    """

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

    def frozen_patterns(self, config: Model) -> tuple[str, ...]:
        """Return patterns (`mnmt_jax.model.param_patterns`) of parameters that are not trained.

        Args:
            config: sizes.
        """
        del config
        return ()

    def frozen_rows(self) -> tuple[Rows, ...]:
        """Return the parameter rows that are not trained."""
        return ()


class TrainingHooks:
    """Hooks that change training and leave translation as it is.

    They are called when training is set up, once per start of a run; `check` comes first. The
    values that they return hold functions, which are traced into the compiled update. `objectives`
    and `mask_shares` also determine the arrays of a batch. `players` is also called when a
    configuration is read, since a method with players belongs in `Model.methods`.

    Attributes:
        translates: whether a function of `objectives` or `batch_changes` calls
            `GenerationModel.greedy`. The run's `Decode.allow_unk` may then not change when it is
            resumed; with `generated_batches` it may not either.
    """

    translates: ClassVar[bool] = False

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

    def row_groups(self) -> int:
        """Return into how many equal groups an objective divides the rows of a micro-batch."""
        return 1

    def players(self) -> tuple[Player, ...]:
        """Return the players, in the order in which they are updated before the model."""
        return ()

    def mask_shares(self) -> MaskShares | None:
        """Return the masking rates of a masked language model; None keeps the defaults."""
        return None

    def batch_changes(self) -> tuple[BatchChange, ...]:
        """Return changes of each micro-batch, in the order in which they are applied."""
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


class SourceRunHooks:
    """Hooks for parameters that are copied from other runs.

    `param_mappings`, `required_sources` and `slot_languages` are called when a run is created.
    `for_resume` is called when a run is resumed, to compare the settings with those of the original
    run, and when a configuration is derived from a run, e.g. by `mnmt add-language`.
    """

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

    def slot_languages(self, name: str) -> tuple[str, ...]:
        """Return the languages of a parameter's slots, along its first axis, in their order.

        A parameter is copied only between slots of the same languages.

        Args:
            name: its path, e.g. `layer_3/mlp/branch/scale`.

        Returns:
            Their codes; () if the parameter is not the method's or has no slots of languages.
        """
        del name
        return ()

    def for_resume(self) -> Self | None:
        """Return the method with creation-only settings set to their defaults.

        A run may be resumed with other values of these settings. None means that the method has no
        effect after creation.
        """
        return self


class VocabularyHooks:
    """Hooks for methods that depend on the languages of the vocabulary.

    `bind_languages` is called when training, translation or `mnmt describe` has read the vocabulary
    of the model. `with_language` and `resize_param` are called by `mnmt add-language`. Most methods
    with languages set the two attributes and override no hook. `known_languages` is a getter for
    methods to call.

    Attributes:
        languages_field: name of the field that holds the codes of the vocabulary's languages in tag
            order; empty if the method needs no languages.
        code_fields: names of the fields that hold some of these codes, in any form until
            `bind_languages`.
    """

    languages_field: ClassVar[str] = ""
    code_fields: ClassVar[tuple[str, ...]] = ()

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
                f"Data.cache) has {tuple(languages)!r}; use the vocabulary of the model, or name "
                "these languages"
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

    @property
    def _languages_key(self) -> str:
        return f"{type(self).__name__}.{self.languages_field}"

    def _with_languages(self, languages: Iterable[str]) -> Self:
        method: Any = self  # a dataclass, as are all methods
        updated: Self = dataclasses.replace(method, **{self.languages_field: tuple(languages)})
        return updated
