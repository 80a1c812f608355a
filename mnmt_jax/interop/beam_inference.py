"""Translation inside Apache Beam pipelines: a model handler of `RunInference`.

Example:
    >>> handler = KeyedModelHandler(TranslationHandler("runs/register", source="de", target="en"))
    >>> pipeline | beam.Create([(0, "vor zwei Tagen")]) | RunInference(handler)

Needs the extra `beam`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from apache_beam.ml.inference.base import ModelHandler

from mnmt_jax.decoding.translation import Translation
from mnmt_jax.decoding.translator import Translator


class TranslationHandler(ModelHandler[str, Translation, Translator]):
    """Translates lines; each worker process loads the model once.

    Elements are lines of one language, predictions are `Translation`. A line's translation does not
    depend on the lines that Beam batches it with, as in `Translator.translate`.

    Args:
        run: run directory, which all workers see.
        source: code of the language of the lines.
        target: code of the language to translate into.
        step: a checkpoint's step, `best`, `average`, or None for the newest.
        pivot: code of a language to translate into first; None translates directly.
        max_batch: most lines that Beam gives the model at a time.
        **overrides: fields of `Decode`, as in `Translator.translate`.
    """

    def __init__(
        self,
        run: str,
        *,
        source: str,
        target: str,
        step: int | str | None = None,
        pivot: str | None = None,
        max_batch: int = 1024,
        **overrides: Any,
    ) -> None:
        super().__init__(max_batch_size=max_batch)
        self._run, self._step = run, step
        self._options = {"source": source, "target": target, "pivot": pivot, **overrides}

    def load_model(self) -> Translator:
        """Load the run."""
        return Translator.load(self._run, self._step)

    def run_inference(
        self,
        batch: Sequence[str],
        model: Translator,
        inference_args: Mapping[str, Any] | None = None,
    ) -> Iterable[Translation]:
        """Translate a batch of lines, in order; Beam refuses `inference_args` for this handler."""
        del inference_args  # options of the search are the handler's
        return model.stream(list(batch), **self._options)
