"""Selective-FD, written once more from its equations (Shao, Wu and Zhang), and compared over three rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedalloy.base.rng import generator
from fedalloy.errors import UsageError
from fedalloy.methods.selective_fd import SelectiveFD


def kernel(a: Tensor, b: Tensor, width: float) -> Tensor:
    rows = [[math.exp(-float((p - q).square().sum()) / (2 * width**2)) for q in b] for p in a]
    return torch.tensor(rows, dtype=torch.float64)


def kulsif(x: Tensor, known: Tensor, uniform: Tensor, width: float, lam: float) -> Tensor:
    """The density ratio at x: alpha solves (K11 / n + lam I) alpha = -K12 1 / (n m lam)."""
    n, m = len(uniform), len(known)
    left = kernel(uniform, uniform, width) / n + lam * torch.eye(n)
    right = -kernel(uniform, known, width).sum(1) / (n * m * lam)
    alpha = torch.linalg.inv(left) @ right
    return kernel(x, uniform, width) @ alpha + kernel(x, known, width).sum(1) / (m * lam)


def ensemble(votes: dict[int, tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """q(x), the mean over those who voted on x, and on which samples anybody did."""
    masks = torch.stack([mask for mask, _ in votes.values()]).double()
    answers = torch.stack([answer for _, answer in votes.values()])
    voters = masks.sum(0)
    return (masks[:, :, None] * answers).sum(0) / voters.clamp_min(1)[:, None], voters > 0


def one_hot(p: Tensor) -> Tensor:
    return nn.functional.one_hot(p.argmax(1), p.shape[1]).double()


def clear(q: Tensor, o: dict[str, Any]) -> Tensor:
    """The server-side selector."""
    if o["server_selector"] == "l1":
        return (q - one_hot(q)).abs().sum(1) <= o["tau_server"]
    if o["server_selector"] == "entropy":
        entropy = -(q * q.clamp_min(1e-300).log()).sum(1)
        return entropy <= o["max_entropy"] * math.log(q.shape[1])
    return torch.ones(len(q), dtype=torch.bool)


def distance(z: Tensor, q: Tensor, kd: str, temperature: float) -> Tensor:
    """Of each sample's answer from its label."""
    if kd == "ce":
        return -(q * z.log_softmax(1)).sum(1)
    soft = q ** (1 / temperature) / (q ** (1 / temperature)).sum(1, keepdim=True)
    return (torch.special.xlogy(soft, soft) - soft * (z / temperature).log_softmax(1)).sum(1)


def defaults(given: dict[str, Any]) -> dict[str, Any]:
    o = {"persist": False, "tune_epochs": 1, "tune_steps": 0, "tune_batch": None, "tune_lr": None, "temperature": 1.0}
    o |= {"kd_weight": None, "ce_on": "none", "client_selector": "kulsif", "q": 0.25, "width": 5.0, "lam": None}
    o |= {"auxiliary": 250, "known_share": 0.05, "known_least": 50, "server_selector": "l1", "tau_server": 2.0}
    o |= {"max_entropy": 0.5, "tune_on": None, "kd": "ce", "labels": "soft", "samples": None, "policy": "fresh"}
    o |= given
    o["tune_on"] = o["tune_on"] or ("all" if o["ce_on"] == "public" else "kept")
    o["kd_weight"] = o["temperature"] ** 2 if o["kd_weight"] is None else o["kd_weight"]
    return o


def resembling(world: Any, t: int, k: int, o: dict[str, Any]) -> Tensor:
    """The client-side selector on the whole public set: ratios above the q-quantile of the client's other samples."""
    own, _ = world.own(k)
    known = max(1, min(max(int(o["known_share"] * len(own)), o["known_least"]), len(own) // 2))
    stream = generator(world.setting.seed, "selector", t, k)
    order = torch.randperm(len(own), generator=stream)
    uniform = own.min() + (own.max() - own.min()) * torch.rand(o["auxiliary"], own.shape[1], generator=stream)
    lam = o["auxiliary"] ** -0.5 if o["lam"] is None else o["lam"]
    width = o["width"]
    if isinstance(width, str):  # a part of the median distance between known samples
        pairs = sorted(float((a - b).norm()) for i, a in enumerate(own[order[:known]]) for b in own[order[:i]])
        width = pairs[(len(pairs) - 1) // 2] / (1 if width == "median" else 8) if pairs else 5.0
    fitted = (own[order[:known]], uniform, width, lam)
    threshold = torch.quantile(kulsif(own[order[known:]], *fitted), o["q"])
    return kulsif(world.public.inputs, *fitted) > threshold


@dataclass
class Ours:
    """The clients' networks, and on how many samples there was a vote in each round, and how many were kept."""

    nets: dict[int, nn.Module]
    voted: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)


def tune(
    world: Any,
    tools: Any,
    o: dict[str, Any],
    t: int,
    k: int,
    net: nn.Module,
    here: Tensor,
    q: Tensor,
    alive: Tensor,
    kept: Any,
) -> Any:
    """Fine-tuning on the samples `here`, of which those that survived have a label q."""
    at, x = world.drawn(t, o["samples"], o["policy"])
    labels, x, q, alive = world.public.labels[at][here], x[here], q[here], alive[here]
    batch = o["tune_batch"] or world.work.batch
    draws = world.draws("tune", t, k, len(x), batch, epochs=o["tune_epochs"], steps=o["tune_steps"])
    own = tools.beside(world, net, t, k, len(draws))
    kd = "ce" if o["labels"] == "hard" else o["kd"]

    def loss(z: Tensor, rows: Tensor) -> Tensor:
        on = alive[rows]
        far = distance(z[on], q[rows][on], kd, o["temperature"])
        total: Tensor = o["kd_weight"] * far.sum() / len(z)  # a mean over the batch, in which the others count 0
        if o["ce_on"] == "public":
            total = total + nn.functional.cross_entropy(z, labels[rows])
        return total + next(own) if o["ce_on"] == "local" else total

    return tools.steps(net, x, draws, loss, world.optimiser(net, t, o["tune_lr"], kept))


def repeated(world: Any, tools: Any, given: dict[str, Any], rounds: int) -> Ours:
    o, ours = defaults(given), Ours(world.nets())
    familiar, states = dict[int, Tensor](), dict[int, Any]()
    for t in range(1, rounds + 1):
        at, x = world.drawn(t, o["samples"], o["policy"])
        votes = {}
        for k in world.active(t):
            states[k] = tools.local_work(world, ours.nets[k], t, k, states.get(k) if o["persist"] else None)
            soft = tools.logits(ours.nets[k], x).softmax(1)
            mask = torch.ones(len(x), dtype=torch.bool)
            if o["client_selector"] == "kulsif":
                if k not in familiar:
                    familiar[k] = resembling(world, t, k, o)
                mask = familiar[k][at]
            elif o["client_selector"] == "label_match":
                mask = soft.argmax(1) == world.public.labels[at]
            votes[k] = (mask, one_hot(soft) if o["labels"] == "hard" else soft)
        q, anybody = ensemble(votes)
        kept = anybody & clear(q, o)
        ours.voted.append(int(anybody.sum()))
        ours.kept.append(int(kept.sum()))
        q = one_hot(q) if o["labels"] == "hard" else q
        for k in world.active(t):
            chosen = {"all": torch.ones_like(kept), "kept": kept, "voted": kept & votes[k][0]}[o["tune_on"]]
            if chosen.any():
                last = states[k] if o["persist"] else None
                here = chosen.nonzero().flatten()
                states[k] = tune(world, tools, o, t, k, ours.nets[k], here, q, kept, last)
    return ours


KULSIF = {"auxiliary": 20, "known_least": 2, "width": 1.5, "q": 0.4}
MATCH = {"client_selector": "label_match"}
VARIANTS = {
    "reference": {"samples": 9, "tune_steps": 10, "tune_batch": 512, "known_least": 1, "server_selector": "none"},
    "knfu": {**MATCH, "ce_on": "public", "kd": "kl", "server_selector": "entropy"},
}
OPTIONS = [
    {"auxiliary": 20},
    KULSIF,
    {**KULSIF, "lam": 0.7, "known_share": 0.4, "known_least": 1},
    {**KULSIF, "width": "median"},
    {**KULSIF, "width": "median/8", "known_least": 4},
    {**KULSIF, "samples": 7, "tune_on": "voted"},
    {**KULSIF, "tau_server": 0.5, "persist": True},
    {**MATCH, "tau_server": 0.7},
    {**MATCH, "tau_server": 0.0},
    {**MATCH, "tau_server": 0.7, "labels": "hard"},
    {**MATCH, "labels": "hard", "server_selector": "entropy", "max_entropy": 0.6, "ce_on": "public"},
    {**MATCH, "server_selector": "entropy", "max_entropy": 0.7},
    {**MATCH, "server_selector": "entropy", "max_entropy": 0.7, "ce_on": "public", "kd_weight": 0.3},
    {**MATCH, "server_selector": "entropy", "max_entropy": 0.7, "ce_on": "public", "tune_on": "kept"},
    {**MATCH, "server_selector": "entropy", "max_entropy": 0.7, "ce_on": "public", "tune_on": "voted"},
    {**MATCH, "ce_on": "local", "tune_on": "voted"},
    {**MATCH, "kd": "kl", "temperature": 2.0},
    {"client_selector": "none", "server_selector": "none", "tune_batch": 5, "tune_lr": 0.02, "tune_epochs": 2},
    {"client_selector": "none", "kd": "kl", "temperature": 2.0, "kd_weight": 0.5, "persist": True, "tune_lr": 0.02},
    {"client_selector": "none", "tune_steps": 5},
]


def compare(world: Any, tools: Any, method: SelectiveFD, options: dict[str, Any]) -> Ours:
    ran, ours = world.run(method, 3), repeated(world, tools, options, 3)
    assert [r.notes["public samples voted on"] for r in ran.rounds] == ours.voted
    assert [r.notes["public samples kept"] for r in ran.rounds] == ours.kept
    assert max(tools.farthest(ran.memories[k]["model"], ours.nets[k]) for k in ours.nets) < 1e-9
    return ours


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_selective_fd_is_the_papers(options, world, tools):
    compare(world(), tools, SelectiveFD(**options), options)


@pytest.mark.parametrize("options", [{}, {"max_entropy": 0.3}, {"kd_weight": 0.25, "persist": True}], ids=str)
def test_the_variant_of_knfu(options, world, tools):
    compare(world(), tools, SelectiveFD(variant="knfu", **options), {**VARIANTS["knfu"], **options})


@pytest.mark.parametrize("options", [{}, {"width": 1.0, "tune_batch": 4}], ids=str)
def test_the_variant_of_the_authors_code(options, world, tools):
    assert SelectiveFD(variant="reference").samples == 512
    given = {"samples": 9, "auxiliary": 20, **options}
    compare(world(), tools, SelectiveFD(variant="reference", **given), {**VARIANTS["reference"], **given})


def test_one_class_cannot_be_softened():
    """Its square would only weigh the cross-entropy of hard labels, which has no temperature."""
    with pytest.raises(UsageError, match="temperature"):
        SelectiveFD(variant="knfu", labels="hard", temperature=2.0)
