"""What a hostile site makes of an honest answer on its way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import Error, Message

from fedalloy.engine.flower.codec import from_records, to_records
from fedalloy.federation.gate import Room


def changed(answer: Message, change: Callable[[dict[str, Any], Any], Any]) -> Message:
    """An answer whose header and tree are what `change` makes of them: both, whole records, or an error."""
    made = change(*from_records(answer.content, Room(1 << 30, 1 << 20)))
    content = to_records(made[1], made[0]) if isinstance(made, tuple) else made
    message = Message.__new__(Message)
    parts = ("_error", "_content") if isinstance(content, Error) else ("_content", "_error")
    message.__dict__.update({"_metadata": answer.metadata, parts[0]: content, parts[1]: None})
    return message
