"""Chromium as a test drives it: over its DevTools protocol, for pages that live from a server."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")


class Tab:
    """One tab: what it shows, and what it complains about."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.complaints: list[str] = []
        """Errors of scripts, of the network and of the page's policy."""
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> Any:
        """One command and its answer; what the tab says meanwhile is looked through for complaints."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=60))
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            said = message.get("params", {})
            match message.get("method"):
                case "Runtime.exceptionThrown":
                    self.complaints.append(json.dumps(said["exceptionDetails"]))
                case "Log.entryAdded" if said["entry"]["level"] in ("error", "warning"):
                    self.complaints.append(said["entry"]["text"])
                case "Runtime.consoleAPICalled" if said["type"] in ("error", "warning", "assert"):
                    self.complaints.append(json.dumps(said["args"]))

    def view(self, width: int, height: int, *, dark: bool = False) -> None:
        """The size of the screen, and its dress."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        """Go to a page, and run its scripts."""
        self.ask("Page.navigate", url=url)
        self.until(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, as JSON; of a promise what it leads to."""
        done = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def until(self, script: str, timeout_s: float = 30.0) -> Any:
        """Wait until an expression is true, and return it."""
        deadline = time.monotonic() + timeout_s
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, (
                f"never came true: {script}\n{self.run('document.body.innerText')}"
            )
            time.sleep(0.1)
        return value

    def picture(self, path: Path) -> Path:
        """A picture of the whole page."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.ask("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path


@contextmanager
def chromium(folder: Path) -> Iterator[Tab]:
    """A browser with one tab, which knows nothing of earlier ones."""
    import httpx
    from websockets.sync.client import connect

    assert CHROMIUM is not None
    profile = folder / "profile"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
    flags += ["--disable-background-networking", "--remote-debugging-port=0", f"--user-data-dir={profile}"]
    browser = subprocess.Popen(
        [CHROMIUM, *flags, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        port = _port(profile / "DevToolsActivePort")
        with httpx.Client(trust_env=False, timeout=30) as http:
            tabs = http.get(f"http://127.0.0.1:{port}/json").json()
        address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
        # Between two commands nobody reads: what the tab says meanwhile must not hold up an answer to a ping.
        with connect(address, max_size=None, ping_interval=None) as socket:
            yield Tab(socket)
    finally:
        browser.terminate()
        browser.wait(20)


def _port(path: Path) -> int:
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_text().count("\n")):
        assert time.monotonic() < deadline, "Chromium did not start"
        time.sleep(0.1)
    return int(path.read_text().splitlines()[0])
