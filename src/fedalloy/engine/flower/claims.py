"""Checks of a client's claims in the headers of its answers: its identity, data, work and spent privacy.

Each function returns the claim if it is plausible given what the server knows; otherwise it raises a `DataError` that
names the field. Nothing is allocated based on a number that a client sent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedalloy.base.tree import Tree
from fedalloy.engine.base import REFERENCE
from fedalloy.errors import DataError
from fedalloy.federation.gate import Check, real, refusal, whole
from fedalloy.federation.setting import Setting
from fedalloy.train.costs import COUNTS, Meter
from fedalloy.train.privacy import LEDGER, Privacy, Spent, epsilon

Header = Mapping[str, Any]

LARGEST = 1 << 40  # samples or classes; the actual limits are far lower and named in their messages
DIMENSIONS = 8  # of an input
PASSES, FLOPS = 1e6, 1e18  # per second: limits that no machine reaches
SLACK = 1.0  # seconds by which two clocks may differ
ENTRIES = 16  # of a ledger: different kinds of private steps
NOISIEST = 1e6  # noise multiplier
RAREST = 1e-12  # sampling rate; accounting for much smaller rates takes seconds
MOST_STEPS = 1 << 40  # private steps of one kind


@dataclass(frozen=True)
class Introduction:
    """What a client says about itself, and its node; `counts` per class only if the method needs them."""

    client: int
    node: int
    train: int
    test: int
    validation: int
    shape: tuple[int, ...]
    classes: int
    counts: tuple[int, ...] = ()


def introduction(header: Header, node: int) -> Introduction:
    """Read a client's claimed identity and data."""
    least = {"client": 0, "train": 1, "test": 0, "validation": 0, "classes": 1}
    numbers = _kept(header, {key: whole(n, LARGEST) for key, n in least.items()})
    shape = _whole_numbers(header.get("shape"), 1)
    if not 0 < len(shape) <= DIMENSIONS:
        raise DataError("its inputs have no valid shape")
    counts: tuple[int, ...] = ()
    if "counts" in header:
        counts = _whole_numbers(header["counts"], 0)
        if len(counts) != numbers["classes"] or sum(counts) != numbers["train"]:
            raise DataError(
                f"its label counts are not {numbers['classes']:,} numbers that add up to its {numbers['train']:,} "
                "training samples"
            )
    return Introduction(node=node, shape=shape, counts=counts, **numbers)


def changed(one: Introduction, setting: Setting) -> str | None:
    """Return how a client's data differs from when the run began, with both numbers, or None."""
    site = setting.sites[one.client]
    known = {
        "training samples": (len(site.train), one.train),
        "test samples": (len(site.test), one.test),
        "validation samples": (len(site.validation or ()), one.validation),
    }
    for what, (here, there) in known.items():
        if here != there:
            return f"claims {there:,} {what}, but this run began with {here:,}"
    if one.counts and list(one.counts) != (first := site.train.counts(setting.classes).tolist()):
        return f"claims label counts {list(one.counts)}, but this run began with {first}"
    return unlike(one, setting)


def unlike(one: Introduction, setting: Setting) -> str | None:
    """Return how a client's samples differ in shape or classes from the experiment, or None."""
    shape = tuple(setting.sites[0].train.x.shape[1:])
    if one.shape != shape:
        return f"has inputs of shape {one.shape}, but the experiment has {shape}"
    if one.classes != setting.classes:
        return f"has {one.classes:,} classes, but the experiment has {setting.classes:,}"
    return None


def meter(header: Header, waited: float) -> Meter:
    """Read a client's claimed computation since it was asked."""
    passes, flops = ((1 + waited) * rate for rate in (PASSES, FLOPS))
    contract: dict[str, Check] = {f"meter.{name}": _halves(passes) for name in COUNTS}
    contract |= {"meter.steps": whole(0, int(passes)), "meter.flops": real(0, flops)}
    found = _kept(header, contract)
    return Meter(**{name: found[f"meter.{name}"] for name in COUNTS})


def seconds(header: Header, waited: float) -> float:
    """Read a client's claimed working time, which cannot be longer than the time since it was asked."""
    return float(_kept(header, {"seconds": real(0, 1.01 * waited + SLACK)})["seconds"])


def reference(header: Header, privacy: Privacy | None) -> Tree | None:
    """Return the server's reference to a client's new memory, if any: its digest and the claimed spent privacy."""
    if "digest" not in header:
        return None
    digest = header["digest"]
    if not isinstance(digest, str) or (digest and (len(digest) != 64 or set(digest) - set("0123456789abcdef"))):
        raise DataError("digest is not a SHA-256 in hexadecimal")
    spent = _spent(header.get("ledger"), privacy)
    return {REFERENCE: digest, **({LEDGER: spent} if spent else {})}


def _spent(text: Any, privacy: Privacy | None) -> Spent:
    """Read private steps by noise multiplier and sampling rate; their epsilon must be finite."""
    found = _json(text)
    if privacy is None and found != {}:
        raise DataError("ledger must be an empty table in a run without [privacy]")
    tables = found.values() if isinstance(found, dict) else [None]
    if not all(isinstance(by, dict) and by for by in tables) or sum(map(len, tables)) > ENTRIES:
        raise DataError(f"ledger is not a table of at most {ENTRIES} kinds of private steps")
    for noise, by in found.items():
        for rate, steps in by.items():
            if not (0.01 <= _float(noise) <= NOISIEST and RAREST <= _float(rate) <= 1):
                raise DataError("ledger has a noise multiplier or a sampling rate that is impossible")
            if type(steps) is not int or not 0 < steps <= MOST_STEPS:
                raise DataError(f"ledger has steps that are not an integer from 1 to {MOST_STEPS:,}")
    if privacy is not None and not math.isfinite(epsilon(found, privacy.delta)):
        raise DataError("ledger has no finite epsilon")
    spent: Spent = found
    return spent


def _kept(header: Header, contract: Mapping[str, Check]) -> dict[str, Any]:
    """Return the fields of a header that a contract names, if they satisfy it."""
    kept = {key: header[key] for key in contract if key in header}
    if (fault := refusal(kept, contract)) is not None:
        raise DataError(fault)
    return kept


def _halves(most: float) -> Check:
    """Check a number of passes: a network's features and its head count half a pass each."""
    within = real(0, most)

    def check(value: Any) -> str | None:
        fault = within(value)
        return f"is {value}, which is not a multiple of 0.5" if fault is None and (2 * value) % 1 else fault

    return check


def _whole_numbers(text: Any, least: int) -> tuple[int, ...]:
    """Read a list of integers from JSON; anything else gives an empty tuple."""
    found = _json(text)
    sound = isinstance(found, list) and all(type(n) is int and least <= n <= LARGEST for n in found)
    return tuple(found) if sound else ()


def _json(text: Any) -> Any:
    """Parse JSON; return None if it is invalid."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
