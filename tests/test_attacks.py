"""Attacks on values computed by hand, and what they do to real federations with and without a defence."""

import io
import json
import math
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from torch import nn

from fedalloy.aggregation.rule import Aggregation
from fedalloy.base import tree
from fedalloy.base.text import MISSING
from fedalloy.check import attack_bench
from fedalloy.check.attack_bench import (
    DEFAULT,
    Score,
    attack_table,
    bench_attacks,
    bench_experiment,
    defences,
    report_attacks,
)
from fedalloy.check.attacks import (
    ATTACKS,
    Attacked,
    answers,
    choose_attackers,
    claims,
    free_rider,
    honest,
    inflated_scores,
    label_flip,
    nan,
    parameters,
    rank_flip,
    scaled_logits,
    sign_flip,
)
from fedalloy.config.build import build
from fedalloy.config.experiment import experiment
from fedalloy.config.sections import Choice
from fedalloy.engine.serial import Serial
from fedalloy.engine.threads import Threads
from fedalloy.errors import UsageError
from fedalloy.federation import gate
from fedalloy.federation.core import quick, run
from fedalloy.federation.participation import Participation
from fedalloy.methods import DaFKD, DaFKDPredictions, DaFKDScores, FedAvg, FedMD, Local
from fedalloy.methods.dsfl import DSFL
from fedalloy.methods.knfu import KnFu
from fedalloy.nets.models import FeatureNet
from fedalloy.train.fit import params

TINY = {
    "data": "tiny",
    "model": "mlp",
    "engine": "serial",
    "rounds": 2,
    "partition": {"clients": 5, "alpha": 1.0},
    "training": {"batch": 16, "lr": 0.1},
    "public": {"samples": 40, "labelled": True},
}
QUICK_MD = {"pretrain_public": 1, "pretrain_private": 1}
TRIMMED = {"combine": "trimmed", "trim": 0.1}
NAMES = ("fedprox", "kdia", "fedmd", "ds-fl", "knfu", "dafkd")


@pytest.fixture(scope="module")
def setting():
    return build(experiment(TINY)).setting


def model(*w, steps=7):
    return {"w": torch.tensor(w), "steps": torch.tensor(steps)}


# --- what is sent -----------------------------------------------------------------------------------------------------


def test_sign_flip_mirrors_the_update_at_the_servers_model():
    body, sent = {"model": model(2.0, 0.0), "n": 5}, {"model": model(1.0, 2.0, steps=3)}
    assert sign_flip(body, sent, boost=1.0)["model"]["w"].tolist() == [0.0, 4.0]
    flipped = sign_flip(body, sent)
    assert flipped["model"]["w"].tolist() == [-3.0, 10.0]  # 1 - 4 (2 - 1) and 2 - 4 (0 - 2)
    assert flipped["model"]["steps"] == 7  # an integer buffer has no direction
    assert flipped["n"] == 5
    assert body["model"]["w"].tolist() == [2.0, 0.0]


def test_scaled_logits_puts_everything_on_the_least_likely_class():
    forged = scaled_logits({"logits": torch.tensor([[1.0, 3.0, 2.0], [0.0, -5.0, 9.0]])}, {})["logits"]
    assert forged.tolist() == [[1e4, 0.0, 0.0], [0.0, 1e4, 0.0]]
    soft = scaled_logits({"soft": torch.tensor([[0.2, 0.5, 0.3]])}, {})["soft"]
    assert soft.tolist() == [[1.0, 0.0, 0.0]]
    assert gate.probabilities(1, 3)(soft) is None  # nothing that a gate could see


def test_rank_flip_reverses_the_order_of_every_row():
    rows = torch.tensor([[1.0, 3.0, 2.0, 7.0], [4.0, -1.0, 0.0, 2.0]])
    flipped = rank_flip({"logits": rows}, {})["logits"]
    assert flipped.tolist() == [[7.0, 2.0, 3.0, 1.0], [-1.0, 4.0, 2.0, 0.0]]
    assert torch.equal(rank_flip({"logits": flipped}, {})["logits"], rows)
    soft = torch.rand(6, 5, generator=torch.Generator().manual_seed(0)).softmax(1)
    assert gate.probabilities(6, 5)(rank_flip({"soft": soft}, {})["soft"]) is None


def test_inflated_scores_claim_every_sample_in_each_form_in_which_scores_are_sent():
    assert inflated_scores({"scores": torch.tensor([0.1, 0.7])}, {})["scores"].tolist() == [1.0, 1.0]
    products = {"soft": torch.tensor([[0.25, 0.1875, 0.0625], [0.0, 0.0, 0.0]])}  # scores of 0.5 and 0
    soft = inflated_scores(products, {})["soft"]
    assert soft[0].tolist() == [0.125, 0.375, 0.5]
    assert soft[1].tolist() == pytest.approx([1 / 3] * 3)
    head = {"own.0.bias": torch.tensor([2.0, 2.0]), "head.0.weight": torch.ones(1, 3), "head.0.bias": torch.ones(1)}
    forged = inflated_scores({"head": head}, {})["head"]
    assert {name: t.flatten().tolist() for name, t in forged.items()} == {
        "own.0.bias": [2.0, 2.0],
        "head.0.weight": [1.0, 1.0, 1.0],
        "head.0.bias": [1e4],
    }
    assert [claims(body) for body in (products, {"head": head}, {"scores": torch.ones(2)})] == [
        ["soft"],
        ["head"],
        ["scores"],
    ]
    assert claims({"soft": torch.tensor([[0.2, 0.5, 0.3]]), "n": 5}) == []  # probabilities claim nothing


def test_inflated_scores_come_with_a_classifier_that_answers_upside_down():
    net = FeatureNet(nn.Sequential(nn.Linear(4, 3)), nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), (3,))
    x = torch.rand(5, 4, generator=torch.Generator().manual_seed(0))
    own = net(x)
    net.load_state_dict(inflated_scores({"model": params(net), "n": 5}, {})["model"])
    assert torch.equal(net(x), -own)


@pytest.mark.parametrize("cls", [DaFKD, DaFKDScores, DaFKDPredictions])
def test_inflated_scores_pass_dafkds_gate_and_get_the_attackers_more(setting, cls):
    method = quick(cls)
    refused = []

    def ran(forge):
        engine = Attacked(Serial(setting), forge, [1])
        state = run(method, engine, 1, watch=lambda _, fed: refused.extend(fed.quarantined))
        return engine, state

    (engine, plain), (_, attacked) = ran(honest), ran(inflated_scores)
    assert engine.kinds == {"parameters", "scores"} | ({"answers"} if cls is DaFKDPredictions else set())
    assert refused == []
    assert not tree.equal(plain.body, attacked.body)
    if cls is not DaFKDPredictions:  # of which the server knows no shares
        share = [float(s["importance"][1].sum() / s["importance"].sum()) for s in (plain, attacked)]
        assert share[1] > 1.2 * share[0]


def test_nan_spoils_every_real_number_and_nothing_else():
    forged = nan({"model": model(1.0), "loss": 0.5, "n": 5}, {})
    assert math.isnan(forged["model"]["w"][0])
    assert forged["model"]["steps"] == 7
    assert math.isnan(forged["loss"])
    assert forged["n"] == 5


def test_a_free_rider_echoes_the_model_the_last_consensus_or_equal_probabilities():
    sent = {"model": model(1.0), "soft": torch.tensor([[0.25, 0.75]])}
    assert free_rider({"model": model(2.0), "n": 5}, sent) == {"model": sent["model"], "n": 5}
    assert free_rider({"soft": torch.tensor([[0.5, 0.5]])}, sent)["soft"] is sent["soft"]
    two_rows = {"soft": torch.tensor([[0.9, 0.1], [0.4, 0.6]])}
    assert free_rider(two_rows, sent)["soft"].tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert free_rider({"logits": torch.tensor([[9.0, 1.0]])}, sent)["logits"].tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("name", ["sign-flip", "scaled-logits", "rank-flip"])
def test_a_reply_of_another_kind_is_left_as_it_is(name):
    models = {"model": model(2.0), "head": {"w": torch.ones(1)}, "n": 5}  # nobody was sent a head
    both = {"parameters": models, "answers": {"soft": torch.tensor([[0.2, 0.5, 0.3]])}}
    sent = {"model": model(1.0)}
    for kind, body in both.items():
        changed = not tree.equal(ATTACKS[name].forge(body, sent), body)
        assert changed == (kind in ATTACKS[name].on)
    assert ATTACKS[name].forge(models, sent)["head"] is models["head"]
    assert (parameters(models, sent), answers(models)) == (["model"], [])


# --- who attacks, and with what data ----------------------------------------------------------------------------------


def test_attackers_are_the_beginning_of_a_seeded_permutation():
    for seed in range(5):
        few, more = choose_attackers(20, 0.1, seed), choose_attackers(20, 0.4, seed)
        assert (len(few), len(more)) == (2, 8)
        assert set(few) < set(more) <= set(range(20))
        assert more == sorted(more)
    assert len({tuple(choose_attackers(20, 0.4, seed)) for seed in range(5)}) == 5


@pytest.mark.parametrize(("clients", "fraction"), [(10, 0.5), (10, 0.01), (4, 0.4), (10, -0.3)])
def test_no_attackers_and_too_many_are_refused(clients, fraction):
    with pytest.raises(UsageError, match="at least one must be, and fewer than half"):
        choose_attackers(clients, fraction, seed=0)


def test_label_flip_changes_the_attackers_training_labels_only(setting):
    hostile = label_flip(setting, [1, 3])
    for k, (site, before) in enumerate(zip(hostile.sites, setting.sites, strict=True)):
        expected = 9 - before.train.labels if k in (1, 3) else before.train.labels
        assert torch.equal(site.train.labels, expected)
        assert site.train.x is before.train.x
        assert site.test is before.test
    assert hostile.sites[1].train.y is hostile.sites[3].train.y  # one pool for all attackers
    assert hostile.sizes == setting.sizes


# --- attacks on the way to the server ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        FedAvg(),
        FedAvg(aggregation=Aggregation(combine="trimmed", trim=0.4, clip="median")),
        FedMD(**QUICK_MD),
        KnFu(),
        DSFL(),
    ],
    ids=["fedavg", "trimmed", "fedmd", "knfu", "ds-fl"],
)
def test_nan_leaves_the_round_as_if_the_attackers_were_absent(setting, method):
    attacked = Attacked(Serial(setting), nan, [0, 4])
    without = Serial(replace(setting, participation=Participation(policy="trace", trace=[[1, 2, 3]])))
    refused = []
    found = run(method, attacked, 2, watch=lambda _, fed: refused.extend(fed.quarantined))
    expected = run(method, without, 2)
    assert tree.equal(found.body, expected.body)
    assert found.round == 2
    assert attacked.memories.keys() == without.memories.keys()
    for k in without.memories:
        assert tree.equal(attacked.memories[k], without.memories[k])
    assert [bad["client"] for bad in refused] == [0, 4, 0, 4]


def test_a_free_rider_in_a_federation_sends_back_the_model(setting):
    fed = Attacked(Serial(setting), free_rider, [2]).open(FedAvg(), 1)
    start = FedAvg().init(fed)["model"]
    same = [tree.equal(r["model"], start) for r in fed.ask("train", [1, 2, 3], model=start)]
    assert same == [False, True, False]


def test_a_free_rider_in_a_federation_sends_back_the_last_consensus(setting):
    method = FedMD(**QUICK_MD)
    engine = Attacked(Serial(setting), free_rider, [2])
    fed = engine.open(method, 1)
    first = fed.ask("answer", [1, 2])
    assert not first[1]["logits"].any()  # there is no consensus yet
    consensus = method.consensus(first)
    fed.ask("revisit", [1, 2], logits=consensus)
    second = engine.open(method, 2).ask("answer", [1, 2])
    assert [torch.equal(r["logits"], consensus) for r in second] == [False, True]


def test_attackers_keep_their_memory_and_honest_clients_all_they_say(setting):
    honest, attacked = Serial(setting), Attacked(Serial(setting), scaled_logits, [0])
    expected = honest.open(KnFu(), 1).ask("learn", [0, 1])
    found = attacked.open(KnFu(), 1).ask("learn", [0, 1])
    assert not tree.equal(found[0].body, expected[0].body)
    assert tree.equal(found[1].body, expected[1].body)
    assert all(tree.equal(attacked.memories[k], honest.memories[k]) for k in (0, 1))


def test_without_attackers_and_in_threads_nothing_changes(setting):
    plain = run(FedAvg(), Serial(setting), 1)
    assert tree.equal(run(FedAvg(), Attacked(Serial(setting)), 1).body, plain.body)
    serial = run(FedAvg(), Attacked(Serial(setting), sign_flip, [0, 1]), 1)
    threads = run(FedAvg(), Attacked(Threads(setting, workers=2), sign_flip, [0, 1]), 1)
    assert tree.equal(threads.body, serial.body)
    assert not tree.equal(serial.body, plain.body)


@pytest.mark.parametrize(
    ("method", "kinds"),
    [(FedAvg(), {"parameters"}), (KnFu(), {"answers"}), (FedMD(**QUICK_MD), {"answers"}), (Local(), set())],
)
def test_the_engine_says_what_kind_of_thing_is_sent(setting, method, kinds):
    engine = Attacked(Serial(setting))
    run(method, engine, 1)
    assert engine.kinds == kinds


# --- the benchmark ----------------------------------------------------------------------------------------------------


def test_every_method_gets_the_defences_that_it_has():
    found = {name: list(defences(Choice(name=name), 3, 10)) for name in NAMES}
    assert found == {
        "fedprox": ["none", "trimmed mean", "median", "krum", "clipped"],
        "kdia": ["none", "clipped"],  # it refuses to combine otherwise
        "fedmd": ["none", "trimmed mean", "median", "krum", "clipped logits"],
        "ds-fl": ["none", "trimmed mean", "median", "krum"],
        "knfu": ["none"],
        "dafkd": ["none", "krum", "capped shares"],
    }
    assert defences(Choice(name="dafkd"), 3, 10)["capped shares"].max_share == 0.2
    own = Choice(name="fedprox", options={"mu": 0.5}, aggregation={"clip": 3.0})
    assert [(m.mu, m.aggregation.clip) for m in defences(own, 3, 10).values()] == [(0.5, 3.0)] * 4 + [(0.5, "median")]
    shares = {"none": 0.1, "trimmed mean": 0.3, "median": Aggregation().trim, "krum": 0.3}
    own, common = Choice(name="ds-fl", aggregation=TRIMMED), experiment({"aggregation": TRIMMED})
    for found in (defences(own, 3, 10), defences(Choice(name="ds-fl"), 3, 10, common)):
        assert {name: m.aggregation.trim for name, m in found.items()} == shares
        assert [m.aggregation.combine for m in found.values()] == ["trimmed", "trimmed", "median", "krum"]


def test_the_experiments_own_rule_and_cache_hold_for_all_lines(monkeypatch):
    seen = []
    monkeypatch.setattr(attack_bench, "_reached", lambda method, *_: (seen.append(method), ("aca", 1.0))[1])
    bench_attacks({**TINY, "aggregation": {"cap": 0.5}, "cache": {"oca": False}}, ["fedavg", "local"], ["nan"], 0.4)
    assert {m.aggregation.cap for m in seen} == {0.5}
    assert {m.cache.oca for m in seen if m.name == "fedavg"} == {False}


def test_ds_fl_is_defended():
    exp = {**TINY, "methods": {"ds-fl": {}}, "partition": {"name": "iid", "clients": 5}}
    scores = bench_attacks(exp, None, ["scaled-logits", "rank-flip"], 0.4)
    assert [s.defence for s in scores[::3]] == ["none", "trimmed mean", "median", "krum"]
    assert all(s.accuracy is not None and s.kept is not None and math.isfinite(s.kept) for s in scores)


@pytest.mark.parametrize(("attackers", "clients"), [(1, 3), (3, 10), (5, 11), (7, 100), (499, 1000)])
def test_trimming_drops_all_attackers_at_either_end(attackers, clients):
    method = defences(Choice(name="fedavg"), attackers, clients)["trimmed mean"]
    assert math.floor(method.aggregation.trim * clients + 1e-9) >= attackers


def test_scores_compare_each_line_with_itself():
    exp = {**TINY, "rounds": 1, "methods": {"short": {"name": "fedmd", **QUICK_MD}}}
    scores = bench_attacks(exp, ["fedavg", "short"], ["sign-flip", "rank-flip", "label-flip"], 0.4)
    lines = [("FedAvg", d) for d in ("none", "trimmed mean", "median", "krum", "clipped")]
    lines += [("short", d) for d in ("none", "trimmed mean", "median", "krum", "clipped logits")]
    order = ["none", "sign-flip", "rank-flip", "label-flip"]
    assert [(s.method, s.defence, s.attack) for s in scores] == [(*line, attack) for line in lines for attack in order]
    for s in scores:
        clean = next(c for c in scores if (c.method, c.defence, c.attack) == (s.method, s.defence, "none"))
        idle = (s.method, s.attack) in [("FedAvg", "rank-flip"), ("short", "sign-flip")]
        assert s.view == ("aca" if s.method == "FedAvg" else "personal")
        assert (s.accuracy is None) == idle
        assert s.kept == (None if idle else pytest.approx(s.accuracy / clean.accuracy))


def test_only_honest_clients_are_measured():
    """What attackers learn from flipped labels is theirs alone where nothing is exchanged."""
    (_, flipped) = bench_attacks(TINY, ["local"], ["label-flip"], 0.4)
    assert flipped.kept == 1.0


def test_dafkd_is_attacked_where_it_is_weakest_and_has_its_defence():
    choice = bench_experiment(None, []).methods["dafkd-scores"]
    assert defences(choice, 3, 10).keys() == {"none", "krum", "capped shares"}
    exp = {**TINY, "rounds": 1, "methods": {"dafkd-scores": dict(DaFKDScores.card.quick)}}
    scores = bench_attacks(exp, None, ["inflated-scores"], 0.4)
    assert [(s.defence, s.attack, s.accuracy is not None) for s in scores[1::2]] == [
        ("none", "inflated-scores", True),
        ("krum", "inflated-scores", True),
        ("capped shares", "inflated-scores", True),
    ]
    (_, idle) = bench_attacks(TINY, ["knfu"], ["inflated-scores"], 0.4)
    assert idle.accuracy is None


def test_the_whole_table_fits_into_100_columns():
    lines = [(method, defence) for method in ("FedAvg", "Local") for defence in ("none", "clipped logits")]
    scores = [
        Score(method, defence, attack, 0, "aca", 0.8, 1.0) for method, defence in lines for attack in ("none", *ATTACKS)
    ]
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(attack_table(scores))
    text = console.export_text()
    assert "…" not in text
    assert sum(line.startswith("FedAvg none") for line in text.splitlines()) == 1
    assert text.count("80.0 100%") == len(lines) * len(ATTACKS)  # no cell is broken


def test_unknown_attacks_are_refused_with_the_nearest():
    with pytest.raises(UsageError, match="no attack 'signflip'; did you mean 'sign-flip'"):
        bench_attacks(TINY, ["fedavg"], ["signflip"])


def test_the_table_averages_seeds_and_shows_what_is_kept():
    scores = [
        Score("FedAvg", "median", attack, seed, "aca", accuracy, kept)
        for attack, seed, accuracy, kept in [
            ("none", 0, 0.8, 1.0),
            ("sign-flip", 0, 0.6, 0.75),
            ("nan", 0, None, None),
            ("none", 1, 0.6, 1.0),
            ("sign-flip", 1, 0.3, 0.5),
            ("nan", 1, None, None),
        ]
    ]
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(attack_table(scores))
    line = next(text for text in console.export_text().splitlines() if text.startswith("FedAvg"))
    assert line.split() == ["FedAvg", "median", "70.0", "45.0", "62%", MISSING]


def test_the_report_prints_the_table_and_writes_the_figures(tmp_path):
    said = []
    console = Console(width=120, file=io.StringIO(), record=True)
    out = tmp_path / "attacks.json"
    report_attacks(experiment(TINY), ["knfu"], ["nan"], 0.4, [0], out, console, said.append)
    assert "40% of the clients attack" in " ".join(console.export_text().split())
    written = json.loads(out.read_text())
    assert [(s["attack"], s["seed"]) for s in written["scores"]] == [("none", 0), ("nan", 0)]
    assert (written["fraction"], written["experiment"]["rounds"]) == (0.4, TINY["rounds"])
    assert said == [f"written: {out}"]


def test_the_default_experiment_can_be_changed_by_overrides():
    exp = bench_experiment(None, ["rounds=3", "model=mlp", "partition.alpha=10.0"])
    assert (exp.rounds, exp.model.name, exp.partition.options["alpha"]) == (3, "mlp", 10.0)
    assert list(exp.methods) == list(DEFAULT["methods"])


def test_a_trimmed_mean_withstands_three_flippers_of_ten_and_a_plain_mean_does_not():
    exp = {
        "data": "fashion-mini",
        "model": {"name": "mlp", "hidden": 32},
        "engine": "serial",
        "rounds": 8,
        "partition": {"name": "iid", "clients": 10, "test": "global"},
        "training": {"work": "fixed_steps", "steps": 4, "batch": 128, "lr": 0.1},
        "methods": {"plain": {"name": "fedavg", "cache": {"oca": False}}},
    }
    kept = {s.defence: s.kept for s in bench_attacks(exp, ["plain"], ["sign-flip"], 0.3) if s.attack == "sign-flip"}
    assert kept["trimmed mean"] >= 0.9
    assert kept["none"] <= 0.5
