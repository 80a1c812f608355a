"""Reading the files of a folder in a bucket, through outages.

An outage (no connection, a stalled answer, the statuses 408, 429 and 5xx) is waited for. Any other
failure is tried again twice, as a proxy may have caused it, and then is an error.
"""

from __future__ import annotations

import http
import io
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from typing import IO, Any, TypeVar

from mnmt_jax.errors import OutageError, UserError
from mnmt_jax.files.bucket import bucket_path
from mnmt_jax.files.file_digest import CheckedWriter, FileDigest, WrongContentError
from mnmt_jax.files.storage_errors import causes, one_line

_log = logging.getLogger(__name__)
_TIMEOUT = (30.0, 60.0)  # seconds: to connect, and between two pieces of an answer
_QUESTION_TIMEOUT = (5.0, 5.0)  # the same for the question whether there is an outage
_PATIENCE = 600.0  # seconds of an outage after which the process gives up
_FIRST_PATIENCE = 60.0  # the same before the first answer: the name or the network may be wrong
_SHORTEST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_SILENCE = 120.0  # seconds between two lines about an outage
_TRIES = 3  # of a failure that is no outage
_OUTAGE_STATUSES = (408, 429, 500, 502, 503, 504)
_Result = TypeVar("_Result")


class BucketReader:
    """Reads the files below a folder of a bucket. It is thread-safe and can be pickled.

    Attributes:
        url: `gs://bucket/folder`.
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        """Check the URL; nothing is read yet.

        Raises:
            UserError: if the URL has another scheme, or the client is not installed.
        """
        self.url = str(bucket_path(url))
        bucket, _, folder = self.url.removeprefix("gs://").partition("/")
        self._bucket, self._prefix = bucket, f"{folder}/" if folder else ""
        self._outage = _Outage(self.url)
        self._client: tuple[int, Any] = (0, None)  # process, and its client

    def sizes(self) -> dict[str, int]:
        """Return the size of every file, by its name relative to the folder.

        Raises:
            UserError: if the folder cannot be listed or has no file.
            OutageError: if the bucket does not answer for a long time.
        """
        import google.api_core.exceptions

        def attempt() -> dict[str, int]:
            blobs = self._storage().list_blobs(
                self._bucket, prefix=self._prefix, retry=None, timeout=_TIMEOUT
            )
            sizes = {blob.name.removeprefix(self._prefix): int(blob.size) for blob in blobs}
            if not sizes:
                raise google.api_core.exceptions.NotFound("empty")
            return sizes

        return self._persist("", attempt)

    def read(self, name: str, digest: FileDigest) -> bytes:
        """Return the content of a small file.

        Args:
            name: name relative to the folder.
            digest: its size and hash.

        Raises:
            UserError: as `download`.
        """
        content = io.BytesIO()
        self.download(name, content, digest)
        return content.getvalue()

    def download(self, name: str, file: IO[bytes], digest: FileDigest) -> None:
        """Copy a file, and check the copy.

        Args:
            name: name relative to the folder.
            file: written from its start; it may be overwritten several times.
            digest: size and hash of the file.

        Raises:
            UserError: if it is missing, refused, or sent with other content.
            OutageError: if the bucket does not answer for a long time.
        """
        from google.cloud.storage.exceptions import DataCorruption

        def attempt() -> None:
            writer = CheckedWriter(file, digest)
            blob = self._storage().bucket(self._bucket).blob(self._prefix + name)
            try:
                blob.download_to_file(
                    writer, raw_download=True, checksum="crc32c", retry=None, timeout=_TIMEOUT
                )
            except DataCorruption as error:
                raise WrongContentError("other bytes were sent, by Google's CRC32C") from error
            writer.check()

        self._persist(name, attempt)

    def outage(self) -> str:
        """Ask the bucket once; return why it does not answer, or "" if it does."""
        try:
            blobs = self._storage().list_blobs(
                self._bucket,
                max_results=1,
                prefix=self._prefix,
                retry=None,
                timeout=_QUESTION_TIMEOUT,
            )
            next(iter(blobs), None)
        except Exception as error:  # the client raises many kinds
            return _reason(error, _QUESTION_TIMEOUT) if _is_outage(error) else ""
        return ""

    def _persist(self, name: str, attempt: Callable[[], _Result]) -> _Result:
        """Return the result of an attempt, repeated through outages and after failures."""
        failures = 0
        while True:
            try:
                result = attempt()
            except Exception as error:  # the client raises many kinds
                if _is_local(error):
                    raise
                if _is_outage(error):
                    self._outage.wait(name, _reason(error))
                    continue
                failures += 1
                if failures == _TRIES:
                    self._outage.end(name)
                    raise self._failure(name, error) from error
                time.sleep(_SHORTEST_PAUSE)
            else:
                self._outage.end(name)
                return result

    def _failure(self, name: str, error: Exception) -> UserError:
        """Return the error of a file that was tried often enough."""
        path = f"{self.url}/{name}" if name else self.url
        if isinstance(error, WrongContentError):
            return UserError(f"{path}: is damaged ({error}); copy the cache to the bucket again")
        if getattr(error, "code", None) == http.HTTPStatus.NOT_FOUND:
            return UserError(f"{path}: no such file or folder; copy the cache to the bucket again")
        return UserError(
            f"{path}: cannot be read ({_reason(error)}); see to Google's credentials and the "
            "rights of this account"
        )

    def _storage(self) -> Any:
        """Return the client of this process; anonymous without credentials."""
        process, client = self._client
        if process != os.getpid():
            from google.auth.exceptions import DefaultCredentialsError
            from google.cloud import storage

            try:
                client = storage.Client()
            except DefaultCredentialsError:
                client = storage.Client.create_anonymous_client()
            self._client = (os.getpid(), client)
        return client

    def __reduce__(self) -> tuple[type[BucketReader], tuple[str]]:
        return BucketReader, (self.url,)


class _Outage:
    """Pauses of the threads of a process while a bucket does not answer, and their messages."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._waiting: dict[str, float] = {}  # start by name
        self._said = 0.0
        self._has_answered = False

    def wait(self, name: str, reason: str) -> None:
        """Pause before a file is tried again.

        Args:
            name: name of the file.
            reason: what failed, for the message.

        Raises:
            OutageError: if the outage has lasted too long.
        """
        with self._lock:
            now = time.monotonic()
            elapsed = now - self._waiting.setdefault(name, now)
            patience = _PATIENCE if self._has_answered else _FIRST_PATIENCE
            if elapsed > patience and not self._has_answered:
                raise OutageError(
                    f"{self._url}: no answer for {elapsed:.0f} s ({reason}); see to the network "
                    "and the name of the bucket, and run the same command again"
                )
            if elapsed > patience:
                raise OutageError(
                    f"{self._url}/{name}: no answer for {elapsed / 60:.0f} minutes ({reason}); run "
                    "the same command again: it continues"
                )
            if not self._said or now - self._said > _SILENCE:
                self._said = now
                _log.warning(
                    "%s/%s: no answer (%s); waiting for it, at most %.0f s; Ctrl-C ends this",
                    self._url,
                    name,
                    reason,
                    patience,
                )
        pause = min(_LONGEST_PAUSE, max(_SHORTEST_PAUSE, elapsed / 2))
        time.sleep(pause * random.uniform(0.5, 1))  # not all processes at the same moment

    def end(self, name: str) -> None:
        """Record that a file is no longer waited for; say so if it was the last."""
        with self._lock:
            self._has_answered = True
            start = self._waiting.pop(name, None)
            if start is not None and self._said and not self._waiting:
                self._said = 0.0
                seconds = time.monotonic() - start
                _log.warning("%s: answers again after %.0f s", self._url, seconds)


def _is_local(error: Exception) -> bool:
    """Return whether the local file, not the bucket, caused an error."""
    return isinstance(error, OSError) and not _is_network(error) and error.errno is not None


def _is_network(error: BaseException) -> bool:
    import requests
    import urllib3

    kinds = (requests.RequestException, urllib3.exceptions.HTTPError, ConnectionError, TimeoutError)
    return isinstance(error, kinds)


def _is_outage(error: Exception) -> bool:
    """Return whether an error may end without anybody's help."""
    import google.auth.exceptions

    status = getattr(error, "code", None)
    if isinstance(error, google.auth.exceptions.GoogleAuthError):
        transport = isinstance(error, google.auth.exceptions.TransportError)
        return transport or bool(getattr(error, "retryable", False))
    return status in _OUTAGE_STATUSES or _is_network(error)


def _reason(error: Exception, timeout: tuple[float, float] = _TIMEOUT) -> str:
    """Return a short reason: the system's, that of the status, or the text of the error."""
    import requests
    import urllib3

    status = getattr(error, "code", None)
    if isinstance(status, int):
        phrases = {int(known): known.phrase for known in http.HTTPStatus}
        return f"{int(status)} {phrases.get(int(status), '')}".strip()
    for cause in causes(error):
        if isinstance(cause, OSError) and cause.errno and cause.strerror:
            return cause.strerror
    timeouts = (requests.Timeout, urllib3.exceptions.TimeoutError, TimeoutError)
    if any(isinstance(cause, timeouts) for cause in causes(error)):
        return f"nothing sent for {timeout[1]:.0f} s"
    return one_line(error)
