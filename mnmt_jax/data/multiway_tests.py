"""Multi-way parallel test sets: Flores+, Flores-200, NTREX-128 and BOUQuET.

Line i has the same meaning in the files of all languages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from mnmt_jax.data.corpus import Corpus
from mnmt_jax.data.parallel_corpora import PatternFiles
from mnmt_jax.vocabulary.languages import LANGUAGES

FLORES_200 = {"tl": "tgl_Latn", "zh": "zho_Hans"}
"""Codes of Flores-200 that differ from those of Flores+."""

# "nb" and "no" share one file.
_FLORES_WORDS = {
    code: tuple(filter(None, (item.flores, FLORES_200.get(code))))
    for code, item in LANGUAGES.items()
    if item.flores
}


def flores(splits: Mapping[str, str]) -> Callable[[Path, str], Corpus]:
    """Return a factory for Flores+ and Flores-200.

    Args:
        splits: name of the folder of each split, dev or devtest.
    """

    def make(folder: Path, name: str) -> Corpus:
        patterns = {
            split: (
                f"{folder}/{word}/{{language}}.{word}",  # Flores-200
                f"{folder}/{word}/{word}.{{language}}",  # releases of Flores+
                f"{folder}/{word}/{{language}}.parquet#text",  # Flores+ on the Hugging Face Hub
                f"{folder}/{word}/{{language}}.jsonl#text",
            )
            for split, word in splits.items()
        }
        return PatternFiles(name, patterns, tuple(_FLORES_WORDS), language_names=_FLORES_WORDS)

    return make


# NTREX-128: three-letter codes, the same as in Flores except for these.
_NTREX_EXCEPTIONS = {
    "az": "aze-Latn", "fa": "fas", "lv": "lav", "mg": "mlg", "mn": "mon", "ms": "msa", "ne": "nep",
    "ps": "pus", "sd": "snd-Arab", "sq": "sqi", "sr": "srp-Cyrl", "tg": "tgk-Cyrl",
    "sw": "swa", "uz": "uzb", "zh": "zho-CN",
}  # fmt: skip
_NTREX_WORDS = {
    code: ("src.eng",) if code == "en" else (f"ref.{_NTREX_EXCEPTIONS.get(code, words[0][:3])}",)
    for code, words in _FLORES_WORDS.items()
}


def ntrex(folder: Path, name: str) -> Corpus:
    """Return NTREX-128."""
    patterns = {"test": (f"{folder}/NTREX-128/newstest2019-{{language}}.txt",)}
    return PatternFiles(name, patterns, tuple(_NTREX_WORDS), language_names=_NTREX_WORDS)


# BOUQuET: the codes of Flores+, except for these. Its Arabic is Egyptian (arz_Arab), not "ar".
_BOUQUET_EXCEPTIONS = {
    "et": ("ekk_Latn",), "ko": ("kor_Kore",), "pt": ("por_Latn_braz1246",)
}  # fmt: skip
_BOUQUET_WORDS = _FLORES_WORDS | _BOUQUET_EXCEPTIONS


def bouquet(folder: Path, name: str) -> Corpus:
    """Return BOUQuET, from a file for each language with the column `src_text`."""
    splits = {"validation": "dev", "test": "test"}
    patterns = {
        split: tuple(
            f"{folder}/{word}/{{language}}.{ending}#src_text" for ending in ("jsonl", "parquet")
        )
        for split, word in splits.items()
    }
    return PatternFiles(name, patterns, tuple(_BOUQUET_WORDS), language_names=_BOUQUET_WORDS)
