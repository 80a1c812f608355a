"""Serve models over HTTP, for clients of LibreTranslate and DeepL.

With several models, a direction goes to the first that has both languages; a request chooses
another by the field `model` or the path `/models/NAME/translate`. Settings are flags or environment
variables (MNMT_SERVE_PORT=5000). SIGTERM and Ctrl-C end the server after the requests that it has.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from mnmt_jax.commands.common_flags import (
    CommandParser,
    add_beam_size,
    add_gin_flags,
    add_pivot,
    add_step,
    import_modules,
    parse_command_line,
)
from mnmt_jax.errors import UserError, install_remedy, pluralize, say
from mnmt_jax.runtime.processors import count_processors
from mnmt_jax.runtime.run_command import signal_status
from mnmt_jax.serving.model_names import name_runs
from mnmt_jax.serving.settings import Replacing, Settings, add_settings_flags, add_variables
from mnmt_jax.vocabulary.detector_names import LANGDETECT, LID176

if TYPE_CHECKING:
    from mnmt_jax.decoding.text.sentence_job import SentenceJob

_VARIABLES = ("run", "lid", "beam_size", "pivot", "step")
"""Flags that are also variables, beside those of `Settings`."""


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--run",
        required=True,
        action=Replacing,
        metavar="[NAME=]RUN",
        help="run directory of a trained or imported model, and its name in requests; default: the "
        "name of the directory; repeat it for several models, or separate them by commas in the "
        "variable",
    )
    parser.add_argument(
        "--lid",
        default=LID176,
        metavar="NAME|FILE",
        help=f"detector of source languages: {LID176}, {LANGDETECT} or a fastText model; default: "
        f"{LID176}",
    )
    add_settings_flags(parser)
    add_beam_size(parser)
    add_pivot(parser)
    add_step(parser)
    add_variables(parser, _VARIABLES)
    add_gin_flags(parser)
    return parser


def main() -> int | None:
    """Load the models and serve them; return the status of SIGTERM if that ends the server."""
    flags, gin_files, bindings = parse_command_line(make_parser())
    settings, runs = Settings.of_flags(flags), name_runs(flags.run)
    try:
        from mnmt_jax.serving.app import create_app
        from mnmt_jax.serving.connections import Server, make_config
    except ImportError as error:
        raise UserError(f"{error.name} is not installed; {install_remedy('serve')}") from error
    _limit_threads(settings)
    import_modules(flags.module_import)
    from mnmt_jax.serving.database import Database
    from mnmt_jax.serving.service import TranslationService
    from mnmt_jax.vocabulary.language_detectors import find_detector

    database = Database(settings.database or None)
    jobs = {name: _load_job(run, flags, gin_files, bindings) for name, run in runs.items()}
    if settings.engine == "ctranslate2":
        jobs = {name: _exported(job, settings) for name, job in jobs.items()}
    service = TranslationService(jobs, settings, find_detector(flags.lid), database)
    ready = threading.Event()
    application = create_app(service, ready.is_set)
    server = Server(make_config(application, settings), service.documents, settings.timeout)
    with _listen(settings) as listener:
        _say_served(runs, jobs, settings, _address(listener, settings))
        if not settings.database:
            say(
                "glossaries and usage are kept in memory until the server ends; "
                "--database keeps them"
            )
        threading.Thread(target=_prepare, args=(jobs, settings, ready), daemon=True).start()
        # The threads of HTTP and of the search hand the interpreter over often; its default of 5 ms
        # is as long as a small search.
        sys.setswitchinterval(1e-4)
        # uvicorn raises the signal again when it has stopped.
        signal.signal(signal.SIGTERM, _terminate)
        try:
            server.run([listener])
        except _Terminated as terminated:
            return terminated.code
        finally:
            service.stop()
    return None


class _Terminated(SystemExit):
    """The end of the server by a signal."""

    code: int


def _terminate(number: int, _: object) -> NoReturn:
    """End the command as the default handler of a signal does, but after `finally`."""
    raise _Terminated(signal_status(number))


def _limit_threads(
    settings: Settings, variables: MutableMapping[str, str] = os.environ, processors: int = 0
) -> None:
    """Divide the processors between the programs that JAX runs at a time on CPUs.

    Args:
        settings: number of threads or of parallel searches.
        variables: the environment, which JAX reads when it starts; `PJRT_NPROC` there stays unless
            there is a flag.
        processors: number of processors; 0 for those of this process.
    """
    if settings.engine != "jax" or (settings.replicas > 1 and not settings.threads):
        return
    from mnmt_jax.decoding.translation_job import SEARCHES_ON_CPU

    searches = settings.parallel_searches or SEARCHES_ON_CPU
    threads = max(1, (processors or count_processors()) // searches)
    if settings.threads:
        variables["PJRT_NPROC"] = str(settings.threads)
    else:
        variables.setdefault("PJRT_NPROC", str(threads))


def _load_job(
    run: str, flags: argparse.Namespace, gin_files: Sequence[str], bindings: Sequence[str]
) -> SentenceJob:
    """Return the job of a run.

    Raises:
        UserError: if the run cannot be served with these settings.
    """
    from mnmt_jax.decoding.text.sentence_job import SentenceJob
    from mnmt_jax.decoding.translator import Translator

    files: Any = {"gin_files": gin_files, "bindings": bindings}
    if flags.replicas > 1:
        translator = Translator.load_replicas(run, flags.replicas, flags.step, **files)
    else:
        translator = Translator.load(run, flags.step, **files)
    job = SentenceJob.create(
        translator,
        pivot=flags.pivot,
        beam_size=flags.beam_size,
        retry_off_target=flags.retry_off_target,
        retry_pivot=flags.retry_pivot or None,
        lid=flags.lid,
    )
    job.refuse_source_contrast(f"--run={run}", "a server")
    return job


def _exported(job: SentenceJob, settings: Settings) -> SentenceJob:
    """Return a job that searches with CTranslate2.

    Raises:
        UserError: with the run, if CTranslate2 has no such model or search.
    """
    from mnmt_jax.interop.ctranslate2_job import CTranslate2Job

    try:
        return CTranslate2Job.of(job, settings.compute_type, settings.threads)
    except UserError as error:
        raise UserError(f"--run={job.pretrained.run}: {error}; or use --engine=jax") from error


def _say_served(
    runs: Mapping[str, str], jobs: Mapping[str, SentenceJob], settings: Settings, address: str
) -> None:
    """Print which models are served, by what, and where."""
    engine = "" if settings.engine == "jax" else f" by {settings.engine} ({settings.compute_type})"
    if settings.replicas > 1:
        engine = f" in {settings.replicas} replicas"
    for name, run in runs.items():
        languages = pluralize(len(jobs[name].pretrained.languages), "language")
        say(f"serves {run} as {name}{engine}, {languages}, on {address}")


def _listen(settings: Settings) -> socket.socket:
    """Return a socket that listens; `::` takes connections of IPv4, too.

    Raises:
        UserError: if the address is in use, unknown or not of this machine.
    """
    address = settings.host, settings.port
    try:
        if ":" not in settings.host:
            return socket.create_server(address)
        both = socket.has_dualstack_ipv6()
        return socket.create_server(address, family=socket.AF_INET6, dualstack_ipv6=both)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while ")[0]  # as Python completes it
        raise UserError(
            f"--host={settings.host} --port={settings.port}: {reason}; choose another"
        ) from error


def _address(listener: socket.socket, settings: Settings) -> str:
    """Return the address of the server as clients write it."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{listener.getsockname()[1]}"


def _prepare(jobs: Mapping[str, SentenceJob], settings: Settings, ready: threading.Event) -> None:
    """Compile all shapes of the engine, and say so."""
    from mnmt_jax.serving.warm_up import freeze_garbage_collection, warm_up

    start = time.monotonic()
    searches = [search for job in jobs.values() for search in job.searches]
    for replica in (replica for search in searches for replica in search.replicas):
        warm_up(replica, settings.window)
    freeze_garbage_collection()
    ready.set()
    say(f"ready: all shapes compiled in {time.monotonic() - start:.1f} s")
