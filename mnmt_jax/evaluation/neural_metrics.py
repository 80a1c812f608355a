"""Neural metrics: COMET and BERTScore, with local models.

BERTScore is installed by the extra `neural-metrics`. COMET is in no extra: unbabel-comet 2 requires
numpy < 2. Nothing is downloaded; a missing model is reported, and the metric is left out.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.language_codes import canonical_code_or_input

COMET_MODEL = "Unbabel/wmt22-comet-da"
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

_MONOLINGUAL_MODELS = {
    "zh": "bert-base-chinese",
    "tr": "dbmdz/bert-base-turkish-cased",
}
_BATCH_SIZE = 100
_REMEDIES = {
    "COMET": "unbabel-comet 2 requires numpy < 2 and cannot be installed beside mnmt-jax; score "
    "OUTPUT/translations with comet-score in an environment of its own",
    "BERTScore": "pip install 'mnmt-jax[neural-metrics]'",
}


class Comet:
    """Scorer with a COMET model.

    Args:
        checkpoint: model file, as returned by `comet.download_model` (".../model.ckpt").

    Raises:
        UserError: if the file or the package is missing.
    """

    def __init__(self, checkpoint: str | Path) -> None:
        path = Path(checkpoint)
        if not path.is_file():
            raise UserError(
                f"--comet={path}: no such file; give the checkpoint of {COMET_MODEL} "
                "(checkpoints/model.ckpt of its Hugging Face repository, hparams.yaml beside the "
                "folder)"
            )
        comet = _import("comet", "COMET")
        self._model = comet.load_from_checkpoint(str(path), local_files_only=True)
        self.signature = f"comet:{_version(comet)}|model:{path}"

    def score(
        self, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
    ) -> list[float]:
        """Return the score of each sentence; that of a system is their mean.

        Args:
            sources: source sentences.
            hypotheses: output texts.
            references: reference translations.
        """
        names = ("src", "mt", "ref")
        rows = zip(sources, hypotheses, references, strict=True)
        data = [dict(zip(names, row, strict=True)) for row in rows]
        gpus = int(_has_gpu())
        output = self._model.predict(data, batch_size=_BATCH_SIZE, gpus=gpus, progress_bar=False)
        return list(map(float, output.scores))


class BertScore:
    """Scorer with BERTScore's F, without idf weights or rescaling.

    Args:
        folder: parent of the model folders, which are named as on the Hugging Face Hub:
            `roberta-large`, `dbmdz/bert-base-turkish-cased` and so on.
        language_specific_models: whether to score Chinese and Turkish with monolingual models (the
            TED-19 script) or with the multilingual one (the OPUS-100 script).
        english: model for English, one of `ENGLISH_MODELS`: roberta-large in both scripts,
            xlmr.large (xlm-roberta-large) in the paper's footnote.

    Raises:
        UserError: if the folder or the package is missing.

    Source: two_stage.md 7.6.
    """

    def __init__(
        self,
        folder: str | Path,
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
        self._package = _import("bert_score", "BERTScore")
        self._own_models = language_specific_models
        self._scorers: dict[str, Any] = {}

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

    def score(
        self, hypotheses: Sequence[str], references: Sequence[str], target_language: str
    ) -> list[float]:
        """Return F of each sentence; that of a system is their mean.

        Args:
            hypotheses: output texts.
            references: reference translations.
            target_language: selects the model, which must exist.
        """
        name = self.model(target_language)
        if name not in self._scorers:
            self._scorers[name] = self._package.BERTScorer(
                model_type=str(self._folder / name),
                num_layers=BERT_SCORE_LAYERS[name],
                device="cuda" if _has_gpu() else "cpu",
            )
        _, _, f1 = self._scorers[name].score(
            list(hypotheses), list(references), batch_size=_BATCH_SIZE
        )
        return list(map(float, f1.tolist()))

    def signature(self, target_language: str) -> str:
        """Return the signature of the scores of a target language."""
        name = self.model(target_language)
        version = _version(self._package)
        return f"bert_score:{version}|model:{name}|layer:{BERT_SCORE_LAYERS[name]}|no-idf"


def _import(package: str, metric: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UserError(f"{metric} is not installed ({error}); {_REMEDIES[metric]}") from error


def _version(package: Any) -> str:
    return getattr(package, "__version__", "unknown")


def _has_gpu() -> bool:
    try:
        return bool(importlib.import_module("torch").cuda.is_available())
    except ImportError:
        return False
