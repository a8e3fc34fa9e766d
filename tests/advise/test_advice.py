"""What the advice says, from runs whose results are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedalloy import experiment, from_arrays
from fedalloy.advise.advice import Advice, advice, chosen_apart, commands, lead
from fedalloy.advise.look import Look, look, shifts
from fedalloy.advise.page import page
from fedalloy.advise.trial import Trial
from fedalloy.base.text import human_seconds
from fedalloy.config.build import build
from fedalloy.report.gains import gains
from fedalloy.storage.results import Run


def result(name: str, label: str, view: str, seed: int, accuracy: list[float], balanced: float = 0.9) -> Run:
    """A run of three clients with 100 test samples each."""
    per_client = {"accuracy": accuracy, "size": [100] * 3, "loss": [0.5] * 3}
    scores = {"amp": float(np.mean(accuracy)), "wlp": min(accuracy), "balanced": balanced, "clients": per_client}
    rounds = [
        {
            "round": number,
            "views": {view: scores},
            "bytes": {"up": {"weights": 300}, "down": {"weights": 600}},
            "seconds": {"client": 1.0, "server": 0.0, "total": 1.0},
        }
        for number in range(1, 11)
    ]
    meta = {
        "name": name,
        "label": label,
        "seed": seed,
        "experiment": {"method": {"name": name}},
        "partition": {"name": "natural"},
        "clients": {"train_sizes": [50, 60, 70], "class_counts": [[25, 25]] * 3},
        "digests": {"data": "d", "partition": f"p{seed}"},
    }
    return Run(meta, tuple(rounds))


def made(ahead: float) -> Trial:
    built = build(experiment({"data": "tiny", "model": "mlp", "partition": {"name": "iid", "clients": 3}}))
    runs = []
    for seed in range(3):
        runs.append(result("local-converged", "Local, converged", "personal", seed, [0.7, 0.7 + seed / 100, 0.7]))
        runs.append(result("fedavg", "FedAvg", "aca", seed, [0.7 + ahead, 0.7 + ahead + seed / 100, 0.7 + ahead]))
    return Trial(
        tuple(runs),
        built,
        {"knfu": "KnFu needs a public set", "fedmd": "FedMD needs a public set"},
        {"kdia": 90.0},
        5.0,
    )


@pytest.fixture
def looked() -> Look:
    return look(made(0.1).built)


def test_the_lead_is_the_paired_difference_over_seeds():
    trial = made(0.1)
    found = lead(trial.runs, gains(trial.runs)[0])
    assert found.n == 3
    assert found.mean == pytest.approx(10.0)
    assert found.low == pytest.approx(10.0)
    assert found.high == pytest.approx(10.0)


def test_advice_names_the_method_the_gains_and_the_costs(looked: Look):
    told = advice(looked, made(0.1))
    assert told.chosen == "fedavg"
    assert "Federating pays for 3 of 3 clients" in told.verdict
    assert "6.00 kB to them" in told.costs[0]
    assert "3.00 kB from the clients" in told.costs[0]
    assert "300 B a round for each of 3 clients" in told.costs[0]  # 9,000 bytes, 10 rounds, 3 clients
    assert "model weights" in told.leaves[0]
    assert told.gains is not None
    assert len(told.gains.body) == 3


def test_methods_that_were_not_compared_are_told_together_with_the_reason(looked: Look):
    told = advice(looked, made(0.1)).untried
    assert "knfu and fedmd: it needs a public set" in told
    assert any("kdia" in sentence and human_seconds(90.0) in sentence for sentence in told)


def test_advice_against_federating(looked: Look):
    assert "Do not federate" in advice(looked, made(-0.1)).verdict


def chance(rising: bool = False, alone: float = 0.9) -> Trial:
    """Clients that learn alone, and a federated model that stays near chance."""
    runs = []
    for seed in range(3):
        runs.append(result("local-converged", "Local, converged", "personal", seed, [0.9] * 3, alone))
        one = result("fedavg", "FedAvg", "aca", seed, [0.53, 0.5, 0.52 + seed / 100], 0.53)
        for k, record in enumerate(one.rounds if rising else ()):
            scores = record["views"]["aca"]
            record["views"]["aca"] = {**scores, "amp": scores["amp"] - 0.05 * (len(one.rounds) - 1 - k)}
        runs.append(one)
    return replace(made(0.1), runs=tuple(runs))


def test_a_federated_model_that_stays_near_chance_is_advised_against(looked: Look):
    told = advice(looked, chance())
    assert told.verdict.startswith("Do not federate")
    lines = [line for several in commands(told, "exp.toml", 3, [0], 10).values() for line in several]
    assert "fedalloy run exp.toml method=local-converged" in lines
    assert not any("deploy" in line for line in lines)


@pytest.mark.parametrize("trial", [chance(rising=True), chance(alone=0.5)])
def test_while_a_curve_rises_or_clients_learn_nothing_there_is_no_verdict(looked: Look, trial: Trial):
    told = advice(looked, trial)
    assert told.verdict.startswith("No verdict")
    lines = [
        line for several in commands(told, "my exp.toml", 3, [0], 10, ["--plugin", "a.py"]).values() for line in several
    ]
    assert any(line.startswith("fedalloy advise 'my exp.toml' rounds=20 --plugin a.py") for line in lines)
    assert not any("deploy" in line for line in lines)


def test_the_lead_of_a_method_that_is_chosen_by_other_seeds():
    amps = {"fedavg": [0.8, 0.5, 0.5], "fedprox": [0.5, 0.82, 0.55]}  # each is good where the other is not
    runs = [result("local-converged", "Local, converged", "personal", seed, [0.6] * 3) for seed in range(3)]
    for name, values in amps.items():
        runs += [result(name, name, "aca", seed, [value] * 3) for seed, value in enumerate(values)]
    found = chosen_apart(runs, gains(runs)[0])
    assert found is not None
    # Seed 0 is judged by the method that leads on seeds 1 and 2, and so on.
    assert found.mean == pytest.approx(((0.5 - 0.6) + (0.5 - 0.6) + (0.55 - 0.6)) / 3 * 100)
    assert found.mean < lead(runs, gains(runs)[0]).mean
    assert chosen_apart([run for run in runs if run.seed == 0], gains(runs)[0]) is None


def test_commands_use_seeds_on_which_nothing_was_chosen(looked: Look):
    told = commands(advice(looked, made(0.1)), "exp.toml", 3, [0, 1, 5])
    assert "--seeds 6,7,8" in told["Check the advice with seeds that it was not chosen on"][0]
    assert any("deploy init exp.toml" in line for lines in told.values() for line in lines)


def test_without_a_federated_method_there_are_no_commands(looked: Look):
    trial = made(0.1)
    alone = replace(trial, runs=tuple(run for run in trial.runs if run.name == "local-converged"))
    told = advice(looked, alone)
    assert told.chosen == ""
    assert commands(told, "exp.toml", 3, [0]) == {}


def test_the_page_has_every_part_and_escapes_names(looked: Look):
    strange = replace(looked, clients=(replace(looked.clients[0], name="<script>North & co"), *looked.clients[1:]))
    told: Advice = advice(strange, made(0.1))
    text = page(told, commands(told, "exp.toml", 3, [0]), title="T", seconds=3.0, seeds=[0, 1, 2], rounds=2)
    assert text.count("<script") == 1
    assert "&lt;script&gt;North &amp; co" in text
    for part in ("For whom", "which method", "cost", "leaves each site", "How sure", "How to go on"):
        assert part in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text


def test_clients_with_shifted_inputs_and_missing_classes_are_named():
    x = np.concatenate([np.zeros((40, 2)), np.zeros((40, 2)), np.full((40, 2), 5.0)]) + np.random.default_rng(0).normal(
        size=(120, 2)
    )
    y = np.concatenate([np.arange(80) % 2, np.zeros(40, np.int64)])
    data = from_arrays(x, y, client_ids=np.repeat([0, 1, 2], 40), mean=(0.0, 0.0), std=(1.0, 1.0))
    built = build(experiment({"model": "mlp", "partition": {"name": "natural"}}), data)
    told = look(built)
    assert [one.classes for one in told.clients] == [2, 2, 1]
    assert told.clients[2].inputs > 1.0 > told.clients[0].inputs
    text = " ".join(told.sentences())
    assert "Client 2 has no training samples of some of the 2 classes" in text
    assert "The inputs of client" in text


def test_shift_is_zero_for_equal_clients_and_constant_inputs():
    part = np.random.default_rng(0).normal(size=(50, 3, 1, 1)).astype(np.float32)
    assert shifts([part, part]).tolist() == pytest.approx([0.0, 0.0])
    assert shifts([np.ones((5, 1, 1, 1), np.float32)] * 2).tolist() == [0.0, 0.0]


def test_networks_of_one_name_are_told_apart():
    data = from_arrays(np.random.default_rng(0).normal(size=(80, 2)), np.arange(80) % 2, client_ids=np.arange(80) // 40)
    models = [{"name": "mlp", "hidden": [4], "clients": [0]}, {"name": "mlp", "hidden": [8], "clients": [1]}]
    exp = experiment({"models": models, "partition": {"name": "natural"}, "method": "local", "model": "mlp"})
    told = look(build(exp, data))
    assert [one.network for one in told.clients] == ["mlp (22)", "mlp (42)"]
    assert told.networks_differ


def test_advice_tells_what_was_found_when_the_files_were_read(tmp_path: Path):
    for name in ("north", "south"):
        rows = "".join(f"{k},{40 + k},{'ny'[k % 2]}\n" for k in range(20))
        (tmp_path / f"{name}.csv").write_text(f"patient_id,age,ill\n{rows}")
    text = " ".join(look(build(experiment({"data": {"name": str(tmp_path), "label": "ill"}}))).sentences())
    assert "0 = n, 1 = y" in text
    assert "'patient_id'" in text
