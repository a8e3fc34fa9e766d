"""Wrong experiments: tables with strange values, and files with strange bytes."""

from __future__ import annotations

import copy
import datetime
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spoil import INF, NAN, cyclic, nested

PLAIN: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 7, 2**31, 2**63, 2**70, 10**5000),
    *(0.0, -0.0, 0.5, -1e308, 1e308, 5e-324, NAN, INF, -INF),
    *("", " ", "tiny", "mlp", "fedavg", "iid", "own", "all", "x" * 99, "y" * 1_000_000, "\x00", "a\nb", "x.npz"),
    *("../../etc/passwd", "os.system", "-rf", "\ud800", "\u202e", "é", "nan", "1e400", "n" * 400 + ".npz"),
    *([], [[]], [1, "a"], [None], [0.5] * 50, [[0], [99]], ["a"], [2**40], {}),
    *({"name": 3}, {"": 1}, {"name": "iid"}, {3: 4}, {"a": {"b": [{}]}}),
    *(datetime.date(2020, 1, 1), datetime.time(1, 2), b"bytes", {1, 2}, (1,), object),
]
DEEP: list[Callable[[], Any]] = [lambda: cyclic({}), lambda: nested(50), lambda: nested(20_000)]
NAMES = ["mu", "alpha", "nmae", "options", "", "lr", "a.b", "__class__", "name\n", "k" * 5000, "\ud800"]


def mutated(values: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """Change, add or remove one to five things in the tables."""
    values = copy.deepcopy(values)
    for _ in range(dice.choice((1, 1, 1, 2, 5))):
        node = values
        while (below := [v for v in node.values() if isinstance(v, dict) and v]) and dice.random() < 0.6:
            node = dice.choice(below)
        key: Any = dice.choice([*node, *node, *values, *NAMES, 3])
        if dice.random() < 0.2:
            node.pop(key, None)
        else:
            node[key] = dice.choice(DEEP)() if dice.random() < 0.03 else copy.deepcopy(dice.choice(PLAIN))
    return values


PIECES = [
    *(
        b"\x00",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
        b"\r",
        b"\n",
        b"=",
        b"[",
        b"]",
        b"[[",
        b'"',
        b'"""',
        b"'",
    ),
    *(b"{", b"}", b",", b".", b"#", b"\\u0000", b"\\", b"nan", b"-inf", b"1e400", b"0x", b"1979-13-45", b"true", b"_"),
    *(b"[" * 50_000, b"{a=" * 5_000, b"9" * 5_000, b"0x" + b"f" * 5_000, b"a." * 3_000, b"\n[[models]]\n", b"\xf0\x9f"),
]


def damaged(text: bytes, dice: random.Random) -> bytes:
    """Change, remove or duplicate some bytes, or insert bytes that parsers have problems with."""
    data = bytearray(text)
    for _ in range(dice.choice((1, 1, 2, 4, 20))):
        at = dice.randrange(len(data) + 1)
        to = min(len(data), at + dice.choice((1, 1, 8, 100)))
        what = dice.randrange(6)
        if what == 0 and at < len(data):
            data[at] ^= 1 << dice.randrange(8)
        elif what == 1:
            del data[at:to]
        elif what == 2:
            data[at:at] = data[at:to]
        elif what == 3:
            data[at:at] = dice.choice(PIECES)
        elif what == 4:
            data[at:to] = dice.randbytes(to - at)
        elif dice.random() < 0.3:
            del data[at:]
    return bytes(data)


def no_file(folder: Path, dice: random.Random) -> Path:
    """Return the path of something that cannot be read as a file."""
    path = folder / f"strange{len(list(folder.iterdir()))}"
    what = dice.choice(("missing", "folder", "pipe", "loop", "huge", "endless", "NUL", "long"))
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "loop":
        path.symlink_to(path)
    elif what == "huge":
        with path.open("wb") as file:
            file.truncate(1 << 30)
    elif what == "endless":
        path.symlink_to("/dev/zero")
    return {"NUL": folder / "a\x00b", "long": folder / ("n" * 5000)}.get(what, path)
