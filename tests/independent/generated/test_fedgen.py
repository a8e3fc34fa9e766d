"""FedGen, written once more: Zhu et al., ICML 2021, Algorithm 1 and Eq. 4 and 5, and the code that came with it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedalloy.federation.participation import Participation
from fedalloy.federation.setting import Setting
from fedalloy.methods import FedGen
from fedalloy.nets.models import FeatureNet
from fedalloy.train.fit import LocalWork


class Hidden(nn.Module):
    """(noise, one-hot label) -> linear -> BatchNorm -> ReLU -> linear [-> ReLU]."""

    def __init__(self, noise: int, classes: int, hidden: int, feature: int, relu: bool) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(noise + classes, hidden), nn.BatchNorm1d(hidden), nn.Linear(hidden, feature)
        self.classes, self.relu = classes, relu

    def forward(self, eps: Tensor, y: Tensor) -> Tensor:
        z = self.c(torch.relu(self.b(self.a(torch.cat([eps, torch.eye(self.classes)[y]], 1)))))
        return torch.relu(z) if self.relu else z


class Perceptron(nn.Module):
    """Two embeddings, of label and noise, and linear layers with BatchNorm and LeakyReLU, as DaFKD describes it."""

    def __init__(self, noise: int, classes: int, width: int, feature: int, relu: bool) -> None:
        super().__init__()
        self.y, self.eps, self.relu, self.classes = nn.Linear(classes, width), nn.Linear(noise, width), relu, classes
        self.a, self.b = nn.Linear(2 * width, 4 * width), nn.BatchNorm1d(4 * width)
        self.c, self.d = nn.Linear(4 * width, 8 * width), nn.BatchNorm1d(8 * width)
        self.out = nn.Linear(8 * width, feature)

    def forward(self, eps: Tensor, y: Tensor) -> Tensor:
        z = F.leaky_relu(torch.cat([self.y(torch.eye(self.classes)[y]), self.eps(eps)], 1), 0.2)
        z = F.leaky_relu(self.b(self.a(z)), 0.2)
        z = self.out(F.leaky_relu(self.d(self.c(z)), 0.2))
        return torch.relu(z) if self.relu else z


def diversity(eps: Tensor, z: Tensor) -> Tensor:
    """exp(-mean_ij |eps_i - eps_j|^2 |z_i - z_j|), both distances being means over the dimensions."""
    z = z.flatten(1)
    noises = ((eps[:, None] - eps[None]) ** 2).mean(2)
    features = (z[:, None] - z[None]).abs().mean(2)
    return torch.exp(-(noises * features).mean())


def server_loss(heads: list, weights: list[float], counts: Tensor, z: Tensor, y: Tensor, o: dict) -> Tensor:
    """Eq. 4: CE of the mean logits; or what the code does with the clients' shares of each label."""
    if o["server_loss"] == "avg_logits":
        return F.cross_entropy(sum(w * head(z) for w, head in zip(weights, heads, strict=True)), y)
    shares = (counts + 1) / (counts + 1).sum(0)  # counts (clients x classes) start at 1
    loss = torch.zeros(())
    for head, share in zip(heads, shares, strict=True):
        ce = F.cross_entropy(head(z), y, reduction="none")
        each = share[y]
        if o["server_loss"] == "weighted_means":
            each = each.view(-1, 1)  # (B) times (B, 1), as in the code
        loss = loss + (ce * each).mean()
    return loss


def server_steps(gen: nn.Module, adam, heads, weights, counts, draws: list[tuple[Tensor, Tensor]], o: dict) -> None:
    """The generator's steps of a round, on these noises and labels."""
    for eps, y in draws:
        z = gen(eps, y)
        loss = server_loss(heads, weights, counts, z, y, o) + o["diversity"] * diversity(eps, z)
        for p in gen.parameters():
            p.grad = None
        loss.backward()
        adam.step()


def client_loss(net, cut, gen, x: Tensor, y: Tensor, drawn: tuple[Tensor, Tensor], latent: Tensor | None, o) -> Tensor:
    """Eq. 5 and the code's third term: the KL from answers to generated features of the batch's labels."""
    head = cut(net)
    logits = net(x)
    loss = F.cross_entropy(logits, y)
    with torch.no_grad():
        z = gen(*drawn)
    loss = loss + o["alpha"] * F.cross_entropy(head(z), drawn[1])
    if latent is not None:
        with torch.no_grad():
            p = head(gen(latent, y)).softmax(1)
        loss = loss + o["beta"] * (p * (p.log() - logits.log_softmax(1))).sum(1).mean()
    return loss


def faded(weight: float, decay: float, round: int) -> float:
    """alpha_t and beta_t."""
    return max(weight * decay ** (round - 1), 1e-4)


def step(net: nn.Module, loss: Tensor, lr: float) -> None:
    """One step of SGD."""
    parameters = list(net.parameters())
    with torch.no_grad():
        for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p -= lr * g


def mean(models: dict[int, dict], weights: dict[int, float]) -> dict[str, Tensor]:
    """The weighted average of the clients' models."""
    total = sum(weights[k] for k in models)
    return {name: sum(weights[k] * m[name] for k, m in models.items()) / total for name in next(iter(models.values()))}


# --- driving both ----------------------------------------------------------------------------------------------------

SIZES, TRACE, BATCH, LR, CLASSES = (6, 8, 7), [[0, 1], [1, 2], [0, 2]], 4, 0.1, 3
OURS = {"server_loss": "avg_logits", "weights": "size", "logits": "size", "start_round": 2, "noise_kind": "rand",
        "labels": "counts", "cut": "features", "relu": True, "weight": 1.0, "decay": 1.0, "latent_weight": 0.0,
        "generated_steps": 99, "generator_kind": "hidden", "generator_lr": 1e-4, "generator_lr_decay": 1.0,
        "generator_weight_decay": 0.0, "generator_batch": 64, "noise": 32, "hidden": 256, "diversity": 1.0}  # fmt: skip
VARIANTS = {  # the table in the method's readings
    "recommended": OURS,
    "paper": OURS | {"weights": "uniform", "logits": "uniform", "start_round": 1, "noise_kind": "randn"},
    "reference": OURS | {"server_loss": "weighted_means", "labels": "uniform", "cut": "last", "relu": False,
                         "weight": 10.0, "decay": 0.98, "latent_weight": 1.0, "generated_steps": 20,
                         "generator_lr_decay": 0.98, "generator_weight_decay": 0.01, "generator_batch": 32},
    "fedkf": OURS | {"labels": "counts_by_size"},
    "dafkd": OURS | {"generator_kind": "perceptron", "noise": 100, "hidden": 128, "generator_lr": 1e-3},
}  # fmt: skip
CASES = [
    *((variant, {}) for variant in VARIANTS),
    ("recommended", {"cut": "last", "latent_weight": 0.5, "decay": 0.5}),
    ("recommended", {"generated_steps": 1, "start_round": 3}),
    ("recommended", {"server_loss": "weighted_ce", "diversity": 0.3}),
    ("recommended", {"server_loss": "weighted_means", "labels": "uniform"}),
    ("recommended", {"logits": "uniform", "start_round": 1}),
    ("paper", {"logits": "size", "weight": 2e-4, "decay": 0.1}),
    ("paper", {"logits": "models"}),
    ("reference", {"generator_kind": "perceptron", "relu": True, "generated_steps": 1, "hidden": 8}),
]


def network() -> FeatureNet:
    features = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.ReLU())
    return FeatureNet(features, nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, CLASSES)), (6,))


def loaded(target: nn.Module, state: dict[str, Tensor]) -> nn.Module:
    """A module with another one's weights, which are in the same order."""
    target.load_state_dict({name: t.clone() for name, t in zip(target.state_dict(), state.values(), strict=True)})
    return target


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    pairs = zip(one.values(), other.values(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs if a.is_floating_point())


@pytest.mark.parametrize(("variant", "changed"), CASES)
def test_three_rounds_agree(variant, changed, watch, random_sites):
    o = VARIANTS[variant] | changed
    if o["logits"] == "models":
        o["logits"] = o["weights"]
    sites = random_sites(SIZES, shape=(1, 4, 4), classes=CLASSES)
    setting = Setting(
        sites=sites, networks=[network], classes=CLASSES, work=LocalWork(batch=BATCH, lr=LR),
        participation=Participation(policy="trace", trace=TRACE),
    )  # fmt: skip
    method = FedGen(variant=variant, generator_steps=3, **changed)
    rounds = watch(method, setting, len(TRACE))

    make = {"hidden": Hidden, "perceptron": Perceptron}[o["generator_kind"]]
    gen = make(o["noise"], CLASSES, o["hidden"], 5 if o["cut"] == "last" else 6, o["relu"])
    loaded(gen, method.new_generator(setting.client(0, 1, {})).state_dict())
    adam = torch.optim.Adam(gen.parameters(), lr=1.0, weight_decay=o["generator_weight_decay"])

    def cut(net: FeatureNet) -> nn.Module:
        return net.head[-1] if o["cut"] == "last" else net.head

    model, worst = rounds[0].before["model"], 0.0
    labels = torch.full((CLASSES,), 1 / CLASSES)
    sizes = dict(enumerate(SIZES))
    for t, (seen, active) in enumerate(zip(rounds, TRACE, strict=True), 1):
        gen.eval()
        o["alpha"], o["beta"] = (faded(o[name], o["decay"], t) for name in ("weight", "latent_weight"))
        nets = {}
        for act in seen.acts:
            data, net = sites[act.client].train, loaded(network(), model)
            for i, b in enumerate(act.draws.take("randperm").split(BATCH)):
                x, y = data.inputs[b], data.labels[b]
                if t < o["start_round"] or i >= o["generated_steps"]:
                    step(net, F.cross_entropy(net(x), y), LR)
                    continue
                assert torch.allclose(act.draws.shares(), labels, atol=1e-6)
                y_drawn, eps = act.draws.take("multinomial"), act.draws.take(o["noise_kind"])
                assert y_drawn.shape == y.shape
                latent = act.draws.take(o["noise_kind"]) if o["latent_weight"] else None
                step(net, client_loss(net, cut, gen, x, y, (eps, y_drawn), latent, o), LR)
            assert not act.draws
            worst = max(worst, apart(net.state_dict(), act.body["model"]))
            nets[act.client] = net
        counts = torch.stack([sites[k].train.labels.bincount(minlength=CLASSES) for k in active]).double()
        share = {
            "counts": counts.sum(0),
            "counts_by_size": (counts * counts.sum(1, keepdim=True)).sum(0),
            "uniform": (counts.sum(0) > 0).double(),
        }[o["labels"]]
        labels = share / share.sum()
        drawn = []
        for _ in range(3):
            assert torch.allclose(seen.draws.shares(), labels, atol=1e-6)
            y = seen.draws.take("multinomial")
            drawn.append((seen.draws.take(o["noise_kind"]), y))
        assert {len(y) for _, y in drawn} == {o["generator_batch"]}
        assert not seen.draws
        by = {"size": sizes, "uniform": dict.fromkeys(sizes, 1)}
        a = [by[o["logits"]][k] / sum(by[o["logits"]][j] for j in active) for k in active]
        adam.param_groups[0]["lr"] = o["generator_lr"] * o["generator_lr_decay"] ** (t - 1)
        server_steps(gen.train(), adam, [cut(nets[k]) for k in active], a, counts, drawn, o)
        model = mean({k: dict(net.state_dict()) for k, net in nets.items()}, by[o["weights"]])
        worst = max(worst, apart(gen.state_dict(), seen.after["generator"]), apart(model, seen.after["model"]))
    assert worst < 1e-9
