"""SHA-256 of files, recorded when written and checked when copied, and of texts."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import IO, Any

_SHORT_DIGITS = 16


def short_digest(text: str) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:_SHORT_DIGITS]


@dataclasses.dataclass(frozen=True)
class FileDigest:
    """Size and hash of a file.

    Attributes:
        size: in bytes.
        sha256: in hexadecimal digits; empty if it is not known.
    """

    size: int
    sha256: str = ""

    @classmethod
    def of(cls, path: Path) -> FileDigest:
        """Return the digest of a file."""
        with open(path, "rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(path.stat().st_size, sha256)

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> FileDigest:
        """Return a digest from its entry in a JSON file.

        Raises:
            ValueError, TypeError: if the entry is not a digest.
        """
        digest = cls(**facts)
        if not isinstance(digest.size, int) or digest.size < 0 or len(digest.sha256) != 64:
            raise ValueError(f"{facts} is no digest of a file")
        return digest


class WrongContentError(Exception):
    """The bytes of a copy are not those of the file; the text is the reason."""


class CheckedWriter:
    """Writes a copy of a file, and compares it with the digest of the file.

    Never more bytes are written than the file has.
    """

    def __init__(self, file: IO[bytes], expected: FileDigest) -> None:
        self._file, self._expected = file, expected
        self._size, self._hash = 0, hashlib.sha256()
        file.seek(0)

    def write(self, data: bytes) -> int:
        """Write the next bytes.

        Raises:
            WrongContentError: if they exceed the size of the file.
        """
        self._size += len(data)
        if self._size > self._expected.size:
            raise WrongContentError(f"more than its {self._expected.size} bytes were sent")
        self._hash.update(data)
        return self._file.write(data)

    def check(self) -> None:
        """Check the complete copy.

        Raises:
            WrongContentError: if its size or its hash differs.
        """
        if self._size != self._expected.size:
            raise WrongContentError(f"{self._size} of its {self._expected.size} bytes were sent")
        if self._expected.sha256 not in ("", self._hash.hexdigest()):
            raise WrongContentError("other bytes were sent than were written")
