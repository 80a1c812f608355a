"""Translation of lines with document context: in chunks, as in training."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from mnmt_jax.config.sections import Decode
from mnmt_jax.data.document_context import Context
from mnmt_jax.decoding.encoded_lines import Line, encode_lines
from mnmt_jax.decoding.pretrained import PretrainedModel
from mnmt_jax.decoding.translation import Hypothesis, Translation
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.vocabulary.normalization import is_blank


@dataclasses.dataclass(frozen=True, eq=False)
class ContextJob(TranslationJob):
    """A job that translates the chunks of documents, and divides their translations into lines.

    A blank line ends a document, and so does the end of a window. Lines of a chunk without a
    translation of as many sentences are translated one by one. These are marked as
    `without_context`, and so are lines that are a chunk by themselves in a document of several.

    Attributes:
        context: how documents are divided into chunks.
    """

    context: Context = Context(pieces=1)

    def with_context(self, pieces: int) -> ContextJob:
        """Return the job with a context that the model was trained with.

        Args:
            pieces: most pieces of a chunk; 0 is the most of the training.

        Raises:
            UserError: if the model was not trained with it, or it does not fit the search.
        """
        context = trained_context(self.pretrained, pieces)
        conflicts = {
            "--pivot": self.pivot is not None,
            "--glossary": self.glossary is not None,
            "Decode.source_contrast": bool(self.decode.source_contrast),
        }
        if names := [name for name, is_set in conflicts.items() if is_set]:
            raise UserError(
                f"--context translates chunks of sentences; leave {join_names(names)} out"
            )
        extra = self.pretrained.inference_model.instruction.source_extra
        longest = max(self.decode.buckets) - extra
        if context.pieces > longest:
            raise UserError(
                f"--context={context.pieces}: chunks may be longer than the largest bucket, of "
                f"{longest} pieces; add a larger one to Decode.buckets"
            )
        if context.pieces > self.decode.max_length:
            raise UserError(
                f"--context={context.pieces}: translations of chunks may be longer than "
                f"Decode.max_length={self.decode.max_length}; raise it"
            )
        return dataclasses.replace(self, context=context)

    def as_completed(
        self, lines: Sequence[Line], *, done: Collection[int] = ()
    ) -> Iterator[tuple[Line, Translation]]:
        """Yield each line with its translation; those without context last.

        The shapes of batches are those of all lines, so that they do not depend on which ones are
        done.
        """
        chunks = {chunk[0].number: chunk for chunk in self.chunks(lines)}
        joined = [self._join(chunk) for chunk in chunks.values()]
        finished = {
            number for number, chunk in chunks.items() if all(line.number in done for line in chunk)
        }
        in_documents = _lines_of_documents(lines)
        alone: set[int] = set()
        for first, translation in super().as_completed(joined, done=finished):
            chunk = chunks[first.number]
            parts = self._divide(translation, chunk)
            if parts is None:
                alone |= {line.number for line in chunk if line.number not in done}
                continue
            for line, part in zip(chunk, parts, strict=True):
                if line.number not in done:
                    is_alone = len(chunk) == 1 and line.number in in_documents
                    is_alone = is_alone and bool(part.hypotheses)
                    yield line, dataclasses.replace(part, without_context=is_alone)
        if not alone:
            return
        others = {line.number for line in lines} - alone
        for line, translation in super().as_completed(lines, done=others):
            yield line, dataclasses.replace(translation, without_context=True)

    def chunks(self, lines: Sequence[Line]) -> Iterator[list[Line]]:
        """Yield the lines of each chunk; a blank line is a chunk by itself."""
        for (source, _, are_blank), document in itertools.groupby(lines, key=_document_key):
            remaining = list(document)
            texts = [line.text for line in remaining]
            sizes = (
                [1] * len(texts)
                if are_blank
                else self.context.chunk_sizes(texts, self.pretrained.vocabulary, source)
            )
            for size in sizes:
                yield remaining[:size]
                remaining = remaining[size:]

    def provenance(self) -> dict[str, Any]:
        """Return what `TranslationJob.provenance` does, and the context."""
        return super().provenance() | {"context": dataclasses.asdict(self.context)}

    def _join(self, chunk: Sequence[Line]) -> Line:
        """Return the lines of a chunk as one."""
        if len(chunk) == 1:
            return chunk[0]
        text = self.context.join([line.text for line in chunk])
        return dataclasses.replace(chunk[0], text=text, context=self.context)

    def _divide(self, translation: Translation, chunk: Sequence[Line]) -> list[Translation] | None:
        """Return the translations of a chunk's lines; a pivot of other sentences is left out.

        Returns:
            None if no hypothesis has as many sentences as the chunk.
        """
        if len(chunk) == 1:
            return [translation]
        divided = [
            (hypothesis, sentences)
            for hypothesis in translation.hypotheses
            if len(sentences := self.context.split(hypothesis.text)) == len(chunk)
            and all(sentences)
        ]
        if not divided:
            return None
        limited = translation.limited
        if divided[0][0] is not translation.hypotheses[0] and translation.pivot is None:
            limited = self._is_limited(divided[0][0], chunk)
        pivots: Sequence[str | None] = self.context.split(translation.pivot or "")
        if len(pivots) != len(chunk):
            pivots = [None] * len(chunk)
        return [
            dataclasses.replace(
                translation,
                hypotheses=tuple(
                    Hypothesis(sentences[position], hypothesis.score, (), hypothesis.utility)
                    for hypothesis, sentences in divided
                ),
                limited=limited,
                pivot=pivots[position],
                unknown_characters="".join(
                    character
                    for character in line.text
                    if character in translation.unknown_characters
                ),
            )
            for position, line in enumerate(chunk)
        ]

    def _is_limited(self, hypothesis: Hypothesis, chunk: Sequence[Line]) -> bool:
        """Return whether a hypothesis of a chunk has the maximum length."""
        lines = {0: self._join(chunk)}
        encoded = encode_lines(self.pretrained.inference_model, lines, self.decode)[0]
        return len(hypothesis.tokens) > encoded.limit


def create_job(
    pretrained: PretrainedModel,
    options: Decode | None = None,
    *,
    context: int | None,
    **settings: Any,
) -> TranslationJob:
    """Check settings and return a job.

    Args:
        pretrained: the model.
        options: as in `TranslationJob.create`.
        context: as in `ContextJob.with_context`; None translates each line by itself.
        settings: further arguments of `TranslationJob.create`.

    Raises:
        UserError: as `TranslationJob.create` and `ContextJob.with_context`.
    """
    if context is None:
        return TranslationJob.create(pretrained, options, **settings)
    return ContextJob.create(pretrained, options, **settings).with_context(context)


def trained_context(pretrained: PretrainedModel, pieces: int) -> Context:
    """Return a context that a model was trained with.

    Args:
        pretrained: the model.
        pieces: most pieces of a chunk; 0 is the most of the training.

    Raises:
        UserError: if it was not trained with it.
    """
    by_pieces = {context.pieces: context for context in pretrained.contexts}
    if not by_pieces:
        raise UserError(
            f"--context: {pretrained.run or 'the model'} was not trained with document context "
            "(mnmt cache --context); leave it out"
        )
    if (wanted := pieces or max(by_pieces)) not in by_pieces:
        trained = ", ".join(map(str, sorted(by_pieces)))
        raise UserError(f"--context={pieces}: the model was trained with {trained}; choose one")
    return by_pieces[wanted]


def _lines_of_documents(lines: Sequence[Line]) -> set[int]:
    """Return the numbers of the lines of documents of several lines."""
    numbers: set[int] = set()
    for (*_, are_blank), document in itertools.groupby(lines, key=_document_key):
        group = [line.number for line in document]
        if len(group) > 1 and not are_blank:
            numbers.update(group)
    return numbers


def _document_key(line: Line) -> tuple[str, str, bool]:
    return line.source_lang, line.target_lang, is_blank(line.text)
