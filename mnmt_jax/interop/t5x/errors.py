"""Exception hook that reports user errors in t5x's commands as one line with exit status 2.

t5x has its own `main`, so this project cannot catch errors around it. Importing this module, as the
gin files of `gin_configs/t5x/` do, installs the hook. Needs no t5x.
"""

from __future__ import annotations

import re
import sys
from types import TracebackType

from mnmt_jax.config.loading import unknown_field_error
from mnmt_jax.errors import UserError
from mnmt_jax.runtime.run_command import run_command

_DEFAULT = sys.excepthook
# gin's message for an unknown parameter.
_UNKNOWN_PARAMETER = re.compile(r"Configurable '(\w+)' doesn't have a parameter named '(\w+)'")


def end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Report a `UserError` in one line and exit with its status; other errors keep a traceback."""

    def fail() -> None:
        # gin appends lines about the caller.
        raise UserError(str(error).splitlines()[0])

    unknown = _UNKNOWN_PARAMETER.match(str(error))
    if unknown and (message := unknown_field_error(*unknown.groups())):
        error = UserError(message)
    if isinstance(error, UserError):
        run_command(fail)
    _DEFAULT(kind, error, trace)


sys.excepthook = end
