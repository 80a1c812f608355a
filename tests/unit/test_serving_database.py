"""The server's database: transactions, other processes, files that cannot be used."""

from __future__ import annotations

import sqlite3
import stat
import threading

import pytest

from mnmt_jax.errors import UserError
from mnmt_jax.serving import database as database_module
from mnmt_jax.serving.database import Database, DatabaseError

TABLE = ["CREATE TABLE IF NOT EXISTS words (word TEXT PRIMARY KEY)"]


def words(database: Database) -> list[str]:
    with database.reading() as connection:
        return [word for (word,) in connection.execute("SELECT word FROM words ORDER BY word")]


def add(database: Database, word: str) -> None:
    with database.writing() as connection:
        connection.execute("INSERT INTO words VALUES (?)", (word,))


@pytest.fixture(params=["file", "memory"])
def database(request, tmp_path):
    opened = Database(tmp_path / "server.db" if request.param == "file" else None)
    opened.create_tables(TABLE)
    yield opened
    opened.close()


def test_a_transaction_is_written_whole_or_not_at_all(database):
    add(database, "one")
    with pytest.raises(ZeroDivisionError), database.writing() as connection:
        connection.execute("INSERT INTO words VALUES ('two')")
        raise ZeroDivisionError
    assert words(database) == ["one"]
    with pytest.raises(sqlite3.IntegrityError):
        add(database, "one")
    add(database, "three")
    assert words(database) == ["one", "three"]


def test_threads_write_one_after_the_other(database):
    threads = [threading.Thread(target=add, args=(database, str(n))) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(words(database)) == 20


def test_a_new_file_is_its_owners_alone_and_outlives_the_server(tmp_path):
    path = tmp_path / "server.db"
    first = Database(path)
    first.create_tables(TABLE)
    add(first, "kept")
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}
    first.close()
    again = Database(path)
    again.create_tables(TABLE)
    assert words(again) == ["kept"]
    again.close()


def test_a_file_that_another_process_locks_can_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(database_module, "_WAIT_SECONDS", 0.1)
    database = Database(tmp_path / "server.db")
    database.create_tables(TABLE)
    add(database, "one")
    other = sqlite3.connect(tmp_path / "server.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(DatabaseError, match=r"server\.db: database is locked; another process"):
        add(database, "two")
    assert words(database) == ["one"]
    other.execute("ROLLBACK")
    add(database, "two")
    assert words(database) == ["one", "two"]
    database.close()
    other.close()


def test_a_full_disk_has_a_name_and_is_recovered_from(tmp_path):
    database = Database(tmp_path / "server.db")
    database.create_tables(TABLE)
    with database.reading() as _, database.writing() as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(DatabaseError, match=r"server\.db: database or disk is full; free some"):
        add(database, "long" * 10_000)
    with database.writing() as connection:
        connection.execute("PRAGMA max_page_count = 1000")
    add(database, "short")
    assert words(database) == ["short"]
    database.close()


def test_files_that_are_no_database_of_the_server_are_refused(tmp_path):
    (tmp_path / "text").write_text("not a database, but a longer text of many words" * 99)
    foreign = sqlite3.connect(tmp_path / "foreign")
    foreign.execute("CREATE TABLE notes (note TEXT)")
    foreign.close()
    for name, message in (
        ("text", "text: file is not a database; choose another file"),
        ("foreign", "foreign: a database of another program; choose another file"),
        ("absent/file", "absent/file: No such file or directory"),
        (".", "unable to open database file; its folder must exist"),
    ):
        with pytest.raises(UserError, match=message):
            Database(tmp_path / name)
