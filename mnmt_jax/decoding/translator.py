"""The Python interface to a trained translator: load a run, translate, score."""

from __future__ import annotations

import dataclasses
import itertools
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Sized
from typing import Any

from tqdm import tqdm

from mnmt_jax.config.sections import Decode
from mnmt_jax.decoding.encoded_lines import Line, number_lines, with_contrast_sources
from mnmt_jax.decoding.generate import describe_search, with_beam_size, with_settings
from mnmt_jax.decoding.input_checks import (
    check_list,
    check_text,
    codes_of_lines,
    warn_of_same_language,
)
from mnmt_jax.decoding.lines import Translation, score_lines, translate_lines
from mnmt_jax.decoding.pretrained import PretrainedModel
from mnmt_jax.decoding.score import Score
from mnmt_jax.design.layouts import check_translates
from mnmt_jax.design.method import as_facts
from mnmt_jax.errors import MnmtWarning, UserError, counted
from mnmt_jax.vocabulary.language_codes import match_code
from mnmt_jax.vocabulary.unknown_characters import describe_unknown

WINDOW = 4096


class Translator(PretrainedModel):
    """Translates text with a trained model.

    Example:
        >>> translator = Translator.load("runs/register")
        >>> translator.translate(["two days ago"], source="en", target="de")
        ['vor zwei Tagen']
    """

    check_layout = staticmethod(check_translates)

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
            source: language code of all lines, or one per line, in any form ("deu_Latn" is "de").
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
            were cut, and of characters that the vocabulary does not have.

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
                MnmtWarning,
                stacklevel=2,
            )
        _warn_unknown(found, copied=self.decoding(beam_size, **settings).copy_unknown)
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
            pivot = self.check_pivot(pivot)
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

    def check_pivot(self, code: str) -> str:
        """Return the model's code of a language to translate through.

        Args:
            code: of any form.

        Raises:
            UserError: if it does not have it.
        """
        if not isinstance(code, str):
            raise UserError(f"pivot={code!r}: must be a language's code")
        return match_code(code, self.languages, "--pivot")

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
        check_list(lines, "lines")
        sources = codes_of_lines(source, "source", self.languages)
        targets = codes_of_lines(target, "target", self.languages)
        warn_of_same_language(source, target, self.languages)
        numbered = number_lines(lines, sources, targets)
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
        second = {line.number: line for line in with_contrast_sources(onward, decode)}
        asked = [second.get(line.number, line) for line in lines]
        # Of what is done, or done by others, only the source is there.
        for index, found in translate_lines(self._system, asked, decode, done, known=False):
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
        found = self.log_probs(lines, references, source=source, target=target)
        return [each.normalized(self.config.decode.length_penalty) for each in found]

    def log_probs(
        self,
        lines: Sequence[str],
        references: Sequence[str],
        *,
        source: str | Sequence[str],
        target: str | Sequence[str],
    ) -> list[Score]:
        """Scores as `score` does, without dividing: sums and numbers of tokens."""
        check_list(lines, "lines")
        check_list(references, "references")
        for number, text in enumerate(references, start=1):
            check_text(text, f"reference {number}")
        if len(lines) != len(references):
            raise UserError(f"{len(lines)} lines but {len(references)} references; give one each")
        numbered = list(self.numbered(lines, source=source, target=target))
        return score_lines(self._system, numbered, references, self.config.decode)


def _warn_unknown(translations: Iterable[Translation], *, copied: bool) -> None:
    """Warn of characters that no piece of the vocabulary covers, unless they were copied."""
    unknown = [translation.unknown_characters for translation in translations]
    if copied or not any(unknown):
        return
    characters = describe_unknown(Counter("".join(unknown)))
    warnings.warn(
        f"{counted(sum(map(bool, unknown)), 'line')} with characters unknown to the vocabulary, "
        f"read as <unk> or bytes ({characters}); copy them with copy_unknown=True",
        MnmtWarning,
        stacklevel=3,
    )


def _joined(first: Translation, second: Translation) -> Translation:
    """Returns what two translations, one after the other, amount to; a blank line has no pivot."""
    return dataclasses.replace(
        second,
        truncated=first.truncated or second.truncated,
        limited=first.limited or second.limited,
        pivot=first.text if first.hypotheses else None,
        unknown_characters=first.unknown_characters,
    )


def _contrasted(lines: Iterator[Line], decode: Decode) -> Iterator[Line]:
    """Draws for each line others of its window."""
    while window := list(itertools.islice(lines, WINDOW)):
        yield from with_contrast_sources(window, decode)


def _translations(pairs: Iterator[tuple[Line, Translation]], bar: tqdm) -> Iterator[Translation]:
    """Yields the translations, and closes the bar in the end."""
    with bar:
        yield from (translation for _, translation in pairs)
