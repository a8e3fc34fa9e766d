"""Charts and tables of clients: their accuracies, their gains, and the classes that they hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from fedalloy.base.text import MISSING, all_shortened, client_ticks, number, shortened
from fedalloy.federation.metrics import SCORES
from fedalloy.report.chart import (
    Axis,
    Chart,
    Field,
    Layer,
    Shape,
    around,
    boxes,
    dots,
    heat,
    look_of,
    places,
)
from fedalloy.report.gains import Gains, split_of
from fedalloy.report.gains_table import Listing, signed
from fedalloy.report.partition_plot import Counts
from fedalloy.report.series import Series
from fedalloy.storage.results import Run, Selection, selected
from fedalloy.storage.rows import task_of

ROW = 34  # pixels of a method's dots
COLUMN = 130  # dots of (nearly) equal accuracy that share this part of the width are stacked


def accuracy_chart(runs: Sequence[Run], series: Sequence[Series], selection: Selection, said: str) -> Chart:
    """One row for each method and view, in the order of all charts, with a dot for each client and seed."""
    score = SCORES[task_of(runs)]
    rows = [(key, one, found) for key, one in enumerate(series) if (found := one.clients(selection))]
    low, high = around([100 * value for _, _, found in rows for _, value in found], least=5.0)
    x = Axis(f"{score[:1].upper()}{score[1:]} on each client's own test data, %", low - (high - low) * 0.06, high)
    y = places("", [one.name for _, one, _ in rows] or [""], down=True)
    layers, notes = [], []
    for place, (key, one, found) in enumerate(rows):
        at = len(rows) - 1 - place
        found = sorted(found, key=lambda client: (client[1], client[0]))
        values = [100 * value for _, value in found]
        worst = client_ticks(one.runs[0].client_names, [found[0][0]], 12)[0]
        middle = float(np.median(values))
        css = "dots small" if len(found) > 200 else "dots"
        height = _stacked(values, x, at)
        shapes = (
            Shape("median", f"M{middle:.6g} {at - 0.34:.6g}v0.68"),
            Shape(css, dots(values, height), " ".join(str(k) for k, _ in found)),
            Shape("ring", dots(values[:1], height[:1])),
        )
        layers.append(Layer(key, look_of(one), one.name, shapes))
        notes.append((values[0], float(at), worst))
    spoken = f"Dot plot: the {score} of each client with each method, {said}. The table below it has the numbers."
    field = Field("clients-dots", x, y, tuple(layers), spoken, ROW * max(len(rows), 1), "dots", notes=notes, above=True)
    several = max((len(one.runs) for one in series), default=1) > 1
    caption = (
        f"One dot is one client{' in one seed' if several else ''}, {said}. The bar marks the median client, the ring "
        "the worst one, with its name or number."
    )
    names = next((run.client_names for run in runs if run.client_names), ())
    return Chart("clients-chart", "All clients, by method", (field,), caption, table="clients-table", clients=names)


def _stacked(values: Sequence[float], x: Axis, centre: float) -> list[float]:
    """Heights around the centre of a row, so that dots of nearly equal accuracy do not hide each other."""
    columns = [math.floor((value - x.low) / x.span * COLUMN) for value in values]
    crowd = {column: columns.count(column) for column in set(columns)}
    step = min(0.2, 0.72 / max(crowd.values()))
    seen = dict.fromkeys(crowd, 0)
    heights = []
    for column in columns:
        heights.append(centre + step * (seen[column] - (crowd[column] - 1) / 2))
        seen[column] += 1
    return heights


def accuracy_table(
    runs: Sequence[Run], series: Sequence[Series], selection: Selection, found: Sequence[Gains]
) -> Listing:
    """One line for each client: its network and size, its accuracy with every method, and its gain with the leader.

    Clients of splits that differ between seeds are different clients, with a line for each seed.
    """
    task = task_of(runs)
    splits: dict[str, list[int]] = {}
    for run in runs:
        seeds = splits.setdefault(split_of(run), [])
        if run.seed not in seeds:
            seeds.append(run.seed)
    gain = {name: k for k, name in enumerate(found[0].clients)} if found else {}
    body = []
    for split, seeds in splits.items():
        mine = [run for run in runs if split_of(run) == split]
        names, networks = mine[0].client_names, next((run.networks for run in mine if run.networks), {})
        held = [sizes for run in mine if (sizes := run.meta.get("clients", {}).get("train_sizes"))]
        sizes = [round(size) for size in np.mean(held, axis=0).tolist()] if held else []
        columns = [_means([run for run in one.runs if split_of(run) == split], one.view, selection) for one in series]
        for client in range(max([len(sizes), *map(len, columns)])):
            suffix = f" (seed {seeds[0]})" if len(splits) > 1 else ""
            name = f"{names[client] if client < len(names) else client}{suffix}"
            scores = [number(100 * column[client], 1) if client < len(column) else MISSING for column in columns]
            if all(score == MISSING for score in scores) and client >= len(sizes):
                continue
            k = gain.get(name)
            body.append(
                [
                    shortened(name, 40),
                    networks.get(client, MISSING),
                    f"{sizes[client]:,}" if client < len(sizes) else MISSING,
                    *scores,
                    MISSING if k is None else f"{signed(found[0].points[k])} ± {number(found[0].errors[k], 1)}",
                ]
            )
    headings = ["Client", "Network", "Trained on", *(one.name for one in series), "Gain"]
    note = f"{SCORES[task][:1].upper()}{SCORES[task][1:]} in percent"
    note += ", means over seeds." if max(len(seeds) for seeds in splits.values()) > 1 else "."
    if found:
        gained = f"points of {found[0].leads.score} of {found[0].name} over {found[0].reference}"
        note += f" Gain: {gained}, with one standard error."
    kept = [k for k in range(len(headings)) if k < 1 or any(line[k] != MISSING for line in body)]
    body = [[line[k] for k in kept] for line in body]
    return Listing("Clients", [headings[k] for k in kept], body, words=2 if 1 in kept else 1, note=note)


def _means(runs: Sequence[Run], view: str, selection: Selection) -> list[float]:
    """Each client's accuracy, as the mean over runs; nothing without runs, NaN if a run did not test it."""
    rows = [run.clients(view, "accuracy", selection) for run in runs if selected(run, view, selection)]
    return np.mean(rows, axis=0).tolist() if rows else []


def gain_chart(both: Sequence[Gains], table: str) -> Chart:
    """Each client's gain over the first reference as a bar, over the second as a dot; beside it, all clients' sizes.

    Clients go from the largest loss to the largest gain, as in `each_client`. Pale bars are within two standard errors.
    """
    bars, *others = both
    order = np.argsort(bars.points, kind="stable")
    points, clear = bars.points[order], bars.clear[order]
    rows = len(order)
    names = _ticks(bars, order.tolist())
    y = places("", names, down=True)
    height = rows * (20 if rows <= 40 else 8 if rows <= 120 else 3)
    height = min(max(height, 40), 1200)
    extra = [dict(zip(one.clients, one.points.tolist(), strict=True)) for one in others]
    marks = [[gain.get(bars.clients[k], math.nan) for k in order] for gain in extra]
    x = Axis(f"Gain over {bars.reference}, points", *around([-0.5, 0.5, *points.tolist(), *_known(marks)]))
    sides = {
        "gain": (points > 0) & clear,
        "gain pale": (points > 0) & ~clear,
        "loss": (points < 0) & clear,
        "loss pale": (points < 0) & ~clear,
    }
    shapes = [
        Shape(css, boxes(_bar(rows - 1 - int(k), float(points[k])) for k in np.flatnonzero(mask)))
        for css, mask in sides.items()
        if mask.any()
    ]
    for mark in marks:
        known = [(value, rows - 1 - k) for k, value in enumerate(mark) if math.isfinite(value)]
        shapes.append(Shape("other", dots([a for a, _ in known], [b for _, b in known])))
    spoken = "Bar chart: each client's gain or loss with the leading method. The table below it has the numbers."
    fields = [
        Field("gains-bars", x, y, (Layer(None, "", bars.name, tuple(shapes)),), spoken, height, "rows", 2.2, rule=0.0)
    ]
    train = bars.train[order]
    if np.isfinite(train).all():
        size = Axis("Training samples", 0.0, float(train.max()) * 1.04 or 1.0, "count")
        of = Shape("size", boxes(_bar(rows - 1 - k, value) for k, value in enumerate(train.tolist())))
        spoken = "Bar chart: each client's number of training samples."
        again = places("", [""] * rows)
        fields.append(Field("gains-sizes", size, again, (Layer(None, "", "", (of,)),), spoken, height, "rows"))
    caption = f"One bar is one client: its gain with {bars.name} over {bars.reference}. Pale bars are not clear."
    caption += "".join(f" Dots are gains over {one.reference}." for one in others)
    return Chart("gains-chart", f"Gains with {bars.name}", tuple(fields), caption, table=table)


def _known(rows: Iterable[Iterable[float]]) -> list[float]:
    return [value for row in rows for value in row if math.isfinite(value)]


def _bar(place: int, value: float) -> tuple[float, float, float, float]:
    return 0.0, place - 0.36, value, 0.72


def _ticks(bars: Gains, order: Sequence[int]) -> list[str]:
    """What stands left of each bar: the client, and its network if they differ."""
    short = all_shortened(bars.clients)
    names = [shortened(short[bars.clients[k]], 22) for k in order]
    return (
        [f"{name} ({shortened(bars.networks[k], 14)})" for name, k in zip(names, order, strict=True)]
        if bars.networks
        else names
    )


def split_chart(counts: Counts, label_names: Sequence[str] | None, client_names: Sequence[str], seed: int) -> Chart:
    """A map of classes by clients: how many samples of each class each client trains on."""
    clients, classes = counts.shape
    labels = [shortened(str(name), 18) for name in label_names or range(classes)]
    who = client_ticks(client_names, range(clients))
    table = counts.T.astype(np.float64)
    spoken = "Map: how many training samples of each class each client holds. The table below it has the numbers."
    field = heat("split-map", table, places("Class", labels, down=True), places("Client", who), spoken)
    body = [[labels[k], *(f"{n:,}" for n in row)] for k, row in enumerate(counts.T.tolist())]
    data = Listing("Training samples by class and client", ["Class", *who], body, words=1, note="")
    caption = f"The split of seed {seed}. Stronger colours are more samples, up to {counts.max():,}."
    return Chart("split-chart", "Training samples by class and client", (field,), caption, data=data)
