"""Experiments as data: arms, tuning grids, seeds and decodings, and their resumable execution.

An experiment has vocabularies, token caches and arms. An arm is a model with gin bindings. Each
candidate of its grid is trained with the first seed; the candidate with the lowest supervised
validation loss is trained with the other seeds. Every run is evaluated at its best checkpoint.
Finished work is not repeated, also on another machine that has its recorded results. An interrupted
training resumes at its last checkpoint.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mnmt_jax.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
PLAIN = "plain"  # name of the decoding without extra flags


@dataclasses.dataclass(frozen=True)
class Cache:
    """A token cache.

    Attributes:
        flags: flags of `mnmt cache`, without vocabulary and output.
        vocabulary: key of `Experiment.vocabularies`.
        also: caches whose tasks are included.
    """

    flags: tuple[str, ...]
    vocabulary: str = "vocabulary"
    also: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Arm:
    """A system under test.

    Attributes:
        model: file name in `gin_configs/models`, without `.gin`.
        bindings: gin bindings of every run of the arm.
        grid: candidate bindings; if empty, the grid of the experiment.
        tuned_as: arm whose chosen candidate is used; no candidates are trained.
        cache: key of `Experiment.caches`.
        sources: name in `--initialize_from` -> arm; the run with the same seed is the source run.
        decodings: name -> flags of `mnmt evaluate`; `plain` has none.
        steps: updates; if 0, those of the experiment.
        seeds: if empty, the seeds of the experiment.
        evaluated: False for runs that are only source runs, such as language models.
        compared_with: arm of the same data that it is compared with; if empty, the first one.
    """

    model: str
    bindings: tuple[str, ...] = ()
    grid: tuple[tuple[str, ...], ...] = ()
    tuned_as: str = ""
    cache: str = "cache"
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)
    decodings: Mapping[str, tuple[str, ...]] = dataclasses.field(
        default_factory=lambda: {PLAIN: ()}
    )
    steps: int = 0
    seeds: tuple[int, ...] = ()
    evaluated: bool = True
    compared_with: str = ""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A table of arms on one corpus.

    Attributes:
        title: heading of the table.
        task: test corpus, `--task` of `mnmt evaluate`.
        run: file name in `gin_configs/runs`, without `.gin`.
        vocabularies: name -> flags of `mnmt vocabulary`.
        caches: name -> cache.
        bindings: gin bindings of every run.
        grid: candidate bindings of the arms without a grid.
        steps: updates per run.
        every: updates between validations, and between checkpoints.
        seeds: seeds of the arms without seeds.
        limit: test sentences per direction; 0 is all.
        arms: name -> arm.
        evaluate: flags of `mnmt evaluate` in every evaluation.
        levels: values of the supervised nll at which arms are compared.
    """

    title: str
    task: str
    run: str
    vocabularies: Mapping[str, tuple[str, ...]]
    caches: Mapping[str, Cache]
    bindings: tuple[str, ...]
    grid: tuple[tuple[str, ...], ...]
    steps: int
    every: int
    seeds: tuple[int, ...]
    limit: int
    arms: Mapping[str, Arm]
    evaluate: tuple[str, ...] = ()
    levels: tuple[float, ...] = ()

    def seeds_of(self, arm: Arm) -> tuple[int, ...]:
        """Return the seeds of an arm."""
        return arm.seeds or self.seeds

    def grid_of(self, arm: Arm) -> tuple[tuple[str, ...], ...]:
        """Return the candidates of an arm."""
        return arm.grid or self.grid or ((),)


@dataclasses.dataclass
class Job:
    """A unit of work of a worker.

    Attributes:
        name: unique.
        needs: names of the jobs that must finish before.
        action: called with the cores of the worker; returns at once if the work is already done.
    """

    name: str
    needs: tuple[str, ...]
    action: Callable[[Sequence[int]], None]


class Workspace:
    """Folder of an experiment and the jobs that write it.

    Attributes:
        recorded: results of runs that may have finished in another folder, from
            `claim_summary.summarize`: their losses and scores count, so they are not repeated.
    """

    def __init__(
        self, folder: Path, experiment: Experiment, recorded: Mapping[str, Any] | None = None
    ) -> None:
        """Open the folder; it may not exist yet."""
        self.folder = folder.resolve()
        self.experiment = experiment
        self.recorded = dict((recorded or {}).get("arms", {}))

    def run(self, arm: str, candidate: int, seed: int) -> Path:
        """Return the run directory of an arm."""
        return self.folder / arm / f"candidate{candidate}_seed{seed}"

    def losses(self, arm: str) -> list[float | None]:
        """Return the lowest supervised validation loss of each candidate, with the first seed."""
        seed = self.experiment.seeds_of(self.experiment.arms[arm])[0]
        candidates = range(len(self.experiment.grid_of(self.experiment.arms[arm])))
        losses = [best_loss(self.run(arm, number, seed)) for number in candidates]
        recorded = self.recorded.get(arm, {}).get("losses", [])
        if len(recorded) != len(losses):
            return losses
        return [old if new is None else new for new, old in zip(losses, recorded, strict=True)]

    def choice(self, arm: str) -> int:
        """Return the number of the candidate with the lowest loss.

        Raises:
            UserError: if a candidate was not trained.
        """
        if other := self.experiment.arms[arm].tuned_as:
            return self.choice(other)
        losses = self.losses(arm)
        if len(losses) == 1:
            return 0
        known = [loss for loss in losses if loss is not None]
        if len(known) < len(losses):
            raise UserError(f"{arm}: a candidate has no validation loss yet")
        return losses.index(min(known))

    def chosen(self, name: str) -> list[str]:
        """Return the bindings of the chosen candidate of an arm.

        Raises:
            UserError: if a candidate was not trained.
        """
        return list(self.experiment.grid_of(self.experiment.arms[name])[self.choice(name)])

    def recorded_runs(self, name: str) -> dict[str, Any]:
        """Return the recorded results of an arm by seed; empty if another candidate was chosen.

        Raises:
            UserError: if a candidate was not trained.
        """
        recorded = self.recorded.get(name, {})
        return dict(recorded["seeds"]) if recorded.get("chosen") == self.chosen(name) else {}

    def is_recorded(self, name: str, seed: int) -> bool:
        """Return whether the recorded results have all scores of a run."""
        arm = self.experiment.arms[name]
        scores = self.recorded_runs(name).get(str(seed), {}).get("scores", {})
        return arm.evaluated and set(arm.decodings) <= set(scores)

    def jobs(self, names: Sequence[str]) -> list[Job]:
        """Return the jobs of some arms: seed by seed, candidates before runs of the chosen one."""
        experiment, jobs = self.experiment, dict[str, Job]()
        arms = {name: experiment.arms[name] for name in self._with_sources(names)}
        for name, arm in arms.items():
            candidates = range(len(experiment.grid_of(arm)))
            if len(candidates) > 1 and not arm.tuned_as:
                seed = experiment.seeds_of(arm)[0]
                for number in candidates:
                    job = self._name(f"{name} candidate {number}")
                    needs = [self._job(source, seed) for source in arm.sources.values()]
                    action = functools.partial(self._try, name, number, seed)
                    jobs[job] = Job(job, (*self._prepared(arm.cache, jobs), *needs), action)
        rounds = max(len(experiment.seeds_of(arm)) for arm in arms.values())
        for seed_index in range(rounds):
            for name, arm in arms.items():
                seeds = experiment.seeds_of(arm)
                if seed_index >= len(seeds):
                    continue
                job = self._job(name, seeds[seed_index])
                tuned, candidates = arm.tuned_as or name, range(len(experiment.grid_of(arm)))
                candidate_jobs = [
                    self._name(f"{tuned} candidate {number}") for number in candidates
                ]
                needs = [candidate for candidate in candidate_jobs if candidate in jobs]
                needs += [self._job(source, seeds[seed_index]) for source in arm.sources.values()]
                action = functools.partial(self._finish, name, seeds[seed_index])
                jobs[job] = Job(job, (*self._prepared(arm.cache, jobs), *needs), action)
        return list(jobs.values())

    def _with_sources(self, names: Sequence[str]) -> list[str]:
        ordered = dict[str, None]()
        for name in names:
            arm = self.experiment.arms[name]
            needs = (*arm.sources.values(), *filter(None, [arm.tuned_as]), name)
            ordered |= dict.fromkeys(needs)
        return list(ordered)

    def _job(self, arm: str, seed: int) -> str:
        return self._name(f"{arm} seed {seed}")

    def _name(self, work: str) -> str:
        return f"{self.folder.name} {work}"

    def _prepared(self, cache: str, jobs: dict[str, Job]) -> tuple[str, ...]:
        """Add the jobs of a cache and of its vocabulary; return the name of the cache's job."""
        definition = self.experiment.caches[cache]
        vocabulary = self.folder / definition.vocabulary
        vocabulary_job = self._name(definition.vocabulary)
        if vocabulary_job not in jobs:
            flags = self.experiment.vocabularies[definition.vocabulary]
            command = ["train_vocabulary", *flags, f"--output={vocabulary}"]
            jobs[vocabulary_job] = Job(
                vocabulary_job, (), functools.partial(self._make, vocabulary, command)
            )
        name = self._name(cache)
        if name not in jobs:
            also = [job for other in definition.also for job in self._prepared(other, jobs)]
            flags = (
                *definition.flags,
                *(f"--also={self.folder / other}" for other in definition.also),
            )
            target = self.folder / cache
            command = ["cache_tasks", f"--vocabulary={vocabulary}", *flags, f"--output={target}"]
            action = functools.partial(self._make, target, command)
            jobs[name] = Job(name, (vocabulary_job, *also), action)
        return (name,)

    def _make(self, target: Path, command: list[str], cores: Sequence[int]) -> None:
        if not target.is_dir():
            self._call(command, target.name, cores)

    def _try(self, name: str, candidate: int, seed: int, cores: Sequence[int]) -> None:
        if self.losses(name)[candidate] is None:
            self._train(name, candidate, seed, cores)

    def _finish(self, name: str, seed: int, cores: Sequence[int]) -> None:
        if self.is_recorded(name, seed):
            return
        candidate = self.choice(name)
        self._train(name, candidate, seed, cores)
        arm = self.experiment.arms[name]
        for decoding, flags in arm.decodings.items() if arm.evaluated else ():
            self._evaluate(self.run(name, candidate, seed), decoding, flags, cores)

    def _train(self, name: str, candidate: int, seed: int, cores: Sequence[int]) -> None:
        experiment, run = self.experiment, self.run(name, candidate, seed)
        arm = experiment.arms[name]
        steps = arm.steps or experiment.steps
        if (run / "finished").is_file():
            return
        bindings = (*experiment.bindings, *arm.bindings, *experiment.grid_of(arm)[candidate])
        # The last binding of a key wins.
        unique = {binding.split("=")[0]: f"--gin.{binding}" for binding in bindings}
        sources = [
            f"--initialize_from={key}={self.run(source, self.choice(source), seed)}"
            for key, source in arm.sources.items()
        ]
        command = [
            "train",
            f"--workdir={run}",
            f"--gin_file=gin_configs/models/{arm.model}.gin",
            f"--gin_file=gin_configs/runs/{experiment.run}.gin",
            f"--gin.Data.cache='{self.folder / arm.cache}'",
            f"--gin.Train.steps={steps}",
            f"--gin.Train.eval_every={experiment.every}",
            f"--gin.Train.save_every={experiment.every}",
            f"--gin.Train.seed={seed}",
            *unique.values(),
            *sources,
        ]
        self._call(command, f"{name}_{candidate}_{seed}", cores)
        (run / "finished").touch()

    def _evaluate(
        self, run: Path, decoding: str, flags: tuple[str, ...], cores: Sequence[int]
    ) -> None:
        experiment, report = self.experiment, run / f"report_{decoding}"
        if (report / "scores.json").is_file():
            return
        limit = [f"--limit={experiment.limit}"] if experiment.limit else []
        step = [] if any(flag.startswith("--step") for flag in flags) else ["--step=best"]
        command = ["evaluate", f"--run={run}", f"--task={experiment.task}", *limit, *step]
        command += [*experiment.evaluate, *flags, f"--output={report}"]
        self._call(command, f"{run.parent.name}_{run.name}_{decoding}", cores)

    def _call(self, command: Sequence[str], name: str, cores: Sequence[int]) -> None:
        """Run a script on some cores, with its output in a log file.

        Raises:
            UserError: if it fails; the message names the log.
        """
        logs = self.folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        script, *arguments = command
        path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        with (logs / f"{script}_{name}.log").open("a", encoding="utf-8") as log:
            process = subprocess.Popen(
                [sys.executable, f"scripts/{script}.py", *arguments],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
                preexec_fn=lambda: os.sched_setaffinity(0, cores) if cores else None,
            )
            status = process.wait()
        if status:
            raise UserError(f"{script} ended with {status}; see {log.name}")


def best_loss(run: Path) -> float | None:
    """Return the lowest supervised validation loss of a run; None if it is not finished."""
    if not (run / "finished").is_file():
        return None
    validations = (record["validation"] for record in logged(run) if "validation" in record)
    return min(validation["supervised"]["loss"] for validation in validations)


def logged(run: Path) -> list[dict]:
    """Return the records of a run's metrics."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


class Queue:
    """Job queue: workers receive jobs in order, once the jobs that these need have finished."""

    def __init__(self, jobs: Sequence[Job], on_finish: Callable[[], None]) -> None:
        self._waiting = {job.name: job for job in jobs}
        self._on_finish = on_finish
        self._state = dict[str, str]()
        self._changed = threading.Condition()

    @property
    def failed(self) -> int:
        """Number of failed and skipped jobs."""
        return sum(state == "failed" for state in self._state.values())

    def work(self, cores: Sequence[int]) -> None:
        """Run jobs until the queue is empty."""
        while job := self._next():
            start, message = time.monotonic(), ""
            try:
                job.action(cores)
            except (UserError, OSError) as error:
                message = f": {error}"
            self._finish(job, time.monotonic() - start, message)

    def _next(self) -> Job | None:
        """Return the next ready job, waiting for it if necessary; None if no job is left."""
        with self._changed:
            while self._waiting:
                self._skip()
                for job in self._waiting.values():
                    if all(self._state.get(need) == "done" for need in job.needs):
                        return self._waiting.pop(job.name)
                if self._waiting:
                    self._changed.wait()
            return None

    def _skip(self) -> None:
        """Mark jobs whose needs have failed as failed; jobs that need these follow."""
        for job in list(self._waiting.values()):
            if any(self._state.get(need) == "failed" for need in job.needs):
                self._state[job.name] = "failed"
                del self._waiting[job.name]
                say(f"skipped {job.name}: a job that it needs failed")

    def _finish(self, job: Job, seconds: float, message: str) -> None:
        with self._changed:
            self._state[job.name] = "failed" if message else "done"
            self._on_finish()
            if seconds > 1 or message:
                say(f"{self._state[job.name]} {job.name} in {seconds:,.0f} s{message}")
            self._changed.notify_all()


def execute(jobs: Sequence[Job], workers: int, on_finish: Callable[[], None] = lambda: None) -> int:
    """Run jobs after those that they need; return the number of failed and skipped jobs.

    Args:
        jobs: in order of priority.
        workers: number of parallel jobs; on CPUs they divide the cores of this process.
        on_finish: called after each job, by one worker at a time.
    """
    queue = Queue(jobs, on_finish)
    on_cpu = os.environ.get("JAX_PLATFORMS", "cpu") == "cpu"
    cores = sorted(os.sched_getaffinity(0)) if on_cpu else []
    cores_by_worker = [cores[number::workers] for number in range(workers)]
    threads = [
        threading.Thread(target=queue.work, args=(worker_cores,))
        for worker_cores in cores_by_worker
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return queue.failed


def say(line: str) -> None:
    """Print a line with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)
