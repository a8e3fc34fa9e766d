"""Experiments that should work, drawn from what is registered, on built-in data and small enough to be fast."""

from __future__ import annotations

import dataclasses
import random
import typing
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import fedalloy.methods  # noqa: F401  # registers them
from fedalloy.aggregation.cache import Cache
from fedalloy.aggregation.rule import Aggregation
from fedalloy.base.options import options_of, sections_of, without_effect
from fedalloy.config.experiment import experiment
from fedalloy.config.methods import make_method
from fedalloy.data.partition import partitions
from fedalloy.errors import UsageError
from fedalloy.federation.core import Method, methods
from fedalloy.nets.models import models
from fedalloy.train.fit import LocalWork

OTHER = "fashion-mini"  # as a public set: the private data set is refused
# The image sizes that a network supports, and options that keep it small; other registered networks take 8 pixels.
SIZES = {"lenet5": 28, "simple-cnn": 28, "selective-cnn": 28}
# Values for options without a default, or for which half or twice the default is out of range.
NUMBERS: dict[str, tuple[float, ...]] = {
    "adversarial": (0.5, 2.0),
    "bn_eps": (1e-5, 0.8),
    "cap": (0.2, 0.5, 1.0),
    "clip": (0.5, 5.0),
    "clip_logits": (1.0, 10.0),
    "decay": (0.9, 1.0),
    "distil_lr": (0.001, 0.01),
    "eps": (0.0, 1e-6),
    "exact_up_to": (1, 3),
    "generated_batch": (2, 4),
    "generated_steps": (1, 2),
    "generator_batch": (4, 8),
    "generator_lr": (1e-4, 1e-3),
    "generator_lr_decay": (0.9, 1.0),
    "generator_weight_decay": (0.0, 1e-3),
    "gradient_penalty": (0.0, 0.3),
    "kd_start": (1, 2),
    "kd_weight": (0.5, 1.0),
    "l2": (0.0, 1e-4),
    "lam": (0.01, 0.1),
    "latent_weight": (0.0, 1.0),
    "max_distance": (10.0, 1000.0),
    "max_share": (0.5, 0.9),
    "momentum": (0.0, 0.5),
    "samples": (4, 16),
    "second_phase": (1, 2),
    "server_digest_epochs": (1, 2),
    "server_steps": (1, 2),
    "shared_layers": (0, 1),
    "tau": (0.5, 1.0, 4.0),
    "tau_server": (0.5, 1.0),
    "tune_batch": (4, 16),
    "tune_lr": (0.01, 0.1),
    "validation": (0.1, 0.2),
}
# What options, of all methods or of one, require beyond what they declare themselves; None means absent.
NEEDS: dict[str, dict[str, Any]] = {
    "policy": {"samples": 8},
    "selective-fd.client_selector": {"auxiliary": None},
    "pseudo_samples": {"noise": None, "generator_width": None, "distil_samples": None},
}
SECTIONS: dict[str, type[Any]] = {"aggregation": Aggregation, "cache": Cache}
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
        **_method(dice, cls),
        "training": _training(dice),
        "participation": _participation(dice, clients),
        **several,
    }
    if "models" in values and dice.random() < 0.3:
        _by_tier(dice, values)
    if (holder := make_method(experiment(values)).needs_public) or dice.random() < 0.2:
        values["public"] = _public(dice) | ({"holder": "all"} if holder == "all" else {})
    if cls.card.private and dice.random() < 0.2:
        values["privacy"] = _privacy(dice)
    for key, made in (
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
    """Return a method with fast options and its sections, and sometimes other values that their types allow."""
    for _ in range(TRIES):
        parts = {"method": {"name": cls.name, **_options(dice, cls, cls.card.quick)}}
        sections = {name: _options(dice, SECTIONS[name], {}) for name in sections_of(cls)}
        place = parts["method"] if dice.random() < 0.3 else parts  # those of this method alone, or common ones
        place |= {name: drawn for name, drawn in sections.items() if drawn}
        with suppress(UsageError):  # options that do not go together; wrong experiments are tested elsewhere
            make_method(experiment(parts))
            return parts
    return {"method": {"name": cls.name, **cls.card.quick}}


def _options(dice: random.Random, cls: type[Any], quick: Mapping[str, Any]) -> dict[str, Any]:
    options = dict(quick)
    hints = typing.get_type_hints(cls)
    for option in options_of(cls):
        usual = quick.get(option.name, option.default)
        words = [] if option.name in quick else _choices(hints[option.name])
        values = [value for value in words + _numbers(hints[option.name], option.name, usual) if value != usual]
        if values and dice.random() < 0.1:
            options[option.name] = dice.choice(values)
            options |= _needs(dice, cls, option.name) | {option.name: options[option.name]}
    return {name: value for name, value in options.items() if value is not None}


def _needs(dice: random.Random, cls: type[Any], name: str) -> dict[str, Any]:
    """Return what an option has no effect without."""
    fields = {f.name: f for f in dataclasses.fields(cls)}
    other, *values = fields[name].metadata.get("only_with") or ("",)
    some = [value for value in values if value is not None]
    declared = {other: dice.choice(some)} if other in fields and some else {}
    return declared | NEEDS.get(name, {}) | NEEDS.get(f"{getattr(cls, 'name', '')}.{name}", {})


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
    if int in parts and isinstance(usual, int):
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
    values = {
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
    idle = without_effect(LocalWork, values)
    return {key: value for key, value in values.items() if key not in idle}


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
