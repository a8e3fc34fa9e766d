"""Every program behind a target of the Makefile can be imported, and runs in a form of seconds where it can."""

from __future__ import annotations

import importlib.util
import io
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedalloy.engine.serial import Serial

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROGRAMS = sorted(set(re.findall(r"(?:bench|chaos|tools)/\w+\.py", MAKEFILE)) | {"tools/make_docs.py"})


def program(path: str) -> ModuleType:
    """A program as Python has it that was told to run it, except that it does not begin."""
    folder = str((ROOT / path).parent)
    spec = importlib.util.spec_from_file_location(f"program_{path.replace('/', '_')[:-3]}", ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    return module


@pytest.fixture(autouse=True)
def no_names_left_behind() -> Iterator[None]:
    """Two folders have a `flower.py`: what a program has imported beside itself is not for the next one."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if Path(file).parent in (ROOT / "bench", ROOT / "bench" / "peers", ROOT / "chaos", ROOT / "tools"):
            del sys.modules[name]


@pytest.mark.parametrize("path", PROGRAMS)
def test_every_program_can_be_imported(path: str) -> None:
    if "flower" in path or "deployment" in path:
        pytest.importorskip("ray")
    program(path)


@pytest.mark.parametrize("path", ["bench/peers/flower_run.py", "bench/peers/pfl_run.py"])
def test_the_peers_programs_can_be_imported(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stub(ModuleType):  # the peers are installed where they are measured, and not here
        __path__: list[str] = []  # noqa: RUF012

        def __getattr__(self, name: str) -> Any:
            return type(name, (), {"train": lambda *_: lambda f: f, "main": lambda *_: lambda f: f})

    text = (ROOT / path).read_text(encoding="utf-8")
    for name in re.findall(r"^(?:from|import) ((?:pfl|flwr|ray)\b[\w.]*)", text, re.MULTILINE):
        monkeypatch.setitem(sys.modules, name, Stub(name))
    program(path)


# --- a form of seconds ------------------------------------------------------------------------------------------------


@contextmanager
def one_process(setting: Any, **_: object) -> Iterator[Serial]:
    """In the place of the pool, whose processes take longer to start than all the rest."""
    yield Serial(setting)


class Idle:
    """In the place of `Gemm`, which starts processes too."""

    def __enter__(self) -> Idle:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def scaling(self) -> float:
        return 1.0


def small(module: ModuleType, **changes: Any) -> Any:
    shape = {"samples": 16, "clients": 4, "active": 2, "epochs": 1, "batch": 8, **changes}
    return module.Workload("small", "lenet5", 1, 28, **shape)


def engine(module: ModuleType, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(module, "QUICK", (small(module),))
    patch.setattr(module, "QUICK_PASSES", 2)
    assert module.main(["--quick"]) in (0, 1)  # 1: what it measures on so small a task says nothing


def batched(module: ModuleType, patch: pytest.MonkeyPatch) -> None:
    from fedalloy.methods import Local

    patch.setattr(module, "WORKLOADS", {"small": small(module, active=4, method=Local(second_phase=1))})
    patch.setattr(module, "PASSES", 2)
    module.main()


def methods(module: ModuleType, patch: pytest.MonkeyPatch) -> None:
    for name, value in (("CLIENTS", 4), ("SAMPLES", 8), ("PUBLIC", 10), ("STEPS", 1)):
        patch.setattr(module, name, value)
    patch.setattr(sys, "argv", ["methods.py", "--only", "fedavg,knfu", "--passes", "2"])
    module.main()


def growth(module: ModuleType, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sys, "stdin", io.StringIO("round\n"))
    patch.setattr(module, "EACH", 8)
    assert module.main(["--serve", "10", "serial"]) == 0

    class Federation:
        start, rounds = 0.1, [{"seconds": 0.5, "memory": 1.0, "worker": 1.0}] * 4

        def __init__(self, *_: object) -> None:
            pass

        def round(self) -> None:
            pass

        def close(self) -> None:
            pass

    patch.setattr(module, "Federation", Federation)
    assert module.main([]) == 0


def peers(module: ModuleType, patch: pytest.MonkeyPatch, home: Path) -> None:
    for name, value in (("HOME", home), ("PEERS", ()), ("TARGETS", {}), ("ROUNDS", {"small": 1}), ("PASSES", 2)):
        patch.setattr(module, name, value)
    module.measure([small(module)])


def memory(module: ModuleType, patch: pytest.MonkeyPatch, folder: Path) -> None:
    sys.stdout.writelines(f"{module.largest(side, 2, 0, folder)}\n" for side in ("clean", "hostile"))


FORMS: dict[str, Callable[..., None]] = {
    "chaos/memory.py": memory,
    "bench/engine.py": engine,
    "bench/batched.py": batched,
    "bench/methods.py": methods,
    "bench/growth.py": growth,
    "bench/peers.py": peers,
}
ELSEWHERE = {  # the tests that run them
    "bench/round_cost.py": "test_round_cost.py",
    "bench/dafkd.py": "test_dafkd_cost.py",
    "bench/distillation.py": "test_distillation_cost.py",
    **{path: "test_chaos.py" for path in PROGRAMS if path.startswith("chaos/")},
    "tools/make_docs.py": "test_docs.py",
    "tools/campaign.py": "reproduce/test_campaign.py",
}
IMPORTED_ONLY = {
    "bench/flower.py": "Ray takes half a minute to start",
    "bench/deployment.py": "so does a SuperLink with its sites",
    "chaos/flower.py": "and here one is killed again and again",
    "chaos/hosts.py": "tests/deploy/test_hosts.py runs a part of it",
}


@pytest.mark.parametrize("path", FORMS)
def test_it_runs_in_a_form_of_seconds(
    path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = program(path)
    for name, instead in (("Pool", one_process), ("Gemm", Idle)):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, instead)
    given = [tmp_path] if FORMS[path] in (peers, memory) else []
    FORMS[path](module, monkeypatch, *given)
    assert capsys.readouterr().out


def test_no_program_is_forgotten() -> None:
    assert set(PROGRAMS) == FORMS.keys() | ELSEWHERE.keys() | IMPORTED_ONLY.keys()
    for path, test in ELSEWHERE.items():
        if path not in IMPORTED_ONLY:
            name = Path(path).stem
            assert re.search(rf'"{name}"|\b{name}\b', (ROOT / "tests" / test).read_text(encoding="utf-8")), path
