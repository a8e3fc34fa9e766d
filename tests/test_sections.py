"""[aggregation] and [cache] of an experiment and of a method: whose keys hold, and which are refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedalloy import Card, FedAvg, FedDisco, UsageError, action, compare, experiment, method, resume, simulate
from fedalloy.aggregation.cache import Cache
from fedalloy.aggregation.rule import Aggregation
from fedalloy.check.probe import small_settings
from fedalloy.config.experiment import recorded
from fedalloy.config.methods import make_method, with_sections
from fedalloy.engine.serial import Serial
from fedalloy.federation.core import Client, Federation, Message, Method, Reply, State, methods, run
from fedalloy.federation.engine import Answer
from fedalloy.federation.participation import Participation
from fedalloy.train.fit import LocalWork

TINY: dict[str, Any] = {
    "data": "tiny",
    "model": {"name": "mlp", "hidden": [4]},
    "partition": {"name": "iid", "clients": 3},
    "rounds": 1,
    "engine": "serial",
}


def made(name: str, **sections: Any) -> Method:
    exp = experiment({**sections, "methods": {name: {}}})
    return make_method(exp, exp.methods[name])


def test_a_run_of_one_method_of_several_can_be_resumed(tmp_path: Path) -> None:
    several = {"methods": {"fedavg": {"aggregation": {"combine": "median"}}, "fedkf": {}}}
    simulate({**TINY, **several, "method": "feddisco", "cache": {"oca": True}}, tmp_path / "run")
    assert len(resume(tmp_path / "run", rounds=2).rounds) == 2


def test_feddisco_keeps_its_weights_in_a_comparison() -> None:
    rule = {"aggregation": {"weights": "size", "combine": "median"}}
    assert made("fedavg", **rule).aggregation.combine == "median"
    found = made("feddisco", **rule)
    assert (found.aggregation.weights, found.aggregation.combine) == ("disco", "mean")
    with pytest.raises(UsageError, match=r"feddisco .*aggregation\.weights = 'size'"):
        FedDisco(aggregation=Aggregation(weights="size"))


def test_keys_of_the_experiment_hold_where_a_method_made_in_python_has_none() -> None:
    exp = experiment({"aggregation": {"cap": 0.3, "max_distance": 7.0}, "cache": {"dtype": "bfloat16"}})
    found = with_sections(FedAvg(aggregation=Aggregation(clip=2.0), cache=Cache(unseen="global")), exp)
    assert (found.aggregation.clip, found.aggregation.cap, found.aggregation.max_distance) == (2.0, 0.3, 7.0)
    assert isinstance(found, FedAvg)
    assert (found.cache.unseen, found.cache.dtype) == ("global", "bfloat16")


def test_a_methods_own_rule_replaces_what_goes_with_the_common_one() -> None:
    exp = experiment(
        {
            "aggregation": {"combine": "trimmed", "trim": 0.3},
            "methods": {"middle": {"name": "fedavg", "aggregation": {"combine": "median"}}},
        }
    )
    assert make_method(exp, exp.methods["middle"]).aggregation == replace(FedAvg().aggregation, combine="median")


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"model": {"name": "mlp", "cache": {"oca": True}}}, "model .*'cache'"),
        ({"methods": {"knfu": {"cache": {"oca": True}}}}, r"knfu .*cache\.oca"),
        ({"method": "local", "aggregation": {"disco_a": 0.3}}, r"local .*aggregation\.disco_a = 0\.3"),
        ({"method": "qffl", "aggregation": {"combine": "median"}}, r"qffl .*aggregation\.combine = 'median'"),
        ({"method": {"name": "fedavg", "combine": "median"}}, r"fedavg .*'combine'.*aggregation\.combine"),
        ({"method": {"name": "fedavg", "oca": True}}, r"fedavg .*'oca'.*cache\.oca"),
        ({"cache": {"oca": False, "unseen": "global"}}, r"cache\.unseen"),
        ({"method": {"name": "fedavg", "cache": {"oca": False, "unseen": "global"}}}, r"cache\.unseen"),
        ({"method": "knfu", "cache": {"oca": False}}, r"cache\.oca .*knfu"),
        ({"method": "dafkd", "cache": {"unseen": "global"}}, r"cache\.unseen .*dafkd"),
        ({"methods": {"knfu": {}, "local": {}}, "cache": {"unseen": "global"}}, r"cache\.unseen .*knfu, local"),
    ],
)
def test_keys_without_an_effect_are_refused(values: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        experiment(values)


def test_a_common_cache_holds_for_the_methods_that_have_one(tmp_path: Path) -> None:
    common = {**TINY, "cache": {"unseen": "global"}, "methods": {"fedavg": {}, "local": {}}}
    own = {"none": {"name": "fedavg", "cache": {"oca": False}}}
    said: list[str] = []
    runs = compare({**common, "methods": {**common["methods"], **own}}, folder=tmp_path, say=said.append)
    assert [line for line in said if "cache" in line] == ["Local, equal rounds does not use cache.unseen = 'global'"]
    assert runs[0].meta["experiment"]["cache"]["unseen"] == "global"
    assert "unseen" not in {**runs[1].meta["experiment"]["cache"], **runs[2].meta["experiment"]["cache"]}
    assert [len(resume(tmp_path / f"{name}-seed0", rounds=2).rounds) for name in ("fedavg", "local", "none")] == [2] * 3


def test_a_run_that_recorded_keys_without_an_effect_is_still_read() -> None:
    old = {
        "method": "dafkd",
        "cache": {"oca": False, "unseen": "seen_only", "dtype": "float32"},
        "training": {"work": "fixed_steps", "steps": 3, "epochs": 5, "horizon": 7, "schedule": "constant"},
    }
    found = recorded({"experiment": old})
    assert (found.cache, found.training) == (Cache(oca=False), LocalWork(work="fixed_steps", steps=3))
    assert recorded({"experiment": {"method": {"name": "knfu"}, "cache": {"unseen": "global"}}}).cache == Cache()


class Boasting(Serial):
    """One client says that it has more samples than the roster."""

    def carry(self, method: Method, round: int, messages: Sequence[Message]) -> Iterable[Any]:
        for answer in super().carry(method, round, messages):
            assert isinstance(answer, Answer)
            body = {**answer.reply.body, "n": 10**12} if answer.client == 0 else answer.reply.body
            yield replace(answer, reply=Reply(body))


def test_an_action_of_ones_own_that_declares_nothing_is_checked_like_fedavgs() -> None:
    @method("of-sections", label="Of sections", card=Card(paper="none"))
    class OfSections(FedAvg):
        def round(self, s: State, fed: Federation) -> State:
            return self.averaged(s, fed.ask("learn", fed.sample(), model=s["model"]), fed)

        @action
        def learn(self, me: Client, msg: Message) -> Reply:
            return self.train(me, msg)

    seen: list[Any] = []
    setting = replace(small_settings()[0], participation=Participation())
    run(OfSections(), Boasting(setting), 1, watch=lambda state, fed: seen.append(fed))
    assert [bad["client"] for bad in seen[0].quarantined] == [0]
    methods._things.pop("of-sections")  # type: ignore[attr-defined]  # a registry only grows
