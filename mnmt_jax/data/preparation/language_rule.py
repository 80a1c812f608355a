"""The rule on the detected language of sentences."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from mnmt_jax.data.preparation.steps import Side, SideRule
from mnmt_jax.errors import join_names, warn
from mnmt_jax.vocabulary.detector_names import LID176
from mnmt_jax.vocabulary.language_detectors import LanguageDetector, find_detector
from mnmt_jax.vocabulary.normalization import has_letters


@dataclasses.dataclass(frozen=True)
class DetectedLanguage(SideRule):
    """Another language by automatic detection.

    Sentences without letters pass, and all sentences of a language for which the detector has no
    reliable label; a warning names these languages.

    Attributes:
        lid_model: `lid.176`, `langdetect`, or the path of a fastText model: lid.176,
            GlotLID or OpenLID.
    """

    name = "language"
    lid_model: str = LID176

    def __post_init__(self) -> None:
        """Check that a model is named."""
        self.require("lid_model", bool(self.lid_model), expected=f"a detector, such as {LID176}")

    def check_languages(self, languages: Sequence[str]) -> None:
        """Check that the model can be read, and warn of languages that it cannot check.

        Raises:
            UserError: if a package or file is missing.
        """
        detector = _detector(self.lid_model)
        if unchecked := [code for code in languages if detector.expected(code) is None]:
            warn(
                f"language: {detector.name} has no reliable label for {join_names(unchecked)}, so "
                "that their sentences all pass; name a file of GlotLID as lid_model, or add the "
                "step 'script'"
            )

    def dependencies(self, languages: Sequence[str]) -> dict[str, str]:
        """Return the signature of the detector."""
        return {"language detector": _detector(self.lid_model).signature}

    def accepts_side(self, side: Side) -> np.ndarray:
        """Return which sentences pass, bool `[n]`."""
        detector = _detector(self.lid_model)
        accepted = {detector.expected(side.language), ""}
        if None in accepted:
            return np.ones(len(side.sentences), bool)
        is_accepted = (
            not has_letters(sentence) or detector.label(sentence) in accepted
            for sentence in side.sentences
        )
        return np.fromiter(is_accepted, bool, len(side.sentences))


@functools.cache
def _detector(model: str) -> LanguageDetector:
    return find_detector(model, setting="language: lid_model = ")
