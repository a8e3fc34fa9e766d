"""A Grid in this process: real Flower messages, written to bytes and read again, carried out when they are pulled."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import uuid4

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Fault = Callable[[int, Message], Message | None]
"""Changes, for the client of this id, the answer on its way; None: there is none."""


def through_bytes(message: Message) -> Message:
    return message_from_proto(ProtoMessage.FromString(message_to_proto(message).SerializeToString()))


class LocalGrid(Grid):
    """`clients` nodes with arbitrary ids; `faults` change answers, and `before` may stop a message."""

    def __init__(self, app: ClientApp, clients: int, fault: Fault | None = None) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.app, self.fault = app, fault
        self.nodes = {1000 + 7 * k: k for k in reversed(range(clients))}  # node -> client
        self.clients = clients
        self.mail: dict[str, Message] = {}
        self.sent: list[Message] = []
        self.received: list[Message] = []
        self.stray: list[Message] = []

    def rename(self, client: int) -> None:
        """The client's node comes back under another id."""
        old = next(node for node, k in self.nodes.items() if k == client)
        del self.nodes[old]
        self.nodes[old + 50_000] = client

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            if message.metadata.dst_node_id not in self.nodes:
                continue
            message.metadata.__dict__["_message_id"] = str(uuid4())
            self.mail[message.metadata.message_id] = through_bytes(message)
            self.sent.append(message)
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        out, self.stray = list(self.stray), []
        for identifier in message_ids:
            message = self.mail.get(identifier)
            if message is None:
                continue
            client = self.nodes.get(message.metadata.dst_node_id)
            if client is None:
                continue
            context = Context(
                run_id=1,
                node_id=message.metadata.dst_node_id,
                node_config={"partition-id": client, "num-partitions": self.clients},
                state=RecordDict(),
                run_config={},
            )
            del self.mail[identifier]
            answer: Message | None = self.app(message, context)
            if self.fault is not None:
                answer = self.fault(client, answer)
            if answer is not None:
                self.received.append(answer)
                out.append(through_bytes(answer))
        return out

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError
