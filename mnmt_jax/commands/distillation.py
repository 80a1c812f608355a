"""Teachers of a distillation: translation jobs by direction, and the cache they write."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mnmt_jax.commands.resumable_output import ResumableOutput
from mnmt_jax.commands.translated_cache import write_translated_cache
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.distillation import DistilledPairs
from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.translation import Translation
from mnmt_jax.decoding.translation_job import WINDOW_SIZE, TranslationJob
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.distributed.work_shards import WHOLE, WorkShard
from mnmt_jax.errors import join_names
from mnmt_jax.vocabulary.language_codes import Direction, match_code

RECORD = "distillation.json"
"""File of a distilled cache: teacher, checkpoint and search of each direction."""


@dataclasses.dataclass(frozen=True, eq=False)
class Teachers:
    """The teachers, one of which is in memory at a time.

    Attributes:
        runs: run directory of each direction, in the order of translation.
        step: checkpoint of all teachers; None is the newest.
        beam_size: hypotheses per sentence; None is that of the teacher's configuration.
        configuration: gin files and bindings, read after a teacher's configuration.
    """

    runs: Mapping[Direction, str]
    step: int | str | None = None
    beam_size: int | None = None
    configuration: tuple[Sequence[str], Sequence[str]] = ((), ())

    def write_cache(
        self, pairs: DistilledPairs, output: Path, work_shard: WorkShard = WHOLE
    ) -> TokenCache | None:
        """Write the cache of the distilled pairs, with a record of the teachers (`RECORD`).

        Args:
            pairs: the sentences.
            output: path of the cache; partial translations are kept beside it.
            work_shard: the sentences of this process.

        Returns:
            None if another process writes the cache.

        Raises:
            UserError: if a teacher cannot be loaded or lacks the languages, partial translations
                were made with other settings, or all translations are blank.
        """
        output.parent.mkdir(parents=True, exist_ok=True)
        names = list(dict.fromkeys(self.runs.values()))
        # The first teacher last: it stays in memory.
        provenance, steps, decodes = {}, {}, {}
        for run in reversed(names):
            provenance[run] = self._provenance(run)
            steps[run], decodes[run] = self._job(run).pretrained.step, self._job(run).decode
        taught = {"-".join(pair): provenance[run] for pair, run in self.runs.items()}
        facts = {
            "-".join(pair): {"run": run, "step": steps[run], **provenance[run]}
            for pair, run in self.runs.items()
        }
        return write_translated_cache(
            output,
            pairs,
            ResumableOutput(
                str(output), {"teachers": taught} | pairs.facts(), WINDOW_SIZE, work_shard
            ),
            self.translate,
            pairs.sources,
            models=join_names(names),
            decodes=decodes.values(),
            texts={RECORD: json.dumps({"teachers": facts}, indent=1) + "\n"},
        )

    def translate(
        self, lines: Sequence[Line], *, done: Collection[int] = ()
    ) -> Iterator[tuple[Line, Translation]]:
        """Yield the lines of a window with their teachers' translations.

        Args:
            lines: in the cache's language codes.
            done: numbers of lines that need no translation.
        """
        by_teacher = itertools.groupby(lines, lambda line: self.runs[_direction(line)])
        for run, group in by_teacher:
            job, group_lines = self._job(run), list(group)
            by_number = {line.number: line for line in group_lines}
            translated = [
                dataclasses.replace(line, source_lang=source, target_lang=target)
                for line in group_lines
                for source, target in [self._codes(run, _direction(line))]
            ]
            for line, translation in job.as_completed(translated, done=done):
                yield by_number[line.number], translation

    def _provenance(self, run: str) -> dict[str, Any]:
        """Return everything that a teacher's translations depend on; check its languages."""
        for direction, teacher in self.runs.items():
            if teacher == run:
                self._codes(run, direction)
        return self._job(run).provenance()

    def _codes(self, run: str, direction: Direction) -> Direction:
        """Return a direction in a teacher's codes."""
        languages = self._job(run).pretrained.languages
        source, target = (
            match_code(code, languages, f"--teacher={run}, language") for code in direction
        )
        return source, target

    def _job(self, run: str) -> TranslationJob:
        gin_files, bindings = map(tuple, self.configuration)
        return _load(run, self.step, self.beam_size, gin_files, bindings)


@functools.lru_cache(maxsize=1)
def _load(
    run: str,
    step: int | str | None,
    beam_size: int | None,
    gin_files: tuple[str, ...],
    bindings: tuple[str, ...],
) -> TranslationJob:
    """Load a teacher; the one before is dropped."""
    translator = Translator.load(run, step, gin_files=gin_files, bindings=bindings)
    job = TranslationJob.create(translator, beam_size=beam_size)
    job.refuse_source_contrast(f"--teacher={run}", "distillation")
    return job


def _direction(line: Line) -> Direction:
    return line.source_lang, line.target_lang
