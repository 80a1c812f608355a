"""Debian packages as text sources: downloaded and unpacked, never installed."""

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
"""Maximum total size of the files in a package; a package of help pages has about 35 MB."""

MAX_MEMBERS = 1_000_000
"""Maximum number of files, folders and links in a package."""


@dataclass(frozen=True)
class Package:
    """Identity of a package file.

    Attributes:
        name: name in the package's metadata.
        version: version in the package's metadata.
        sha256: SHA-256 of the file, in hexadecimal digits.
    """

    name: str
    version: str
    sha256: str


def download_packages(names: Sequence[str], folder: Path, remedy: str) -> None:
    """Download packages from the machine's apt sources; root is not needed.

    Args:
        names: names of packages.
        folder: folder for the files.
        remedy: an alternative for the user, for errors.

    Raises:
        UserError: if apt-get is missing or fails; includes its message.
    """
    _run(
        ["apt-get", "download", *names], folder, f"'apt-get update' (as root) may help, or {remedy}"
    )


def unpack_package(file: Path, folder: Path, *, subpath: str, remedy: str) -> Package:
    """Unpack the regular files below a path of a package, without installing it.

    Nothing is written outside `folder`: links are never created, names with `..` are refused.

    Args:
        file: path that ends in `.deb`.
        folder: target; must not exist yet, so that packages cannot share a tree.
        subpath: path within the package, such as "usr/share/doc"; all other files are skipped.
        remedy: what the user can do, for errors.

    Raises:
        UserError: if dpkg-deb is missing or fails, a member's name or link leads out of the
            package, or the package is larger than `MAX_UNPACKED_BYTES` or `MAX_MEMBERS`.
    """
    file = file.absolute()
    format_flag = "--showformat=${Package}\t${Version}"
    fields = _run(
        ["dpkg-deb", format_flag, "-W", str(file)], file.parent, remedy, about=f"{file}: "
    )
    folder.mkdir(parents=True)
    with _package_members(file, remedy) as archive:
        _unpack(archive, folder, subpath, f"{file}")
    name, _, version = fields.partition("\t")
    return Package(name, version, sha256_of(file))


@contextlib.contextmanager
def _package_members(file: Path, remedy: str) -> Iterator[tarfile.TarFile]:
    """Open the files of a package as a tar stream.

    Raises:
        UserError: if dpkg-deb is missing, or it or the tar reader fails.
    """
    command = [_program("dpkg-deb", remedy), "--fsys-tarfile", str(file)]
    with (
        tempfile.TemporaryFile() as stderr,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, env=os.environ | _LOCALE
        ) as process,
    ):
        problem = ""
        try:
            with tarfile.open(fileobj=cast(IO[bytes], process.stdout), mode="r|") as archive:
                yield archive
        except (tarfile.TarError, EOFError) as error:
            problem = str(error)
        except BaseException:
            process.kill()
            raise
        for _ in iter(lambda: cast(IO[bytes], process.stdout).read(1 << 16), b""):
            pass  # drain the padding after the last member, so that dpkg-deb can exit
        if process.wait() or problem:
            stderr.seek(0)
            lines = stderr.read(1 << 16).decode(errors="replace").splitlines()
            raise _failed("dpkg-deb", lines or [problem], f"{file}: ", remedy)


def _unpack(archive: tarfile.TarFile, folder: Path, subpath: str, name: str) -> None:
    """Write the regular files below a path of an archive.

    Raises:
        UserError: if a member is unsafe or the archive is too large.
    """
    size = 0
    for number, member in enumerate(archive, start=1):
        archive.members = []  # type: ignore[attr-defined]  # else tarfile keeps all members
        size += member.size
        if number > MAX_MEMBERS or size > MAX_UNPACKED_BYTES:
            raise UserError(
                f"{name}: holds more than {MAX_MEMBERS:,} files or {MAX_UNPACKED_BYTES >> 20} MiB; "
                "this is not a package of help pages"
            )
        path = PurePosixPath(member.name)
        if flaw := _member_flaw(member, path, subpath):
            raise UserError(f"{name}: {member.name!r} {flaw}; do not use this package")
        content = archive.extractfile(member) if member.isreg() else None
        if content is None or not path.is_relative_to(subpath):
            continue
        try:
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with content, target.open("xb") as output:
                shutil.copyfileobj(content, output)
        except (FileExistsError, NotADirectoryError):
            raise UserError(
                f"{name}: contains {member.name!r} twice; do not use this package"
            ) from None


def _member_flaw(member: tarfile.TarInfo, path: PurePosixPath, subpath: str) -> str:
    """Return why a member is unsafe; empty if it is safe."""
    if path.is_absolute() or ".." in path.parts:
        return "leads out of the package"
    if not member.name.isprintable():
        return "has control characters or is not UTF-8"
    if member.issym() or member.islnk():
        base = posixpath.dirname(member.name) if member.issym() else ""
        target = posixpath.normpath(posixpath.join(base, member.linkname))
        if target.startswith(("/", "../")) or target == "..":
            return f"is a link that leads out of the package, to {member.linkname!r}"
    inside = path.is_relative_to(subpath) or PurePosixPath(subpath).is_relative_to(path)
    if inside and not (member.isreg() or member.isdir()):
        return "is neither a file nor a folder"
    return ""


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _run(command: Sequence[str], folder: Path, remedy: str, *, about: str = "") -> str:
    """Run a program and return its standard output.

    Args:
        command: the program and its arguments.
        folder: working directory.
        remedy: what the user can do, for errors.
        about: prefix of error messages.

    Raises:
        UserError: if the program is missing or fails.
    """
    result = subprocess.run(
        [_program(command[0], remedy), *command[1:]],
        cwd=folder,
        env=os.environ | _LOCALE,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if result.returncode:
        raise _failed(command[0], result.stderr.splitlines(), about, remedy)
    return result.stdout


def _program(name: str, remedy: str) -> str:
    """Return the path of a program.

    Raises:
        UserError: if it is not on this machine.
    """
    program = shutil.which(name)
    if program is None:
        raise UserError(f"{name} is not installed, and needs Debian or a similar system; {remedy}")
    return program


def _failed(program: str, lines: Sequence[str], about: str, remedy: str) -> UserError:
    """Return the error for a failed program, with the last line that it printed."""
    messages = [line.strip() for line in lines if line.strip()] or ["says nothing"]
    return UserError(f"{about}{program} failed ({messages[-1]}); {remedy}")
