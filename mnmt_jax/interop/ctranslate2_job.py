"""Translation jobs that search with CTranslate2 (extra `ctranslate2`)."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mnmt_jax.decoding.encoded_lines import EncodedLine, Line, encode_lines
from mnmt_jax.decoding.text.sentence_job import SentenceJob
from mnmt_jax.decoding.translate_lines import (
    LINE_BREAKS,
    check_search,
    to_translation,
    untranslated,
)
from mnmt_jax.decoding.translation import Hypothesis, Translation
from mnmt_jax.errors import UserError
from mnmt_jax.interop.ctranslate2 import export_ctranslate2
from mnmt_jax.interop.tags import tag_tokens
from mnmt_jax.interop.token_table import rows_of_vocabulary, tokens_for_export
from mnmt_jax.model.lora import merge_lora
from mnmt_jax.vocabulary.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True, eq=False)
class CTranslate2Job(SentenceJob):
    """A job whose lines CTranslate2 searches, in batches that it forms.

    A line that needs more than a plain search, such as an alignment or forced terms, is searched as
    in `SentenceJob`.

    Attributes:
        engine: the exported model; None searches all lines as in `SentenceJob`.
    """

    engine: _Engine | None = None

    @property
    def compiling_job(self) -> SentenceJob:
        """The job without CTranslate2."""
        return dataclasses.replace(self, engine=None)

    def may_compile(self, line: Line) -> bool:
        """Return whether JAX searches a line."""
        return not self._is_plain(line) if self.engine else super().may_compile(line)

    @property
    def has_slots(self) -> bool:
        """Whether lines are searched by continuous batching."""
        return self.engine is None

    @classmethod
    def of(
        cls, job: SentenceJob, compute_type: str = "float32", threads: int = 0
    ) -> CTranslate2Job:
        """Return a job with its model exported to CTranslate2.

        Args:
            job: the job.
            compute_type: of CTranslate2: `float32`, `int8` and so on.
            threads: number of threads; 0 lets CTranslate2 choose.

        Raises:
            UserError: if CTranslate2 has no such model or search, or is not installed.
        """
        _check_decode(job)
        vocabulary = job.pretrained.vocabulary
        if vocabulary.additions or vocabulary.copies:
            raise UserError(
                "CTranslate2's vocabularies have neither pieces of one language nor copies; leave "
                "out --engine=ctranslate2"
            )
        config = dataclasses.replace(job.pretrained.config, decode=job.decode)
        params = merge_lora(job.pretrained.inference_model.params)
        with tempfile.TemporaryDirectory() as folder:
            export_ctranslate2(config, params, vocabulary, Path(folder))
            engine = _Engine(folder, vocabulary, compute_type, threads)
        fields = {field.name: getattr(job, field.name) for field in dataclasses.fields(job)}
        return cls(**fields, engine=engine)

    def _translate(
        self, lines: Sequence[Line], done: Collection[int], *, has_sources: bool = True
    ) -> Iterator[tuple[int, Translation]]:
        plain = {i for i, line in enumerate(lines) if self.engine and self._is_plain(line)}
        wanted = {i: lines[i] for i in plain if lines[i].number not in done}
        if self.engine and wanted:
            yield from self._translate_plain(wanted, self.engine)
        others = [i for i in range(len(lines)) if i not in plain]
        searched = super()._translate([lines[i] for i in others], done, has_sources=has_sources)
        yield from ((others[i], translation) for i, translation in searched)

    @staticmethod
    def _is_plain(line: Line) -> bool:
        """Return whether a line asks for nothing but its translation."""
        plain = Line(line.number, line.text, line.source_lang, line.target_lang)
        return dataclasses.replace(line, sampling_index=None) == plain

    def _translate_plain(
        self, lines: Mapping[int, Line], engine: _Engine
    ) -> Iterator[tuple[int, Translation]]:
        model = self.pretrained.inference_model
        check_search(model, self.decode)
        encoded = encode_lines(model, lines, self.decode)
        yield from ((i, untranslated(one)) for i, one in encoded.items() if not one.inputs)
        wanted = {i: one for i, one in encoded.items() if one.inputs}
        if not wanted:
            return
        sources = [self._source_ids(one) for one in wanted.values()]
        prefixes = [self._prefix_ids(lines[i].target_lang) for i in wanted]
        limit = max(one.limit for one in wanted.values())
        results = engine.search(sources, prefixes, self._options(limit))
        for (i, one), result in zip(wanted.items(), results, strict=True):
            hypotheses = self._hypotheses(one, result)
            yield i, to_translation(one, hypotheses, lines[i])

    def _options(self, limit: int) -> dict[str, Any]:
        """Return the search settings under CTranslate2's names."""
        decode = self.decode
        forced = self.pretrained.inference_model.instruction.target_tag
        return {
            "max_batch_size": decode.batch,
            "beam_size": decode.beam_size,
            "num_hypotheses": decode.beam_size,
            "length_penalty": decode.length_penalty,
            "max_input_length": 0,  # sources are cut to the largest bucket before
            "max_decoding_length": limit + 1 + forced,
            "min_decoding_length": 1 + forced,  # no empty translation, as in our search
            "disable_unk": not decode.allow_unk,
            "return_scores": True,
            "return_end_token": True,
        }

    def _source_ids(self, encoded: EncodedLine) -> list[int]:
        """Return the source with its tag and eos."""
        model, (example, *_) = self.pretrained.inference_model, encoded.inputs
        vocabulary = model.vocabulary
        languages = {"source": example.source_lang, "target": example.target_lang}
        kind = model.instruction.source_tag
        tag = [] if kind is None else [vocabulary.tag_id(vocabulary.languages[languages[kind]])]
        return [*tag, *example.source.tolist(), vocabulary.eos_id]

    def _prefix_ids(self, target: str) -> list[int]:
        """Return the trigger, if it is a tag, and the forced tag of a target language."""
        model = self.pretrained.inference_model
        has_tag = model.instruction.trigger == "tag"
        trigger = [model.vocabulary.tag_id(target)] if has_tag else []
        return [*trigger, *model.instruction.forced_ids(model.vocabulary, target)]

    def _hypotheses(
        self, encoded: EncodedLine, result: Sequence[tuple[tuple[int, ...], float]]
    ) -> tuple[Hypothesis, ...]:
        vocabulary = self.pretrained.vocabulary
        forced = self.pretrained.inference_model.instruction.target_extra - 1
        hypotheses = []
        for ids, score in result:
            tokens = ids[forced:]
            if len(tokens) > encoded.limit:  # whose end CTranslate2 leaves out
                tokens = (*tokens[: encoded.limit], vocabulary.eos_id)
            text = LINE_BREAKS.sub(" ", vocabulary.decode(tokens))
            hypotheses.append(Hypothesis(text, score, tokens))
        return tuple(hypotheses)


class _Engine:
    """A model in CTranslate2, by our ids of tokens.

    Args:
        folder: the exported model.
        vocabulary: vocabulary of the run.
        compute_type: see `CTranslate2Job.of`.
        threads: see there.

    Raises:
        UserError: if this processor does not support the type.
    """

    def __init__(
        self, folder: str, vocabulary: Vocabulary, compute_type: str, threads: int
    ) -> None:
        import ctranslate2

        rows = rows_of_vocabulary(vocabulary, tags_last=False)
        exported = tokens_for_export(vocabulary, tag_tokens(vocabulary.languages), rows)
        self._names = [exported[row] for row in np.asarray(rows)]
        self._ids = {name: number for number, name in enumerate(self._names)}
        types = sorted(ctranslate2.get_supported_compute_types("cpu"))
        if compute_type not in types:
            raise UserError(
                f"--compute_type={compute_type}: this processor supports {', '.join(types)}"
            )
        self._translator = ctranslate2.Translator(
            folder, compute_type=compute_type, intra_threads=threads
        )

    def search(
        self,
        sources: Sequence[Sequence[int]],
        prefixes: Sequence[Sequence[int]],
        options: Mapping[str, Any],
    ) -> list[list[tuple[tuple[int, ...], float]]]:
        """Return the tokens and the score of each hypothesis of each source."""
        results = self._translator.translate_batch(
            [self._named(source) for source in sources],
            [self._named(prefix) for prefix in prefixes],
            **options,
        )
        return [
            [
                (tuple(self._ids[name] for name in names), score)
                for names, score in zip(result.hypotheses, result.scores, strict=True)
            ]
            for result in results
        ]

    def _named(self, ids: Sequence[int]) -> list[str]:
        return [self._names[number] for number in ids]


def _check_decode(job: SentenceJob) -> None:
    """Check that CTranslate2 has the search of a job.

    Raises:
        UserError: otherwise.
    """
    decode = job.decode
    wrong = {
        "temperature": decode.temperature,
        "source_contrast": decode.source_contrast,
        "language_contrast": decode.language_contrast,
    }
    for name, value in wrong.items():
        if value:
            raise UserError(f"Decode.{name}={value:g}: --engine=ctranslate2 has only plain search")
    if decode.beam_groups > 1:
        raise UserError(
            f"Decode.beam_groups={decode.beam_groups}: --engine=ctranslate2 has only plain search"
        )
    if decode.ensemble:
        raise UserError("Decode.ensemble: --engine=ctranslate2 searches with one model")
    if decode.utility:
        raise UserError(
            f"Decode.utility='{decode.utility}': --engine=ctranslate2 ranks by the model's score"
        )
    if decode.weights != "stored":
        raise UserError(
            f"Decode.weights='{decode.weights}': with --engine=ctranslate2 use --compute_type"
        )
