"""Transfer of a setting to another process: its data in shared memory, its clients as one list of rows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from fedalloy.data.public import PublicSet
from fedalloy.data.samples import Samples
from fedalloy.engine.arena import mapped, shared, withdraw
from fedalloy.federation.setting import Setting, Site

Part = tuple[str, tuple[int, ...], torch.dtype]  # path, shape and dtype of a shared tensor

DATA = ("sites", "public", "holdout")  # the fields of a setting that contain samples


@dataclass(frozen=True)
class Cargo:
    """What is sent to a worker: paths and shapes of the data, the rows of each client, and the rest of the setting."""

    pools: list[tuple[Part, Part]]
    rows: Part
    spans: Part
    labelled: bool | None  # whether the public set has labels; None if clients have no public set
    rest: Mapping[str, Any]  # the setting's other fields


def pack(setting: Setting) -> Cargo:
    """Put a setting's data into shared memory, each pool once, regardless of the number of clients.

    The parent keeps using its own copy; call `release` when no more workers will map the memory.
    """
    with ExitStack() as undo:
        cargo = _packed(setting, undo)
        undo.pop_all()
    return cargo


def _packed(setting: Setting, undo: ExitStack) -> Cargo:
    pools: dict[tuple[int, int], int] = {}
    parts: list[tuple[Part, Part]] = []
    spans: list[tuple[int, int, int]] = []
    rows: list[Tensor] = []
    at = 0
    public = setting.public if setting.public is not None and setting.public.holder == "all" else None
    for samples in [*(s.train for s in setting.sites), *([public.samples] if public is not None else [])]:
        key = id(samples.x), id(samples.y)
        if key not in pools:
            pools[key] = len(parts)
            parts.append((_share(samples.x, undo), _share(samples.y, undo)))
        spans.append((pools[key], at, at + len(samples)))
        rows.append(samples.index)
        at += len(samples)
    return Cargo(
        pools=parts,
        rows=_share(torch.cat(rows), undo),
        spans=_share(torch.tensor(spans), undo),
        labelled=None if public is None else public.labelled,
        rest={f.name: getattr(setting, f.name) for f in fields(Setting) if f.name not in DATA},
    )


def unpack(cargo: Cargo) -> Setting:
    """Rebuild the setting in a worker: training data only, in shared memory."""
    pools = [(mapped(*x), mapped(*y)) for x, y in cargo.pools]
    rows, spans = mapped(*cargo.rows), mapped(*cargo.spans).tolist()
    nobody = [Samples(x, y, rows[:0]) for x, y in pools]
    held = [Samples(pools[pool][0], pools[pool][1], rows[begin:end]) for pool, begin, end in spans]
    public = None if cargo.labelled is None else PublicSet(held.pop(), labelled=cargo.labelled, holder="all")
    # The public set, if there is one, has the last span and is not a site.
    sites = [Site(samples, nobody[pool]) for samples, (pool, _, _) in zip(held, spans, strict=False)]
    return Setting(sites=sites, public=public, **cargo.rest)


def release(cargo: Cargo) -> None:
    """Stop other processes from mapping the shared memory; existing mappings stay valid."""
    for path, _, _ in [part for pool in cargo.pools for part in pool] + [cargo.rows, cargo.spans]:
        withdraw(path)


def _share(tensor: Tensor, undo: ExitStack) -> Part:
    copy, path = shared(tuple(tensor.shape), tensor.dtype)
    undo.callback(withdraw, path)
    copy.copy_(tensor)
    return path, tuple(tensor.shape), tensor.dtype
