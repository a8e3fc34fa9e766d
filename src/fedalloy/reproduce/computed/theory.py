"""Claims that are theorems: each is evaluated on a problem of which everything is known."""

from __future__ import annotations

from collections.abc import Callable

from fedalloy.reproduce.computed.answer import Computed, Function
from fedalloy.reproduce.results import Results
from fedalloy.theory import FINDINGS, Finding


def _function(check: Callable[[], Finding]) -> Function:
    def answer(_: Results | None) -> Computed:
        found = check()
        return Computed(None, found.holds, found.text)

    return answer


FUNCTIONS: dict[str, Function] = {name: _function(check) for name, check in FINDINGS.items()}
