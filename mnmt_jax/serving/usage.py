"""Characters translated for each API key in each month, counted in memory and stored in batches."""

from __future__ import annotations

import collections
import contextlib
import datetime
import threading
from collections.abc import Iterator

from mnmt_jax.errors import warn
from mnmt_jax.serving.database import Database, DatabaseError

_TABLES = (
    """CREATE TABLE IF NOT EXISTS usage (
        key_id TEXT NOT NULL,
        month TEXT NOT NULL,
        characters INTEGER NOT NULL,
        PRIMARY KEY (key_id, month)
    )""",
)
_SECONDS = 1.0  # between two transactions

_Entry = tuple[str, str]  # id of a key, and month


class QuotaExceeded(Exception):
    """A request has more characters than are left of its key's quota."""


class Usage:
    """Counts of characters, written by a thread once a second.

    A database that does not accept them does not stop translation: counts stay in memory until it
    does. A server that is killed loses those of the last second.

    Args:
        database: where they are stored.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        database.create_tables(_TABLES)
        self._lock = threading.Lock()
        self._totals: dict[_Entry, int] = {}
        self._pending: collections.Counter[_Entry] = collections.Counter()
        self._warned, self._stops = False, threading.Event()
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)
        self._thread.start()

    def used(self, key_id: str) -> int:
        """Return the characters of this month.

        Args:
            key_id: id of a key; empty for requests without one.

        Raises:
            DatabaseError: if the database cannot be read.
        """
        entry = key_id, _month()
        with self._lock:
            self._load(entry)
            return self._totals[entry]

    @contextlib.contextmanager
    def charge(self, key_id: str, characters: int, limit: int | None) -> Iterator[None]:
        """Count characters, and take them back if the block raises.

        Args:
            key_id: id of a key; empty for requests without one.
            characters: of the request.
            limit: most characters of a month; None for no limit.

        Raises:
            QuotaExceeded: if there would be more.
            DatabaseError: if the database cannot be read.
        """
        entry = key_id, _month()
        with self._lock:
            self._load(entry)
            if limit is not None and self._totals[entry] + characters > limit:
                raise QuotaExceeded
            self._count(entry, characters)
        try:
            yield
        except BaseException:
            with self._lock:
                self._count(entry, -characters)
            raise

    def stop(self) -> None:
        """Write what is not yet written, and end the thread."""
        self._stops.set()
        self._thread.join()

    def _load(self, entry: _Entry) -> None:
        """Read the stored count, which other servers change, unless some of ours is pending."""
        if self._pending[entry]:
            return
        try:
            self._totals[entry] = self._stored(entry)
        except DatabaseError:
            if entry not in self._totals:
                raise

    def _count(self, entry: _Entry, characters: int) -> None:
        self._totals[entry] += characters
        self._pending[entry] += characters

    def _stored(self, entry: _Entry) -> int:
        with self._database.reading() as connection:
            query = "SELECT characters FROM usage WHERE key_id = ? AND month = ?"
            row = connection.execute(query, entry).fetchone()
        return row[0] if row else 0

    def _run(self) -> None:
        while not self._stops.wait(_SECONDS):
            self._write()
        self._write()

    def _write(self) -> None:
        """Add the pending counts to the stored ones, which other servers may have changed."""
        with self._lock:
            pending = {entry: count for entry, count in self._pending.items() if count}
        if not pending:
            return
        try:
            totals = self._add(pending)
        except DatabaseError as error:
            if not self._warned:
                warn(f"usage is kept in memory until it can be stored: {error}")
            self._warned = True
            return
        self._warned = False
        with self._lock:
            self._pending.subtract(pending)
            self._pending = collections.Counter({e: n for e, n in self._pending.items() if n})
            for entry, total in totals.items():
                self._totals[entry] = total + self._pending[entry]

    def _add(self, counts: dict[_Entry, int]) -> dict[_Entry, int]:
        """Add counts in one transaction; return the sums."""
        statement = """INSERT INTO usage VALUES (?, ?, ?) ON CONFLICT (key_id, month)
            DO UPDATE SET characters = characters + excluded.characters RETURNING characters"""
        with self._database.writing() as connection:
            return {
                entry: connection.execute(statement, (*entry, count)).fetchone()[0]
                for entry, count in counts.items()
            }


def read_usage(database: Database) -> dict[str, int]:
    """Return the stored characters of this month by id of the key.

    Raises:
        DatabaseError: if the database cannot be read.
    """
    database.create_tables(_TABLES)
    with database.reading() as connection:
        query = "SELECT key_id, characters FROM usage WHERE month = ?"
        return dict(connection.execute(query, (_month(),)).fetchall())


def _month() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m")
