"""Which client has which network, from the file to the setting that is run."""

from __future__ import annotations

import pytest

from fedalloy.architectures import Budget, ModelPart, assign
from fedalloy.build import build
from fedalloy.config import experiment
from fedalloy.errors import UsageError
from fedalloy.models import parameter_count
from fedalloy.runner import simulate
from fedalloy.setting import SERVER


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
        ([part(clients=(4,)), part()], None, "there is no client 4; ids run from 0 to 3"),
        ([part(clients=(1,)), part(clients=(1,)), part()], None, "client 1 is given two networks"),
        ([part(clients=(0, 1))], None, "client 2 has no network"),
        ([part(share=0.5)], None, "client 2 has no network"),
        ([part()], Budget(limits=(5.0,)), "client 0 can afford 5 parameters, but the smallest network, 'mlp', has 10"),
        ([part()], Budget(limits=(50.0,) * 5), "5 numbers for 4 clients"),
    ],
)
def test_what_cannot_be_dealt_is_refused(parts, budget, sentence):
    with pytest.raises(UsageError, match=sentence):
        assign(parts, 4, budget, [10] * len(parts))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"models": [{"name": "mlp", "clients": [0], "share": 0.5}]}, "both clients and share"),
        ({"models": [{"name": "mlp", "share": 1.5}]}, r"must lie in \(0, 1\]"),
        ({"models": {"name": "mlp"}}, r"write \[\[models\]\]"),
        ({"budget": {"limits": [1]}}, r"give them under \[\[models\]\]"),
        ({"models": [{"name": "mlp"}], "budget": {"limits": []}}, "must hold positive numbers"),
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


def test_an_unknown_option_of_one_of_them_is_refused():
    with pytest.raises(UsageError, match="models has no key 'hiden'; did you mean 'hidden'"):
        build(experiment({**TINY, "models": [{"name": "mlp", "hiden": [4]}]}))


def test_a_method_that_averages_refuses_them():
    with pytest.raises(UsageError, match="fedavg averages parameters, but the clients' networks differ"):
        simulate(experiment({**TINY, "rounds": 1, "models": HIDDEN}))


def test_a_run_says_who_has_what(tmp_path):
    exp = experiment({**TINY, "rounds": 2, "models": HIDDEN, "method": {"name": "local"}})
    serial = simulate(exp, tmp_path / "serial")
    assert [group["clients"] for group in serial.meta["models"]] == [[0, 1], [2, 3]]
    pool = simulate(experiment({**exp.to_dict(), "engine": "pool", "workers": 2}), tmp_path / "pool")
    assert [r["views"] for r in pool.rounds] == [r["views"] for r in serial.rounds]
