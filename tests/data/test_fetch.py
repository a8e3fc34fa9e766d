"""Finding and downloading: a local server stands for the publishers."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedalloy.data import fetch as fetching
from fedalloy.data.fetch import RemoteFile, fetch, find
from fedalloy.errors import DataError

CONTENT = b"the published bytes" * 1000
SHA256 = "sha256:" + hashlib.sha256(CONTENT).hexdigest()
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()


class Publisher(BaseHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write({"/good": CONTENT, "/other": CONTENT[::-1], "/truncated": CONTENT[:500]}[self.path])

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Publisher.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Publisher) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
        httpd.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("FEDALLOY_DATA", raising=False)
    monkeypatch.setattr(fetching, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def leftovers(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file()]


@pytest.mark.parametrize("known", [SHA256, MD5])
def test_downloads_once_and_then_uses_the_cache(server: str, cache: Path, known: str) -> None:
    file = RemoteFile("f.bin", "set", known, (f"{server}/good",))
    assert find(file) is None
    path = fetch(file)
    assert path == cache / "set" / "f.bin"
    assert path.read_bytes() == CONTENT
    assert fetch(file) == path
    assert Publisher.asked == ["/good"]


def test_mirrors_are_tried_in_order(server: str, cache: Path) -> None:
    urls = tuple(f"{server}/{name}" for name in ("missing", "other", "truncated", "good"))
    assert fetch(RemoteFile("f.bin", "set", SHA256, urls)).read_bytes() == CONTENT
    assert Publisher.asked == ["/missing", "/other", "/truncated", "/good"]
    assert leftovers(cache) == [cache / "set" / "f.bin"]


@pytest.mark.parametrize(
    ("page", "reason"),
    [("missing", "404"), ("truncated", "IncompleteRead"), ("other", hashlib.sha256(CONTENT[::-1]).hexdigest())],
)
def test_a_failed_download_is_one_sentence_and_leaves_nothing(server: str, cache: Path, page: str, reason: str) -> None:
    with pytest.raises(DataError) as caught:
        fetch(RemoteFile("f.bin", "set", SHA256, (f"{server}/{page}",)))
    message = str(caught.value)
    assert reason in message
    assert "FEDALLOY_DATA" in message
    assert "\n" not in message
    assert caught.value.code == 3
    assert leftovers(cache) == []


def test_no_connection(cache: Path) -> None:
    with socket.socket() as unheard:  # bound but not listening: nobody answers there
        unheard.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{unheard.getsockname()[1]}/good"
        with pytest.raises(DataError, match=r"f\.bin .*no connection.*FEDALLOY_DATA"):
            fetch(RemoteFile("f.bin", "set", SHA256, (nobody,)))
    assert leftovers(cache) == []


def test_own_folder_comes_first_then_system_then_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, system = tmp_path / "own", tmp_path / "system"
    file = RemoteFile("f.bin", "set", SHA256, layouts=("flat.bin",), system=(str(system),))
    for path in (own / "set" / "f.bin", own / "flat.bin", system / "f.bin", cache / "set" / "f.bin"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(CONTENT)
    monkeypatch.setenv("FEDALLOY_DATA", str(own))
    assert find(file) == own / "set" / "f.bin"
    (own / "set" / "f.bin").unlink()
    assert find(file) == own / "flat.bin"
    monkeypatch.delenv("FEDALLOY_DATA")
    assert find(file) == system / "f.bin"
    (system / "f.bin").unlink()
    assert find(file) == cache / "set" / "f.bin"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDALLOY_DATA", str(tmp_path / "typo"))
    with pytest.raises(DataError, match=r"FEDALLOY_DATA.*typo'"):
        find(RemoteFile("f.bin", "set", SHA256))


def test_a_corrupt_file_names_itself_both_hashes_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDALLOY_DATA", str(tmp_path))
    (tmp_path / "f.bin").write_bytes(CONTENT[:-1])
    found = hashlib.sha256(CONTENT[:-1]).hexdigest()
    with pytest.raises(DataError) as caught:
        fetch(RemoteFile("f.bin", "set", SHA256, layouts=("f.bin",)))
    for part in (str(tmp_path / "f.bin"), SHA256, found, "delete it"):
        assert part in str(caught.value)


def test_a_repacked_copy_is_accepted_by_its_own_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDALLOY_DATA", str(tmp_path))
    (tmp_path / "f.bin").write_bytes(b"packed anew")
    anew = "sha256:" + hashlib.sha256(b"packed anew").hexdigest()
    assert find(RemoteFile("f.bin", "set", SHA256, layouts=("f.bin",), repacked=(anew,))) == tmp_path / "f.bin"
