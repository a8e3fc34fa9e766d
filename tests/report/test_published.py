"""A paper's figures beside ours: only where they hold, only for what was run, and as the paper prints them."""

from __future__ import annotations

import pytest

from fedalloy import compare, simulate
from fedalloy.base.text import MISSING, TIMES
from fedalloy.config.experiment import experiment
from fedalloy.errors import DataError, UsageError
from fedalloy.report.html import render
from fedalloy.report.published import beside, holding
from fedalloy.storage.differences import told_apart

TABLE = {
    "source": "Somebody 2020, Table 1",
    "where": {"partition.alpha": 0.1},
    "metrics": ["amp", "fm"],
    "rows": [["FedAvg", "aca", "75.61 ± 0.92", "7.97"], ["FedAvg", "oca", "78.38", "5.33"], ["Other", "aca", "1", "2"]],
}


@pytest.fixture
def run(make_run):
    def make(alpha=0.1, seed=0, accuracy=0.75, published=(TABLE,)):
        exp = experiment({"partition": {"alpha": alpha}, "published": list(published)}).to_dict()
        views = {view: [[accuracy - 0.1, accuracy + 0.1]] for view in ("aca", "oca")}
        return make_run(label="FedAvg", seed=seed, views=views, experiment=exp)

    return make


def table_of(runs):
    return beside(runs)


def test_ours_stands_before_the_papers_and_what_was_not_run_is_left_out(run):
    (found,) = table_of([run()])
    assert found.source == "Somebody 2020, Table 1"
    assert list(found.headings) == ["Method", "View", "AMP %", "paper", f"FM {TIMES}10³", "paper"]
    assert [list(line) for line in found.body] == [
        ["FedAvg", "ACA", "75.00", "75.61 ± 0.92", "10.00", "7.97"],
        ["FedAvg", "OCA", "75.00", "78.38", "10.00", "5.33"],
    ]


def test_seeds_are_averaged(run):
    (found,) = table_of([run(seed=0, accuracy=0.7), run(seed=1, accuracy=0.8)])
    assert found.body[0][2].startswith("75.00 ± ")


def test_figures_of_another_setting_are_not_shown(run):
    assert table_of([run(alpha=0.5)]) == []


def test_an_experiment_without_figures_has_no_such_table(run):
    assert table_of([run(published=())]) == []


def test_the_page_shows_them(run):
    assert "Compared with Somebody 2020, Table 1; ours: last" in render([run()], title="t")


@pytest.fixture
def curve(make_run):
    """Three rounds with the AMPs 0.75, 0.5 and 0.625; FM is 0.01, 0 and 0."""

    def make(**more):
        exp = experiment({"published": [{**TABLE, **more}]}).to_dict()
        return make_run(label="FedAvg", views={"aca": [[0.65, 0.85], [0.5, 0.5], [0.625, 0.625]]}, experiment=exp)

    return make


@pytest.mark.parametrize(
    ("word", "amp", "fm"),
    [("last", "62.50", "0.00"), ("best by amp", "75.00", "10.00"), ("mean of last 2", "56.25", "0.00")],
)
def test_ours_are_from_the_round_that_the_paper_reports(curve, word, amp, fm):
    (found,) = table_of([curve(round=word)])
    assert found.title == f"Compared with Somebody 2020, Table 1; ours: {word}"
    assert [list(line) for line in found.body] == [["FedAvg", "ACA", amp, "75.61 ± 0.92", fm, "7.97"]]
    assert found.notes == []
    page = render([curve(round=word)], title="t", selection="mean of last 3")  # the other tables have their own round
    assert f"Table 1; ours: {word}" in page


def test_a_paper_that_names_no_round_is_compared_with_the_last(curve):
    assert experiment({"published": [TABLE]}).published[0].round == "last"
    run = curve()
    del run.meta["experiment"]["published"][0]["round"]  # as older runs were recorded
    assert table_of([run])[0].round == "last"


def test_runs_that_are_told_apart_still_have_their_papers_figures(run):
    one, other = run(), run(accuracy=0.5)
    other.meta["experiment"]["training"]["lr"] = 0.7
    (found,) = table_of(told_apart([one, other]))
    assert [(line[0], line[3]) for line in found.body[::2]] == [
        ("FedAvg, training.lr = 0.05", "75.61 ± 0.92"),
        ("FedAvg, training.lr = 0.7", "75.61 ± 0.92"),
    ]


def test_a_mean_over_too_few_rounds_is_noted(curve):
    (found,) = table_of([curve(round="mean of last 10")])
    assert found.notes == ["FedAvg: the mean is over 3 rounds, all that were evaluated, and not over 10."]
    assert found.notes[0] in render([curve(round="mean of last 10")], title="t").replace("&#39;", "'")


def test_a_run_records_its_published_tables():
    table = {**TABLE, "where": {}, "round": "best by amp"}
    made = simulate({"data": "tiny", "model": "mlp", "rounds": 1, "partition": {"clients": 2}, "published": [table]})
    assert made.meta["experiment"]["published"] == [table]
    assert [found.source for found in beside([made])] == [TABLE["source"]]


def test_ours_that_the_papers_round_cannot_be_found_for_are_missing_with_a_reason(curve):
    (found,) = table_of([curve(round="best by test")])
    assert list(found.body[0][2:]) == [MISSING, "75.61 ± 0.92", MISSING, "7.97"]
    assert "no run has a common test set" in found.notes[0]


def test_a_recorded_round_that_is_no_selection_is_refused(curve):
    run = curve()
    run.meta["experiment"]["published"][0]["round"] = "best"
    with pytest.raises(DataError, match="the round 'best'"):
        table_of([run])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rows": [["FedAvg", "aca", "1"]]}, "has 3 entries; give the method, the view and 2 figures"),
        ({"metrics": ["amp", "f1"]}, "must be"),
        ({"sources": "x"}, "did you mean 'source'"),
        ({"round": "best on test"}, r"published\.round is 'best on test'; did you mean 'best by test'"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused(change, sentence):
    with pytest.raises(UsageError, match=sentence):
        experiment({"published": [{**TABLE, **change}]})


def test_one_table_is_not_a_list_of_tables():
    with pytest.raises(UsageError, match=r"\[\[published\]\]"):
        experiment({"published": TABLE})


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ({"training.momentum": 0.0}, True),  # a default that no file writes
        ({"training.momentum": 0.9}, False),
        ({"partition.alpha": [0.01, 0.1]}, True),
        ({"partition.alpha": [0.01, 1.0]}, False),
        ({"partition.min_size": 10}, True),  # the partition's own default
        ({"partition.min_size": 100}, False),
        ({"partition.balanced": True}, True),
        ({"partition.balanced": 1}, False),
        ({"data.name": "fashion-mini", "data.normalise": "default"}, True),
        ({"data": "fashion-mini"}, True),
        ({"data.per_class": 480}, False),  # not an option of this data set
        ({"model.name": "lenet5"}, True),
        ({"model.hidden": [64]}, False),
        ({"public.samples": 1000}, False),  # there is no public set
        ({"rounds": [20, 50]}, True),
        ({"method.name": "fedavg"}, True),
        ({"method.mu": 0.01}, False),
        ({"methods.fedavg.aggregation.combine": "mean"}, True),
        ({"methods.fedavg.training.lr": 0.5}, False),
        ({"methods.fedprox.mu": 5.0}, True),  # it was not run
        ({"cache.dtype": ["float32", "bfloat16"]}, True),
    ],
)
def test_a_condition_can_name_any_key(run, where, holds):
    assert bool(table_of([run(published=[{**TABLE, "where": where}])])) is holds


@pytest.mark.parametrize(
    ("key", "named"),
    [
        ("training.momentun", "'momentum'"),
        ("trainin.lr", "'training'"),
        ("partition.alfa", "'alpha'"),
        ("model.with", "'width'"),
        ("method.mue", "'mu'"),
        ("method.trainig.lr", "'training.lr'"),
        ("methods.fedavgg.mu", "'fedavg'"),
        ("methods.fedprox.nu", "methods.fedprox .*fedalloy list fedprox"),
        ("rounds.first", "rounds"),
    ],
)
def test_a_condition_on_a_key_that_no_experiment_has_is_refused(key, named):
    values = {"methods": {"fedavg": {}, "fedprox": {}}, "published": [{**TABLE, "where": {key: 1}}]}
    with pytest.raises(UsageError, match=f"published.where.*{named}"):
        experiment(values)


def test_conditions_on_methods_that_train_differently():
    small = {"data": "tiny", "model": "mlp", "rounds": 1, "partition": {"clients": 2, "alpha": 0.1}}
    listed = {"fedavg": {}, "mild": {"name": "fedprox", "mu": 0.5, "training": {"lr": 0.3}}}

    def holds(**where):
        dotted = {key.replace("_", "."): value for key, value in where.items()}
        table = {**TABLE, "rows": [["mild", "aca", "1", "2"]], "where": dotted}
        return bool(holding(compare({**small, "methods": listed, "published": [table]})))

    assert holds(training_lr=0.05)  # of the methods that have no rate of their own
    assert holds(methods_mild_training_lr=0.3, methods_mild_mu=0.5, methods_mild_name="fedprox")
    assert not holds(methods_mild_training_lr=0.05)
    assert not holds(methods_mild_mu=[0.1, 0.2])


def test_a_method_that_trained_otherwise_has_no_paper_figure(tmp_path):
    table = {"source": "T", "metrics": ["amp"], "where": {"training.lr": 0.05}}
    table["rows"] = [["FedAvg", "aca", "60"], ["FedProx", "aca", "62"]]
    values = {
        "rounds": 1,
        "engine": "serial",
        "data": {"name": "tiny", "size": 8},
        "model": "mlp",
        "partition": {"clients": 3, "alpha": 1.0},
        "training": {"lr": 0.05},
        "methods": {"fedavg": {}, "fedprox": {"training": {"lr": 0.1}}},
        "published": [table],
    }
    (found,) = beside(compare(values))
    assert [line[0] for line in found.body] == ["FedAvg"]
    values["methods"]["fedprox"] = {"training": {"lr": 0.05}}
    assert [line[0] for line in beside(compare(values))[0].body] == ["FedAvg", "FedProx"]
