"""What a new run takes from other runs, as data: which parameters, and where they are put."""

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
    """Parameters of an origin and their place in a new run.

    A path names a parameter, or a module with all that is in it. It may hold one range, such as
    `layer_{0-5}/mlp`; then both paths do, of as many layers, and the first of one is put to the
    first of the other.

    Attributes:
        origin: name of the run that gives; the command line says which run that is.
        take: path in the origin's parameters.
        put: path in the new run's.
    """

    origin: str
    source: str
    target: str

    def __post_init__(self) -> None:
        """Checks the name and both paths.

        Raises:
            UserError: if one of them is none, or the ranges are not of one length.
        """
        if not is_source_run_name(self.origin):
            raise UserError(
                f"{self}: '{self.origin}' is no name of an origin; use letters, digits, _ and -, a "
                "letter first"
            )
        first, second = (_range(self, path) for path in (self.source, self.target))
        if len(first) != len(second):
            raise UserError(
                f"{self}: takes {len(first)} and puts {len(second)}; make both ranges equally long"
            )

    def __str__(self) -> str:
        return f"('{self.origin}', '{self.source}', '{self.target}')"

    def expand(self) -> Iterator[tuple[str, str]]:
        """Yields each path that is taken, with the one where it is put; one pair without ranges."""
        numbers = zip(*(_range(self, path) for path in (self.source, self.target)), strict=True)
        for taken, put in numbers:
            yield _RANGE.sub(str(taken), self.source), _RANGE.sub(str(put), self.target)


@dataclasses.dataclass(frozen=True)
class RequiredSource:
    """What a run must be that a method's own moves take from.

    Attributes:
        origin: its name among the origins.
        layout: of its model.
        layers: that it has at least.
        field: of the configuration, with its value, which says how many.
    """

    origin: str
    layout: str
    layers: int
    field: str


def is_source_run_name(text: str) -> bool:
    """Returns whether a text can name an origin."""
    return bool(_NAME.fullmatch(text))


def _range(move: ParamMapping, path: str) -> range:
    """Returns the numbers that a path stands for; one number if it has no range."""
    found = _RANGE.search(path)
    first, last = map(int, found.groups()) if found else (0, 0)
    if last < first or not _PATH.fullmatch(_RANGE.sub("0", path, count=1)):
        raise UserError(
            f"{move}: '{path}' must be a path such as 'layer_0/mlp', with one range at most, such "
            "as 'layer_{0-5}/mlp'"
        )
    return range(first, last + 1)
