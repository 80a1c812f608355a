"""API keys, quotas and usage of the server, and the command for keys."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import hmac
import sqlite3
import sys
import time

import deepl
import pytest

from mnmt_jax.commands import api_keys as command
from mnmt_jax.commands.common_flags import CommandParser
from mnmt_jax.errors import UserError
from mnmt_jax.serving import api_keys as api_keys_module
from mnmt_jax.serving import database as database_module
from mnmt_jax.serving import usage as usage_module
from mnmt_jax.serving.api_keys import ApiKeys
from mnmt_jax.serving.database import Database, DatabaseError
from mnmt_jax.serving.job_batcher import JobBatcher
from mnmt_jax.serving.settings import Settings, add_settings_flags
from mnmt_jax.serving.usage import QuotaExceeded, Usage, read_usage
from tests.full_disk import files_up_to
from tests.unit.made_server import MadeJob, made_service, serving
from tests.unit.test_serving import call
from tests.waiting import wait_until

HELLO = {"q": "Hello.", "source": "en", "target": "de"}
DEEPL_HELLO = {"text": ["Hello."], "source_lang": "EN", "target_lang": "DE"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "server.db"


@pytest.fixture
def keys(path):
    database = Database(path)
    yield ApiKeys(database)
    database.close()


def run(monkeypatch, *arguments):
    """Run `mnmt api-keys`."""
    monkeypatch.setattr(sys, "argv", ["mnmt api-keys", *map(str, arguments)])
    command.main()


def keyed_service(path, **settings):
    options = {"wait_milliseconds": 0, "database": str(path), "require_keys": True} | settings
    return made_service(MadeJob(), **options)


# The store


def test_the_database_has_hashes_alone(keys, path):
    key = keys.create("weblate")
    secret = key.split("-", 2)[2]
    assert len(secret) == 43  # 256 bits
    stored = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert hashlib.sha256(key.encode()).digest() in stored
    assert secret.encode() not in stored and key not in repr(keys.all())


def test_only_the_whole_key_is_right_and_the_comparison_takes_constant_time(keys, monkeypatch):
    key = keys.create("weblate", 10)
    compared = []

    def compare(first, second):
        compared.append((len(first), len(second)))
        return hmac.compare_digest(first, second)

    monkeypatch.setattr(api_keys_module, "hmac", type("Hmac", (), {"compare_digest": compare}))
    valid = keys.find(key)
    assert (valid.name, valid.characters_per_month) == ("weblate", 10)
    for wrong in (key[:-1], key[:-1] + "~", key + "a", key.removeprefix("mnmt-"), "", "mnmt-", "x"):
        assert keys.find(wrong) is None
    assert keys.find(f"{key[:14]}\ud800") is keys.find("ключ") is None
    assert (32, 32) in compared and len(compared) == 8


def test_a_revoked_key_is_not_valid_and_its_name_is_free(keys):
    first = keys.create("weblate")
    with pytest.raises(UserError, match="--name=weblate has a key"):
        keys.create("weblate")
    keys.revoke("weblate")
    assert keys.find(first) is None
    second = keys.create("weblate")
    assert keys.find(first) is None and keys.find(second).name == "weblate"
    assert [key.revoked is None for key in keys.all()] == [False, True]
    with pytest.raises(UserError, match="--name=other has no valid key"):
        keys.revoke("other")


def test_the_command_creates_lists_and_revokes(path, capsys, monkeypatch):
    with pytest.raises(UserError, match="no such file; mnmt api-keys create makes it"):
        run(monkeypatch, "list", "--database", path)
    run(monkeypatch, "create", "--database", path, "--name=weblate", "--characters_per_month=99")
    key = capsys.readouterr().out.strip()
    assert ApiKeys(Database(path)).find(key).name == "weblate"
    run(monkeypatch, "list", "--database", path)
    header, row = capsys.readouterr().out.splitlines()
    table = dict(zip(header.split("\t"), row.split("\t"), strict=True))
    assert table["name"] == "weblate" and table["revoked"] == "-"
    assert (table["characters_this_month"], table["characters_per_month"]) == ("0", "99")
    run(monkeypatch, "revoke", "--database", path, "--name=weblate")
    assert ApiKeys(Database(path)).find(key) is None
    for flag, message in (
        ("--characters_per_month=0", "whole number from 1 to"),
        ("--name= ", "printable"),
    ):
        with pytest.raises(UserError, match=message):
            run(monkeypatch, "create", "--database", path, "--name=new", flag)


def test_required_keys_need_a_database_and_are_also_a_variable():
    parser = CommandParser()
    variables = {"MNMT_SERVE_REQUIRE_KEYS": "1", "MNMT_SERVE_DATABASE": "x.db"}
    add_settings_flags(parser, variables)
    assert Settings.of_flags(parser.parse_args([])).require_keys
    assert not Settings.of_flags(parser.parse_args(["--no-require_keys"])).require_keys
    with pytest.raises(UserError, match="MNMT_SERVE_REQUIRE_KEYS=yes must be 0 or 1"):
        add_settings_flags(CommandParser(), {"MNMT_SERVE_REQUIRE_KEYS": "yes"})
    with pytest.raises(UserError, match="--require_keys needs the --database"):
        Settings(require_keys=True)


# Requests


def test_every_protocol_takes_its_keys_and_refuses_others(monkeypatch, path, keys):
    key = keys.create("weblate")
    with serving(keyed_service(path)) as url:
        right = (200, {"translatedText": "[de] Hello."})
        assert call(url, "/translate", {**HELLO, "api_key": key}) == right
        form = f"q=Hello.&source=en&target=de&api_key={key}"
        assert call(url, "/translate", form.encode()) == right
        assert call(url, f"/translate?{form}", b"") == right
        assert call(url, "/translate", HELLO, Authorization=f"Bearer {key}") == right
        for path_, body in (("/translate", HELLO), ("/detect", {"q": "Hello."})):
            status, answer = call(url, path_, body)
            assert (status, answer["error"][:34]) == (400, "the server requires an API key: mi")
            for wrong in ("wrong", f"{key}x", "\u00e9"):
                status, answer = call(url, path_, {**body, "api_key": wrong})
                assert (status, answer) == (403, {"error": "api_key: invalid API key"})
        assert call(url, "/translate", {**HELLO, "api_key": 5})[0] == 400
        for scheme in ("DeepL-Auth-Key", "deepl-auth-key", "Bearer"):
            headers = {"Authorization": f"{scheme} {key}"}
            assert call(url, "/v2/translate", DEEPL_HELLO, **headers)[0] == 200
            assert call(url, "/v2/usage", **headers)[0] == 200
        for headers in ({}, {"Authorization": f"Basic {key}"}, {"Authorization": "Bearer x"}):
            for path_, body in (("/v2/translate", DEEPL_HELLO), ("/v2/usage", None)):
                status, answer = call(url, path_, body, **headers)
                assert status == 403 and answer["message"].startswith("Authorization failure")
        keys.revoke("weblate")
        assert call(url, "/translate", {**HELLO, "api_key": key})[0] == 403


def test_what_tells_nothing_of_users_needs_no_key(monkeypatch, path):
    with serving(keyed_service(path)) as url:
        for route in ("/health", "/ready", "/languages", "/openapi.json"):
            assert call(url, route)[0] == 200
        settings = call(url, "/frontend/settings")[1]
        assert settings["keyRequired"] is settings["apiKeys"] is True


def test_every_route_that_changes_or_computes_requires_a_key(monkeypatch, path):
    with serving(keyed_service(path)) as url:
        routes = call(url, "/openapi.json")[1]["paths"]
        assert len(routes) > 15
        for route, methods in routes.items():
            path_ = route.replace("{", "").replace("}", "")
            if "post" in methods:
                assert call(url, path_, b"")[0] in (400, 403), route
                assert call(url, path_, {"api_key": "wrong"})[0] == 403, route
            if "get" in methods and path_.startswith("/v"):
                assert call(url, path_)[0] == call(url, f"/models/made{path_}")[0] == 403, route


def test_without_required_keys_unknown_ones_are_ignored_and_known_ones_count(
    monkeypatch, path, keys
):
    key = keys.create("weblate")
    with serving(keyed_service(path, require_keys=False)) as url:
        assert call(url, "/frontend/settings")[1]["keyRequired"] is False
        for fields in ({}, {"api_key": "any"}, {"api_key": key}, {"api_key": key}):
            assert call(url, "/translate", {**HELLO, **fields})[0] == 200
        assert call(url, "/v2/usage")[1]["character_count"] == 12
        mine = call(url, "/v2/usage", Authorization=f"DeepL-Auth-Key {key}")[1]
        assert mine == {"character_count": 12, "character_limit": 10**12}


def test_users_of_keys_take_turns_whatever_their_address(monkeypatch, path, keys):
    first, second = keys.create("first"), keys.create("second")
    service = keyed_service(path)
    users = []
    submit = JobBatcher.submit

    def observed(batcher, lines, user):
        users.append(user)
        return submit(batcher, lines, user)

    monkeypatch.setattr(JobBatcher, "submit", observed)
    with serving(service) as url:
        for key in (first, second, first):
            call(url, "/translate", {**HELLO, "api_key": key})
    assert users[0] == users[2] != users[1]


# Quotas and usage


def test_a_quota_ends_with_the_protocols_status_and_counts_what_was_translated(
    monkeypatch, path, keys
):
    key = keys.create("weblate", 20)
    with serving(keyed_service(path)) as url:
        client = deepl.Translator(key, server_url=url)
        assert client.translate_text("Hello.", source_lang="EN", target_lang="DE").text
        assert call(url, "/translate", {**HELLO, "q": "Fail.", "api_key": key})[0] == 500
        assert client.get_usage().character.count == 6
        assert call(url, "/translate", {**HELLO, "q": "x" * 15, "api_key": key}) == (
            403,
            {"error": "the API key has too few characters left this month"},
        )
        assert call(url, "/translate", {**HELLO, "q": "x" * 14, "api_key": key})[0] == 200
        usage = client.get_usage()
        assert (usage.character.count, usage.character.limit) == (20, 20)
        with pytest.raises(deepl.QuotaExceededException):
            client.translate_text("a", source_lang="EN", target_lang="DE")
        headers = {"Authorization": f"DeepL-Auth-Key {key}"}
        assert call(url, "/v2/translate", DEEPL_HELLO, **headers)[0] == 456


def test_usage_survives_a_restart(monkeypatch, path, keys):
    key = keys.create("weblate", 20)
    for expected in (6, 12):
        with serving(keyed_service(path)) as url:
            call(url, "/translate", {**HELLO, "api_key": key})
            mine = call(url, "/v2/usage", Authorization=f"DeepL-Auth-Key {key}")[1]
            assert mine == {"character_count": expected, "character_limit": 20}


def test_usage_of_two_servers_is_added_up(path):
    first, second = Usage(Database(path)), Usage(Database(path))
    for usage, count in ((first, 5), (second, 7)):
        with usage.charge("key", count, None):
            pass
        wait_until(lambda usage=usage: not usage._pending)
        usage.stop()
    assert read_usage(Database(path)) == {"key": 12} and second.used("key") == 12


def test_a_quota_is_that_of_all_servers_together(path):
    first, second = Usage(Database(path)), Usage(Database(path))
    assert second.used("key") == 0
    with first.charge("key", 100, 120):
        pass
    wait_until(lambda: not first._pending)
    with pytest.raises(QuotaExceeded), second.charge("key", 50, 120):
        pass
    assert second.used("key") == 100
    for usage in (first, second):
        usage.stop()


def test_a_quota_is_not_exceeded_by_requests_at_once(path):
    usage = Usage(Database(path))
    with usage.charge("key", 6, 10):
        with pytest.raises(QuotaExceeded), usage.charge("key", 5, 10):
            pass
        with usage.charge("key", 4, 10):
            assert usage.used("key") == 10
    usage.stop()
    assert read_usage(Database(path)) == {"key": 10}


def test_characters_that_are_charged_during_a_write_count(path, monkeypatch):
    monkeypatch.setattr(usage_module, "_SECONDS", 600.0)  # no write but that below
    usage, add = Usage(Database(path)), Usage._add

    def add_slowly(self, counts):
        totals = add(self, counts)
        with self.charge("key", 4, None):
            return totals

    monkeypatch.setattr(Usage, "_add", add_slowly)
    with usage.charge("key", 5, None):
        pass
    usage._write()
    assert usage.used("key") == 9
    monkeypatch.undo()
    usage.stop()


def test_each_month_has_a_count(path, monkeypatch):
    usage = Usage(Database(path))
    for month, count in (("2026-11", 3), ("2026-12", 4)):
        monkeypatch.setattr(usage_module, "_month", lambda month=month: month)
        with usage.charge("key", count, 5):
            assert usage.used("key") == count
    usage.stop()


@pytest.mark.parametrize("fault", ["locked", "full"])
def test_translation_goes_on_without_a_database_that_can_be_written(
    monkeypatch, path, keys, capfd, fault
):
    key = keys.create("weblate", 1000)
    monkeypatch.setattr("mnmt_jax.serving.database._WAIT_SECONDS", 0.1)
    monkeypatch.setattr(usage_module, "_SECONDS", 0.02)
    service = keyed_service(path)
    with serving(service) as url:
        headers = {"Authorization": f"DeepL-Auth-Key {key}"}
        with _broken(path, fault):
            for _ in range(3):
                assert call(url, "/translate", {**HELLO, "api_key": key})[0] == 200
                time.sleep(0.2)
            assert call(url, "/v2/usage", **headers)[1]["character_count"] == 18
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "usage" in line]
    assert line.startswith("warning: usage is kept in memory until it can be stored")
    assert list(read_usage(Database(path)).values()) == [18]


@contextlib.contextmanager
def _broken(path, fault):
    """Make a database refuse changes."""
    if fault == "full":
        with files_up_to(path.with_name("server.db-wal").stat().st_size):
            yield
        return
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    yield
    other.execute("ROLLBACK")


GLOSSARY = {
    "name": "Words",
    "source_lang": "en",
    "target_lang": "de",
    "entries": "a\tb",
    "entries_format": "tsv",
}


@pytest.mark.parametrize("fault", ["locked", "full"])
def test_a_change_that_cannot_be_stored_is_one_line_and_holds_up_nobody(
    monkeypatch, path, keys, fault
):
    monkeypatch.setattr(database_module, "_WAIT_SECONDS", 4.0)
    key = keys.create("weblate")
    headers = {"Authorization": f"DeepL-Auth-Key {key}"}
    with (
        serving(keyed_service(path)) as url,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        with _broken(path, fault):
            stored = pool.submit(call, url, "/v2/glossaries", GLOSSARY, **headers)
            time.sleep(0.2)
            assert call(url, "/translate", {**HELLO, "api_key": key})[0] == 200
            assert fault == "full" or not stored.done()  # a lock is waited for
            assert stored.result() == (
                503,
                {"message": "the server's database cannot be used; try again later"},
            )
        assert call(url, "/v2/glossaries", GLOSSARY, **headers)[0] == 201


def test_a_database_that_cannot_be_read_is_one_clear_line(monkeypatch, path, keys, capfd):
    service = keyed_service(path)

    def broken(key, address):
        raise DatabaseError(f"{path}: disk I/O error")

    monkeypatch.setattr(service.users, "identify", broken)
    with serving(service) as url:
        status, answer = call(url, "/translate", {**HELLO, "api_key": "any"})
        assert (status, answer) == (
            503,
            {"error": "the server's database cannot be used; try again later"},
        )
    assert "Traceback" not in capfd.readouterr().err
