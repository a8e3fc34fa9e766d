"""The data behind the charts of a page, on runs whose numbers can be seen at a glance."""

import re
from dataclasses import replace

import numpy as np
import pytest

from fedalloy.report.chart import Axis, around, cells, thinned
from fedalloy.report.client_charts import accuracy_chart, accuracy_table, split_chart
from fedalloy.report.curves import metric_chart
from fedalloy.report.gains import gains
from fedalloy.report.html import render
from fedalloy.report.leads import rivals
from fedalloy.report.series import series_of
from fedalloy.report.significance import significance
from fedalloy.storage.rows import rows


def lines(field):
    return {layer.name: [s.d for s in layer.shapes if s.css == "line"] for layer in field.layers}


def test_curves_are_drawn_in_the_data_s_coordinates_over_every_cost(comparison):
    chart = metric_chart(comparison, series_of(comparison), "amp", costs=True)
    rounds, sent, flops, seconds = chart.fields
    assert lines(rounds)["FedAvg (OCA)"] == ["M1 40 2 70"]
    assert [field.aside for field in chart.fields] == [False, False, True, True]
    # 150 bytes a round, 1 FLOP, and 1.5 seconds of training
    points = [re.findall(r"[0-9.]+", lines(field)["FedAvg (OCA)"][0])[::2] for field in (sent, flops, seconds)]
    assert np.float64(points) == pytest.approx(np.log10([[150, 300], [1, 2], [1.5, 3]]), abs=1e-5)
    # Local sends nothing: a line over the whole width, at its last AMP
    assert lines(sent)["Local"] == [f"M{sent.x.low:.6g} 40 {sent.x.high:.6g} 40"]
    assert chart.data.headings == ["Round", *(one.name for one in series_of(comparison))]
    assert chart.data.body[1][2] == "70.00 ± 0.00"


def test_every_chart_and_table_has_the_order_of_the_runs(comparison):
    series = series_of(comparison)
    names = [one.name for one in series]
    curves = metric_chart(comparison, series, "amp")
    dots = accuracy_chart(comparison, series, "last", "")
    assert [entry.name for entry in curves.legend] == names
    assert [layer.name for layer in dots.fields[0].layers] == names
    assert [text for _, text in dots.fields[0].y.ticks(9)] == names[::-1]  # from below
    assert [entry.look for entry in curves.legend] == [layer.look for layer in dots.fields[0].layers]
    assert [name for name in accuracy_table(comparison, series, "last", []).headings if name in names] == names
    text = render(comparison, title="")
    assert '<span class="key c0">FedAvg</span>' in text
    assert text.index('key c6">Local<') < text.index('key c8">Centralised<')


def test_more_than_six_series_have_panels_with_the_same_axes(make_run):
    def chart(count):
        runs = [make_run(label=f"M{k}", views={"oca": [[0.5], [0.6]]}) for k in range(count)]
        return metric_chart(runs, series_of(runs), "amp")

    assert not chart(6).panels
    assert [(panel.title, panel.keys) for panel in chart(7).panels] == [(f"M{k}", (k,)) for k in range(7)]


def test_the_table_of_clients_has_names_networks_sizes_and_gains(make_run):
    models = [{"name": "mlp", "clients": [0]}, {"name": "lenet5", "clients": [1]}]
    clients = {"train_sizes": [30, 1200], "test_sizes": [10, 10], "names": ["North", "South"]}
    runs = [
        make_run("local", "Local", views={"personal": [[0.5, 0.6]]}, clients=clients, models=models),
        make_run("knfu", "KnFu", views={"personal": [[0.8, 0.5]]}, clients=clients, models=models),
    ]
    table = accuracy_table(runs, series_of(runs), "last", gains(runs))
    assert table.headings == ["Client", "Network", "Trained on", "Local", "KnFu", "Gain"]
    north, south = table.body
    assert north[:5] == ["North", "mlp", "30", "50.0", "80.0"]
    assert north[5].startswith("+30.0 ±")
    assert south[:5] == ["South", "lenet5", "1,200", "60.0", "50.0"]
    assert table.words == 2


def test_clients_of_different_splits_have_lines_of_their_own(make_run):
    runs = [make_run(seed=s, views={"oca": [[0.5, 0.7]]}, partition={"counts": [[s]]}) for s in (0, 1)]
    table = accuracy_table(runs, series_of(runs), "last", [])
    assert [line[0] for line in table.body] == ["0 (seed 0)", "1 (seed 0)", "0 (seed 1)", "1 (seed 1)"]
    alike = [replace(run, meta={**run.meta, "partition": {"counts": [[0]]}}) for run in runs]
    assert [line[0] for line in accuracy_table(alike, series_of(alike), "last", []).body] == ["0", "1"]


def seeds_of(make_run, **amps):
    return [
        make_run(name, name, seed, {"oca": [[amp, amp]]})
        for name, each in amps.items()
        for seed, amp in enumerate(each)
    ]


def leads_of(runs):
    table = [row for run in runs for row in rows(run)]
    return significance(rivals(table, {run.label: run.name for run in runs}), series_of(runs))


def test_leads_have_intervals_in_the_table_and_in_the_picture(make_run):
    runs = seeds_of(make_run, fedavg=(0.5, 0.6, 0.7), fedprox=(0.49, 0.58, 0.67), moon=(0.1, 0.9, 0.2))
    found = leads_of(runs)
    half = 4.302653 * 1.0 / 3**0.5  # Student's t with two degrees of freedom; the differences are 1, 2, 3 points
    (field,) = found.chart.fields
    assert field.rule == 0
    assert field.x.low < 2 - half
    assert [line[0] for line in found.listing.body] == ["fedprox (OCA)", "moon (OCA)"]
    low, high = re.fullmatch(r"M(\S+) 1H(\S+)", field.layers[0].shapes[0].d).groups()
    assert (float(low), float(high)) == (pytest.approx(2 - half, abs=1e-4), pytest.approx(2 + half, abs=1e-4))
    assert [*found.listing.body[0][1:3]] == ["2.00", f"{2 - half:.2f} to {2 + half:.2f}"]


def test_bounds_do_not_compete_for_the_lead(make_run):
    runs = seeds_of(make_run, fedavg=(0.5, 0.6, 0.7), fedprox=(0.3, 0.4, 0.5001), centralised=(0.9, 0.9, 0.9))
    assert [line[0] for line in leads_of(runs).listing.body] == ["fedprox (OCA)"]


def test_one_seed_has_no_differences_and_no_highlight(make_run):
    runs = seeds_of(make_run, fedavg=(0.5,), fedprox=(0.4,))
    assert leads_of(runs) is None
    text = render(runs, title="")
    assert 'class="best"' not in text
    assert "larger than chance" not in text
    assert "1 (seed 0)" in text


def test_the_split_is_a_map_with_its_numbers():
    chart = split_chart(np.array([[30, 0], [5, 7]]), ["cat", "dog"], ["North", "South"], 3)
    assert chart.data.headings == ["Class", "North", "South"]
    assert chart.data.body == [["cat", "30", "5"], ["dog", "0", "7"]]
    (layer,) = chart.fields[0].layers
    assert sum(shape.d.count("M") for shape in layer.shapes) == 3  # an empty cell is not drawn


@pytest.mark.parametrize(
    ("axis", "expected"),
    [
        (Axis("", 0, 1), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (Axis("", 1, 3, "count"), ["1", "2", "3"]),
        (Axis("", 6, 8, "bytes"), ["1 MB", "2 MB", "5 MB", "10 MB", "20 MB", "50 MB", "100 MB"]),
        (Axis("", 0, 3, "seconds"), ["1 s", "10 s", "1.7 min", "16.7 min"]),
        (Axis("", 9, 11, "flops"), ["1e09", "2e09", "5e09", "1e10", "2e10", "5e10", "1e11"]),
        (Axis("", 2.0, 2.1, "bytes"), ["100 B", "105 B", "110 B", "115 B", "120 B", "126 B"]),
        (Axis("", -0.5, 1.5, names=("a", "b")), ["a", "b"]),
    ],
)
def test_ticks_lie_inside_and_are_few(axis, expected):
    found = axis.ticks()
    assert [text for _, text in found] == expected
    assert all(axis.low - 1e-9 <= place <= axis.high + 1e-9 for place, _ in found)


@pytest.mark.parametrize("values", [[], [float("nan")], [0.0], [5.0, 5.0], [1e-12], [1e300, -1e300]])
def test_ranges_are_never_empty(values):
    low, high = around(values)
    assert low < high
    assert Axis("", low, high).ticks()


def test_long_runs_are_thinned_and_say_so(make_run):
    run = make_run(views={"oca": [[0.5, 0.6]] * 1000})
    chart = metric_chart([run], series_of([run]), "amp")
    assert len(thinned(np.arange(1000))) == len(chart.data.body) == 400
    assert chart.data.body[-1][0] == "1000"
    assert "1,000 rounds" in chart.data.note


def test_cells_without_a_number_differ_from_empty_ones():
    assert [shape.css for shape in cells(np.array([[np.nan, 0.0, 1.0]]))] == ["level l12", "level none"]


def test_a_large_comparison_stays_small(make_run):
    """Twenty methods, five seeds, a hundred rounds and a hundred clients."""
    draw = np.random.default_rng(0)
    seeds = []
    for s in range(5):
        run = make_run(seed=s, views={"oca": draw.random((100, 100)).round(2).tolist()}, partition={"counts": [[s]]})
        run.meta["clients"].update(train_sizes=[10] * 100, class_counts=[[1] * 10] * 100)
        seeds.append(run)
    runs = [replace(run, meta={**run.meta, "label": f"Method {m}"}) for m in range(20) for run in seeds]
    assert len(render(runs, title="").encode()) < 3_000_000
