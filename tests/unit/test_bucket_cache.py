"""A token cache in a bucket: copies that are checked, bounded and shared, and outages."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import socket
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from mnmt_jax.commands import cache as cache_command
from mnmt_jax.commands import describe as describe_command
from mnmt_jax.config.sections import Data
from mnmt_jax.data.back_translation import BackTranslatedPairs, BackTranslationDraws
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.cache_files import run_in_threads
from mnmt_jax.data.cache_writer import TaskSource, encode_pairs, write_cache
from mnmt_jax.data.cldr import CldrCorpus
from mnmt_jax.data.cldr_export import export_cldr
from mnmt_jax.data.input_pipeline import Pipeline
from mnmt_jax.data.preparation.outputs import TextOutput
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.errors import OutageError, UserError
from mnmt_jax.files import bucket_reader
from mnmt_jax.files.atomic_write import locked
from mnmt_jax.files.local_copies import FOLDER_VARIABLE, GIB, LIMIT_VARIABLE
from mnmt_jax.runtime.run_command import run_command, warnings_as_lines
from tests.made_bucket import OUTAGES, TROUBLES, WRONG, serve
from tests.unit import made_text

URL = "gs://bucket/caches/one"
DIRECTIONS = (("en", "de"), ("de", "en"), ("en", "fr"))
SHARD = "caches/one/tasks/made_en_de/train-00001.array_record"
LENGTHS = "caches/one/tasks/made_en_de/train-lengths.npy"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A cache of three tasks of three shards, 65 kB each."""
    vocabulary = made_text.vocabulary()

    def task(source: str, target: str) -> TaskSource:
        texts = (made_text.sentences(code, 30) for code in (source, target))
        pairs = list(zip(*texts, strict=True))
        splits = {
            "train": lambda: encode_pairs(vocabulary, pairs),
            "validation": lambda: encode_pairs(vocabulary, pairs[:6]),
        }
        return TaskSource(f"made_{source}_{target}", source, target, splits)

    folder = tmp_path_factory.mktemp("cache") / "cache"
    tasks = [task(*direction) for direction in DIRECTIONS]
    write_cache(folder, tasks, vocabulary=vocabulary, shard_examples=10)
    return folder


@pytest.fixture
def server(folder, monkeypatch, tmp_path):
    """A bucket with the cache; pauses are short, and copies are kept for the test alone."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "copies"))
    monkeypatch.setattr(bucket_reader, "_SHORTEST_PAUSE", 0.01)
    with serve(objects=objects(folder)) as store:
        yield store


def objects(folder: Path) -> dict[str, bytes]:
    """Return the objects of a bucket with a copy of a cache."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {f"caches/one/{path.relative_to(folder)}": path.read_bytes() for path in files}


def data(**changes) -> Data:
    settings = {"rows": 4, "source_length": 64, "target_length": 64, "chunk_examples": 24}
    return Data(**(settings | changes))


def pipeline(cache: TokenCache, **changes) -> Pipeline:
    return Pipeline(cache, get_layout("prefix", (1,)), data(**changes))


def batches(cache: TokenCache, count: int = 12, **changes) -> list:
    """Return validation batches and the first training batches."""
    made = pipeline(cache, **changes)
    iterator = made.train()
    return [batch for _, batch in made.validation()] + [next(iterator) for _ in range(count)]


def assert_same_batches(actual: list, expected: list) -> None:
    assert len(actual) == len(expected) > 10
    for left, right in zip(actual, expected, strict=True):
        assert left.keys() == right.keys()
        for name in left:
            np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def without_digests(store) -> None:
    """Make the cache one of format 2."""
    facts = json.loads(store.objects["caches/one/cache.json"][1])
    facts["format"] = 2
    for task in facts["tasks"]:
        for split in task["splits"].values():
            del split["lengths_file"], split["shard_files"]
    store.write("caches/one/cache.json", json.dumps(facts).encode(), None)


def copies(tmp_path: Path) -> list[Path]:
    paths = (tmp_path / "copies" / "token_caches").rglob("*")
    return [path for path in paths if path.is_file() and path.name != ".used"]


def copy_of(name: str, tmp_path: Path) -> Path:
    [path] = (tmp_path / "copies").rglob(name.removeprefix("caches/one/"))
    return path


@pytest.mark.parametrize("is_old", [False, True])
def test_a_cache_in_a_bucket_has_the_batches_of_its_folder(folder, server, is_old):
    if is_old:
        without_digests(server)
    expected, cache = TokenCache.open(folder), TokenCache.open(f"{URL}/")
    assert list(cache.tasks) == list(expected.tasks)
    assert cache.vocabulary.fingerprint == expected.vocabulary.fingerprint
    assert pipeline(cache).fingerprint() == pipeline(expected).fingerprint()
    assert_same_batches(batches(cache), batches(expected))
    assert_same_batches(batches(pickle.loads(pickle.dumps(cache))), batches(expected))


def test_loader_workers_share_the_copies(folder, server):
    """Their clients are of their own, and one process makes a copy for all."""
    cache = TokenCache.open(URL)
    assert_same_batches(batches(cache, workers=2), batches(TokenCache.open(folder)))
    names = [name for name in server.read if "/tasks/" in name]
    assert len(set(names)) == len(names) > 10


def test_each_file_is_copied_once_also_for_later_processes(server):
    for _ in range(2):
        batches(TokenCache.open(URL))
    names = [name for name in server.read if "/tasks/" in name]
    assert len(set(names)) == len(names) == 18  # of each task 3 shards, 1 of validation, 2 lengths


@pytest.mark.parametrize("trouble", TROUBLES)
def test_trouble_that_ends_changes_no_batch(folder, server, trouble, capfd, monkeypatch):
    """With the first request of every file."""
    if trouble == "stalled":
        monkeypatch.setattr(bucket_reader, "_TIMEOUT", (30.0, 0.5))
    server.trouble = lambda name: trouble if server.read.count(name) == 1 else ""
    with warnings_as_lines():
        actual = batches(TokenCache.open(URL))
    server.trouble = lambda name: ""
    assert_same_batches(actual, batches(TokenCache.open(folder)))
    said = capfd.readouterr().err.splitlines()
    assert bool(said) == (trouble in OUTAGES)
    if said:
        assert said[0].startswith(f"warning: {URL}/cache.json: no answer (")
        assert said[1].startswith(f"warning: {URL}: answers again after ")
        reasons = {"503": "503 Service Unavailable", "429": "429 Too Many Requests"}
        assert reasons.get(trouble, "") in said[0]


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("name", [SHARD, LENGTHS, "caches/one/cache.json"])
@pytest.mark.parametrize("trouble", WRONG)
def test_trouble_that_stays_ends_in_one_line(server, trouble, name, is_old):
    if is_old:
        without_digests(server)
    server.trouble = lambda asked: trouble if asked == name else ""
    with pytest.raises(UserError) as caught:
        batches(TokenCache.open(URL))
    assert str(caught.value).startswith(f"gs://bucket/{name}: ")
    assert "\n" not in str(caught.value) and not isinstance(caught.value, OutageError)
    assert server.read.count(name) <= 9


def test_an_outage_that_stays_ends_with_status_75(server, monkeypatch, capfd):
    monkeypatch.setattr(bucket_reader, "_PATIENCE", 0.2)
    server.trouble = lambda name: "503" if name == SHARD else ""
    with pytest.raises(SystemExit) as caught:
        run_command(lambda: bool(batches(TokenCache.open(URL))))
    lines = capfd.readouterr().err.splitlines()
    assert caught.value.code == 75 and len(lines) == 2
    assert lines[0].startswith(f"warning: gs://bucket/{SHARD}: no answer (503 Service Unavailable)")
    assert lines[1].startswith(f"error: gs://bucket/{SHARD}: no answer for 0 minutes (503 ")
    assert lines[1].endswith("run the same command again: it continues")


def test_a_bucket_that_never_answers_ends_soon(server, monkeypatch):
    monkeypatch.setattr(bucket_reader, "_FIRST_PATIENCE", 0.2)
    server.refuses = 503, b"{}"
    with pytest.raises(OutageError, match="see to the network and the name of the bucket, and run"):
        TokenCache.open(URL)


def test_a_server_that_starts_later_is_waited_for(folder, monkeypatch, tmp_path, capfd):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "copies"))
    monkeypatch.setattr(bucket_reader, "_SHORTEST_PAUSE", 0.05)
    with socket.create_server(("localhost", 0)) as listener:
        port = listener.getsockname()[1]
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://localhost:{port}")
    read: list = []
    with warnings_as_lines():
        thread = threading.Thread(
            target=lambda: read.append(batches(TokenCache.open(URL))), daemon=True
        )
        thread.start()
        said = ""
        while "Connection refused" not in said and thread.is_alive():
            said += capfd.readouterr().err
        with serve(port, objects(folder)):
            thread.join()
    assert_same_batches(read[0], batches(TokenCache.open(folder)))
    assert said.count("\n") == 1


def test_wrong_lists_are_refused_at_the_start(server):
    server.listed_sizes[SHARD] = 7
    with pytest.raises(UserError, match=rf"{SHARD}: is damaged \(7 bytes in the bucket, \d+ in"):
        TokenCache.open(URL)
    del server.listed_sizes[SHARD], server.objects[SHARD]
    with pytest.raises(UserError, match=f"{SHARD}: no such file; copy the cache"):
        TokenCache.open(URL)
    with pytest.raises(UserError, match="gs://bucket/caches/none: no such file or folder"):
        TokenCache.open("gs://bucket/caches/none")
    with pytest.raises(UserError, match=r"gs://bucket/caches/cache\.json: no such file"):
        TokenCache.open("gs://bucket/caches")


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda content: content[:300] + bytes([content[300] ^ 1]) + content[301:],
        lambda content: content[:-4],
        lambda content: content + b"0",
    ],
)
def test_files_that_are_replaced_in_the_bucket_are_refused(server, change, is_old):
    """Google's checksum is that of the new content."""
    if is_old:
        without_digests(server)
    cache = TokenCache.open(URL)
    server.write(SHARD, change(server.objects[SHARD][1]), None)
    with pytest.raises(UserError, match=f"gs://bucket/{SHARD}: is damaged") as caught:
        batches(cache)
    assert "\n" not in str(caught.value)


def test_a_shard_with_other_padding_is_refused(server):
    """ArrayRecord does not check it."""
    content = server.objects[SHARD][1]
    assert content[-200:-100] == bytes(100)
    cache = TokenCache.open(URL)
    server.write(SHARD, content[:-150] + b"0" + content[-149:], None)
    with pytest.raises(UserError, match=f"{SHARD}: is damaged .other bytes were sent than were"):
        batches(cache)


def test_text_is_not_written_to_a_bucket(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="gs://bucket/new: must not be in a bucket"):
        TextOutput().check(Path("gs://bucket/new"), overwrite=False)
    with pytest.raises(UserError, match="gs://bucket/new: must not be in a bucket"):
        export_cldr(CldrCorpus(("en", "de")), "gs://bucket/new", file_format="tsv", sizes={})
    assert not list(tmp_path.iterdir())


def _flip(path: Path) -> None:
    """Change a byte of a record, or of the lengths of an example."""
    with open(path, "r+b") as file:
        file.seek(300)
        byte = file.read(1)[0]
        file.seek(300)
        file.write(bytes([byte ^ 1]))


def _truncate(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()  # an open file with fewer bytes than its map in memory would end the process
    path.write_bytes(content[:100])


@pytest.mark.parametrize("name", [SHARD, LENGTHS])
@pytest.mark.parametrize(
    "damage",
    [_flip, _truncate, Path.unlink],
)
def test_damaged_copies_are_replaced(folder, server, tmp_path, name, damage):
    batches(TokenCache.open(URL))
    damage(copy_of(name, tmp_path))
    assert_same_batches(batches(TokenCache.open(URL)), batches(TokenCache.open(folder)))
    assert server.read.count(name) == 2
    assert copy_of(name, tmp_path).read_bytes() == server.objects[name][1]


def test_a_copy_that_is_damaged_while_it_is_open_is_replaced(folder, server, tmp_path):
    expected, cache = TokenCache.open(folder), TokenCache.open(URL)
    batches(cache)
    _flip(copy_of(SHARD, tmp_path))
    assert_same_batches(batches(cache), batches(expected))


def test_a_changed_cache_has_other_copies(server, folder, tmp_path):
    """All its files have the sizes of before."""
    cache = TokenCache.open(URL)
    batches(cache)
    pairs = [cache.pair("made_en_de", "train", number) for number in range(30)]
    turned = [(source[::-1].tolist(), target[::-1].tolist()) for source, target in pairs]
    changed = write_cache(
        tmp_path / "changed",
        [TaskSource("made_en_de", "en", "de", {"train": lambda: turned})],
        vocabulary=made_text.vocabulary(),
        shard_examples=10,
    )
    contents = objects(tmp_path / "changed")
    assert len(contents[SHARD]) == len(server.objects[SHARD][1])
    for name, content in contents.items():
        server.write(name, content, None)
    assert_same_batches(batches(TokenCache.open(URL)), batches(changed))


class TestLimit:
    """The folder of copies is bounded."""

    @pytest.fixture
    def limit(self, monkeypatch, folder):
        """Room for about half of the shards."""
        shard = (folder / "tasks/made_en_de/train-00000.array_record").stat().st_size
        monkeypatch.setenv(LIMIT_VARIABLE, str(7 * shard / GIB))
        return 7 * shard

    def test_least_recently_used_copies_are_removed(self, folder, server, tmp_path, limit, capfd):
        sizes, mine = [], tmp_path / "copies" / "mine.array_record"
        mine.parent.mkdir()
        mine.write_text("mine")

        def record_size(name: str) -> str:
            with locked(tmp_path / "copies" / "token_caches"):
                paths = copies(tmp_path) if "/tasks/" in name else []
                sizes.append(sum(path.stat().st_size for path in paths))
            return ""

        server.trouble = record_size
        with warnings_as_lines():
            cache = TokenCache.open(URL)
        assert f"{LIMIT_VARIABLE}=" in capfd.readouterr().err
        actual = batches(cache, 40, chunk_examples=3)
        server.trouble = lambda name: ""
        assert_same_batches(actual, batches(TokenCache.open(folder), 40, chunk_examples=3))
        assert limit / 2 < max(sizes) <= limit
        assert mine.read_text() == "mine"
        shards = [name for name in server.read if "train-0" in name]
        assert len(shards) > len(set(shards)) == 9

    def test_used_copies_stay(self, server, tmp_path, limit):
        cache = TokenCache.open(URL)
        for task in ("made_de_en", "made_en_fr"):
            cache.read("made_en_de", "train", np.array([10]))
            cache.read(task, "train", np.arange(30))
        assert server.read.count(SHARD) == 1

    def test_what_never_fits_is_refused(self, server, monkeypatch, limit):
        with pytest.raises(UserError, match=rf"of \S+ GiB are read together, but {LIMIT_VARIABLE}"):
            batches(TokenCache.open(URL), chunk_examples=2000)
        monkeypatch.setenv(LIMIT_VARIABLE, str(10_000 / GIB))
        with pytest.raises(UserError, match=f"train-0000.* GiB, but {LIMIT_VARIABLE}="):
            TokenCache.open(URL).read("made_en_de", "train", np.arange(3))
        monkeypatch.setenv(LIMIT_VARIABLE, "much")
        with pytest.raises(UserError, match=f"{LIMIT_VARIABLE}=much: must be a number above 0"):
            TokenCache.open(URL)

    def test_the_next_chunk_is_copied_ahead(self, server, limit):
        made = pipeline(TokenCache.open(URL), chunk_examples=3)
        for chunk in range(20):
            list(made.iterate_chunk(chunk))
            if background := made.cache._files._background:
                background.join()
                before = len(server.read)
                list(made.iterate_chunk(chunk + 1))
                assert len(server.read) == before
                break
        assert background

    def test_what_does_not_fit_beside_the_chunk_is_not_copied_ahead(self, server, limit):
        cache = TokenCache.open(URL)
        shards = [(task, "train", np.arange(30)) for task in cache.tasks]
        cache.fetch(shards[:1])
        before = len(server.read)
        for ahead, copied in ((shards[1:], 0), (shards[1:2], 3)):
            cache.fetch_ahead(lambda ahead=ahead: ahead)
            cache._files._background.join()
            assert len(server.read) == before + copied

    def test_leftovers_of_ended_processes_are_removed(self, server, tmp_path, limit):
        TokenCache.open(URL).read("made_en_de", "train", np.arange(30))
        leftover = tmp_path / "copies" / "token_caches" / ".some.array_record.partial"
        leftover.write_bytes(b"0" * (limit // 2))
        (tmp_path / "copies" / "token_caches" / ".used").unlink()
        TokenCache.open(URL).read("made_en_fr", "train", np.arange(30))
        assert not leftover.exists()


def test_a_full_disk_is_one_line(server, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(
        UserError, match=rf"copies.*No space left on device\); lower {LIMIT_VARIABLE}"
    ):
        TokenCache.open(URL)


def test_a_folder_of_another_user_is_refused(server, monkeypatch):
    monkeypatch.setattr("os.getuid", lambda: -1)
    with pytest.raises(UserError, match=f"token_caches: belongs to another .*{FOLDER_VARIABLE}"):
        TokenCache.open(URL)


def _read_all(cache: TokenCache) -> list[bytes]:
    """Return all training records; runs in other processes."""
    return [record for task in cache.tasks for record in cache.read(task, "train", np.arange(30))]


def test_processes_share_the_copies(folder, server):
    cache = TokenCache.open(URL)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        records = pool.map(_read_all, [cache, cache], chunksize=1)
    assert records[0] == records[1] == _read_all(TokenCache.open(folder))
    shards = [name for name in server.read if "train-0" in name]
    assert len(shards) == len(set(shards)) == 9


def test_threads_end_at_the_first_error():
    began, ends = [], threading.Event()

    def work(item: str) -> None:
        began.append(item)
        if item == "0":
            raise KeyError(item)
        ends.wait(60)

    with pytest.raises(KeyError):
        run_in_threads(work, [str(number) for number in range(100)])
    ends.set()
    assert len(began) <= 8


def test_commands_read_caches_in_buckets(folder, server, tmp_path, monkeypatch, capsys):
    def run(command, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["mnmt", *arguments])
        command.main()
        return capsys.readouterr().out

    (tmp_path / "text.en").write_text("one\ntwo\n")
    (tmp_path / "text.fr").write_text("un\ndeux\n")
    arguments = ["--parallel", str(tmp_path / "text.{language}"), "--languages=fr,en"]
    arguments += ["--directions=fr-en", "--name=more", f"--vocabulary={folder}/vocabulary"]
    run(cache_command, *arguments, f"--also={URL}", f"--output={tmp_path / 'both'}")
    run(cache_command, *arguments, f"--also={folder}", f"--output={tmp_path / 'plain'}")
    both, plain = (tmp_path / name / "cache.json" for name in ("both", "plain"))
    assert both.read_bytes() == plain.read_bytes()
    assert_same_batches(
        batches(TokenCache.open(both.parent)), batches(TokenCache.open(plain.parent))
    )
    with pytest.raises(UserError, match="--output=gs://bucket/new: must be on this machine; copy"):
        run(cache_command, *arguments, "--output=gs://bucket/new")
    with pytest.raises(
        UserError, match="gs://bucket/new: must not be in a bucket.*gcloud storage cp -r"
    ):
        write_cache("gs://bucket/new", [], vocabulary=made_text.vocabulary())
    flags = ["--gin_file=gin_configs/models/register_tiny.gin", "--gin.Train.epochs=3"]
    described = (
        json.loads(run(describe_command, *flags, f"--gin.Data.cache='{cache}'"))
        for cache in (URL, folder)
    )
    assert next(described) == next(described)


def test_back_translation_reads_caches_in_buckets(folder, server):
    draws = BackTranslationDraws(("de",), ("en", "fr"))
    read = [
        list(BackTranslatedPairs(TokenCache.open(cache), draws).sentences())
        for cache in (URL, folder)
    ]
    assert read[0] == read[1] and len(read[0]) == 30
