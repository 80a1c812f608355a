"""Ends t5x's commands as the project's own end: a mistake is one line and status 2, no traceback.

t5x has its own `main`, so there is no call of ours to catch errors around: importing this module,
as the gin files of `gin_configs/t5x/` do, is what changes the end. Needs no t5x.
"""

from __future__ import annotations

import re
import sys
from types import TracebackType

from mnmt_jax.config.loading import no_such_field
from mnmt_jax.errors import UserError
from mnmt_jax.runtime.run_command import run_command

_DEFAULT = sys.excepthook
# What gin says of a misspelt key.
_GINS = re.compile(r"Configurable '(\w+)' doesn't have a parameter named '(\w+)'")


def end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Says what a `UserError` says and ends with its status; other errors keep their traceback."""

    def fail() -> None:
        # gin adds lines about who called.
        raise UserError(str(error).splitlines()[0])

    unknown = _GINS.match(str(error))
    if unknown and (told := no_such_field(*unknown.groups())):
        error = UserError(told)
    if isinstance(error, UserError):
        run_command(fail)
    _DEFAULT(kind, error, trace)


sys.excepthook = end
