"""What hostile replies cost in memory: the largest size of a process in honest rounds, and of another in hostile ones.

Each is measured in a process of its own. In one process the second would find the room that the first has left, and the
ratio would be 1 whatever hostile replies take. A third process, whose replies are kept as an unwary server would keep
them, must show more: otherwise nothing is being measured, and that is a failure too.

    python chaos/memory.py --count 300 --save
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
import warnings
from typing import Any

import torch
from harness import little_memory, peak, run_from_command_line, show, single
from kinds import KINDS
from replies import Stage, played, scene
from spoil import NO_PLACE

from fedalloy.core import methods

LIMIT = 1.2
SIDES = ("clean", "hostile", "unwary")


def main(count: int, seed: int, *, save: bool = False) -> dict[str, Any]:
    """The sizes after so many rounds, clean, hostile and unwary."""
    begin = time.monotonic()
    sizes = {side: _measured(side, count, seed) for side in SIDES}
    ratio, control = (sizes[side] / sizes["clean"] for side in ("hostile", "unwary"))
    facts = {"bytes": sizes, "ratio": round(ratio, 4), "limit": LIMIT, "control": round(control, 4)}
    failures = (ratio > LIMIT) + (control <= LIMIT)
    report = single("memory", seed, failures, count=count, begin=begin, save=save, **facts)
    show(report)
    return {"memory": report}


def _measured(side: str, count: int, seed: int) -> int:
    command = [sys.executable, __file__, "--side", side, str(count), str(seed)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def largest(side: str, count: int, seed: int) -> int:
    """The largest resident size of this process during so many rounds of one side."""
    warnings.simplefilter("ignore")  # torch's, about the strange tensors that are made on purpose
    at = scene(list(methods).index("fedavg"), 1, 2)
    place = at.places()[-1]
    honest, dice = at.overheard(place), random.Random(f"{seed}/memory")
    sizes: list[int] = []
    kept: list[Any] = []
    with little_memory(), peak(sizes):
        for _ in range(count):
            body = honest.body if side == "clean" else dice.choice(list(KINDS.values()))(honest, dice)
            played(at, Stage(at, place, honest.body if body is NO_PLACE else body))
            if side == "unwary":
                kept.append(torch.ones((1 << 26) // count))  # 256 MB in all, as large replies would take
    return sizes[0]


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--side"]:
        sys.stdout.write(str(largest(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
    else:
        run_from_command_line(main, 300)
