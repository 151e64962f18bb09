"""A headless Chromium driven over its DevTools pipe, with nothing but the standard library."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE = 120.0
"""Seconds until a browser that does not answer is given up."""


def find_chromium() -> str | None:
    """The browser, under the names it is installed by."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    return next((path for path in map(shutil.which, names) if path), None)


class Page:
    """One tab; ``problems`` are uncaught exceptions, console errors and requests to anywhere."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._pending = b""
        self._last = 0
        self._session: str | None = None
        self.problems: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Show a file on a screen of this size and wait until it is loaded."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 600)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.resolve().as_uri())
        while self.evaluate("document.readyState") != "complete" or self.evaluate("location.href") == "about:blank":
            time.sleep(0.02)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        for _ in range(int(PATIENCE / 0.05)):
            if self.evaluate(condition):
                return
            time.sleep(0.05)
        raise RuntimeError(f"{condition} never became true")

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Save the page, or the part of it on the screen, as PNG."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the DevTools protocol and wait for its answer."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._from], [], [], PATIENCE)
            part = os.read(self._from, 1 << 16) if ready else b""
            if not part:
                raise RuntimeError("the browser does not answer")
            self._pending += part
        text, _, self._pending = self._pending.partition(b"\0")
        received: dict[str, Any] = json.loads(text)
        return received

    def _note(self, event: dict[str, Any]) -> None:
        method, result = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(result["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and result["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(result["args"]))
        elif method == "Log.entryAdded" and result["entry"]["level"] in ("error", "warning"):
            self.problems.append(result["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not result["request"]["url"].startswith(("file:", "data:")):
            self.problems.append(f"asks for {result['request']['url']}")


@contextmanager
def browser(executable: str) -> Iterator[Page]:
    """Start a browser with a profile of its own, and end it."""
    profile = tempfile.mkdtemp()
    # DevTools are spoken on the descriptors 3 and 4; ours are moved out of their way.
    read_there, write_here = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in os.pipe())
    read_here, write_there = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in os.pipe())
    actions = [
        (os.POSIX_SPAWN_DUP2, read_there, 3),
        (os.POSIX_SPAWN_DUP2, write_there, 4),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    arguments = [executable, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    process = os.posix_spawn(executable, arguments, os.environ, file_actions=actions, setsid=True)
    os.close(read_there)
    os.close(write_there)
    try:
        yield Page(write_here, read_here)
    finally:
        os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(write_here)
        os.close(read_here)
        shutil.rmtree(profile, ignore_errors=True)
