"""Glossaries that clients store in the server's database."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
import sqlite3
import uuid
from collections.abc import Iterable, Mapping, Sequence

from mnmt_jax.decoding.glossary import Glossary, GlossaryEntry, plain_source
from mnmt_jax.serving.database import Database
from mnmt_jax.vocabulary.language_codes import Direction

Pair = tuple[str, str]
"""A term and its translation."""

MAX_GLOSSARIES = 1000  # of an owner, as DeepL's
_TABLES = (
    """CREATE TABLE IF NOT EXISTS glossaries (
        id TEXT NOT NULL, owner TEXT NOT NULL, name TEXT NOT NULL, source TEXT NOT NULL,
        target TEXT NOT NULL, created TEXT NOT NULL, count INTEGER NOT NULL, entries TEXT NOT NULL,
        UNIQUE (id, source, target)
    )""",
    "CREATE INDEX IF NOT EXISTS glossaries_of_owner ON glossaries (owner, created)",
)
_LOADED = 32  # glossaries in memory
_FIELDS = "id, name, source, target, created, count"


class TooManyGlossaries(Exception):
    """An owner has as many glossaries as the limit allows."""


@dataclasses.dataclass(frozen=True)
class StoredGlossary:
    """A stored glossary without its entries, or the dictionary of one direction of a glossary.

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

    A glossary has a dictionary for each of some directions, mostly for one alone.

    Args:
        database: the server's.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        database.create_tables(_TABLES)
        self._loaded: dict[tuple[str, str, str], tuple[str, Glossary]] = {}

    def create(
        self, owner: str, name: str, dictionaries: Mapping[Direction, Sequence[Pair]]
    ) -> list[StoredGlossary]:
        """Store a glossary.

        Args:
            owner: whose it is.
            name: any text.
            dictionaries: terms and their translations by the codes of source and target.

        Returns:
            Its dictionaries.

        Raises:
            TooManyGlossaries: if the owner has too many.
        """
        created = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        identifier = str(uuid.uuid4())
        query = "SELECT count(DISTINCT id) FROM glossaries WHERE owner = ?"
        with self._database.writing() as connection:
            if connection.execute(query, (owner,)).fetchone()[0] >= MAX_GLOSSARIES:
                raise TooManyGlossaries
            return [
                _put(connection, owner, StoredGlossary(identifier, name, *codes, created, 0), pairs)
                for codes, pairs in dictionaries.items()
            ]

    def of_owner(self, owner: str) -> list[list[StoredGlossary]]:
        """Return the dictionaries of each glossary of an owner, the oldest glossary first."""
        query = f"SELECT {_FIELDS} FROM glossaries WHERE owner = ? ORDER BY created, id, rowid"
        with self._database.reading() as connection:
            rows = [StoredGlossary(*row) for row in connection.execute(query, (owner,))]
        return [list(group) for _, group in itertools.groupby(rows, key=lambda row: row.id)]

    def find(self, owner: str, identifier: str) -> list[StoredGlossary]:
        """Return the dictionaries of a glossary of an owner; empty if there is none."""
        query = f"SELECT {_FIELDS} FROM glossaries WHERE owner = ? AND id = ? ORDER BY rowid"
        with self._database.reading() as connection:
            rows = connection.execute(query, (owner, identifier)).fetchall()
        return [StoredGlossary(*row) for row in rows]

    def pairs(self, stored: StoredGlossary) -> list[Pair]:
        """Return the terms of a dictionary and their translations; none if it was deleted."""
        return _pairs(self._entries(stored))

    def glossary(self, stored: StoredGlossary) -> Glossary:
        """Return a dictionary for translation; a few are kept in memory.

        The stored entries are read each time, because another server may have changed them.
        """
        key, text = _key(stored), self._entries(stored)
        loaded_text, loaded = self._loaded.get(key, (None, None))
        if loaded is not None and loaded_text == text:
            return loaded
        # A dictionary may be from before spellings of a term were compared.
        pairs = _merged(_pairs(text))
        entries = tuple(GlossaryEntry(source, (target,)) for source, target in pairs)
        glossary = Glossary(entries, stored.name)
        for old in list(self._loaded)[: len(self._loaded) + 1 - _LOADED]:
            self._loaded.pop(old, None)
        self._loaded[key] = text, glossary
        return glossary

    def put(
        self,
        owner: str,
        identifier: str,
        languages: Direction,
        pairs: Sequence[Pair],
        *,
        merge: bool = False,
    ) -> StoredGlossary | None:
        """Store a dictionary in a glossary, and return it; None if there is no such glossary.

        Args:
            owner: whose the glossary is.
            identifier: of the glossary.
            languages: codes of source and target.
            pairs: terms and their translations.
            merge: whether the other terms of the dictionary for these languages are kept.
        """
        query = f"SELECT {_FIELDS} FROM glossaries WHERE owner = ? AND id = ?"
        with self._database.writing() as connection:
            row = connection.execute(query, (owner, identifier)).fetchone()
            if row is None:
                return None
            source, target = languages
            new = dataclasses.replace(StoredGlossary(*row), source=source, target=target)
            if merge:
                pairs = _merged([*_pairs(_read_entries(connection, new)), *pairs])
            return _put(connection, owner, new, pairs)

    def rename(self, owner: str, identifier: str, name: str) -> None:
        """Change the name of a glossary of an owner."""
        query = "UPDATE glossaries SET name = ? WHERE owner = ? AND id = ?"
        with self._database.writing() as connection:
            connection.execute(query, (name, owner, identifier))

    def delete(self, owner: str, identifier: str, languages: Direction | None = None) -> bool:
        """Delete a glossary of an owner, and return whether there was one.

        Args:
            owner: whose it is.
            identifier: of the glossary.
            languages: codes of the dictionary to delete; None deletes all of them.
        """
        query = "DELETE FROM glossaries WHERE owner = ? AND id = ?"
        if languages:
            query += " AND source = ? AND target = ?"
        with self._database.writing() as connection:
            count = connection.execute(query, (owner, identifier, *(languages or ()))).rowcount
        for key in list(self._loaded):
            if key[0] == identifier:
                self._loaded.pop(key, None)
        return count > 0

    def _entries(self, stored: StoredGlossary) -> str:
        """Return the entries of a dictionary as they are stored; none if it was deleted."""
        with self._database.reading() as connection:
            return _read_entries(connection, stored)


def _merged(pairs: Iterable[Pair]) -> list[Pair]:
    """Return pairs without those whose term comes again, in any spelling of the same text."""
    return list({plain_source(source): (source, target) for source, target in pairs}.values())


def _key(stored: StoredGlossary) -> tuple[str, str, str]:
    return stored.id, stored.source, stored.target


def _read_entries(connection: sqlite3.Connection, stored: StoredGlossary) -> str:
    query = "SELECT entries FROM glossaries WHERE id = ? AND source = ? AND target = ?"
    row = connection.execute(query, _key(stored)).fetchone()
    return row[0] if row else "[]"


def _pairs(entries: str) -> list[Pair]:
    """Return the terms and translations of stored entries."""
    return [(source, target) for source, target in json.loads(entries)]


def _put(
    connection: sqlite3.Connection, owner: str, stored: StoredGlossary, pairs: Sequence[Pair]
) -> StoredGlossary:
    stored = dataclasses.replace(stored, count=len(pairs))
    connection.execute(
        f"INSERT INTO glossaries ({_FIELDS}, owner, entries) VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (id, source, target) DO UPDATE "
        "SET count = excluded.count, entries = excluded.entries",
        (*dataclasses.astuple(stored), owner, json.dumps(pairs, ensure_ascii=False)),
    )
    return stored
