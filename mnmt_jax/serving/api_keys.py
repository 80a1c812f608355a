"""API keys of the server: made, listed, revoked and checked; the database has their hashes."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import hmac
import secrets
from typing import Any

from mnmt_jax.errors import UserError
from mnmt_jax.serving.database import Database

_TABLES = (
    """CREATE TABLE IF NOT EXISTS api_keys (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        hash BLOB NOT NULL,
        characters_per_month INTEGER,
        created TEXT NOT NULL,
        revoked TEXT
    )""",
    # A name may be used again after its key was revoked.
    "CREATE UNIQUE INDEX IF NOT EXISTS active_names ON api_keys (name) WHERE revoked IS NULL",
)
_COLUMNS = "id, name, characters_per_month, created, revoked"
_ID_BYTES, _SECRET_BYTES = 4, 32


@dataclasses.dataclass(frozen=True)
class ApiKey:
    """A key without its secret.

    Attributes:
        id: public part of the key.
        name: who has it.
        characters_per_month: its quota; None for no limit.
        created: time in UTC, as in ISO 8601.
        revoked: time in UTC; None if it is valid.
    """

    id: str
    name: str
    characters_per_month: int | None
    created: str
    revoked: str | None


class ApiKeys:
    """The keys in a database.

    A key is `mnmt-ID-SECRET`. ID finds its row; SECRET has 256 random bits, so a fast hash is safe.

    Args:
        database: where they are stored.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        database.create_tables(_TABLES)

    def create(self, name: str, characters_per_month: int | None = None) -> str:
        """Return a new key; its secret is stored nowhere.

        Args:
            name: who gets it.
            characters_per_month: its quota; None for no limit.

        Raises:
            UserError: if a valid key has the name.
        """
        key_id = secrets.token_hex(_ID_BYTES)
        key = f"mnmt-{key_id}-{secrets.token_urlsafe(_SECRET_BYTES)}"
        with self._database.writing() as connection:
            if _find_active(connection, name):
                raise UserError(f"--name={name} has a key; revoke it or choose another name")
            connection.execute(
                "INSERT INTO api_keys VALUES (?, ?, ?, ?, ?, NULL)",
                (key_id, name, _hash(key), characters_per_month, _now()),
            )
        return key

    def revoke(self, name: str) -> None:
        """Make the key of a name invalid; its usage is kept.

        Raises:
            UserError: if no valid key has the name.
        """
        with self._database.writing() as connection:
            if not _find_active(connection, name):
                raise UserError(
                    f"--name={name} has no valid key; mnmt api-keys list shows the names"
                )
            connection.execute(
                "UPDATE api_keys SET revoked = ? WHERE name = ? AND revoked IS NULL",
                (_now(), name),
            )

    def all(self) -> list[ApiKey]:
        """Return all keys, also revoked ones, in the order of their creation."""
        with self._database.reading() as connection:
            rows = connection.execute(f"SELECT {_COLUMNS} FROM api_keys ORDER BY rowid").fetchall()
        return [ApiKey(*row) for row in rows]

    def find(self, key: str) -> ApiKey | None:
        """Return a valid key; None if it is unknown or revoked.

        The time does not tell how much of a secret is right.
        """
        if not key.isascii():
            return None
        key_id = key.removeprefix("mnmt-")[: 2 * _ID_BYTES]
        with self._database.reading() as connection:
            row = connection.execute(
                f"SELECT hash, {_COLUMNS} FROM api_keys WHERE id = ? AND revoked IS NULL",
                (key_id,),
            ).fetchone()
        expected, *columns = row or (b"",)
        is_right = hmac.compare_digest(expected, _hash(key))
        return ApiKey(*columns) if is_right else None


def _find_active(connection: Any, name: str) -> bool:
    query = "SELECT 1 FROM api_keys WHERE name = ? AND revoked IS NULL"
    return connection.execute(query, (name,)).fetchone() is not None


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
