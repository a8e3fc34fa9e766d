"""What clients gain: values computed by hand, who is compared with whom, tables, picture, and when to doubt."""

import re
from math import hypot, sqrt

import numpy as np
import pytest
from rich.console import Console

from fedalloy.report.client_charts import gain_chart
from fedalloy.report.gains import Gains, gains, leading
from fedalloy.report.gains_table import ALL, each_client, summary, who_gains
from fedalloy.report.html import render

VIEWS = {"local": "personal", "fedavg": "aca", "knfu": "personal", "centralised": "global"}
LABELS = {"local": "Local", "fedavg": "FedAvg", "knfu": "KnFu", "centralised": "Centralised"}


@pytest.fixture
def one(make_run):
    """A run of one round: the accuracy of each client in a method's only view, on ten test samples each."""

    def made(name, accuracy, seed=0, **meta):
        sizes = {"train_sizes": [100 * (k + 1) for k in range(len(accuracy))]}
        return make_run(name, LABELS[name], seed, {VIEWS[name]: [accuracy]}, **{"clients": sizes, **meta})

    return made


def written(listing, width=200):
    console = Console(width=width)
    with console.capture() as caught:
        console.print(listing.table())
    return caught.get()


def test_each_client_is_compared_with_its_own_local_and_fedavg_model(one):
    runs = [one("local", [0.5, 0.8, 0.6]), one("fedavg", [0.6, 0.7, 0.5]), one("knfu", [0.9, 0.7, 0.6])]
    found = gains(runs)
    assert [(gain.name, gain.reference) for gain in found] == [
        *(("KnFu", "Local"), ("KnFu", "FedAvg (ACA)")),  # 73.3 % leads
        ("FedAvg (ACA)", "Local"),  # and is not compared with itself
    ]
    over_local, over_fedavg, other = found
    assert leading(found) == [over_local, over_fedavg]
    assert over_local.points.tolist() == pytest.approx([40, -10, 0])
    assert over_fedavg.points.tolist() == pytest.approx([30, 0, 10])
    assert other.points.tolist() == pytest.approx([10, -10, -10])
    assert over_local.accuracy.tolist() == pytest.approx([90, 70, 60])
    assert over_local.train.tolist() == [100, 200, 300]
    assert (over_local.clients, over_local.gaining, over_local.losing) == (("0", "1", "2"), [0], [1])


def test_two_standard_errors_decide_what_is_clear(one):
    (gain,) = gains([one("local", [0.3, 0.4, 0.0]), one("fedavg", [0.7, 0.7, 0.0])])
    # Pooled accuracies 0.5, 0.55 and 0, ten samples each: 40 points are more than 2 x 15.8, 30 less than 2 x 15.7.
    assert gain.errors.tolist() == pytest.approx([100 * sqrt(0.025), 100 * sqrt(0.45 * 0.55 / 10), 0])
    assert gain.clear.tolist() == [True, False, False]
    # All tests together: (1.4 + 0.7) / 6 on thirty samples.
    pooled = 2.1 / 6
    assert gain.total_error == pytest.approx(100 * sqrt(pooled * (1 - pooled) / 30))


def test_a_common_test_set_counts_once(one):
    common = {"experiment": {"partition": {"test": "global"}}}
    (gain,) = gains([one("local", [0.4, 0.4], **common), one("fedavg", [0.6, 0.6], **common)])
    assert gain.total_error == pytest.approx(100 * sqrt(0.25 / 10))


def test_seeds_of_one_split_are_averaged_and_their_spread_counts(one):
    runs = [one("local", [0.4], 0), one("fedavg", [0.6], 0), one("local", [0.5], 1), one("fedavg", [0.5], 1)]
    (gain,) = gains(runs)
    assert gain.points.tolist() == pytest.approx([10])  # of +20 and 0
    # Both tests: sqrt(0.25 / 10). The seeds: a deviation of 0.2 / sqrt(2), over sqrt(2).
    assert gain.errors.tolist() == pytest.approx([100 * hypot(sqrt(0.025), 0.1)])
    assert (gain.seeds, gain.splits, gain.clients) == (2, 1, ("0",))


def test_what_cancels_out_is_no_gain(one):
    runs = [one("local", [0.3], 0), one("fedavg", [0.1], 0), one("local", [0.6], 1), one("fedavg", [0.8], 1)]
    (gain,) = gains(runs)
    assert (gain.gaining, gain.losing) == ([], [])


def test_clients_of_different_splits_are_different_clients(one):
    def split(seed):
        return {"partition": {"counts": [[seed, 1], [1, 2]]}}

    runs = [
        *(one("local", [0.4, 0.4], 0, **split(0)), one("fedavg", [0.6, 0.3], 0, **split(0))),
        *(one("local", [0.5, 0.5], 3, **split(3)), one("fedavg", [0.5, 0.9], 3, **split(3))),
    ]
    (gain,) = gains(runs)
    assert gain.clients == ("0 (seed 0)", "1 (seed 0)", "0 (seed 3)", "1 (seed 3)")
    assert gain.points.tolist() == pytest.approx([20, -10, 0, 40])
    assert (gain.seeds, gain.splits) == (2, 2)


def test_the_view_with_the_highest_amp_speaks_for_a_method(make_run, one):
    views = {"aca": [[0.5, 0.5]], "oca": [[0.7, 0.4]]}
    found = gains([make_run("fedavg", "FedAvg", views=views), one("local", [0.4, 0.4])])
    assert [(gain.name, gain.reference) for gain in found] == [
        *(("FedAvg (OCA)", "Local"), ("FedAvg (OCA)", "FedAvg (ACA)"))
    ]
    assert found[1].points.tolist() == pytest.approx([20, -10])


def test_the_selected_round_counts(make_run):
    local = make_run("local", "Local", views={"personal": [[0.2], [0.6]]})
    fedavg = make_run("fedavg", "FedAvg", views={"aca": [[0.9], [0.7]]})
    assert gains([local, fedavg])[0].points.tolist() == pytest.approx([10])
    assert gains([local, fedavg], "best by amp")[0].points.tolist() == pytest.approx([30])
    (mean,) = gains([local, fedavg], "mean of last 2")
    assert (mean.points.tolist(), mean.accuracy.tolist()) == (pytest.approx([40]), pytest.approx([80]))
    assert gains([local, fedavg], "best by validation") == []  # nothing was validated


@pytest.mark.parametrize(
    "other",
    [
        {"accuracy": [0.5, 0.5, 0.5]},  # another number of clients
        {"accuracy": [0.5, 0.5], "seed": 1},
        {"accuracy": [0.5, 0.5], "digests": {"partition": "another"}},
    ],
)
def test_runs_that_were_not_tested_alike_are_not_compared(one, other):
    assert gains([one("local", **other), one("fedavg", [0.6, 0.6])]) == []


def test_without_a_reference_there_is_nothing(one):
    assert gains([one("knfu", [0.5]), one("centralised", [0.9])]) == []
    assert gains([one("local", [0.5]), one("centralised", [0.9])]) == []  # a bound is no choice
    assert "Gain of each client" not in render([one("knfu", [0.5])], title="")


def test_a_client_without_a_test_is_left_out(one):
    runs = [one("local", [0.4, 0.9, 0.4]), one("fedavg", [0.6, 0.9, 0.3])]
    for run in runs:
        (view,) = run.rounds[0]["views"].values()
        view["clients"]["accuracy"][1], view["clients"]["size"][1] = None, 0
    (gain,) = gains(runs)
    assert gain.clients == ("0", "2")
    assert gain.train.tolist() == [100, 300]
    assert gain.total_error == pytest.approx(100 * sqrt(0.425 * 0.575 / 20))


def test_the_summary_has_a_line_for_each_method_and_reference(one):
    runs = [one("local", [0.5, 0.8, 0.6]), one("fedavg", [0.6, 0.7, 0.5]), one("knfu", [0.9, 0.7, 0.6])]
    assert summary(gains(runs)).body == [
        ["KnFu", "Local", "1 (1)", "1 (0)", "0.0", "-10.0", "+40.0"],
        ["KnFu", "FedAvg (ACA)", "2 (1)", "0 (0)", "+10.0", "0.0", "+30.0"],
        ["FedAvg (ACA)", "Local", "1 (0)", "2 (0)", "-10.0", "-10.0", "+10.0"],
    ]


def test_every_client_of_the_leader_is_listed_who_loses_most_first(one):
    runs = [one("local", [0.5, 0.8, 0.6]), one("fedavg", [0.6, 0.7, 0.5]), one("knfu", [0.9, 0.7, 0.6])]
    listing = each_client(gains(runs), ALL)
    assert listing.headings == ("Client", "Over Local", "Over FedAvg (ACA)", "Accuracy %", "Trained on")
    assert listing.body == [
        ["1", "-10.0 ± 13.7", "0.0 ± 14.5", "70.0", "200"],
        ["2", "0.0 ± 15.5", "+10.0 ± 15.7", "60.0", "300"],
        ["0", "+40.0 ± 14.5", "+30.0 ± 13.7", "90.0", "100"],
    ]
    assert "KnFu" in written(listing)


def test_of_many_clients_ten_from_either_end_are_listed(one):
    accuracy = [k / 100 for k in range(31)]
    found = gains([one("local", [0.1] * 31), one("fedavg", accuracy)])
    shown = [line[0] for line in each_client(found, ALL).body]
    assert shown == [*map(str, range(10)), "…", *map(str, range(21, 31))]
    assert "of 31 " in each_client(found, ALL).note
    assert len(each_client(found).body) == 31
    found = gains([one("local", [0.1] * 30), one("fedavg", accuracy[:30])])
    assert len(each_client(found, ALL).body) == 30


def test_the_tables_fit_a_terminal_of_eighty_columns(one):
    found = gains([one("local", [0.0]), one("fedavg", [1.0]), one("knfu", [0.5])])
    for listing in (summary(found), each_client(found, ALL)):
        assert "…" not in written(listing, 80)


def test_whether_small_or_large_clients_gain(one):
    (gain,) = gains([one("local", [0.5, 0.5, 0.5]), one("fedavg", [0.6, 0.7, 0.2])])
    assert re.search("Local .* 150 .* lose 300", who_gains(gain))
    (all_gain,) = gains([one("local", [0.5]), one("fedavg", [0.6])])
    assert who_gains(all_gain) == ""
    (unknown,) = gains([one("local", [0.5, 0.5], clients={}), one("fedavg", [0.6, 0.4], clients={})])
    assert who_gains(unknown) == ""


@pytest.fixture
def many():
    def made(count, over="local", reference="Local"):
        points = np.linspace(-5, 20, count)
        return Gains(
            label="KnFu",
            view="personal",
            name="KnFu",
            over=over,
            reference=reference,
            clients=tuple(map(str, range(count))),
            points=points,
            errors=np.full(count, 3.0),
            accuracy=np.full(count, 80.0),
            train=np.arange(count) + 10.0,
            spread=np.full(count, np.nan),
            networks=(),
            named=False,
            seeds=1,
            splits=1,
            total_error=1.0,
        )

    return made


def corners(chart, css):
    """The left lower corner, width and height of each bar, from the top."""
    (d,) = [shape.d for field in chart.fields for layer in field.layers for shape in layer.shapes if shape.css == css]
    found = [[float(x) for x in re.findall(r"-?[0-9.]+", bar)[:4]] for bar in d.split("M")[1:]]
    return sorted(found, key=lambda bar: -bar[1])


def test_the_picture_shows_gains_sizes_and_the_other_reference(one):
    runs = [one("local", [0.5, 0.8, 0.6]), one("fedavg", [0.6, 0.7, 0.5]), one("knfu", [0.9, 0.7, 0.6])]
    chart = gain_chart(leading(gains(runs)), "gains-table")
    gain, _ = chart.fields
    assert [name for _, name in gain.y.ticks(9)] == ["0", "2", "1"]  # from below: the largest gain is last
    assert [bar[2] for bar in corners(chart, "gain")] == pytest.approx([40])
    assert [bar[2] for bar in corners(chart, "loss pale")] == pytest.approx([-10])
    assert [bar[2] for bar in corners(chart, "size")] == [200, 300, 100]
    (dots,) = [shape.d for shape in gain.layers[0].shapes if shape.css == "other"]
    assert dots == "M0 2h0M10 1h0M30 0h0"
    assert gain.x.low < -10 < 40 < gain.x.high
    assert gain.rule == 0
    small = gains([one("local", [0.5], clients={}), one("fedavg", [0.6], clients={})])
    assert len(gain_chart(small, "gains-table").fields) == 1


def test_a_thousand_clients_make_a_small_picture(many):
    chart = gain_chart([many(1000)], "gains-table")
    assert sum(len(shape.d) for field in chart.fields for layer in field.layers for shape in layer.shapes) < 100_000
    assert chart.fields[0].height <= 1200


def test_the_page_has_the_picture_and_both_tables(one):
    runs = [one("local", [0.5, 0.8, 0.6]), one("fedavg", [0.6, 0.7, 0.5]), one("knfu", [0.9, 0.7, 0.6])]
    text = render(runs, title="")
    for part in (
        'id="gains">Gain of each client',
        "KnFu over Local",
        "Dots are gains over FedAvg (ACA).",
        "<td>+40.0 ± 14.5</td>",
        "<summary>Each client with KnFu</summary>",
        "Bar chart: ",
    ):
        assert part in text


def test_the_names_of_clients_are_never_cut(one):
    names = ["central_hospital", "North clinic of the university"]
    clients = {"train_sizes": [100, 200], "names": names}
    local, fedavg = ([one(name, [0.5, 0.6], seed, clients=clients) for seed in (0, 1)] for name in ("local", "fedavg"))
    knfu = [one("knfu", [0.7, 0.7], seed, clients=clients) for seed in (0, 1)]
    text = written(each_client(gains([*local, *fedavg, *knfu])), 70)
    assert "…" not in text
    assert "central" in text
    assert "Accuracy %" in text
