"""Hostile run folders: `report` refuses them with a DataError of one line, or writes a correct page.

In each trial, one place of a run's `run.json` or of a line of its `rounds.jsonl` is replaced or removed, or a key is
renamed; then the run is reported next to another one, in the terminal and as a page. Trials go through all places and
all values in turn.

    python chaos/run_folders.py --count 5000 --save
"""

from __future__ import annotations

import copy
import functools
import io
import json
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from harness import Dice, FaultError, one_line, run_from_command_line, show, told, trials
from spoil import INF, NAN, nested

from fedalloy.cli import terminal
from fedalloy.errors import DataError
from fedalloy.report.html import render
from fedalloy.report.page import script
from fedalloy.run.runner import simulate

FILES = ("run.json", "rounds.jsonl")
STRANGE = "\x1b[2J$\\frac{$ \u202e\x00 <b> [/red] \N{PILE OF POO}"
VALUES: list[Any] = [
    *(None, True, -1, 0, 1, 7, 2**62, 2**70, 0.5, -0.25, 1e308, NAN, INF),
    *("", "x", "\ud800", STRANGE, "long " * 500),
    *([], [None], ["x"], [[]], [[0, 1], [2]], [0.5] * 3, [2**62] * 3, {}, {"": None}, {"\ud800": 1}, {"a": {"b": "c"}}),
    nested(30),
]
GONE, RENAMED = object(), object()
WAYS = [*VALUES, GONE, RENAMED]
EXPERIMENT = {
    "data": "tiny",
    "model": "mlp",
    "rounds": 2,
    "partition": {"name": "iid", "clients": 3},
    "published": [{"source": "a paper", "metrics": ["amp"], "rows": [["FedAvg", "aca", "50.0"]], "where": {"seed": 0}}],
}
PAGE = 4_000_000  # characters that a page of two small runs may have


def main(count: int, seed: int, *, save: bool = False) -> dict[str, Any]:
    """Test `count` changed places."""
    report = trials("run-folders", count, seed, folder_trial, save=save, finish=breadth)
    show(report)
    return {"run-folders": report}


def breadth(_: Mapping[str, Any]) -> Mapping[str, Any]:
    """Report how many cases the trials were drawn from."""
    return {"places": len(places()), "values": len(WAYS)}


def folder_trial(dice: Dice) -> str:
    """Test one changed place; the first trials go through all of them."""
    file, place = places()[dice.number % len(places())]
    way = WAYS[(dice.number // len(places()) + 7 * dice.number) % len(WAYS)]
    return outcome(file, changed(file, place, way))


def outcome(file: str, content: bytes) -> str:
    """Return how a report of this folder ends: refused with a DataError in one line, or as a correct page."""
    with tempfile.TemporaryDirectory() as there:
        folder = shutil.copytree(whole(), Path(there) / "runs")
        (folder / "fedavg" / file).write_bytes(content)
        try:
            page = reported(folder)
        except DataError as error:
            one_line(error, str(folder))
            if not str(error).isprintable():
                raise FaultError(f"the error message cannot be printed: {error!s:.200}") from error
            return f"{file}: refused"
        except Exception as error:
            raise FaultError(f"{file}: {told(error)}") from error
    refuse_unsound(page)
    return f"{file}: reported"


def reported(folder: Path) -> str:
    """Return what `fedalloy report` writes about the runs in a folder, after it has shown them in the terminal."""
    shown = io.StringIO()
    with redirect_stdout(shown), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runs = terminal.read_runs([str(folder)])
        terminal.show(runs)
        page = render(runs, title="Report")
    if "\x1b" in shown.getvalue() or "\x00" in shown.getvalue():
        raise FaultError("the terminal output contains control characters")
    return page


def refuse_unsound(page: str) -> None:
    """Check a page: every tag is closed, nothing in it is executed, and it can be written."""
    strange = [letter for letter in page if not letter.isprintable() and letter not in "\n\t\xa0"]
    if strange:
        raise FaultError(f"the page contains {strange[0]!r}")
    if len(page) > PAGE:
        raise FaultError(f"the page has {len(page):,} characters")
    page.encode()
    Tags().feed(page.replace(f"<script>{script()}</script>", "", 1))


class Tags(HTMLParser):
    """A parser that requires closed tags and no scripts but the page's own."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember an opened tag."""
        if tag == "script" or any(name.startswith("on") for name, _ in attrs):
            raise FaultError("the page would execute code")
        if tag not in ("meta", "br", "link", "img", "input", "hr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Check that a closed tag was the last one opened."""
        if not self.open or self.open.pop() != tag:
            raise FaultError(f"the page closes a <{tag}> that is not open")


# --- what is changed --------------------------------------------------------------------------------------------------


@functools.cache
def whole() -> Path:
    """Return a folder with a run of FedAvg and one of Local, without checkpoints."""
    place = Path(tempfile.mkdtemp(prefix="fedalloy-chaos-"))
    for method in ("fedavg", "local"):
        run = simulate({**EXPERIMENT, "method": method})
        (place / method).mkdir()
        first, *rest = copy.deepcopy(run.rounds)
        first = {**first, "quarantined": [{"client": 0, "reason": "it is NaN"}], "skipped": "1 of 3 clients answered"}
        (place / method / "run.json").write_text(json.dumps(run.meta))
        (place / method / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in (first, *rest)))
    return place


def original(file: str) -> Any:
    """Return the contents of a file: a table, or for `rounds.jsonl` a list of tables."""
    read = (whole() / "fedavg" / file).read_text()
    return json.loads(read) if file == "run.json" else [json.loads(line) for line in read.splitlines()]


@functools.cache
def places() -> list[tuple[str, tuple[str | int, ...]]]:
    """Return all places of both files; for a list only the first and the last."""
    return [(file, place) for file in FILES for place in _inside(original(file)) if file == "run.json" or place]


def _inside(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield at
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _inside(part, (*at, key))
    elif isinstance(value, list):
        for place in sorted({0, len(value) - 1}) if value else ():
            yield from _inside(value[place], (*at, place))


def changed(file: str, place: tuple[str | int, ...], way: Any) -> bytes:
    """Return the file with a changed place."""
    content = copy.deepcopy(original(file))
    if not place:
        content = way if way not in (GONE, RENAMED) else {}
    else:
        node = content
        for step in place[:-1]:
            node = node[step]
        old = node.pop(place[-1]) if way is GONE or way is RENAMED else None
        if way is RENAMED and isinstance(node, dict):
            node[STRANGE] = old
        elif way is not GONE and way is not RENAMED:
            node[place[-1]] = way
    lines = [content] if file == "run.json" or not isinstance(content, list) else content
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


if __name__ == "__main__":
    run_from_command_line(main, 500)
