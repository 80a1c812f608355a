"""Debian packages as a source of text: downloaded and unpacked, never installed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

from mnmt_jax.errors import UserError

_LOCALE = {"LC_ALL": "C.UTF-8"}

MAX_UNPACKED_BYTES = 1 << 30
"""Largest total size of the files in one package; a package of help pages has some 35 MB."""

MAX_MEMBERS = 1_000_000
"""Largest number of files, folders and links in one package."""


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


def unpack_package(file: Path, folder: Path, *, under: str, remedy: str) -> Package:
    """Unpack the regular files below one path of a package, without installing it.

    Nothing is written outside of `folder`: links are never created, names with `..` are refused.

    Args:
        file: whose name ends in `.deb`.
        folder: to unpack into; must not exist yet, so that packages cannot share a tree.
        under: path within the package, such as "usr/share/doc"; all else is skipped.
        remedy: what the user can do, for errors.

    Raises:
        UserError: if dpkg-deb is not there or fails, a member's name or link leads out of the
            package, or the package is larger than `MAX_UNPACKED_BYTES` or `MAX_MEMBERS`.
    """
    file = file.absolute()
    form = "--showformat=${Package}\t${Version}"
    said = _run(["dpkg-deb", form, "-W", str(file)], file.parent, remedy, about=f"{file}: ")
    folder.mkdir(parents=True)
    with _package_members(file, remedy) as archive:
        _unpack(archive, folder, under, f"{file}")
    name, _, version = said.partition("\t")
    return Package(name, version, sha256_of(file))


@contextlib.contextmanager
def _package_members(file: Path, remedy: str) -> Iterator[tarfile.TarFile]:
    """Open the files of a package as a stream of tar.

    Raises:
        UserError: if dpkg-deb is not there, or it or tar's reader fails.
    """
    command = [_program("dpkg-deb", remedy), "--fsys-tarfile", str(file)]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env=os.environ | _LOCALE
        ) as process,
    ):
        trouble = ""
        try:
            with tarfile.open(fileobj=cast(IO[bytes], process.stdout), mode="r|") as archive:
                yield archive
        except (tarfile.TarError, EOFError) as error:
            trouble = str(error)
        except BaseException:
            process.kill()
            raise
        for _ in iter(lambda: cast(IO[bytes], process.stdout).read(1 << 16), b""):
            pass  # what tar appends to the last member, so that dpkg-deb ends by itself
        if process.wait() or trouble:
            errors.seek(0)
            lines = errors.read(1 << 16).decode(errors="replace").splitlines()
            raise _failed("dpkg-deb", lines or [trouble], f"{file}: ", remedy)


def _unpack(archive: tarfile.TarFile, folder: Path, under: str, name: str) -> None:
    """Write the regular files below a path of an archive.

    Raises:
        UserError: if a member is unsafe or the archive too large.
    """
    size = 0
    for number, member in enumerate(archive, start=1):
        archive.members = []  # type: ignore[attr-defined]  # tarfile keeps all otherwise
        size += member.size
        if number > MAX_MEMBERS or size > MAX_UNPACKED_BYTES:
            raise UserError(
                f"{name}: holds more than {MAX_MEMBERS:,} files or {MAX_UNPACKED_BYTES >> 20} MiB; "
                "this is not a package of help pages"
            )
        path = PurePosixPath(member.name)
        if flaw := _member_flaw(member, path, under):
            raise UserError(f"{name}: {member.name!r} {flaw}; do not use this package")
        content = archive.extractfile(member) if member.isreg() else None
        if content is None or not path.is_relative_to(under):
            continue
        try:
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with content, target.open("xb") as output:
                shutil.copyfileobj(content, output)
        except (FileExistsError, NotADirectoryError):
            raise UserError(
                f"{name}: {member.name!r} is in it twice; do not use this package"
            ) from None


def _member_flaw(member: tarfile.TarInfo, path: PurePosixPath, under: str) -> str:
    """Return what makes a member unsafe; empty if nothing does."""
    if path.is_absolute() or ".." in path.parts:
        return "leads out of the package"
    if not member.name.isprintable():
        return "has control characters or is not UTF-8"
    if member.issym() or member.islnk():
        base = posixpath.dirname(member.name) if member.issym() else ""
        target = posixpath.normpath(posixpath.join(base, member.linkname))
        if target.startswith(("/", "../")) or target == "..":
            return f"is a link that leads out of the package, to {member.linkname!r}"
    inside = path.is_relative_to(under) or PurePosixPath(under).is_relative_to(path)
    if inside and not (member.isreg() or member.isdir()):
        return "is neither a file nor a folder"
    return ""


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
    done = subprocess.run(
        [_program(command[0], remedy), *command[1:]],
        cwd=folder,
        env=os.environ | _LOCALE,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode:
        raise _failed(command[0], done.stderr.splitlines(), about, remedy)
    return done.stdout


def _program(name: str, remedy: str) -> str:
    """Return the path of a program.

    Raises:
        UserError: if it is not on this machine.
    """
    program = shutil.which(name)
    if program is None:
        raise UserError(f"{name} is not on this machine, which needs to be like Debian; {remedy}")
    return program


def _failed(program: str, lines: Sequence[str], about: str, remedy: str) -> UserError:
    """Return the error of a program that failed, with the last line that it printed."""
    said = [line.strip() for line in lines if line.strip()] or ["says nothing"]
    return UserError(f"{about}{program} failed ({said[-1]}); {remedy}")
