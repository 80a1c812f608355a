"""Translation by workers of Apache Beam, window by window, through files that all workers see.

OUTPUT.unfinished.beam/made_by.json                   everything that the translations depend on
OUTPUT.unfinished.beam/DIGEST/00000-HASH.lines.jsonl  lines of a window, HASH is that of the lines
OUTPUT.unfinished.beam/DIGEST/00000-HASH.jsonl        their records (`text_files.make_record`)

DIGEST is that of made_by.json, so that no other command takes the records of a worker that outlived
its own. A window has the lines that one process would translate together, so the records are the
same.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from mnmt_jax.commands.common_flags import import_modules
from mnmt_jax.commands.resumable_output import TranslateFn
from mnmt_jax.commands.text_files import format_record, make_record, unfinished_path
from mnmt_jax.data.preparation.runners import Runner
from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.model_loading import MeshChoice
from mnmt_jax.decoding.search_settings import changed_settings
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.errors import UserError, join_names, pluralize, say
from mnmt_jax.files.atomic_write import lock, new_file, write_text
from mnmt_jax.files.file_digest import short_digest
from mnmt_jax.files.json_objects import parse_json, read_object
from mnmt_jax.files.work_folder import clear_work_folder, open_work_folder
from mnmt_jax.vocabulary.detector_names import LID176

_PROVENANCE_FILE = "made_by.json"


@dataclasses.dataclass(frozen=True)
class WorkerModel:
    """The model that workers load and its search settings, as arguments of a command.

    Attributes:
        run: run directory, which all workers see.
        step: a checkpoint's step, `best`, `average`, or None for the newest.
        gin_files: gin files of the search.
        bindings: gin bindings of the search.
        modules: modules to import first.
        pivot: code of a language to translate through; None translates directly.
        beam_size: hypotheses per sentence; None takes that of the run.
        retry_off_target: whether translations that fail the checks are searched again.
        retry_pivot: code of the pivot of the last search; None is English.
        lid: detector of the languages of translations.
        mesh: mesh of the devices, as in `Translator.load`.
    """

    run: str
    step: int | str | None = None
    gin_files: tuple[str, ...] = ()
    bindings: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    pivot: str | None = None
    beam_size: int | None = None
    retry_off_target: bool = False
    retry_pivot: str | None = None
    lid: str = LID176
    mesh: MeshChoice = "local"

    def load(self) -> TranslationJob:
        """Load the model, once in each process."""
        if self not in _JOBS:
            import_modules(self.modules)
            translator = Translator.load(
                self.run,
                self.step,
                gin_files=self.gin_files,
                bindings=self.bindings,
                mesh=self.mesh,
            )
            _JOBS[self] = TranslationJob.create(
                translator,
                pivot=self.pivot,
                beam_size=self.beam_size,
                retry_off_target=self.retry_off_target,
                retry_pivot=self.retry_pivot,
                lid=self.lid,
            )
        return _JOBS[self]

    def keep(self, job: TranslationJob) -> None:
        """Keep a loaded model for the workers of this process."""
        _JOBS[self] = job


@dataclasses.dataclass(frozen=True)
class BeamWorkers:
    """Workers of Apache Beam.

    Attributes:
        runner: runs units of work on them.
        modules: modules that they import first.
    """

    runner: Runner
    modules: tuple[str, ...] = ()


_JOBS: dict[WorkerModel, TranslationJob] = {}


@dataclasses.dataclass(frozen=True)
class WindowWork:
    """What the translation of each window needs.

    Attributes:
        work: folder of the windows.
        model: the model.
        provenance: text of made_by.json.
    """

    work: Path
    model: WorkerModel
    provenance: str


def translate_window(work: WindowWork, name: str) -> None:
    """Translate a window and write its records; runs in the workers.

    Raises:
        UserError: if this worker sees another run than the process that began.
    """
    job = work.model.load()
    expected = json.loads(work.provenance)
    if differing := changed_settings(expected, expected | job.provenance()):
        raise UserError(
            f"--run={work.model.run}: differs on a worker ({join_names(differing)}); give all "
            "workers the same run, and name a checkpoint with --step while it is trained"
        )
    text = _lines_path(work.work, name).read_text(encoding="utf-8")
    window = [_line_from_json(line) for line in text.splitlines()]
    with new_file(_records_path(work.work, name)) as file:
        for line, translation in job.in_order(iter(window)):
            print(format_record(make_record(line, translation)), file=file)


class BeamOutput:
    """Translations of a file by Beam's workers, kept until the output is complete.

    It has the methods of `ResumableOutput`. Windows that are complete are not translated again.

    Args:
        output: name of the output.
        provenance: everything that translations depend on besides their sources.
        window: number of lines that are translated together.
        model: the model of the workers.
        runner: runs `translate_window`.

    Raises:
        UserError: if another process writes there, or unfinished windows were made with other
            settings.
    """

    def __init__(
        self,
        output: str,
        provenance: Mapping[str, Any],
        window: int,
        *,
        model: WorkerModel,
        runner: Runner,
    ) -> None:
        self.path = Path(f"{unfinished_path(output)}.beam")
        self._output, self._window, self._runner = output, window, runner
        self._names: list[str] = []
        self._complete = False
        self._lock = open_work_folder(self.path)
        if not lock(self._lock):
            raise UserError(f"--output={output}: another process is writing it; wait for its end")
        file = self.path / _PROVENANCE_FILE
        recorded = read_object(file, remedy="remove the folder") if file.is_file() else None
        if recorded is not None and (differing := changed_settings(recorded, provenance)):
            raise UserError(
                f"{self.path}: has translations made with other settings "
                f"({join_names(differing)}); use the same settings, or remove the folder to "
                "translate again"
            )
        if recorded is None:
            clear_work_folder(file)
        else:
            provenance = recorded  # the finished windows are in the folder of its digest
        windows = self.path.absolute() / short_digest(json.dumps(provenance, sort_keys=True))
        self._work = WindowWork(windows, model, json.dumps(provenance))
        write_text(file, self._work.provenance + "\n")
        windows.mkdir(exist_ok=True)

    def finish(
        self, lines: Iterator[Line], translate: TranslateFn, report: Callable[[int], None]
    ) -> None:
        """Translate the windows that are not done yet.

        Args:
            lines: all lines of the input, in order.
            translate: not used; workers load the model.
            report: called with the number of newly translated lines.
        """
        del translate
        missing: dict[str, int] = {}
        while window := list(itertools.islice(lines, self._window)):
            text = "".join(json.dumps(dataclasses.asdict(line)) + "\n" for line in window)
            digest = short_digest(text)
            name = f"{len(self._names):05d}-{digest}"
            self._names.append(name)
            if not _records_path(self._work.work, name).is_file():
                write_text(_lines_path(self._work.work, name), text)
                missing[name] = len(window)
        if done := len(self._names) - len(missing):
            say(f"resumes after {pluralize(done, 'window')} of at most {self._window} lines")
        if missing:
            self._runner(translate_window, self._work, [(name,) for name in missing])
        report(sum(missing.values()))

    def is_last(self) -> bool:
        """Return True: one process waits for the workers and writes the output."""
        return True

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the records in the order of the lines."""
        for name in self._names:
            with open(_records_path(self._work.work, name), "rb") as file:
                yield from (parse_json(line, finite=False) for line in file)

    def remove(self) -> None:
        """Remove the windows, after the output has been written."""
        clear_work_folder(self.path / _PROVENANCE_FILE)
        shutil.rmtree(self.path)
        self._complete = True

    def __enter__(self) -> BeamOutput:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.close()
        paths = (_records_path(self._work.work, name) for name in self._names)
        if not self._complete and any(path.is_file() for path in paths):
            say(f"finished windows kept in {self.path}: run the same command again to resume")


def _lines_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.lines.jsonl"


def _records_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.jsonl"


def _line_from_json(text: str) -> Line:
    """Return the line that was written; it has no terms, as `--glossary` is refused here."""
    facts = parse_json(text.encode())
    del facts["terms"]
    auxiliary = facts["auxiliary"] and tuple(facts["auxiliary"])
    return Line(
        **{**facts, "contrast_sources": tuple(facts["contrast_sources"]), "auxiliary": auxiliary}
    )
