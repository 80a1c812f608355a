"""The published corpora as seqio tasks: registered without files, read when used."""

import pytest
import seqio
import tensorflow as tf

from mnmt_jax.data.cache_writer import write_cache
from mnmt_jax.data.mixtures import MIXTURES, cache_task_sources
from mnmt_jax.data.monolingual import MonolingualFiles
from mnmt_jax.data.parallel_corpora import get_corpus
from mnmt_jax.data.published_corpora import PUBLISHED
from mnmt_jax.errors import UserError
from mnmt_jax.interop.seqio.tasks import add_corpus, add_task, task_sources
from mnmt_jax.interop.seqio.vocabulary import PieceVocabulary
from mnmt_jax.interop.tasks import published
from tests.unit import made_text


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("MNMT_JAX_DATA", str(tmp_path))
    return tmp_path


def test_every_mixture_is_registered_with_its_directions():
    actual = {
        name: len(seqio.MixtureRegistry.get(name).tasks) for name in seqio.MixtureRegistry.names()
    }
    expected = {
        "ted19": 36, "ted19_zero_shot": 306, "opus100": 188, "opus100_zero_shot": 30, "ec40": 80,
        "opus100_all": 198, "opus100_all_zero_shot": 30, "iwslt17_de": 2, "iwslt17_de_zero_shot": 6,
        "ec40_zero_shot": 1560, "nllb_bridge": 194, "nllb_bridge_zero_shot": 358, "flores": 552,
        "flores_finetune_5": 5, "flores_finetune_25": 25, "flores_finetune_100": 100, "ntrex": 552,
        "multi30k": 6, "multi30k_zero_shot": 6, "libreoffice_help": 12,
        "libreoffice_help_zero_shot": 30, "libreoffice_help_disjoint": 12,
        "libreoffice_help_disjoint_zero_shot": 30, "ted20": 38, "ted20_zero_shot": 342,
        "iwslt17": 6, "iwslt17_zero_shot": 6, "iwslt17_circle": 9, "iwslt17_circle_zero_shot": 3,
        "iwslt17_circle_90k": 9, "iwslt17_circle_90k_zero_shot": 3, "europarl_triangle": 3,
        "europarl_triangle_zero_shot": 3, "europarl_square": 8, "europarl_square_zero_shot": 4,
        "ted30": 60, "ted30_transfer_de": 1, "ted30_transfer_de_zero_shot": 1,
        "ted30_transfer_fr": 1, "ted30_transfer_fr_zero_shot": 1, "wmt14_transfer_de": 1,
        "wmt14_transfer_de_zero_shot": 1, "wmt14_transfer_fr": 1, "wmt14_transfer_fr_zero_shot": 1,
        "newscrawl": 45, "multiun": 6, "multiun_zero_shot": 6, "europarl_centric": 4,
        "europarl_centric_zero_shot": 2,
    }  # fmt: skip
    assert {name: actual.get(name) for name in expected} == expected
    for name in MIXTURES:
        if MIXTURES[name].corpus in PUBLISHED:
            assert name in expected or name in seqio.TaskRegistry.names()
    assert "ted19_zh_de" in seqio.TaskRegistry.names()
    assert "ted30_zero_shot" not in actual and "ted30_de_fr" not in seqio.TaskRegistry.names()
    [tested] = seqio.MixtureRegistry.get("ted30_transfer_de_zero_shot").tasks
    assert tested.name == "ted30_fr_en"


def test_a_task_without_files_names_the_missing_files(data):
    task = seqio.TaskRegistry.get("ec40_en_kab")
    with pytest.raises(UserError, match=f"corpus 'ec40' is not in {data}/ec40; put there"):
        task.get_dataset(sequence_length=None, split="train")
    with pytest.raises(UserError, match=f"vocabulary of corpus 'ec40' is not in {data}/vocabular"):
        published.load_vocabulary(PUBLISHED["ec40"])
    assert "mitre" in str(published.vocabulary_folder(PUBLISHED["flores_tuning"]))


def test_tasks_read_the_corpus(data, monkeypatch):
    folder = data / "multi30k"
    folder.mkdir()
    for split, start, count in (("train", 1, 12), ("val", 100, 5), ("test_2016_flickr", 200, 3)):
        for code in made_text.LANGUAGES:
            text = made_text.sentences(code, count, start)
            (folder / f"{split}.{code}").write_text("\n".join(text) + "\n", encoding="utf-8")
    made_text.vocabulary().save(data / "made")
    monkeypatch.setenv("MNMT_JAX_MULTI30K_VOCABULARY", str(data / "made"))
    task = seqio.TaskRegistry.get("multi30k_en_de")
    assert task.splits == ("train", "validation", "test")
    assert [task.num_input_examples(split) for split in task.splits] == [12, 5, 3]
    examples = list(task.get_dataset(None, "test", shuffle=False).as_numpy_iterator())
    vocabulary = made_text.vocabulary()
    expected = [vocabulary.encode(line) for line in made_text.sentences("de", 3, 200)]
    assert [example["targets"].tolist() for example in examples] == expected
    [source] = task_sources("multi30k_de_fr", ("train", "validation"))
    assert set(source.splits) == {"train", "validation"}
    pairs = list(source.splits["validation"]())
    assert [vocabulary.decode(pair[1]) for pair in pairs] == made_text.sentences("fr", 5, 100)


def test_monolingual_tasks_give_the_same_cache_as_files(data, monkeypatch):
    folder = data / "newscrawl"
    folder.mkdir()
    for code in ("en", "de"):
        for year, start in ((2019, 1), (2020, 50)):
            text = "\n".join(made_text.sentences(code, 12, start)) + "\n"
            (folder / f"news.{year}.{code}.shuffled.deduped").write_text(text, encoding="utf-8")
    made_text.vocabulary().save(data / "made")
    monkeypatch.setenv("MNMT_JAX_NEWSCRAWL_VOCABULARY", str(data / "made"))
    task = seqio.TaskRegistry.get("newscrawl_de")
    assert task.splits == ("train",) and task.num_input_examples("train") == 24
    [example, *_] = task.get_dataset(None, "train", shuffle=False).as_numpy_iterator()
    assert example["inputs"].tolist() == []
    vocabulary = made_text.vocabulary()
    assert vocabulary.decode(example["targets"]) == made_text.sentences("de", 1)[0]
    tag = vocabulary.languages.index("de")
    assert example["source_lang"].tolist() == example["target_lang"].tolist() == [tag]
    [seqio_task] = task_sources("newscrawl_de", ("train",))
    [ours] = cache_task_sources(get_corpus("newscrawl"), [("de", "de")], vocabulary)
    written = [
        write_cache(data / name, [source], vocabulary=vocabulary)
        for name, source in (("theirs", seqio_task), ("ours", ours))
    ]
    assert written[0].tasks == written[1].tasks and "newscrawl_de" in written[0].tasks
    own = MonolingualFiles(
        "own_news", f"{folder}/news.2019.{{language}}.*", ("en", "de"), splits={}
    )
    directions = own.directions("train")
    names = add_corpus(own, directions=directions, vocabulary=PieceVocabulary(made_text.vocabulary))
    assert names == ["own_news_en", "own_news_de"]
    [english] = task_sources("own_news_en", ("train", "validation"))
    pairs = [
        (list(source), vocabulary.decode(target)) for source, target in english.splits["train"]()
    ]
    assert pairs == [([], line) for line in made_text.sentences("en", 12)]


def test_nested_features_of_any_data_source():
    def dataset(split, shuffle_files):
        return tf.data.Dataset.from_tensors(
            {"translation": {"de": "drei Haus", "en": "three house"}}
        )

    source = seqio.FunctionDataSource(dataset, splits=["test"], num_input_examples={"test": 1})
    vocabulary = PieceVocabulary(made_text.vocabulary)
    keys = ("translation.de", "translation.en")
    add_task("nested_de_en", source, direction=("de", "en"), vocabulary=vocabulary, keys=keys)
    [written] = task_sources("nested_de_en", ("test",))
    [(inputs, targets)] = written.splits["test"]()
    assert made_text.vocabulary().decode(inputs) == "drei Haus"
    assert made_text.vocabulary().decode(targets) == "three house"
