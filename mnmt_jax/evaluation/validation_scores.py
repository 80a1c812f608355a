"""Scores of translations that validation makes during training."""

from __future__ import annotations

from collections.abc import Sequence


def score(
    hypotheses: Sequence[str], references: Sequence[str], target_language: str
) -> dict[str, float | None]:
    """Return `bleu`, `chrf` (chrF++) and `off_target` in percent; None for one that is not known.

    Args:
        hypotheses: translations, at least one.
        references: reference translations, in the same order.
        target_language: code of the target language.
    """
    from mnmt_jax.evaluation.metrics import corpus_scores  # slow: sacreBLEU
    from mnmt_jax.evaluation.off_target import lid_off_target

    scores = corpus_scores(hypotheses, references, target_language)
    off_target = lid_off_target(hypotheses, target_language).ratio
    return {"bleu": scores.bleu, "chrf": scores.chrf, "off_target": off_target}
