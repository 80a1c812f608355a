"""Documents in translation and translated ones, in memory, until their time is over."""

from __future__ import annotations

import asyncio
import dataclasses
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Literal

from mnmt_jax.serving.service import RefusedError
from mnmt_jax.serving.usage import QuotaExceeded

_log = logging.getLogger(__name__)

Status = Literal["translating", "done", "error"]


@dataclasses.dataclass(eq=False)
class StoredDocument:
    """A document of a user.

    Attributes:
        name: name of the file that was sent.
        user: name of its user.
        key: secret of its user.
        status: whether it is translated.
        data: the translated file.
        message: why it was not translated.
        characters: characters of its text.
        missing_terms: terms that are not translated as the glossary demands.
        forbidden_terms: forbidden terms in the translation.
    """

    name: str
    user: str
    key: str
    status: Status = "translating"
    data: bytes = b""
    message: str = ""
    characters: int = 0
    missing_terms: tuple[str, ...] = ()
    forbidden_terms: tuple[str, ...] = ()
    task: asyncio.Task[None] | None = None


Translate = Callable[[StoredDocument], Awaitable[bytes]]
"""Returns the translated file of a document, and completes what is known about it."""


class DocumentStore:
    """Documents by random names; nothing is written to disk.

    Args:
        lifetime: seconds that a document is kept after its translation.
        most: most documents at a time.
    """

    def __init__(self, lifetime: float, most: int) -> None:
        self._lifetime, self._most = lifetime, most
        self._documents: dict[str, StoredDocument] = {}

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self._documents)

    def add(self, name: str, user: str, suffix: str = "") -> tuple[str, StoredDocument]:
        """Add a document that is about to be translated; return its random name too.

        Args:
            name: name of the file.
            user: name of its user.
            suffix: end of the random name.

        Raises:
            RefusedError: with status 429, if there are too many; a user has at most half of them.
        """
        of_user = sum(document.user == user for document in self._documents.values())
        if len(self._documents) >= self._most or of_user >= max(1, self._most // 2):
            raise RefusedError(429, "too many documents are kept; try again later")
        stored_name = secrets.token_hex(16).upper() + suffix
        document = StoredDocument(name, user, secrets.token_hex(32).upper())
        self._documents[stored_name] = document
        return stored_name, document

    def get(self, stored_name: str, key: str | None = None) -> StoredDocument:
        """Return a document.

        Args:
            stored_name: its random name.
            key: its key; None if its name is its secret.

        Raises:
            RefusedError: with status 404, if there is none, or it has another key.
        """
        document = self._documents.get(stored_name)
        if document is None or not (
            key is None or hmac.compare_digest(document.key.encode(), key.encode())
        ):
            raise RefusedError(404, "no such document; it is kept for a limited time")
        return document

    async def run(self, stored_name: str, translate: Translate) -> None:
        """Translate a document; it is removed at once if that fails, else after its lifetime."""
        document = self._documents[stored_name]
        try:
            document.data = await translate(document)
        except BaseException:
            self.remove(stored_name)
            raise
        document.status = "done"
        self._expire(stored_name)

    def start(self, stored_name: str, translate: Translate) -> None:
        """Translate a document in the background; its status tells how that ends."""
        document = self._documents[stored_name]
        document.task = asyncio.create_task(self._run_in_background(stored_name, translate))

    async def _run_in_background(self, stored_name: str, translate: Translate) -> None:
        document = self._documents[stored_name]
        try:
            document.data = await translate(document)
            document.status = "done"
        except RefusedError as error:
            document.status, document.message = "error", error.message
        except QuotaExceeded:
            document.status, document.message = "error", "too few characters left this month"
        except Exception as error:
            document.status, document.message = "error", "the translation failed"
            _log.error("%s in the translation of a document", type(error).__name__)
        finally:
            self._expire(stored_name)

    def remove(self, stored_name: str) -> None:
        """Remove a document, if it is there."""
        self._documents.pop(stored_name, None)

    def _expire(self, stored_name: str) -> None:
        asyncio.get_running_loop().call_later(self._lifetime, self.remove, stored_name)
