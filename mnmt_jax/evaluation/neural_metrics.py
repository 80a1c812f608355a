"""Neural metrics with local models: COMET, xCOMET, CometKiwi, MetricX-24 and BERTScore.

They run in an environment of their own (`mnmt_jax.evaluation.metrics_environment`). Nothing is
downloaded; a missing model is reported, and the metric is left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.language_codes import canonical_code_or_input

if TYPE_CHECKING:
    from mnmt_jax.evaluation.benchmark import TestSet
    from mnmt_jax.evaluation.metrics_environment import MetricWorker

COMET_MODELS: Mapping[str, str] = {
    "comet": "Unbabel/wmt22-comet-da",
    "xcomet": "Unbabel/XCOMET-XL",
    "kiwi": "Unbabel/wmt22-cometkiwi-da",
}
"""Models of COMET's library by metric, a flag and a field of `DirectionResult`."""
METRICX_MODEL = "google/metricx-24-hybrid-large-v2p6"
BERT_SCORE_LAYERS = {
    "roberta-large": 17,
    "xlm-roberta-large": 17,
    "bert-base-chinese": 8,
    "dbmdz/bert-base-turkish-cased": 10,
    "bert-base-multilingual-cased": 9,
}
"""BERTScore models of the papers and their scripts, and the layer that bert-score uses of each."""
ENGLISH_MODELS = ("roberta-large", "xlm-roberta-large")
"""Models for English: that of the scripts, and that of the TDO paper's footnote 13."""

_HUB_PREFIX = "models--"  # of folders in the cache of the Hugging Face Hub
_HASHED_BYTES = 2**20  # at the beginning and at the end of a file
_MONOLINGUAL_MODELS = {
    "zh": "bert-base-chinese",
    "tr": "dbmdz/bert-base-turkish-cased",
}


class NeuralMetric(Protocol):
    """A neural metric."""

    @property
    def name(self) -> str:
        """Field of `DirectionResult`."""

    @property
    def setting(self) -> str:
        """Model of the scores; scores of another model are not comparable."""

    def missing(self, target_language: str) -> str:
        """Return a note if the model of a target language is missing, else ""."""

    def signature(self, target_language: str) -> str:
        """Return the signature of the scores of a target language."""

    def score(self, texts: TestSet, hypotheses: Sequence[str], target_language: str) -> list[float]:
        """Return the score of each sentence in the unit of tables."""


class _AllLanguages:
    """Part of a metric whose model has all languages."""

    setting: str

    def missing(self, target_language: str) -> str:
        """Return "": the model has all languages."""
        return ""

    def signature(self, target_language: str) -> str:
        """Return the signature, which does not depend on the language."""
        return self.setting


class Comet(_AllLanguages):
    """Scorer with a model of COMET's library, times 100.

    Args:
        checkpoint: model file, as returned by `comet.download_model` (".../model.ckpt").
        worker: process of the metrics.
        name: one of `COMET_MODELS`.

    Raises:
        UserError: if the file or the package is missing.
    """

    def __init__(self, checkpoint: str | Path, worker: MetricWorker, name: str = "comet") -> None:
        path = Path(checkpoint)
        if not path.is_file():
            raise UserError(
                f"--{name}={path}: no such file; give the checkpoint of {COMET_MODELS[name]} "
                "(checkpoints/model.ckpt of its Hugging Face repository, hparams.yaml beside the "
                "folder)"
            )
        self.name, self._path, self._worker = name, str(path), worker
        self.setting = f"comet:{worker.version('comet')}|{identify_model(path)}"

    def score(
        self, texts: TestSet, hypotheses: Sequence[str], target_language: str = ""
    ) -> list[float]:
        """Return the score of each sentence times 100; that of a system is their mean."""
        scores = self._worker.score("comet", self._path, _rows(texts, hypotheses))
        return [100.0 * score for score in scores]


class MetricX(_AllLanguages):
    """Scorer with MetricX-24: errors from 0 to 25.

    Args:
        folder: folder with model and tokenizer (that of google/mt5-xl).
        worker: process of the metrics.

    Raises:
        UserError: if the folder is missing.
    """

    name = "metricx"

    def __init__(self, folder: str | Path, worker: MetricWorker) -> None:
        if not Path(folder).is_dir():
            raise UserError(
                f"--metricx={folder}: no such folder; give that of {METRICX_MODEL}, with the "
                "tokenizer's files of google/mt5-xl"
            )
        self._folder, self._worker = str(folder), worker
        version = worker.version("metricx")
        self.setting = f"metricx-24|transformers:{version}|{identify_model(Path(folder))}"

    def score(
        self, texts: TestSet, hypotheses: Sequence[str], target_language: str = ""
    ) -> list[float]:
        """Return the error of each sentence; that of a system is their mean."""
        return self._worker.score("metricx", self._folder, _rows(texts, hypotheses))


class BertScore:
    """Scorer with BERTScore's F times 100, without idf weights or rescaling.

    Args:
        folder: parent of the model folders, which are named as on the Hugging Face Hub:
            `roberta-large`, `dbmdz/bert-base-turkish-cased` and so on.
        worker: process of the metrics.
        language_specific_models: whether to score Chinese and Turkish with monolingual models (the
            TED-19 script) or with the multilingual one (the OPUS-100 script).
        english: model for English, one of `ENGLISH_MODELS`: roberta-large in both scripts,
            xlmr.large (xlm-roberta-large) in the paper's footnote.

    Raises:
        UserError: if the folder or the package is missing.

    Source: two_stage.md 7.6.
    """

    name = "bert_score"

    def __init__(
        self,
        folder: str | Path,
        worker: MetricWorker,
        *,
        language_specific_models: bool = True,
        english: str = ENGLISH_MODELS[0],
    ) -> None:
        self._folder = Path(folder)
        self._english = english
        if not self._folder.is_dir():
            raise UserError(
                f"--bert_score={folder}: no such folder; it holds the models "
                f"{', '.join(BERT_SCORE_LAYERS)}"
            )
        if "t5" in str(folder):
            raise UserError(
                f"--bert_score={folder}: bert-score takes a path that contains 't5' for a T5 "
                "model; choose another folder name"
            )
        self._worker, self._version = worker, worker.version("bert_score")
        self._own_models = language_specific_models
        self.setting = str(folder)
        if english != ENGLISH_MODELS[0]:
            self.setting += f", {english} for English"

    def model(self, target_language: str) -> str:
        """Return the name of the model for a target language."""
        code = canonical_code_or_input(target_language).partition("_")[0]
        if code == "en":
            return self._english
        default = "bert-base-multilingual-cased"
        return _MONOLINGUAL_MODELS.get(code, default) if self._own_models else default

    def missing(self, target_language: str) -> str:
        """Return a note if the model of a target language is missing, else ""."""
        path = self._folder / self.model(target_language)
        if path.is_dir():
            return ""
        return f"BERTScore left out: {path} is not there; download {self.model(target_language)}"

    def score(self, texts: TestSet, hypotheses: Sequence[str], target_language: str) -> list[float]:
        """Return F of each sentence times 100; that of a system is their mean."""
        name = self.model(target_language)
        layer = BERT_SCORE_LAYERS[name]
        rows, path = _rows(texts, hypotheses), str(self._folder / name)
        scores = self._worker.score("bert_score", path, rows, layer=layer)
        return [100.0 * score for score in scores]

    def signature(self, target_language: str) -> str:
        """Return the signature of the scores of a target language."""
        name = self.model(target_language)
        model = name_model(self._folder / name, name)
        return f"bert_score:{self._version}|{model}|layer:{BERT_SCORE_LAYERS[name]}|no-idf"


def identify_model(path: Path) -> str:
    """Return `model:NAME|files:HASH` of a model's file or folder, wherever it is stored.

    NAME is that on the Hugging Face Hub where its cache has the model, else the folder's.
    """
    cached = [part for part in path.parts if part.startswith(_HUB_PREFIX)]
    folder = path.parent.parent if path.parent.name == "checkpoints" else path
    name = cached[-1].removeprefix(_HUB_PREFIX).replace("--", "/") if cached else folder.name
    return name_model(path, name)


def model_part(signature: str) -> str:
    """Return a signature from the name of the model on, without the version of the package."""
    return signature[max(signature.find("model:"), 0) :]


def differing_models(signatures: Iterable[object]) -> list[str]:
    """Return the models of one score, if signatures name several for a target language.

    Versions of packages do not count.

    Args:
        signatures: signatures of a score, or mappings of them by target language; others, such as
            None, are unknown.

    Returns:
        At least two models of the first such language; empty if there is none.
    """
    by_target: dict[str, dict[str, None]] = {}
    for signature in signatures:
        items = signature.items() if isinstance(signature, Mapping) else [("", signature)]
        for target, text in items:
            if isinstance(text, str):
                by_target.setdefault(target, {})[model_part(text)] = None
    return next((list(models) for models in by_target.values() if len(models) > 1), [])


def name_model(path: Path, name: str) -> str:
    """Return `model:NAME|files:HASH` of a model's file or folder.

    HASH depends on the names, sizes, beginnings and ends of the files.
    """
    return f"model:{name}|files:{_hash_files(path)}"


def _hash_files(path: Path) -> str:
    """Return a hash of a file, or of the files in a folder, 8 hexadecimal digits."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if not file.is_file():
            continue
        size = file.stat().st_size
        digest.update(f"{file.relative_to(path.parent)} {size}\n".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(_HASHED_BYTES))
            stream.seek(max(0, size - _HASHED_BYTES))
            digest.update(stream.read())
    return digest.hexdigest()[:8]


def _rows(texts: TestSet, hypotheses: Sequence[str]) -> list[dict[str, str]]:
    return [
        {"src": source, "mt": hypothesis, "ref": reference}
        for source, hypothesis, reference in zip(
            texts.sources, hypotheses, texts.references, strict=True
        )
    ]
