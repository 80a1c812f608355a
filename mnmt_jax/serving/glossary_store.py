"""Glossaries that clients store in the server's database."""

from __future__ import annotations

import dataclasses
import datetime
import json
import uuid
from collections.abc import Sequence

from mnmt_jax.decoding.glossary import Glossary, GlossaryEntry
from mnmt_jax.serving.database import Database

MAX_GLOSSARIES = 1000  # of an owner, as DeepL's
_TABLES = (
    """CREATE TABLE IF NOT EXISTS glossaries (
        id TEXT PRIMARY KEY, owner TEXT NOT NULL, name TEXT NOT NULL, source TEXT NOT NULL,
        target TEXT NOT NULL, created TEXT NOT NULL, count INTEGER NOT NULL, entries TEXT NOT NULL
    )""",
    "CREATE INDEX IF NOT EXISTS glossaries_of_owner ON glossaries (owner, created)",
)
_LOADED = 32  # glossaries in memory
_FIELDS = "id, name, source, target, created, count"


class TooManyGlossaries(Exception):
    """An owner has as many glossaries as the limit allows."""


@dataclasses.dataclass(frozen=True)
class StoredGlossary:
    """A stored glossary without its entries.

    Attributes:
        id: made by the server.
        name: of the client.
        source: code of the source language, as DeepL writes it.
        target: code of the target language.
        created: time in ISO 8601.
        count: number of entries.
    """

    id: str
    name: str
    source: str
    target: str
    created: str
    count: int


class GlossaryStore:
    """Glossaries of all owners; an owner sees those of others not at all.

    Args:
        database: the server's.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        database.create_tables(_TABLES)
        self._loaded: dict[str, Glossary] = {}

    def create(
        self, owner: str, name: str, languages: tuple[str, str], pairs: Sequence[tuple[str, str]]
    ) -> StoredGlossary:
        """Store a glossary.

        Args:
            owner: whose it is.
            name: any text.
            languages: codes of source and target.
            pairs: terms and their translations.

        Raises:
            TooManyGlossaries: if the owner has too many.
        """
        created = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        stored = StoredGlossary(str(uuid.uuid4()), name, *languages, created, len(pairs))
        with self._database.writing() as connection:
            query = "SELECT count(*) FROM glossaries WHERE owner = ?"
            if connection.execute(query, (owner,)).fetchone()[0] >= MAX_GLOSSARIES:
                raise TooManyGlossaries
            connection.execute(
                f"INSERT INTO glossaries ({_FIELDS}, owner, entries) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (*dataclasses.astuple(stored), owner, json.dumps(pairs, ensure_ascii=False)),
            )
        return stored

    def of_owner(self, owner: str) -> list[StoredGlossary]:
        """Return the glossaries of an owner, the oldest first."""
        query = f"SELECT {_FIELDS} FROM glossaries WHERE owner = ? ORDER BY created, id"
        with self._database.reading() as connection:
            return [StoredGlossary(*row) for row in connection.execute(query, (owner,))]

    def find(self, owner: str, identifier: str) -> StoredGlossary | None:
        """Return a glossary of an owner; None if there is none."""
        query = f"SELECT {_FIELDS} FROM glossaries WHERE owner = ? AND id = ?"
        with self._database.reading() as connection:
            row = connection.execute(query, (owner, identifier)).fetchone()
        return row and StoredGlossary(*row)

    def pairs(self, stored: StoredGlossary) -> list[tuple[str, str]]:
        """Return the terms of a glossary and their translations; none if it was deleted."""
        query = "SELECT entries FROM glossaries WHERE id = ?"
        with self._database.reading() as connection:
            row = connection.execute(query, (stored.id,)).fetchone()
        return [(source, target) for source, target in json.loads(row[0])] if row else []

    def glossary(self, stored: StoredGlossary) -> Glossary:
        """Return a glossary for translation; a few are kept in memory."""
        if stored.id not in self._loaded:
            entries = tuple(
                GlossaryEntry(source, (target,)) for source, target in self.pairs(stored)
            )
            while len(self._loaded) >= _LOADED:
                self._loaded.pop(next(iter(self._loaded)))
            self._loaded[stored.id] = Glossary(entries, stored.name)
        return self._loaded[stored.id]

    def delete(self, owner: str, identifier: str) -> bool:
        """Delete a glossary of an owner, and return whether there was one."""
        query = "DELETE FROM glossaries WHERE owner = ? AND id = ?"
        with self._database.writing() as connection:
            count = connection.execute(query, (owner, identifier)).rowcount
        self._loaded.pop(identifier, None)
        return count > 0
