"""Trees: what goes in comes out bit for bit, and bytes that are no tree are refused in one way only."""

import json
import math
import random
import struct

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedalloy.base import tree
from fedalloy.errors import DataError, UsageError

DTYPES = list(tree.DTYPES)


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    n = math.prod(shape)
    if dtype == torch.bool:
        return torch.tensor(draw(st.lists(st.booleans(), min_size=n, max_size=n)), dtype=dtype).reshape(shape)
    # Raw bits reach every value: NaN with any payload, infinities, subnormal and negative zeros.
    size = n * dtype.itemsize
    bits = draw(st.binary(min_size=size, max_size=size))
    return torch.tensor(list(bits), dtype=torch.uint8).view(dtype).reshape(shape)


keys = st.text(min_size=1, max_size=5).filter(lambda key: "/" not in key and key != "__metadata__")
scalars = st.integers() | st.floats() | st.text(max_size=8)
trees = st.recursive(
    st.dictionaries(keys, tensors() | scalars, max_size=3),
    lambda inner: st.dictionaries(keys, inner | tensors() | scalars, max_size=3),
    max_leaves=8,
)


def same(a, b):
    """Equality by structure and bits, which does not use what is tested."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, torch.Tensor):
        alike = isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape
        return alike and a.reshape(-1).view(torch.uint8).tolist() == b.reshape(-1).view(torch.uint8).tolist()
    return type(a) is type(b) and (a == b or (a != a and b != b))


def backwards(body):
    return {k: backwards(v) if isinstance(v, dict) else v for k, v in reversed(body.items())}


@given(trees)
@settings(max_examples=120)
def test_a_tree_comes_back_bit_for_bit(body):
    tree.check(body)
    data = tree.encode(body)
    assert same(tree.decode(data), body)
    assert tree.encode(tree.decode(data)) == data


@given(trees)
@settings(max_examples=60)
def test_a_digest_sees_bits_and_not_the_order_of_keys(body):
    assert tree.digest(backwards(body)) == tree.digest(body)
    assert tree.equal(tree.clone(body), body)
    assert tree.digest({**body, "one more": 0}) != tree.digest(body)


@given(trees)
@settings(max_examples=60)
def test_framing_and_payload_are_all_there_is(body):
    payload = sum(tree.leaf_bytes(leaf) for _, leaf in tree.leaves(body))
    assert tree.framing_bytes(body) + payload == (len(tree.encode(body)) if body else 0)


@given(trees)
@settings(max_examples=60)
def test_safetensors_itself_reads_what_is_written(body):
    found = safetensors.torch.load(tree.encode(body))
    written = {path: leaf for path, leaf in tree.leaves(body) if isinstance(leaf, torch.Tensor)}
    assert same(found, written)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"a": {}},
        {"a": {"b": {}, "c": {"d": {}}}},
        {"zero": torch.tensor(1.5), "none": torch.zeros(0, 3), "half": torch.ones(2, dtype=torch.bfloat16)},
        {"nan": math.nan, "inf": -math.inf, "minus": -0.0, "one": 1.0, "int": 1, "big": 2**80},
        {"mixed": {"flag": torch.tensor([True, False]), "wide": torch.ones(3, dtype=torch.float64)}},
        {"Zürich": "grüezi", "名前": {"鍵": "値"}, 'quote"\\': "\n\0"},
        {"sub.key": {"w": 1}, "sub": {"w": 2}, "sub-key": 3},
    ],
)
def test_corner_cases_come_back(body):
    back = tree.decode(tree.encode(body))
    assert same(back, body)
    assert math.copysign(1, back.get("minus", -0.0)) == -1


def test_views_and_transposes_are_written_by_value():
    grid = torch.arange(6).reshape(2, 3)
    assert tree.decode(tree.encode({"t": grid.T, "column": grid[:, 1]}))["t"].tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": 1.0}),
        ({"a": 0.0}, {"a": -0.0}),
        ({"a": "1"}, {"a": 1}),
        ({"a": {}}, {}),
        ({"a": torch.zeros(2, 3)}, {"a": torch.zeros(3, 2)}),
        ({"a": torch.zeros(2)}, {"a": torch.zeros(2, dtype=torch.int32)}),
        ({"a": torch.zeros(1)}, {"a": torch.zeros(())}),
        ({"a": {"b": 1}}, {"a": 1, "b": 1}),
    ],
)
def test_what_is_not_the_same_has_another_digest(one, other):
    assert not tree.equal(one, other)


def test_a_clone_shares_no_memory():
    body = {"m": {"w": torch.zeros(2)}}
    copy = tree.clone(body)
    copy["m"]["w"].add_(1)
    assert body["m"]["w"].tolist() == [0, 0]


def test_payload_by_hand():
    assert tree.leaf_bytes(torch.zeros(3, 5, dtype=torch.bfloat16)) == 30
    assert tree.leaf_bytes(torch.zeros(())) == 4
    assert tree.leaf_bytes(torch.zeros(0, 7)) == 0
    assert tree.leaf_bytes("grüezi") == 7
    assert tree.leaf_bytes(2**80) == tree.leaf_bytes(0.5) == 8


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({3: 1}, "body: key 3 must be a non-empty string without '/'"),
        ({"a": {"": 1}}, "body/a: key '' must be a non-empty string without '/'"),
        ({"a/b": 1}, "body: key 'a/b' must be a non-empty string without '/'"),
        ({"__metadata__": 1}, "body: the key '__metadata__' "),
        ({"a": [1]}, "body/a: a value of type list "),
        ({"a": {"b": None}}, "body/a/b: a value of type NoneType "),
        ({"a": True}, "body/a: a value of type bool "),
        ({"w": torch.zeros(1, dtype=torch.complex64)}, "body/w: torch.complex64 "),
        ({"w": torch.zeros(1, requires_grad=True)}, "body/w: a tensor that requires a gradient "),
    ],
)
def test_what_cannot_travel_is_refused_with_its_place(body, sentence):
    with pytest.raises(UsageError) as refusal:
        tree.check(body, "body")
    assert str(refusal.value).startswith(sentence)


# --- hostile bytes ----------------------------------------------------------------------------------------------------


def file(header, payload=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + payload


def leaves(text):
    return file({"__metadata__": {"leaves": text}})


def decodes_or_refuses(data):
    """Whatever the bytes are, the answer is a tree or a DataError; any other exception fails the test."""
    try:
        found = tree.decode(data)
    except DataError:
        return False
    tree.check(found)
    return True


WHOLE = tree.encode({"model": {"w": torch.arange(4.0), "n": torch.tensor([True])}, "n": 3, "name": "ü", "empty": {}})


@given(st.binary(max_size=200))
@settings(max_examples=500)
def test_random_bytes(data):
    decodes_or_refuses(data)


@given(st.binary(max_size=100))
@settings(max_examples=300)
def test_a_random_header_of_the_right_length(header):
    decodes_or_refuses(file(header))


small_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(small_json)
@settings(max_examples=150)
def test_random_json(value):
    decodes_or_refuses(file(value))
    decodes_or_refuses(leaves(json.dumps(value)))


def test_truncated_bytes_are_refused():
    assert decodes_or_refuses(WHOLE)
    assert not any(decodes_or_refuses(WHOLE[:end]) for end in range(len(WHOLE)))
    assert not decodes_or_refuses(WHOLE + b"\0")


def test_flipped_bits():
    for position in range(8 * len(WHOLE)):
        data = bytearray(WHOLE)
        data[position // 8] ^= 1 << position % 8
        decodes_or_refuses(bytes(data))


def test_scattered_bytes():
    stream = random.Random(0)
    for _ in range(3000):
        data = bytearray(WHOLE)
        for _ in range(stream.randint(1, 6)):
            data[stream.randrange(len(data))] = stream.randrange(256)
        decodes_or_refuses(bytes(data))


@pytest.mark.parametrize("text", ["[1]", "5", "null", '{"a": null}', '{"a": [1]}', '{"a": true}', '{"": 1}'])
def test_leaves_that_are_no_leaves_are_refused(text):
    with pytest.raises(DataError, match="not a tree"):
        tree.decode(leaves(text))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        file(b"[" * 100_000),
        leaves("[" * 100_000),
        leaves(json.dumps({"a/" * 50_000 + "b": 1})),
        leaves('{"a": 1, "a/b": 2}'),
        leaves('{"a": ' + "9" * 5000 + "}"),
        file({"x": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}, b"\0"),
        file({"x": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}}, b"\0"),
        file({"x": {"dtype": "C64", "shape": [1], "data_offsets": [0, 8]}}, b"\0" * 8),
        file({"x": {"dtype": "F32", "shape": [2**62], "data_offsets": [0, 4]}}, b"\0" * 4),
    ],
    ids=lambda data: f"{len(data)} bytes",
)
def test_hostile_bytes_are_refused(data):
    with pytest.raises(DataError):
        tree.decode(data)
