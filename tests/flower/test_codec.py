"""Trees come back from Flower's records as they were, in as many bytes as the ledger counts; nothing else comes in."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given, settings
from hypothesis import strategies as st
from local_grid import through_bytes

from fedalloy.base import tree
from fedalloy.engine.flower.codec import BODY, HEADER, KIND, array, from_records, to_records
from fedalloy.errors import DataError
from fedalloy.federation.gate import Room
from fedalloy.train.costs import Ledger

ROOM = Room(1 << 20, 1 << 20)
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
tensors = st.builds(
    lambda shape, dtype, seed: (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype),
    shapes,
    st.sampled_from(list(tree.DTYPES)),
    st.integers(0, 9),
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/"), min_size=1, max_size=6).filter(
    lambda key: key != "__metadata__"
)
leaves = tensors | st.integers(-(2**63), 2**63 - 1) | st.floats() | texts
trees = st.dictionaries(keys, st.recursive(leaves, lambda inner: st.dictionaries(keys, inner, max_size=3)), max_size=4)


def travelled(records):
    return through_bytes(Message(records, 7, "train.act")).content


@settings(max_examples=60)
@given(trees)
def test_any_tree_comes_back_as_it_was(body):
    sent = to_records(body, {"round": 3, "client": 1, "text": "é", "seconds": 0.5})
    header, found = from_records(travelled(sent), ROOM)
    assert header == {"round": 3, "client": 1, "text": "é", "seconds": 0.5}
    assert tree.encode(found) == tree.encode(body)


@settings(max_examples=40)
@given(trees)
def test_a_tree_has_the_bytes_that_the_ledger_counts(body):
    ledger = Ledger()
    ledger.sent(body)
    record = to_records(body, {}).get(BODY)
    assert (0 if record is None else len(record[BODY].data)) == sum(ledger.down.values())


def test_a_bfloat16_weight_and_a_nan_keep_their_bits():
    body = {"w": torch.tensor([1.5, float("nan")], dtype=torch.bfloat16)}
    found = from_records(travelled(to_records(body, {})), ROOM)[1]
    assert torch.equal(found["w"].view(torch.int16), body["w"].view(torch.int16))


def pickled():
    return Array("object", (1,), "numpy.ndarray", b"\x93NUMPY\x01\x00v\x00" + b"cos\nsystem\n(S'true'\ntR.")


def body_of(*arrays):
    return ArrayRecord({f"{BODY}{'' if k == 0 else k}": one for k, one in enumerate(arrays)})


GOOD = array({"n": 3})
HOSTILE = {
    "nothing at all": RecordDict(),
    "no header": RecordDict({BODY: body_of(GOOD)}),
    "a header of another kind": RecordDict({HEADER: MetricRecord({"n": 1})}),
    "another record": RecordDict({HEADER: ConfigRecord(), "more": ConfigRecord()}),
    "an array of Flower's own": RecordDict({HEADER: ConfigRecord(), BODY: body_of(Array(np.ones(3)))}),
    "a pickled array": RecordDict({HEADER: ConfigRecord(), BODY: body_of(pickled())}),
    "two trees": RecordDict({HEADER: ConfigRecord(), BODY: body_of(GOOD, GOOD)}),
    "no tree": RecordDict({HEADER: ConfigRecord(), BODY: ArrayRecord()}),
    "a body that is no array": RecordDict({HEADER: ConfigRecord(), BODY: ConfigRecord({"n": 1})}),
    "another shape": RecordDict({HEADER: ConfigRecord(), BODY: body_of(Array("uint8", (3,), KIND, GOOD.data))}),
    "another dtype": RecordDict({HEADER: ConfigRecord(), BODY: body_of(Array("int8", GOOD.shape, KIND, GOOD.data))}),
    "a torn tree": to_records(Array("uint8", (40,), KIND, GOOD.data[:40]), {}),
    "noise": to_records(Array("uint8", (64,), KIND, bytes(range(64))), {}),
    "a huge header": to_records(Array("uint8", (16,), KIND, b"\xff" * 8 + b"{" * 8), {}),
    "too large": to_records(Array("uint8", (2000,), KIND, bytes(2000)), {}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_message_is_refused(name):
    with pytest.raises(DataError):
        from_records(travelled(HOSTILE[name]), Room(1000, 200))


def test_nothing_too_large_is_read(monkeypatch):
    """Neither names nor numbers are looked at where there are too many bytes of them."""
    names, numbers = to_records(dict.fromkeys(map(str, range(50)), 0), {}), to_records({"w": torch.zeros(300)}, {})
    monkeypatch.setattr("json.loads", lambda _: pytest.fail("the header was read"))
    with pytest.raises(DataError, match=r"tree.* 1,\d\d\d bytes.* 1,000 "):
        from_records(numbers, Room(1000, 200))
    with pytest.raises(DataError, match=r"names and shapes.* \d\d\d bytes.* 200 "):
        from_records(names, Room(1000, 200))
    with pytest.raises(DataError, match=r"header.* 101 .* 100 "):
        from_records(to_records({}, {"ledger": "x" * 101}), Room(1000, 200), longest=100)


def test_shared_bodies_are_written_once():
    from fedalloy.engine.flower.carrier import _Bodies

    bodies, weights = _Bodies(), {"w": torch.ones(3)}
    assert bodies.array({"model": weights}) is bodies.array({"model": weights})
    assert bodies.array({"model": weights}) is not bodies.array({"model": tree.clone(weights)})
    assert bodies.array({"model": weights, "n": 1}) is not bodies.array({"model": weights})
    assert bodies.array({"model": {}}) is not None
    assert bodies.array({}) is None
