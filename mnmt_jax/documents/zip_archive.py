"""Zip archives of documents: checked before they are read, and written with other parts kept."""

from __future__ import annotations

import copy
import io
import zipfile
import zlib
from collections.abc import Mapping

from mnmt_jax.errors import UserError

MAX_ENTRIES = 10_000
MAX_BYTES = 256 << 20
"""Maximum bytes of all parts unpacked."""

MAX_RATIO = 200
"""Maximum ratio of unpacked to packed bytes, of archives that unpack to more than `SMALL_BYTES`."""

SMALL_BYTES = 4 << 20
MAX_PART_BYTES = 32 << 20
"""Maximum bytes of a part that is parsed."""

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError)
_ENCRYPTED, _UTF8_NAME = 1, 0x800  # bits of the flags


class ZipArchive:
    """The parts of a document in a zip archive.

    Args:
        data: the file.
        name: its name, for messages.

    Raises:
        UserError: if it is damaged, encrypted, too large unpacked, or has a name that leads out of
            the folder that it is unpacked to.
    """

    def __init__(self, data: bytes, name: str) -> None:
        self._name = name
        try:
            self._archive = zipfile.ZipFile(io.BytesIO(data))
        except (zipfile.BadZipFile, ValueError, OverflowError, NotImplementedError) as error:
            raise self._damaged() from error
        self._entries = {_part_name(entry): entry for entry in self._archive.infolist()}
        self._check(len(data))
        self._check_parts()

    def _check(self, packed: int) -> None:
        entries = self._archive.infolist()
        total = sum(entry.file_size for entry in entries)
        if len(entries) > MAX_ENTRIES:
            raise self._refused(f"has more than {MAX_ENTRIES} parts")
        if total > MAX_BYTES:
            raise self._refused(f"unpacks to more than {MAX_BYTES >> 20} MiB")
        if total > SMALL_BYTES and total > MAX_RATIO * packed:
            raise self._refused(f"unpacks to more than {MAX_RATIO} times its size")
        if len(entries) != len(self._entries):
            raise self._refused("has two parts of one name")
        if any(entry.flag_bits & _ENCRYPTED for entry in entries):
            raise UserError(f"{self._name}: is encrypted; save it without a password")
        if any(entry.compress_type not in _METHODS for entry in entries):
            raise self._refused("is compressed in an unusual way")
        for part in self._entries:
            if part.startswith(("/", "\\")) or "\\" in part or ".." in part.split("/"):
                raise self._refused("has a part whose name leads out of the archive")

    def _check_parts(self) -> None:
        """Check the sums of all parts, before anything is translated."""
        try:
            damaged = self._archive.testzip()
        except _DAMAGE as error:
            raise self._damaged() from error
        if damaged is not None:
            raise self._damaged()

    def names(self) -> list[str]:
        """Return the names of the parts, in order."""
        return list(self._entries)

    def read(self, part: str) -> bytes:
        """Return a part to parse.

        Raises:
            UserError: if it is absent, too long or damaged.
        """
        try:
            entry = self._entries[part]
        except KeyError:
            raise UserError(f"{self._name}: has no {part}; save the document again") from None
        if entry.file_size > MAX_PART_BYTES:
            raise self._refused(f"has more than {MAX_PART_BYTES >> 20} MiB of text in one part")
        return self._bytes(entry)

    def _bytes(self, entry: zipfile.ZipInfo) -> bytes:
        try:
            return self._archive.read(entry)
        except _DAMAGE as error:
            raise self._damaged() from error

    def replaced(self, parts: Mapping[str, bytes]) -> bytes:
        """Return the archive with other content of some parts; the others are kept."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, entry in self._entries.items():
                content = parts[name] if name in parts else self._bytes(entry)
                written = copy.copy(entry)
                written.filename = name
                archive.writestr(written, content)
        return buffer.getvalue()

    def _damaged(self) -> UserError:
        return UserError(f"{self._name}: is no complete zip archive; save the document again")

    def _refused(self, reason: str) -> UserError:
        return UserError(f"{self._name}: {reason}; refused")


def _part_name(entry: zipfile.ZipInfo) -> str:
    """Return the name of a part; without the flag of UTF-8, zipfile reads it as cp437."""
    if entry.flag_bits & _UTF8_NAME:
        return entry.filename
    try:
        return entry.filename.encode("cp437").decode()
    except UnicodeError:
        return entry.filename
