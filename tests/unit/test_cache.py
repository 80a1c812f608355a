"""The token cache: round trip, shards, atomic writing, damage and errors."""

from __future__ import annotations

import itertools
import json
import pickle
import shutil
import types

import numpy as np
import pytest

from mnmt_jax.config.sections import Data
from mnmt_jax.data.cache import TokenCache, decode_records, shard_path
from mnmt_jax.data.cache_writer import TaskSource, encode_pairs, write_cache
from mnmt_jax.data.input_pipeline import Pipeline
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.vocabulary import Vocabulary
from tests.unit import made_text


def text_pairs(count: int) -> list[tuple[str, str]]:
    return list(
        zip(made_text.sentences("en", count), made_text.sentences("de", count), strict=True)
    )


def task(name: str = "made_en_de", count: int = 25, **changes) -> TaskSource:
    vocabulary = made_text.vocabulary()
    splits = {"train": lambda: encode_pairs(vocabulary, text_pairs(count))}
    return TaskSource(
        name, **({"source_lang": "en", "target_lang": "de", "splits": splits} | changes)
    )


@pytest.fixture
def cache(tmp_path) -> TokenCache:
    return write_cache(
        tmp_path / "cache", [task()], vocabulary=made_text.vocabulary(), shard_examples=10
    )


def test_written_caches_are_read_back(cache):
    vocabulary = cache.vocabulary
    assert cache.split("made_en_de", "train").shards == (10, 10, 5)
    for index, (source, target) in enumerate(text_pairs(25)):
        pieces = cache.pair("made_en_de", "train", index)
        assert [part.tolist() for part in pieces] == [
            vocabulary.encode(source),
            vocabulary.encode(target),
        ]
        assert vocabulary.decode(pieces[1]) == target
        assert cache.lengths("made_en_de", "train")[index].tolist() == [len(p) for p in pieces]
    split = cache.split("made_en_de", "train")
    assert [split.source_tokens, split.target_tokens] == (
        cache.lengths("made_en_de", "train").sum(axis=0).tolist()
    )


def test_a_missing_cache_setting_names_the_command():
    with pytest.raises(UserError, match="Data.cache is not set.*mnmt cache"):
        TokenCache.open("")


def test_records_are_read_in_the_requested_order_across_shards(cache):
    indices = np.array([24, 3, 11, 10, 9, 3, 0])
    records = cache.read("made_en_de", "train", indices)
    lengths = cache.lengths("made_en_de", "train")[indices]
    source, target = decode_records(records, lengths)
    expected = [cache.pair("made_en_de", "train", int(index)) for index in indices]
    assert source.tolist() == np.concatenate([pair[0] for pair in expected]).tolist()
    assert target.tolist() == np.concatenate([pair[1] for pair in expected]).tolist()


@pytest.mark.parametrize(("seconds", "serial"), [(1e9, 5), (0.7, 3), (0.0, 0)])
def test_the_remaining_records_of_a_slow_read_are_read_in_parallel(
    cache, monkeypatch, seconds, serial
):
    """One by one in memory; in parallel after the deadline, on a clock that counts its readings."""
    clock = types.SimpleNamespace(perf_counter=itertools.count().__next__)
    monkeypatch.setattr("mnmt_jax.data.cache.time", clock)
    monkeypatch.setattr("mnmt_jax.data.cache._SERIAL_SECONDS", seconds)
    expected = [cache.pair("made_en_de", "train", index) for index in (7, 2, 2, 9, 0)]
    reader = cache._reader(shard_path(cache.directory, "made_en_de", "train", 0))
    calls = []
    monkeypatch.setattr(cache, "_reader", lambda path: _Spy(reader, calls))
    records = cache.read("made_en_de", "train", np.array([7, 2, 2, 9, 0]))
    assert [np.frombuffer(record, "<i4")[1:].tolist() for record in records] == [
        np.concatenate(pair).tolist() for pair in expected
    ]
    assert calls == [()] * serial + ([([7, 2, 2, 9, 0][serial:],)] if serial < 5 else [])


class _Spy:
    """A reader of records that lists the arguments of its reads."""

    def __init__(self, reader, calls):
        self.seek, self._reader, self._calls = reader.seek, reader, calls

    def read(self, *arguments):
        self._calls.append(arguments)
        return self._reader.read(*arguments)


def test_a_cache_survives_pickling_and_reopening(cache):
    for again in (pickle.loads(pickle.dumps(cache)), TokenCache.open(cache.directory)):
        assert again.tasks == cache.tasks
        assert again.pair("made_en_de", "train", 7)[0].tolist() == (
            cache.pair("made_en_de", "train", 7)[0].tolist()
        )


def test_the_number_of_open_files_is_limited(cache, monkeypatch):
    monkeypatch.setattr("mnmt_jax.data.cache._OPEN_FILES", 2)
    expected = cache.read("made_en_de", "train", np.arange(25))
    again = TokenCache.open(cache.directory)
    for index in (24, 3, 12, 24, 0):
        assert again.read("made_en_de", "train", np.array([index])) == [expected[index]]
        assert 1 <= len(again._readers) <= 2


def test_a_failed_write_keeps_the_old_cache(tmp_path, cache):
    def broken():
        yield [3], [4]
        raise RuntimeError("disk unplugged")

    bad = task(splits={"train": broken})
    for directory, overwrite in ((tmp_path / "new", False), (cache.directory, True)):
        with pytest.raises(RuntimeError, match="unplugged"):
            write_cache(directory, [bad], vocabulary=cache.vocabulary, overwrite=overwrite)
    assert not (tmp_path / "new").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    assert TokenCache.open(cache.directory).tasks == cache.tasks


def test_overwriting_needs_a_flag(cache):
    with pytest.raises(UserError, match="exists.*--overwrite"):
        write_cache(cache.directory, [task()], vocabulary=cache.vocabulary)
    again = write_cache(
        cache.directory, [task(count=3)], vocabulary=cache.vocabulary, overwrite=True
    )
    assert again.split("made_en_de", "train").examples == 3


def test_only_caches_are_overwritten(tmp_path, cache):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "train.en").write_text("one\n")
    (tmp_path / "file").write_text("mine")
    for name in ("corpus", "file"):
        with pytest.raises(UserError, match=f"{name}: already exists and is not a cache; choose"):
            write_cache(tmp_path / name, [task()], vocabulary=cache.vocabulary, overwrite=True)
    assert (tmp_path / "corpus" / "train.en").read_text() == "one\n"
    (tmp_path / "empty").mkdir()
    write_cache(tmp_path / "empty", [task()], vocabulary=cache.vocabulary)


def test_exchanged_vocabularies_and_damage_are_detected(cache):
    text = (cache.directory / "cache.json").read_text()
    facts = json.loads(text)
    (cache.directory / "cache.json").write_text(json.dumps(facts | {"format": 99}))
    with pytest.raises(UserError, match="format 99"):
        TokenCache.open(cache.directory)
    (cache.directory / "cache.json").write_text(text)
    vocabulary = cache.vocabulary
    Vocabulary(vocabulary.model, ("de", "en", "fr")).save(cache.directory / "vocabulary")
    with pytest.raises(UserError, match="another vocabulary"):
        TokenCache.open(cache.directory)
    vocabulary.save(cache.directory / "vocabulary")
    records = cache.read("made_en_de", "train", np.arange(2))
    lengths = np.array(cache.lengths("made_en_de", "train")[:2])
    with pytest.raises(ValueError, match="damaged"):
        decode_records(records, lengths + 1)
    swapped = lengths + np.array([[1, -1], [0, 0]])
    with pytest.raises(ValueError, match="damaged"):
        decode_records(records, swapped)


def test_pairs_without_pieces_on_a_side_are_left_out(tmp_path, capsys):
    """Text of a single language is pairs with an empty source, which stay."""
    pairs = [([3], [4]), ([5], []), ([], [6]), ([7], [8, 9])]
    single = dict(source_lang="en", target_lang="en", splits={"train": lambda: [([], [3])] * 2})
    tasks = [task(splits={"train": lambda: iter(pairs)}), task("single", **single)]
    cache = write_cache(tmp_path / "cache", tasks, vocabulary=made_text.vocabulary())
    kept = [tuple(part.tolist() for part in pair) for pair in cache.pairs("made_en_de", "train")]
    assert kept == [pairs[0], pairs[3]] and cache.split("single", "train").examples == 2
    warning = "warning: task 'made_en_de', train: 2 of 4 pairs (first: pair 2) have a side without"
    assert capsys.readouterr().err.startswith(warning)
    empty = task(splits={"train": lambda: iter(pairs[1:3])})
    with pytest.raises(UserError, match="train: 2 of 2 pairs .* --vocabulary"):
        write_cache(tmp_path / "empty", [empty], vocabulary=made_text.vocabulary())


def test_errors_name_the_remedy(tmp_path, cache):
    vocabulary = cache.vocabulary
    with pytest.raises(UserError, match="'mnmt cache' wrote"):
        TokenCache.open(tmp_path / "missing")
    with pytest.raises(UserError, match="occurs twice"):
        write_cache(tmp_path / "a", [task(), task()], vocabulary=vocabulary)
    with pytest.raises(UserError, match="no examples"):
        write_cache(tmp_path / "a", [task(count=0)], vocabulary=vocabulary)
    with pytest.raises(UserError, match="no tasks"):
        write_cache(tmp_path / "a", [], vocabulary=vocabulary)
    with pytest.raises(UserError, match="'xx' has no tag"):
        write_cache(tmp_path / "a", [task(source_lang="xx")], vocabulary=vocabulary)
    with pytest.raises(UserError, match="no split 'test'"):
        cache.split("made_en_de", "test")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (task(), "'made_en_de' occurs twice"),
        (task("other", target_lang="xx"), "'xx' has no tag"),
        (task("a/b"), "task='a/b'"),
    ],
)
def test_names_and_languages_are_checked_before_any_text_is_read(tmp_path, last, message):
    tasks = [task(splits={"train": lambda: pytest.fail("read")}), last]
    with pytest.raises(UserError, match=message):
        write_cache(tmp_path / "a", iter(tasks), vocabulary=made_text.vocabulary())


TASK, SHARDS = "tasks/made_en_de", "train-0000{}.array_record"


def _flip(path):
    data = bytearray(path.read_bytes())
    data[300] ^= 0x41  # in a record: most of a small file is padding
    path.write_bytes(data)


def _other_lengths(path):
    np.save(path, np.load(path)[::-1])


def _other_total(path):
    np.save(path, np.load(path) + 1)


@pytest.mark.parametrize("serial_seconds", [0.0, 1e9])
@pytest.mark.parametrize("jumps", [0, 1])
@pytest.mark.parametrize(
    ("file", "damage"),
    [
        (SHARDS.format(1), _flip),
        (SHARDS.format(1), lambda path: path.write_bytes(path.read_bytes()[:100])),
        (SHARDS.format(1), lambda path: path.write_bytes(path.read_bytes()[:65536])),
        (SHARDS.format(1), lambda path: shutil.copy(path.with_name(SHARDS.format(2)), path)),
        (SHARDS.format(0), lambda path: path.unlink()),
        ("train-lengths.npy", lambda path: path.unlink()),
        ("train-lengths.npy", lambda path: path.write_bytes(path.read_bytes()[:150])),
        ("train-lengths.npy", lambda path: path.write_bytes(b"PK\3\4 no array")),
        ("train-lengths.npy", lambda path: np.save(path, np.zeros((25, 2), object))),
        ("train-lengths.npy", _other_total),
        ("train-lengths.npy", _other_lengths),
    ],
)
def test_damage_errors_name_the_file(cache, monkeypatch, file, damage, jumps, serial_seconds):
    """Read directly, and through the pipeline's thread; one by one, and in parallel."""
    monkeypatch.setattr("mnmt_jax.data.cache._SERIAL_SECONDS", serial_seconds)
    path = cache.directory / TASK / file
    damage(path)
    again = TokenCache.open(cache.directory)
    data = Data(rows=4, source_length=64, target_length=64)
    pipeline = Pipeline(again, get_layout("prefix", (1,)), data)
    with pytest.raises(UserError, match="is (damaged|missing).*make the cache again") as caught:
        if jumps:
            next(pipeline.train())
        else:
            again.read("made_en_de", "train", np.arange(25))
    named = "array_record" if damage is _other_lengths else file
    assert str(caught.value).startswith(str(path.parent)) and named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: "{",
        lambda facts: "[]",
        lambda facts: json.dumps({"format": facts["format"]}),
        lambda facts: json.dumps(facts | {"tasks": [{"name": "x"}]}),
        lambda facts: json.dumps(facts).replace('"examples": 25', '"examples": 26'),
        lambda facts: json.dumps(facts).replace('"examples": 25', '"examples": "25"'),
        lambda facts: json.dumps(facts).replace("made_en_de", "../../made_en_de"),
        lambda facts: json.dumps(facts).replace("made_en_de", "/etc"),
        lambda facts: json.dumps(facts).replace('"train"', '"../x"'),
    ],
)
def test_a_damaged_list_of_tasks_is_refused(cache, change):
    path = cache.directory / "cache.json"
    text = change(json.loads(path.read_text()))
    path.write_text(text)
    with pytest.raises(UserError, match=r"cache\.json: is damaged .*make the cache again"):
        TokenCache.open(cache.directory)


def test_a_cache_without_its_vocabulary_names_the_copies(cache):
    """Its tokens fit no new vocabulary."""
    shutil.rmtree(cache.directory / "vocabulary")
    with pytest.raises(UserError, match="no such file; copy that of a run trained on the cache"):
        TokenCache.open(cache.directory)


def test_storage_errors_are_not_reported_as_damage(cache, monkeypatch):
    def fail(*_):
        raise RuntimeError("read() failed: Input/output error")

    monkeypatch.setattr(TokenCache, "_reader", fail)
    with pytest.raises(UserError, match=r"cannot be read \(Input/output error\); check the stor"):
        cache.read("made_en_de", "train", np.arange(2))
