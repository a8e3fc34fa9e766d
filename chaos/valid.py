"""Experiments that should work, drawn from what is registered, on built-in data and small enough to be fast."""

from __future__ import annotations

import dataclasses
import random
import typing
from contextlib import suppress
from typing import Any

import fedalloy.methods  # noqa: F401  # registers them
from fedalloy.data.partition import partitions
from fedalloy.errors import UsageError
from fedalloy.federation.core import Method, methods
from fedalloy.nets.models import models

OTHER = "fashion-mini"  # as a public set: the private data set is refused
# The image sizes that a network supports, and options that keep it small; other registered networks take 8 pixels.
SIZES = {"lenet5": 28, "simple-cnn": 28, "selective-cnn": 28}
# Values for options without a default, or for which half or twice the default is out of range.
NUMBERS: dict[str, tuple[float, ...]] = {
    "adversarial": (0.5, 2.0),
    "bn_eps": (1e-5, 0.8),
    "clip": (0.5, 5.0),
    "clip_logits": (1.0, 10.0),
    "decay": (0.9, 1.0),
    "distil_lr": (0.001, 0.01),
    "generator_lr": (1e-4, 1e-3),
    "generator_lr_decay": (0.9, 1.0),
    "generator_weight_decay": (0.0, 1e-3),
    "gradient_penalty": (0.0, 0.3),
    "kd_start": (1, 2),
    "kd_weight": (0.5, 1.0),
    "l2": (0.0, 1e-4),
    "lam": (0.01, 0.1),
    "max_share": (0.5, 0.9),
    "momentum": (0.0, 0.5),
    "samples": (4, 16),
    "second_phase": (1, 2),
    "server_steps": (1, 2),
    "shared_layers": (0, 1),
    "tau": (0.5, 1.0, 4.0),
    "tau_server": (0.5, 1.0),
    "validation": (0.1, 0.2),
}
# What options, of all methods or of one, require; None means absent.
KNFU = {"mode": "knfu", **dict.fromkeys(("digest_batch", "pretrain_public", "pretrain_private", "private_batch"))}
NEEDS: dict[str, dict[str, Any]] = {
    "trim": {"combine": "trimmed"},
    "policy": {"samples": 8},
    "fedmd.mode": KNFU,
    "fedmd.tune_epochs": KNFU,
    "fedmd.temperature": KNFU,
    "fedmd.kd_weight": KNFU,
    "fedmd.ce_on": KNFU,
    "fedmd-global.beta": {"lwof": True},
    "fedmd-global.rho": {"lwof": True},
    "selective-fd.client_selector": {"auxiliary": None},
    "selective-fd.temperature": {"kd": "kl"},
    "selective-fd.max_entropy": {"server_selector": "entropy"},
}
TRIES = 20  # to find options that a method accepts together
SMALL: dict[str, dict[str, Any]] = {"resnet8": {"width": 8}, "wrn": {"depth": 10}, "mlp": {"hidden": [16]}}


def an_experiment(dice: random.Random) -> dict[str, Any]:
    """Return a complete experiment of one or two rounds."""
    clients = dice.randrange(2, 8)
    cls = methods[dice.choice(sorted(methods))]
    size, several = _networks(dice, cls)
    values: dict[str, Any] = {
        "rounds": dice.choice((1, 1, 2)),
        "seed": dice.randrange(1000),
        "engine": dice.choice(("serial", "threads")),
        "data": {"name": "tiny", "size": size},
        "partition": _partition(dice, clients),
        "method": _method(dice, cls),
        "training": _training(dice),
        "participation": _participation(dice, clients),
        **several,
    }
    if "models" in values and dice.random() < 0.3:
        _by_tier(dice, values)
    if cls.card.public or dice.random() < 0.2:
        values["public"] = _public(dice)
    if cls.card.private and dice.random() < 0.2:
        values["privacy"] = _privacy(dice)
    for key, made in (
        ("aggregation", lambda: {"cap": dice.choice((0.2, 0.5, 1.0)), "max_distance": dice.choice((10.0, 100.0))}),
        ("quorum", lambda: {"fraction": dice.choice((0.0, 0.5, 1.0)), "skips": dice.randrange(1, 4)}),
        ("stop", lambda: _stop(dice, values["partition"])),
        ("memory", lambda: dice.choice((0, "4GB"))),
        ("layout", lambda: dice.choice(("auto", "nchw", "channels_last"))),
        ("evaluate_every", lambda: dice.randrange(1, 4)),
    ):
        if dice.random() < 0.3:
            values[key] = made()
    return values


def _networks(dice: random.Random, cls: type[Method]) -> tuple[int, dict[str, Any]]:
    """Return the image size, and the sections that assign networks to clients."""

    def one(name: str) -> dict[str, Any]:
        return {"name": name, **SMALL.get(name, {})}

    name = "mlp" if dice.random() < 0.6 else dice.choice(sorted(models))
    size = SIZES.get(name, 8)
    if not cls.card.any_network or dice.random() < 0.7:
        return size, {"model": one(name)}
    other = {"name": "mlp", "hidden": [dice.choice((4, 8))]}
    return size, {"model": one(name), "models": [{**one(name), "share": 0.5}, other]}


def _method(dice: random.Random, cls: type[Method]) -> dict[str, Any]:
    """Return a method with fast options, and sometimes other values that its types allow."""
    for _ in range(TRIES):
        options = _options(dice, cls)
        with suppress(UsageError):  # options that do not go together; wrong experiments are tested elsewhere
            cls(**options)
            return {"name": cls.name, **options}
    return {"name": cls.name, **cls.card.quick}


def _options(dice: random.Random, cls: type[Method]) -> dict[str, Any]:
    options = dict(cls.card.quick)
    hints = typing.get_type_hints(cls)
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]  # @method makes it one
        usual = cls.card.quick.get(f.name, f.default)
        words = [] if f.name in cls.card.quick else _choices(hints[f.name])
        values = [value for value in words + _numbers(hints[f.name], f.name, usual) if value != usual]
        if values and dice.random() < 0.1:
            options[f.name] = dice.choice(values)
            options |= NEEDS.get(f.name, {}) | NEEDS.get(f"{cls.name}.{f.name}", {}) | {f.name: options[f.name]}
    return {name: value for name, value in options.items() if value is not None}


def _choices(hint: Any) -> list[Any]:
    parts = [hint, *typing.get_args(hint)]
    truths = [False, True] if bool in parts else []
    words = [word for part in parts if typing.get_origin(part) is typing.Literal for word in typing.get_args(part)]
    return truths + words


def _numbers(hint: Any, name: str, usual: Any) -> list[Any]:
    """Return alternatives to a default number: half and twice of it, or those in a table."""
    parts = [hint, *typing.get_args(hint)]
    if name in NUMBERS and (int in parts or float in parts):
        return list(NUMBERS[name])
    if int in parts and usual is not None:
        return [max(1, usual // 2), 2 * usual]
    return [usual / 2, 2 * usual] if float in parts and isinstance(usual, float) else []


def _privacy(dice: random.Random) -> dict[str, Any]:
    """Return DP-SGD, perhaps with a budget that may be exhausted."""
    noise, norm = dice.choice((0.5, 1.0, 4.0)), dice.choice((0.1, 1.0))
    budget = {"budget": dice.choice((0.5, 50.0))} if dice.random() < 0.3 else {}
    return {"noise_multiplier": noise, "max_grad_norm": norm, **budget}


def _partition(dice: random.Random, clients: int) -> dict[str, Any]:
    name = dice.choice(sorted(set(partitions) - {"natural"}))  # the built-in data has no natural clients
    options: dict[str, dict[str, Any]] = {
        "dirichlet": {"alpha": dice.choice((0.3, 1.0, 100.0)), "min_size": 2, "balanced": dice.random() < 0.5},
        "dirichlet-fixed": {"alpha": dice.choice((0.1, 1.0)), "samples": dice.randrange(20, 80)},
        "dirichlet-dominant": {"alpha": dice.choice((0.1, 1.0))},
        "quantity": {"beta": dice.choice((0.5, 5.0)), "min_size": 2},
        "classes": {"per_client": dice.randrange(-(-10 // clients), 11)},
    }
    tests: list[dict[str, Any]] = [
        {},
        {"test_fraction": dice.choice((0.0, 0.1, 0.5))},
        {"test": "official", "test_samples": dice.randrange(1, 50)},
        {"test": "global"},
    ]
    validation = {"validation": 0.2} if dice.random() < 0.3 else {}
    return {"name": name, "clients": clients, **options.get(name, {}), **dice.choice(tests), **validation}


def _training(dice: random.Random) -> dict[str, Any]:
    work = dice.choice(("epochs", "equal_steps", "fixed_steps"))
    return {
        "work": work,
        "epochs": 1,
        "steps": dice.randrange(1, 4),
        "batch": dice.choice((1, 2, 64) if work == "fixed_steps" else (16, 33, 64, 1000)),
        "drop_last": dice.random() < 0.3,
        "optimiser": dice.choice(("sgd", "adam")),
        "lr": dice.choice((1e-4, 1e-3, 1e-2)),
        "momentum": dice.choice((0.0, 0.9)),
        "weight_decay": dice.choice((0.0, 1e-4)),
        "schedule": dice.choice(("constant", "cosine", "step")),
        **({"clip": 1.0} if dice.random() < 0.3 else {}),
    }


def _participation(dice: random.Random, clients: int) -> dict[str, Any]:
    policy = dice.choice(("full", "fraction", "bernoulli", "weakest", "trace", "legacy"))
    fraction = dice.choice((0.01, 0.3, 0.5, 1.0))
    values: dict[str, Any] = {"policy": policy, "fraction": 1.0 if policy in ("full", "trace") else fraction}
    if policy == "trace":
        values["trace"] = [sorted(dice.sample(range(clients), dice.randrange(clients + 1)))]
    if policy == "weakest" and dice.random() < 0.5:
        values["tiers"] = [dice.randrange(3) for _ in range(clients)]
    if dice.random() < 0.2:
        values["late_drop"] = dice.choice((0.1, 0.9))
    if dice.random() < 0.2:
        values |= {"deadline": 1.0, "speeds": [dice.choice((1e3, 1e12)) for _ in range(clients)]}
    return values


def _by_tier(dice: random.Random, values: dict[str, Any]) -> None:
    """Give the first network to the clients of tier 0 (at least one) instead of a share."""
    first, *others = values["models"]
    first = {key: value for key, value in first.items() if key != "share"}
    values["models"] = [{**first, "tier": 0}, *others]
    values["participation"]["tiers"] = [0, 1, *(dice.randrange(3) for _ in range(values["partition"]["clients"] - 2))]


def _public(dice: random.Random) -> dict[str, Any]:
    samples = dice.randrange(20, 60)
    labelled = dice.random() < 0.8
    if dice.random() < 0.7:
        return {
            "data": "own",
            "samples": samples,
            "labelled": labelled,
            "holder": dice.choice(("all", "all", "server")),
        }
    added = {"classes": "added", "answers": dice.choice(("all", "private"))} if dice.random() < 0.3 else {}
    return {"data": OTHER, "samples": samples, "labelled": labelled, **added}


def _stop(dice: random.Random, partition: dict[str, Any]) -> dict[str, Any]:
    metric = dice.choice(("amp", "wlp", "alma", "test", *(("validation",) if "validation" in partition else ())))
    limits = {"target": 0.5, "patience": 2, "bytes": 10_000, "seconds": 0.5}
    return {"metric": metric, **{key: limits[key] for key in dice.sample(sorted(limits), dice.randrange(4))}}
