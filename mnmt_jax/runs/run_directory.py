"""Layout of a run directory, and the check whether a configuration may continue the run.

RUN/config.gin     resolved configuration
RUN/vocabulary/    copy of the cache's vocabulary
RUN/tasks.json     languages of each training task, and sizes of chunks of documents
RUN/origin.json    source of the initial parameters, if not drawn at random
RUN/checkpoints/   Orbax, one folder per step
RUN/average/       averaged parameters, written by mnmt average
RUN/metrics.jsonl  one line per logged step; metrics_earlier.jsonl: those before a start at step 0
RUN/tensorboard/   the same as events
RUN/trackers/      identifiers and local files of other experiment trackers
RUN/report/        evaluation
RUN/.held          locked by the training process
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from mnmt_jax.config.loading import is_saved_config, load_config, save_config
from mnmt_jax.config.sections import Config, Model
from mnmt_jax.data.document_context import Context
from mnmt_jax.design.layouts import REGISTER, get_layout
from mnmt_jax.design.method import Method, all_for_resume
from mnmt_jax.design.param_mapping import ParamMapping
from mnmt_jax.errors import UserError
from mnmt_jax.files.atomic_write import check_replaced, lock, write_text
from mnmt_jax.files.bucket import Mirror, is_bucket
from mnmt_jax.files.json_objects import parse_json
from mnmt_jax.vocabulary.language_codes import Direction
from mnmt_jax.vocabulary.vocabulary import Vocabulary

_Facts = TypeVar("_Facts")

# Fields that may change when a run continues: they change losses by no more than rounding.
MAY_CHANGE = (
    "data.cache",
    "data.workers",
    "model.attention",
    "model.register_factor",
    "model.remat",
    "train.steps",
    "train.log_every",
    "train.eval_every",
    "train.save_every",
    "train.keep_last",
    "train.keep_best",
    "train.keep_every",
    "train.patience",
    "train.trackers",
    "decode",
    "mesh",
)
# Fields of `Decode` on which the translations of validation depend.
_OF_VALIDATION = (
    "max_length",
    "max_length_per_source",
    "buckets",
    "seed",
    "source_contrast",
    "language_contrast",
    "allow_unk",
    "copy_unknown",
)


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """Paths of a run.

    Attributes:
        path: the folder itself, or the local copy of small files in a bucket.
        mirror: mirror of the bucket; None if the run is in a local folder.
    """

    path: Path
    mirror: Mirror | None = None

    @classmethod
    def open(cls, run: str | os.PathLike[str] | RunDirectory) -> RunDirectory:
        """Open a run, which need not exist yet.

        Args:
            run: a folder, `gs://bucket/folder`, or an open run.

        Raises:
            UserError: if it is not a path, or in a bucket that cannot be read.
        """
        if isinstance(run, RunDirectory):
            return run
        if not isinstance(run, str | os.PathLike) or not os.fspath(run):
            raise UserError(f"run={run!r}: name the directory of a run, such as 'runs/register'")
        if not is_bucket(run):
            return cls(Path(run))
        mirror = Mirror(run)
        return cls(mirror.folder, mirror)

    @property
    def location(self) -> Path:
        """The path of the run as the user knows it."""
        return self.mirror.bucket if self.mirror else self.path

    @property
    def config_file(self) -> Path:
        """The resolved gin file."""
        return self.path / "config.gin"

    @property
    def vocabulary(self) -> Path:
        """The folder of the vocabulary."""
        return self.path / "vocabulary"

    @property
    def tasks_file(self) -> Path:
        """The file with the training tasks' languages."""
        return self.path / "tasks.json"

    @property
    def origin_file(self) -> Path:
        """The file about the source of the initial parameters."""
        return self.path / "origin.json"

    @property
    def checkpoints(self) -> Path:
        """The folder that Orbax manages."""
        return self.location / "checkpoints"

    @property
    def average(self) -> Path:
        """The folder of the averaged parameters."""
        return self.location / "average"

    @property
    def metrics_file(self) -> Path:
        """The file with one JSON object per logged step."""
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        """The folder of TensorBoard events."""
        return self.path / "tensorboard"

    @property
    def trackers(self) -> Path:
        """The folder of MLflow's and W&B's files."""
        return self.path / "trackers"

    @property
    def report(self) -> Path:
        """The folder of the evaluation's report."""
        return self.path / "report"

    def exists(self) -> bool:
        """Return whether the run has been prepared, by this process or another."""
        return (self.location / self.config_file.name).is_file()

    def hold(self) -> IO[str] | None:
        """Lock the run against other training processes until the returned file is closed.

        The operating system releases the lock when the process dies. There is no lock on storage
        without locks, nor in a bucket (None).

        Raises:
            UserError: if another training process holds the lock.
        """
        if self.mirror:
            return None
        self.path.mkdir(parents=True, exist_ok=True)
        file = (self.path / ".held").open("a", encoding="utf-8")
        if not lock(file):
            file.close()
            raise UserError(
                f"--workdir={self.location}: another process is training there; wait for its end, "
                "stop it, or choose another --workdir"
            )
        return file

    def remove_origin(self) -> None:
        """Remove the record of the source runs of an earlier start.

        Raises:
            UserError: if the bucket cannot be written.
        """
        if self.mirror:
            self.mirror.remove(self.origin_file.name)
        else:
            self.origin_file.unlink(missing_ok=True)

    def publish(self, *, with_trackers: bool = False) -> None:
        """Copy new files to the bucket, if the run is in one.

        Args:
            with_trackers: whether to copy the files of trackers too, which must have ended.
        """
        if self.mirror:
            self.mirror.publish(() if with_trackers else (self.trackers.name,))

    def close(self) -> None:
        """Remove this process's local copy of the run, if there is one."""
        if self.mirror:
            self.mirror.close()

    def config(
        self,
        gin_files: Sequence[str] = (),
        bindings: Sequence[str] = (),
        *,
        ignored_sections: Sequence[str] = (),
    ) -> Config:
        """Read the configuration.

        Args:
            gin_files: files read after it, e.g. with other `Decode` values.
            bindings: `Section.field=value`, read last.
            ignored_sections: sections of the run's configuration to leave out, such as `Mesh`, the
                number of devices it was trained on.

        Raises:
            UserError: if this is not a run directory, or a value is not valid.
        """
        if not self.config_file.is_file():
            raise UserError(f"{self.location / 'config.gin'}: no such file; name a run directory")
        return load_config(
            gin_files, bindings, run=self.config_file, ignored_sections=ignored_sections
        )

    def load_vocabulary(self) -> Vocabulary:
        """Read the vocabulary, which no new one can replace.

        Raises:
            UserError: if it is missing or damaged.
        """
        config_file = self.location / self.config_file.name
        remedy = (
            f"copy it from another copy of the run, or from the cache that {config_file} names "
            "(Data.cache), if it names one"
        )
        return Vocabulary.load(self.vocabulary, remedy=remedy)

    def flag_path(self, name: str) -> tuple[str, str]:
        """Return how a flag that reads no bucket can name a file of the run, for remedies.

        Args:
            name: name of the file or folder.

        Returns:
            What to do first, empty if the run is in a folder, and the path.
        """
        path = self.location / name
        return (f"copy {path} to a folder first, then ", name) if self.mirror else ("", str(path))

    def trained_directions(self) -> frozenset[Direction] | None:
        """Read the directions that the run was trained on; None if there is no record.

        Raises:
            UserError: if the record cannot be read.
        """
        tasks = self.trained_tasks()
        return None if tasks is None else frozenset(tasks.values())

    def trained_tasks(self) -> dict[str, Direction] | None:
        """Read the direction of each training task by name; as `trained_directions`."""
        return self._read_tasks(
            lambda tasks: {
                n: (task["source_lang"], task["target_lang"]) for n, task in tasks.items()
            }
        )

    def trained_contexts(self) -> dict[str, Context]:
        """Read the context of each training task by name; as `trained_directions`.

        Returns:
            Only tasks whose examples are chunks of documents.
        """
        contexts = self._read_tasks(
            lambda tasks: {
                name: Context(**task["context"])
                for name, task in tasks.items()
                if "context" in task
            }
        )
        return contexts or {}

    def _read_tasks(self, convert: Callable[[dict[str, Any]], _Facts]) -> _Facts | None:
        """Read `tasks.json`; None if there is none."""
        if not self.tasks_file.is_file():
            return None
        try:
            return convert(parse_json(self.tasks_file.read_bytes()))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            file = self.location / self.tasks_file.name
            raise UserError(
                f"{file}: cannot be read ({error}); run the training command once more"
            ) from error

    def write_tasks(
        self, directions: Mapping[str, Direction], contexts: Mapping[str, Context] | None = None
    ) -> None:
        """Write the languages and contexts of the training tasks.

        Args:
            directions: source and target language by task name.
            contexts: context by name, for tasks whose examples are chunks of documents.
        """
        facts: dict[str, dict[str, Any]] = {
            name: {"source_lang": source, "target_lang": target}
            for name, (source, target) in directions.items()
        }
        for name, context in (contexts or {}).items():
            facts[name]["context"] = dataclasses.asdict(context)
        _write_json(self.tasks_file, facts)

    def write_origin(
        self, origin: str, report: str, param_mappings: Iterable[ParamMapping] = ()
    ) -> None:
        """Write the source of the run's initial parameters.

        Args:
            origin: a run directory, or a checkpoint of another toolkit; several with their names.
            report: description of what was copied.
            param_mappings: parameter mappings of methods, if any.
        """
        mappings = [
            [mapping.run_name, mapping.source, mapping.target] for mapping in param_mappings
        ]
        facts = {"origin": origin, "report": report} | ({"moves": mappings} if mappings else {})
        _write_json(self.origin_file, facts)

    def check_folder(self) -> None:
        """Check that training here would replace no files but those of a run.

        Raises:
            UserError: if the folder has a `config.gin` that is not a run's, or files with a run's
                names but without the `config.gin` that a run writes first.
        """
        check_replaced(self.config_file, is_saved_config, "--workdir")
        if not self.config_file.is_file():
            for name in (self.vocabulary, self.tasks_file, self.origin_file, self.metrics_file):
                if name.exists():
                    raise UserError(
                        f"{self.location / name.name}: already exists, but there is no config.gin "
                        "of a run; move it, or choose another --workdir"
                    )

    def check(self, config: Config, vocabulary: Vocabulary, *, has_checkpoint: bool) -> None:
        """Check that a configuration and a vocabulary may continue the run.

        Args:
            config: configuration of the training about to start.
            vocabulary: vocabulary of the cache.
            has_checkpoint: whether there is a checkpoint; otherwise anything may change.

        Raises:
            UserError: if the run was started with another configuration or vocabulary, or if only
                the average of its checkpoints is left.
        """
        if not has_checkpoint and self.average.exists():
            raise UserError(
                f"{self.location} has an average but no checkpoints, and training would start at "
                "step 0; put its checkpoints back, move the run, or choose another --workdir"
            )
        if not (has_checkpoint and self.config_file.is_file()):
            return
        changed = changed_fields(self.config(), config)
        if changed:
            raise UserError(
                f"{self.location} was started with another configuration: {'; '.join(changed)}. "
                "Restore these values, or choose another --workdir (a new run can start from "
                f"these parameters: --initialize_from={self.location})"
            )
        if self.load_vocabulary().fingerprint != vocabulary.fingerprint:
            raise UserError(
                f"{self.location / 'vocabulary'} differs from the vocabulary of Data.cache="
                f"'{config.data.cache}'; choose the cache of the run or another --workdir"
            )

    def prepare(self, config: Config, vocabulary: Vocabulary, *, has_checkpoint: bool) -> None:
        """Write the configuration, and the vocabulary unless the run has one; as `check`."""
        self.path.mkdir(parents=True, exist_ok=True)
        continues = has_checkpoint and self.config_file.is_file()
        save_config(config, self.config_file)  # first: it marks the other files as those of a run
        if not continues:
            vocabulary.save(self.vocabulary)


def _write_json(path: Path, facts: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(facts, indent=1) + "\n")


def changed_fields(before: Config, after: Config) -> list[str]:
    """List the fields that differ but must not, as `Section.field was X, now Y`.

    Methods are compared by name, and by settings if their names are the same.

    Args:
        before: configuration that the run was started with.
        after: configuration that it would be continued with.
    """
    changed: list[str] = []
    for section in dataclasses.fields(before):
        old, new = getattr(before, section.name), getattr(after, section.name)
        for field in dataclasses.fields(old):
            values = getattr(old, field.name), getattr(new, field.name)
            if field.name == "methods":
                methods = all_for_resume(values[0]), all_for_resume(values[1])
                values = _names(methods[0]), _names(methods[1])
                if values[0] == values[1]:
                    changed += itertools.chain(*map(_changed_settings, *methods))
            if values[0] == values[1]:
                continue
            name = f"{section.name}.{field.name}"
            reason = _dependence(name, values, after)
            if reason or not (section.name in MAY_CHANGE or name in MAY_CHANGE):
                changed.append(_describe_change(old, field.name, values) + reason)
    return changed


def _dependence(name: str, values: tuple[Any, ...], config: Config) -> str:
    """Return what depends on a field of `MAY_CHANGE` in a run, in brackets; empty if nothing.

    Args:
        name: the field.
        values: its values before and after.
        config: configuration that the run would be continued with.
    """
    section, _, field = name.partition(".")
    if name == "model.attention" and "dense" in values and config.model.attention_dropout:
        return " (with Model.attention_dropout 'dense' draws other masks)"
    if name == "model.register_factor" and _has_registers(config.model):
        return " (the number of registers depends on it)"
    if name == "train.steps" and config.optimizer.schedule == "cosine":
        return " (every learning rate of a cosine depends on it)"
    if name == "decode.allow_unk" and _generates(config):
        return " (methods of the run translate with it)"
    is_used = field in _OF_VALIDATION or (
        field == "contrast_languages" and config.decode.language_contrast
    )
    if section == "decode" and config.train.translate_pairs and is_used:
        return " (validation translates with it)"
    return ""


def _has_registers(model: Model) -> bool:
    return REGISTER in get_layout(model.layout, model.stage_layers).embedded_roles()


def _generates(config: Config) -> bool:
    """Return whether a method translates in an update."""
    return any(method.translates or method.generated_batches(config) for method in config.methods)


def _changed_settings(before: Method, after: Method) -> Iterator[str]:
    """Yield the settings of a method that differ."""
    for name in _settings(before) | _settings(after):
        values = tuple(getattr(method, name, None) for method in (before, after))
        if values[0] != values[1]:
            yield _describe_change(before, name, values)


def _settings(method: Any) -> dict[str, Any]:
    return {field.name: field for field in dataclasses.fields(method)}


def _names(methods: Iterable[Method]) -> tuple[str, ...]:
    return tuple(method.name for method in methods)


def _describe_change(section: Any, field: str, values: tuple[Any, ...]) -> str:
    return f"{type(section).__name__}.{field} was {values[0]!r}, now {values[1]!r}"
