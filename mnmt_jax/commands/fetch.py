"""Download a corpus from Debian packages and write it as parallel files."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mnmt_jax.commands.common_flags import CommandParser
from mnmt_jax.errors import UserError

if TYPE_CHECKING:
    from mnmt_jax.data.debian_packages import Package

_CORPORA = ("libreoffice_help",)
RECORD = "corpus.json"
"""Name of the file that records the sources of a fetched corpus."""
_WORK = "packages"  # folder of downloads and unpacked trees, inside the temporary output folder


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(
        description="Download Debian packages with apt-get, unpack them (nothing is installed, and "
        f"root is not needed) and write their text as parallel files. {RECORD} records the "
        "packages' versions and all digests."
    )
    parser.add_argument("corpus", choices=_CORPORA, metavar="CORPUS", help=" or ".join(_CORPORA))
    parser.add_argument(
        "--output",
        metavar="DIR",
        help="folder to write (default: where `mnmt cache` looks for the corpus)",
    )
    parser.add_argument(
        "--from",
        dest="source",
        metavar="FOLDER",
        help="folder with .deb files or unpacked packages to use instead of a download",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a fetched corpus")
    return parser


def main() -> None:
    """Write the corpus and print its record as JSON on stdout."""
    arguments = make_parser().parse_args()

    from mnmt_jax.data.libreoffice_corpus import write_help_corpus
    from mnmt_jax.data.published_corpora import PUBLISHED
    from mnmt_jax.files.atomic_write import (
        check_output,
        check_replaceable,
        new_folder,
    )

    output = Path(arguments.output or PUBLISHED[arguments.corpus].path)
    if arguments.overwrite and (output / RECORD).is_file():
        check_replaceable(output)
    else:
        check_output(output)
    with new_folder(output, overwrite=arguments.overwrite) as folder:
        pages, packages = _pages(arguments, folder / _WORK)
        print("reading the pages", file=sys.stderr)
        lines = write_help_corpus(pages, folder)
        shutil.rmtree(folder / _WORK)
        record = _record(arguments.corpus, packages, lines, folder)
        (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    summary = {"output": str(output), "packages": record["packages"], "lines": lines}
    print(json.dumps(summary, indent=2))


def _pages(arguments: argparse.Namespace, work: Path) -> tuple[dict[str, Path], list[Package]]:
    """Download and unpack packages.

    Args:
        arguments: parsed arguments.
        work: folder to create, for downloads and one unpacked tree per package.

    Returns:
        The folder of each language's pages, and the unpacked packages.

    Raises:
        UserError: if a language's pages are missing, or a package is damaged or unsafe.
    """
    from mnmt_jax.data import libreoffice_corpus
    from mnmt_jax.data.debian_packages import download_packages, unpack_package

    names = {
        code: libreoffice_corpus.help_package(code) for code in libreoffice_corpus.HELP_LANGUAGES
    }
    remedy = f"give a folder with the package files {' '.join(names.values())} with --from FOLDER"
    work.mkdir()
    folder = Path(arguments.source) if arguments.source else work
    if not folder.is_dir():
        problem = "is a file, not a folder" if folder.is_file() else "no such folder"
        raise UserError(f"--from={folder}: {problem}; {remedy}")
    if not arguments.source:
        print(f"downloading {len(names)} packages", file=sys.stderr)
        download_packages(list(names.values()), folder, remedy)
    packages, pages = [], {}
    for code, name in names.items():
        trees = [folder]
        if file := _package_file(folder, name):
            trees = [work / f"tree-{code}"]
            file_remedy = "copy or download the file again"
            packages.append(
                unpack_package(
                    file, trees[0], subpath=libreoffice_corpus.HELP_PATH, remedy=file_remedy
                )
            )
        elif not arguments.source:
            trees = []
        page_folder = libreoffice_corpus.find_page_folder(code, trees)
        if page_folder is None:
            raise UserError(f"{folder}: no pages of {name}, packed or unpacked; {remedy}")
        pages[code] = page_folder
    return pages, packages


def _package_file(folder: Path, name: str) -> Path | None:
    """Return the file of a package; None if there is none.

    Raises:
        UserError: if several files match.
    """
    files = sorted(folder.glob(f"{name}_*.deb"))
    if len(files) > 1:
        raise UserError(
            f"{folder}: has both {files[0].name} and {files[1].name}; remove one of them"
        )
    return files[0] if files else None


def _record(
    corpus: str, packages: list[Package], lines: dict[str, int], folder: Path
) -> dict[str, object]:
    """Return the record of the corpus: its packages, and lines and digest of each of its files."""
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
