"""Malformed replies: what a broken or hostile client may send instead of an honest answer."""

from __future__ import annotations

import numpy as np
import torch
from spoil import (
    INF,
    NAN,
    NO_PLACE,
    Kind,
    Trap,
    Unspeakable,
    as_type,
    below_one_negative,
    cyclic,
    has_rows,
    is_distributions,
    is_float,
    nested,
    network,
    one,
    renamed,
    table,
    tensor,
    top,
    under,
    without_one,
)
from torch import nn

from fedalloy.train.privacy import LEDGER

FLOOD = {f"name {i}": 0 for i in range(100_000)}
LONG = "k" * 1_000_000

KINDS: dict[str, Kind] = {
    # Not a number.
    "one NaN": tensor(one(NAN), is_float),
    "all NaN": tensor(lambda t: torch.full_like(t, NAN), is_float),
    "one infinity": tensor(one(INF), is_float),
    "one negative infinity": tensor(one(-INF), is_float),
    "all infinite": tensor(lambda t: torch.full_like(t, INF), is_float),
    # Finite poison: valid numbers that would ruin the model.
    "a negative variance": network(
        lambda name, t: torch.full_like(t, -5.0) if name.endswith("running_var") else t,
        lambda name: name.endswith("running_var"),
    ),
    "a negative number of batches": network(
        lambda name, t: torch.full_like(t, -1) if name.endswith("num_batches_tracked") else t,
        lambda name: name.endswith("num_batches_tracked"),
    ),
    "a number of batches that nobody reaches": network(
        lambda name, t: torch.full_like(t, 1 << 62) if name.endswith("num_batches_tracked") else t,
        lambda name: name.endswith("num_batches_tracked"),
    ),
    "a network of 1e20": network(lambda _, t: torch.full_like(t, 1e20) if is_float(t) else t),
    "a network of 3e38": network(lambda _, t: torch.full_like(t, 3e38) if is_float(t) else t),
    "a network times 1e6": network(lambda _, t: t * 1e6 if is_float(t) else t),
    "a network turned round, times 1e4": network(lambda _, t: t * -1e4 if is_float(t) else t),
    # Shapes that are wrong, broadcast or too large.
    "(1,) instead": tensor(lambda t: t.new_ones(1), lambda t: t.shape != (1,)),
    "a scalar instead": tensor(lambda t: t.new_ones(()), lambda t: t.dim() > 0),
    "one axis more": tensor(lambda t: t.unsqueeze(0)),
    "one axis more behind": tensor(lambda t: t.unsqueeze(-1)),
    "flat": tensor(lambda t: t.reshape(-1), lambda t: t.dim() != 1),
    "transposed": tensor(lambda t: t.transpose(0, 1), lambda t: t.dim() > 1 and t.shape[0] != t.shape[1]),
    "a row more": tensor(lambda t: torch.cat([t, t[:1]]), has_rows),
    "a row less": tensor(lambda t: t[1:], has_rows),
    "no rows": tensor(lambda t: t[:0], has_rows),
    "a column more": tensor(lambda t: torch.cat([t, t[:, :1]], 1), lambda t: t.dim() > 1),
    "a column less": tensor(lambda t: t[:, 1:], lambda t: t.dim() > 1),
    "2^40 rows": tensor(lambda t: t.new_ones(1).expand(1 << 40)),
    "2^40 rows of the right width": tensor(lambda t: t[:1].expand(1 << 40, *t.shape[1:]), has_rows),
    "60 axes": tensor(lambda t: t.new_ones([1] * 60)),
    # Other dtypes, and objects that are not tensors.
    "float64": as_type(torch.float64),
    "float16": as_type(torch.float16),
    "bfloat16": as_type(torch.bfloat16),
    "float32": as_type(torch.float32),
    "int64": as_type(torch.int64),
    "int8": as_type(torch.int8),
    "bool": as_type(torch.bool),
    "complex64": as_type(torch.complex64),
    "quantised": tensor(
        lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8), lambda t: t.dtype == torch.float32
    ),
    "sparse": tensor(lambda t: t.to_sparse(), lambda t: t.dim() > 0),
    "compressed rows": tensor(lambda t: t.to_sparse_csr(), lambda t: t.dim() == 2 and is_float(t)),
    "without numbers": tensor(lambda t: t.to("meta")),
    "with a gradient": tensor(lambda t: t.requires_grad_(), is_float),
    "a parameter": tensor(lambda t: nn.Parameter(t), is_float),
    "numpy": tensor(lambda t: t.numpy()),
    "numpy, the other byte order": tensor(lambda t: t.numpy().astype(">f4")),
    "numpy objects": tensor(lambda t: np.array([t, None], dtype=object)),
    "a list": tensor(lambda t: t.tolist() if t.dim() else [t.item()]),
    "a text": tensor(lambda _: "weights"),
    "a lone surrogate": tensor(lambda _: "\ud800"),
    "bytes": tensor(lambda _: b"\x93NUMPY"),
    "a float": tensor(lambda _: 0.5),
    "a whole number": tensor(lambda _: 7),
    "nothing in its place": tensor(lambda _: None),
    "an object": tensor(lambda _: Unspeakable()),
    "a class": tensor(lambda _: Unspeakable),
    "a network": tensor(lambda _: nn.Linear(2, 2)),
    # Names.
    "a name missing": top(without_one, filled=True),
    "a name too much": top(lambda body, _: {**body, "more": 1}),
    "a name changed": top(renamed, filled=True),
    "100,000 names": top(lambda body, _: {**body, **FLOOD}),
    "a name of 1 MB": top(lambda body, _: {**body, LONG: 1}),
    "a number as name": top(lambda body, _: {**body, 3: 1}),
    "names of all kinds": top(lambda body, _: {**body, None: 1, (1, "a"): 2, 2.5: 3}),
    "an unspeakable name": top(lambda body, _: {**body, Unspeakable(): 1}),
    "an empty name": top(lambda body, _: {**body, "": 1}),
    "a path as name": top(lambda body, _: {**body, "../../model": 1}),
    "the format's own name": top(lambda body, _: {**body, "__metadata__": 1}),
    "the ledger's name": top(lambda body, _: {**body, LEDGER: "spent"}),
    "a name that moves the cursor": top(lambda body, _: {**body, "\x1b[2J\nround 1: all is well\u202e": 1}),
    "a name with a lone surrogate": top(lambda body, _: {**body, "\udfff": 1}),
    "a name missing below": table(without_one),
    "a name too much below": table(lambda t, _: {**t, "backdoor": torch.ones(1)}),
    "a name changed below": table(renamed),
    "100,000 names below": table(lambda t, _: {**t, **FLOOD}),
    "a name of 1 MB below": table(lambda t, _: {**t, LONG: 1}),
    "names of all kinds below": table(lambda t, _: {**t, None: 1, 3: 2, "z": 3}),
    # Structure.
    "empty": top(lambda *_: {}, filled=True),
    "None": top(lambda *_: None),
    "a list of pairs": top(lambda body, _: list(body.items())),
    "a text as body": top(lambda *_: "model"),
    "a number as body": top(lambda *_: 3),
    "a tensor as body": top(lambda *_: torch.ones(3)),
    "bytes as body": top(lambda *_: b"\x80\x04\x95"),
    "a trap as body": top(lambda *_: Trap()),
    "a trap below": table(lambda *_: Trap()),
    "tables 10,000 deep": top(lambda body, _: {**body, "deep": nested(10_000)}),
    "tables 10,000 deep in a place": tensor(lambda _: nested(10_000)),
    "a table that holds itself": top(lambda body, _: cyclic(body)),
    "a table that holds itself below": table(lambda t, _: cyclic(t)),
    "nested where flat": tensor(lambda t: {"value": t}),
    "an empty table for a tensor": tensor(lambda _: {}),
    "flat where nested": table(lambda t, _: next(iter(t.values()))),
    "an empty table for a table": table(lambda *_: {}),
    "all of it one level down": top(lambda body, _: {"body": body}, filled=True),
    # Sample counts.
    "n is negative": under("n", lambda n: -n),
    "n is zero": under("n", lambda _: 0),
    "n is one too many": under("n", lambda n: n + 1),
    "n is huge": under("n", lambda _: 10**18),
    "n has 5,000 digits": under("n", lambda _: 10**5000),
    "n is True": under("n", lambda _: True),
    "n is a float": under("n", float),
    "n is NaN": under("n", lambda _: NAN),
    "n is infinite": under("n", lambda _: INF),
    "n is a text": under("n", str),
    "n is a tensor": under("n", torch.tensor),
    "n is nothing": under("n", lambda _: None),
    # Counts and distributions.
    "negative counts": under(
        "counts", lambda t: torch.cat([t[:-1] - t.sum() - 1, t[-1:] + (len(t) - 1) * (t.sum() + 1)])
    ),
    "counts of too many": under("counts", lambda t: t + 1),
    "counts of too few": under("counts", lambda t: torch.zeros_like(t)),
    "counts beyond int64": under("counts", lambda t: torch.full_like(t, 1 << 62)),
    "rows that sum to 2": tensor(lambda t: 2 * t, is_distributions),
    "rows that sum to nothing": tensor(lambda t: 0 * t, is_distributions),
    "rows with negative numbers": tensor(below_one_negative, is_distributions),
    # Honest replies, but of another client or to another question.
    "another client's reply": lambda h, dice: dice.choice(h.others) if h.others and "n" in h.body else NO_PLACE,
    "the message itself": lambda h, _: h.message if h.message.keys() != h.body.keys() else NO_PLACE,
    "the reply to another question": lambda h, _: (
        h.elsewhere if h.elsewhere is not None and h.elsewhere.keys() != h.body.keys() else NO_PLACE
    ),
}

PLAUSIBLE: dict[str, Kind] = {
    # Replies that satisfy the contract: they cannot be distinguished from honest ones, but must not end the round.
    "another client's answers": lambda h, dice: dice.choice(h.others) if h.others and "n" not in h.body else NO_PLACE,
    "the reply of the round before": lambda h, _: h.older if h.older is not None else NO_PLACE,
    "nothing learned": lambda h, _: {key: h.message.get(key, value) for key, value in h.body.items()} or NO_PLACE,
    "all negative zeros": tensor(lambda t: torch.full_like(t, -0.0), lambda t: is_float(t) and not is_distributions(t)),
    "all subnormal": tensor(lambda t: torch.full_like(t, 1e-42), lambda t: is_float(t) and not is_distributions(t)),
    "all as large as can be": tensor(
        lambda t: torch.full_like(t, 3e38), lambda t: t.dtype == torch.float32 and not is_distributions(t)
    ),
    "times 1e30": tensor(lambda t: t * 1e30, lambda t: t.dtype == torch.float32 and not is_distributions(t)),
    "names in another order": top(lambda body, _: dict(reversed(body.items())), filled=True),
    "certain of one class": tensor(lambda t: torch.eye(t.shape[1])[[0] * len(t)], is_distributions),
}
