"""What methods made besides their models, for the report: the pictures of `fedalloy draw`, drawn from the same data."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from fedalloy.base.text import client_ticks, listed, number, shortened
from fedalloy.errors import DataError, FedalloyError
from fedalloy.federation.core import Method, methods
from fedalloy.knowledge.pictures import Features, Images
from fedalloy.report.chart import Axis, Chart, Field, Layer, Shape, boxes, heat, places
from fedalloy.report.draw import Drawn, made_images, similarities, teacher_weights
from fedalloy.report.gains import POOLED
from fedalloy.report.gains_table import Listing
from fedalloy.report.importance_plot import agreement, compared
from fedalloy.report.series import Floats
from fedalloy.run.opened import Opened, open_run
from fedalloy.storage.results import Run
from fedalloy.storage.run_files import check_drawable
from fedalloy.train.fit import one_thread

LARGEST = 40_000  # cells of a map
ROUNDS = 100  # of the teacher's weights; of more, evenly spaced ones are shown


@dataclass(frozen=True)
class Strip:
    """The images of one class beside one another, as the address of a picture in the page itself."""

    name: str
    source: str
    spoken: str
    count: str


@dataclass(frozen=True)
class Samples:
    """Images by class."""

    title: str
    rows: tuple[Strip, ...]
    caption: str


@dataclass(frozen=True)
class Pictures:
    """All pictures of one run, and sentences on those that it does not have."""

    name: str
    charts: tuple[Chart, ...] = ()
    samples: tuple[Samples, ...] = ()
    missing: tuple[str, ...] = ()


def run_pictures(groups: Sequence[Sequence[Run]]) -> list[Pictures]:
    """The pictures of each method's first run, if the method has any and the run was read from a folder."""
    found = []
    for place, group in enumerate(groups):
        run = group[0]
        if run.folder is None or run.name not in methods or methods[run.name].pictures is Method.pictures:
            continue
        central = next(
            (each.folder for every in groups for each in every if (each.name, each.seed) == (POOLED, run.seed)), None
        )
        name = run.label if len(group) == 1 else f"{run.label} with seed {run.seed}"
        try:
            with one_thread():
                found.append(_of_run(f"p{place}", name, run, None if central is None else open_run(central)))
        except FedalloyError as error:
            found.append(Pictures(name, missing=(f"Nothing can be drawn of this run: {error}.",)))
    return found


def _of_run(ids: str, name: str, run: Run, central: Opened | None) -> Pictures:
    assert run.folder is not None
    opened = open_run(run.folder)
    check_drawable(f"{opened.folder / 'run.json'}", opened.meta)
    state, memories = opened.last()
    drawn = Drawn(opened, state, None, central, None, None)
    charts: list[Chart] = []
    samples: list[Samples] = []
    missing: list[str] = []
    for kind, data in opened.method.pictures(state, memories).items():
        if kind not in WORDS:
            continue
        if kind == "similarity" and central is None and not isinstance(data, str):
            data = "it needs real features, from a run of centralised with the same seed"
        try:
            if isinstance(data, str):
                missing.append(f"No picture of {WORDS[kind]}: {data}.")
            elif kind == "generated":
                samples.extend(_generated(drawn, data))
            else:
                charts.extend(KINDS[kind](f"{ids}-{kind}", drawn, data))
        except FedalloyError as error:
            missing.append(f"No picture of {WORDS[kind]}: {error}.")
    return Pictures(name, tuple(charts), tuple(samples), tuple(missing))


# --- maps and bars ----------------------------------------------------------------------------------------------------


def _fusion(ids: str, drawn: Drawn, weights: Tensor) -> list[Chart]:
    """Which client learned from which."""
    everybody = weights.double().numpy()
    present = np.flatnonzero(everybody.sum(1) > 0)
    table = everybody[np.ix_(present, present)]
    who = client_ticks(drawn.client_names, present.tolist(), 16)
    caption = (
        f"Each row is a client, and each column one that it learned from; rows add up to 100 %. {len(present)} of "
        f"{len(everybody)} clients took part in round {drawn.state.round}. {_sources(table, who)}"
    )
    return [_map(ids, "Who learned from whom", 100 * table, ("Client", who), ("learns from", who), caption)]


def _sources(table: Floats, who: Sequence[str]) -> str:
    """How much clients keep of their own knowledge, and whose counts most with the others."""
    if len(who) < 2:
        return ""
    given = (table - np.diag(table.diagonal())).sum(0)
    most = [who[k] for k in np.argsort(-given, kind="stable")[:3] if given[k] > 0]
    told = f"On average {100 * table.diagonal().mean():.0f} % is a client's own."
    return f"{told} The others learn most from {listed(most)}." if most else told


def _epd(ids: str, drawn: Drawn, predictions: Tensor) -> list[Chart]:
    """The classes that clients hold beside those that they predict."""
    answers = predictions.double().numpy()
    present = np.flatnonzero(answers.sum(1) > 0)
    held = np.zeros((len(present), answers.shape[1]))
    counts = drawn.counts[present]
    held[:, : counts.shape[1]] = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    apart = np.abs(answers[present] - held).sum(1) / 2
    caption = (
        "The mean prediction of each client on public samples (EPD), which stands for its class distribution. Half the "
        f"absolute differences, the share with the wrong classes, is {100 * apart.mean():.0f} % on average."
    )
    return _beside(
        ids, drawn, present, (held, answers[present]), ("What clients hold", "What they predict: EPD"), caption
    )


def _importance(ids: str, drawn: Drawn, importance: Tensor) -> list[Chart]:
    """Each client's importance for each class beside its data."""
    present, given, held = compared(importance.double().numpy(), drawn.counts)
    caption = (
        "The mean weight of each client for the samples of a predicted class, beside its share of these clients' "
        f"training samples of the class; columns add up to 100 %. {len(present)} of {len(drawn.counts)} clients took "
        f"part in the last distillation. The correlation of the two maps is {number(agreement(given, held))}. "
        "Grey: no samples."
    )
    return _beside(ids, drawn, present, (given, held), ("Importance", "Share of the data"), caption)


def _beside(
    ids: str, drawn: Drawn, present: Any, tables: tuple[Floats, Floats], titles: tuple[str, str], caption: str
) -> list[Chart]:
    """Two maps of clients by classes with the same shades; the second has the caption."""
    who = client_ticks(drawn.client_names, present.tolist(), 16)
    labels = [shortened(name, 14) for name in drawn.names]
    labels += [str(c) for c in range(len(labels), tables[0].shape[1])]
    most = 100 * float(np.nanmax(tables, initial=0.0)) or 1.0
    return [
        _map(f"{ids}-{k}", title, 100 * table, ("Client", who), ("Class", labels), said, most=most)
        for k, (table, title, said) in enumerate(zip(tables, titles, ("", caption), strict=True))
    ]


def _trifreqs(ids: str, drawn: Drawn, options: Mapping[str, Any]) -> list[Chart]:
    """The clients' weights in KDIA's teacher over the rounds."""
    weights, _ = teacher_weights(drawn, options)
    shown = np.unique(np.linspace(0, len(weights) - 1, min(len(weights), ROUNDS)).round().astype(int))
    who = client_ticks(drawn.client_names, range(len(drawn.sizes)), 16)
    rounds = [str(t + 1) for t in shown]
    caption = "The weight of each client's last model in the teacher after each round; columns add up to 100 %."
    return [_map(ids, "Weights in the teacher", 100 * weights[shown].T, ("Client", who), ("Round", rounds), caption)]


def _similarity(ids: str, drawn: Drawn, data: Features) -> list[Chart]:
    """The similarity of generated features to real ones, by class."""
    values = similarities(drawn, data)
    labels = [shortened(name, 20) for name in drawn.names]
    rows = len(values)
    bars = boxes((0.0, rows - 1 - k - 0.34, value, 0.68) for k, value in enumerate(values) if np.isfinite(value))
    x = Axis("Cosine similarity", min(0.0, float(np.nanmin(values, initial=0.0))), 1.0)
    y = places("", labels, down=True)
    spoken = "Bar chart: the similarity of generated features to real ones for each class. The table has the numbers."
    field = Field(f"{ids}-bars", x, y, (Layer(None, "c0", "", (Shape("bar", bars),)),), spoken, 22 * rows, "rows")
    body = [[label, number(value)] for label, value in zip(labels, values, strict=True)]
    data_table = Listing("Similarity by class", ("Class", "Cosine similarity"), body, words=1, note="")
    caption = (
        "The mean cosine similarity of generated features to those of the centrally trained network, by class; the "
        f"mean of the classes is {number(float(np.nanmean(values)))}."
    )
    return [Chart(ids, "Generated features beside real ones", (field,), caption, data=data_table)]


def _map(
    ids: str,
    title: str,
    table: Floats,
    rows: tuple[str, Sequence[str]],
    columns: tuple[str, Sequence[str]],
    caption: str,
    *,
    most: float | None = None,
) -> Chart:
    if table.size > LARGEST:
        raise DataError(f"{table.size:,} cells are too many for a page; draw it with fedalloy draw")
    spoken = f"Map: {title[0].lower()}{title[1:]}. The table below it has the numbers."
    field = heat(f"{ids}-map", table, places(rows[0], rows[1], down=True), places(*columns), spoken, most=most)
    body = [[name, *(number(value, 1) for value in row)] for name, row in zip(rows[1], table.tolist(), strict=True)]
    data = Listing(f"{title}, %", [rows[0], *columns[1]], body, words=1, note="")
    return Chart(ids, title, (field,), caption, data=data)


# --- images -----------------------------------------------------------------------------------------------------------


def _generated(drawn: Drawn, data: Images) -> list[Samples]:
    """Generated images by class, and class averages beside those of the real images."""
    made = made_images(drawn, data)
    names = [shortened(name, 16) for name in drawn.names]
    some = tuple(
        Strip(name, _address(list(images)), f"Generated images taken for {name}", f"{count:,}")
        for name, images, count in zip(names, made.some, made.counts, strict=True)
    )
    pairs = tuple(
        Strip(name, _address([x for x in pair if not x.isnan().any()]), f"Averages of {name}", "")
        for name, pair in zip(names, zip(made.averages, made.real, strict=True), strict=True)
    )
    first = (
        f"The generator of {made.owner} after round {drawn.state.round}: the first images that the method's model "
        f"takes for each class, and how many of {sum(made.counts):,} it takes for it."
    )
    second = "The average image of each class: generated, then real (all clients' training data)."
    return [Samples("Generated images", some, first), Samples("Average images", pairs, second)]


def _address(images: Sequence[Tensor]) -> str:
    """Images of raw pixels from 0 to 1 beside one another, as a PNG in a `data:` address; empty without images."""
    if not images:
        return ""
    strip = torch.cat([F.pad(image.double(), (0, 1), value=1.0) for image in images], 2)[:, :, :-1]
    pixels = (strip.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    if pixels.shape[2] not in (1, 3):
        raise DataError(f"images with {pixels.shape[2]} channels cannot be drawn; they need 1 or 3")
    picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    file = io.BytesIO()
    picture.save(file, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


KINDS: dict[str, Callable[[str, Drawn, Any], list[Chart]]] = {
    "fusion": _fusion,
    "epd": _epd,
    "importance": _importance,
    "trifreqs": _trifreqs,
    "similarity": _similarity,
}
WORDS = {
    "fusion": "who learned from whom",
    "epd": "what clients predict",
    "importance": "the clients' importance",
    "trifreqs": "the weights in the teacher",
    "similarity": "generated features",
    "generated": "generated images",
}
