"""Experiments that should work, drawn from what is registered, on the built-in data and small enough for one round."""

from __future__ import annotations

import dataclasses
import random
import typing
from typing import Any

import fedalloy.methods  # noqa: F401  # registers them
from fedalloy.core import Method, methods
from fedalloy.data.partition import partitions
from fedalloy.models import models

# The sizes of images that a network can take, and options that keep it small; others of the registry take 8 pixels.
SIZES = {"lenet5": 28, "simple-cnn": 28, "selective-cnn": 28}
SMALL: dict[str, dict[str, Any]] = {"resnet8": {"width": 8}, "wrn": {"depth": 10}, "mlp": {"hidden": [16]}}


def an_experiment(dice: random.Random) -> dict[str, Any]:
    """A whole experiment of one round."""
    clients = dice.randrange(2, 8)
    cls = methods[dice.choice(sorted(methods))]
    size, several = _networks(dice, cls)
    values: dict[str, Any] = {
        "rounds": 1,
        "seed": dice.randrange(1000),
        "engine": "serial",
        "data": {"name": "tiny", "size": size},
        "partition": _partition(dice, clients),
        "method": _method(dice, cls),
        "training": _training(dice),
        "participation": _participation(dice, clients),
        **several,
    }
    if cls.card.public or dice.random() < 0.2:
        values["public"] = _public(dice)
    for key, made in (
        ("quorum", lambda: {"fraction": dice.choice((0.0, 0.5, 1.0)), "skips": dice.randrange(1, 4)}),
        ("stop", lambda: _stop(dice, values["partition"])),
        ("memory", lambda: dice.choice(("1KB", "4GB"))),
        ("layout", lambda: dice.choice(("auto", "nchw", "channels_last"))),
        ("evaluate_every", lambda: dice.randrange(1, 4)),
    ):
        if dice.random() < 0.3:
            values[key] = made()
    return values


def _networks(dice: random.Random, cls: type[Method]) -> tuple[int, dict[str, Any]]:
    """The size of images, and the sections that say who has which network."""

    def one(name: str) -> dict[str, Any]:
        return {"name": name, **SMALL.get(name, {})}

    name = "mlp" if dice.random() < 0.6 else dice.choice(sorted(models))
    size = SIZES.get(name, 8)
    if not cls.card.any_network or dice.random() < 0.7:
        return size, {"model": one(name)}
    other = {"name": "mlp", "hidden": [dice.choice((4, 8))]}
    return size, {"model": one(name), "models": [{**one(name), "share": 0.5}, other]}


def _method(dice: random.Random, cls: type[Method]) -> dict[str, Any]:
    """A method with quick options, and here and there another word or truth value of those that its types allow."""
    options = {"name": cls.name, **cls.card.quick}
    hints = typing.get_type_hints(cls)
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]  # @method makes it one
        choices = _choices(hints[f.name])
        if choices and f.name not in options and dice.random() < 0.08:
            options[f.name] = dice.choice(choices)
    return options


def _choices(hint: Any) -> list[Any]:
    if hint is bool:
        return [False, True]
    parts = [hint, *typing.get_args(hint)]
    return [word for part in parts if typing.get_origin(part) is typing.Literal for word in typing.get_args(part)]


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
    return {"data": "tiny", "samples": samples, "labelled": labelled, **added}


def _stop(dice: random.Random, partition: dict[str, Any]) -> dict[str, Any]:
    metric = dice.choice(("amp", "wlp", "alma", "test", *(("validation",) if "validation" in partition else ())))
    limits = {"target": 0.5, "patience": 2, "bytes": 10_000, "seconds": 0.5}
    return {"metric": metric, **{key: limits[key] for key in dice.sample(sorted(limits), dice.randrange(4))}}
