"""What figures need of a run's checkpoint, as a small record that stays when the checkpoint is deleted.

A campaign writes it as `extra.json` into the folder of a finished run; the keys of different forms differ, so that the
records of several forms fit into one file.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

import fedalloy.methods  # noqa: F401  # registers the built-in methods
from fedalloy.base import rng
from fedalloy.federation.setting import SERVER, Setting, pooled
from fedalloy.knowledge.pictures import Features, Images
from fedalloy.knowledge.similarity import vectors
from fedalloy.nets.generators import ConditionalGenerator
from fedalloy.nets.models import in_two_parts
from fedalloy.report.generated import class_averages, labelled_images
from fedalloy.run.opened import Opened, open_run
from fedalloy.storage.results import Run
from fedalloy.train.fit import load, one_thread

Pixels = NDArray[np.uint8]
FILE = "extra.json"
EACH = 100  # generated images or features of each class, on average
BATCH = 256


def extra(run: Run, key: str) -> Any:
    """A part of what was kept of a run; None if it was not."""
    file = None if run.folder is None else run.folder / FILE
    return json.loads(file.read_text(encoding="utf-8")).get(key) if file is not None and file.is_file() else None


def images(folder: Path) -> dict[str, Any]:
    """The average image of each class, of a generator and of all clients' training data; see `unpacked`.

    It is the server's generator, or that of the first client that has one; nothing of a run without a generator.
    """
    run, offered = _offered(folder)
    data = offered.get("generated")
    if not isinstance(data, Images) or not data.generators:
        return {}
    with one_thread():
        whose = min(data.generators)
        state = run.last()[0]
        setting = run.build_same().setting
        me = setting.client(max(whose, 0), state.round, {})
        stream = rng.generator(run.meta["seed"], "draw", state.round, whose)
        made = data.sample(me, data.generators[whose], stream, EACH * setting.classes)
        averages = class_averages(labelled_images(made, me.net(data.classifier)), setting.classes, setting.scale)
    return {
        "images": {
            "of": "the server" if whose == SERVER else f"client {whose}",
            "generated": packed(averages),
            "real": packed(real_averages(setting)),
        }
    }


def real_averages(setting: Setting) -> Tensor:
    """The average image of each class over all clients' training data."""
    return class_averages(pooled([site.train for site in setting.sites]), setting.classes, setting.scale)


def packed(averages: Tensor) -> dict[str, Any]:
    """Images as bytes in base 64, with their shape and the classes that have none.

    >>> unpacked(packed(torch.tensor([[[[0.0, 1.0]]], [[[torch.nan, torch.nan]]]]))).tolist()
    [[[[0.0, 1.0]]], [[[nan, nan]]]]
    """
    none = averages.isnan().flatten(1).any(1)
    pixels: Pixels = (averages.nan_to_num().clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()
    text = base64.b64encode(pixels.tobytes()).decode("ascii")
    return {"shape": list(averages.shape), "none": torch.nonzero(none).flatten().tolist(), "pixels": text}


def unpacked(record: Mapping[str, Any]) -> NDArray[np.float64]:
    """The images of a record, (classes, channels, height, width) from 0 to 1; NaN for a class that has none."""
    flat = np.frombuffer(base64.b64decode(record["pixels"]), dtype=np.uint8)
    found = flat.reshape(record["shape"]).astype(np.float64) / 255
    found[list(record["none"])] = np.nan
    return found


def similarity(folder: Path) -> dict[str, Any]:
    """For each class, the mean direction of a run's features: generated ones of KDIA, real ones of central training.

    The mean cosine similarity over all pairs of a generated and a real feature is the product of the two means, so
    that it can be computed from the records of two runs. Feature maps are averaged over space first.
    """
    run, offered = _offered(folder)
    data = offered.get("similarity")
    central = run.method.name == "centralised"
    if not central and not isinstance(data, Features):
        return {}
    with one_thread():
        state = run.last()[0]
        setting = run.build_same().setting
        net = in_two_parts(setting.build(SERVER), run.method.name)
        if central:
            load(net, state["model"]).eval()
            samples = pooled([site.train for site in setting.sites])
            parts = torch.split(torch.arange(len(samples)), BATCH)
            pairs = ((net.features(x), y) for x, y in map(samples.take, parts))
            return {"real_directions": _directions(pairs, setting.classes)}
        made = load(cast(Features, data).make(setting.client(0, state.round, {}), net), cast(Features, data).generator)
        generator = cast(ConditionalGenerator, made).eval()
        stream = rng.generator(run.meta["seed"], "draw", state.round)
        return {"generated_directions": _directions(_generated(generator, stream), setting.classes)}


def _generated(generator: ConditionalGenerator, stream: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    device = next(generator.parameters()).device
    for y in torch.split(torch.arange(generator.classes).repeat_interleave(EACH), BATCH):
        noise = torch.randn(len(y), generator.noise, generator=stream)
        yield generator(noise.to(device), y.to(device)), y.to(device)


@torch.no_grad()
def _directions(pairs: Iterator[tuple[Tensor, Tensor]], classes: int) -> list[list[float] | None]:
    """The mean of each class's features after scaling each to length one; None for a class without any."""
    sums: Tensor | float = 0.0
    counts = torch.zeros(classes, dtype=torch.float64)
    for features, labels in pairs:
        member = F.one_hot(labels, classes).double().T
        sums = sums + (member @ F.normalize(vectors(features, "channel_means").double())).cpu()
        counts += member.sum(1).cpu()
    found = cast(Tensor, sums) / counts[:, None]
    return [None if n == 0 else [round(v, 5) for v in row] for n, row in zip(counts, found.tolist(), strict=True)]


def fusion(folder: Path) -> dict[str, Any]:
    """KnFu's weights of the last round, clients by clients, and what each client predicts on average (EPD)."""
    offered = _offered(folder)[1]
    found = {key: offered[kind] for key, kind in (("fusion_weights", "fusion"), ("epd", "epd")) if kind in offered}
    return {
        key: [[round(v, 4) for v in row] for row in table.tolist()]
        for key, table in found.items()
        if isinstance(table, Tensor)
    }


def _offered(folder: Path) -> tuple[Opened, Mapping[str, Any]]:
    """A run and what its method offers to draw."""
    run = open_run(folder)
    return run, run.method.pictures(*run.last())


EXTRACTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "images": images,
    "similarity": similarity,
    "fusion": fusion,
    "epd": fusion,
}
