"""Parameter mappings: the parameters a new run copies from source runs, as data."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from mnmt_jax.errors import UserError

_NAME = re.compile(r"[A-Za-z_][\w-]*")
_RANGE = re.compile(r"\{(\d{1,4})-(\d{1,4})\}")
_PATH = re.compile(r"\w+(/\w+)*")


@dataclasses.dataclass(frozen=True)
class ParamMapping:
    """Parameters of a source run and their paths in a new run.

    A path names a parameter, or a module with everything in it. It may contain one range, such as
    `layer_{0-5}/mlp`. Both paths then have ranges of the same length, paired in order.

    Attributes:
        run_name: name of the source run; the command line maps it to a run.
        source: path in the parameters of the source run.
        target: path in the parameters of the new run.
    """

    run_name: str
    source: str
    target: str

    def __post_init__(self) -> None:
        """Check the name and both paths.

        Raises:
            UserError: if one of them is invalid, or the ranges differ in length.
        """
        if not is_source_run_name(self.run_name):
            raise UserError(
                f"{self}: '{self.run_name}' is not a valid name of a source run; use letters, "
                "digits, _ and -, starting with a letter"
            )
        source_range, target_range = (_range(self, path) for path in (self.source, self.target))
        if len(source_range) != len(target_range):
            raise UserError(
                f"{self}: maps {len(source_range)} paths to {len(target_range)}; make both ranges "
                "equally long"
            )

    def __str__(self) -> str:
        return f"('{self.run_name}', '{self.source}', '{self.target}')"

    def expand(self) -> Iterator[tuple[str, str]]:
        """Yield pairs of source path and target path; a single pair without ranges."""
        numbers = zip(*(_range(self, path) for path in (self.source, self.target)), strict=True)
        for source_number, target_number in numbers:
            yield (
                _RANGE.sub(str(source_number), self.source),
                _RANGE.sub(str(target_number), self.target),
            )


@dataclasses.dataclass(frozen=True)
class RequiredSource:
    """Requirements on a source run of a method's parameter mappings.

    Attributes:
        run_name: name of the source run.
        layout: required layout of its model; empty for any model whose first layers are an encoder
            (`mnmt_jax.design.layouts.encoder_layers`).
        layers: minimum number of layers; of the encoder, if no layout is required.
        field: configuration field, with its value, that sets this number.
        tagged: whether sources must begin with the tag of their language if the texts of the run,
            a language model that becomes an encoder, did.
    """

    run_name: str
    layout: str
    layers: int
    field: str
    tagged: bool = False


def is_source_run_name(text: str) -> bool:
    """Return whether a text is a valid name of a source run."""
    return bool(_NAME.fullmatch(text))


def _range(mapping: ParamMapping, path: str) -> range:
    """Return the numbers of a path's range; a single number if it has none."""
    match = _RANGE.search(path)
    start, end = map(int, match.groups()) if match else (0, 0)
    if end < start or not _PATH.fullmatch(_RANGE.sub("0", path, count=1)):
        raise UserError(
            f"{mapping}: '{path}' must be a path such as 'layer_0/mlp', with one range at most, "
            "such as 'layer_{0-5}/mlp'"
        )
    return range(start, end + 1)
