from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedalloy.errors import UsageError
from fedalloy.report.canvas import HALF, NARROW, WIDE
from fedalloy.report.curves import note_chart
from fedalloy.report.plots import client_picture, cost_picture, learning_curves, save, to_svg
from fedalloy.report.series import series_of, spread


def ids(svg):
    return [element.attrib["id"] for element in ElementTree.fromstring(svg).iter() if "id" in element.attrib]


def texts(figure):
    words = [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        words += [text.get_text() for text in [*axes.texts, *axes.get_yticklabels()]]
    return words


def test_curves_are_means_and_deviations_over_seeds(make_run):
    runs = [make_run(seed=s, views={"oca": [[a, a], [a + 0.1, a + 0.1]]}) for s, a in ((0, 0.2), (1, 0.4))]
    rounds, mean, std = series_of(runs)[0].curve("amp")
    assert rounds.tolist() == [1, 2]
    assert mean.tolist() == pytest.approx([0.3, 0.4])
    assert std.tolist() == pytest.approx([0.2 / 2**0.5] * 2)


def test_a_shorter_seed_shortens_the_curve(make_run):
    runs = [make_run(seed=0, views={"oca": [[0.1], [0.2], [0.3]]}), make_run(seed=1, views={"oca": [[0.1], [0.2]]})]
    assert series_of(runs)[0].curve("amp")[0].tolist() == [1, 2]


def test_notes_have_one_line_for_each_method_whatever_its_views(make_run):
    def noting(label, seed, *values):
        run = make_run(label=label, seed=seed, views={"aca": [[0.1], [0.2]], "oca": [[0.1], [0.2]]})
        rounds = [{**r, "notes": {"kept": value}} for r, value in zip(run.rounds, values, strict=True)]
        return replace(run, rounds=tuple(rounds))

    runs = [noting("A", 0, 4, 6), noting("A", 1, 2, 2), noting("B", 0, 1, 1), make_run(label="C")]
    chart = note_chart(series_of(runs), "kept", 0)
    assert [layer.name for layer in chart.fields[0].layers] == ["A", "B"]
    assert [[shape.d for shape in layer.shapes if shape.css == "line"] for layer in chart.fields[0].layers] == [
        ["M1 3 2 4"],
        ["M1 1 2 1"],
    ]
    assert chart.data.body == [["1", "3.00 ± 1.41", "1.00"], ["2", "4.00 ± 2.83", "1.00"]]


def test_traffic_adds_up(make_run):
    rounds, sent = series_of([make_run(kinds={"weights": 100, "logits": 10})])[0].spent("bytes_total")
    assert (rounds.tolist(), sent.tolist()) == ([1, 2], [165, 330])


def test_views_share_a_hue_and_bounds_are_grey(comparison):
    looks = {one.name: (one.hue, one.dash) for one in series_of(comparison)}
    assert list(looks) == ["FedAvg (ACA)", "FedAvg (OCA)", "Local", "Centralised"]
    assert looks["FedAvg (ACA)"][0] == looks["FedAvg (OCA)"][0] == "#0072B2"
    assert looks["FedAvg (ACA)"][1] != looks["FedAvg (OCA)"][1]
    assert looks["Local"][0] == "#9A9A9A"


def test_thirteen_methods_all_look_different(make_run):
    found = series_of([make_run("fedavg", f"m{i}") for i in range(13)])
    assert len({(one.hue, one.marker, one.dash) for one in found}) == 13


@given(
    st.lists(st.floats(-10, 10), max_size=12).map(sorted),
    st.floats(0.01, 1),
)
def test_spread_names_never_overlap(wanted, gap):
    placed = spread(wanted, gap, -20, 20)
    assert all(b - a >= gap - 1e-9 for a, b in pairwise(placed))
    assert all(-20 - 1e-9 <= y <= 20 + 1e-9 for y in placed)


def test_spread_leaves_alone_what_is_apart():
    assert spread([0.0, 3.0, 7.0], 2.0, -1, 8) == [0.0, 3.0, 7.0]


@pytest.mark.parametrize("width", [WIDE, HALF, NARROW])
@pytest.mark.parametrize("draw", [learning_curves, client_picture, cost_picture])
def test_every_series_is_named_inside_the_picture(comparison, draw, width):
    figure = draw(comparison, width=width)
    assert figure.get_size_inches()[0] == width
    assert {"FedAvg (ACA)", "FedAvg (OCA)", "Local", "Centralised"} <= set(texts(figure))
    figure.canvas.draw()
    edges = figure.bbox
    for text in figure.texts:
        box = text.get_window_extent()
        assert edges.x0 <= box.x0
        assert box.x1 <= edges.x1
        assert edges.y0 <= box.y0
        assert box.y1 <= edges.y1
    boxes = [text.get_window_extent() for text in figure.texts]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_the_names_stand_beside_the_lines_and_not_on_them(comparison):
    figure = learning_curves(comparison, width=WIDE)
    plot = figure.axes[0].get_window_extent()
    assert all(text.get_window_extent().x0 > plot.x1 for text in figure.texts)


def test_the_worst_client_is_named(make_run):
    figure = client_picture([make_run(views={"oca": [[0.9, 0.8, 0.3, 0.7]]})])
    assert "2" in [text.get_text() for text in figure.axes[0].texts]


def test_untested_clients_and_single_rounds_are_drawn(make_run):
    run = make_run(views={"oca": [[0.5, float("nan"), 0.7]]})
    for draw in (learning_curves, client_picture, cost_picture):
        assert to_svg(draw([run])).startswith("<svg")
    assert [client for client, _ in series_of([run])[0].clients()] == [0, 2]


def test_clients_are_those_of_the_selected_round(make_run):
    (one,) = series_of([make_run(views={"oca": [[0.9, 0.8], [0.5, 0.25]]})])
    assert one.clients("best by amp") == [(0, 0.9), (1, 0.8)]
    assert [accuracy for _, accuracy in one.clients("mean of last 2")] == pytest.approx([0.7, 0.525])
    assert one.clients("best by test") == []  # nobody was tested on a common test set


def test_nobody_tested_is_drawn_without_a_word(make_run, recwarn):
    run = make_run(views={"oca": [[float("nan"), float("nan")]]})
    for draw in (learning_curves, client_picture, cost_picture):
        for width in (WIDE, NARROW):
            assert to_svg(draw([run], width=width)).startswith("<svg")
    assert not recwarn.list


def test_a_label_is_only_ever_text(make_run):
    svg = to_svg(learning_curves([make_run(label="$x_{<script>\n\x07")]))
    root = ElementTree.fromstring(svg)
    assert "$x_{<script> (OCA)" in [element.text for element in root.iter() if element.text]
    assert "<script>" not in svg


def test_an_unknown_metric_is_refused(comparison):
    with pytest.raises(UsageError, match="no metric 'ampp'"):
        learning_curves(comparison, "ampp")


def test_nothing_of_the_style_remains(comparison):
    before = dict(matplotlib.rcParams)
    to_svg(learning_curves(comparison))
    assert dict(matplotlib.rcParams) == before


def test_svg_is_repeatable_with_ids_of_its_own(comparison):
    first, again = (to_svg(learning_curves(comparison), label="curves") for _ in range(2))
    assert first == again
    other = to_svg(cost_picture(comparison))
    assert len(set(ids(first) + ids(other))) == len(ids(first)) + len(ids(other))
    assert ElementTree.fromstring(first).attrib["aria-label"] == "curves"


def test_svg_refers_only_to_its_own_ids(comparison):
    svg = to_svg(client_picture(comparison), ids="here")
    known = set(ids(svg))
    used = {
        value.removeprefix("url(").rstrip(")").removeprefix("#")
        for element in ElementTree.fromstring(svg).iter()
        for key, value in element.attrib.items()
        if key in ("href", "clip-path")
    }
    assert used
    assert used <= known
    assert all(name.startswith("here-") for name in known)


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_saved_pictures_are_repeatable(comparison, tmp_path, suffix, magic):
    first, again = (save(cost_picture(comparison), tmp_path / f"{i}.{suffix}").read_bytes() for i in range(2))
    assert first.startswith(magic)
    assert first == again


def test_an_unknown_kind_of_picture_is_refused(comparison, tmp_path):
    with pytest.raises(UsageError, match="end its name with"):
        save(cost_picture(comparison), tmp_path / "x.bmp")


def test_many_equal_clients_stay_inside_their_row(make_run):
    figure = client_picture([make_run(views={"oca": [[0.5] * 300]}), make_run(label="b", views={"oca": [[0.5] * 300]})])
    for line in figure.axes[0].lines:
        heights = np.asarray(line.get_ydata(), dtype=float)
        assert heights.max() - heights.min() <= 1
