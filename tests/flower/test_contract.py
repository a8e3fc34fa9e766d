"""What of Flower is used: it changes monthly, and a change of one of these names must be seen here first."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from importlib.metadata import version

import pytest

from fedalloy.errors import UsageError

NAMES = {
    "flwr.app": ["Array", "ArrayRecord", "ConfigRecord", "Context", "Message", "RecordDict"],
    "flwr.clientapp": ["ClientApp"],
    "flwr.serverapp": ["Grid", "ServerApp"],
    "flwr.simulation": ["run_simulation"],
}


def test_the_version_is_the_one_that_was_tried():
    assert version("flwr").startswith("1.41.")


@pytest.mark.parametrize("module", NAMES)
def test_the_names_are_where_they_were(module):
    found = importlib.import_module(module)
    assert [name for name in NAMES[module] if not hasattr(found, name)] == []


def test_the_grid_asks_for_what_we_use():
    from flwr.serverapp import Grid

    assert {"get_node_ids", "push_messages", "pull_messages"} <= Grid.__abstractmethods__
    assert list(inspect.signature(Grid.pull_messages).parameters) == ["self", "message_ids"]


def test_the_parts_of_messages_are_as_they_were():
    from flwr.app import Array, Error
    from flwr.app.metadata import Metadata
    from flwr.clientapp import ClientApp
    from flwr.common.constant import PARTITION_ID_KEY, ErrorCode
    from flwr.simulation import run_simulation

    from fedalloy.engine.flower.roster import WHY
    from fedalloy.engine.flower.simulation import PARTITION

    assert Array("uint8", (2,), "safetensors", b"ab").data == b"ab"
    assert Error(code=5, reason="x").code == ErrorCode.NODE_UNAVAILABLE
    codes = ("MESSAGE_UNAVAILABLE", "REPLY_MESSAGE_UNAVAILABLE", "NODE_UNAVAILABLE", "CLIENT_APP_CRASHED")
    assert [getattr(ErrorCode, name) for name in codes] == list(WHY)
    assert PARTITION == PARTITION_ID_KEY
    assert all(hasattr(Metadata, name) for name in ("message_id", "reply_to_message_id", "dst_node_id"))
    assert all(callable(getattr(ClientApp, kind)) for kind in ("train", "evaluate", "query"))
    wanted = ["server_app", "client_app", "num_supernodes", "backend_name", "backend_config"]
    assert list(inspect.signature(run_simulation).parameters)[:5] == wanted


def test_the_rest_of_the_library_does_not_import_flower():
    code = (
        "import sys, fedalloy, fedalloy.cli.main, fedalloy.run.runner, fedalloy.methods;"
        "sys.exit(any(name in sys.modules for name in ('flwr', 'ray')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_flower_there_is_a_sentence(monkeypatch):
    import fedalloy.engine.flower as package

    monkeypatch.setitem(sys.modules, "flwr", None)
    with pytest.raises(UsageError, match=r"pip install .*\[flower\]"):
        importlib.reload(package)
