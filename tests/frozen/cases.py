"""The cases that are frozen, made from the registry: every method, every word or truth value of its options, and more.

Only `freeze.py --write` makes this list; the test takes the cases from `numbers.json`.
"""

from __future__ import annotations

import dataclasses
import itertools
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import fedalloy.methods  # noqa: F401  # registers them
from fedalloy import UsageError
from fedalloy.federation.core import Method, methods

NETWORK = {"name": "fedmd-cnn", "widths": [4, 6]}  # with BatchNorm and dropout
SETTING: dict[str, Any] = {
    "rounds": 3,
    "seed": 0,
    "data": {"name": "tiny", "size": 8},
    "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.5, "validation": 0.1},
    "model": NETWORK,
    "training": {"work": "fixed_steps", "steps": 3, "batch": 8, "lr": 0.05, "momentum": 0.5, "weight_decay": 0.001},
    "participation": {"policy": "fraction", "fraction": 0.5},
}
PUBLIC = {"data": "own", "samples": 40, "labelled": True, "holder": "all"}
ADDED = {"data": "fashion-mini", "samples": 40, "labelled": True, "classes": "added"}
SEVERAL = [{**NETWORK, "share": 0.5}, {"name": "mlp", "hidden": [8]}]

# Numbers for options whose default is none or zero, or half of which is out of their range.
NUMBERS: dict[str, Any] = {
    "adversarial": 0.5,
    "bn_eps": 0.5,
    "clip": 0.5,
    "clip_logits": 1.0,
    "decay": 0.9,
    "distil_lr": 0.002,
    "generator_lr": 0.0005,
    "generator_lr_decay": 0.9,
    "generator_weight_decay": 0.002,
    "gradient_penalty": 0.3,
    "kd_start": 2,
    "kd_weight": 0.5,
    "l2": 0.001,
    "lam": 0.05,
    "max_share": 0.5,
    "momentum": 0.5,
    "samples": 12,
    "second_phase": 1,
    "server_steps": 2,
    "shared_layers": 1,
    "start_round": 2,
    "tau": 3.0,
    "tau_server": 0.5,
    "validation": 0.2,
}
# What options, of all methods or of one, go with; None is without.
KNFU = {"mode": "knfu", **dict.fromkeys(("digest_batch", "pretrain_public", "pretrain_private", "private_batch"))}
NEEDS: dict[str, dict[str, Any]] = {
    "disco_a": {"weights": "disco"},
    "disco_b": {"weights": "disco"},
    "disco_metric": {"weights": "disco"},
    "disco_normalise": {"weights": "disco"},
    "policy": {"samples": 8},
    "combine=trimmed": {"trim": 0.4},  # of three clients: by default nobody would be dropped
    "combine=krum": {"trim": 0.4},
    "dafkd.cache_init": {"oca": True},  # which is not its default
    "dafkd.cache_dtype": {"oca": True},
    "kdia.weights": {"cache_init": "seen_only"},
    "kdia.disco_metric": {"cache_init": "seen_only"},
    "kdia.disco_normalise": {"cache_init": "seen_only"},
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
UNLABELLED: dict[str, dict[str, Any]] = {
    "fedmd": {"pretrain_public": 0, "policy": "fresh"},
    "fedmd-global": {"pretrain_public": 0},
    "knfu": {"ce_on": "none"},
}
# Whose cache is a teacher, or whose average is of another kind: all inherited options are tried there, elsewhere some.
WHOLLY = ("fedavg", "feddisco", "fedkf", "kdia", "dafkd")
INHERITED = {"cache_dtype": (), "disco_metric": (), "disco_normalise": (), "cache_init": ("init_model",)}
INHERITED |= {"combine": ("median", "krum"), "clip": ()}
BOUNDS: tuple[tuple[str, Any], ...] = (  # options of every method that averages, tried in pairs under FedAvg
    *(("weights", word) for word in ("uniform", "disco")),
    *(("cache_init", word) for word in ("init_model", "global")),
    ("cache_dtype", "bfloat16"),
    ("exact_up_to", 2),
    *(("combine", word) for word in ("median", "trimmed", "krum")),
    *(("clip", bound) for bound in (0.5, "median")),
    ("cap", 0.4),
)
# Other sections, tried under FedAvg; those of training under a few more.
SECTIONS: tuple[tuple[str, str, Any, dict[str, Any]], ...] = (
    ("training", "work", "epochs", {"batch": 64}),
    ("training", "work", "equal_steps", {"batch": 32}),
    ("training", "drop_last", True, {"work": "epochs", "batch": 60}),
    ("training", "optimiser", "adam", {"lr": 0.003}),
    ("training", "schedule", "cosine", {"horizon": 5}),
    ("training", "schedule", "step", {"step_every": 1, "step_factor": 0.5}),
    ("training", "lr_decay", 0.9, {}),
    ("training", "clip", 0.5, {}),
    ("participation", "policy", "full", {"fraction": 1.0}),
    ("participation", "policy", "bernoulli", {}),
    ("participation", "policy", "weakest", {}),
    ("participation", "policy", "legacy", {}),
    ("participation", "policy", "trace", {"fraction": 1.0, "trace": [[0, 2], [1, 2, 5]]}),
    ("participation", "late_drop", 0.4, {}),
    ("partition", "test", "official", {"test_samples": 10}),
    ("partition", "test", "global", {}),
    ("partition", "balanced", False, {}),
    ("data", "augment", "cifar10-kdia", {}),
)


def all_cases() -> Iterator[dict[str, Any]]:
    """Every case: its id, its experiment, and whether the pool must give the same numbers."""
    seen: set[str] = set()
    by_method = (_of_method(methods[name]) for name in sorted(methods))
    for case in itertools.chain(*by_method, _sections(), _pairs(), _crowds()):
        if case["id"] not in seen:
            seen.add(case["id"])
            yield case


def _case(
    cls: type[Method], what: str, options: Mapping[str, Any], pool: bool = False, **sections: Any
) -> dict[str, Any]:
    public = {"public": PUBLIC} if cls.card.public else {}
    exp = {**SETTING, **public, "method": {"name": cls.name, **options}, **sections}
    return {"id": f"{cls.name} {what}".strip(), "pool": pool, "experiment": exp}


def _of_method(cls: type[Method]) -> Iterator[dict[str, Any]]:
    quick = dict(cls.card.quick)
    yield _case(cls, "", quick, pool=True)
    for field, values in _words(cls).items():
        averages = issubclass(cls, methods["fedavg"]) and cls.name not in WHOLLY
        for value in INHERITED.get(field, values) if averages else values:
            yield _case(cls, f"{field}={value}", _with(cls, field, value), pool=field == "variant")
    yield from _numbers(cls)
    yield _case(cls, "added", quick, pool=cls.card.public, public=ADDED)
    if cls.card.public:
        yield _case(cls, "answers=private", quick, public={**ADDED, "answers": "private"})
        yield _case(cls, "unlabelled", {**quick, **UNLABELLED.get(cls.name, {})}, public={**PUBLIC, "labelled": False})
        yield _case(cls, "holder=server", quick, public={**PUBLIC, "holder": "server"})
    if cls.card.any_network:
        yield _case(cls, "networks", quick, pool=True, models=SEVERAL)
        yield _case(cls, "networks added", quick, models=SEVERAL, public=ADDED)
    yield _case(cls, "cap=0.4", quick, aggregation={"cap": 0.4})
    if cls.name in ("fedavg", "fedprox", "fedkf", "kdia", "dafkd", "feddf"):
        yield _case(cls, "cap=0.3", quick, aggregation={"cap": 0.3})
    if cls.name in ("fedavg", "fedprox", "local"):
        mlp = {"name": "mlp", "hidden": [8]}
        yield _case(cls, "privacy", quick, pool=True, model=mlp, privacy={"noise_multiplier": 0.8})


def _words(cls: type[Method]) -> dict[str, list[Any]]:
    """The words and truth values of each option that are not its default."""
    hints = typing.get_type_hints(cls)
    found = {}
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]  # @method makes it one
        parts = [hints[f.name], *typing.get_args(hints[f.name])]
        words = [word for part in parts if typing.get_origin(part) is typing.Literal for word in typing.get_args(part)]
        values = [*words, *([False, True] if bool in parts else [])]
        found[f.name] = [value for value in values if value != f.default]
    return found


def _with(cls: type[Method], field: str, value: Any) -> dict[str, Any]:
    """Quick options with another value of one, and with what that goes with, if the method takes them together."""
    needs = NEEDS.get(field, {}) | NEEDS.get(f"{field}={value}", {}) | NEEDS.get(f"{cls.name}.{field}", {})
    plain = {**cls.card.quick, field: value}
    together = {**cls.card.quick, **needs, field: value}
    together = {name: given for name, given in together.items() if given is not None}
    return together if _takes(cls, together) else plain


def _takes(cls: type[Method], options: Mapping[str, Any]) -> bool:
    with suppress(UsageError, TypeError):
        cls(**options)
        return True
    return False


def _numbers(cls: type[Method]) -> Iterator[dict[str, Any]]:
    """All numbers of a method changed at once; those that go with others, or are refused with the rest, one by one."""
    options, alone = dict(cls.card.quick), []
    hints = typing.get_type_hints(cls)
    averages = "exact_up_to" in hints
    elsewhere = {"trim"} | ({"exact_up_to", "clip"} if averages else set())
    elsewhere |= {"disco_a", "disco_b"} if cls.name not in ("fedavg", "feddisco") else set()
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]  # @method makes it one
        parts = {hints[f.name], *typing.get_args(hints[f.name])}
        if not parts & {int, float} or f.name in elsewhere:
            continue
        value = _another(f.name, options.get(f.name, f.default), whole=float not in parts)
        if value is None:
            continue
        if f.name in NEEDS or f"{cls.name}.{f.name}" in NEEDS or not _takes(cls, {**options, f.name: value}):
            alone.append((f.name, value))
        else:
            options[f.name] = value
    if options != dict(cls.card.quick):
        yield _case(cls, "numbers", options)
    for name, value in alone:
        yield _case(cls, f"{name}={value}", _with(cls, name, value))
    if averages:
        yield _case(cls, "clip=0.5", _with(cls, "clip", 0.5))
        yield _case(cls, "exact_up_to=2", {**cls.card.quick, "oca": True, "exact_up_to": 2})


def _another(name: str, usual: Any, *, whole: bool) -> Any:
    if name in NUMBERS and NUMBERS[name] != usual:
        return NUMBERS[name]
    if not isinstance(usual, int | float) or isinstance(usual, bool):
        return None
    if whole:
        return usual // 2 if usual > 3 else usual + 1
    return usual / 2 if usual else None


def _sections() -> Iterator[dict[str, Any]]:
    for name in ("fedavg", "qffl", "fedkf", "fedmd"):
        cls = methods[name]
        for section, key, value, others in SECTIONS if name == "fedavg" else SECTIONS[:8]:
            changed = {**SETTING[section], **others, key: value}
            yield _case(cls, f"{section}.{key}={value}", dict(cls.card.quick), **{section: changed})


def _crowds() -> Iterator[dict[str, Any]]:
    """Six active clients, of whom more than one stays when the extremes have gone: trimmed is not the median there."""
    everybody = {"policy": "full"}
    for name in ("fedavg", "fedkf", "fedmd"):
        for word in ("median", "trimmed", "krum"):
            options = {**methods[name].card.quick, "combine": word}
            yield _case(methods[name], f"combine={word} of all", options, participation=everybody)
    tau = {**methods["dafkd"].card.quick, "tau": 3.0}
    for word in ("plain", "tau2", "tau2_mean"):
        yield _case(methods["dafkd"], f"kd_scale={word} tau=3", {**tau, "kd_scale": word})
    for cap in (0.3, 0.4):
        options = {**methods["dafkd"].card.quick, "weights": "size"}
        yield _case(methods["dafkd"], f"weights=size cap={cap}", options, aggregation={"cap": cap})
    yield _case(methods["selective-fd"], "tau_server=0.2", {**methods["selective-fd"].card.quick, "tau_server": 0.2})


def _pairs() -> Iterator[dict[str, Any]]:
    """What can be asked of the average, two things at a time, under FedAvg."""
    cls = methods["fedavg"]
    for pair in itertools.combinations(BOUNDS, 2):
        if pair[0][0] != pair[1][0]:
            yield _pair(cls, pair)


def _pair(cls: type[Method], pair: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in pair:
        options |= {name: value, **NEEDS.get(f"{name}={value}", {})}
    cap = {"aggregation": {"cap": options.pop("cap")}} if "cap" in options else {}
    return _case(cls, " ".join(f"{name}={value}" for name, value in pair), options, **cap)
