"""Whatever client code raises is one line with the client, the action and the place, the same on every engine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedalloy.base.plugins import LONGEST, PREFIX, blamed, named
from fedalloy.check.probe import small_settings
from fedalloy.cli.ending import WHOLE
from fedalloy.cli.main import main
from fedalloy.config import build as build_module
from fedalloy.data import load_data
from fedalloy.engine.serial import Serial
from fedalloy.errors import DataError, FedalloyError, Signalled
from fedalloy.federation import core
from fedalloy.federation.core import Client, Message, Reply, action
from fedalloy.methods import FedAvg

WORDS = ("data=tiny", "model=mlp", "model.hidden=[4]", "partition=iid", "partition.clients=3", "rounds=1")

PLUGIN = '''
from fedalloy import Card, FedAvg, action, method
from fedalloy.errors import DataError
from fedalloy.federation.quorum import QuorumError


class Mute(Exception):
    def __str__(self):
        raise SystemExit(5)


class Base(BaseException):
    pass


class Unnotable(Exception):
    def add_note(self, note):
        raise ValueError("no")


@method("strange", label="Strange", card=Card(paper="none", up="model, n", down="model"))
class Strange(FedAvg):
    """Fails at one client."""

    @action
    def train(self, me, msg):
        if me.id == 1:
            raise RAISED
        return super().train(me, msg)


@method("strange-server", label="Strange", card=Card(paper="none", up="model, n", down="model"))
class StrangeServer(FedAvg):
    """Fails at the server."""

    def aggregate(self, s, replies, fed):
        raise RAISED
'''
LINE = PLUGIN.splitlines().index("            raise RAISED") + 1
SERVER = PLUGIN.splitlines().index("        raise RAISED") + 1
ODD = "RuntimeError: it raised "

STRANGE = {
    "SystemExit(9)": f"{ODD}SystemExit: 9",
    "SystemExit(0)": f"{ODD}SystemExit: 0",
    "GeneratorExit()": f"{ODD}GeneratorExit",
    "KeyboardInterrupt()": f"{ODD}KeyboardInterrupt",
    "Base('odd')": f"{ODD}Base: odd",
    "QuorumError('all gone')": f"{ODD}QuorumError: all gone",
    "StopIteration(3)": f"{ODD}StopIteration: 3",
    "Mute()": "Mute",
    "Unnotable('x')": "Unnotable: x",
    "ValueError('line\\n' * 3000)": "ValueError: " + ("line " * 3000)[: LONGEST - 3] + "...",
    "ValueError('\\x1b[2Jgone\\u202e \\ud800')": "ValueError: ?[2Jgone? ?",
    "OSError(28, 'No space left on device')": "OSError: [Errno 28] No space left on device",
    "RecursionError('deep')": "RecursionError: deep",
    "MemoryError()": "MemoryError",
    "BrokenPipeError(32, 'Broken pipe')": f"{ODD}BrokenPipeError: [Errno 32] Broken pipe",
    "EOFError()": f"{ODD}EOFError",
}
Command = Callable[..., tuple[int, str]]


@pytest.fixture(autouse=True, scope="module")
def read_once() -> Iterator[None]:
    """Unpacking the built-in data takes longer than a round on it."""
    data = load_data("tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "load_data", lambda *_, **__: data)
        yield


@pytest.fixture
def failing(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Command]:
    """Run a method one of whose clients raises this; returns the exit code and what was said on stderr."""
    monkeypatch.chdir(tmp_path)
    before = dict(core.methods._things)  # type: ignore[attr-defined]

    def call(raised: str, engine: str, *words: str, method: str = "strange") -> tuple[int, str]:
        (tmp_path / "odd.py").write_text(PLUGIN.replace("RAISED", raised))
        with pytest.raises(SystemExit) as left:
            main([*words, "run", *WORDS, f"method={method}", "--plugin", "odd.py", f"engine={engine}", "workers=1"])
        code = left.value.code
        assert isinstance(code, int)
        return code, capfd.readouterr().err

    yield call
    monkeypatch.setattr(core.methods, "_things", before)
    for name in [name for name in sys.modules if name.startswith(PREFIX)]:
        del sys.modules[name]


@pytest.mark.parametrize("engine", ["serial", "threads"])
@pytest.mark.parametrize("raised", STRANGE)
def test_whatever_client_code_raises_is_one_line(failing: Command, raised: str, engine: str) -> None:
    where = f"(client 1, action 'train'); {WHOLE}"
    assert failing(raised, engine) == (1, f"fedalloy: odd.py, line {LINE}: {STRANGE[raised]} {where}\n")


@pytest.mark.parametrize(
    "raised", ["SystemExit(9)", "KeyboardInterrupt()", "Mute()", "ValueError('\\x1b[2Jgone\\u202e \\ud800')"]
)
def test_a_worker_tells_the_same(failing: Command, raised: str) -> None:
    where = f"(client 1, action 'train'); {WHOLE}"
    assert failing(raised, "pool") == (1, f"fedalloy: odd.py, line {LINE}: {STRANGE[raised]} {where}\n")


@pytest.mark.parametrize(
    ("raised", "told"),
    [("SystemExit(9)", "SystemExit: 9"), ("KeyboardInterrupt()", "KeyboardInterrupt"), ("EOFError()", "EOFError")],
)
def test_what_ends_programs_does_not_at_the_server_either(failing: Command, raised: str, told: str) -> None:
    code, said = failing(raised, "serial", method="strange-server")
    assert (code, said.strip()) == (1, f"fedalloy: odd.py, line {SERVER}: {told}; {WHOLE}")


@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_debug_shows_the_whole_trace_and_no_escape_codes(failing: Command, engine: str) -> None:
    code, said = failing("ValueError('\\x1b[2Jgone')", engine, "--debug")
    assert code == 1
    assert f'odd.py", line {LINE}, in train' in said
    assert "\x1b" not in said


@pytest.mark.parametrize("engine", ["serial", "threads", "pool"])
def test_a_refusal_of_ours_in_client_code_keeps_its_sentence_and_code(failing: Command, engine: str) -> None:
    assert failing("DataError('no such thing')", engine) == (DataError.code, "fedalloy: no such thing\n")


class Broken(FedAvg):
    """A method that is nobody's plug-in."""

    @action
    def train(self, me: Client, msg: Message) -> Reply:
        raise Signalled(2)


def test_a_signal_that_meets_a_client_is_not_its_fault() -> None:
    engine = Serial(small_settings()[0])
    with pytest.raises(Signalled):
        engine.open(Broken(), 1).ask("train", [0])


def test_an_error_in_no_file_of_the_users_is_told_with_its_client() -> None:
    error = KeyError("model")
    assert blamed(error) is None
    error.add_note("client 0, action 'train'")
    assert blamed(error) == "client 0, action 'train': KeyError: 'model'"


def test_the_name_of_an_error_is_short_and_has_no_empty_colon() -> None:
    assert named(ValueError()) == "ValueError"
    assert named(FedalloyError("a\n\tb")) == "FedalloyError: a b"
    assert len(named(ValueError("x" * 10**6))) == len("ValueError: ") + LONGEST
