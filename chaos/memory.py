"""The memory cost of hostile replies: peak memory of a process in honest rounds, and of another in hostile rounds.

Each is measured in a separate process. In a single process, the second would reuse the memory of the first, and the
ratio would be 1 whatever hostile replies take. A third process, which keeps the replies as a careless server would,
must show more: otherwise nothing is being measured, which is a failure too.

All of this is done twice: with replies that are already objects, as from a worker, and with replies that are bytes, as
from another machine, which must be decoded first; the careless server decodes all of them. The bytes themselves, which
Flower has received before fedalloy sees them, count too, and are at most about 16 MB.

    python chaos/memory.py --count 300 --save
"""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from harness import little_memory, peak, run_from_command_line, show, single
from kinds import KINDS
from replies import Place, Scene, Stage, played, scene
from spoil import NO_PLACE

from fedalloy.base import tree
from fedalloy.engine.base import Round
from fedalloy.errors import DataError
from fedalloy.federation.core import Message, methods
from fedalloy.federation.gate import Room

LIMIT = 1.2
SIDES = ("clean", "hostile", "unwary", "sent clean", "sent hostile", "sent unwary")
LARGE = 1 << 24  # approximate bytes of the largest reply
ENOUGH = 30  # rounds of a careless server that decodes everything, which takes long


def main(count: int, seed: int, *, save: bool = False) -> dict[str, Any]:
    """Measure the memory after `count` rounds: honest, hostile and careless."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder))
        sizes = {side: _measured(side, count, seed, folder) for side in SIDES}
    ratio, control = (max(_ratios(sizes, "hostile")), min(_ratios(sizes, "unwary")))
    facts = {"bytes": sizes, "ratio": round(ratio, 4), "limit": LIMIT, "control": round(control, 4)}
    failures = (ratio > LIMIT) + (control <= LIMIT)
    report = single("memory", seed, failures, count=count, begin=begin, save=save, **facts)
    show(report)
    return {"memory": report}


def _ratios(sizes: Mapping[str, int], side: str) -> list[float]:
    """Return the ratios to honest rounds, for replies as objects and as bytes."""
    return [sizes[f"{way}{side}"] / sizes[f"{way}clean"] for way in ("", "sent ")]


def _measured(side: str, count: int, seed: int, folder: str) -> int:
    command = [sys.executable, __file__, "--side", side, str(count), str(seed), folder]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def largest(side: str, count: int, seed: int, folder: Path) -> int:
    """Return the peak resident size of this process during `count` rounds of one kind."""
    warnings.simplefilter("ignore")  # torch warns about the strange tensors that are created on purpose
    at, place = _where()
    reply = _sent(side, at, place, folder) if side.startswith("sent ") else partial(_made, side, at, place)
    dice = random.Random(f"{seed}/memory")
    sizes: list[int] = []
    kept: list[Any] = []
    with little_memory(), peak(sizes):
        for _ in range(min(count, ENOUGH) if side == "sent unwary" else count):
            played(at, Stage(at, place, reply(dice)))
            if side == "unwary":
                kept.append(torch.ones((1 << 26) // count))  # 256 MB in all, as large replies would take
    return sizes[0]


def _where() -> tuple[Scene, Place]:
    at = scene(list(methods).index("fedavg"), 1, 2)
    return at, at.places()[-1]


def _made(side: str, at: Scene, place: Place, dice: random.Random) -> Any:
    """Return a reply as an object."""
    honest = at.overheard(place)
    body = honest.body if side == "clean" else dice.choice(list(KINDS.values()))(honest, dice)
    return honest.body if body is NO_PLACE else body


# --- replies that are bytes -------------------------------------------------------------------------------------------


def _write(folder: Path) -> None:
    """Write honest and hostile replies to files, so that creating them does not count."""
    at, place = _where()
    honest = at.overheard(place).body
    model = honest["model"]
    names = {f"name {i}": 0 for i in range(1_000_000)}
    bodies = {
        "a name too much": {**honest, "more": 1},
        "a million names": {**honest, **names},
        "a million names below": {**honest, "model": {**model, **names}},
        "a long name": {**honest, "k" * LARGE: 1},
        "a long text": {**honest, "more": "k" * LARGE},
        "a large tensor": {**honest, "more": torch.zeros(LARGE // 4)},
        "a large tensor in its place": {**honest, "model": {**model, min(model): torch.zeros(LARGE // 4)}},
        "float64": {**honest, "model": {name: w.double() for name, w in model.items()}},
        "100,000 empty tensors": {**honest, **{str(i): torch.zeros(0) for i in range(100_000)}},
    }
    (folder / "clean").mkdir()
    (folder / "clean" / "honest").write_bytes(tree.encode(honest))
    (folder / "hostile").mkdir()
    for number, body in enumerate(bodies.values()):
        (folder / "hostile" / str(number)).write_bytes(tree.encode(body))
    for number, data in enumerate(_lies(tree.encode(honest))):
        (folder / "hostile" / f"lie {number}").write_bytes(data)


def _lies(honest: bytes) -> list[bytes]:
    """Return bytes with headers that do not match their contents."""
    size = struct.unpack("<Q", honest[:8])[0]
    head = json.loads(honest[8 : 8 + size])
    name = next(key for key in head if key != "__metadata__")
    huge = json.dumps({**head, name: {**head[name], "shape": [1 << 40]}}).encode()
    deep = json.dumps({**head, "/".join(["a"] * (LARGE // 8)): head[name]}).encode()
    return [
        struct.pack("<Q", 1 << 60) + honest[8:],
        struct.pack("<Q", len(huge)) + huge + honest[8 + size :],
        struct.pack("<Q", len(deep)) + deep + honest[8 + size :],
        honest + bytes(LARGE),
    ]


def _sent(side: str, at: Scene, place: Place, folder: Path) -> Callable[[random.Random], Any]:
    """Draw a file, and read its reply as the Flower engine does; `NO_PLACE` if it is refused."""
    from flwr.app import Array

    from fedalloy.engine.flower.codec import KIND, from_records, to_records
    from fedalloy.engine.flower.room import room_for

    files = sorted((folder / ("clean" if side == "sent clean" else "hostile")).iterdir())
    action, client = place
    message = Message(action, client, at.messages[place])
    fed = Round(Stage(at), at.method, at.state.round + 1)

    def reply(dice: random.Random) -> Any:
        data = dice.choice(files).read_bytes()
        unwary = side == "sent unwary"
        room = Room(1 << 33, 1 << 33) if unwary else room_for(at.method.expects(message, fed), at.setting)
        try:
            return from_records(to_records(Array("uint8", (len(data),), KIND, data), {}), room)[1]
        except DataError:
            return NO_PLACE

    return reply


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--side"]:
        found = largest(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
        sys.stdout.write(str(found))
    else:
        run_from_command_line(main, 300)
