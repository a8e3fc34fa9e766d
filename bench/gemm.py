"""How much faster two cores multiply matrices than one: the current ceiling of any parallel design on this machine.

Two separate processes, with one torch thread each, multiply on request: first one alone, then both at once.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

SIDE = 512
TIMES = 150  # about a quarter of a second


class Gemm:
    """The two processes; use it in a `with` block."""

    def __enter__(self) -> Gemm:
        self._stack = ExitStack()
        self._crew = [self._stack.enter_context(_started()) for _ in range(2)]
        self.scaling()  # the first one warms up
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._crew:
            assert process.stdin is not None
            process.stdin.close()
        self._stack.close()

    def scaling(self) -> float:
        """Return the throughput of two processes relative to one: 2 on two cores that share nothing."""
        alone = _seconds(self._crew[:1])
        both = _seconds(self._crew)
        return 2 * alone / both


def _started() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, Path(__file__)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )


def _seconds(crew: list[subprocess.Popen[str]]) -> float:
    for process in crew:
        assert process.stdin is not None
        process.stdin.write("go\n")
    answers = []
    for process in crew:
        assert process.stdout is not None
        answers.append(float(process.stdout.readline()))
    return sum(answers) / len(answers)


def _multiply_when_told() -> None:
    import torch  # imported here, so that the parent need not wait for it

    torch.set_num_threads(1)
    a, b, out = (torch.rand(SIDE, SIDE, generator=torch.Generator().manual_seed(k)) for k in range(3))
    for _ in sys.stdin:
        begin = time.perf_counter()
        for _ in range(TIMES):
            torch.mm(a, b, out=out)
        print(time.perf_counter() - begin, flush=True)


if __name__ == "__main__":
    _multiply_when_told()
