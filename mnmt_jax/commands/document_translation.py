"""`mnmt translate --document`: a document is translated as a whole."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mnmt_jax.commands.common_flags import check_retry, import_modules
from mnmt_jax.commands.text_files import check_input_file, check_output_file, is_stream
from mnmt_jax.errors import UserError, join_names, pluralize, say, warn
from mnmt_jax.files.atomic_write import new_path
from mnmt_jax.vocabulary.language_codes import match_code, requested_code

if TYPE_CHECKING:
    from mnmt_jax.decoding.text.sentence_job import SentenceJob
    from mnmt_jax.decoding.text.translated_text import TextToTranslate, TextTranslation
    from mnmt_jax.decoding.translator import Translator

_OF_LINES = (  # flags that only lines use
    *("input", "on_bad_line", "split_sentences", "context", "markup", "format", "checks"),
    *("num_processes", "process_id", "runner"),
)
_PROGRESS_CHUNK = 256  # texts between two steps of the progress bar


def translate_document_file(
    parser: argparse.ArgumentParser,
    flags: argparse.Namespace,
    gin_files: Sequence[str],
    bindings: Sequence[str],
) -> None:
    """Translate the file of `--document` into that of `--output`.

    Args:
        parser: of `mnmt translate`.
        flags: its flags.
        gin_files: paths of gin files.
        bindings: gin bindings.

    Raises:
        UserError: if flags for lines are given, a file cannot be read or written, or the document
            has nothing to translate.
    """
    _check_flags(parser, flags)
    from mnmt_jax.decoding.glossary import Glossary
    from mnmt_jax.decoding.input_checks import warn_same_language
    from mnmt_jax.decoding.translator import Translator
    from mnmt_jax.documents.formats import read_document
    from mnmt_jax.documents.segments import DocumentOptions, texts_to_translate

    import_modules(flags.module_import)
    translator = Translator.load(flags.run, flags.step, gin_files=gin_files, bindings=bindings)
    source = match_code(flags.source, translator.languages, "--source")
    target = match_code(flags.target, translator.languages, "--target")
    warn_same_language(source, target, translator.languages)
    options = DocumentOptions(
        requested_code(flags.target, target),
        requested_code(flags.source, source),
        flags.overwrite_translations,
        warn,
    )
    document = read_document(Path(flags.document).read_bytes(), flags.document, options)
    glossary = Glossary.load(flags.glossary) if flags.glossary else None
    texts = texts_to_translate(document.segments, source, target, glossary)
    results = _translate(_make_job(translator, flags), texts)
    data = document.write([result.text for result in results])
    with new_path(Path(os.path.realpath(flags.output))) as partial:
        partial.write_bytes(data)
    say(f"{flags.output}: {pluralize(len(results), 'text')} translated")
    warn_of_terms(results)


def _make_job(translator: Translator, flags: argparse.Namespace) -> SentenceJob:
    from mnmt_jax.decoding.text.sentence_job import SentenceJob

    return SentenceJob.create(
        translator,
        pivot=flags.pivot,
        beam_size=flags.beam_size,
        retry_off_target=flags.retry_off_target,
        retry_pivot=flags.retry_pivot,
        lid=flags.lid,
    )


def _check_flags(parser: argparse.ArgumentParser, flags: argparse.Namespace) -> None:
    from mnmt_jax.documents.formats import FOR_TRANSLATORS, check_format

    for name in _OF_LINES:
        if getattr(flags, name) != parser.get_default(name):
            raise UserError(f"--{name} is for lines; leave it out with --document")
    if flags.beam:
        raise UserError(
            f"{flags.beam[0]}: flags after '--' are Beam's, which translates lines; leave them out "
            "with --document"
        )
    check_retry(flags)
    check_input_file(flags.document, "--document")
    ending = check_format(flags.document)
    if flags.overwrite_translations and ending not in FOR_TRANSLATORS:
        raise UserError(
            f"--overwrite_translations is for {join_names(FOR_TRANSLATORS)}, whose files have "
            "translations; leave it out"
        )
    if not flags.output or is_stream(flags.output):
        raise UserError(f"--document={flags.document}: name the file to write with --output")
    if Path(flags.output).suffix.lower() != ending:
        raise UserError(f"--output={flags.output}: must end in {ending}, as --document does")
    check_output_file(flags.output, flags.document, "--document")


def _translate(job: SentenceJob, texts: Sequence[TextToTranslate]) -> list[TextTranslation]:
    """Translate texts, and show how many are done."""
    from tqdm import tqdm

    results: list[TextTranslation] = []
    with tqdm(total=len(texts), unit=" texts", file=sys.stderr, disable=None) as bar:
        for start in range(0, len(texts), _PROGRESS_CHUNK):
            part = texts[start : start + _PROGRESS_CHUNK]
            results += job.translate_texts(part, first_number=start)
            bar.update(len(part))
    return results


def warn_of_terms(results: Sequence[TextTranslation]) -> None:
    """Print the terms that are not translated as the glossary demands."""
    missing = dict.fromkeys(term for result in results for term in result.missing_terms)
    forbidden = dict.fromkeys(term for result in results for term in result.forbidden_terms)
    if missing:
        warn(f"terms not translated as the glossary demands: {join_names([*missing])}")
    if forbidden:
        warn(f"forbidden terms in the translation: {join_names([*forbidden])}")
