"""Back-translation rounds: write a cache of real and pseudo pairs, train on it, repeat.

FOLDER/back_translation.json   what the rounds are made by
FOLDER/round_1/cache           real pairs, and what the first run makes of their targets
FOLDER/round_1/run             trained on it, from that run
FOLDER/round_2/cache           real pairs, and what round_1/run makes of their targets; and so on

Processes that train together divide the sentences to translate as in
`mnmt_jax.distributed.work_shards`; each translates its shard on its own devices.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from tqdm import tqdm

from mnmt_jax.commands.resumable_output import ResumableOutput
from mnmt_jax.config.sections import Config, Mesh
from mnmt_jax.data.back_translation import BackTranslatedPairs, BackTranslationDraws
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.cache_writer import (
    ReusedTask,
    TaskSource,
    check_cache_directory,
    reused_tasks,
    write_cache,
)
from mnmt_jax.data.converter import BatchExtras
from mnmt_jax.data.input_pipeline import Pipeline
from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.translation_job import WINDOW_SIZE, TranslationJob
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.design.method import all_for_resume, as_facts
from mnmt_jax.distributed.processes import is_first, told_by_first, wait_for_all
from mnmt_jax.distributed.work_shards import WHOLE, WorkShard
from mnmt_jax.errors import UserError, join_names, pluralize
from mnmt_jax.files.atomic_write import write_text
from mnmt_jax.files.bucket import refuse_bucket
from mnmt_jax.files.json_objects import differing_keys, read_object
from mnmt_jax.runs.run_directory import MAY_CHANGE, RunDirectory
from mnmt_jax.training.source_runs import SourceRunSpec
from mnmt_jax.training.train import train

_STEPS = "Train.steps="
_LOOK_SECONDS = 1.0
# Settings that change nothing of what a round makes.
_FREE = {*MAY_CHANGE, "data.tasks", "data.validation_examples", "train.best_by"}


@dataclasses.dataclass(frozen=True, eq=False)
class BackTranslationRounds:
    """Settings shared by all rounds.

    Attributes:
        draws: what is translated into what.
        cache: of the real pairs.
        origin: the run that the first round starts from.
        beam_size: hypotheses per sentence.
        configuration: gin files and bindings, read after that run's configuration.
    """

    draws: BackTranslationDraws
    cache: TokenCache
    origin: SourceRunSpec
    beam_size: int
    configuration: tuple[list[str], list[str]]

    def run(self, folder: Path, rounds: int) -> str | None:
        """Translate and trains by turns; goes on where the same call was stopped.

        Args:
            folder: of the rounds.
            rounds: how many.

        Returns:
            None when all are complete; the name of the signal that stopped a training otherwise.

        Raises:
            UserError: if the folder's rounds are made by something else, or one cannot be made.
        """
        refuse_bucket(folder)
        origin, first = self.origin, self._translator(self.origin)
        self._claim(folder, first)
        translator: Translator | None = first
        del first  # of two names one would keep it in memory
        for number in range(1, rounds + 1):
            if is_first():
                _say(f"round {number} of {rounds}")
            place = folder / f"round_{number}"
            if not all(told_by_first([(place / "cache").is_dir()])):
                translator = translator or self._translator(origin)
                self._write_cache(translator, place / "cache", number, _own_share())
            _wait_for(place / "cache")
            translator = None  # its memory is the training's
            config = self._config(TokenCache.open(place / "cache"), number)
            if stopped := train(config, place / "run", (origin,)):
                return stopped
            wait_for_all("trained")
            origin = SourceRunSpec(place / "run")
        return None

    def write_cache(self, output: Path, number: int, share: WorkShard = WHOLE) -> TokenCache | None:
        """Write the real pairs, and pseudo pairs that the run makes.

        Args:
            output: the cache to be; what is translated until then is kept beside it.
            number: of the round, for its draws.
            share: which sentences are this process's.

        Returns:
            None if another process is to write it.

        Raises:
            UserError: if something is there, or the run has another vocabulary.
        """
        if output.exists():
            raise UserError(f"--output={output}: exists; choose another folder")
        return self._write_cache(self._translator(self.origin), output, number, share)

    def _write_cache(
        self, translator: Translator, output: Path, number: int, share: WorkShard
    ) -> TokenCache | None:
        check_cache_directory(output, overwrite=False)
        pairs = BackTranslatedPairs(self.cache, dataclasses.replace(self.draws, round=number))
        job = TranslationJob.create(translator, beam_size=self.beam_size)
        output.parent.mkdir(parents=True, exist_ok=True)
        left: list[int] = []
        made_by = job.provenance() | pairs.facts()
        with ResumableOutput(str(output), made_by, WINDOW_SIZE, share) as kept:
            wait_for_all("opened")  # before the last one can write the cache
            with tqdm(total=len(pairs), unit=" lines", file=sys.stderr, disable=None) as bar:
                kept.finish(_lines(pairs), job.as_completed, bar.update)
            if not kept.is_last():
                return None
            if not any(record["translation"].strip() for record in kept.records()):
                kept.remove()
                raise UserError(
                    f"every translation is blank; train {translator.run} for longer, or translate "
                    "with another checkpoint"
                )
            cache = write_cache(
                output,
                self._tasks(pairs, _texts(kept.records(), left)),
                vocabulary=self.cache.vocabulary,
                report=_say,
            )
            kept.remove()
        if left:
            _say(
                f"{pluralize(len(left), 'sentence')} blank or of more than {max(job.decode.buckets)} "
                "tokens left out; for the latter add a larger bucket to --gin.Decode.buckets"
            )
        return cache

    def _tasks(
        self, pairs: BackTranslatedPairs, translations: Iterator[str]
    ) -> Iterator[ReusedTask | TaskSource]:
        """Yield the real tasks and the pseudo ones."""
        yield from reused_tasks(self.cache, self.cache.vocabulary)
        yield from pairs.sources(translations)

    def _translator(self, origin: SourceRunSpec) -> Translator:
        files, bindings = self.configuration
        translator = Translator.load(
            origin.run,
            origin.step,
            gin_files=files,
            bindings=bindings,
            mesh=Mesh(),  # what the configuration says of devices is the training's
        )
        if translator.vocabulary.fingerprint != self.cache.vocabulary.fingerprint:
            raise UserError(
                f"--cache={self.cache.directory}: has another vocabulary than {origin.run}; make "
                f"the cache with --vocabulary={origin.run}/vocabulary"
            )
        return translator

    def _config(self, cache: TokenCache, number: int) -> Config:
        """Return the configuration of a round's training: an epoch, unless a binding says more."""
        files, bindings = self.configuration
        config = RunDirectory.open(self.origin.run).config(files, bindings)
        data = dataclasses.replace(config.data, cache=str(cache.directory), tasks=())
        seed = (config.train.seed + number) % 2**32
        model = config.model
        steps = config.train.steps
        if not self._steps_given:
            pipeline = Pipeline(
                cache,
                get_layout(model.layout, model.stage_layers),
                data,
                extras=BatchExtras.of(config),
                seed=seed,
            )
            steps = -(-pipeline.epoch_batches() // config.optimizer.accumulate)
        methods = all_for_resume(config.train.methods)
        settings = dataclasses.replace(config.train, steps=steps, seed=seed, methods=methods)
        return dataclasses.replace(config, data=data, train=settings)

    @property
    def _steps_given(self) -> bool:
        bindings = self.configuration[1]
        return any(binding.replace(" ", "").startswith(_STEPS) for binding in bindings)

    def _training_facts(self) -> dict[str, Any]:
        """Return the settings that decide what a round's training makes of its cache."""
        config = RunDirectory.open(self.origin.run).config(*self.configuration)
        sections = {"Data": config.data, "Optimizer": config.optimizer, "Train": config.train}
        found = {
            f"{title}.{name}": value
            for title, section in sections.items()
            for name, value in as_facts(section).items()
        }
        steps = {"Train.steps": config.train.steps if self._steps_given else "an epoch"}
        return {name: value for name, value in found.items() if name.lower() not in _FREE} | steps

    def _claim(self, folder: Path, translator: Translator) -> None:
        """Record what the rounds are made by, or checks that they are.

        Raises:
            UserError: if they are made by something else.
        """
        file = folder / "back_translation.json"
        if not is_first():
            wait_for_all("claimed")
            if not file.is_file():
                raise UserError(
                    f"--workdir={folder}: is not the folder that process 0 writes to; choose one "
                    "on storage that all processes share"
                )
        job = TranslationJob.create(translator, beam_size=self.beam_size)
        facts = job.provenance() | self._training_facts()
        facts |= BackTranslatedPairs(self.cache, self.draws).facts()
        if not file.is_file():
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise UserError(f"--workdir={folder}: is there already; choose another folder")
            folder.mkdir(parents=True, exist_ok=True)
            write_text(file, json.dumps(facts, indent=1) + "\n")
        if is_first():
            wait_for_all("claimed")
        before = read_object(file, remedy="remove it to start these rounds anew")
        if changed := differing_keys(before, facts):
            raise UserError(
                f"--workdir={folder}: its rounds are made with other settings ({join_names(changed)}); "
                "give the same ones, or choose another folder"
            )


def _own_share() -> WorkShard:
    """Return which sentences are this process's."""
    return WorkShard(jax.process_index(), jax.process_count())


def _wait_for(folder: Path) -> None:
    """Wait until a folder is there, which the last of several processes writes.

    It may take hours longer, or be lost, which ends this one too: nothing is asked of it.
    """
    while not folder.is_dir():
        time.sleep(_LOOK_SECONDS)


def _lines(pairs: BackTranslatedPairs) -> Iterator[Line]:
    """Yield the sentences to translate."""
    for number, (text, own, wanted) in enumerate(pairs.sentences()):
        yield Line(number, text, own, wanted)


def _texts(records: Iterator[Mapping[str, Any]], left: list[int]) -> Iterator[str]:
    """Yield translations, blank where the sentence was cut; `left` takes the numbers of such."""
    for record in records:
        kept = "" if record["truncated"] else record["translation"]
        if not kept.strip():
            left.append(record["line"])
        yield kept


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
