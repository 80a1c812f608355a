"""The Python interface to a trained model: load a run, translate, score."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Sized
from pathlib import Path
from typing import Any

import jax
from tqdm import tqdm

from mnmt_jax.config.method import as_facts
from mnmt_jax.config.sections import Config, Decode
from mnmt_jax.data.instruction import get_instruction
from mnmt_jax.decoding.generate import describe_search, with_beam_size, with_settings
from mnmt_jax.decoding.lines import (
    Line,
    System,
    Translation,
    score_lines,
    translate_lines,
    with_others,
)
from mnmt_jax.design.layouts import check_translates
from mnmt_jax.errors import UserError, counted
from mnmt_jax.languages import LANGUAGES
from mnmt_jax.model.network import build_model
from mnmt_jax.runs.fingerprint import tree_fingerprint
from mnmt_jax.vocabulary.pieces import Vocabulary

WINDOW = 4096


class Translator:
    """Translates text with a trained model.

    Example:
        >>> translator = Translator.load("runs/register")
        >>> translator.translate(["two days ago"], source="en", target="de")
        ['vor zwei Tagen']
    """

    def __init__(
        self,
        config: Config,
        vocabulary: Vocabulary,
        params: Any,
        *,
        run: str = "",
        step: int | None = None,
        mesh: jax.sharding.Mesh | None = None,
    ) -> None:
        """Puts a model together.

        Args:
            config: of the run; `model`, `data.instruction` and `decode` matter.
            vocabulary: the run's.
            params: the model's parameters.
            run: where they come from; empty if from nowhere.
            step: of their checkpoint; None if unknown.
            mesh: that the parameters are on, whose devices share each batch; None is one device.
        """
        self.config = config = config.fitted(vocabulary.languages)
        self.vocabulary = vocabulary
        self.run, self.step = run, step
        model = build_model(config.model, vocabulary.size)
        check_translates(model.layout)
        instruction = get_instruction(config.data.instruction)
        self._system = System(model, params, vocabulary, instruction, mesh)

    @classmethod
    def load(
        cls,
        run: str | Path,
        step: int | str | None = None,
        *,
        gin_files: Sequence[str] = (),
        bindings: Sequence[str] = (),
        mesh: jax.sharding.Mesh | None = None,
    ) -> Translator:
        """Opens a run directory.

        Args:
            run: made by `mnmt train` or `mnmt import`.
            step: a checkpoint's step, "best", "average", or None for the newest.
            gin_files: read after the run's configuration, e.g. with other `Decode` values.
            bindings: `Section.field=value`, read last.
            mesh: of the devices that share each batch; None is the first device.

        Raises:
            UserError: if the folder is not a run or has no such checkpoint.
        """
        from mnmt_jax.runs.parameters import check_parameters, restore_params
        from mnmt_jax.runs.run_directory import RunDirectory

        folder = RunDirectory.open(run)
        config = folder.config(gin_files, bindings)
        vocabulary = Vocabulary.load(folder.vocabulary)
        params, found = restore_params(folder, step, mesh=mesh)
        check_parameters(folder, config.model, vocabulary.size, params)
        return cls(config, vocabulary, params, run=str(folder.place), step=found, mesh=mesh)

    def __repr__(self) -> str:
        """Says in one line which model this is."""
        origin = f"{self.run!r}, step={self.step}, " if self.run else ""
        layout, languages = self.config.model.layout, len(self.languages)
        return f"Translator({origin}layout={layout!r}, languages={languages})"

    @property
    def system(self) -> System:
        """The model with all that is needed to feed it text."""
        return self._system

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages the model has tags for."""
        return self.vocabulary.languages

    def translate(
        self,
        lines: Iterable[str],
        *,
        source: str | Sequence[str],
        target: str | Sequence[str],
        beam_size: int | None = None,
        pivot: str | None = None,
        progress: bool = False,
        **settings: Any,
    ) -> list[str]:
        """Translates lines; blank lines stay blank.

        Args:
            lines: one sentence each.
            source: language code of all lines, or one per line.
            target: language code wanted, or one per line.
            beam_size: hypotheses searched: 1 is greedy, more are a beam; None takes the
                configuration's method and size.
            pivot: code of a language to translate into first, and from there into `target`; lines
                that have it as source or target go directly. None translates directly.
            progress: show a bar on standard error.
            settings: fields of `Decode` in the place of the configuration's, e.g.
                `source_contrast=0.7`, which holds another line of `lines` against each.

        Returns:
            One translation per line, in order. Without source contrast a line's translation does
            not depend on the others. Warns of lines that are longer than the largest bucket and
            were cut.

        Raises:
            UserError: if the model does not have a language, or a line is no text.
        """
        found = self.translate_nbest(
            lines,
            source=source,
            target=target,
            beam_size=beam_size,
            pivot=pivot,
            progress=progress,
            **settings,
        )
        if cut := sum(translation.truncated for translation in found):
            longest = max(self.decoding(beam_size, **settings).buckets)
            warnings.warn(
                f"{counted(cut, 'line')} of more than {longest} tokens with tags cut; split, or "
                "load with bindings=['Decode.buckets=(...)'] that hold more",
                stacklevel=2,
            )
        return [translation.text for translation in found]

    def translate_nbest(
        self,
        lines: Iterable[str],
        *,
        source: str | Sequence[str],
        target: str | Sequence[str],
        beam_size: int | None = None,
        pivot: str | None = None,
        progress: bool = False,
        **settings: Any,
    ) -> list[Translation]:
        """Translates as `translate` does, with all hypotheses, scores and truncation marks."""
        found = self.stream(
            lines,
            source=source,
            target=target,
            beam_size=beam_size,
            pivot=pivot,
            progress=progress,
            **settings,
        )
        return list(found)

    def stream(
        self,
        lines: Iterable[str],
        *,
        source: str | Sequence[str],
        target: str | Sequence[str],
        beam_size: int | None = None,
        pivot: str | None = None,
        progress: bool = False,
        **settings: Any,
    ) -> Iterator[Translation]:
        """Translates as `translate_nbest` does, `WINDOW` lines in memory at a time."""
        decode = self.decoding(beam_size, **settings)
        numbered = self.numbered(lines, source=source, target=target, decode=decode)
        if pivot is not None:
            self.check_pivot(pivot)
        total = len(lines) if isinstance(lines, Sized) else None
        bar = tqdm(total=total, unit=" lines", file=sys.stderr, disable=not progress)
        pairs = self.in_order(numbered, decode=decode, pivot=pivot, report=bar.update)
        return _translations(pairs, bar)

    def decoding(self, beam_size: int | None = None, **settings: Any) -> Decode:
        """Returns how lines are searched: as the run's configuration says, but for these.

        Args:
            beam_size: as in `translate`.
            settings: as in `translate`.

        Raises:
            UserError: if a value is none that may be.
        """
        return with_settings(with_beam_size(self.config.decode, beam_size), **settings)

    def check_pivot(self, code: str) -> None:
        """Checks that the model can translate through a language.

        Raises:
            UserError: if it does not have it.
        """
        if not isinstance(code, str):
            raise UserError(f"pivot={code!r}: must be a language's code")
        if code not in self.languages:
            raise UserError(_unknown_language(code, "pivot", self.languages))

    def numbered(
        self,
        lines: Iterable[str],
        *,
        source: str | Sequence[str],
        target: str | Sequence[str],
        decode: Decode | None = None,
    ) -> Iterator[Line]:
        """Gives lines their numbers, languages and what they are contrasted with.

        Args:
            lines: as in `translate`.
            source: as in `translate`.
            target: as in `translate`.
            decode: how they will be searched; with source contrast `WINDOW` lines are read at a
                time, of which others are drawn for each. None takes the run's.

        Yields:
            One line at a time.
        """
        _check_list(lines, "lines")
        sources, targets = self._each(source, "source"), self._each(target, "target")
        numbered = _number(lines, sources, targets)
        decode = decode or self.config.decode
        return _contrasted(numbered, decode) if decode.source_contrast else numbered

    def as_completed(
        self,
        lines: Sequence[Line],
        *,
        decode: Decode | None = None,
        pivot: str | None = None,
        done: Collection[int] = (),
    ) -> Iterator[tuple[Line, Translation]]:
        """Yields each line with its translation as soon as its batch is done, blank ones first.

        Args:
            lines: of one window, as `numbered` gives them.
            decode: how to search; None is the run's.
            pivot: as in `translate`.
            done: numbers of lines that need no translation.

        Raises:
            UserError: if `decode` cannot be followed, or the model's output is not finite.
        """
        decode = decode or self.config.decode
        if pivot is not None:
            yield from self._through(lines, decode, pivot, done)
            return
        for index, translation in translate_lines(self._system, lines, decode, done):
            yield lines[index], translation

    def _through(
        self, lines: Sequence[Line], decode: Decode, pivot: str, done: Collection[int]
    ) -> Iterator[tuple[Line, Translation]]:
        """Translates a window into the pivot and that into its targets, with what goes directly.

        With source contrast the first step is that of the whole window: the second draws from it.
        """
        via = [line for line in lines if pivot not in (line.source_lang, line.target_lang)]
        into = [dataclasses.replace(line, target_lang=pivot) for line in via]
        skipped = () if decode.source_contrast else done
        first = {
            via[i].number: translation
            for i, translation in translate_lines(self._system, into, decode, skipped)
        }
        onward = [
            dataclasses.replace(line, text=first[line.number].text, source_lang=pivot, others=())
            for line in via
            if line.number in first
        ]
        second = {line.number: line for line in with_others(onward, decode)}
        asked = [second.get(line.number, line) for line in lines]
        for index, found in translate_lines(self._system, asked, decode, done):
            line = lines[index]
            yield line, _joined(first[line.number], found) if line.number in first else found

    def in_order(
        self,
        lines: Iterator[Line],
        *,
        decode: Decode | None = None,
        pivot: str | None = None,
        report: Callable[[int], object] = lambda count: None,
    ) -> Iterator[tuple[Line, Translation]]:
        """Yields each line with its translation in the order of the lines, window by window.

        Args:
            lines: as `numbered` gives them.
            decode: how to search; None is the run's.
            pivot: as in `translate`.
            report: called with a number of lines that are done.
        """
        while window := list(itertools.islice(lines, WINDOW)):
            found = {}
            for line, translation in self.as_completed(window, decode=decode, pivot=pivot):
                found[line.number] = translation
                report(1)
            yield from ((line, found[line.number]) for line in window)

    def made_by(self, decode: Decode | None = None, pivot: str | None = None) -> dict[str, Any]:
        """Returns all that translations depend on besides their sources and languages."""
        search = describe_search(decode or self.config.decode)
        through = {} if pivot is None else {"pivot": pivot}
        return {"model": as_facts(self.config.model), **self.identity, **search, **through}

    @property
    def identity(self) -> dict[str, Any]:
        """What translations depend on besides model, search and sources, or its fingerprints."""
        return {
            "parameters": tree_fingerprint(self._system.params),
            "vocabulary": self.vocabulary.fingerprint,
            "instruction": self.config.data.instruction,
        }

    def score(
        self,
        lines: Sequence[str],
        references: Sequence[str],
        *,
        source: str | Sequence[str],
        target: str | Sequence[str],
    ) -> list[float]:
        """Scores given translations by the search's rule.

        Args:
            lines: one sentence each.
            references: the translation of each.
            source: as in `translate`.
            target: as in `translate`.

        Returns:
            Log-probability in nats with eos, divided by length ** `Decode.length_penalty`.

        Raises:
            UserError: if the counts differ or a pair is longer than the largest bucket.
        """
        _check_list(lines, "lines")
        _check_list(references, "references")
        for number, text in enumerate(references, start=1):
            _check_text(text, f"reference {number}")
        if len(lines) != len(references):
            raise UserError(f"{len(lines)} lines but {len(references)} references; give one each")
        numbered = list(self.numbered(lines, source=source, target=target))
        return score_lines(self._system, numbered, references, self.config.decode)

    def _each(self, codes: str | Sequence[str], flag: str) -> Iterator[str]:
        """Returns the code of each line after checking them all."""
        if isinstance(codes, bytes) or not isinstance(codes, str | Sequence):
            raise UserError(
                f"{flag}={codes!r}: must be a language's code, or a list of one per line"
            )
        for number, code in enumerate([codes] if isinstance(codes, str) else codes, start=1):
            if not isinstance(code, str):
                raise UserError(f"{flag} of line {number} is {code!r}; give a language's code")
            if code not in self.languages:
                raise UserError(_unknown_language(code, flag, self.languages))
        return itertools.repeat(codes) if isinstance(codes, str) else iter(codes)


def _number(lines: Iterable[str], sources: Iterator[str], targets: Iterator[str]) -> Iterator[Line]:
    for number, text in enumerate(lines):
        _check_text(text, f"line {number + 1}")
        source, target = next(sources, None), next(targets, None)
        if source is None or target is None:
            raise UserError(f"line {number + 1} has no language; give one code or one per line")
        yield Line(number, text, source, target)


def _joined(first: Translation, second: Translation) -> Translation:
    """Returns what two translations, one after the other, amount to; a blank line has no pivot."""
    return dataclasses.replace(
        second,
        truncated=first.truncated or second.truncated,
        limited=first.limited or second.limited,
        pivot=first.text if first.hypotheses else None,
    )


def _contrasted(lines: Iterator[Line], decode: Decode) -> Iterator[Line]:
    """Draws for each line others of its window."""
    while window := list(itertools.islice(lines, WINDOW)):
        yield from with_others(window, decode)


def _translations(pairs: Iterator[tuple[Line, Translation]], bar: tqdm) -> Iterator[Translation]:
    """Yields the translations, and closes the bar in the end."""
    with bar:
        yield from (translation for _, translation in pairs)


def _check_list(texts: Any, name: str) -> None:
    if isinstance(texts, str):
        raise UserError(f"{name}: one text where a list of lines belongs; write [text]")
    if isinstance(texts, bytes) or not isinstance(texts, Iterable):
        raise UserError(f"{name}: a list of texts belongs here, not {type(texts).__name__}")


def _check_text(text: Any, name: str) -> None:
    if not isinstance(text, str):
        remedy = "decode it" if isinstance(text, bytes) else "leave it out, or give ''"
        raise UserError(f"{name} is no text but {type(text).__name__}; {remedy}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"{name} has half a character (a surrogate, \\u{ord(text[error.start]):x}) at "
            f"{error.start + 1}; decode it anew from its bytes"
        ) from None


def _unknown_language(code: str, flag: str, languages: Sequence[str]) -> str:
    """Says that the model lacks a language, and which ones were perhaps meant."""
    aliases = {known: known for known in languages}
    for known in languages:
        if known in LANGUAGES:
            facts = LANGUAGES[known]
            aliases |= {name.lower(): known for name in (facts.name, facts.flores) if name}
    near = difflib.get_close_matches(code.lower(), aliases, n=3, cutoff=0.6)
    meant = list(dict.fromkeys(aliases[alias] for alias in near))
    hint = f"did you mean {' or '.join(meant)}? " if meant else ""
    return f"--{flag}={code}: the model has no such language; {hint}it has {', '.join(languages)}"
