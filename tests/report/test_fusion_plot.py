"""KnFu's pictures: every number drawn is the one that was given, absent clients are left out, words fit the page."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from fedalloy.knowledge.fusion import divergences, fusion_weights
from fedalloy.report.fusion_plot import epd_picture, fusion_picture


def made(clients, classes, absent=0):
    """A round's weights and EPDs with the clients' true counts; every (absent + 1)th client or so took part."""
    draw = np.random.default_rng(0)
    total = clients + absent
    here = np.sort(draw.permutation(total)[:clients])
    counts = draw.integers(0, 30, (total, classes))
    counts[:, 0] += 1
    epd, weights = np.zeros((total, classes)), np.zeros((total, total))
    epd[here] = draw.dirichlet([0.5] * classes, clients)
    weights[np.ix_(here, here)] = fusion_weights(divergences(torch.tensor(epd[here])), 10).numpy()
    return weights, epd, counts, here


def drawn(axes):
    return np.asarray(axes.collections[0].get_array())


def inside(figure, *axes):
    figure.canvas.draw()
    for text in [*figure.texts, *(t for a in axes for t in (*a.texts, a.xaxis.label, a.yaxis.label))]:
        box = text.get_window_extent()
        assert box.x0 >= 0, text
        assert box.y0 >= 0, text
        assert box.x1 <= figure.bbox.x1, text
        assert box.y1 <= figure.bbox.y1, text
    for axis in axes:
        for tick in (*axis.get_xticklabels(), *axis.get_yticklabels()):
            box = tick.get_window_extent()
            assert box.x0 >= 0, tick
            assert box.y0 >= 0, tick


def apart(axes):
    """No heading above the axes begins before the one left of it ends."""
    boxes = sorted(
        (t.get_window_extent() for a in axes for t in a.texts if not t.get_text()[0].isdigit()), key=top_left
    )
    heads = [box for box in boxes if box.y0 > max(a.bbox.y1 for a in axes) - 1]
    assert len(heads) >= 3
    assert all(a.x1 < b.x0 for a, b in pairwise(heads))


def top_left(box):
    return box.x0


@pytest.mark.parametrize(("clients", "absent"), [(20, 0), (3, 4), (1, 3), (2, 0), (160, 100)])
def test_the_picture_of_who_learns_from_whom(clients, absent):
    weights, _, _, here = made(clients, 10, absent)
    figure = fusion_picture(weights, title="KnFu")
    main, bars = figure.axes[:2]
    among = weights[np.ix_(here, here)]
    others = among - np.diag(among.diagonal())
    assert np.array_equal(drawn(main).reshape(clients, clients), others)
    inside(figure, main, bars)
    apart((main, bars))
    names = [tick.get_text() for tick in main.get_yticklabels()]
    assert set(names) <= {str(k) for k in here}
    assert names[0] == str(here[0])
    widths = np.array([bar.get_width() for bar in bars.patches]).reshape(3, clients)
    assert widths[0] == pytest.approx(among.diagonal())
    assert widths.sum(0) == pytest.approx(np.ones(clients))
    assert [patch.get_xy() for patch in main.patches] == [(i - 0.5, i - 0.5) for i in range(clients)]
    assert f"{clients} of {clients + absent} clients" in figure.texts[1].get_text()


def test_numbers_and_the_nearest_client_by_hand():
    figure = fusion_picture([[0.70, 0.05, 0.25], [0.3, 0.697, 0.003], [0.2, 0.2, 0.6]])
    main, bars = figure.axes[:2]
    numbers = {text.get_position(): text.get_text() for text in main.texts[:-1]}
    assert numbers == {
        (0, 0): "70", (1, 0): "5", (2, 0): "25", (0, 1): "30", (1, 1): "70", (0, 2): "20", (1, 2): "20", (2, 2): "60",
    }  # fmt: skip
    assert [text.get_text() for text in bars.texts if text.get_text().startswith("from")] == [
        "from 2",
        "from 0",
        "from 0",
    ]


@pytest.mark.parametrize(("clients", "classes", "absent"), [(20, 10, 0), (3, 2, 4), (1, 10, 2), (160, 62, 0)])
def test_the_picture_of_epds(clients, classes, absent):
    _, epd, counts, here = made(clients, classes, absent)
    names = [f"a rather long class {c}" if classes == 10 else str(c) for c in range(classes)]
    figure = epd_picture(epd, counts, names, title="KnFu")
    real, answered, bars = figure.axes[:3]
    truth = counts[here] / counts[here].sum(1, keepdims=True)
    assert np.allclose(drawn(real).reshape(clients, classes), truth)
    assert np.array_equal(drawn(answered).reshape(clients, classes), epd[here])
    assert real.collections[0].norm is answered.collections[0].norm  # equal colours mean equal shares
    inside(figure, real, answered, bars)
    apart((real, answered, bars))
    assert [bar.get_width() for bar in bars.patches] == pytest.approx((np.abs(epd[here] - truth).sum(1) / 2).tolist())


def test_the_distance_by_hand():
    figure = epd_picture([[0.5, 0.5, 0.0], [0.2, 0.2, 0.6]], [[10, 0, 0], [1, 1, 3]], ["a", "b", "c"])
    assert [text.get_text() for text in figure.axes[2].texts] == ["distance, 25 % on average", "50 %", "0 %"]


def test_outputs_beyond_the_clients_classes_are_numbered():
    figure = epd_picture([[0.5, 0.25, 0.25]], [[1, 1]], ["cat", "dog"])
    assert drawn(figure.axes[0]).ravel().tolist() == [0.5, 0.5, 0]
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["cat", "dog", "2"]
