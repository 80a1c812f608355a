"""Error of a request that is refused."""

from __future__ import annotations

RETRY_SECONDS = 2  # that a client is told to wait if too much is waiting


class RefusedError(Exception):
    """A request that is answered with an error.

    Attributes:
        status: HTTP status.
        message: one line for the client.
        retry_seconds: after which the client may try again, if the status invites that.
        hint: what is accepted instead, where clients compare the message itself; may be empty.
    """

    def __init__(
        self, status: int, message: str, retry_seconds: int = RETRY_SECONDS, *, hint: str = ""
    ) -> None:
        super().__init__(message)
        self.status, self.message = status, message
        self.retry_seconds, self.hint = retry_seconds, hint
