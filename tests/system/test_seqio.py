"""The registered tasks: counts, ids equal to the path without TensorFlow, metrics, the cache."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import seqio
import tensorflow as tf

from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.mixtures import MIXTURES, language_text
from mnmt_jax.data.parallel_corpora import CldrPhrases, ParallelFiles, get_corpus
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.benchmark import Benchmark
from mnmt_jax.interop.seqio.tasks import (
    RegisteredText,
    add_corpus,
    add_mixture,
    add_task,
    registered_vocabulary,
    task_sources,
)
from mnmt_jax.interop.seqio.vocabulary import PieceVocabulary
from mnmt_jax.vocabulary.languages import (
    MITRE_LANGUAGES,
    english_centric_directions,
    mitre_directions,
)
from mnmt_jax.vocabulary.sentencepiece_options import SentencePieceOptions
from mnmt_jax.vocabulary.sentencepiece_training import train_sentencepiece
from mnmt_jax.vocabulary.vocabulary import Vocabulary
from scripts import cache_tasks
from tests.run_commands import command
from tests.unicode_lines import odd_lines
from tests.unit import made_text
from tests.unit.test_text_normalization import trained


@pytest.fixture(scope="module")
def cldr(tmp_path_factory):
    """Register the package with a small vocabulary."""
    directory = tmp_path_factory.mktemp("cldr") / "vocabulary"
    corpus = get_corpus("cldr")
    text = {
        code: [line[code] for line in corpus.cldr.sentences("train", 100)]
        for code in MITRE_LANGUAGES
    }
    # Two per cent of the characters have no piece, so unknown characters are met as well.
    options = SentencePieceOptions(vocab_size=1500, character_coverage=0.98, byte_fallback=False)
    train_sentencepiece(text, directory, options=options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MNMT_JAX_CLDR_VOCABULARY", str(directory))
        import tasks

        yield tasks.cldr


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Write parallel files of generated text, and register them with seqio as `made_tiny`."""
    folder = tmp_path_factory.mktemp("files")
    for split, start, count in (("train", 1, 40), ("validation", 100, 9), ("test", 200, 5)):
        for code in made_text.LANGUAGES:
            lines = made_text.sentences(code, count, start)
            (folder / f"{split}.{code}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    corpus = ParallelFiles("made", str(folder / "{split}.{language}"), made_text.LANGUAGES)
    vocabulary = PieceVocabulary(made_text.vocabulary)
    directions = english_centric_directions(made_text.LANGUAGES)
    names = add_corpus(corpus, directions=directions, vocabulary=vocabulary)
    zero_shot = add_corpus(corpus, directions=[("de", "fr"), ("fr", "de")], vocabulary=vocabulary)
    add_mixture("made_tiny", names, temperature=5.0, zero_shot=zero_shot)
    return folder


@pytest.mark.parametrize("byte_fallback", [True, False])
def test_tensorflow_tokenizes_unusual_text_like_python(byte_fallback):
    vocabulary = trained(byte_fallback)
    words = "one two in café grün Italy".split()
    in_graph = PieceVocabulary(lambda: vocabulary)
    for line in odd_lines(400, words, seed=3):
        assert in_graph.encode_tf(line).numpy().tolist() == vocabulary.encode(line), ascii(line)


def test_mixtures_have_the_directions_in_their_names(cldr):
    counts = {
        name: len(seqio.MixtureRegistry.get(name).tasks) for name in seqio.MixtureRegistry.names()
    }
    expected = {
        "cldr_english_centric": 46,
        "cldr_english_centric_zero_shot": 506,
        "cldr_bridge": 194,
        "cldr_bridge_zero_shot": 358,
        "cldr_many_to_many": 552,
    }
    assert {name: counts[name] for name in expected} == expected
    bridge = {task.name for task in seqio.MixtureRegistry.get("cldr_bridge").tasks}
    assert bridge == {f"cldr_{source}_{target}" for source, target in mitre_directions()}
    assert MIXTURES["cldr_bridge"].directions == mitre_directions()


def test_every_task_has_metrics_and_held_out_splits(cldr):
    names = [name for name in seqio.TaskRegistry.names() if name.startswith("cldr_")]
    assert len(names) == 552
    for name in names:
        task = seqio.TaskRegistry.get(name)
        assert len(task.metric_fns) == 1
        assert {"validation", "test"} <= set(task.splits)
    metrics = seqio.TaskRegistry.get("cldr_ja_zh").metric_fns[0]
    text = ["我们明天去北京看朋友", "3小时前"]
    perfect = {"bleu": 100, "chrf": 100, "exact_match": 100, "off_target_lid": 0}
    assert metrics(text, text) == pytest.approx(perfect)
    assert metrics(text, ["我们", "3小时前"])["exact_match"] == 50
    assert metrics(text, [text[0], "three hours ago"])["off_target_lid"] == 50


@pytest.mark.parametrize("direction", [("en", "de"), ("de", "ja"), ("vi", "bg"), ("zh", "ko")])
def test_a_task_gives_the_ids_of_the_path_without_tensorflow(cldr, direction):
    source, target = direction
    task = seqio.TaskRegistry.get(f"cldr_{source}_{target}")
    dataset = task.get_dataset(sequence_length=None, split="validation", shuffle=False)
    vocabulary = cldr.load_vocabulary()
    examples = list(dataset.take(60).as_numpy_iterator())
    pairs = list(get_corpus("cldr").pairs("validation", direction))[:60]
    assert len(examples) == 60
    for example, (source_text, target_text) in zip(examples, pairs, strict=True):
        assert example["inputs"].tolist() == vocabulary.encode(source_text)
        assert example["targets"].tolist() == vocabulary.encode(target_text)
        assert example["targets_pretokenized"].decode() == target_text
        assert vocabulary.languages[example["source_lang"][0]] == source
        assert vocabulary.languages[example["target_lang"][0]] == target


def test_the_tensorflow_vocabulary_decodes_as_the_python_one():
    vocabulary = made_text.vocabulary()
    adapter = PieceVocabulary(lambda: vocabulary)
    assert (adapter.pad_id, adapter.eos_id, adapter.unk_id) == (0, 1, 2)
    assert adapter.vocab_size == vocabulary.size
    ids = [vocabulary.tag_id("de"), *vocabulary.encode("drei grün Haus"), 1, 0, 0]
    assert adapter.decode(ids) == "drei grün Haus"
    assert adapter.decode_tf(tf.constant(ids)).numpy().decode() == "drei grün Haus"
    assert adapter.encode_tf(tf.constant("drei grün Haus")).numpy().tolist() == ids[1:-3]
    assert adapter == PieceVocabulary(made_text.vocabulary)
    other = Vocabulary(vocabulary.model, ("de", "en", "fr"))
    assert adapter != PieceVocabulary(lambda: other)


def test_a_task_encodes_each_side_with_the_copies_of_its_language(files):
    plain = made_text.vocabulary()
    copies = [(piece, code) for piece in plain.named_pieces[:50] for code in ("en", "de")]
    copied = plain.with_copies(copies)
    corpus = ParallelFiles("copied", str(files / "{split}.{language}"), made_text.LANGUAGES)
    vocabulary = PieceVocabulary(lambda: copied)
    names = add_corpus(corpus, directions=[("en", "de"), ("de", "fr")], vocabulary=vocabulary)
    add_mixture("copied", names, temperature=1.0)
    seen = 0
    for source in task_sources("copied", ["train"]):
        direction = source.source_lang, source.target_lang
        pairs = zip(source.splits["train"](), corpus.pairs("train", direction), strict=True)
        for ids, texts in pairs:
            for side, text, code in zip(ids, texts, direction, strict=True):
                assert side.tolist() == copied.encode(text, code)
                assert vocabulary.decode(side) == text
                assert vocabulary.decode_tf(tf.constant(side)).numpy().decode() == text
                seen += bool(max(side) >= copied.first_copy)
    assert seen == 3 * 40
    german = vocabulary.in_language("de")
    assert german.encode("drei") == copied.encode("drei", "de") and german != vocabulary
    for encode in (vocabulary.encode, vocabulary.encode_tf):
        with pytest.raises(UserError, match="say which language"):
            encode("drei")


def test_mixing_rates_follow_the_temperature(files, tmp_path):
    for code, count in (("en", 8), ("de", 8)):
        lines = made_text.sentences(code, count)
        (tmp_path / f"train.{code}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    corpus = ParallelFiles("few", str(tmp_path / "{split}.{language}"), ("en", "de"))
    vocabulary = PieceVocabulary(made_text.vocabulary)
    few = add_corpus(corpus, directions=[("en", "de")], vocabulary=vocabulary)
    mixture = add_mixture("made_and_few", [*few, "made_en_de"], temperature=5.0)
    rates = {task.name: mixture.get_rate(task) for task in mixture.tasks}
    assert rates["few_en_de"] / rates["made_en_de"] == pytest.approx((8 / 40) ** 0.2)


def run_cache_tasks(arguments: list[str], capsys) -> dict:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["cache_tasks.py", *arguments])
        cache_tasks.main()
    return json.loads(capsys.readouterr().out)


def test_a_seqio_mixture_gives_the_same_cache_as_files(files, tmp_path, capsys):
    module = ["--mixture", "made_tiny", "--module_import", "tests.system.test_seqio"]
    summary = run_cache_tasks([*module, "--output", str(tmp_path / "seqio")], capsys)
    assert summary["tasks"] == {"train": 4, "validation": 6}
    made_text.vocabulary().save(tmp_path / "vocabulary")
    plain = ["--parallel", str(files), "--languages", "en,de,fr", "--name", "made"]
    plain += ["--directions", "english_centric", "--vocabulary", str(tmp_path / "vocabulary")]
    summary = run_cache_tasks([*plain, "--output", str(tmp_path / "plain")], capsys)
    assert summary["examples"] == {"train": 4 * 40, "validation": 6 * 9}
    seqio_cache, cache = (TokenCache.open(tmp_path / name) for name in ("seqio", "plain"))
    assert set(seqio_cache.tasks) == set(cache.tasks) and len(seqio_cache.tasks) == 6
    assert len(seqio.MixtureRegistry.get("made_tiny_zero_shot").tasks) == 2
    for name, task in seqio_cache.tasks.items():
        assert task == cache.tasks[name]
        for split, facts in task.splits.items():
            everything = np.arange(facts.examples)
            assert seqio_cache.read(name, split, everything) == cache.read(name, split, everything)


def test_a_seqio_mixture_is_evaluated_on_the_same_text_as_files(files, tmp_path):
    corpus = ParallelFiles("made", str(files / "{split}.{language}"), made_text.LANGUAGES)
    plain, registered = Benchmark("x", corpus), Benchmark("x", RegisteredText("made_tiny"))
    assert set(plain.directions) == set(registered.directions) and len(plain.directions) == 6
    for direction in plain.directions:
        assert registered.texts(direction) == plain.texts(direction)
        assert len(plain.texts(direction).sources) == 5
    module = "--module_import", "tests.system.test_seqio", "--output", tmp_path / "out"
    for arguments, message in (
        (["--task=made_tiny"], "nowhere/config.gin: no such file"),  # all of the flags are good
        (["--task=no_such_mixture"], "'no_such_mixture' is no built-in mixture and not registered"),
        (["--task=made_tiny", "--splits=test=x"], "--splits does not apply to a seqio mixture"),
        (["--task=made_tiny", "--languages=en,cs"], "--languages: cs is not in made_tiny"),
    ):
        with pytest.raises(UserError, match=message):
            command("evaluate", "--run=nowhere", *module, *arguments)


@pytest.mark.parametrize(
    "flag",
    [
        "--directions=en-de",
        "--name=mine",
        "--languages=en,de",
        "--splits=train=train",
        "--on_bad_line=drop",
        "--vocab_size=50",
        "--byte_fallback",
        "--vocabulary=v",
    ],
)
def test_flags_without_effect_on_a_seqio_mixture_are_refused(files, tmp_path, capsys, flag):
    module = ["--mixture", "made_tiny", "--module_import", "tests.system.test_seqio"]
    name = flag.partition("=")[0]
    with pytest.raises(UserError, match=f"^{name} does not apply to a seqio mixture"):
        run_cache_tasks([*module, flag, "--output", str(tmp_path / "seqio")], capsys)


def test_the_cached_vocabulary_is_named_after_its_inputs(cldr, tmp_path, monkeypatch):
    before = cldr.cached_directory(tmp_path)
    assert cldr.cached_directory(tmp_path) == before and before.parent == tmp_path
    monkeypatch.setattr("mnmt_jax.data.cldr.cldr_corpus.babel.__version__", "0.0")
    other_babel = cldr.cached_directory(tmp_path)
    monkeypatch.setattr(cldr, "VOCABULARY_OPTIONS", SentencePieceOptions(vocab_size=8000, seed=1))
    other_options = cldr.cached_directory(tmp_path)
    monkeypatch.setattr(cldr, "get_corpus", lambda name: CldrPhrases(("en", "de")))
    assert len({before, other_babel, other_options, cldr.cached_directory(tmp_path)}) == 4


def test_two_processes_may_train_the_cached_vocabulary_concurrently(cldr, tmp_path, monkeypatch):
    """The other process finishes while this one trains."""
    monkeypatch.delenv("MNMT_JAX_CLDR_VOCABULARY")
    monkeypatch.setenv("HOME", str(tmp_path))
    directory = cldr.cached_directory(tmp_path / ".cache" / "mnmt_jax")

    def train(partial):
        made_text.vocabulary().save(directory)
        made_text.vocabulary().save(partial)
        return partial

    monkeypatch.setattr(cldr, "_train", train)
    assert cldr.load_vocabulary().fingerprint == made_text.vocabulary().fingerprint
    assert [path.name for path in directory.parent.iterdir()] == [directory.name]
    monkeypatch.setattr(cldr, "_train", None)  # the second time it is read
    assert cldr.load_vocabulary().size == made_text.vocabulary().size


def test_any_data_source_becomes_a_task():
    def dataset(split, shuffle_files):
        return tf.data.Dataset.from_tensors({"de": "drei Haus", "en": "three house", "id": 7})

    source = seqio.FunctionDataSource(dataset, splits=["test"], num_input_examples={"test": 1})
    vocabulary = PieceVocabulary(made_text.vocabulary)
    add_task("any_de_en", source, direction=("de", "en"), vocabulary=vocabulary, keys=("de", "en"))
    [written] = task_sources("any_de_en", ("train", "test"))
    assert (written.source_lang, written.target_lang, set(written.splits)) == ("de", "en", {"test"})
    [(inputs, targets)] = written.splits["test"]()
    assert made_text.vocabulary().decode(inputs) == "drei Haus"
    assert made_text.vocabulary().decode(targets) == "three house"


def test_unregistered_names_are_refused(files):
    with pytest.raises(UserError, match="--module_import"):
        list(task_sources("no_such_mixture", ("train",)))
    with pytest.raises(UserError, match="--module_import"):
        registered_vocabulary("no_such_mixture")
    seqio.TaskRegistry.add(
        "foreign",
        source=seqio.FunctionDataSource(lambda split, shuffle_files: None, splits=["train"]),
        preprocessors=[],
        output_features={"targets": seqio.Feature(seqio.ByteVocabulary())},
    )
    with pytest.raises(UserError, match="add_task"):
        list(task_sources("foreign", ("train",)))
    with pytest.raises(UserError, match="ByteVocabulary"):
        registered_vocabulary("foreign")


def test_vocabulary_training_reads_each_pair_once(files):
    corpus = ParallelFiles("made", str(files / "{split}.{language}"), made_text.LANGUAGES)
    text = language_text(corpus, english_centric_directions(corpus.languages), limit=1000)
    assert list(text) == list(corpus.languages)
    assert {code: len(lines) for code, lines in text.items()} == {"en": 80, "de": 40, "fr": 40}
    assert set(text["fr"]) == set(made_text.sentences("fr", 40))
    english = language_text(
        corpus, [*english_centric_directions(corpus.languages), ("de", "fr")], 1000, ["fr"]
    )
    assert {code: len(lines) for code, lines in english.items()} == {"en": 40, "de": 40, "fr": 40}
    with pytest.raises(
        UserError, match="--english_from: 'fr' has no pair with English; choose fro"
    ):
        language_text(corpus, [("en", "de"), ("de", "fr")], 1000, ["fr"])
    few = language_text(corpus, [("en", "de")], limit=7)
    assert {code: len(lines) for code, lines in few.items()} == {"en": 7, "de": 7}
