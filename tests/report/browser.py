"""Chromium without a window, driven over WebDriver with the standard library alone."""

import base64
import http.client
import json
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
MISSING = "" if CHROMIUM and DRIVER else "Chromium and chromedriver are not installed (apt install chromium-driver)"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key under which WebDriver names an element


class Browser:
    """One window of Chromium; its profile and its downloads are in `folder`."""

    def __init__(self, folder: Path):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.downloads = folder / "downloads"
        self.downloads.mkdir()
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.driver = subprocess.Popen([DRIVER, f"--port={self.port}"], **quiet)
        try:
            self._wait()
            options = {
                "binary": CHROMIUM,
                "args": [*FLAGS, f"--user-data-dir={folder / 'profile'}"],
                "prefs": {"download.default_directory": str(self.downloads)},
            }
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            self.session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        except BaseException:
            self.driver.kill()
            self.driver.wait()
            raise
        self.command("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(self.downloads))

    def _wait(self) -> None:
        for _ in range(200):
            with suppress(OSError):
                self._ask("GET", "/status")
                return
            time.sleep(0.05)
        raise TimeoutError("chromedriver does not answer")

    def _ask(self, how, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        text = None if body is None else json.dumps(body)
        connection.request(how, path, text, {"Content-Type": "application/json"})
        value = json.loads(connection.getresponse().read())["value"]
        connection.close()
        if isinstance(value, dict) and "error" in value:
            raise RuntimeError(f"{value['error']}: {value['message']}")
        return value

    def do(self, path, body):
        return self._ask("POST", f"/session/{self.session}{path}", body)

    def command(self, name, **params):
        """A command of the DevTools protocol."""
        return self.do("/goog/cdp/execute", {"cmd": name, "params": params})

    def open(self, file: Path, *, width: int = 1280, dark: bool = False, scripts: bool = True) -> None:
        self.command("Emulation.setScriptExecutionDisabled", value=not scripts)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.command("Emulation.setDeviceMetricsOverride", **size)
        self.do("/url", {"url": file.as_uri()})

    def run(self, script: str, *values):
        """The value that a script returns."""
        return self.do("/execute/sync", {"script": script, "args": list(values)})

    def find(self, css: str):
        return self.do("/element", {"using": "css selector", "value": css})[ELEMENT]

    def click(self, css: str) -> None:
        self.run("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", css)
        self.do(f"/element/{self.find(css)}/click", {})

    def press(self, *keys: str) -> None:
        """Press keys, one after the other, where the focus is."""
        strokes = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.do("/actions", {"actions": [{"type": "key", "id": "keys", "actions": strokes}]})

    def point(self, css: str, *places: tuple[float, float], drag: bool = False) -> None:
        """Move the mouse over an element, to places given as shares of its width and height from its middle."""
        self.run("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", css)
        box = self.run("const b = document.querySelector(arguments[0]).getBoundingClientRect(); return b.toJSON()", css)
        origin = {ELEMENT: self.find(css)}
        moves = [
            {"type": "pointerMove", "origin": origin, "x": round(x * box["width"]), "y": round(y * box["height"])}
            for x, y in places
        ]
        if drag:
            moves = [moves[0], {"type": "pointerDown", "button": 0}, *moves[1:], {"type": "pointerUp", "button": 0}]
        mouse = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": moves}
        self.do("/actions", {"actions": [mouse]})

    def said(self) -> list[str]:
        """What the console has said since the last call, such as errors."""
        return [entry["message"] for entry in self.do("/se/log", {"type": "browser"})]

    def downloaded(self, name: str) -> str:
        for _ in range(100):
            if (self.downloads / name).exists():
                return (self.downloads / name).read_text()
            time.sleep(0.05)
        raise TimeoutError(f"{name} is not among {[file.name for file in self.downloads.iterdir()]}")

    def picture(self) -> bytes:
        return base64.b64decode(self.command("Page.captureScreenshot")["data"])

    def close(self) -> None:
        with suppress(OSError, RuntimeError):
            self._ask("DELETE", f"/session/{self.session}")
        self.driver.terminate()
        self.driver.wait(10)
