"""Text of single languages from files."""

import gzip

import pytest

from mnmt_jax.data.monolingual import MonolingualFiles
from mnmt_jax.errors import UserError


def corpus(folder, pattern="{split}.{language}"):
    return MonolingualFiles("text", str(folder / pattern), ("de",), splits={"train": "train"})


def sentences(folder, **options):
    return [line for _, line in corpus(folder, **options).pairs("train", ("de", "de"))]


def test_languages_may_have_several_and_compressed_files(tmp_path):
    (tmp_path / "train.1.de").write_text("eins\n", encoding="utf-8")
    (tmp_path / "train.2.de.gz").write_bytes(gzip.compress(b"zwei\n"))
    assert sentences(tmp_path, pattern="{split}.*.{language}") == ["eins", "zwei"]


def test_only_stars_are_wildcards(tmp_path):
    for name in ("b[1]", "what?", "c#1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.de").write_text(f"{name}\n", encoding="utf-8")
        assert sentences(tmp_path / name) == [name]
    assert sentences(tmp_path, pattern="**/{split}.{language}") == ["b[1]", "c#1", "what?"]
    with pytest.raises(UserError, match="no files match"):
        corpus(tmp_path, pattern="what[?]/{split}.{language}")


def test_a_file_both_plain_and_compressed_is_refused(tmp_path):
    """A name that ends in .gz selects the compressed file."""
    (tmp_path / "train.de").write_text("eins\n", encoding="utf-8")
    assert sentences(tmp_path) == ["eins"]
    (tmp_path / "train.de.gz").write_bytes(gzip.compress(b"zwei\n"))
    with pytest.raises(UserError, match=r"train\.de: exists plain and as \.gz"):
        corpus(tmp_path)
    assert sentences(tmp_path, pattern="{split}.{language}.gz") == ["zwei"]
