"""Neural metrics as a process of another Python environment, which has no mnmt_jax.

Reads requests from standard input, a JSON object per line, and answers each with a line:

{"check": "comet"}                                              {"version": "2.2.7"}
{"metric": "comet", "model": PATH, "rows": [{"src", "mt", "ref"}, ...]}   {"scores": [...]}

An error is answered by {"error": TEXT}. Models stay loaded. Whatever the libraries print goes to
standard error.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
from typing import Any

_PACKAGES = {"comet": "unbabel-comet", "bert_score": "bert-score", "metricx": "transformers"}
_MODULES = {"comet": "comet", "bert_score": "bert_score", "metricx": "transformers"}
_BATCH_SIZE = 64
_METRICX_LENGTH = 1536  # tokens of an input of MetricX-24, as its README has
_METRICX_TOKEN = 250089  # <extra_id_10>, whose first logit is the score
_METRICX_WORST = 25.0


class Comet:
    """COMET, xCOMET or CometKiwi, from a checkpoint."""

    def __init__(self, request: dict[str, Any]) -> None:
        """Load the model of a request."""
        package: Any = importlib.import_module("comet")
        self._model = package.load_from_checkpoint(request["model"], local_files_only=True)

    def score(self, rows: list[dict[str, str]]) -> list[float]:
        """Return the score of each row; models without references ignore `ref`."""
        output = self._model.predict(
            rows, batch_size=_BATCH_SIZE, gpus=int(_has_gpu()), progress_bar=False
        )
        return [float(score) for score in output.scores]


class BertScore:
    """F of BERTScore, without idf and rescaling."""

    def __init__(self, request: dict[str, Any]) -> None:
        """Load the model of a request, which has the number of its layer."""
        package: Any = importlib.import_module("bert_score")
        self._scorer = package.BERTScorer(
            model_type=request["model"],
            num_layers=request["layer"],
            device="cuda" if _has_gpu() else "cpu",
        )

    def score(self, rows: list[dict[str, str]]) -> list[float]:
        """Return F of each row."""
        hypotheses, references = ([row[name] for row in rows] for name in ("mt", "ref"))
        _, _, f1 = self._scorer.score(hypotheses, references, batch_size=_BATCH_SIZE)
        return [float(score) for score in f1.tolist()]


class MetricX:
    """MetricX-24 with source and reference: errors from 0 to 25, the model's own scale.

    Source: Juraska et al., "MetricX-24", WMT 2024, and its released predict.py: the input ends
    without end-of-sentence token, and the score is a logit of the first decoding step.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        """Load the model of a request; its folder has the tokenizer, too."""
        package: Any = importlib.import_module("transformers")
        self._torch: Any = importlib.import_module("torch")
        folder = request["model"]
        self._tokenizer = package.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = package.MT5ForConditionalGeneration
        self._model = model.from_pretrained(folder, local_files_only=True).eval()
        if _has_gpu():
            self._model = self._model.cuda()

    def score(self, rows: list[dict[str, str]]) -> list[float]:
        """Return the error score of each row, one by one."""
        texts = (
            f"source: {row['src']} candidate: {row['mt']} reference: {row['ref']}" for row in rows
        )
        return [self._error(text) for text in texts]

    def _error(self, text: str) -> float:
        torch, device = self._torch, self._model.device
        tokens = self._tokenizer(text, max_length=_METRICX_LENGTH, truncation=True).input_ids[:-1]
        with torch.no_grad():
            output = self._model(
                input_ids=torch.tensor([tokens], device=device),
                decoder_input_ids=torch.zeros((1, 1), dtype=torch.long, device=device),
            )
        return float(output.logits[0, 0, _METRICX_TOKEN].clamp(0.0, _METRICX_WORST))


_SCORERS: dict[str, Any] = {"comet": Comet, "bert_score": BertScore, "metricx": MetricX}


def main() -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    loaded: dict[str, Any] = {}
    for line in sys.stdin:
        try:
            answer = _answer(json.loads(line), loaded)
        except Exception as error:  # of any library
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def _answer(request: dict[str, Any], loaded: dict[str, Any]) -> dict[str, Any]:
    """Answer a request.

    Args:
        request: the request.
        loaded: loaded models by metric, model and options.
    """
    if "check" in request:
        importlib.import_module(_MODULES[request["check"]])
        return {"version": importlib.metadata.version(_PACKAGES[request["check"]])}
    rows = request.pop("rows")
    key = json.dumps(request, sort_keys=True)
    if key not in loaded:
        loaded[key] = _SCORERS[request["metric"]](request)
    return {"scores": loaded[key].score(rows) if rows else []}


def _has_gpu() -> bool:
    torch: Any = importlib.import_module("torch")
    return bool(torch.cuda.is_available())


if __name__ == "__main__":
    main()
