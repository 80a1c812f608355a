"""SQLite database of the server: API keys, usage and glossaries in one file."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from mnmt_jax.errors import UserError

_APPLICATION = 0x6D6E6D74  # "mnmt" in the header of the file
_WAIT_SECONDS = 2.0  # for a transaction of another process
_REMEDIES = {
    "locked": "another process is writing; try again",
    "full": "free some space",
    "not a database": "choose another file",
    "unable to open": "its folder must exist, and both must be writable",
    "readonly": "make it writable",
    "disk I/O": "check its disk, and the free space",
}


class DatabaseError(UserError):
    """A database that cannot be opened, read or written, with the name of its file."""


class Database:
    """A SQLite file in WAL mode, with one connection for reading and one for writing.

    Transactions of all threads are serialised by a lock; keep them short. Readers do not wait for
    writers, also those of other processes.

    Args:
        path: the file, made readable to its owner alone if it is new; None keeps the database in
            memory.

    Raises:
        DatabaseError: if it cannot be opened, or is of another program.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._name = "the database in memory" if path is None else str(path)
        self._write_lock = threading.RLock()
        self._read_lock = self._write_lock if path is None else threading.RLock()
        with self._errors():
            if path is not None:
                _make_private(Path(path))
            self._writer = _connect(path)
            self._reader = self._writer if path is None else _connect(path)
            self._claim()

    def create_tables(self, statements: Sequence[str]) -> None:
        """Create tables and indexes, with statements such as `CREATE TABLE IF NOT EXISTS`."""
        with self.writing() as connection:
            for statement in statements:
                connection.execute(statement)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection for queries.

        Raises:
            DatabaseError: if the file cannot be read.
        """
        with self._errors(), self._read_lock:
            yield self._reader

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a transaction, which is rolled back on an error.

        Raises:
            DatabaseError: if the file is locked or the disk is full, for example.
        """
        with self._errors(), self._write_lock:
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the file."""
        with self._errors(), self._read_lock, self._write_lock:
            self._reader.close()
            self._writer.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise errors of SQLite as one line with the file and the remedy.

        A constraint that a statement violates is the caller's matter: it stays an IntegrityError.
        """
        try:
            yield
        except sqlite3.IntegrityError:
            raise
        except (sqlite3.Error, OSError) as error:
            text = (error.strerror or "") if isinstance(error, OSError) else str(error)
            remedy = next((remedy for word, remedy in _REMEDIES.items() if word in text), "")
            message = "; ".join(filter(None, (f"{self._name}: {text}", remedy)))
            raise DatabaseError(message) from error

    def _claim(self) -> None:
        """Mark a new file as one of this server; refuse that of another program."""
        (application,) = self._writer.execute("PRAGMA application_id").fetchone()
        (tables,) = self._writer.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application != _APPLICATION and (application or tables):
            raise DatabaseError(f"{self._name}: a database of another program; choose another file")
        if not application:
            self._writer.execute(f"PRAGMA application_id = {_APPLICATION}")


def _make_private(path: Path) -> None:
    """Make an empty file that only its owner reads, unless there is one."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _connect(path: str | Path | None) -> sqlite3.Connection:
    connection = sqlite3.connect(
        ":memory:" if path is None else path,
        timeout=_WAIT_SECONDS,
        isolation_level=None,  # transactions are begun and ended by `Database.writing`
        check_same_thread=False,
    )
    for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")
    return connection
