"""The numbers of runs, frozen before a redesign: whatever is renamed or moved, not a bit of a result may change.

`numbers.json` holds experiments with the names of the day on which they were frozen, and for each of them what its run
left behind: server state, clients' memories and records, as digests or, where they are small, as they were.
`test_frozen.py` runs them again; `renames.py` carries the old names over to today's.

    python tests/frozen/freeze.py --write        freeze today's numbers: the old ones are lost, so never to mend a test

The bits of float arithmetic belong to a kind of machine and a version of torch: `machine` tells them apart, and the
test skips elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedalloy import FedalloyError, simulate
from fedalloy.storage.store import Store

NUMBERS = Path(__file__).with_name("numbers.json")
NOT_NUMBERS = ("seconds", "memory")  # of a round's record: they differ from run to run
DIGITS = 16

Body = Mapping[str, Any]
Reshape = Callable[[Body], Body]


def run_case(
    experiment: Mapping[str, Any],
    engine: str = "serial",
    old_state: Reshape = lambda body: body,
    old_memory: Reshape = lambda body: body,
) -> dict[str, Any]:
    """All exact numbers of a run; `old_state` and `old_memory` may give bodies an older shape before the digests."""
    where = {"engine": engine, **({"workers": 2} if engine == "pool" else {})}
    with tempfile.TemporaryDirectory() as home, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(home) / "run"
        done = simulate({**experiment, **where}, folder)
        saved = Store(folder).restore()
        assert saved is not None
        state, memories = saved
        return {
            "setting": _setting(done.meta),
            "state": digests(old_state(state.body)),
            "memories": {str(k): digests(old_memory(memories[k])) for k in sorted(memories)},
            "records": {f"round {record['round']}": _record(record) for record in done.rounds},
        }


def digests(body: Body) -> dict[str, str]:
    """A digest of each entry of a state or memory."""
    return {key: digest(_leaves(body[key])) for key in sorted(body)}


def digest(parts: Iterable[bytes]) -> str:
    """The beginning of the SHA-256 of these parts, none of which can be taken for two."""
    found = hashlib.sha256()
    for part in parts:
        found.update(f"{len(part)}:".encode())
        found.update(part)
    return found.hexdigest()[:DIGITS]


def _leaves(value: Any, path: str = "") -> Iterator[bytes]:
    """Leaves below an entry: path, dtype, shape and bytes of each, in the order of their paths."""
    if isinstance(value, Mapping):
        yield f"{path} {len(value)}".encode()
        for key in sorted(value):
            yield from _leaves(value[key], f"{path}/{key}")
    elif isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        yield f"{path} {value.dtype} {tuple(value.shape)}".encode()
        yield flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    else:
        yield f"{path} {value!r}".encode()


def _short(value: Any) -> Any:
    """Small numbers as they are, lists by their digest."""
    if isinstance(value, Mapping):
        return {str(key): _short(part) for key, part in value.items() if part is not None}
    if isinstance(value, list | tuple):
        return digest([json.dumps(value).encode()])
    return value


def _record(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a round's record has of exact numbers; of sentences only that they are there."""
    kept = {key: value for key, value in record.items() if key not in NOT_NUMBERS}
    for clients in ("active", "lost", "spent", "forgot"):
        if clients in kept:
            kept[clients] = " ".join(map(str, kept[clients]))
    if "quarantined" in kept:
        kept["quarantined"] = " ".join(str(bad["client"]) for bad in kept["quarantined"])
    if "skipped" in kept:
        kept["skipped"] = True
    kept["views"] = {view: {**figures, "clients": _each(figures["clients"])} for view, figures in kept["views"].items()}
    found: dict[str, Any] = _short(kept)
    return found


def _each(clients: Mapping[str, Any]) -> list[Any]:
    """The figures of each client in one list, which takes less room than one for each kind."""
    return [clients[name] for name in sorted(clients)]


def _setting(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What the run was made of, as far as it is numbers."""
    return {
        "train_sizes": _short(meta["clients"]["train_sizes"]),
        "test_sizes": _short(meta["clients"]["test_sizes"]),
        "class_counts": _short(meta["clients"]["class_counts"]),
        "outputs": meta["model"]["outputs"],
        "parameters": meta["model"]["parameters"],
        "flops_per_sample": meta["model"]["flops_per_sample"],
        "networks": _short([[part["parameters"], part["clients"]] for part in meta["models"]]),
        "digests": {name: value[:DIGITS] for name, value in meta["digests"].items()},
        "stopped_by": meta["stopped_by"],
    }


def flat(numbers: Any, path: str = "") -> dict[str, Any]:
    """Numbers by their names, such as `records/round 1/views/aca/amp`."""
    if not isinstance(numbers, Mapping):
        return {path: numbers}
    found: dict[str, Any] = {}
    for key, value in numbers.items():
        found |= flat(value, f"{path}/{key}" if path else str(key))
    return found


def differing(frozen: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Which of the flat numbers are not the same, one line for each."""
    missing = object()
    both = [(name, frozen.get(name, missing), found.get(name, missing)) for name in sorted(frozen.keys() | found)]
    return [
        f"{name}: {'not frozen' if a is missing else a!r} -> {'not found' if b is missing else b!r}"
        for name, a, b in both
        if a is missing or b is missing or repr(a) != repr(b)
    ]


def machine() -> dict[str, str]:
    """What the bits of torch's own arithmetic depend on, with a digest of some of it that involves no fedalloy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2), nn.Flatten()),
        *(nn.Linear(54, 16), nn.Tanh(), nn.Linear(16, 10), nn.LogSoftmax(dim=1)),
    )
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=draw) / 4)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(5):
        optimiser.zero_grad()
        x, y = torch.randn(13, 1, 8, 8, generator=draw), torch.randint(0, 10, (13,), generator=draw)
        nn.functional.nll_loss(net(x), y).backward()
        optimiser.step()
    torch.set_num_threads(before)
    return {"torch": torch.__version__, "arithmetic": digest(_leaves(dict(net.state_dict())))}


def load() -> dict[str, Any]:
    """What was frozen."""
    found: dict[str, Any] = json.loads(NUMBERS.read_text())
    return found


def save(frozen: Mapping[str, Any]) -> None:
    """Write it, a line for each case."""
    cases = ",\n".join(json.dumps(case, separators=(",", ":")) for case in frozen["cases"])
    NUMBERS.write_text(f'{{"machine":{json.dumps(frozen["machine"])},\n"cases":[\n{cases}\n]}}\n')


def write(say: Callable[[str], object] = sys.stdout.write) -> None:
    """Freeze all cases anew."""
    from cases import all_cases

    done = []
    begin = time.perf_counter()
    for case in all_cases():
        start = time.perf_counter()
        try:
            done.append({**case, "numbers": run_case(case["experiment"])})
        except FedalloyError as error:
            say(f"refused: {case['id']}: {error}\n")
            done.append({**case, "refused": True})
        if (seconds := time.perf_counter() - start) > 1:
            say(f"slow: {case['id']}: {seconds:.1f} s\n")
    save({"machine": machine(), "cases": done})
    say(f"{len(done)} cases in {time.perf_counter() - begin:.0f} s, {NUMBERS.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    write()
