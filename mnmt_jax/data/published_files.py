"""File layouts of published corpora in plain parallel files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mnmt_jax.data.corpus import Corpus, Selection
from mnmt_jax.data.parallel_corpora import PatternFiles
from mnmt_jax.data.text_reader import Cleaning
from mnmt_jax.vocabulary.language_codes import Direction
from mnmt_jax.vocabulary.languages import (
    EC40_LANGUAGES,
    WMT14_LANGUAGES,
    english_centric_directions,
)

DROP = Cleaning(on_bad_line="drop")
MULTI30K_LANGUAGES = ("en", "de", "fr", "cs")
MULTIUN_LANGUAGES = ("en", "ar", "ru", "zh")
EUROPARL_CENTRIC_LANGUAGES = ("en", "de", "fr")
# Flores-200's dev (997 lines) and devtest (1,012 lines), concatenated in one file.
_FLORES_LINES = {"validation": (1, 997), "test": (998, 2009)}


def opus100(languages: Sequence[str]) -> Callable[[Path, str], Corpus]:
    """Return a factory for OPUS-100, from plain files of OPUS or the Hub's Parquet files.

    Pairs of the test set are removed from training and validation text, and repeated pairs too. As
    many training pairs as validation text lost refill it. Which ones differs from the authors'
    script, whose choice depends on the process that ran it. Files that it wrote ("rebuilt") are
    preferred. The pairs of an, dz, hy, mn and yo have no held-out files.

    Args:
        languages: codes.
    """
    plain = "supervised/{pair}/opus.{pair}-"
    column = "-00000-of-00001.parquet#translation.{language}"
    forms = {
        "train": (
            f"{plain}train-rebuilt.{{language}}",
            f"{plain}train.{{language}}",
            f"{{pair}}/train{column}",
        ),
        "validation": (
            f"{plain}dev-rebuilt.{{language}}",
            f"{plain}dev.{{language}}",
            f"{{pair}}/validation{column}",
        ),
        "test": (
            f"{plain}test.{{language}}",
            "zero-shot/{pair}/opus.{pair}-test.{language}",
            f"{{pair}}/test{column}",
        ),
    }

    def make(folder: Path, name: str) -> Corpus:
        patterns = {split: [f"{folder}/{form}" for form in names] for split, names in forms.items()}
        held_out = Selection(held_out=("test",), refill=True)
        return PatternFiles(name, patterns, languages, cleaning=DROP, selection=held_out)

    return make


def ec40(folder: Path, name: str) -> Corpus:
    """Return EC-40 from the plain files of Tan and Monz, normalised and tokenised as published.

    Their test files are the concatenation of Flores-200's dev and devtest. Here dev is the
    validation split and devtest the test split, as in the registers paper (section 4.1). Tan and
    Monz validate on NTREX-128 and test on both.
    """
    flores = (
        f"{folder}/EC40-FLORES-en-centric-plain/test.{{pair}}.{{language}}",
        f"{folder}/EC40-FLORES-zs-plain/test.{{pair}}.{{language}}",
    )
    train = (f"{folder}/EC40_dataset/{{pair}}.{{language}}",)
    patterns = {"train": train, "validation": flores, "test": flores}
    return PatternFiles(
        name, patterns, EC40_LANGUAGES, cleaning=DROP, selection=Selection(lines=_FLORES_LINES)
    )


def multi30k(folder: Path, name: str) -> Corpus:
    """Return Multi30k from its plain files."""
    words = {
        "train": ("train",),
        "validation": ("val", "validation"),
        "test": ("test_2016_flickr", "test2016", "test"),
    }
    patterns = {
        split: tuple(f"{folder}/{word}.{{language}}" for word in names)
        for split, names in words.items()
    }
    return PatternFiles(name, patterns, MULTI30K_LANGUAGES)


def mmcr(
    languages: Sequence[str], sample_sizes: Mapping[Direction, int]
) -> Callable[[Path, str], Corpus]:
    """Return a factory for IWSLT 2017 or Europarl v7 from MMCR4NLP's files.

    There are files per pair of languages, or a file per language in which line i has the same
    meaning in all. MMCR4NLP's names for the 21 languages of Europarl are tried too.

    Args:
        languages: codes.
        sample_sizes: sample size of the training pairs, by direction.
    """
    words = {"train": ("train",), "validation": ("validation", "valid", "dev"), "test": ("test",)}
    forms = (
        "{word}.{{pair}}.{{language}}",
        "{word}.{{language}}",
        "21lingual/{word}.21langmultiway.europarl-v7.{{language}}-en.{{language}}",
    )

    def make(folder: Path, name: str) -> Corpus:
        patterns = {
            split: [f"{folder}/{form.format(word=word)}" for form in forms for word in names]
            for split, names in words.items()
        }
        selection = Selection(sample_sizes=sample_sizes)
        return PatternFiles(name, patterns, languages, cleaning=DROP, selection=selection)

    return make


def wmt14(folder: Path, name: str) -> Corpus:
    """Return WMT14 with a folder per pair; accepts the file names of common preparation scripts."""
    words = {
        "train": ("train",),
        "validation": ("newstest2013", "valid", "dev"),
        "test": ("newstest2014", "test"),
    }
    patterns = {
        split: tuple(f"{folder}/{{pair}}/{word}.{{language}}" for word in names)
        for split, names in words.items()
    }
    return PatternFiles(name, patterns, WMT14_LANGUAGES, cleaning=DROP)


def multiun(folder: Path, name: str) -> Corpus:
    """Return MultiUN from OPUS' Moses files, or from those of the UN Parallel Corpus v1.0.

    Held-out text is from the UN Parallel Corpus, which is the same in all languages: the first
    1,000 of its 4,000 development lines, and its test set. Both directions of a pair have the same
    sample.

    Source: Chen, Zhang, Fu 2023, section 4.1 and Table 5; Wang et al. 2021, whose public
    `prepare-multiun.sh` has the files, the sampling (`shuf` without a seed) and the 1,000 lines.
    """
    patterns = {
        "train": (
            f"{folder}/MultiUN.{{pair}}.{{language}}",
            f"{folder}/{{pair}}/MultiUN.{{pair}}.{{language}}",
            f"{folder}/{{pair}}/UNv1.0.{{pair}}.{{language}}",
        ),
        "validation": (f"{folder}/testsets/devset/UNv1.0.devset.{{language}}",),
        "test": (f"{folder}/testsets/testset/UNv1.0.testset.{{language}}",),
    }
    sample_sizes = dict.fromkeys(english_centric_directions(MULTIUN_LANGUAGES), 2_000_000)
    selection = Selection(first={"validation": 1000}, sample_sizes=sample_sizes)
    return PatternFiles(name, patterns, MULTIUN_LANGUAGES, cleaning=DROP, selection=selection)


def europarl_devsets(folder: Path, name: str) -> Corpus:
    """Return Europarl v7 from statmt.org's files, with the workshops' sets of 2006.

    Source: Chen, Zhang, Fu 2023, section 4.1 and Appendix B: devtest is validation, test is test.
    """
    subfolders = ("", "dev/", "wmt07/devtest/")  # of the different archives
    patterns = {
        "train": tuple(
            f"{folder}/{subfolder}europarl-v7.{{pair}}.{{language}}"
            for subfolder in ("", "training/")
        ),
        "validation": tuple(
            f"{folder}/{subfolder}devtest2006.{{language}}" for subfolder in subfolders
        ),
        "test": tuple(f"{folder}/{subfolder}test2006.{{language}}" for subfolder in subfolders[:2]),
    }
    selection = Selection(first=dict.fromkeys(("validation", "test"), 2000))
    return PatternFiles(
        name, patterns, EUROPARL_CENTRIC_LANGUAGES, cleaning=DROP, selection=selection
    )
