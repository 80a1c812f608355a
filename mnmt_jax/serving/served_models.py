"""Models behind one server, and the choice of the model for a direction."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence

from mnmt_jax.decoding.retry import Attempt
from mnmt_jax.decoding.text.sentence_job import SentenceJob
from mnmt_jax.decoding.text.translated_text import TextToTranslate
from mnmt_jax.errors import UserError
from mnmt_jax.serving.job_batcher import JobBatcher
from mnmt_jax.vocabulary.language_codes import (
    canonical_code_or_input,
    find_code,
    is_same_language,
)


@dataclasses.dataclass(frozen=True, eq=False)
class ServedModel:
    """A model with the batcher of its lines.

    Attributes:
        name: its name in requests.
        job: the model and settings of the search.
        batcher: translates lines of all users.
        retries: further searches of lines that fail the checks of `job.retry`, each with a batcher
            of its own, so that it does not hold up first searches.
    """

    name: str
    job: SentenceJob
    batcher: JobBatcher
    retries: Sequence[tuple[Attempt, JobBatcher]] = ()
    _codes: dict[str, str | None] = dataclasses.field(default_factory=dict, init=False)

    @property
    def batchers(self) -> list[JobBatcher]:
        """All batchers."""
        return [self.batcher, *(batcher for _, batcher in self.retries)]

    @property
    def length_penalty(self) -> float:
        """Length penalty of the scores."""
        return self.job.decode.length_penalty

    def code(self, language: str) -> str | None:
        """Return the model's code of a language; None if it does not have it.

        Args:
            language: the server's code of the language; its result is remembered.
        """
        if language not in self._codes:
            try:
                self._codes[language] = find_code(language, self.job.pretrained.languages)
            except UserError:  # ambiguous
                self._codes[language] = None
        return self._codes[language]

    def spelled(self, text: TextToTranslate) -> TextToTranslate:
        """Return a text whose languages the model has with the model's codes of them."""
        source, target = self.code(text.source), self.code(text.target)
        assert source and target
        return dataclasses.replace(text, source=source, target=target)

    def has(self, *languages: str) -> bool:
        """Return whether the model has all of some languages."""
        return all(self.code(language) is not None for language in languages)


class ServedModels:
    """Models in the order in which they are preferred; their languages are the union."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._models = tuple(models)

    def __iter__(self) -> Iterator[ServedModel]:
        """Iterate over the models."""
        return iter(self._models)

    def __len__(self) -> int:
        """Return the number of models."""
        return len(self._models)

    @functools.cached_property
    def languages(self) -> tuple[str, ...]:
        """Codes of all languages; one code if models spell a language differently."""
        codes: dict[str, str] = {}
        for model in self:
            for code in model.job.pretrained.languages:
                codes.setdefault(canonical_code_or_input(code), code)
        return tuple(codes.values())

    def matches(self, code: str) -> list[str]:
        """Return the languages that a code of any form may denote, in their order.

        There are several if it leaves the region open, none if no model has the language.
        """
        try:
            known = find_code(code, self.languages)
        except UserError:  # ambiguous
            return [one for one in self.languages if find_code(code, [one])]
        return [] if known is None else [known]

    def sources(self, codes: Iterable[str], target: str) -> list[str]:
        """Return the source languages that a model translates into a target language.

        Args:
            codes: codes of possible source languages.
            target: code of the target language.

        Returns:
            Their codes in order; the target language itself comes last.
        """
        chosen = ((code, self.choose(code, target)) for code in codes)
        pairs = [(code, model) for code, model in chosen if model]
        pairs.sort(key=lambda pair: pair[1].code(pair[0]) == pair[1].code(target))
        return [code for code, _ in pairs]

    def targets(self, source: str) -> list[str]:
        """Return the languages that a source language is translated into."""
        models = [model for model in self if model.has(source)]
        return [code for code in self.languages if any(model.has(code) for model in models)]

    def named(self, name: str | None) -> ServedModels:
        """Return the model of a name alone, none if it is unknown; all models if it is None."""
        return self if name is None else ServedModels([m for m in self if m.name == name])

    def choose(self, source: str, target: str) -> ServedModel | None:
        """Return the first model with both languages; None if there is none.

        A model that has the languages themselves comes before one that has them without region.
        """
        candidates = [model for model in self if model.has(source, target)]
        return min(
            candidates,
            key=lambda model: sum(
                not is_same_language(code, model.code(code) or "") for code in (source, target)
            ),
            default=None,
        )
