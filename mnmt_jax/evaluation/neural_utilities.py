"""Neural metrics as utilities of decoding; importing this module registers them.

`Decode.utility` is then `comet:MODEL`, `xcomet:MODEL` or `metricx:MODEL` for minimum Bayes risk
decoding, and `kiwi:MODEL` for reranking by estimated quality. The models run in the environment of
`mnmt metrics setup`; they get the candidates of 64 lines at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from mnmt_jax.decoding.candidate_ranking import Utility
from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.minimum_bayes_risk import ExpectedMetric, pairwise
from mnmt_jax.decoding.reranking import EstimatedQuality
from mnmt_jax.decoding.utilities import register_utility_with_model
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.metrics_environment import MetricWorker

_worker = functools.cache(MetricWorker)


def _scorer(
    metric: str, name: str, model: str, sign: float = 1.0
) -> Callable[..., Sequence[float]]:
    """Return a function from lines, translations and maybe references to their scores."""
    if not Path(model).exists():
        raise UserError(f"Decode.utility='{name}:{model}': no such file or folder")

    def score(lines: Sequence[Line], *texts: Sequence[str]) -> list[float]:
        rows = [
            dict(zip(("src", "mt", "ref"), (line.text, *row), strict=False))
            for line, *row in zip(lines, *texts, strict=True)
        ]
        return [sign * value for value in _worker().score(metric, model, rows)]

    return score


def _expected(metric: str, name: str, sign: float = 1.0) -> Callable[[str], Utility]:
    return lambda model: ExpectedMetric(pairwise(_scorer(metric, name, model, sign)))


register_utility_with_model("comet", _expected("comet", "comet"))
register_utility_with_model("xcomet", _expected("comet", "xcomet"))
register_utility_with_model("metricx", _expected("metricx", "metricx", sign=-1.0))  # errors
register_utility_with_model("kiwi", lambda model: EstimatedQuality(_scorer("comet", "kiwi", model)))
