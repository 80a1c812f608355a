"""Preparation steps against slow implementations and on cases written by hand."""

import dataclasses
import pickle
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mnmt_jax.data.preparation import transforms
from mnmt_jax.data.preparation.character_rules import (
    Histogram,
    PunctuationOnly,
    PunctuationShare,
    Script,
    Unreadable,
)
from mnmt_jax.data.preparation.characters import CodePoints, character_table, fold
from mnmt_jax.data.preparation.duplicates import (
    NearDuplicates,
    PairDuplicates,
)
from mnmt_jax.data.preparation.histograms import read_histogram, write_histogram
from mnmt_jax.data.preparation.language_rule import DetectedLanguage
from mnmt_jax.data.preparation.length_rules import Length, LengthRatio, PieceLength, PieceRatio
from mnmt_jax.data.preparation.ngram_hashes import ngram_hashes
from mnmt_jax.data.preparation.pair_rules import Copies, Numbers, RepeatedNgrams, Score
from mnmt_jax.data.preparation.steps import PairBatch, SideRule
from mnmt_jax.data.preparation.transforms import Moses, Normalize, Segment
from mnmt_jax.errors import UserError
from tests import slow_steps
from tests.slow_steps import both, drops

DIRECTION = slow_steps.DIRECTION
EDGE_CASES = slow_steps.EDGE_CASES
SLOW_RULES = slow_steps.SLOW_RULES
BATCH = slow_steps.made_batch(1500)


@pytest.mark.parametrize("name", SLOW_RULES)
def test_rules_keep_what_slow_implementations_keep(name):
    rule, accepts = SLOW_RULES[name]
    expected = [*map(accepts, BATCH.sources, BATCH.targets)]
    actual = rule.keeps(BATCH)
    assert actual.dtype == bool and 0.02 < actual.mean() < 0.98
    wrong = np.flatnonzero(actual != expected)
    assert not len(wrong), (BATCH.sources[wrong[0]], BATCH.targets[wrong[0]])


@pytest.mark.parametrize("name", SLOW_RULES)
def test_rules_are_picklable_and_judge_a_pair_alone(name):
    rule = SLOW_RULES[name][0]
    order = random.Random(1).sample(range(len(BATCH)), 200)
    part = PairBatch(
        [BATCH.sources[index] for index in order],
        [BATCH.targets[index] for index in order],
        DIRECTION,
    )
    again = pickle.loads(pickle.dumps(rule))
    assert again == rule and again.title() and "." not in again.title()
    np.testing.assert_array_equal(again.keeps(part), rule.keeps(BATCH)[order])
    assert rule.keeps(PairBatch([], [], DIRECTION)).shape == (0,)


def batch(*pairs: tuple[str, str], direction=DIRECTION, **scores) -> PairBatch:
    columns = {name: np.array(values) for name, values in scores.items()}
    return PairBatch([x for x, _ in pairs], [y for _, y in pairs], direction, columns)


def kept(rule, *pairs: tuple[str, str], direction=DIRECTION) -> list[int]:
    return rule.keeps(batch(*pairs, direction=direction)).astype(int).tolist()


def test_lengths_by_hand():
    assert kept(Length(), ("", "a"), ("a", ""), ("a", "b")) == [0, 0, 1]
    assert kept(Length(max_words=2), ("a\tb", "c"), ("a b c", "d"), (" ", "e")) == [1, 0, 1]
    assert kept(Length(max_characters=2), ("😀😀", "a"), ("a", "שלום")) == [1, 0]
    assert kept(LengthRatio(2), ("", ""), ("a", ""), ("a b", "c"), ("a b c", "d")) == [1, 0, 1, 0]


def test_ratios_and_shares_are_exact_at_their_limits():
    """63 / 45 is 1.4 and 55 / 100 is 0.55, although the products are rounded to the other side."""
    numbers = np.array([[1, 1], [14, 10], [63, 45], [64, 45], [0, 0], [1, 0]])
    for lengths in (numbers, numbers[:, ::-1]):
        assert PieceRatio(1.4).keeps(lengths).astype(int).tolist() == [1, 1, 1, 0, 1, 0]
    pairs = [("a" * 14 * n, "b" * 10 * n) for n in range(1, 60)]
    assert all(kept(LengthRatio(1.4, "characters"), *pairs))
    for n in range(1, 60):
        script = (f"{'б' * 9 * n}{'a' * 11 * n}", "a")
        marks = (f"{'a' * 9 * n}{'.' * 11 * n}", "a")
        assert kept(Script(min_share=0.55), script, script[::-1], direction=("en", "de")) == [1, 1]
        assert kept(PunctuationShare(0.55), marks) == [0]


def test_scripts_by_hand():
    pairs = [("Hello", "こんにちは"), ("Привет", "日本"), ("Hello", "Tokyo"), ("1", "テー")]
    assert kept(Script(), *pairs) == [1, 0, 0, 1]
    assert kept(Script(), ("a", "日𝐀𝐁𝐂"), ("a", "日abc")) == [1, 0]
    assert kept(Script(min_share=0.9), ("abcd", "東京 ab"), ("abcd", "東京")) == [0, 1]
    serbian = ("Добро", "Dobro")
    assert kept(Script(), serbian, serbian[::-1], direction=("bg", "sr")) == [0, 0]
    both_scripts = Script(scripts={"sr": ("Latn", "Cyrl")})
    assert kept(both_scripts, serbian, ("да", "да"), direction=("bg", "sr")) == [1, 1]
    Script().check_languages(["zh", "zh-Hant", "ko", "ur", "am"])


GERMAN = "Das Wetter in den Bergen war gestern viel besser, als wir gedacht hatten."
ENGLISH = "The weather in the mountains was much better yesterday than we had expected."


def test_languages_are_detected():
    pairs = [(GERMAN, ENGLISH), (ENGLISH, ENGLISH), (GERMAN, GERMAN), ("1987", "..."), ("", "")]
    rule = DetectedLanguage()
    assert kept(rule, *pairs, direction=("de", "en")) == [1, 0, 0, 1, 1]
    assert kept(rule, *pairs, direction=("de", "zu")) == [1, 0, 1, 1, 1]
    swapped = [(target, source) for source, target in pairs]
    assert kept(pickle.loads(pickle.dumps(rule)), *swapped, direction=("en", "de")) == [
        1,
        0,
        0,
        1,
        1,
    ]


def test_languages_without_a_reliable_label_pass_with_a_warning(capsys):
    rule = DetectedLanguage()
    assert kept(rule, (ENGLISH, ENGLISH), direction=("en", "lo")) == [1]
    rule.check_languages(["en", "th", "lo", "zu"])
    warning = "warning: language: lid.176 has no reliable label for lo, zu, so that their sentences"
    assert capsys.readouterr().err.startswith(warning)
    rule.check_languages(["en", "th", "pt_BR"])
    assert not capsys.readouterr().err


def test_a_missing_language_model_names_the_setting(tmp_path):
    with pytest.raises(UserError, match=r"^language: lid_model = .*lid\.bin: no such file; name"):
        DetectedLanguage(str(tmp_path / "lid.bin")).check_languages(["de"])


def test_copies_by_hand():
    pairs = [("OK!", "ok"), ("OK", "OK"), ("Straße", "STRASSE"), ("a b", "ab"), ("", "")]
    assert kept(Copies(), *pairs) == [1, 0, 1, 1, 0]
    assert kept(Copies(ignore_case=True), *pairs) == [1, 0, 0, 1, 0]
    assert kept(Copies(ignore_punctuation=True), *pairs) == [1, 0, 1, 0, 0]
    assert kept(Copies(True, True), *pairs, ("한", "다")) == [0, 0, 0, 0, 0, 1]


def test_punctuation_by_hand():
    assert kept(PunctuationOnly(), ("...", "a"), ("3", "一"), ("😀", "a"), ("", "")) == [0, 1, 0, 0]
    published = PunctuationShare(0.5, "ascii")
    assert kept(published, ("a.", "a"), ("ab.", "a"), ("a—–b-", "a"), ("", "a")) == [0, 1, 0, 0]
    assert kept(published, ("你。。", "a")) == [1]
    assert kept(PunctuationShare(), ("你。。", "a"), ("你好。", "a")) == [0, 1]


def test_numbers_by_hand():
    pairs = [
        ("1,000 in 2020", "2020: 1.000"),
        ("٣", "3"),
        ("३३", "3 3"),
        ("7", "007"),
        ("one", "x"),
    ]
    assert kept(Numbers(), *pairs) == [1, 1, 0, 0, 1]
    assert kept(Numbers(1), ("1 2", "1"), ("1 2", "3"), ("1 1", "1")) == [1, 0, 1]
    assert kept(Numbers(), ("9" * 5000, "9" * 5000), ("𝟙", "1")) == [1, 1]


def test_repeated_ngrams_by_hand():
    rule = RepeatedNgrams(2, 2)
    assert kept(rule, ("a b a b a b", "x"), ("a b a b", "x"), ("a a a", "x")) == [0, 1, 1]
    assert kept(rule, ("a a a a", "x"), ("x", "ab a b a b")) == [0, 1]
    assert kept(RepeatedNgrams(1, 2, "characters"), ("哈哈", "x"), ("x", "哈哈哈")) == [1, 0]


@pytest.mark.parametrize("n", range(1, 10))
def test_hashes_of_n_grams_are_equal_for_equal_n_grams(n):
    text = "abracadabra abracadabra, bracad"
    hashes, sentences = ngram_hashes(CodePoints([text, "", "ab", text[3:]]), n, words=False)
    ngrams = [
        (index, x[start : start + n])
        for index, x in enumerate([text, "", "ab", text[3:]])
        for start in range(len(x) - n + 1)
    ]
    assert sentences.tolist() == [index for index, _ in ngrams]
    by_ngram = {ngram: value for (_, ngram), value in zip(ngrams, hashes.tolist(), strict=True)}
    assert [by_ngram[ngram] for _, ngram in ngrams] == hashes.tolist()
    assert len({*by_ngram.values()}) == len(by_ngram)


def test_n_grams_do_not_cross_sentences():
    pairs = [("a b", "x")] * 4
    assert kept(RepeatedNgrams(2, 1), *pairs) == [1] * 4
    assert kept(RepeatedNgrams(1, 1), *pairs) == [1] * 4


def test_unreadable_characters_by_hand():
    readable = "می‌خواهم \u200f\tक्‍ष 👩‍👩‍👧 \ufeff\u00ad"
    assert kept(Unreadable(), (readable, "日本"), ("caf\ufffd", "a"), ("a", "a\x85")) == [1, 0, 0]
    assert kept(Unreadable(), ("a", "\ue000"), ("\U000fffff", "a"), ("\udc80", "a")) == [0, 0, 0]


def test_scores_by_hand():
    pairs = batch(*[("a", "b")] * 4, laser=[1.05, 1.06, np.nan, 2.0])
    assert Score("laser", 1.06).keeps(pairs).tolist() == [False, True, False, True]
    with pytest.raises(UserError, match="column = 'comet': en-ja has no such score; it has laser$"):
        Score("comet", 0.5).keeps(pairs)


def test_histograms_are_written_and_read(tmp_path):
    write_histogram(tmp_path / "en", ["aac ] b", "  a\u2028\n", "]"])
    lines = (tmp_path / "en").read_text(encoding="utf-8").split("\n")
    assert lines == ["a\t3", " \t2", "]\t2", "b\t1", "c\t1", ""]
    assert read_histogram(tmp_path / "en") == "a "
    assert read_histogram(tmp_path / "en", "x") == "a ]bc"
    (tmp_path / "ja").write_text("日 5\n本 4\n\n]\n語\n", encoding="utf-8")
    assert read_histogram(tmp_path / "ja") == "日本"


def test_histogram_rule_follows_the_published_formula(tmp_path):
    frequent = {"en": "abcde ", "ja": "世界あいア "}
    for code, characters in frequent.items():
        write_histogram(tmp_path / code, [characters * 2 + "]", "~"])
    rule = Histogram(str(tmp_path))

    def accepts(sentence, language):
        line = sentence + "\n"
        return sum(c in frequent[language] for c in sentence) / len(line) > 0.5

    expected = [*map(both(accepts), BATCH.sources, BATCH.targets)]
    assert rule.keeps(BATCH).tolist() == expected and any(expected)
    assert kept(rule, ("a", "世界"), ("ab", "世界"), ("ab~", "世界")) == [0, 1, 0]


def test_missing_histograms_are_one_line(tmp_path):
    rule = Histogram(str(tmp_path))
    with pytest.raises(UserError, match=rf"^histogram: {tmp_path}/de: No such file .*; write it"):
        rule.check_languages(["de"])
    (tmp_path / "de").write_bytes(b"\xff\n")
    with pytest.raises(UserError, match="not UTF-8"):
        rule.check_languages(["de"])
    (tmp_path / "de").write_text("]\n")
    with pytest.raises(UserError, match=r"no character before '\]'"):
        rule.check_languages(["de"])
    with pytest.raises(UserError, match="no text to count"):
        write_histogram(tmp_path / "fr", ["", "\n"])


def test_histograms_may_be_with_the_corpora(tmp_path, monkeypatch):
    for folder in ("data", "here"):
        (tmp_path / folder / "histograms").mkdir(parents=True)
        write_histogram(tmp_path / folder / "histograms" / "de", [folder])
    monkeypatch.setenv("MNMT_JAX_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    rule = Histogram("histograms")
    (path,) = rule.dependencies(["de"])
    assert path == str(tmp_path / "data" / "histograms" / "de")
    rule.check_languages(["de"])
    monkeypatch.chdir(tmp_path / "here")
    assert [*rule.dependencies(["de"])] == [str(Path("histograms") / "de")]


def test_exact_duplicates_are_those_of_sets_of_strings():
    compared = [row for row in slow_steps.compare(300) if "duplicates" in row[0]]
    assert len(compared) == 6 and all(same and 0 < count < 290 for _, count, _, same in compared)
    keys = PairDuplicates().keys(BATCH)
    assert keys.dtype == np.uint64 and keys.shape == (len(BATCH), 1)


def test_sides_of_a_pair_are_separate_in_its_key():
    keys = PairDuplicates().keys(batch(("ab", "c"), ("a", "bc"), ("", "abc"), ("abc", "")))
    assert len(np.unique(keys)) == 4
    assert PairDuplicates().keys(batch()).shape == (0, 1)


TEXT = "The committee adopted the report on the situation of human rights in the region in 2019"


@pytest.fixture(params=["stand-in", "datasketch"])
def minhash(request, monkeypatch):
    """Take MinHash from datasketch, or from a stand-in."""
    if request.param == "datasketch":
        pytest.importorskip("datasketch", reason='pip install ".[prepare]"')
    else:
        monkeypatch.setitem(sys.modules, "datasketch", SimpleNamespace(MinHash=slow_steps.MinHash))


def test_the_stand_in_is_datasketch():
    package = pytest.importorskip("datasketch", reason='pip install ".[prepare]"')
    sets = [[3, 2**32 - 1, 7], [0], list(range(500))]
    settings = {"num_perm": 50, "seed": 1, "scheme": "affine32", "hashfunc": int}
    by_package, by_stand_in = (
        [minhash.hashvalues.tolist() for minhash in cls.generator(sets, **settings)]
        for cls in (package.MinHash, slow_steps.MinHash)
    )
    assert by_package == by_stand_in


def test_near_duplicates_share_a_key(minhash):
    other = "Die Kinder spielten den ganzen Tag im Garten hinter dem Haus ihrer Grossmutter"
    pairs = batch(
        (TEXT, other),
        (TEXT.lower() + "!", other + "."),
        (TEXT.replace("2019", "2018"), other),
        (TEXT[::-1], other[::-1]),
        (other, TEXT),
        ("", ""),
        ("a", ""),
        ("", "a"),
    )
    rule = NearDuplicates()
    keys = rule.keys(pairs)
    assert keys.dtype == np.uint64 and keys.shape == (8, 14)
    np.testing.assert_array_equal(keys[0], keys[1])
    assert drops(keys) == [False, True, True, False, False, False, False, False]
    for index in range(len(pairs)):
        alone = batch((pairs.sources[index], pairs.targets[index]))
        np.testing.assert_array_equal(rule.keys(alone)[0], keys[index])
    assert rule.keys(batch()).shape == (0, 14)
    assert rule.threshold == pytest.approx(0.719, abs=1e-3)


def test_near_duplicates_follow_the_jaccard_similarity(minhash):
    """Bands agree about as often as `s**rows`."""
    rng = random.Random(3)
    letters = [chr(0x4E00 + index) for index in range(4000)]
    rule = NearDuplicates(n=1, bands=200, rows=2)
    agreements, similarities = [], []
    for _ in range(12):
        common, others = rng.randrange(20, 100), rng.randrange(5, 30)
        chosen = rng.sample(letters, common + 2 * others)
        first, second = chosen[: common + others], chosen[:common] + chosen[common + others :]
        keys = rule.keys(batch(("".join(first), ""), ("".join(second), "")))
        agreements.append((keys[0] == keys[1]).mean())
        # The empty targets add one n-gram of padding to both sets.
        similarities.append((common + 1) / (common + 2 * others + 1))
    assert np.abs(np.array(agreements) - np.square(similarities)).mean() < 0.05
    assert min(similarities) < 0.6 and max(similarities) > 0.8


def test_missing_packages_are_one_line(monkeypatch):
    for name in ("datasketch", "sacremoses", "jieba"):
        monkeypatch.setitem(sys.modules, name, None)
    for cached in (transforms._jieba, transforms._tokenizer):
        cached.cache_clear()
    for step in (NearDuplicates(), Moses(), Segment()):
        with pytest.raises(UserError, match=rf"^{step.name} needs .*pip install '\.\[prep"):
            step.check_languages(["en", "zh"])
    Segment().check_languages(["en", "de"])


def test_piece_rules_by_hand():
    lengths = np.array([[0, 1], [1, 1], [250, 83], [251, 200], [100, 34], [2, 0]])
    assert PieceLength(1, 250).keeps(lengths).tolist() == [False, True, True, False, True, False]
    assert PieceRatio(3).keeps(lengths).tolist() == [False, True, False, True, True, False]
    assert PieceRatio(3).keeps(np.array([[1, 3], [3, 1], [0, 0]])).all()
    assert PieceLength().keeps(np.zeros((0, 2), int)).shape == (0,)


def test_normalization_by_hand():
    sentences = ["e\u0301  ﬁ\t\u3000x ", "", "①"]
    assert Normalize().apply(sentences, "fr") == ["é ﬁ x", "", "①"]
    assert Normalize("NFKC").apply(sentences, "fr") == ["é fi x", "", "1"]
    assert Normalize("none").apply(sentences, "fr") == ["e\u0301 ﬁ x", "", "①"]
    assert Normalize("NFKC", spaces=False).apply(["a\u3000b "], "fr") == ["a b "]


def test_moses_by_hand():
    pytest.importorskip("sacremoses")
    sentences = ["„Well-known“ words , e.g. A&B…", ""]
    assert Moses().apply(sentences, "en") == ['"Well-known" words , e.g. A&B...', ""]
    tokens = Moses(tokenize=True).apply(sentences, "en")
    assert tokens == ['" Well-known " words , e.g. A & B ...', ""]
    split = Moses(punctuation=False, tokenize=True, split_hyphens=True)
    assert split.apply(["Well-known."], "en") == ["Well @-@ known ."]
    assert Moses(languages=("de",)).apply(sentences, "en") == sentences
    for code, tokens in (("en", "It 's"), ("en_GB", "It 's"), ("fr", "It' s"), ("fr_CA", "It' s")):
        assert Moses(tokenize=True).apply(["It's"], code) == [tokens]


def test_only_chinese_is_segmented(monkeypatch):
    by_pairs = SimpleNamespace(
        lcut=lambda text: [text[i : i + 2] for i in range(0, len(text), 2)],
        setLogLevel=lambda level: None,
    )
    monkeypatch.setitem(sys.modules, "jieba", by_pairs)
    transforms._jieba.cache_clear()
    assert Segment().apply(["我来到北京", "", "他 们"], "zh-Hant") == ["我来 到北 京", "", "他 们"]
    assert Segment().apply(["東京都"], "ja") == ["東京都"]
    assert Segment().apply(["nǐ hǎo"], "zh_Latn") == ["nǐ hǎo"]
    transforms._jieba.cache_clear()


def test_jieba_segments():
    pytest.importorskip("jieba", reason='pip install ".[prepare]"')
    transforms._jieba.cache_clear()
    sentences = ["我来到北京清华大学，2019年。", "他 说 hello"]
    expected = ["我 来到 北京 清华大学 ， 2019 年 。", "他 说 hello"]
    assert Segment().apply(sentences, "zh") == expected


def test_folding_keeps_marks_and_sentence_borders():
    sentences = ["Ab,c!", "", "...", "हिं दी", "ẞ"]
    assert fold(sentences, case=True, punctuation=True) == ["abc", "", "", "हिंदी", "ss"]
    assert fold([], case=True, punctuation=True) == []


def test_code_points_count_characters_per_sentence():
    code_points = CodePoints(EDGE_CASES)
    letters = code_points.count(character_table(r"\p{L}"))
    assert letters.tolist() == [sum(x.isalpha() for x in text) for text in EDGE_CASES]
    assert letters.sum() == 9 and code_points.lengths.tolist() == [*map(len, EDGE_CASES)]
    assert CodePoints([]).count(character_table(r"\p{L}")).shape == (0,)


@dataclasses.dataclass(frozen=True)
class WrittenIn(SideRule):
    """Language of the sentence.

    More text.
    """

    name = "written_in"
    prefix: str = "x"

    def __post_init__(self):
        self.require_choice("prefix", ("x", "y"))

    def accepts_side(self, side):
        return np.array([text == side.language for text in side.sentences])


def test_side_rules_know_the_language_and_drop_a_pair_for_either_side():
    pairs = [("de", "en"), ("de", "x"), ("en", "en"), ("en", "de")]
    assert kept(WrittenIn(), *pairs, direction=("de", "en")) == [1, 0, 0, 0]
    assert WrittenIn.title() == "Language of the sentence"


def test_too_many_hashes_name_the_setting_to_change():
    with pytest.raises(UserError, match="bands = 2000 must be 1024 or less$"):
        NearDuplicates(bands=2000)
    with pytest.raises(UserError, match="rows = 8 must be 5 or less with 200 bands$"):
        NearDuplicates(bands=200)
    assert NearDuplicates(bands=1024, rows=1).bands == 1024


def test_a_wrong_setting_is_named():
    with pytest.raises(UserError, match=r"^written_in: prefix = 'z' must be one of x, y$"):
        WrittenIn("z")
