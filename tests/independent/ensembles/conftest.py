"""The same draws for a method and for its second implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor


class Tape:
    """Records what torch draws, by kind and in order, so that a second implementation can draw the same."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, ...]) -> None:
        self.drawn: dict[str, list[Tensor]] = {kind: [] for kind in kinds}
        for kind, known in self.drawn.items():
            monkeypatch.setattr(torch, kind, self.recording(getattr(torch, kind), known))

    def recording(self, draw: Callable[..., Tensor], known: list[Tensor]) -> Callable[..., Tensor]:
        def drawn(*args: Any, **options: Any) -> Tensor:
            known.append(draw(*args, **options))
            return known[-1].clone()

        return drawn

    def next(self, kind: str, rows: int | None = None) -> Tensor:
        found = self.drawn[kind].pop(0)
        assert rows is None or len(found) == rows
        return found


@pytest.fixture
def taped(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tape]:
    return lambda *kinds: Tape(monkeypatch, kinds)
