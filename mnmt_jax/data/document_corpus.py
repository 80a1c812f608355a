"""Corpora of documents: the document of each line, and chunks of sentences as examples."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from mnmt_jax.data.corpus import Corpus, DropReport, FileCorpus
from mnmt_jax.data.document_context import Context
from mnmt_jax.data.document_ids import DocumentIds
from mnmt_jax.errors import UserError, pluralize, warn
from mnmt_jax.vocabulary.language_codes import Direction
from mnmt_jax.vocabulary.unknown_characters import unknown_characters
from mnmt_jax.vocabulary.vocabulary import Vocabulary

_FEW_TOGETHER = 0.1  # fraction of the sentences that are in chunks of several
SentencePairs = list[tuple[str, str]]


def documents(corpus: Corpus, split: str, direction: Direction) -> Iterator[SentencePairs]:
    """Yield the sentence pairs of each document of a corpus, in its order.

    Raises:
        UserError: if the corpus has no document ids, or not as many as lines.
    """
    if corpus.document_ids is None or not isinstance(corpus, FileCorpus):
        raise UserError(
            f"corpus '{corpus.name}' has no documents; name the files with the document id of each "
            "line by --document_ids"
        )
    numbered = _numbered(corpus, corpus.document_ids, split, direction)
    for _, document in itertools.groupby(numbered, key=lambda item: item[0]):
        yield [pair for _, pair in document]


def _numbered(
    corpus: FileCorpus, document_ids: DocumentIds, split: str, direction: Direction
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield (document id, pair) of the clean pairs of a corpus."""
    ids, report = document_ids.read(split, direction), DropReport()
    count = 0  # of ids that were read
    for pair in corpus.counted_pairs(split, direction, report):
        passed = list(itertools.islice(ids, report.line - count))
        count += len(passed)
        if count < report.line:
            break
        yield passed[-1], pair
    count += sum(1 for _ in ids)
    if count != (report.lines or report.line):
        lines = report.lines or f"at least {report.line}"
        raise UserError(
            f"{document_ids.path(split, direction)}: has {pluralize(count, 'line')}, but the text "
            f"has {lines}; write one document id for each line"
        )


def check_documents(corpus: Corpus, directions: Sequence[Direction]) -> None:
    """Read the documents of training and validation text once, to report errors before any work.

    Raises:
        UserError: as `documents`, or if all documents are single sentences; validation text may
            have no ids.
    """
    for split in ("train", "validation"):
        for direction in set(directions).intersection(corpus.directions(split)):
            ids = corpus.document_ids
            if split == "train" or (ids and ids.path(split, direction)):
                sizes = map(len, documents(corpus, split, direction))
                if max(sizes, default=0) < 2:
                    path = ids.path(split, direction) if ids else split
                    raise UserError(
                        f"{path}: no document has two sentences; write the same id for all lines "
                        "of a document"
                    )


@dataclasses.dataclass
class ChunkCounts:
    """Counts of the documents of a corpus and of their chunks.

    Attributes:
        documents: number of documents.
        chunks: number of chunks.
        sentences: number of sentences.
        together: number of sentences in chunks of several.
        left_out: number of chunks of several sentences that are left out, because a target
            contains the separator.
    """

    documents: int = 0
    chunks: int = 0
    sentences: int = 0
    together: int = 0
    left_out: int = 0

    def add(self, sizes: Sequence[int], left_out: int = 0) -> None:
        """Add a document, by the numbers of sentences of its chunks.

        Args:
            sizes: number of sentences of each chunk that is an example.
            left_out: number of its other chunks.
        """
        self.documents += 1
        self.left_out += left_out
        self.chunks += len(sizes)
        self.sentences += sum(sizes)
        self.together += sum(size for size in sizes if size > 1)

    def __str__(self) -> str:
        """Return a one-line summary."""
        mean = self.sentences / max(self.chunks, 1)
        return (
            f"{pluralize(self.documents, 'document')} of {pluralize(self.sentences, 'sentence')}, "
            f"{pluralize(self.chunks, 'chunk')} of {mean:.1f} sentences on average"
            f"{self._left_out()}"
        )

    def _left_out(self) -> str:
        if not self.left_out:
            return ""
        return f", {pluralize(self.left_out, 'chunk')} left out (a target has the separator)"

    def check(self, context: Context) -> None:
        """Warn if the counts show that sentences are hardly translated together.

        Raises:
            UserError: if all chunks are single sentences.
        """
        remedy = (
            "check that --document_ids names files with one id for each document, and that "
            f"sentences do not contain --separator={context.separator}, or raise --context"
        )
        if (self.sentences or self.left_out) and not self.together:
            raise UserError(
                f"--context={context.pieces}: all {self.chunks} chunks are single sentences"
                f"{self._left_out()}; {remedy}"
            )
        if self.together < _FEW_TOGETHER * self.sentences:
            warn(
                f"--context={context.pieces}: only {self.together} of {self.sentences} sentences "
                f"are in chunks of several; {remedy}"
            )
        if self.documents == 1 < self.chunks:
            warn(
                f"--context={context.pieces}: all {self.sentences} sentences have the same "
                "document id; check that --document_ids names files with one id for each document"
            )


class ContextCorpus(Corpus):
    """Corpus whose examples are chunks of the documents of another corpus.

    It has the splits whose files of document ids exist. A chunk of several sentences is left out if
    a target contains the separator.

    Args:
        corpus: parallel corpus with document ids.
        context: how documents are divided.
        vocabulary: measures the source sentences, and shows separators in targets.
        report: receives a line with the counts of each split and direction that was read.
    """

    def __init__(
        self,
        corpus: Corpus,
        context: Context,
        vocabulary: Vocabulary,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        super().__init__(f"{corpus.name}_context{context.pieces}", corpus.languages)
        self._corpus, self._context, self._vocabulary = corpus, context, vocabulary
        self._report = report
        self.context = context

    def splits(self) -> tuple[str, ...]:
        """Return the splits that have documents."""
        return tuple(split for split in self._corpus.splits() if self.directions(split))

    def directions(self, split: str) -> tuple[Direction, ...]:
        """Return the directions that have documents."""
        ids = self._corpus.document_ids
        pairs = self._corpus.directions(split)
        return tuple(pair for pair in pairs if ids is not None and ids.path(split, pair))

    def missing_files(self, split: str, direction: Direction) -> tuple[str, ...]:
        """Return the missing files of document ids."""
        ids = self._corpus.document_ids
        return () if ids is None else tuple(ids.names(split, direction))

    def pairs(self, split: str, direction: Direction) -> Iterator[tuple[str, str]]:
        """Yield the chunks of all documents; see the base class.

        Raises:
            UserError: if all chunks are single sentences.
        """
        counts = ChunkCounts()
        for document in documents(self._corpus, split, direction):
            sources = [source for source, _ in document]
            sizes = self._context.chunk_sizes(sources, self._vocabulary, direction[0])
            remaining = iter(document)
            chunks = [list(itertools.islice(remaining, size)) for size in sizes]
            examples = [chunk for chunk in chunks if not self._is_ambiguous(chunk, direction[1])]
            counts.add(list(map(len, examples)), len(chunks) - len(examples))
            for chunk in examples:
                source, target = map(self._context.join, zip(*chunk, strict=True))
                yield source, target
        self._report(f"{self.name}_{'_'.join(direction)} {split}: {counts}")
        counts.check(self._context)

    def _is_ambiguous(self, chunk: SentencePairs, language: str) -> bool:
        """Return whether the joined targets would have another number of sentences."""
        if len(chunk) == 1:
            return False
        targets = [target for _, target in chunk]
        encoded = self._vocabulary.encode_lines(targets, language)
        return any(
            self._context.occurs(target, pieces, self._vocabulary)
            for target, pieces in zip(targets, encoded, strict=True)
        )


def check_separator(
    context: Context, vocabulary: Vocabulary, languages: Iterable[str] | None = None
) -> None:
    """Check that a vocabulary has pieces for the separator in text of each language.

    Args:
        context: the separator.
        vocabulary: vocabulary of the text.
        languages: codes of the languages of the text; None means those of the vocabulary.

    Raises:
        UserError: if not.
    """
    for language in vocabulary.languages if languages is None else languages:
        pieces = vocabulary.encode(context.separator, language)
        is_kept = vocabulary.decode(pieces) == context.separator
        if not is_kept or unknown_characters(vocabulary, context.separator, pieces, language):
            raise UserError(
                f"--separator={context.separator}: the vocabulary has no piece for it in text in "
                f"'{language}'; choose a character that it has, or make a vocabulary with "
                "'mnmt vocabulary --separator'"
            )
