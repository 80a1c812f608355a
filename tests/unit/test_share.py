"""Subsampled training pairs: seeded, nested, equal in opposite directions, recorded."""

import json
import math

import pytest

from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.corpus import Corpus, Share
from mnmt_jax.data.mixtures import cache_task_sources
from mnmt_jax.data.parallel_corpora import CldrPhrases, ParallelFiles, TsvFile
from mnmt_jax.data.subsample import SubsampledCorpus
from mnmt_jax.errors import UserError
from tests.run_commands import command
from tests.unit import made_text

COUNT = 3000
SHARES = (0.3, 0.1, 0.03, 0.01)
DIRECTIONS = tuple((a, b) for a in ("en", "de", "fr") for b in ("en", "de", "fr") if a != b)


class Numbered(Corpus):
    """Corpus of numbered lines, equal on both sides; each split has another size."""

    sizes = {"train": COUNT, "validation": 40, "test": 50}

    def splits(self):
        return tuple(self.sizes)

    def directions(self, split):
        return DIRECTIONS

    def pairs(self, split, direction):
        return ((f"{direction[0]} {n}", f"{direction[1]} {n}") for n in range(self.sizes[split]))


def numbered() -> Numbered:
    return Numbered("numbered", ("en", "de", "fr"))


def kept(share: float, direction, seed: int = 0) -> list[int]:
    """Return the numbers of the kept lines, which are equal on both sides."""
    corpus = SubsampledCorpus(numbered(), Share(share, seed))
    pairs = list(corpus.pairs("train", direction))
    assert all(
        s.split()[1] == t.split()[1] and s.startswith(direction[0]) and t.startswith(direction[1])
        for s, t in pairs
    )
    assert corpus.size("train", direction) == len(pairs)
    return [int(source.split()[1]) for source, _ in pairs]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_subsamples_are_binomial_and_nested(direction):
    larger = set(range(COUNT))
    for share in SHARES:
        actual = kept(share, direction)
        assert abs(len(actual) - share * COUNT) < 4 * math.sqrt(COUNT * share * (1 - share))
        assert actual == sorted(actual) and set(actual) < larger
        larger = set(actual)
    assert kept(1.0, direction) == list(range(COUNT))


def test_subsamples_depend_on_seed_and_language_pair():
    everywhere = [kept(0.1, direction) for direction in DIRECTIONS]
    for direction, actual in zip(DIRECTIONS, everywhere, strict=True):
        assert actual == kept(0.1, direction) == kept(0.1, direction[::-1])
        others = [kept(0.1, d) for d in DIRECTIONS if set(d) != set(direction)]
        other_seed = kept(0.1, direction, seed=1)
        for other in (*others, other_seed):  # each pair of languages is drawn by itself
            assert 10 < len(set(actual) & set(other)) < 60  # 30 by chance
    lines = [n for n, _ in enumerate(kept(0.1, ("en", "de")))]
    thirds = [sum(n < COUNT * part / 3 for n in everywhere[0]) / len(lines) for part in (1, 2)]
    assert thirds == pytest.approx([1 / 3, 2 / 3], abs=0.1)  # from everywhere in the file


def test_at_least_one_pair_is_kept_and_is_in_every_larger_subsample():
    [lone] = kept(1e-9, ("en", "de"))
    assert [lone] == kept(1e-12, ("de", "en"))
    assert {kept(1e-9, ("en", "de"), seed)[0] for seed in range(5)} != {lone}
    for share in (1e-4, 0.001, *SHARES):
        assert lone in kept(share, ("en", "de"))


def test_held_out_text_is_not_subsampled():
    corpus = SubsampledCorpus(numbered(), Share(0.01))
    for split in ("validation", "test"):
        for direction in DIRECTIONS:
            assert list(corpus.pairs(split, direction)) == list(numbered().pairs(split, direction))


def test_every_kind_of_corpus(tmp_path):
    texts = {code: made_text.sentences(code, 400) for code in ("en", "de")}
    for code, lines in texts.items():
        (tmp_path / f"train.{code}").write_text("\n".join(lines) + "\n")
    rows = ["en\tde", *map("\t".join, zip(texts["en"], texts["de"], strict=True))]
    (tmp_path / "train.tsv").write_text("\n".join(rows) + "\n")
    files = ParallelFiles("a", f"{tmp_path}/{{split}}.{{language}}", ("en", "de"))
    table = TsvFile("b", f"{tmp_path}/{{split}}.tsv")
    actual = [
        list(SubsampledCorpus(corpus, Share(0.1)).pairs("train", ("en", "de")))
        for corpus in (files, table)
    ]
    assert actual[0] == actual[1] and 15 < len(actual[0]) < 70
    assert set(actual[0]) < set(files.pairs("train", ("en", "de")))
    phrases = SubsampledCorpus(CldrPhrases(("en", "de"), sizes={"train": 1000}), Share(0.1))
    assert 50 < phrases.size("train", ("en", "de")) < 160


def test_tasks_record_their_share():
    share = Share(0.1, 7)
    supervised = [("en", "de"), ("de", "en")]
    corpus = SubsampledCorpus(numbered(), share)
    tasks = list(cache_task_sources(corpus, supervised, made_text.vocabulary()))
    assert [task.share for task in tasks] == [share, share]
    other = SubsampledCorpus(numbered(), share)
    tasks = list(cache_task_sources(other, [*supervised, ("en", "fr")], made_text.vocabulary()))
    assert [task.share for task in tasks] == [share] * 3 + [None] * 3  # zero-shot: whole


@pytest.fixture
def data(tmp_path):
    for code in ("en", "de"):
        for split, count in (("train", 300), ("validation", 9)):
            text = "\n".join(made_text.sentences(code, count)) + "\n"
            (tmp_path / f"{split}.{code}").write_text(text, encoding="utf-8")
    return tmp_path


def cached(data, name, *flags):
    own = (
        f"--parallel={data}",
        "--languages=en,de",
        "--vocab_size=40",
        "--no-byte_fallback",
        "--name=mine",
    )
    command("cache_tasks", *own, f"--output={data / name}", *flags)
    return TokenCache.open(data / name)


def test_the_command_keeps_a_share_and_records_it(data, capsys):
    whole = cached(data, "whole")
    few = cached(data, "few", "--share=0.1", "--share_seed=3")
    out, error = capsys.readouterr()
    assert '"share": 0.1' in out and "mine_en_de: " in error and "(share 0.1, seed 3)" in error
    assert few.vocabulary.fingerprint == whole.vocabulary.fingerprint  # trained on all
    for name in ("mine_en_de", "mine_de_en"):
        assert whole.tasks[name].share is None and few.tasks[name].share == Share(0.1, 3)
        assert 10 < few.split(name, "train").examples < 60
        assert few.split(name, "train").content != whole.split(name, "train").content
        assert few.split(name, "validation") == whole.split(name, "validation")
    facts = json.loads((data / "few" / "cache.json").read_text())
    assert facts["tasks"][0]["share"] == {"of_pairs": 0.1, "seed": 3}
    for task in facts["tasks"]:  # as before there were shares
        del task["share"]
    (data / "few" / "cache.json").write_text(json.dumps(facts))
    assert TokenCache.open(data / "few").tasks["mine_en_de"].share is None


def test_tasks_reused_from_a_cache_keep_their_share(data):
    few = cached(data, "few", "--share=0.1", "--directions=en-de")
    flags = f"--also={data / 'few'}", f"--vocabulary={data / 'few' / 'vocabulary'}"
    own = f"--parallel={data}", "--languages=en,de", "--name=rest", "--directions=de-en"
    command("cache_tasks", *own, *flags, f"--output={data / 'both'}")
    both = TokenCache.open(data / "both")
    assert both.tasks["mine_en_de"] == few.tasks["mine_en_de"] and few.tasks["mine_en_de"].share
    assert both.tasks["rest_de_en"].share is None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--share=0"], r"--share=0\.0 must be above 0 and at most 1"),
        (["--share=10"], r"--share=10\.0 must be above 0 and at most 1"),
        (["--share=nan"], "--share=nan must be above 0"),
        (["--share=0.1", "--share_seed=-1"], "argument --share_seed: '-1' must be a whole"),
        (
            ["--share=few"],
            "argument --share: 'few' must be a number above 0 and at most 1, such as 0.1",
        ),
        (["--share_seed=0"], "^--share_seed=0 needs --share, such as --share=0.1"),
        (["--share=0.1", "--monolingual"], "--share does not apply to text of single languages"),
        (["--share_seed=1", "--monolingual"], "--share_seed does not apply to text of single"),
    ],
)
def test_invalid_shares_are_refused_before_anything_is_written(data, flags, message):
    with pytest.raises(UserError, match=message):
        cached(data, "cache", *flags)
    assert not (data / "cache").exists()
