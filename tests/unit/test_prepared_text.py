"""Preparation of text: files that make the same cache as the pairs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mnmt_jax.data.cache_writer import write_cache
from mnmt_jax.data.mixtures import cache_task_sources, plan_tasks
from mnmt_jax.data.parallel_corpora import ParallelFiles
from mnmt_jax.data.preparation.outputs import CacheOutput, TextOutput
from mnmt_jax.data.preparation.prepare import prepare
from mnmt_jax.data.preparation.runners import LocalRunner
from mnmt_jax.data.preparation.steps import PieceRule
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.preparation_page import preparation_page, steps_table
from mnmt_jax.vocabulary.sentencepiece_options import SentencePieceOptions
from mnmt_jax.vocabulary.sentencepiece_training import train_sentencepiece
from tests.unit import made_text
from tests.unit.made_preparation import (
    DIRECTIONS,
    LANGUAGES,
    SHARD_EXAMPLES,
    STEPS,
    Nothing,
    content,
    corpus,
    made_recipe,
    run,
    vocabulary,
)

__all__ = ["corpus", "vocabulary"]  # fixtures


def text_of(output: Path) -> ParallelFiles:
    return ParallelFiles("made", str(output / "{split}.{pair}.{language}"), LANGUAGES)


@pytest.mark.parametrize("steps", [STEPS, STEPS[:-1], ()])
def test_the_cache_of_the_text_is_the_cache_of_the_pairs(corpus, vocabulary, tmp_path, steps):
    """Two paths: steps, text, `mnmt cache`; and steps, cache."""
    counts = run(corpus, vocabulary, tmp_path / "cache", steps)
    assert counts == run(
        corpus, vocabulary, tmp_path / "text", steps, form=TextOutput(vocabulary), processes=2
    )
    encoder = made_text.vocabulary()
    write_cache(
        tmp_path / "again",
        cache_task_sources(text_of(tmp_path / "text"), DIRECTIONS, encoder),
        vocabulary=encoder,
        shard_examples=SHARD_EXAMPLES,
    )
    assert content(tmp_path / "again") == content(tmp_path / "cache")


def test_pairs_without_pieces_are_dropped_and_counted(tmp_path):
    """SentencePiece's rule nmt_nfkc removes control characters."""
    for code in ("de", "en"):
        lines = [*made_text.sentences(code, 5), "\x01" if code == "de" else "one"]
        for split in ("train", "validation"):
            (tmp_path / f"{split}.{code}").write_text("\n".join(lines), encoding="utf-8")
    text = {code: made_text.sentences(code, 300) for code in ("de", "en")}
    options = SentencePieceOptions(vocab_size=40, normalization="nmt_nfkc", byte_fallback=False)
    encoder = train_sentencepiece(text, tmp_path / "vocabulary", options=options)
    files = ParallelFiles("made", str(tmp_path / "{split}.{language}"), ("de", "en"))
    pair = ("en", "de")
    counts = prepare(
        files,
        plan_tasks(files, (pair,)),
        made_recipe(()),
        form=CacheOutput(tmp_path / "vocabulary"),
        output=tmp_path / "cache",
        runner=LocalRunner(1),
    )
    assert [item.kept for item in counts] == [5, 5]
    assert [item.dropped for item in counts] == [{"encoding": 1}] * 2
    assert counts[0].examples == {"encoding": [("\x01", "one")]}
    row = r"\| encoding: a side has no pieces \| +6 \| +1 \| 16.67% \|"
    assert re.search(row, steps_table(made_recipe(()), counts))
    assert ">encoding: a side has no pieces: 1 pair<" in preparation_page(made_recipe(()), counts)
    sources = cache_task_sources(files, (pair,), encoder)
    write_cache(tmp_path / "again", sources, vocabulary=encoder)
    assert content(tmp_path / "again") == content(tmp_path / "cache")


def test_text_needs_no_vocabulary_without_rules_of_pieces(corpus, vocabulary, tmp_path):
    without = [step for step in STEPS if not isinstance(step, PieceRule)]
    assert len(without) < len(STEPS)
    run(corpus, vocabulary, tmp_path / "with", without, form=TextOutput(vocabulary))
    run(corpus, vocabulary, tmp_path / "without", without, form=TextOutput())
    assert content(tmp_path / "with") == content(tmp_path / "without")
    with pytest.raises(UserError, match=r"rules on pieces \(even\); add --vocabulary"):
        run(corpus, vocabulary, tmp_path / "pieces", form=TextOutput())


def test_a_preparation_of_text_does_not_continue_as_one_of_a_cache(corpus, vocabulary, tmp_path):
    with pytest.raises(UserError, match="keeps none"):
        run(corpus, vocabulary, tmp_path / "output", (Nothing(),), form=TextOutput())
    with pytest.raises(UserError, match=r"another preparation \(changed: .*text"):
        run(corpus, vocabulary, tmp_path / "output", (Nothing(),))
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("text")
    with pytest.raises(UserError, match="already exists and is not prepared text; choose"):
        run(corpus, vocabulary, other, (), form=TextOutput())


def test_a_sentence_with_line_breaks_stays_one_line(vocabulary, tmp_path):
    """A column of JSON lines may hold line breaks."""
    rows = [
        {"de": made_text.sentence(n, "de"), "en": made_text.sentence(n, "en")} for n in range(1, 9)
    ]
    rows[2]["en"] = rows[2]["en"].replace(" ", "\n\n", 1)
    rows[4]["de"] = "\r\n" + rows[4]["de"].replace(" ", "\r\n") + "\n"
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    corpus = ParallelFiles("made", f"{tmp_path}/{{split}}.jsonl#{{language}}", ("de", "en"))
    tasks, directions = plan_tasks(corpus, (("de", "en"),)), (("de", "en"),)
    options = {"runner": LocalRunner(1), "form": TextOutput()}
    prepare(corpus, tasks, made_recipe(()), output=tmp_path / "text", **options)
    for code in ("de", "en"):
        text = (tmp_path / "text" / f"train.de-en.{code}").read_text(encoding="utf-8")
        assert text == "".join(f"{made_text.sentence(n, code)}\n" for n in range(1, 9))
    encoder = made_text.vocabulary()
    for name, source in (("pairs", corpus), ("lines", text_of(tmp_path / "text"))):
        sources = cache_task_sources(source, directions, encoder)
        write_cache(tmp_path / name, sources, vocabulary=encoder)
    assert content(tmp_path / "pairs") == content(tmp_path / "lines")
