"""Serve a model over HTTP, for clients of LibreTranslate and DeepL.

Settings are flags or environment variables (MNMT_SERVE_PORT=5000). SIGTERM and Ctrl-C end the
server after the requests that it has.
"""

from __future__ import annotations

import argparse
import os
import socket
import threading
import time
from typing import TYPE_CHECKING

from mnmt_jax.commands.common_flags import (
    CommandParser,
    add_beam_size,
    add_gin_flags,
    add_pivot,
    add_step,
    import_modules,
    parse_command_line,
)
from mnmt_jax.errors import UserError, pluralize, say
from mnmt_jax.serving.settings import Settings, add_settings_flags

if TYPE_CHECKING:
    from mnmt_jax.decoding.sentence_job import SentenceJob


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--run", required=True, metavar="RUN", help="run directory of a trained or imported model"
    )
    parser.add_argument(
        "--lid",
        default="lid.176",
        metavar="NAME|FILE",
        help="detector of source languages: lid.176, langdetect or a fastText model; default: "
        "lid.176",
    )
    add_settings_flags(parser)
    add_beam_size(parser)
    add_pivot(parser)
    add_step(parser)
    add_gin_flags(parser)
    return parser


def main() -> None:
    """Load the model and serve it."""
    flags, gin_files, bindings = parse_command_line(make_parser())
    settings = Settings.of_flags(flags)
    try:
        import uvicorn

        from mnmt_jax.serving.app import create_app
    except ImportError as error:
        raise UserError(f"{error.name} is not installed: pip install 'mnmt-jax[serve]'") from error
    import_modules(flags.module_import)
    from mnmt_jax.decoding.sentence_job import SentenceJob
    from mnmt_jax.decoding.translator import Translator
    from mnmt_jax.serving.database import Database
    from mnmt_jax.serving.line_engines import JobEngine
    from mnmt_jax.serving.service import TranslationService
    from mnmt_jax.vocabulary.language_detectors import find_detector

    database = Database(settings.database or None)
    translator = Translator.load(flags.run, flags.step, gin_files=gin_files, bindings=bindings)
    job = SentenceJob.create(translator, pivot=flags.pivot, beam_size=flags.beam_size)
    detector = find_detector(flags.lid)
    service = TranslationService(job, settings, detector, JobEngine(job), database)
    ready = threading.Event()
    application = create_app(service, ready.is_set)
    server = uvicorn.Server(uvicorn.Config(application, log_level="warning"))
    with _listen(settings) as listener:
        languages = pluralize(len(translator.languages), "language")
        port = listener.getsockname()[1]
        say(f"serves {flags.run}, {languages}, on http://{settings.host}:{port}")
        threading.Thread(target=_prepare, args=(job, settings, ready), daemon=True).start()
        try:
            server.run([listener])
        finally:
            service.stop()


def _listen(settings: Settings) -> socket.socket:
    """Return a socket that listens.

    Raises:
        UserError: if the address is in use or not of this machine.
    """
    try:
        return socket.create_server((settings.host, settings.port))
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise UserError(
            f"--host={settings.host} --port={settings.port}: {reason}; choose another"
        ) from error


def _prepare(job: SentenceJob, settings: Settings, ready: threading.Event) -> None:
    """Compile all shapes, and say so."""
    from mnmt_jax.serving.warm_up import warm_up

    start = time.monotonic()
    warm_up(job, settings.window)
    ready.set()
    say(f"ready: all shapes compiled in {time.monotonic() - start:.1f} s")
