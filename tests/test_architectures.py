"""Which client has which network, from the file to the setting that is run."""

from __future__ import annotations

import pytest
import torch

from fedalloy.config.build import build, check_names, networks_of
from fedalloy.config.experiment import experiment
from fedalloy.data import load_data, tensors
from fedalloy.errors import UsageError
from fedalloy.federation.setting import SERVER
from fedalloy.nets.architectures import Budget, ModelPart, assign
from fedalloy.nets.models import parameter_count
from fedalloy.run.runner import simulate


def part(**options):
    return ModelPart(name="mlp", **options)


def test_equal_runs_in_ascending_id():
    assert assign([part()] * 5, 20, None, []) == [k // 4 for k in range(20)]
    assert assign([part()] * 3, 4, None, []) == [0, 0, 1, 2]


def test_names_come_first_then_shares_then_the_rest():
    parts = [part(share=0.5), part(clients=(0, 7)), part(), part()]
    assert assign(parts, 8, None, []) == [1, 0, 0, 0, 0, 2, 3, 1]


def test_a_budget_takes_the_largest_that_fits():
    costs = [100, 10, 1000]
    assert assign([part()] * 3, 4, Budget(limits=(10, 99, 100, 5000)), costs) == [1, 1, 0, 2]
    assert assign([part()] * 3, 4, Budget(limits=(50, 2000)), costs) == [1, 1, 2, 2]  # two tiers


@pytest.mark.parametrize(
    ("parts", "budget", "sentence"),
    [
        ([part(clients=(4,)), part()], None, "client 4.*0 to 3"),
        ([part(clients=(1,)), part(clients=(1,)), part()], None, "client 1 .*two networks"),
        ([part(clients=(0, 1))], None, "client 2 has no network"),
        ([part(share=0.5)], None, "client 2 has no network"),
        ([part(share=0.8), part(share=0.4)], None, r"shares.*\b1\.2\b"),
        ([part(clients=()), part()], None, r"table 1, 'mlp'"),
        ([part(clients=(0, 1, 2, 3)), part()], None, "no client .*table 2, 'mlp'"),
        ([part(share=0.1), part()], None, "no client .*table 1, 'mlp'"),
        ([part(clients=(0, 1, 2, 3)), part(share=0.5)], None, "no client .*table 2, 'mlp'"),
        ([part()] * 5, None, "no client .*table 5, 'mlp'"),
        ([part(clients=()), part()], Budget(limits=(50.0,)), "no client .*table 1, 'mlp'"),
        ([part(share=1.0)], Budget(limits=(50.0,)), r"remove \[budget\]"),
        ([part()], Budget(limits=(5.0,)), "client 0 .*5 parameters.*'mlp'.*10"),
        ([part()], Budget(limits=(50.0,) * 5), r"budget\.limits.*\b5\b.*\b4 clients"),
    ],
)
def test_what_cannot_be_dealt_is_refused(parts, budget, sentence):
    with pytest.raises(UsageError, match=sentence):
        assign(parts, 4, budget, [10] * len(parts))


def test_a_budget_may_leave_networks_that_nobody_takes():
    assert assign([part()] * 3, 4, Budget(limits=(50.0,)), [10, 20, 100]) == [1] * 4


@pytest.mark.parametrize(("shares", "clients"), [((0.5, 0.5), 5), ((0.34, 0.33, 0.33), 10), ((0.7, 0.2, 0.1), 10)])
def test_shares_of_all_clients_leave_nobody_out(shares, clients):
    dealt = assign([part(share=share) for share in shares], clients, None, [])
    assert dealt == sorted(dealt)
    counts = [dealt.count(number) for number in range(len(shares))]
    assert all(abs(count - share * clients) < 1 for count, share in zip(counts, shares, strict=True))


# --- tiers ------------------------------------------------------------------------------------------------------------


def test_a_tier_takes_its_clients_but_for_those_that_are_named():
    parts = [part(share=0.25), part(tier=2), part(clients=(3,)), part()]
    assert assign(parts, 8, None, [], tiers=[2, 0, 2, 2, 0, 1, 1, 0]) == [1, 0, 1, 2, 0, 3, 3, 3]


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ([part(tier=5), part()], r"tier 5\b.*participation\.tiers.*0, 1, 2"),
        ([part(tier=1), part(tier=1), part()], "tier 1 .*two networks"),
        ([part(tier=1), part(clients=(1, 3)), part()], "no client .*table 1, 'mlp'"),
        ([part(tier=1), part(tier=0)], "client 2 has no network"),
    ],
)
def test_tiers_that_cannot_be_dealt_are_refused(parts, sentence):
    with pytest.raises(UsageError, match=sentence):
        assign(parts, 4, None, [], tiers=[0, 1, 2, 1])


@pytest.mark.parametrize("policy", ["full", "fraction", "weakest"])
def test_an_experiment_gives_networks_by_tier(policy):
    strong = {"policy": policy, "tiers": [1, 0, 1, 0]}
    models = [{"name": "mlp", "hidden": [4], "tier": 0}, {"name": "mlp", "hidden": [8], "tier": 1}]
    exp = experiment({**TINY, "models": models, "participation": strong})
    assert experiment(exp.to_dict()) == exp
    assert build(exp).setting.groups == [[0, 2], [1, 3]]


def test_tiers_for_another_number_of_clients_are_refused():
    models = [{"name": "mlp", "tier": 0}, {"name": "mlp"}]
    exp = experiment({**TINY, "models": models, "participation": {"tiers": [1, 0]}})
    with pytest.raises(UsageError, match=r"participation\.tiers has 2 entries for 4 clients; give one each"):
        build(exp)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"models": [{"name": "mlp", "tier": 1}]},
            r"'mlp' has tier = 1, but no client has a tier; write participation\.tiers, one number for each client",
        ),
        ({"models": [{"name": "mlp", "tier": 1, "share": 0.5}]}, "both tier and share"),
        ({"models": [{"name": "mlp", "tier": "weak"}]}, r"models\.tier = 'weak' must be a valid integer"),
        (
            {"models": [{"name": "mlp"}], "participation": {"tiers": [0, 1]}},
            r'participation\.tiers has no effect with policy = "full"; write participation\.policy = "weakest", give a '
            r"\[\[models\]\] table a tier, or leave tiers out",
        ),
        ({"models": [{"name": "mlp", "clients": "0-3"}]}, r"models\.clients = '0-3' must be a list of "),
        ({"models": [{"name": "mlp", "clients": [0], "share": 0.5}]}, "both clients and share"),
        ({"models": [{"name": "mlp", "share": 1.5}]}, r"models\.share = 1\.5 "),
        ({"models": {"name": "mlp"}}, r"write \[\[models\]\]"),
        ({"budget": {"limits": [1]}}, r"give them under \[\[models\]\]"),
        ({"models": [{"name": "mlp"}], "budget": {"limits": []}}, r"budget\.limits is empty"),
        ({"models": [{"name": "mlp"}], "budget": {"limits": 3}}, r"budget\.limits = 3 must be a list of numbers$"),
    ],
)
def test_impossible_experiments_are_refused(values, sentence):
    with pytest.raises(UsageError, match=sentence):
        experiment(values)


HIDDEN = [{"name": "mlp", "hidden": [4]}, {"name": "mlp", "hidden": [8]}]
TINY = {"data": {"name": "tiny"}, "partition": {"clients": 4, "alpha": 10.0}, "model": {"name": "mlp", "hidden": [16]}}


def test_an_experiment_gives_each_client_its_network_and_the_server_its_own():
    setting = build(experiment({**TINY, "models": HIDDEN})).setting
    sizes = [parameter_count(setting.build(k)) for k in [*setting.ids, SERVER]]
    assert sizes[0] == sizes[1] < sizes[2] == sizes[3] < sizes[4]
    assert not setting.same_network


@pytest.mark.parametrize("unit", ["parameters", "flops"])
def test_a_budget_in_an_experiment(unit):
    plain = build(experiment({**TINY, "models": HIDDEN})).setting
    small = parameter_count(plain.build(0)) if unit == "parameters" else 2 * (64 * 4 + 4 * 10)
    exp = experiment({**TINY, "models": HIDDEN, "budget": {"unit": unit, "limits": [small, 10 * small]}})
    sizes = [parameter_count(build(exp).setting.build(k)) for k in range(4)]
    assert sizes == [parameter_count(plain.build(k)) for k in range(4)]


@pytest.mark.parametrize(
    ("key", "meant"), [("hiden", "hidden"), ("client", "clients"), ("shares", "share"), ("tiers", "tier")]
)
@pytest.mark.parametrize("look", [build, check_names])
def test_an_unknown_key_of_one_of_them_is_refused(key, meant, look):
    with pytest.raises(UsageError, match=f"models has no key '{key}'; did you mean '{meant}'"):
        look(experiment({**TINY, "models": [{"name": "mlp", key: [4]}]}))


def test_flops_are_counted_where_the_data_lies_and_draw_nothing():
    models = [*HIDDEN, {"name": "resnet8", "width": 8}]
    exp = experiment({**TINY, "models": models, "budget": {"unit": "flops", "limits": [600, 1200]}})
    data = load_data("tiny")
    pool, _ = tensors(data)
    before = torch.get_rng_state()
    here, there = (networks_of(exp, data, at, 10, 4) for at in (pool, pool.to("meta")))
    assert torch.equal(torch.get_rng_state(), before)
    hidden = [[network.keywords.get("hidden") for network in networks] for networks in (here, there)]
    assert hidden == [[[4], [4], [8], [8]]] * 2


def test_a_method_that_averages_refuses_them():
    with pytest.raises(UsageError, match="fedavg averages parameters, but the clients' networks differ"):
        simulate(experiment({**TINY, "rounds": 1, "models": HIDDEN}))


def test_a_run_says_who_has_what(tmp_path):
    exp = experiment({**TINY, "rounds": 2, "models": HIDDEN, "method": {"name": "local"}})
    serial = simulate(exp, tmp_path / "serial")
    assert [group["clients"] for group in serial.meta["models"]] == [[0, 1], [2, 3]]
    pool = simulate(experiment({**exp.to_dict(), "engine": "pool", "workers": 2}), tmp_path / "pool")
    assert [r["views"] for r in pool.rounds] == [r["views"] for r in serial.rounds]


def test_equal_tables_are_one_network_in_what_a_run_says():
    models = [HIDDEN[0], HIDDEN[1], HIDDEN[0]]
    exp = experiment({**TINY, "rounds": 1, "models": models, "method": {"name": "local"}})
    assert [group["clients"] for group in simulate(exp).meta["models"]] == [[0, 1, 3], [2]]
