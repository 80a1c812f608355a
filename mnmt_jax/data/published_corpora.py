"""Registry of published corpora: their languages, directions, and file locations.

Each corpus is in a folder, as unpacked, below the directory in the environment variable
`MNMT_JAX_DATA` (default `data`). If files are missing, the error states in one line which files to
put where. To add a corpus, add a row to `_ROWS`.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnmt_jax.data import wmt24pp
from mnmt_jax.data.corpus import Corpus, NoFilesError, Selection
from mnmt_jax.data.document_ids import DocumentIds
from mnmt_jax.data.libreoffice_corpus import HELP_LANGUAGES
from mnmt_jax.data.monolingual import MonolingualFiles
from mnmt_jax.data.multiway_tests import bouquet, flores, ntrex
from mnmt_jax.data.parallel_corpora import (
    JoinedCorpus,
    MultilingualTsv,
    PatternFiles,
    register_corpus,
)
from mnmt_jax.data.published_files import (
    DROP,
    EUROPARL_CENTRIC_LANGUAGES,
    MULTI30K_LANGUAGES,
    MULTIUN_LANGUAGES,
    ec40,
    europarl_devsets,
    mmcr,
    multi30k,
    multiun,
    opus100,
    wmt14,
)
from mnmt_jax.errors import UserError, docs_page
from mnmt_jax.vocabulary.language_codes import Direction
from mnmt_jax.vocabulary.languages import (
    EC40_LANGUAGES,
    IWSLT17_LANGUAGES,
    MITRE_LANGUAGES,
    NEWSCRAWL_LANGUAGES,
    OPUS100_ALL_LANGUAGES,
    OPUS100_LANGUAGES,
    TED19_LANGUAGES,
    TED20_LANGUAGES,
    TED30_LANGUAGES,
    WMT14_LANGUAGES,
    english_centric_directions,
    fine_tuning_directions,
    many_to_many_directions,
    mitre_directions,
)

DATA_VARIABLE = "MNMT_JAX_DATA"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PublishedCorpus:
    """One row of the table of corpora.

    Attributes:
        name: name of the corpus, and of its folder unless `folder` is set.
        languages: codes, in the order of their tags.
        factory: function from folder and name to the corpus.
        required_files: description of the files to put into the folder.
        supervised: directions that are trained on; none for test sets. Monolingual text has
            directions from a language to itself.
        tested_languages: languages between which all directions are tested; none if only the
            supervised directions are tested.
        temperature: published sampling temperature.
        folder: name of the folder; "" for the name of the corpus.
        vocabulary: name of the vocabulary of its models; "" for the name of the corpus.
    """

    name: str
    languages: tuple[str, ...]
    factory: Callable[[Path, str], Corpus]
    required_files: str
    supervised: tuple[Direction, ...] = ()
    tested_languages: tuple[str, ...] = ()
    temperature: float = 5.0
    folder: str = ""
    vocabulary: str = ""

    @property
    def path(self) -> Path:
        """Folder of the corpus."""
        return data_folder() / (self.folder or self.name)

    @property
    def zero_shot(self) -> tuple[Direction, ...]:
        """Directions that are tested but not trained on."""
        known = set(self.supervised)
        return tuple(
            pair for pair in many_to_many_directions(self.tested_languages) if pair not in known
        )


def data_folder() -> Path:
    """Return the directory that contains the corpora's folders."""
    return Path(os.environ.get(DATA_VARIABLE) or "data")


def published_corpus(name: str) -> Corpus:
    """Return a corpus of the table.

    Raises:
        UserError: if its files are missing; states which files to put where.
    """
    row = PUBLISHED[name]
    try:
        return row.factory(row.path, row.name)
    except NoFilesError as error:
        raise UserError(
            f"corpus '{name}' is not in {row.path}; put there: {row.required_files}; "
            f"{DATA_VARIABLE} sets the parent folder"
        ) from error


# TED talks of phontron.com: a table per split with a column per language.
def _ted(
    languages: Sequence[str], *, held_out: int | None = None, **word_overrides: str
) -> Callable[[Path, str], Corpus]:
    words = {code: {"zh": "zh-cn", **word_overrides}.get(code, code) for code in languages}
    limits = {} if held_out is None else {"validation": held_out, "test": held_out}

    def make(folder: Path, name: str) -> Corpus:
        return MultilingualTsv(
            name,
            f"{folder}/all_talks_{{split}}.tsv",
            words,
            splits={"train": "train", "validation": "dev", "test": "test"},
            missing_marker="NULL",  # "_ _ NULL _ _" in tokenised tables
            selection=Selection(first=limits),
        )

    return make


# NLLB's mined text from OPUS (Moses format); validation and test text are Flores+.
def _nllb(folder: Path, name: str) -> Corpus:
    patterns = (
        f"{folder}/{{pair}}/NLLB.{{pair}}.{{language}}",
        f"{folder}/NLLB.{{pair}}.{{language}}",
    )
    train = PatternFiles(name, {"train": patterns}, MITRE_LANGUAGES, cleaning=DROP)
    corpora: dict[str, Corpus] = {"train": train}
    try:
        held_out = published_corpus("flores")
        corpora |= {"validation": held_out, "test": held_out}
    except UserError as error:
        _log.warning("%s without validation and test text: %s", name, error)
    return JoinedCorpus(name, MITRE_LANGUAGES, corpora)


# LibreOffice's help pages, as written by 'mnmt fetch'. Pairs without English have training text
# too, except in the disjoint form, where they would share sentences with the English pairs.
def _help(kind: str, *fallbacks: str) -> Callable[[Path, str], Corpus]:
    def make(folder: Path, name: str) -> Corpus:
        held_out = {split: (f"{folder}/{split}.{{language}}",) for split in ("validation", "test")}
        train = tuple(f"{folder}/{word}.{{language}}" for word in (f"{kind}.{{pair}}", *fallbacks))
        corpus = PatternFiles(name, {"train": train, **held_out}, HELP_LANGUAGES)
        keys = {split: (f"{folder}/{split}.keys",) for split in held_out}
        pair_keys = tuple(f"{folder}/{word}.keys" for word in (f"{kind}.{{pair}}", *fallbacks))
        corpus.document_ids = DocumentIds({"train": pair_keys, **keys})
        return corpus

    return make


# IWSLT 2017 and Europarl v7 from MMCR4NLP. All directions have validation text. Source: Qu and
# Watanabe (2022), Tables 6 and 11, Appendix A, and the note on subsampling of their code. Their
# sampled pairs cannot be reproduced.
_IWSLT17_CENTRIC = english_centric_directions(IWSLT17_LANGUAGES)
_IWSLT17_CIRCLE: tuple[Direction, ...] = (("it", "ro"), ("ro", "nl"), ("nl", "it"))
# German, added to a trained model (section 4.4); only its pairs with English are trained on.
_IWSLT17_DE: tuple[Direction, ...] = (("en", "de"), ("de", "en"))
_IWSLT17_DE_LANGUAGES = (*IWSLT17_LANGUAGES, "de")
_IWSLT17_ALL = (*_IWSLT17_CENTRIC, *_IWSLT17_CIRCLE)
_TRIANGLE: tuple[Direction, ...] = (("it", "nl"), ("nl", "de"), ("de", "it"))
_SQUARE = tuple(
    direction
    for pair in (("fr", "it"), ("fr", "de"), ("es", "it"), ("es", "de"))
    for direction in (pair, pair[::-1])
)


# News-Crawl: a file per language and year, in one folder or in a folder per language.
def _newscrawl(folder: Path, name: str) -> Corpus:
    pattern = f"{folder}/**/news.*.{{language}}.shuffled.deduped"
    return MonolingualFiles(name, pattern, NEWSCRAWL_LANGUAGES, splits={}, cleaning=DROP)


_TED_WANTED = (
    "all_talks_train.tsv, all_talks_dev.tsv and all_talks_test.tsv of ted_talks.tar.gz "
    "(phontron.com/data)"
)
_MMCR_WANTED = (
    "{corpus} of MMCR4NLP as train.{pair}.{first}, dev.{pair}.{first}, test.{pair}.{first} and so "
    "on, or train.{first} and so on where line i means the same in all languages"
)
_OPUS100_WANTED = (
    "the folders supervised and zero-shot of opus-100-corpus/v1.0, or a copy of the data set "
    "Helsinki-NLP/opus-100 (en-fr/train-00000-of-00001.parquet and so on)"
)
_OPUS100_ZERO_SHOT = ("ar", "de", "fr", "nl", "ru", "zh")
_IWSLT17_WANTED = _MMCR_WANTED.format(corpus="IWSLT 2017", pair="en-it", first="en")
_EUROPARL_WANTED = _MMCR_WANTED.format(corpus="Europarl v7", pair="it-nl", first="it")
_HELP_WANTED = f"what 'mnmt fetch libreoffice_help' writes ({docs_page('data.md')})"
_FLORES_WANTED = (
    "dev/ and devtest/ of Flores+ or Flores-200 (dev/eng_Latn.dev, dev/dev.eng_Latn, "
    "dev/eng_Latn.parquet or dev/eng_Latn.jsonl, and so on)"
)
FINE_TUNING_COUNTS = (5, 25, 100)


def _ted_row(
    name: str,
    languages: tuple[str, ...],
    factory: Callable[[Path, str], Corpus],
    **fields: Any,
) -> PublishedCorpus:
    """Return the row of TED talks in some languages, to and from English."""
    directions = english_centric_directions(languages)
    return PublishedCorpus(
        name, languages, factory, _TED_WANTED, directions, folder="ted19", **fields
    )


def _iwslt17_row(
    name: str, supervised: tuple[Direction, ...], sample_sizes: Mapping[Direction, int]
) -> PublishedCorpus:
    """Return a row of IWSLT 2017 with some directions; `sample_sizes` limits the pairs of each."""
    return PublishedCorpus(
        name,
        IWSLT17_LANGUAGES,
        mmcr(IWSLT17_LANGUAGES, sample_sizes),
        _IWSLT17_WANTED,
        supervised,
        IWSLT17_LANGUAGES,
        temperature=1.0,
        folder="iwslt17",
        vocabulary="iwslt17",
    )


def _europarl_row(
    name: str, languages: tuple[str, ...], supervised: tuple[Direction, ...], pairs: int
) -> PublishedCorpus:
    """Return a row of Europarl with some directions and `pairs` sampled pairs of each."""
    return PublishedCorpus(
        name,
        languages,
        mmcr(languages, dict.fromkeys(supervised, pairs)),
        _EUROPARL_WANTED,
        supervised,
        languages,
        temperature=1.0,
        folder="europarl",
    )


def _help_row(name: str, factory: Callable[[Path, str], Corpus]) -> PublishedCorpus:
    """Return a row of LibreOffice's help."""
    return PublishedCorpus(
        name,
        HELP_LANGUAGES,
        factory,
        _HELP_WANTED,
        english_centric_directions(HELP_LANGUAGES),
        HELP_LANGUAGES,
        temperature=1.0,
        folder="libreoffice_help",
        vocabulary="libreoffice_help",
    )


_ROWS: Sequence[PublishedCorpus] = (
    _ted_row(
        "ted19",
        TED19_LANGUAGES,
        _ted(TED19_LANGUAGES, held_out=2000),
        tested_languages=TED19_LANGUAGES,
    ),
    PublishedCorpus(
        "opus100",
        OPUS100_LANGUAGES,
        opus100(OPUS100_LANGUAGES),
        _OPUS100_WANTED,
        english_centric_directions(OPUS100_LANGUAGES),
        _OPUS100_ZERO_SHOT,
    ),
    PublishedCorpus(
        "opus100_all",
        OPUS100_ALL_LANGUAGES,
        opus100(OPUS100_ALL_LANGUAGES),
        _OPUS100_WANTED,
        english_centric_directions(OPUS100_ALL_LANGUAGES),
        _OPUS100_ZERO_SHOT,
        temperature=1.0,
        folder="opus100",
    ),
    PublishedCorpus(
        "ec40",
        EC40_LANGUAGES,
        ec40,
        "the plain EC-40 folders EC40_dataset (en-de.de and so on), "
        "EC40-FLORES-en-centric-plain and EC40-FLORES-zs-plain "
        "(github.com/Smu-Tan/ZS-NMT-Variations)",
        english_centric_directions(EC40_LANGUAGES),
        EC40_LANGUAGES,
    ),
    PublishedCorpus(
        "nllb",
        MITRE_LANGUAGES,
        _nllb,
        "the Moses files of NLLB v1 on OPUS, unpacked: de-en/NLLB.de-en.de and so on",
        mitre_directions(),
        MITRE_LANGUAGES,
        temperature=1.0,
        vocabulary="mitre",
    ),
    PublishedCorpus(
        "flores",
        MITRE_LANGUAGES,
        flores({"validation": "dev", "test": "devtest"}),
        _FLORES_WANTED,
        tested_languages=MITRE_LANGUAGES,
        vocabulary="mitre",
    ),
    PublishedCorpus(
        "flores_tuning",
        MITRE_LANGUAGES,
        flores({"train": "dev", "test": "devtest"}),
        _FLORES_WANTED,
        fine_tuning_directions(max(FINE_TUNING_COUNTS)),
        temperature=1.0,
        folder="flores",
        vocabulary="mitre",
    ),
    PublishedCorpus(
        "ntrex",
        MITRE_LANGUAGES,
        ntrex,
        "the folder NTREX-128 of github.com/MicrosoftTranslator/NTREX "
        "(NTREX-128/newstest2019-ref.deu.txt and so on)",
        tested_languages=MITRE_LANGUAGES,
        vocabulary="mitre",
    ),
    PublishedCorpus(
        "wmt24pp",
        wmt24pp.LANGUAGES,
        wmt24pp.Wmt24pp,
        "the files of the data set google/wmt24pp (en-de_DE.jsonl and so on)",
    ),
    PublishedCorpus(
        "bouquet",
        MITRE_LANGUAGES,
        bouquet,
        "the sentences of the data set facebook/bouquet, a file per language in dev/ and test/ "
        f"(test/deu_Latn.jsonl and so on; {docs_page('data.md')})",
    ),
    PublishedCorpus(
        "multi30k",
        MULTI30K_LANGUAGES,
        multi30k,
        "train.XX, val.XX and test_2016_flickr.XX (or .gz) for en, de, fr, cs of "
        "github.com/multi30k/dataset",
        english_centric_directions(MULTI30K_LANGUAGES),
        MULTI30K_LANGUAGES,
    ),
    _ted_row(
        "ted20",
        TED20_LANGUAGES,
        _ted(TED20_LANGUAGES, pt="pt-br"),
        tested_languages=TED20_LANGUAGES,
        temperature=1.0,
    ),
    _ted_row("ted30", TED30_LANGUAGES, _ted(TED30_LANGUAGES), vocabulary="newscrawl"),
    PublishedCorpus(
        "wmt14",
        WMT14_LANGUAGES,
        wmt14,
        "train.XX, newstest2013.XX and newstest2014.XX of WMT14 in the folders en-de and en-fr "
        "(en-de/train.en, en-de/train.de and so on)",
        english_centric_directions(WMT14_LANGUAGES),
        temperature=1.0,
    ),
    PublishedCorpus(
        "newscrawl",
        NEWSCRAWL_LANGUAGES,
        _newscrawl,
        "files such as news.2020.de.shuffled.deduped.gz of data.statmt.org/news-crawl",
        tuple((code, code) for code in NEWSCRAWL_LANGUAGES),
        temperature=1 / 0.7,
    ),
    _iwslt17_row("iwslt17", _IWSLT17_CENTRIC, {}),
    _iwslt17_row("iwslt17_circle", _IWSLT17_ALL, dict.fromkeys(_IWSLT17_CIRCLE, 30_000)),
    _iwslt17_row(
        "iwslt17_circle_90k",
        _IWSLT17_ALL,
        dict.fromkeys(_IWSLT17_CENTRIC, 90_000) | dict.fromkeys(_IWSLT17_CIRCLE, 30_000),
    ),
    PublishedCorpus(
        "iwslt17_de",
        _IWSLT17_DE_LANGUAGES,
        mmcr(_IWSLT17_DE_LANGUAGES, dict.fromkeys(_IWSLT17_DE, 15_000)),
        _IWSLT17_WANTED,
        _IWSLT17_DE,
        _IWSLT17_DE_LANGUAGES,
        temperature=1.0,
        folder="iwslt17",
    ),
    _europarl_row("europarl_triangle", ("it", "nl", "de"), _TRIANGLE, 200_000),
    _europarl_row("europarl_square", ("fr", "it", "de", "es"), _SQUARE, 1_000_000),
    PublishedCorpus(
        "multiun",
        MULTIUN_LANGUAGES,
        multiun,
        "the Moses files of MultiUN on OPUS (MultiUN.ar-en.ar, MultiUN.ar-en.en and so on) or the "
        "folders ar-en, en-ru and en-zh of the UN Parallel Corpus v1.0 (ar-en/UNv1.0.ar-en.ar and "
        "so on), and its folder testsets (testsets/devset/UNv1.0.devset.ar and so on)",
        english_centric_directions(MULTIUN_LANGUAGES),
        MULTIUN_LANGUAGES,
        temperature=1.0,
    ),
    PublishedCorpus(
        "europarl_centric",
        EUROPARL_CENTRIC_LANGUAGES,
        europarl_devsets,
        "europarl-v7.de-en.de, europarl-v7.fr-en.fr and so on (statmt.org/europarl/v7), and "
        "devtest2006.XX and test2006.XX of the workshops' development sets, in UTF-8",
        english_centric_directions(EUROPARL_CENTRIC_LANGUAGES),
        EUROPARL_CENTRIC_LANGUAGES,
        temperature=1.0,
        folder="europarl",
    ),
    _help_row("libreoffice_help", _help("train", "train")),
    _help_row("libreoffice_help_disjoint", _help("train_disjoint")),
)

PUBLISHED: Mapping[str, PublishedCorpus] = {row.name: row for row in _ROWS}
"""The corpora by name; `mnmt_jax.data.parallel_corpora.get_corpus` makes them too."""


for _name in PUBLISHED:
    register_corpus(_name, functools.partial(published_corpus, _name))
