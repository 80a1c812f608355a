"""Back-translation pairs: drawn languages, and the resulting cache."""

from __future__ import annotations

import collections

import numpy as np
import pytest

from mnmt_jax.commands.translated_cache import report_prompted_tasks
from mnmt_jax.data.back_translation import BackTranslatedPairs, BackTranslationDraws
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.cache_writer import ReusedTask, TaskSource, write_cache
from mnmt_jax.data.document_context import Context
from mnmt_jax.data.input_pipeline import Pipeline
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.errors import UserError
from tests.made_run import make_cache, make_config
from tests.unit import made_text

VOCABULARY = made_text.vocabulary()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return TokenCache.open(make_cache(tmp_path_factory.mktemp("pseudo") / "cache"))


def test_drawn_languages_are_uniform_and_differ_from_the_sentences_language():
    draws = BackTranslationDraws.of(("en", "de", "fr", "nl"), ())
    assert draws.pool == ("de", "fr", "nl")
    for target, others in (("de", ("fr", "nl")), ("en", draws.pool)):
        counts = collections.Counter(draws.drawn("some_task", target, 3000))
        mean = 3000 / len(others)
        assert set(counts) == set(others)
        assert all(abs(count - mean) < 4 * mean**0.5 for count in counts.values()), counts


def test_a_draw_depends_only_on_seed_round_task_and_pair():
    languages, pool = ("de", "fr"), ("de", "fr", "nl", "ru", "zh")
    first = BackTranslationDraws.of(languages, pool).drawn("task", "de", 200)
    assert BackTranslationDraws.of(languages, pool).drawn("task", "de", 70) == first[:70]
    others = (
        BackTranslationDraws.of(languages, pool, seed=2).drawn("task", "de", 200),
        BackTranslationDraws.of(languages, pool, round=2).drawn("task", "de", 200),
        BackTranslationDraws.of(languages, pool).drawn("other", "de", 200),
    )
    for other in others:
        assert 20 < sum(a == b for a, b in zip(first, other, strict=True)) < 90


def read(cache: TokenCache, task: str) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    count = cache.split(task, "train").examples
    return [
        tuple(tuple(side.tolist()) for side in cache.pair(task, "train", i)) for i in range(count)
    ]


def test_every_pair_occurs_once_with_its_translation_as_source(cache, tmp_path):
    pairs = BackTranslatedPairs(cache, BackTranslationDraws.of(("en", "de"), ("de", "fr", "en")))
    assert pairs.tasks == ("made_en_de", "made_de_en", "made_fr_en") and len(pairs) == 120
    sentences = list(pairs.sentences())
    translations = [f"{text} {target_language} {own}" for text, own, target_language in sentences]
    translations[7] = translations[50] = " "
    kept = [ReusedTask(cache, name) for name in cache.tasks]
    both = write_cache(
        tmp_path / "both", [*kept, *pairs.sources(iter(translations))], vocabulary=VOCABULARY
    )
    real = [pair for name in pairs.tasks for pair in read(cache, name)]
    expected = collections.defaultdict(list)
    for (_, target), (text, own, target_language), made in zip(
        real, sentences, translations, strict=True
    ):
        assert text == VOCABULARY.decode(target) and own != target_language
        if made.strip():
            source = tuple(VOCABULARY.encode_lines([made], target_language)[0])
            expected[f"back_translated_{target_language}_{own}"].append((source, target))
    assert sum(map(len, expected.values())) == 118
    new = [name for name in both.tasks if name not in cache.tasks]
    assert set(new) == set(expected) and len(new) == 4
    for name in new:
        assert collections.Counter(read(both, name)) == collections.Counter(expected[name])
        task = both.tasks[name]
        assert name == f"back_translated_{task.source_lang}_{task.target_lang}"
        assert set(task.splits) == {"train"}
    for name in cache.tasks:
        assert both.tasks[name] == cache.tasks[name]
    assert read(both, "made_en_fr") == read(cache, "made_en_fr")


def test_an_epoch_has_all_examples(cache):
    """Counted in the batches; the last chunk is incomplete."""
    config = make_config(cache.directory, data={"chunk_examples": 64, "temperature": 1.0})
    pipeline = Pipeline(cache, get_layout("prefix", (1,)), config.data)
    count = pipeline.count_batches(pipeline.epoch_examples)
    batches = pipeline.train()
    seen = sum(int((next(batches)["task"] >= 0).sum()) for _ in range(count))
    examples = 4 * 40
    per_batch = examples / count
    assert abs(seen - examples) < per_batch, (seen, count)
    whole = make_config(cache.directory, data={"chunk_examples": 80, "temperature": 1.0})
    even = Pipeline(cache, get_layout("prefix", (1,)), whole.data)
    batches = even.train()
    count = even.count_batches(even.epoch_examples)
    shown = [next(batches)["task"] for _ in range(count)]
    np.testing.assert_array_equal(
        np.bincount(np.concatenate([task[task >= 0] for task in shown])), [40] * 4
    )


def test_chunks_of_sentences_are_no_text_to_translate(tmp_path):
    """They would be translated as one line, with any number of separators."""

    def task(name: str, context: Context | None) -> TaskSource:
        return TaskSource(name, "de", "en", {"train": lambda: [([5, 6], [7])]}, context=context)

    tasks = [task("sentences", None), task("chunks", Context(9))]
    draws = BackTranslationDraws(("en",), ("fr",))
    both = write_cache(tmp_path / "both", tasks, vocabulary=VOCABULARY)
    assert BackTranslatedPairs(both, draws).tasks == ("sentences",)
    chunks = write_cache(tmp_path / "chunks", tasks[1:], vocabulary=VOCABULARY)
    with pytest.raises(UserError, match="chunks: no training task of sentences; name a cache that"):
        BackTranslatedPairs(chunks, draws)


def test_targets_of_prompted_pairs_are_translated_once(tmp_path, capsys):
    prompt = [5, 6, VOCABULARY.tag_id("fr"), 8]
    pairs = {"plain": [([5, 6], [7])], "prompted_plain": [(prompt, [7])]}
    tasks = [TaskSource(n, "de", "en", {"train": lambda n=n: pairs[n]}) for n in pairs]
    cache = write_cache(tmp_path / "cache", tasks, vocabulary=VOCABULARY)
    assert BackTranslatedPairs(cache, BackTranslationDraws(("en",), ("fr",))).tasks == ("plain",)
    report_prompted_tasks(cache, "not back-translated")
    assert capsys.readouterr().err.endswith("have their targets: prompted_plain\n")


@pytest.mark.parametrize(
    ("languages", "pool", "message"),
    [
        ("de,nl", "", "--languages: the vocabulary has no nl; it has en, de, fr"),
        ("de", "fr,fr", "--pool=fr,fr names a language twice"),
        ("de", "", "--pool=de has no language to translate 'de' into; name another"),
        ("en", "", "--languages without en has no language to translate 'en' into"),
    ],
)
def test_invalid_arguments_are_one_error_line(languages, pool, message, cache):
    draws = BackTranslationDraws.of(languages.split(","), pool.split(",") if pool else ())
    with pytest.raises(UserError, match=message) as caught:
        BackTranslatedPairs(cache, draws)
    assert "\n" not in str(caught.value)


def test_only_targets_of_real_pairs_are_translated(cache, tmp_path):
    def some():
        return [([5, 6], [7])]

    tasks = [TaskSource("back_translated_de_en", "de", "en", {"train": some})]
    made = write_cache(tmp_path / "made", tasks, vocabulary=VOCABULARY)
    with pytest.raises(UserError, match="'back_translated_de_en' was back-translated already"):
        BackTranslatedPairs(made, BackTranslationDraws.of(("en",), ("de",)))
    one = [TaskSource("real", "de", "en", {"train": some})]
    one_way = write_cache(tmp_path / "one", one, vocabulary=VOCABULARY)
    with pytest.raises(UserError, match="no training task of .* has the target 'de'; there are en"):
        BackTranslatedPairs(one_way, BackTranslationDraws.of(("de",), ("fr",)))
    pairs = BackTranslatedPairs(one_way, BackTranslationDraws.of(("en",), ("fr",)))
    with pytest.raises(UserError, match="every translation is blank"):
        list(pairs.sources(iter([""])))
