"""In-memory store of documents in translation and of translated ones, with a lifetime."""

from __future__ import annotations

import asyncio
import dataclasses
import hmac
import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import PurePath
from typing import Literal

from mnmt_jax.serving.failure_log import describe_failure
from mnmt_jax.serving.refused_error import RETRY_SECONDS, RefusedError
from mnmt_jax.serving.usage import QuotaExceeded
from mnmt_jax.vocabulary.language_codes import canonical_code_or_input

_log = logging.getLogger(__name__)

_FETCH_SECONDS = 30  # that a stopping server waits for a client to fetch a document
_OVERHEAD = 1 << 14  # bytes that are counted for a document besides its file

Status = Literal["translating", "done", "error"]


@dataclasses.dataclass(eq=False)
class StoredDocument:
    """A document of a user.

    Attributes:
        name: name of the file that was sent.
        target: code of the target language.
        user: name of its user.
        key: secret of its user; None if its random name is.
        status: whether it is translated.
        data: the translated file.
        message: why it was not translated.
        characters: characters of its text.
        missing_terms: terms that are not translated as the glossary demands.
        forbidden_terms: forbidden terms in the translation.
        is_fetched: whether its user has the translation, or knows that there is none.
        start: time of its arrival.
        end: time at which it was translated.
        task: its translation in the background; None if the request waits for it.
    """

    name: str
    target: str
    user: str
    key: str | None
    status: Status = "translating"
    data: bytes = b""
    message: str = ""
    characters: int = 0
    missing_terms: tuple[str, ...] = ()
    forbidden_terms: tuple[str, ...] = ()
    is_fetched: bool = False
    start: float = dataclasses.field(default_factory=time.monotonic)
    end: float = math.inf
    task: asyncio.Task[None] | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether it is being translated, or its client may be about to fetch it."""
        seconds = time.monotonic() - self.end
        return self.status == "translating" or (not self.is_fetched and seconds < _FETCH_SECONDS)

    @property
    def has_request(self) -> bool:
        """Whether the request that sent it waits for its translation."""
        return self.status == "translating" and self.key is None

    @property
    def translated_name(self) -> str:
        """Name of the translated file: that of the language before the end, as report.de.docx."""
        name = PurePath(self.name)
        return f"{name.stem}.{canonical_code_or_input(self.target)}{name.suffix}"

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return len(self.data) + _OVERHEAD


Translate = Callable[[StoredDocument], Awaitable[bytes]]
"""Returns the translated file of a document, and completes what is known about it."""


class DocumentStore:
    """Documents by random names; nothing is written to disk.

    Args:
        lifetime: seconds that a document is kept after its translation.
        max_documents: most documents in translation.
        max_bytes: most bytes of translated documents.
        log_text: whether failures are logged with their words.
    """

    def __init__(
        self, lifetime: float, max_documents: int, max_bytes: int, log_text: bool = False
    ) -> None:
        self._lifetime = lifetime
        self._max_documents, self._max_bytes = max_documents, max_bytes
        self._log_text = log_text
        self._documents: dict[str, StoredDocument] = {}
        self._seconds = 0.0  # that the last document took
        self._is_closing = False

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self._documents)

    @property
    def is_closing(self) -> bool:
        """Whether the server is stopping."""
        return self._is_closing

    @property
    def unfinished(self) -> list[StoredDocument]:
        """Documents in translation, and those that their clients may be about to fetch."""
        return [one for one in self._documents.values() if one.is_awaited]

    async def close(self, seconds: float, is_forced: Callable[[], bool]) -> int:
        """Refuse further documents, and wait until the others are translated and fetched.

        A translated document is waited for half a minute.

        Args:
            seconds: the longest time to wait.
            is_forced: whether to wait no longer.

        Returns:
            The number of documents that are lost, because they are unfinished.
        """
        self._is_closing = True
        end = time.monotonic() + seconds
        while self.unfinished and time.monotonic() < end and not is_forced():
            await asyncio.sleep(0.1)
        return len(self.unfinished)

    def add(
        self, name: str, target: str, user: str, suffix: str = "", *, has_key: bool
    ) -> tuple[str, StoredDocument]:
        """Add a document that is about to be translated; return its random name too.

        Args:
            name: name of the file.
            target: code of the target language.
            user: name of its user.
            suffix: end of the random name.
            has_key: whether a key is its secret; else its random name is.

        Raises:
            RefusedError: with status 429, if too many are in translation; half of them may be of
                one user. With 503, if the server is stopping.
        """
        if self._is_closing:
            raise RefusedError(503, "the server is stopping")
        self._check_room(user)
        stored_name = secrets.token_hex(16).upper() + suffix
        key = secrets.token_hex(32).upper() if has_key else None
        document = StoredDocument(name, target, user, key)
        self._documents[stored_name] = document
        return stored_name, document

    def _check_room(self, user: str) -> None:
        """Check that another document of a user may be translated."""
        waiting = [one for one in self._documents.values() if one.status == "translating"]
        of_user = [one for one in waiting if one.user == user]
        limit = f"--max_documents={self._max_documents}"
        if len(waiting) >= self._max_documents:
            reason, counted = f"as many as {limit} of the server allows", waiting
        elif len(of_user) >= max(1, self._max_documents // 2):
            reason, counted = f"half of {limit} of the server is for one user", of_user
        else:
            return
        age = time.monotonic() - min(one.start for one in counted)
        seconds = max(RETRY_SECONDS, math.ceil(self._seconds - age if age < self._seconds else age))
        raise RefusedError(
            429, f"{len(counted)} documents are in translation, {reason}; try again later", seconds
        )

    def get(self, stored_name: str, key: str | None = None) -> StoredDocument:
        """Return a document.

        Args:
            stored_name: its random name.
            key: its key; None if its name is its secret.

        Raises:
            RefusedError: with status 404, if there is none, or its key is another one.
        """
        document = self._documents.get(stored_name)
        if document is None or not _is_same(document.key, key):
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
        self._keep(stored_name)

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
            failure = describe_failure(error, log_text=self._log_text)
            _log.error("%s in the translation of a document", failure)
        except BaseException:  # the server ends
            self.remove(stored_name)
            raise
        self._keep(stored_name)

    def remove(self, stored_name: str) -> None:
        """Remove a document, if it is there."""
        self._documents.pop(stored_name, None)

    def _keep(self, stored_name: str) -> None:
        """Keep a document for its lifetime; others make room for it."""
        document = self._documents.pop(stored_name)
        self._documents[stored_name] = document  # the last of those that are kept
        document.end = time.monotonic()
        if document.status == "done":
            self._seconds = document.end - document.start
        self._make_room()
        asyncio.get_running_loop().call_later(self._lifetime, self.remove, stored_name)

    def _make_room(self) -> None:
        """Remove fetched documents, the oldest first; then those of who has the most bytes."""
        kept = {name: one for name, one in self._documents.items() if one.status != "translating"}
        newest, excess = next(reversed(kept)), -self._max_bytes
        of_user: Counter[str] = Counter()
        for one in kept.values():
            excess += one.size
            of_user[one.user] += one.size
        del kept[newest]
        while excess > 0 and kept:
            ((largest, _),) = of_user.most_common(1)
            name = min(kept, key=lambda name: _rank(kept[name], largest))
            document = kept.pop(name)
            excess -= document.size
            of_user[document.user] -= document.size
            self.remove(name)


def _is_same(first: str | None, second: str | None) -> bool:
    """Return whether two keys are the same, in a time that does not depend on them."""
    if first is None or second is None:
        return first is second
    return hmac.compare_digest(first.encode(), second.encode())


def _rank(document: StoredDocument, largest: str) -> int:
    """Return which documents go first, where `largest` has the most bytes."""
    return 0 if document.is_fetched else 1 if document.user == largest else 2
