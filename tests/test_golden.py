"""Every method and variant gives the numbers that it gave when `golden.json` was written, to the last bit.

The bits of float arithmetic depend on the processor and on torch's version. `machine` tells them apart, and the test
skips elsewhere. After a change that is meant to change numbers, write them anew and say why in the commit:

    python tests/test_golden.py
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import nn

from fedalloy import simulate
from fedalloy.base import tree
from fedalloy.base.options import options_of
from fedalloy.federation.metrics import METRICS
from fedalloy.methods import methods
from fedalloy.storage.store import Store

FILE = Path(__file__).parents[1] / "src" / "fedalloy" / "reproduce" / "golden.json"
EXPERIMENT: dict[str, Any] = {
    "rounds": 3,
    "engine": "serial",
    "data": {"name": "tiny", "size": 8},
    "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.5, "validation": 0.1},
    "model": {"name": "fedmd-cnn", "widths": [4, 6]},  # with BatchNorm and dropout
    "training": {"work": "fixed_steps", "steps": 3, "batch": 8, "lr": 0.05, "momentum": 0.5, "weight_decay": 0.001},
    "participation": {"policy": "fraction", "fraction": 0.5},
    "public": {"data": "own", "samples": 40, "labelled": True},
}


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every method of the library, and each of its other variants."""
    for name, cls in methods.items():
        if not cls.__module__.startswith("fedalloy."):
            continue
        yield name, {"name": name, **cls.card.quick}
        words = [get_args(found.hint) for found in options_of(cls) if found.name == "variant"]
        for variant in (word for found in words for word in found if word != "recommended"):
            yield f"{name} {variant}", {"name": name, **cls.card.quick, "variant": variant}


def numbers(method: Mapping[str, Any]) -> dict[str, str]:
    """Digests of all that a run leaves behind but times and memory."""
    with tempfile.TemporaryDirectory() as home, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = simulate({**EXPERIMENT, "method": dict(method)}, Path(home) / "run")
        saved = Store(Path(home) / "run").restore()
    assert saved is not None
    state, memories = saved
    records = [{key: value for key, value in r.items() if key not in ("seconds", "memory")} for r in done.rounds]
    records = [{**r, "views": {name: _first(view) for name, view in r["views"].items()}} for r in records]
    found = {
        "state": tree.encode(state.body),
        "memories": tree.encode({str(k): memory for k, memory in sorted(memories.items())}),
        "records": json.dumps(records, sort_keys=True).encode(),
    }
    return {key: hashlib.sha256(value).hexdigest()[:16] for key, value in found.items()}


def _first(view: Mapping[str, Any]) -> dict[str, Any]:
    """What the first golden records had of a view: metrics that came later have tests of their own."""
    clients = {key: view["clients"][key] for key in ("accuracy", "loss", "size")}
    later = {name for name, metric in METRICS.items() if metric.tasks} | {"details", "balanced_error"}
    return {**{key: value for key, value in view.items() if key not in later}, "clients": clients}


def machine() -> str:
    """A digest of some of torch's own arithmetic, with its version."""
    draw = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(144, 10))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=draw) / 4)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(5):
        optimiser.zero_grad()
        net(torch.randn(13, 1, 8, 8, generator=draw)).log_softmax(1).square().mean().backward()
        optimiser.step()
    bits = tree.encode({name: t.detach() for name, t in net.state_dict().items()})
    return f"torch {torch.__version__}, {hashlib.sha256(bits).hexdigest()[:16]}"


GOLDEN = json.loads(FILE.read_text()) if FILE.exists() else {"machine": "", "cases": {}}


@pytest.mark.parametrize(("name", "method"), list(cases()), ids=[name for name, _ in cases()])
def test_the_numbers_are_what_they_were(name: str, method: dict[str, Any]) -> None:
    if machine() != GOLDEN["machine"]:
        pytest.skip(f"written where torch's arithmetic differs: {GOLDEN['machine']}, here {machine()}")
    assert numbers(method) == GOLDEN["cases"][name]


if __name__ == "__main__":
    torch.set_num_threads(1)
    written = {"machine": machine(), "cases": {name: numbers(method) for name, method in cases()}}
    FILE.write_text(json.dumps(written, indent=1) + "\n")
