"""A page in headless Chromium, driven through the pipe of its debugging protocol."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.browser.chromium import find_chromium

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--disable-extensions", "--no-first-run", "--disable-background-networking"),
    *("--remote-debugging-pipe", "about:blank"),
)
_SECONDS = 60
_KEYS = {"Tab": ("Tab", 9, ""), "Enter": ("Enter", 13, "\r")}


class Browser:
    """Chromium with one page; `--remote-debugging-pipe` reads file 3 and writes file 4."""

    def __init__(self, folder: Path) -> None:
        chromium = find_chromium()
        assert chromium is not None
        read_commands, self._write = os.pipe()
        self._read, write_answers = os.pipe()
        # The shell gives the pipes the numbers that Chromium expects.
        command = f'exec "$@" 3<&{read_commands} 4>&{write_answers}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, "bash", chromium, *_FLAGS, f"--user-data-dir={folder}"],
            pass_fds=(read_commands, write_answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        self._numbers, self._buffer, self._session = itertools.count(1), b"", ""
        self.events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End Chromium."""
        self._process.kill()
        self._process.wait(_SECONDS)
        os.close(self._read)
        os.close(self._write)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the result of a command; events that arrive meanwhile are kept in `events`."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _SECONDS
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select.select([self._read], [], [], max(0, deadline - time.monotonic()))[0]
            self._buffer += os.read(self._read, 1 << 20)
        data, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(data)
        return message

    def open(self, url: str) -> None:
        """Load a page."""
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + _SECONDS
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, expression
            time.sleep(0.02)

    def type(self, text: str, seconds: float = 0) -> None:
        """Type a text into the element with the focus, with a pause before each key."""
        for character in text:
            time.sleep(seconds)
            self.call("Input.dispatchKeyEvent", type="char", text=character)

    def press(self, key: str, *, ctrl: bool = False) -> None:
        """Press a key."""
        code, number, text = _KEYS[key]
        event = {"key": key, "code": code, "windowsVirtualKeyCode": number}
        event["modifiers"] = 2 if ctrl else 0
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def click(self, selector: str) -> None:
        """Click in the middle of an element."""
        box = self.evaluate(
            f"(() => {{ const node = document.querySelector({json.dumps(selector)});"
            " node.scrollIntoView({block: 'center'}); const box = node.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        event = {"x": box[0], "y": box[1], "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, **event)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a select element, as a user's choice does."""
        self.evaluate(
            f"(() => {{ const node = document.querySelector({json.dumps(selector)});"
            f" node.value = {json.dumps(value)};"
            " node.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )

    def choose_files(self, selector: str, paths: Sequence[Path]) -> None:
        """Choose files in a file field."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in paths])

    def resize(self, width: int, height: int) -> None:
        """Set the size of the window; below 640 pixels it is a phone's."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 640,
        )

    def prefer(self, scheme: str) -> None:
        """Prefer a colour scheme: light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path) -> None:
        """Write a picture of the window."""
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def logged(self) -> list[str]:
        """Return the errors of the page's console, e.g. of the Content-Security-Policy."""
        self.evaluate("0")  # events before it have arrived
        entries = [event for event in self.events if event.get("method") == "Log.entryAdded"]
        thrown = [e for e in self.events if e.get("method") == "Runtime.exceptionThrown"]
        texts = [entry["params"]["entry"]["text"] for entry in entries]
        return texts + [json.dumps(event["params"]) for event in thrown]
