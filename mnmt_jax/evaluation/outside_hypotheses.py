"""Hypotheses of systems that do not run here, read from files to be scored as an evaluation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from mnmt_jax.data.text_reader import Flaw, read_lines
from mnmt_jax.errors import UserError, join_names, pluralize
from mnmt_jax.evaluation.evaluated_model import EvaluatedModel
from mnmt_jax.evaluation.translations import HYPOTHESES, TranslatedSentence
from mnmt_jax.files.file_digest import FileDigest, short_digest
from mnmt_jax.files.json_objects import parse_json
from mnmt_jax.files.storage_errors import one_line
from mnmt_jax.vocabulary.language_codes import Direction

_TEXT, _JSON = ".txt", ".jsonl"
UNKNOWN_SYSTEM = (
    "the training directions of an outside system are unknown unless --trained_on names them, so "
    "no direction is labelled supervised or zero-shot"
)


@dataclasses.dataclass(frozen=True)
class HypothesisFiles:
    """Files SOURCE-TARGET.txt or SOURCE-TARGET.jsonl with a hypothesis per test sentence.

    Lines of `.jsonl` are strings, or objects with `hypothesis` and, to be checked, `source`.

    Attributes:
        folder: their folder.
        limit: number of sentences per direction that are scored; 0 means all.
    """

    folder: Path
    limit: int = 0

    def check(self, directions: Sequence[Direction]) -> None:
        """Check that each direction has a file.

        Raises:
            UserError: if a file is missing.
        """
        missing = [pair for pair in directions if not self._path(pair).is_file()]
        if missing:
            raise UserError(
                f"--hypotheses: {self._path(missing[0])}: no such file; {len(missing)} of "
                f"{pluralize(len(directions), 'direction')} have none; add them, a line per test "
                f"sentence, or choose the others with --directions{self._others(directions)}"
            )

    def translate(self, sources: Sequence[str], direction: Direction) -> list[TranslatedSentence]:
        """Return the hypotheses of a direction.

        Args:
            sources: the test sentences.
            direction: source and target.

        Raises:
            UserError: if the number of lines is wrong, or a line is not text.
        """
        path = self._path(direction)
        lines: list[str] = []
        for number, line in enumerate(read_lines(str(path)), start=1):
            if isinstance(line, Flaw):
                line = line.in_language(direction[1])
                recode = (
                    f"; for the whole file: iconv -f {line.encoding} -t UTF-8"
                    if line.encoding
                    else ""
                )
                raise UserError(f"{path}:{number}: {line.detail}; replace the line{recode}")
            lines.append(line.strip())
        scored = lines[: self.limit or None]
        if len(scored) != len(sources):
            shorter = f", or give --limit={len(lines)}" if 0 < len(lines) < len(sources) else ""
            raise UserError(
                f"{path}: has {pluralize(len(lines), 'line')} for {len(sources)} test sentences; "
                f"write one line per sentence, blank for none{shorter}"
            )
        if path.suffix == _JSON:
            rows = enumerate(zip(scored, sources, strict=True), start=1)
            scored = [_hypothesis(line, source, f"{path}:{n}") for n, (line, source) in rows]
        return [TranslatedSentence(line) for line in scored]

    def checksums(self) -> dict[str, str]:
        """Return a checksum of each file of the folder by its name without suffix, e.g. `de-fr`."""
        return {path.stem: FileDigest.of(path).sha256[:16] for path in self._files()}

    def fingerprint(self) -> str:
        """Return a checksum of all files of the folder, 16 hexadecimal digits."""
        return combine_checksums(self.checksums())

    def _others(self, directions: Sequence[Direction]) -> str:
        """Return a remark about files of no direction, one of which may have the wrong name."""
        known = {"-".join(pair) for pair in directions}
        names = [path.name for path in self._files() if path.stem not in known]
        return f"; of no direction: {join_names(names, shown=3)}" if names else ""

    def _files(self) -> list[Path]:
        return sorted([*self.folder.glob(f"*{_TEXT}"), *self.folder.glob(f"*{_JSON}")])

    def _path(self, direction: Direction) -> Path:
        """Return the file of a direction; that of text if there is none.

        Raises:
            UserError: if there are both.
        """
        text, json_lines = (self.folder / f"{'-'.join(direction)}{end}" for end in (_TEXT, _JSON))
        if text.is_file() and json_lines.is_file():
            raise UserError(f"--hypotheses: {text} and {json_lines.name} exist; remove one of them")
        return json_lines if json_lines.is_file() else text


def combine_checksums(checksums: Mapping[str, str]) -> str:
    """Return one checksum of files, from `HypothesisFiles.checksums` of all or some of them."""
    return short_digest(repr(sorted(checksums.items())))


def describe_checksum(checksums: Mapping[str, str]) -> str:
    """Return the signature of hypotheses from files in results."""
    return f"checksum of the files: {combine_checksums(checksums)}"


def _hypothesis(line: str, source: str, place: str) -> str:
    """Return the hypothesis of a JSON line, its line breaks as spaces.

    Args:
        line: the line.
        source: the test sentence.
        place: file and line, for errors.

    Raises:
        UserError: if there is no hypothesis, or it is of another sentence.
    """
    try:
        value = parse_json(line)
    except ValueError as error:
        raise UserError(f"{place}: not JSON ({one_line(error)}); replace the line") from error
    row = value if isinstance(value, dict) else {"hypothesis": value}
    hypothesis = row.get("hypothesis")
    if not isinstance(hypothesis, str):
        raise UserError(
            f"{place}: has no text 'hypothesis'; write a string, or an object with the field"
        )
    if "source" in row and row["source"] != source:
        raise UserError(f"{place}: 'source' is not the test sentence; put the lines in its order")
    return " ".join(hypothesis.split())


def outside_system(files: HypothesisFiles, name: str = "") -> EvaluatedModel:
    """Return a system whose translations are hypotheses from files.

    Args:
        files: the files.
        name: name in results and reports; empty for that of the folder.

    Raises:
        UserError: if the folder does not exist.
    """
    if not files.folder.is_dir():
        problem = "is a file; name its folder" if files.folder.is_file() else "no such folder"
        raise UserError(f"--hypotheses={files.folder}: {problem}")
    return EvaluatedModel(
        name=name or files.folder.resolve().name,
        translate=files.translate,
        config=None,
        decoding={},
        identity={HYPOTHESES: files.checksums()},
        unknown_training=UNKNOWN_SYSTEM,
        obtained="read",
        check_directions=files.check,
    )
