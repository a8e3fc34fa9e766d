"""Fair tuning: equal budgets, validation only, the test untouched, and the same choice after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedalloy
from fedalloy import Card, Client, Federation, Message, Method, Reply, State, action, from_arrays, method, reply, tune
from fedalloy.base.options import Number, option
from fedalloy.cli.main import main
from fedalloy.config.build import Built, build
from fedalloy.config.experiment import experiment
from fedalloy.config.sections import Experiment
from fedalloy.errors import CheckpointError, DataError, UsageError
from fedalloy.federation.core import methods
from fedalloy.storage.results import read
from fedalloy.storage.rows import rows
from fedalloy.tuning import tune as tuning
from fedalloy.tuning.picture import budget_picture, progress
from fedalloy.tuning.search import search
from fedalloy.tuning.space import Touched, axis, parted_words, space_of, touched
from fedalloy.tuning.trials import recorded

TINY: dict[str, Any] = {
    "data": "tiny",
    "model": "mlp",
    "rounds": 1,
    "engine": "serial",
    "partition": {"clients": 2, "alpha": 5.0, "validation": 0.3},
    "training": {"batch": 16},
}


class Above(nn.Module):
    """Class 1 is predicted for inputs above the threshold `t`."""

    def __init__(self) -> None:
        super().__init__()
        self.t = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        z = x.reshape(-1, 1) - self.t
        return torch.cat([torch.zeros_like(z), z], dim=1)


@pytest.fixture(autouse=True)
def guess() -> Iterator[type[Method]]:
    """A method that learns nothing: its model is its option, so that every score can be computed by hand."""

    @method("guess", label="Guess", card=Card(paper="none", up="n", down="model"))
    class Guess(Method):
        """The threshold is the option `t`; a negative one fails."""

        t: float = option(0.5, "the threshold")
        spare: Number = option(0, "has no effect")

        def init(self, fed: Federation) -> dict[str, Any]:
            return {"model": {"t": torch.tensor([self.t])}}

        def round(self, s: State, fed: Federation) -> State:
            if self.t < 0:
                fed.skip("nobody answered")
            fed.ask("count", fed.sample(), model=s["model"])
            return s.next()

        @action("model -> n")
        def count(self, me: Client, msg: Message) -> Reply:
            return reply(n=me.n)

        def models(self, s: State) -> dict[str, Any]:
            return {"global": s["model"]}

    yield Guess
    methods._things.pop("guess")
    methods._homes.pop("guess", None)


def digits(garbage: bool = False) -> Any:
    """Inputs from 0 to 9, of which those above 4 are class 1; the test labels can be garbage."""
    x = np.repeat(np.arange(10, dtype=np.float32), 20).reshape(-1, 1)
    y = (x[:, 0] > 4).astype(np.int64)
    return from_arrays(x, y, x_test=x, y_test=1 - y if garbage else y, mean=[0.0], std=[1.0])


GUESSES: dict[str, Any] = {
    "rounds": 1,
    "engine": "serial",
    "partition": {"name": "iid", "clients": 2, "test": "global", "validation": 0.25},
    "methods": {"guess": {}},
}


def guesses(space: dict[str, Any], budget: int | str = 20, exp: dict[str, Any] | None = None, **given: Any) -> Any:
    given = {"dataset": digits(), "network": Above, "seeds": [1], **given}
    return tune({**GUESSES, **(exp or {})}, space, budget, **given)


# --- ranges -----------------------------------------------------------------------------------------------------------


def test_log_linear_and_whole_ranges_and_lists() -> None:
    log = [axis("m.o", "0.001..1").draw(0, n) for n in range(300)]
    assert min(log) >= 0.001
    assert max(log) <= 1
    assert 70 < sum(x < 0.01 for x in log) < 130  # a third of the decades
    linear = [axis("m.o", "0.0..1.0:linear").draw(0, n) for n in range(300)]
    assert 120 < sum(x < 0.5 for x in linear) < 180
    whole = [axis("m.o", "1..3").draw(0, n) for n in range(60)]
    assert set(whole) == {1, 2, 3}
    assert all(isinstance(n, int) for n in whole)
    many = [axis("m.o", "1..100:log").draw(0, n) for n in range(300)]
    assert 120 < sum(n <= 10 for n in many) < 185
    assert axis("m.o", "0.01..1:3").points() == (0.01, 0.1, 1.0)
    assert axis("m.o", "1..9:linear:3").points() == (1, 5, 9)
    assert axis("m.o", "2..4").points() == (2, 3, 4)
    assert axis("m.o", "a, b,true").points() == ("a", "b", True)
    assert {axis("m.o", "a,b").draw(1, n) for n in range(20)} == {"a", "b"}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("1..1", "1..1"),
        ("0.1..0.01", "0.1..0.01"),
        ("0.0..1.0", "above 0"),
        ("-1.0..1.0", "above 0"),
        ("0..10:log", "above 0"),
        ("0.1..b", "'b'"),
        ("0.1..", "''"),
        ("0.1..inf", "'inf'"),
        ("0.1..1:1", "0.1..1:1"),
        ("0.1..1:cubic", "0.1..1:cubic"),
        (",", "no values"),
        ([], "no values"),
        ("1,2,1", "1 twice"),
        (3, "3"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused(given: Any, named: str) -> None:
    with pytest.raises(UsageError) as error:
        axis("fedprox.mu", given)
    assert "fedprox.mu" in str(error.value)
    assert named in str(error.value)


def test_an_unevenly_spaced_grid_is_refused_only_for_real_numbers() -> None:
    with pytest.raises(UsageError, match=r"0\.001\.\.1:5"):
        axis("fedprox.mu", "0.001..1").points()


def test_a_key_tuned_twice_is_refused() -> None:
    with pytest.raises(UsageError, match=r"fedprox\.mu"):
        parted_words(["fedprox.mu=0,1", "methods.fedprox.mu=0.1..1"])


THREE: dict[str, Any] = {"methods": {"fedavg": {}, "mild": {"name": "fedprox"}, "qffl": {"training": {"lr": 0.1}}}}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["training.lr"], {"fedavg": ["lr"], "mild": ["lr"], "qffl": []}),
        (["method.mu"], {"fedavg": [], "mild": ["mu"], "qffl": []}),
        (["mild.mu", "qffl.training.lr"], {"fedavg": [], "mild": ["mu"], "qffl": ["lr"]}),
        (["training.lr", "mild.training.lr"], {"fedavg": ["lr"], "mild": ["own lr"], "qffl": []}),
        (["cache.unseen"], {"fedavg": ["unseen"], "mild": ["unseen"], "qffl": ["unseen"]}),
        (["aggregation.combine"], {"fedavg": ["combine"], "mild": ["combine"], "qffl": []}),
    ],
)
def test_which_methods_an_axis_touches(keys: list[str], expected: dict[str, list[str]]) -> None:
    exp = experiment(THREE)
    found = touched(exp, exp.methods, space_of({key: [1, 2] for key in keys}))
    told = {
        key: [f"{'own ' if axis.key == 'mild.training.lr' else ''}{axis.key.split('.')[-1]}" for axis in one.axes]
        for key, one in found.items()
    }
    assert told == expected


@pytest.mark.parametrize(
    ("key", "named"),
    [
        ("fedprox.mu", "mild"),
        ("method.nu", "'nu'"),
        ("training.learning_rate", "training"),
        ("partition.alpha", "partition.alpha"),
        ("seed", "seed"),
        ("lr", "write training.lr"),
        ("mu", "write method.mu"),
        ("mild", "mild.OPTION"),
        ("mild.nu", "'nu'"),
        ("mild.training.learning", "'learning'"),
        ("mild.partition.alpha", "'partition.alpha'"),
        ("method.beta_of_no_method", "beta_of_no_method"),
    ],
)
def test_a_range_for_an_unknown_key_is_refused(key: str, named: str) -> None:
    exp = experiment(THREE)
    with pytest.raises(UsageError) as error:
        touched(exp, exp.methods, space_of({key: [1, 2]}))
    assert named in str(error.value)


def test_an_unknown_option_or_a_value_that_is_not_allowed_is_found_before_any_trial() -> None:
    for space, named in (
        ({"guess.s": [1]}, "'s'"),
        ({"guess.spare": [0.0, -1.0]}, "guess.spare"),
        ({"guess.spare": "-5..3"}, "-5"),
    ):
        told: list[str] = []
        with pytest.raises(UsageError) as error:
            guesses(space, say=told.append)
        assert named in str(error.value)
        assert not told


def test_the_settings_of_a_method_have_its_values_in_their_places() -> None:
    exp = experiment(THREE)
    found = touched(exp, exp.methods, space_of({"training.lr": [0.1, 0.2], "mild.mu": [1.0]}))
    settled = found["mild"].at({"training.lr": 0.2, "mild.mu": 1.0})
    assert (settled.training, settled.options, exp.methods["mild"].options) == ({"lr": 0.2}, {"mu": 1.0}, {})
    assert list(found["mild"].grid()) == [{"training.lr": lr, "mild.mu": 1.0} for lr in (0.1, 0.2)]


# --- searches ---------------------------------------------------------------------------------------------------------


def asked(kind: Any, what: Touched, scores: Any, most: int = 30) -> list[dict[str, Any]]:
    found, proposals = [], search(kind, what, 0, "fedprox")
    values = next(proposals, None)
    while values is not None and len(found) < most:
        found.append(values)
        try:
            values = proposals.send(scores(values))
        except StopIteration:
            break
    return found


def some_space(**given: Any) -> Touched:
    exp = experiment({"method": "fedprox"})
    return touched(exp, {"fedprox": exp.method}, space_of({key.replace("_", "."): v for key, v in given.items()}))[
        "fedprox"
    ]


@pytest.mark.parametrize("kind", ["random", "grid", "optuna"])
def test_a_search_ends_when_everything_was_tried_and_tries_nothing_twice(kind: str) -> None:
    if kind == "optuna":
        pytest.importorskip("optuna")
    found = asked(
        kind, some_space(method_mu=[0.0, 0.1, 1.0], training_epochs="1..2"), lambda values: values["method.mu"]
    )
    assert len(found) == 6
    assert {tuple(values.values()) for values in found} == {(mu, n) for mu in (0.0, 0.1, 1.0) for n in (1, 2)}


def test_random_search_ends_where_a_narrow_range_has_no_more_values() -> None:
    assert len(asked("random", some_space(method_mu="0.100..0.103"), lambda _: 0.5)) <= 4


def test_a_shared_axis_takes_the_same_values_for_all_methods() -> None:
    one, other = some_space(training_lr="0.01..1"), some_space(training_lr="0.01..1", method_mu="0.001..1")
    found = [asked("random", what, lambda _: None, 5) for what in (one, other)]
    assert [values["training.lr"] for values in found[0]] == [values["training.lr"] for values in found[1]]


def test_optuna_finds_a_peak_and_repeats_its_suggestions() -> None:
    pytest.importorskip("optuna")
    what = some_space(method_mu="0.001..1")
    score = lambda values: None if values["method.mu"] > 0.5 else -abs(np.log10(values["method.mu"]) + 2)  # noqa: E731
    found = asked("optuna", what, score, 25)
    assert found == asked("optuna", what, score, 25)
    assert max(filter(None, map(score, found))) > -0.1


def test_the_search_for_a_missing_optuna_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match=r"\[optuna\]"):
        guesses({"guess.t": [1.0, 2.0]}, search="optuna")


# --- tuning -----------------------------------------------------------------------------------------------------------


def test_the_best_value_is_found_and_scored_as_by_hand() -> None:
    tuned = guesses({"guess.t": [0.5, 4.5, 7.5]}, search="grid")
    built = build(experiment({**GUESSES, "method": "guess"}), digits(), Above)
    x = torch.cat([site.validation.inputs.flatten() for site in built.setting.sites if site.validation])
    right = {t: float(((x > t) == (x > 4)).double().mean()) for t in (0.5, 4.5, 7.5)}
    assert {trial.values["guess.t"]: trial.score for trial in tuned.trials} == right
    assert tuned.best["guess"].values == {"guess.t": 4.5}
    assert tuned.experiment.methods["guess"].options == {"t": 4.5}
    (run,) = tuned.runs
    assert (run.seed, run.at("global", "amp")) == (1, 1.0)
    assert tuned.table().rows[0][3:5] == ("100.00", "100.00")
    assert [line[2] for line in tuned.tried().rows] == ["1", "2*", "3"]


def test_the_first_of_equal_settings_is_chosen() -> None:
    tuned = guesses({"guess.spare": [3, 1, 2]}, search="grid")
    assert tuned.best["guess"].values == {"guess.spare": 3}


def test_every_method_has_the_same_budget_and_an_untouched_one_runs_once() -> None:
    exp = {"methods": {"guess": {}, "other": {"name": "guess"}, "fixed": {"name": "guess", "t": 1.0}}}
    tuned = guesses({"guess.t": "0.1..9.0", "other.t": "0.1..9.0", "other.spare": "0..9"}, 4, exp, seeds=[1, 2])
    assert [trial.method for trial in tuned.trials] == ["guess"] * 4 + ["other"] * 4 + ["fixed"]
    assert [trial.number for trial in tuned.trials] == [1, 2, 3, 4, 1, 2, 3, 4, 1]
    assert [(run.label, run.seed) for run in tuned.runs] == [
        (n, s) for s in (1, 2) for n in ("Guess", "other", "fixed")
    ]
    assert tuned.best["fixed"].values == {}


def test_cpu_seconds_are_a_budget_that_no_trial_of_average_cost_would_exceed(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(0, 10_000, 3))  # every trial takes 3 seconds
    monkeypatch.setattr(tuning, "cpu_seconds", lambda: float(next(ticks)))
    exp = {"methods": {"guess": {}, "other": {"name": "guess"}}}
    tuned = guesses({"method.t": "0.1..9.0"}, "10s", exp)
    assert [trial.method for trial in tuned.trials] == ["guess"] * 3 + ["other"] * 3


def test_a_failed_trial_counts_and_is_not_chosen() -> None:
    tuned = guesses({"guess.t": [-1.0, 7.5]}, search="grid")
    assert [trial.score is None for trial in tuned.trials] == [True, False]
    assert "nobody answered" in tuned.trials[0].failed
    assert tuned.best["guess"].values == {"guess.t": 7.5}
    assert any("1 of 2 trials" in note for note in tuned.notes)
    with pytest.raises(UsageError, match="nobody answered"):
        guesses({"guess.t": [-1.0, -2.0]}, search="grid")


# --- the test is untouched --------------------------------------------------------------------------------------------


def test_garbage_test_labels_change_no_trial_and_no_choice(tmp_path: Path) -> None:
    space = {"guess.t": "0.1..9.0"}
    plain, garbage = (guesses(space, 6, dataset=digits(g), folder=tmp_path / str(g)) for g in (False, True))
    assert plain.best["guess"].values == garbage.best["guess"].values
    lines = [
        [
            {**json.loads(line), "cpu_seconds": 0}
            for line in (tmp_path / str(g) / "trials.jsonl").read_text().splitlines()
        ]
        for g in (False, True)
    ]
    assert lines[0] == lines[1]
    assert len(lines[0]) == 6
    scores = [tuned.runs[0].at("global", "amp") for tuned in (plain, garbage)]
    assert scores[0] == pytest.approx(1 - scores[1])  # the attack does reach the test


@pytest.mark.parametrize("where", ["local", "official", "global"])
def test_trials_have_no_test_sample_and_record_no_test_score(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Experiment, Built, Any]] = []
    real = tuning.run_methods

    def watched(exp: Any, choices: Any, settings: Any, **given: Any) -> Any:
        runs = real(exp, choices, settings, **given)
        seen.extend((exp, settings[run.seed], run) for run in runs)
        return runs

    monkeypatch.setattr(tuning, "run_methods", watched)
    part = {**TINY["partition"], "test": where} if where == "local" else {**GUESSES["partition"], "test": where}
    if where == "local":
        tune({**TINY, "partition": part}, {"training.lr": [0.1, 0.2]}, 2, ["fedavg", "local"], seeds=[5])
    else:
        guesses({"guess.t": [1.0, 2.0]}, exp={"partition": part}, seeds=[5])
    trials, tests = ([part for part in seen if part[2].seed == seed] for seed in (0, 5))
    assert trials
    assert tests
    for _, built, run in trials:
        assert all(len(site.test) == 0 for site in built.setting.sites)
        assert built.setting.holdout is None
        for record in run.rounds:
            for view in record["views"].values():
                assert (view["amp"], view["test"]) == (None, None)
                assert set(view["clients"]["accuracy"]) == {None}
                assert view["validation"] is not None
    for _, built, run in tests:
        assert all(len(site.test) for site in built.setting.sites)
        assert all(view["amp"] is not None for record in run.rounds for view in record["views"].values())


@pytest.mark.parametrize("public", [None, {"data": "own", "samples": 50, "task_samples": 30}])
def test_local_test_rows_are_in_no_trial(public: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[int, Built] = {}
    real = tuning.run_methods

    def watched(exp: Any, choices: Any, built: Any, **given: Any) -> Any:
        settings.update(built)
        return real(exp, choices, built, **given)

    monkeypatch.setattr(tuning, "run_methods", watched)
    tune({**TINY, **({"public": public} if public else {})}, {"training.lr": [0.1]}, 1, seeds=[3, 4])
    of = lambda samples: set(samples.index.tolist())  # noqa: E731
    used = set().union(*(of(site.train) | of(site.validation) for site in settings[0].setting.sites))
    if public:
        used |= of(settings[0].setting.public.samples) | of(settings[0].setting.public.task)
    for seed in (3, 4):
        assert not used & set().union(*(of(site.test) for site in settings[seed].setting.sites))


def test_garbage_on_local_test_rows_changes_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    exp = {**TINY, "rounds": 2, "stop": {"patience": 1, "metric": "validation"}}

    def choices() -> tuple[list[Any], list[float]]:
        tuned = tune(exp, {"training.lr": [0.01, 0.1]}, 2, ["fedavg", "local", "centralised"], seeds=[3])
        return [replace(t, cpu_seconds=0.0) for t in tuned.trials], [row.amp for run in tuned.runs for row in rows(run)]

    plain = choices()
    real = tuning.examined

    def poisoned(*args: Any, **given: Any) -> Any:
        found, settings = real(*args, **given)
        for built in settings.values():
            for site in built.setting.sites:
                site.test.y[site.test.index] = 0
        return found, settings

    monkeypatch.setattr(tuning, "examined", poisoned)
    garbage = choices()
    assert plain[0] == garbage[0]
    assert plain[1] != garbage[1]  # the attack does reach the test


@pytest.mark.parametrize(
    ("change", "given", "named"),
    [
        ({"partition": {**GUESSES["partition"], "validation": 0}}, {}, "partition.validation = 0.2"),
        ({}, {"select": "best by test"}, "best by test"),
        ({}, {"select": "best by amp"}, "best by amp"),
        ({"engine": "flower"}, {}, "flower"),
        ({}, {"seeds": [0, 1]}, "seed = 0"),
        ({}, {"seeds": []}, "seeds"),
        ({}, {"budget": 0}, "0"),
        ({}, {"budget": "tens"}, "tens"),
        ({}, {"budget": "-5s"}, "-5s"),
        ({}, {"search": "grid", "budget": 2}, "--budget 3"),
    ],
)
def test_what_would_be_unfair_is_refused(change: dict[str, Any], given: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError) as error:
        guesses({"guess.t": [1.0, 2.0, 3.0]}, given.pop("budget", 20), change, **given)
    assert named in str(error.value)


def test_clients_too_small_for_a_validation_sample_are_refused() -> None:
    built = build(experiment({**GUESSES, "method": "guess"}), digits(), Above)
    sites = [replace(site, validation=None) for site in built.setting.sites]
    with pytest.raises(UsageError, match=r"partition\.validation"):
        tuning.blind(replace(built, setting=replace(built.setting, sites=sites)))


@pytest.mark.parametrize("metric", ["amp", "test", "validation"])
def test_runs_stop_by_validation_data_and_not_by_the_test(metric: str) -> None:
    stop = {"target": 0.7, "metric": metric}
    tuned = guesses({"guess.t": [4.5, 0.5]}, exp={"rounds": 3, "stop": stop}, search="grid")
    assert [trial.rounds for trial in tuned.trials] == [1, 3]
    assert tuned.experiment.stop.metric == "validation"
    assert any(f"stop.metric = '{metric}'" in note for note in tuned.notes) == (metric != "validation")


def test_without_a_validation_share_there_is_a_usual_one_and_it_is_said() -> None:
    told: list[str] = []
    part = {key: value for key, value in GUESSES["partition"].items() if key != "validation"}
    tuned = guesses({"guess.t": [1.0, 2.0]}, exp={"partition": part}, say=told.append)
    assert tuned.experiment.partition.validation == 0.2
    assert any("partition.validation" in sentence for sentence in told)
    assert any("seed 0" in sentence for sentence in told)


# --- the picture ------------------------------------------------------------------------------------------------------


def test_the_picture_shows_the_best_score_so_far_against_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(0, 10_000, 3))
    monkeypatch.setattr(tuning, "cpu_seconds", lambda: float(next(ticks)))
    tuned = guesses(
        {"guess.t": [-1.0, 0.5, 4.5, 7.5]}, search="grid", exp={"methods": {"guess": {}, "fixed": {"name": "guess"}}}
    )
    scores = [100 * (trial.score or 0.0) for trial in tuned.trials]
    spent, best = progress(tuned, "guess", "CPU seconds")
    assert spent == [3.0, 6.0, 9.0, 12.0]
    assert np.isnan(best[0])
    assert best[1:] == [scores[1], 100.0, 100.0]
    assert progress(tuned, "fixed", "runs") == ([1.0], [scores[4]])
    (axes,) = budget_picture(tuned).axes
    lines = {tuple(line.get_xdata()): tuple(line.get_ydata()) for line in axes.get_lines()}
    assert lines[1.0, 4.0] == (scores[4], scores[4])  # a single trial is a level line


# --- kills ------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """As a signal would."""


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [{**json.loads(line), "cpu_seconds": 0} for line in (folder / "trials.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("kind", ["random", "optuna"])
@pytest.mark.parametrize("end", [0, 3, 8])
def test_a_tuning_that_was_killed_goes_on_to_the_same_choice(
    kind: Any, end: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "optuna":
        pytest.importorskip("optuna")
    exp = {"methods": {"guess": {}, "other": {"name": "guess"}}}
    space = {"method.t": "0.1..9.0", "other.spare": "0..9"}
    whole = guesses(space, 4, exp, search=kind, folder=tmp_path / "whole")
    real, count = tuning.run_methods, 0

    def mortal(*args: Any, **given: Any) -> Any:
        nonlocal count
        count += 1
        if count == end + 1:
            raise Killed
        return real(*args, **given)

    monkeypatch.setattr(tuning, "run_methods", mortal)
    with pytest.raises(Killed):
        guesses(space, 4, exp, search=kind, folder=tmp_path / "cut")
    monkeypatch.setattr(tuning, "run_methods", real)
    with (tmp_path / "cut" / "trials.jsonl").open("ab") as file:
        file.write(b'{"method": "guess", "numb')  # and the last line was cut off, too
    again = guesses(space, 4, exp, search=kind, folder=tmp_path / "cut")
    assert lines_of(tmp_path / "cut") == lines_of(tmp_path / "whole")
    assert {key: trial.values for key, trial in again.best.items()} == {k: t.values for k, t in whole.best.items()}
    views = [[record["views"] for record in run.rounds] for tuned in (whole, again) for run in tuned.runs]
    assert views[:2] == views[2:]
    count, end = 0, -1
    monkeypatch.setattr(tuning, "_tried", mortal)  # everything is there: only the finished runs are read
    assert guesses(space, 4, exp, search=kind, folder=tmp_path / "cut").trials == again.trials
    assert count == 0


def test_another_tuning_in_the_folder_is_refused(tmp_path: Path) -> None:
    guesses({"guess.t": [1.0, 2.0]}, 2, folder=tmp_path / "a")
    for space, budget, exp in (
        ({"guess.t": [1.0, 3.0]}, 2, {}),
        ({"guess.t": [1.0, 2.0]}, 3, {}),
        ({"guess.t": [1.0, 2.0]}, 2, {"rounds": 2}),
    ):
        with pytest.raises(CheckpointError):
            guesses(space, budget, exp, folder=tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "run.json").write_text("{}")
    with pytest.raises(UsageError):
        guesses({"guess.t": [1.0, 2.0]}, 2, folder=tmp_path / "b")


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b'{"method": 3}',
        b"{",
        b'{"method": "guess", "number": 1, "values": {"guess.t": 9.0}, "score": 1.0, '
        b'"view": "global", "rounds": 1, "cpu_seconds": 1.0, "seed": 0, "failed": ""}',
    ],
)
def test_trials_that_were_changed_are_not_believed(line: bytes, tmp_path: Path) -> None:
    guesses({"guess.t": [1.0, 2.0]}, 2, folder=tmp_path / "a")
    (tmp_path / "a" / "trials.jsonl").write_bytes(line + b"\n")
    with pytest.raises(DataError):
        guesses({"guess.t": [1.0, 2.0]}, 2, folder=tmp_path / "a")


# --- the command ------------------------------------------------------------------------------------------------------

EXPERIMENT = """
rounds = 2
seed = 7
data = "tiny"
model = "mlp"
engine = "serial"
partition = {clients = 2, alpha = 5.0}
training = {batch = 16}
[methods.fedavg]
[methods.fedprox]
"""


def test_the_command_writes_everything_and_can_be_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "exp.toml", tmp_path / "out"
    file.write_text(EXPERIMENT)
    words = ["tune", str(file), "--budget", "3", "fedprox.mu=0.001..1", "training.lr=0.0001,0.2", "rounds=1"]
    printed = []
    for _ in range(2):
        with pytest.raises(SystemExit) as end:
            main([*words, "--seeds", "2", "--out", str(out)])
        assert end.value.code == 0
        printed.append(capsys.readouterr().out)
    trials = recorded(out)
    assert [trial.method for trial in trials] == ["fedavg"] * 2 + ["fedprox"] * 3
    best = max((t for t in trials if t.method == "fedavg"), key=lambda t: t.score or 0.0)
    assert best.values == {"training.lr": 0.2}
    tables = (out / "tuning.md").read_text().replace("\\", "")
    for trial in trials:
        assert f"{trial.setting} | {trial.number}" in tables
    for told in ("seed 7", "3 runs", "partition.validation"):
        assert told in printed[1]
    for name in ("tuning.md", "report.html", "table.json", "budget-runs.svg", "budget-runs.png", "budget-cpu.svg"):
        assert (out / name).stat().st_size > 100
    assert {read(one.parent).seed for one in out.glob("**/run.json")} == {8, 9}
    text = (out / "budget-runs.svg").read_text()
    assert "FedAvg" in text
    assert "FedProx" in text
    with pytest.raises(SystemExit) as end:
        main(["compare", str(out / "tuned.toml"), "--seeds", "8,9", "--out", str(tmp_path / "again")])
    assert end.value.code == 0
    ours, theirs = (
        [read(file.parent).rounds[-1]["views"] for file in sorted(where.glob("runs/*/run.json"))]
        for where in (out, tmp_path / "again")
    )
    assert ours == theirs
    assert len(ours) == 4


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--budget", "3"], "fedprox.mu=0.001..1"),
        (["fedprox.mu=0.001..1"], "--budget"),
        (["fedprox.nu=0.001..1", "--budget", "3"], "'nu'"),
        (["fedprox.mu=0..1.0", "--budget", "3"], "fedprox.mu"),
        (["fedprox.mu=0.001..1", "--budget", "3", "--search", "grid"], "fedprox.mu"),
        (["fedprox.mu=0.001..1", "--budget", "3", "partition.validation=0"], "partition.validation"),
        (["fedprox.mu=0.001..1", "--budget", "3", "--seeds", "7,8"], "seed = 7"),
    ],
)
def test_a_wrong_command_is_one_sentence(
    words: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "exp.toml").write_text(EXPERIMENT)
    with pytest.raises(SystemExit) as end:
        main(["tune", str(tmp_path / "exp.toml"), *words, "--out", str(tmp_path / "out")])
    assert end.value.code == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows cannot kill like this")
def test_a_killed_command_goes_on_to_the_same_choice(tmp_path: Path) -> None:
    (tmp_path / "exp.toml").write_text(EXPERIMENT)
    words = ["tune", str(tmp_path / "exp.toml"), "--budget", "9", "--methods", "fedprox"]
    words += ["method.mu=0.001..1", "--seeds", "1"]
    environment = {**os.environ, "PYTHONPATH": str(Path(fedalloy.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-c", "from fedalloy.cli.main import main; main()", *words, "--out"]
    cut = subprocess.Popen([*program, str(tmp_path / "cut")], env=environment, stdout=subprocess.DEVNULL)
    file = tmp_path / "cut" / "trials.jsonl"
    until = time.monotonic() + 60
    while time.monotonic() < until and not (file.exists() and file.read_bytes().count(b"\n") >= 3):
        time.sleep(0.01)
    cut.send_signal(signal.SIGKILL)
    assert cut.wait() == -signal.SIGKILL
    assert not (tmp_path / "cut" / "tuned.toml").exists()
    for name in ("cut", "whole"):
        with pytest.raises(SystemExit) as end:
            main([*words, "--out", str(tmp_path / name)])
        assert end.value.code == 0
    assert lines_of(tmp_path / "cut") == lines_of(tmp_path / "whole")
    assert (tmp_path / "cut" / "tuned.toml").read_text() == (tmp_path / "whole" / "tuned.toml").read_text()
