"""Data.noise: case, typing errors and tags in training pairs."""

from __future__ import annotations

import collections
import random
import types
import typing

import numpy as np
import pytest

from mnmt_jax.config.sections import Data
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.cache_writer import TaskSource, write_cache
from mnmt_jax.data.converter import Segments
from mnmt_jax.data.document_context import Context
from mnmt_jax.data.input_pipeline import Pipeline
from mnmt_jax.data.instruction import join_auxiliary
from mnmt_jax.data.noise import NOISE_TYPES, Noise, lower, tags, title, typos, upper
from mnmt_jax.data.noisy_segments import add_noise
from mnmt_jax.design.fields import NoiseKind
from mnmt_jax.design.layouts import LANGUAGE_MODELS, LAYOUTS
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.sentencepiece_options import SentencePieceOptions
from mnmt_jax.vocabulary.sentencepiece_training import train_sentencepiece
from tests.unit import made_text
from tests.unpacked import unpack

PAIRS = 400


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> TokenCache:
    """Pairs of German and English with pieces for letters of both cases and for tags."""
    folder = tmp_path_factory.mktemp("noise")
    german, english = (made_text.sentences(code, PAIRS) for code in ("de", "en"))
    marks = '<b> </b> [b] {name} ${VAR} %1$s <a href="#"> em g1 p i |'
    text = {
        "de": [*german, *map(str.upper, german), *map(str.title, german)],
        "en": [*english, *map(str.upper, english), *map(str.title, english), marks],
    }
    options = SentencePieceOptions(vocab_size=120, byte_fallback=False)
    vocabulary = train_sentencepiece(text, folder / "vocabulary", options=options)
    pairs = list(
        zip(vocabulary.encode_lines(german), vocabulary.encode_lines(english), strict=True)
    )
    source = TaskSource(
        "made_de_en",
        "de",
        "en",
        {"train": lambda: iter(pairs), "validation": lambda: iter(pairs[:20])},
    )
    return write_cache(folder / "cache", [source], vocabulary=vocabulary)


def data_of(**changes) -> Data:
    defaults = dict(
        instruction="1",
        rows=8,
        source_length=200,
        target_length=200,
        max_segments=4,
        chunk_examples=PAIRS,
        temperature=1.0,
    )
    return Data(**(defaults | changes))


def texts_of(cache: TokenCache, data: Data, chunk: int = 0) -> list[tuple[str, str]]:
    """Return the pairs of a chunk as text, sorted by the index of the pair in the corpus."""
    pipeline = Pipeline(cache, LAYOUTS["prefix"], data)
    plan = pipeline.plan(chunk)
    pairs = [
        tuple(cache.vocabulary.decode(ids) for ids in (example.source, example.target))
        for batch in pipeline.iterate_chunk(chunk)
        for row in unpack(pipeline.converter, batch)
        for example in row
    ]
    assert len(pairs) == len(plan.index) == PAIRS
    return [pairs[number] for number in np.argsort(plan.index)]


def test_text_of_each_kind():
    pair, codes, rng = ("Die Straße in İzmir", "the Street"), ("de", "en"), random.Random(1)
    assert lower(pair, codes, rng) == ("die straße in i̇zmir", "the Street")
    assert upper(pair, codes, rng) == ("DIE STRASSE IN İZMIR", "THE STREET")
    assert title(pair, codes, rng) == ("Die Straße In İzmir", "The Street")
    assert upper(("istanbul ışık", "in"), ("tr", "en"), rng) == ("İSTANBUL IŞIK", "IN")
    assert lower(("IŞIK İL", ""), ("az_Latn", "en"), rng)[0] == "ışık il"
    assert upper(("今天 ไทย", "x"), ("zh", "en"), rng) == ("今天 ไทย", "X")
    source, target = tags(pair, codes, rng)
    assert source.replace(pair[0], "|") == target.replace(pair[1], "|") != "|"


def test_typos_are_one_edit_each():
    kinds = collections.Counter()
    for seed in range(300):
        text, target = typos(("abcdefgh", "x"), ("de", "en"), random.Random(seed))
        assert target == "x"
        kinds[len(text) - 8] += 1
        if len(text) == 8:
            at = next(i for i in range(8) if text[i] != "abcdefgh"[i])
            swapped = "abcdefgh"[at + 1] + "abcdefgh"[at]
            assert text == "abcdefgh"[:at] + swapped + "abcdefgh"[at + 2 :]
    assert all(60 < kinds[change] < 140 for change in (-1, 0, 1)) and len(kinds) == 3
    drops = types.SimpleNamespace(random=lambda: 0.0)  # each edit drops the first character
    lost = {
        size: size - len(typos(("a" * size, ""), ("de", "en"), drops)[0]) for size in (39, 40, 200)
    }
    assert lost == {39: 1, 40: 2, 200: 6}
    assert typos(("a", ""), ("de", "en"), random.Random(3)) == ("a", "")


def test_draws_are_the_same_everywhere():
    """Values of the definition, written down: other versions must not change them unseen."""
    noise = Noise((("typos", 0.4), ("tags", 0.3)))
    assert noise.kinds(np.arange(12, dtype=np.uint64)).tolist() == [
        1,
        0,
        0,
        -1,
        1,
        -1,
        -1,
        -1,
        0,
        -1,
        0,
        1,
    ]
    pair = "vor zwei Tagen", "two days ago"
    assert noise.change(pair, ("de", "en"), 0, 7) == ("or zwei Tagen", "two days ago")
    assert noise.change(pair, ("de", "en"), 1, 7) == (
        "<b>vor zwei Tagen</b>",
        "<b>two days ago</b>",
    )


def test_the_configuration_has_a_name_for_each_kind():
    assert set(typing.get_args(NoiseKind)) == set(NOISE_TYPES)


def test_shares_are_those_of_the_configuration():
    noise = Noise((("lower", 0.1), ("upper", 0.0), ("tags", 0.25)))
    kinds = np.bincount(noise.kinds(np.arange(100_000, dtype=np.uint64)) + 1)
    assert kinds / 100_000 == pytest.approx([0.65, 0.1, 0, 0.25], abs=0.005)


@pytest.mark.parametrize("kind", sorted(NOISE_TYPES))
def test_batches_hold_the_text_with_its_noise(cache, kind):
    """Each pair is the function's result for its text, the chosen ones alone; nothing is lost."""
    plain = texts_of(cache, data_of())
    noisy = texts_of(cache, data_of(noise=((kind, 0.5),)))
    changed = [pair for pair, before in zip(noisy, plain, strict=True) if pair != before]
    least = 0.1 if kind == "lower" else 0.3  # many sentences have no capital
    assert least * PAIRS < len(changed) < 0.6 * PAIRS
    for (source, target), (old_source, old_target) in zip(noisy, plain, strict=True):
        if (source, target) == (old_source, old_target):
            continue
        if kind == "upper":
            assert (source, target) == (old_source.upper(), old_target.upper())
        elif kind == "lower":
            assert (source, target) == (old_source.lower(), old_target)
        elif kind == "tags":
            assert old_source in source and old_target in target
        elif kind == "typos":
            assert target == old_target and abs(len(source) - len(old_source)) <= 4
        else:
            assert (source.lower(), target.lower()) == (old_source.lower(), old_target.lower())


@pytest.mark.parametrize("kind", sorted(NOISE_TYPES))
def test_a_chunk_has_the_noise_in_its_sentences(cache, tmp_path, kind):
    context, count = Context(100, "|"), 3
    plain = texts_of(cache, data_of())
    starts = [(plain * 2)[number : number + count] for number in range(PAIRS)]
    texts = [tuple(map(context.join, zip(*pairs, strict=True))) for pairs in starts]
    encode = cache.vocabulary.encode
    pairs = [(encode(source), encode(target)) for source, target in texts]
    source = TaskSource("made_de_en", "de", "en", {"train": lambda: iter(pairs)}, context=context)
    chunks = write_cache(tmp_path / "cache", [source], vocabulary=cache.vocabulary)
    data = data_of(noise=((kind, 1.0),), source_length=600, target_length=600)
    changes = collections.Counter()
    for sides, before in zip(texts_of(chunks, data), starts, strict=True):
        sentences = list(zip(*map(context.split, sides), strict=True))
        assert len(sentences) == count
        changed = [pair for pair, old in zip(sentences, before, strict=True) if pair != old]
        changes[len(changed)] += 1
        if kind == "tags" and changed:
            (old,) = (pair for pair in before if pair not in sentences)
            left, right = (new.replace(text, "") for new, text in zip(changed[0], old, strict=True))
            assert left == right != ""
    least = 0 if kind == "lower" else PAIRS / 2  # many sentences have no capital
    assert changes[1 if kind == "tags" else count] > least


def test_noise_with_the_separator_leaves_a_chunk_as_it_is():
    noise, context = Noise((("tags", 1.0),)), Context(9, "$")
    pair = "one$ two", "eins$ zwei"
    results = {noise.change(pair, ("en", "de"), 0, key, context) for key in range(99)}
    assert pair in results and len(results) == 1 + 2 * 10  # two of twelve tags have the separator
    assert all(side.count("$") == 1 for sides in results for side in sides)


def test_the_second_translation_of_a_prompted_source_stays(cache):
    """`S [tag] A` becomes `noise(S) [tag] A`; every other source is plain."""
    vocabulary, noise = cache.vocabulary, Noise((("upper", 1.0),))
    pairs = [cache.pair("made_de_en", "train", number) for number in range(20)]
    plain = [source.tolist() for source, _ in pairs]
    others = [target.tolist() for _, target in pairs]
    sources = [
        join_auxiliary(vocabulary, source, "en", others[-1 - number]) if number % 2 else source
        for number, source in enumerate(plain)
    ]
    segments = Segments(
        row=np.arange(20),
        source=np.array(sum(sources, []), np.int32),
        source_counts=np.array([*map(len, sources)]),
        target=np.array(sum(others, []), np.int32),
        target_counts=np.array([*map(len, others)]),
        per_segment=np.zeros((3, 20), np.int32),
        keys=np.zeros(20, np.uint64),
    )
    kinds, keys = np.zeros(20, np.int64), np.arange(20, dtype=np.uint64)
    planned = np.full((20, 2), 500)
    planned[7, 0] = len(sources[7]) - 1  # no room
    noisy = add_noise(
        segments, noise, vocabulary, kinds=kinds, keys=keys, planned=planned, contexts=[None]
    )
    changed = np.split(noisy.source, np.cumsum(noisy.source_counts)[:-1])
    for number, (before, ids) in enumerate(zip(sources, changed, strict=True)):
        capitals = vocabulary.encode(vocabulary.decode(plain[number]).upper())
        expected = capitals + before[len(plain[number]) :]
        assert ids.tolist() == (before if number == 7 else expected) != []
    assert noisy.source.dtype == np.int32 and changed[6].tolist() != sources[6]


def test_each_epoch_has_other_noise(cache):
    data = data_of(noise=(("upper", 0.5),))
    first, second = texts_of(cache, data), texts_of(cache, data, chunk=1)
    assert first == texts_of(cache, data)
    assert 0.3 * PAIRS < sum(a != b for a, b in zip(first, second, strict=True)) < 0.7 * PAIRS


def test_text_that_needs_too_much_room_stays(cache):
    """Rows as long as the longest pair have no room for capitals, which are several pieces here."""
    lengths = cache.lengths("made_de_en", "train").max(axis=0)
    data = dict(
        source_length=int(lengths[0]) + 2, target_length=int(lengths[1]) + 1, max_segments=1
    )
    pairs = texts_of(cache, data_of(noise=(("tags", 1.0),), **data))
    plain = texts_of(cache, data_of(**data))
    kept = [pair == before for pair, before in zip(pairs, plain, strict=True)]
    assert 0 < sum(kept) < PAIRS
    for (source, target), (old_source, old_target) in zip(pairs, plain, strict=True):
        assert (source == old_source) == (target == old_target)


def test_validation_has_no_noise(cache):
    layout = LAYOUTS["prefix"]
    plain, noisy = (
        list(Pipeline(cache, layout, data_of(noise=noise)).validation())
        for noise in ((), (("upper", 1.0),))
    )
    for (_, first), (_, second) in zip(plain, noisy, strict=True):
        for name in first:
            np.testing.assert_array_equal(first[name], second[name])


def test_a_position_of_other_noise_is_refused(cache):
    state = Pipeline(cache, LAYOUTS["prefix"], data_of()).train().get_state()
    noisy = Pipeline(cache, LAYOUTS["prefix"], data_of(noise=(("upper", 0.1),)))
    with pytest.raises(UserError, match="other Data settings"):
        noisy.train().set_state(state)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ((("caps", 0.1),), "must be one of lower, upper, title, typos, tags"),
        ((("upper", 1.5),), "must be at least 0 and at most 1"),
        ((("upper", 0.6), ("typos", 0.6)), "shares of at most 1 in all"),
        ((("upper", 0.1), ("upper", 0.2)), "Data.noise names 'upper' twice; leave one"),
        (("upper", 0.1), r"must be a tuple of \(kind, share\), such as"),
    ],
)
def test_bad_noise_is_refused(value, reason):
    with pytest.raises(UserError, match=reason):
        Data(noise=value)


def test_shares_of_all_pairs_are_accepted_in_any_order():
    """Added one after the other these are 1.0000000000000002."""
    shares = zip(("lower", "upper", "title", "typos"), (0.05, 0.55, 0.3, 0.1), strict=True)
    assert len(Data(noise=tuple(shares)).noise) == 4


def test_language_models_have_no_noise(cache):
    layout = next(iter(LANGUAGE_MODELS.values()))
    with pytest.raises(UserError, match="is for pairs, but layout"):
        Pipeline(cache, layout, data_of(noise=(("upper", 0.1),)))
