"""Preemption notices of Google Cloud: a thread that waits for the metadata server's announcement.

A machine is announced to go in two keys of its metadata. `preempted` becomes TRUE when a spot
machine is reclaimed, about 30 seconds before it is off. `maintenance-event` becomes
TERMINATE_ON_HOST_MAINTENANCE up to an hour before a machine with accelerators is stopped. SIGTERM
follows later, and not in every container.

Source: cloud.google.com/compute/docs/metadata/getting-live-migration-notice and
cloud.google.com/compute/docs/instances/spot, read in 2026.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import os
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

_FLAVOR = ("Metadata-Flavor", "Google")  # header of requests and answers
_PRODUCT_NAME = Path("/sys/class/dmi/id/product_name")
_HOST = "metadata.google.internal"
_WAIT_SECONDS = 60  # until the server answers without a change
_ANSWER_SECONDS = 10  # beyond that
_RETRY_SECONDS = 10.0
_PAUSE_SECONDS = 1.0  # after an answer without a change, for servers that do not wait
_MAX_BYTES = 256
_THREAD = "preemption"
_UNKNOWN_KEY = (403, 404)  # statuses of servers that do not serve a key


@dataclasses.dataclass(frozen=True)
class _Key:
    """A key of the metadata.

    Attributes:
        name: below `instance/`.
        value: that announces the end of the machine.
        notice: what it means, for the user.
        initial: whether the value counts if it is there from the start. Maintenance may be an hour
            away, and a run that was started again must not stop at once.
    """

    name: str
    value: str
    notice: str
    initial: bool


_KEYS = (
    _Key("preempted", "TRUE", "this machine is being preempted", initial=True),
    _Key(
        "maintenance-event",
        "TERMINATE_ON_HOST_MAINTENANCE",
        "this machine will be stopped for maintenance",
        initial=False,
    ),
)


def metadata_host(variables: Mapping[str, str] = os.environ) -> str | None:
    """Return the address of the metadata server, or None if this machine is not on Google Cloud.

    Args:
        variables: `GCE_METADATA_HOST` names the server, as for Google's clients, and
            `NO_GCE_CHECK=true` disables the check of the machine's product name.
    """
    if host := variables.get("GCE_METADATA_HOST"):
        return host
    if variables.get("NO_GCE_CHECK") == "true":
        return None
    try:
        is_google = _PRODUCT_NAME.read_text(encoding="utf-8").startswith("Google")
    except (OSError, UnicodeDecodeError):
        return None
    return _HOST if is_google else None


@contextlib.contextmanager
def watch_for_preemption(on_notice: Callable[[str], None]) -> Iterator[None]:
    """Call a function, in another thread, when Google Cloud announces this machine's preemption.

    Args:
        on_notice: takes a description of the notice; called at most once per key.
    """
    ended = threading.Event()
    if host := metadata_host():
        for key in _KEYS:
            watch = _Watch(host, key, on_notice, ended)
            threading.Thread(target=watch.run, name=f"{_THREAD} {key.name}", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


@dataclasses.dataclass(frozen=True)
class _Watch:
    """Waiting for a key's value.

    Attributes:
        host: of the metadata server.
        key: to watch.
        on_notice: see `watch_for_preemption`.
        ended: set when nobody waits for the notice any more.
    """

    host: str
    key: _Key
    on_notice: Callable[[str], None]
    ended: threading.Event

    def run(self) -> None:
        """Watch until the notice, the end, or an answer that the server has no such key."""
        state, counts = "0", self.key.initial  # the server answers at once to another state
        while not self.ended.is_set():
            before = state
            try:
                value, state = self._wait_for_change(state)
            except urllib.error.HTTPError as error:
                error.close()
                if error.code in _UNKNOWN_KEY:
                    return
                self.ended.wait(_RETRY_SECONDS)
                continue
            except (OSError, ValueError, http.client.HTTPException):
                self.ended.wait(_RETRY_SECONDS)
                continue
            if value != self.key.value:
                counts = True
            elif counts and not self.ended.is_set():
                self.on_notice(self.key.notice)
                return
            if state == before:
                self.ended.wait(_PAUSE_SECONDS)

    def _wait_for_change(self, state: str) -> tuple[str, str]:
        """Return the key's value and state once the state is another, or after a minute.

        Raises:
            OSError: if the server does not answer.
            ValueError: if the answer is not a metadata server's.
        """
        query = {"wait_for_change": "true", "timeout_sec": _WAIT_SECONDS, "last_etag": state}
        url = f"http://{self.host}/computeMetadata/v1/instance/{self.key.name}"
        request = urllib.request.Request(
            f"{url}?{urllib.parse.urlencode(query)}", headers=dict([_FLAVOR])
        )
        # Proxies of the environment would not reach the server of this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=_WAIT_SECONDS + _ANSWER_SECONDS) as answer:
            if answer.headers.get(_FLAVOR[0]) != _FLAVOR[1]:
                raise ValueError(f"{self.host} is no metadata server")
            value = answer.read(_MAX_BYTES).decode("utf-8").strip()
            return value, answer.headers.get("ETag", "0")
