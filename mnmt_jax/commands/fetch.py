"""Fetches a corpus that packages of Debian hold, and writes it as parallel files."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mnmt_jax.commands.arguments import CommandParser
from mnmt_jax.errors import UserError

if TYPE_CHECKING:
    from mnmt_jax.data.debian_packages import Package

_CORPORA = ("libreoffice_help",)
RECORD = "corpus.json"
"""Name of the file that says what a fetched corpus is made of."""


def make_parser() -> CommandParser:
    """Makes the parser of the command line."""
    parser = CommandParser(
        description="Download packages of Debian with apt-get, unpack them (nothing is installed, "
        "and no rights of root are needed) and write their text as parallel files, with the "
        f"packages' versions and all digests in {RECORD}."
    )
    parser.add_argument("corpus", choices=_CORPORA, metavar="CORPUS", help=" or ".join(_CORPORA))
    parser.add_argument(
        "--output", metavar="DIR", help="folder to write (default: where the corpus is looked for)"
    )
    parser.add_argument(
        "--from",
        dest="source",
        metavar="FOLDER",
        help="take .deb files or unpacked trees from here and download nothing",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a fetched corpus")
    return parser


def main() -> None:
    """Writes the corpus and prints its record as JSON on stdout."""
    arguments = make_parser().parse_args()

    from mnmt_jax.data.help_corpus import write_help_corpus
    from mnmt_jax.data.published_corpora import PUBLISHED
    from mnmt_jax.files.partial import check_output, check_writable, new_folder

    output = Path(arguments.output or PUBLISHED[arguments.corpus].path)
    if arguments.overwrite and (output / RECORD).is_file():
        check_writable(output)
    else:
        check_output(output)
    with (
        _pages(arguments) as (pages, packages),
        new_folder(output, overwrite=arguments.overwrite) as folder,
    ):
        print("reading the pages", file=sys.stderr)
        lines = write_help_corpus(pages, folder)
        record = _record(arguments.corpus, packages, lines, folder)
        (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    summary = {"output": str(output), "packages": record["packages"], "lines": lines}
    print(json.dumps(summary, indent=2))


@contextlib.contextmanager
def _pages(arguments: argparse.Namespace) -> Iterator[tuple[dict[str, Path], list[Package]]]:
    """Gives the folder of each language's pages, and the packages unpacked for them.

    Raises:
        UserError: if a language's pages are not to be had.
    """
    import tempfile

    from mnmt_jax.data import help_corpus
    from mnmt_jax.data.debian_packages import download_packages, unpack_package

    names = {code: help_corpus.help_package(code) for code in help_corpus.HELP_LANGUAGES}
    remedy = f"give the packages' files, {' '.join(names.values())}, with --from FOLDER"
    with tempfile.TemporaryDirectory(prefix="mnmt_jax-") as temporary:
        tree, folder = Path(temporary) / "tree", Path(arguments.source or temporary)
        if not folder.is_dir():
            what = "is a file, not a folder" if folder.is_file() else "no such folder"
            raise UserError(f"--from={folder}: {what}; {remedy}")
        if not arguments.source:
            print(f"downloading {len(names)} packages", file=sys.stderr)
            download_packages(list(names.values()), folder, remedy)
        files = [_package_file(folder, name) for name in names.values()]
        packages = [
            unpack_package(file, tree, "copy or download the file again") for file in files if file
        ]
        found = {code: help_corpus.find_pages(code, [tree, folder]) for code in names}
        if missing := [names[code] for code, pages in found.items() if pages is None]:
            raise UserError(f"{folder}: no pages of {missing[0]}, packed or unpacked; {remedy}")
        yield {code: pages for code, pages in found.items() if pages}, packages


def _package_file(folder: Path, name: str) -> Path | None:
    """Returns the file of a package; None if it is not there.

    Raises:
        UserError: if there are several.
    """
    files = sorted(folder.glob(f"{name}_*.deb"))
    if len(files) > 1:
        raise UserError(f"{folder}: {files[0].name} and {files[1].name}; leave one of them")
    return files[0] if files else None


def _record(
    corpus: str, packages: list[Package], lines: dict[str, int], folder: Path
) -> dict[str, object]:
    """Returns what the corpus is made of, and lines and digest of each of its files."""
    import dataclasses

    from mnmt_jax.data.debian_packages import sha256_of

    return {
        "corpus": corpus,
        "packages": [dataclasses.asdict(package) for package in packages],
        "files": {
            name: {"lines": count, "sha256": sha256_of(folder / name)}
            for name, count in lines.items()
        },
    }
