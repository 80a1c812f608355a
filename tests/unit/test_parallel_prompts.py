"""Parallel multilingual prompting: prompted pairs of a cache, and translation with a prompt."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
import types

import pytest

from mnmt_jax.commands.cache import main
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.cache_writer import (
    TaskSource,
    encode_pairs,
    has_prompts,
    reused_tasks,
    write_cache,
)
from mnmt_jax.data.distillation import DistilledPairs
from mnmt_jax.data.parallel_prompts import PromptedPairs, write_prompted_cache
from mnmt_jax.decoding import translation_job as job_module
from mnmt_jax.decoding.encoded_lines import Line, encode_lines
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.errors import UserError
from tests.unit.made_text import sentence, vocabulary
from tests.unit.made_translator import LINES, made_translator
from tests.unit.test_additions import grown

# Sentences of each task: en-de and en-fr share 3, 4 and 5.
TASKS = {"en_de": range(1, 6), "de_en": range(1, 6), "en_fr": range(3, 9), "fr_en": range(3, 9)}
SHARED = (3, 4, 5)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain") / "cache"

    def task(name, numbers):
        source, target = name.split("_")

        def pairs(numbers=numbers):
            texts = [(sentence(n, source), sentence(n, target)) for n in numbers]
            return encode_pairs(vocabulary(), texts, (source, target))

        splits = {"train": pairs, "validation": lambda: pairs([9])}
        return TaskSource(f"made_{name}", source, target, splits, None)

    write_cache(folder, [task(*item) for item in TASKS.items()], vocabulary=vocabulary())
    return TokenCache.open(folder)


def prompted(cache, folder, auxiliary):
    tasks = PromptedPairs(cache, auxiliary).tasks()
    return write_cache(folder / "prompted", tasks, vocabulary=cache.vocabulary)


def pieces(number, language):
    return vocabulary().encode(sentence(number, language))


def pairs_of(cache, task):
    return [tuple(side.tolist() for side in pair) for pair in cache.pairs(task, "train")]


def test_sources_are_followed_by_a_tag_and_the_translation(cache, tmp_path):
    """The translation is of the source in en-de, and of the target in de-en."""
    written = prompted(cache, tmp_path, {"de": "fr"})
    tag = vocabulary().tag_id("fr")
    for name in ("en_de", "de_en"):
        source, target = name.split("_")
        assert pairs_of(written, f"prompted_made_{name}") == [
            ([*pieces(n, source), tag, *pieces(n, "fr")], pieces(n, target)) for n in SHARED
        ]
    assert [*written.tasks] == [*cache.tasks, "prompted_made_en_de", "prompted_made_de_en"]


def test_plain_tasks_stay_and_prompted_ones_are_not_validated(cache, tmp_path):
    written = prompted(cache, tmp_path, {"de": "fr", "fr": "de"})
    for name in cache.tasks:
        assert pairs_of(written, name) == pairs_of(cache, name)
        assert [*written.tasks[name].splits] == ["train", "validation"]
        assert [*written.tasks[f"prompted_{name}"].splits] == ["train"]


def test_the_sentences_to_distill_have_no_prompts(cache, tmp_path):
    """The source with its prompt stays in the new cache."""
    written, name = prompted(cache, tmp_path, {"de": "fr"}), "prompted_made_en_de"
    pairs = DistilledPairs(written, (name,))
    assert [*pairs.sentences()] == [(sentence(n, "en"), "en", "de") for n in SHARED]
    (task, *_) = pairs.sources(sentence(n, "de") for n in range(7, 10))
    sources = [source for source, _ in pairs_of(written, name)]
    assert [*task.splits["train"]()] == [
        (source, pieces(n, "de")) for source, n in zip(sources, range(7, 10), strict=True)
    ]


def test_prompts_are_not_reused_with_a_vocabulary_that_moves_their_tags(cache, tmp_path):
    """Pieces of an added language take the ids that tags had."""
    written, with_pieces = prompted(cache, tmp_path, {"de": "fr"}), grown(vocabulary())
    for extension in (vocabulary(), vocabulary().with_language("nl")):
        assert [task.name for task in reused_tasks(written, extension)] == [*written.tasks]
    assert with_pieces.is_extension_of(vocabulary())
    assert [task.name for task in reused_tasks(cache, with_pieces)] == [*cache.tasks]
    kept = DistilledPairs(written, ("prompted_made_en_de",), keep=True)
    tasks = kept.sources(sentence(n, "de") for n in range(7, 10))
    distilled = write_cache(tmp_path / "distilled", tasks, vocabulary=vocabulary())
    assert [name for name in distilled.tasks if has_prompts(distilled, name)] == [
        "distilled_prompted_made_en_de",
        "prompted_made_en_de",
        "prompted_made_de_en",
    ]
    for prompts in (written, distilled):
        with pytest.raises(UserError, match="prompted_made_en_de' has prompts, .* other ids in"):
            list(reused_tasks(prompts, with_pieces))


def test_text_of_single_languages_gets_no_prompts(tmp_path):
    """Language models have no source."""
    texts = {"train": lambda: [([], pieces(1, "de"))]}
    tasks = [TaskSource("text_de", "de", "de", texts)]
    cache = write_cache(tmp_path / "text", tasks, vocabulary=vocabulary())
    assert PromptedPairs(cache, {"de": "fr"}).auxiliary_of("text_de") is None


@pytest.mark.parametrize(
    ("auxiliary", "expected"),
    [
        ({"de": "cs"}, "cs"),
        ({"en": "fr"}, "fr"),
        ({"de": "cs", "en": "fr"}, "cs"),
        ({"de": "en", "en": "fr"}, "fr"),
        ({"de": "en"}, None),
        ({"fr": "cs"}, None),
    ],
)
def test_a_direction_takes_the_auxiliary_language_of_its_target_first(auxiliary, expected):
    """Of English to German; never one of these two."""
    task = types.SimpleNamespace(source_lang="en", target_lang="de", context=None)
    codes = types.SimpleNamespace(vocabulary_code_of=str)
    cache = types.SimpleNamespace(tasks={"task": task}, vocabulary=codes)
    assert PromptedPairs(cache, auxiliary).auxiliary_of("task") == expected
    task.context = "chunks of documents"
    assert PromptedPairs(cache, auxiliary).auxiliary_of("task") is None


def call(monkeypatch, output, *flags):
    files = ["--tsv", str(output.parent / "{split}.tsv"), "--vocab_size", "60"]
    words = [*files, "--no-byte_fallback", "--output", str(output), *flags]
    monkeypatch.setattr("sys.argv", ["mnmt cache", *words])
    main()


@pytest.fixture
def output(tmp_path):
    """A folder beside a table of sentences in three languages."""
    rows = ["\t".join(sentence(n, code) for code in ("en", "de", "fr")) for n in range(1, 40)]
    for split in ("train", "validation"):
        (tmp_path / f"{split}.tsv").write_text("\n".join(["en\tde\tfr", *rows]) + "\n")
    return tmp_path / "new"


def test_the_cache_command_writes_prompted_tasks(output, monkeypatch, capsys):
    call(monkeypatch, output, "--auxiliary", "DEU=fr")
    written = TokenCache.open(output)
    new = [name for name in written.tasks if name.startswith("prompted_")]
    assert new == ["prompted_corpus_en_de", "prompted_corpus_de_en"]
    assert {written.split(name, "train").examples for name in new} == {39}
    assert "no validation" not in capsys.readouterr().err
    assert {path.name for path in output.parent.iterdir() if path.is_dir()} == {"new"}
    also = ("--vocabulary", str(output / "vocabulary"), "--also", str(output))
    again = output.parent / "again"
    monkeypatch.setattr(
        "sys.argv",
        ["mnmt cache", "--tsv", str(output.parent / "{split}.tsv"), "--name=other", *also]
        + ["--output", str(again), "--auxiliary=de=fr"],
    )
    with pytest.raises(UserError, match="has prompts already; leave its cache out of --also"):
        main()


@pytest.mark.parametrize(
    ("auxiliary", "message"),
    [
        (["de"], "--auxiliary=de must be a language and its auxiliary language"),
        (["de=nl"], "the text has no such language"),
        (["de=de"], "--auxiliary=de=de: give each language one auxiliary language other than"),
        (["de=fr", "de=en"], "--auxiliary=de=en: give each language one"),
    ],
)
def test_invalid_languages_are_one_error_line(auxiliary, message, output, monkeypatch):
    with pytest.raises(UserError, match=message) as caught:
        call(monkeypatch, output, *(f"--auxiliary={value}" for value in auxiliary))
    assert "\n" not in str(caught.value) and not output.exists()


def test_an_auxiliary_language_of_no_direction_is_refused(cache, tmp_path):
    """Before the text is encoded, which takes long."""
    message = "--auxiliary: no training direction can have .* are made_en_de, made_de_en, made_en"
    with pytest.raises(UserError, match=message):
        prompted(cache, tmp_path, {"de": "en"})
    tasks = [TaskSource("made_en_de", "en", "de", {"train": lambda: pytest.fail("read")})]
    with pytest.raises(UserError, match="--auxiliary: no training direction can have"):
        write_prompted_cache(tmp_path / "new", tasks, {"de": "en"}, vocabulary=vocabulary())


def test_leftovers_of_a_killed_command_are_removed(output, monkeypatch):
    """The plain tasks are kept in the folder that becomes the cache."""
    flags = ["--tsv", str(output.parent / "{split}.tsv"), "--vocab_size=60", "--no-byte_fallback"]
    arguments = ["mnmt cache", *flags, "--output", str(output), "--auxiliary=de=fr"]
    code = (
        "import os, signal, sys\n"
        "from mnmt_jax.commands.cache import main\n"
        "from mnmt_jax.data.parallel_prompts import PromptedPairs\n"
        "PromptedPairs.tasks = lambda self: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"sys.argv = {arguments}\n"
        "main()\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    before = {path.name for path in output.parent.iterdir() if path.is_dir()}
    assert len(before) == 1 and "new" not in before
    call(monkeypatch, output, "--auxiliary=de=fr")
    assert {path.name for path in output.parent.iterdir() if path.is_dir()} == {"new"}
    assert {path.name for path in output.iterdir()} == {"cache.json", "tasks", "vocabulary"}


def test_a_cache_without_shared_sentences_is_refused(tmp_path):
    def task(source, target, start):
        texts = [(sentence(n, source), sentence(n, target)) for n in range(start, start + 3)]
        pairs = {"train": lambda: encode_pairs(vocabulary(), texts, (source, target))}
        return TaskSource(f"made_{source}_{target}", source, target, pairs)

    tasks = [task("en", "de", 1), task("en", "fr", 10)]
    cache = write_cache(tmp_path / "plain", tasks, vocabulary=vocabulary())
    with pytest.raises(UserError, match="no pair of 'made_en_de' has a translation in 'fr'"):
        prompted(cache, tmp_path, {"de": "fr"})


def test_an_auxiliary_text_is_encoded_as_in_training():
    """The limit of the translation is that of the plain source."""
    translator = made_translator()
    model = translator.inference_model
    decode = dataclasses.replace(translator.config.decode, max_length=99, max_length_per_source=1.0)
    plain = Line(0, "one two", "en", "de")
    lines = {0: plain, 1: Line(0, "one two", "en", "de", auxiliary=("un", "fr"))}
    encoded = encode_lines(model, lines, decode)
    source, joined = (encoded[n].inputs[0].source.tolist() for n in (0, 1))
    encode = vocabulary().encode
    assert source == encode("one two")
    assert joined == [*source, vocabulary().tag_id("fr"), *encode("un")]
    assert encoded[1].limit == encoded[0].limit and encoded[1].size > encoded[0].size
    blank = encode_lines(model, {0: Line(0, "one two", "en", "de", auxiliary=("", "fr"))}, decode)
    assert blank[0].inputs[0].source.tolist() == source


@pytest.fixture
def searched(monkeypatch):
    """The lines of each search, in the order of the searches."""
    seen, translate = [], job_module.translate_lines

    def record(model, lines, *arguments, **options):
        seen.append(list(lines))
        return translate(model, lines, *arguments, **options)

    monkeypatch.setattr(job_module, "translate_lines", record)
    return seen


def test_a_pivot_prompt_reads_the_source_and_its_translation(searched):
    translator, sides = made_translator(), {"source": "de", "target": "fr"}
    actual = translator.translate_nbest(LINES[:2], **sides, pivot="en", pivot_prompt=True)
    between = translator.translate(LINES[:2], source="de", target="en")
    assert [(line.text, line.source_lang, line.auxiliary) for line in searched[1]] == [
        (text, "de", (other, "en")) for text, other in zip(LINES[:2], between, strict=True)
    ]
    assert [one.pivot for one in actual] == between
    assert actual != translator.translate_nbest(LINES[:2], **sides, pivot="en")


def test_aligned_lines_have_no_prompt(searched):
    """The alignment of the translation would be to both texts of the source."""
    job = TranslationJob.create(made_translator(), pivot="en", pivot_prompt=True)
    (line,) = job.number_lines(LINES[:1], source="de", target="fr")
    ((_, translation),) = job.search([dataclasses.replace(line, aligned=True)])
    (second,) = searched[1]
    assert (second.text, second.auxiliary) == (translation.pivot, None)


def test_a_prompt_needs_a_pivot():
    with pytest.raises(UserError, match="pivot_prompt is for .* set pivot too"):
        TranslationJob.create(made_translator(), pivot_prompt=True)


def test_a_prompt_is_part_of_what_translations_depend_on():
    translator = made_translator()
    plain, prompt = (
        TranslationJob.create(translator, pivot="en", pivot_prompt=value).provenance()
        for value in (False, True)
    )
    assert prompt == plain | {"pivot_prompt": True}
