"""Corpora of the language-specific layers paper: IWSLT17, Europarl, all of OPUS-100."""

import itertools
from collections import Counter

import pytest

from mnmt_jax.data import corpus as corpus_module
from mnmt_jax.data.mixtures import MIXTURES, zero_shot_directions
from mnmt_jax.data.parallel_corpora import get_corpus
from mnmt_jax.data.published_corpora import PUBLISHED
from mnmt_jax.vocabulary import sentencepiece_training
from tests.run_commands import command
from tests.unit.test_published import numbered, opus_files


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """The folder that MNMT_JAX_DATA names."""
    monkeypatch.setenv("MNMT_JAX_DATA", str(tmp_path))
    return tmp_path


def test_all_languages_of_opus100(data):
    """Five languages have training text alone; both corpora share a folder."""
    for pair in ("en-fr", "de-en", "an-en", "en-hy"):
        opus_files(data, pair, "train", ["A"], ["a"])
    for pair in ("en-fr", "de-en"):
        opus_files(data, pair, "dev", ["B"], ["b"])
        opus_files(data, pair, "test", ["C"], ["c"])
    opus_files(data, "de-fr", "test", ["D"], ["d"], kind="zero-shot")
    corpus, mixture = get_corpus("opus100_all"), MIXTURES["opus100_all"]
    tested = {("en", "fr"), ("fr", "en"), ("de", "en"), ("en", "de")}
    untested = {("an", "en"), ("en", "an"), ("hy", "en"), ("en", "hy")}
    assert set(corpus.directions("train")) == tested | untested
    assert set(corpus.directions("validation")) == tested
    assert set(corpus.directions("test")) == tested | {("de", "fr"), ("fr", "de")}
    assert list(corpus.pairs("train", ("hy", "en"))) == [("a", "A")]
    assert len(mixture.directions) == 198 and mixture.temperature == 1.0
    assert len(PUBLISHED["opus100_all"].zero_shot) == 30
    assert set(get_corpus("opus100").directions("train")) == tested


@pytest.fixture
def requested_counts(monkeypatch):
    """Record the numbers of pairs that corpora draw, instead of writing that many lines."""
    actual = []
    monkeypatch.setattr(
        corpus_module, "_draw", lambda count, drawn: actual.append(drawn) or [True] * count
    )
    return actual


def test_iwslt17_and_its_artificial_setups(data, requested_counts):
    for pair in ("en-it", "en-ro", "nl-en", "it-ro", "nl-ro", "it-nl"):
        for split, count in (("train", 4), ("dev", 2), ("test", 3)):
            numbered(data, "iwslt17", f"{split}.{pair}", count, pair.split("-"))
    centric = {pair for code in ("it", "ro", "nl") for pair in (("en", code), (code, "en"))}
    circle = {("it", "ro"), ("ro", "nl"), ("nl", "it")}
    zero_shot = circle | {(target, source) for source, target in circle}
    for name, drawn in (
        ("iwslt17", {}),
        ("iwslt17_circle", dict.fromkeys(circle, 30_000)),
        ("iwslt17_circle_90k", dict.fromkeys(circle, 30_000) | dict.fromkeys(centric, 90_000)),
    ):
        corpus, mixture = get_corpus(name), MIXTURES[name]
        trained = centric if name == "iwslt17" else centric | circle
        assert set(mixture.directions) == trained and mixture.temperature == 1.0
        assert PUBLISHED[name].path == data / "iwslt17"
        for split in ("validation", "test"):
            actual = zero_shot_directions(corpus, mixture.directions, split)
            assert set(actual) == zero_shot - trained
        for pair in trained:
            requested_counts.clear()
            assert corpus.size("train", pair) == 4
            assert requested_counts == [drawn[pair] for _ in range(pair in drawn)]
        assert (
            corpus.size("validation", ("nl", "it")) == 2 and corpus.size("test", ("ro", "nl")) == 3
        )


def test_german_is_added_to_iwslt17(data, requested_counts):
    for pair in itertools.combinations(("de", "en", "it", "nl", "ro"), 2):
        for split, count in (("train", 4), ("dev", 2), ("test", 3)):
            numbered(data, "iwslt17", f"{split}.{'-'.join(pair)}", count, pair)
    corpus, mixture = get_corpus("iwslt17_de"), MIXTURES["iwslt17_de"]
    assert set(mixture.directions) == {("en", "de"), ("de", "en")}
    others = {(code, "de") for code in ("it", "ro", "nl")}
    assert set(mixture.zero_shot) == others | {(b, a) for a, b in others}
    assert [corpus.size("train", pair) for pair in mixture.directions] == [4, 4]
    assert requested_counts == [15_000, 15_000]
    assert len(corpus.directions("test")) == 20 and corpus.size("test", ("it", "de")) == 3


@pytest.mark.parametrize(
    "form", ["{split}", "21lingual/{split}.21langmultiway.europarl-v7.{code}-en"]
)
def test_europarl_without_a_centre(data, form):
    for split, count in (("train", 5), ("dev", 2), ("test", 3)):
        for code in ("it", "nl", "de", "fr", "es"):
            numbered(data, "europarl", form.format(split=split, code=code), count, [code])
    triangle = {("it", "nl"), ("nl", "de"), ("de", "it")}
    square = {(a, b) for a in ("fr", "es") for b in ("it", "de")}
    square |= {(b, a) for a, b in square}
    for name, directions, languages in (
        ("europarl_triangle", triangle, "it nl de"),
        ("europarl_square", square, "fr it de es"),
    ):
        corpus, row = get_corpus(name), PUBLISHED[name]
        assert set(row.supervised) == directions and corpus.languages == tuple(languages.split())
        others = set(itertools.permutations(corpus.languages, 2)) - directions
        assert set(row.zero_shot) == others
        for split in ("validation", "test"):
            assert set(zero_shot_directions(corpus, row.supervised, split)) == others
        assert [corpus.size(split, min(others)) for split in corpus.splits()] == [5, 2, 3]


def test_europarl_pairs_are_sampled(data, requested_counts):
    for code in ("it", "nl", "de", "fr", "es"):
        numbered(data, "europarl", "train", 4, [code])
    for name, drawn in (("europarl_triangle", 200_000), ("europarl_square", 1_000_000)):
        corpus = get_corpus(name)
        assert all(corpus.size("train", pair) == 4 for pair in PUBLISHED[name].supervised)
        assert set(requested_counts) == {drawn} and len(requested_counts) == len(
            PUBLISHED[name].supervised
        )
        requested_counts.clear()


@pytest.fixture
def drawn_for_vocabulary(monkeypatch):
    """Return the vocabulary training sentences by language; nothing is trained."""
    actual = Counter()

    class DrawnError(Exception):
        pass

    def train(text, directory, *, options):
        drawn = sentencepiece_training.sample_sentences(text, options)
        actual.update(sentence.split()[0] for sentence in drawn)
        raise DrawnError

    monkeypatch.setattr(sentencepiece_training, "train_sentencepiece", train)

    def draw(*flags):
        actual.clear()
        with pytest.raises(DrawnError):
            command("train_vocabulary", *flags, "--output=nowhere")
        return dict(actual)

    return draw


def test_a_vocabulary_of_monolingual_text_has_each_english_sentence_once(
    data, drawn_for_vocabulary
):
    """English is in every pair, and its sentences are largely the same ones."""
    for pair, count in (("en-it", 20), ("en-ro", 20), ("nl-en", 24)):
        numbered(data, "iwslt17", f"train.{pair}", count, pair.split("-"))
    paired = drawn_for_vocabulary("--mixture=iwslt17")
    assert paired == {"en": 64, "it": 20, "ro": 20, "nl": 24}
    once = drawn_for_vocabulary("--mixture=iwslt17", "--monolingual")
    assert once == {"en": 24, "it": 20, "ro": 20, "nl": 24}


def test_a_vocabulary_samples_all_text_of_large_languages(tmp_path, drawn_for_vocabulary):
    """Of 1,100 sentences 100: in proportion, or raised; from the whole text."""
    for code, count in (("en", 1000), ("de", 100)):
        text = "".join(f"{code}-{10 * i // count} sentence\n" for i in range(count))
        (tmp_path / f"train.{code}").write_text(text, encoding="utf-8")
    files = (f"--text={tmp_path}/{{split}}.{{language}}", "--languages=en,de", "--sentences=100")
    shares = {}
    for temperature in ("1", "5"):
        drawn = drawn_for_vocabulary(*files, f"--temperature={temperature}")
        assert {f"en-{tenth}" for tenth in range(10)} <= drawn.keys()
        shares[temperature] = sum(count for word, count in drawn.items() if word < "en")
    assert 8 <= shares["1"] <= 9 and 37 <= shares["5"] <= 39
