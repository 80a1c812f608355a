"""Debian packages as a source of text: downloaded and unpacked, never installed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mnmt_jax.errors import UserError


@dataclass(frozen=True)
class Package:
    """A package file: what it calls itself, and its digest."""

    name: str
    version: str
    sha256: str


def download_packages(names: Sequence[str], folder: Path, remedy: str) -> None:
    """Downloads the packages that the machine's own sources offer; needs no rights of root.

    Args:
        names: of packages.
        folder: to put the files into.
        remedy: what else the user can do, for errors.

    Raises:
        UserError: if apt-get is not there or fails: what it says.
    """
    _run(
        ["apt-get", "download", *names], folder, f"'apt-get update' (as root) may help, or {remedy}"
    )


def unpack_package(file: Path, folder: Path, remedy: str) -> Package:
    """Unpacks a package file without installing it.

    Args:
        file: whose name ends in `.deb`.
        folder: to unpack into, made if absent.
        remedy: what the user can do, for errors.

    Raises:
        UserError: if dpkg-deb is not there, or fails: what it says of which file.
    """
    form = "--showformat=${Package}\t${Version}"
    said = _run(["dpkg-deb", form, "-W", str(file)], file.parent, remedy, about=f"{file}: ")
    _run(["dpkg-deb", "-x", str(file), str(folder)], file.parent, remedy, about=f"{file}: ")
    name, _, version = said.partition("\t")
    return Package(name, version, sha256_of(file))


def sha256_of(file: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal digits."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _run(command: Sequence[str], folder: Path, remedy: str, *, about: str = "") -> str:
    """Runs a program and returns what it prints.

    Args:
        command: the program and its arguments.
        folder: to run it in.
        remedy: what the user can do, for errors.
        about: what stands before an error of the program.

    Raises:
        UserError: if it is not there, or fails.
    """
    program = shutil.which(command[0])
    if program is None:
        raise UserError(
            f"{command[0]} is not on this machine, which needs to be like Debian; {remedy}"
        )
    done = subprocess.run(
        [program, *command[1:]],
        cwd=folder,
        env=os.environ | {"LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["says nothing"]
        raise UserError(f"{about}{command[0]} failed ({said[-1].strip()}); {remedy}")
    return done.stdout
