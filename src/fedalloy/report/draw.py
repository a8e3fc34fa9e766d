"""Pictures of what a run has made besides its models, as its method offers them: `Method.pictures`.

A method names kinds of pictures and gives their data (`fedalloy.knowledge.pictures`); `KINDS` has a function for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

import fedalloy.methods  # noqa: F401  # registers the built-in methods
from fedalloy.base import rng
from fedalloy.base.files import make_folder
from fedalloy.base.registry import suggest
from fedalloy.base.text import client_label
from fedalloy.data.samples import Dataset
from fedalloy.errors import UsageError
from fedalloy.federation.core import Method, Network, State, methods
from fedalloy.federation.setting import SERVER, Setting, pooled
from fedalloy.knowledge.pictures import Features, Images
from fedalloy.knowledge.similarity import Compared, feature_similarity
from fedalloy.nets.generators import ConditionalGenerator
from fedalloy.nets.models import in_two_parts
from fedalloy.report.attendance import took_part
from fedalloy.report.fusion_plot import epd_picture, fusion_picture
from fedalloy.report.generated import class_averages, first_of_class, labelled_images
from fedalloy.report.generated_plot import averages_picture, generated_picture
from fedalloy.report.importance_plot import importance_picture
from fedalloy.report.series import Floats
from fedalloy.report.similarity_plot import similarity_picture
from fedalloy.report.svg import save
from fedalloy.report.trifreqs_plot import trifreqs_picture, weights_over_rounds
from fedalloy.run.opened import Opened, open_run
from fedalloy.storage.run_files import check_drawable
from fedalloy.storage.store import Say
from fedalloy.train.fit import load, one_thread

EACH = 100  # images of each class, on average


@dataclass(frozen=True)
class Drawn:
    """The run that is drawn, after its last completed round, and what was asked for."""

    run: Opened
    state: State
    client: int | None
    central: Opened | None
    dataset: Dataset | None
    network: Network | None
    compare: Compared = "channel_means"

    @cached_property
    def setting(self) -> Setting:
        """The run's setting, which needs its data."""
        return self.run.build_same(self.dataset, self.network).setting

    @property
    def sizes(self) -> Sequence[int]:
        """The clients' numbers of training samples."""
        return cast(Sequence[int], self.run.meta["clients"]["train_sizes"])

    @property
    def counts(self) -> np.ndarray:
        """The clients' numbers of training samples of each class."""
        return np.asarray(self.run.meta["clients"]["class_counts"], dtype=np.int64)

    @property
    def names(self) -> list[str]:
        """The classes by name, or else by number."""
        meta = self.run.meta
        return meta["clients"]["label_names"] or [str(c) for c in range(meta["model"]["classes"])]

    @property
    def client_names(self) -> Sequence[str]:
        """The clients' names, if they have names."""
        return cast(Sequence[str], self.run.meta["clients"].get("names", ()))

    @property
    def title(self) -> str:
        """What stands above a picture."""
        meta = self.run.meta
        return f"{meta['label']} on {meta['data']['name']}, round {self.state.round}"


def draw(
    folder: str | Path,
    client: int | None = None,
    out: str | Path | None = None,
    *,
    central: str | Path | None = None,
    compare: Compared | None = None,
    dataset: Dataset | None = None,
    network: Network | None = None,
    say: Say = lambda _: None,
) -> list[Path]:
    """Draw what a run, finished or not, has made; returns the files, which are in its folder unless `out` is given.

    `client` chooses whose generator is drawn. `central` is a run of `centralised` that provides real features;
    `compare` says what of them is compared, by default the means of the channels. Pass the data set or network again if
    the run had its own.
    """
    run = _open(folder)
    state, memories = run.last()
    offered = run.method.pictures(state, memories)
    _check(run.method, offered, client, central)
    if compare is not None and central is None:
        raise UsageError("--compare has no effect without --central; leave it out")
    central_run = None if central is None else _open(central)
    drawn = Drawn(run, state, client, central_run, dataset, network, compare or "channel_means")
    pictures: dict[str, Figure] = {}
    missing: list[str] = []
    with one_thread():
        for kind, data in offered.items():
            if kind == "similarity" and central is None and not isinstance(data, str):
                data = "it needs real features; name a run of centralised on the same data with --central"
            if isinstance(data, str):
                missing.append(f"no {kind}.png: {data}")
            else:
                pictures |= KINDS[kind](drawn, data)
    if not pictures:
        raise UsageError(f"there is nothing to draw in '{folder}': {'; '.join(missing)}")
    for sentence in missing:
        say(sentence)
    target = Path(out) if out is not None else run.folder
    make_folder(target)
    return [save(figure, target / f"{name}.png") for name, figure in pictures.items()]


def _open(folder: str | Path) -> Opened:
    run = open_run(folder)
    check_drawable(f"{run.folder / 'run.json'}", run.meta)
    return run


def _check(method: Method, offered: Mapping[str, Any], client: int | None, central: str | Path | None) -> None:
    """Refuse a method without pictures, kinds that are unknown here, and options that would do nothing."""
    if not offered:
        able = ", ".join(name for name, cls in methods.items() if cls.pictures is not Method.pictures)
        raise UsageError(f"{method.name} has no pictures; draw a run of one of: {able}")
    for kind in offered:
        if kind not in KINDS:
            raise UsageError(f"{method.name}.pictures has the kind '{kind}'; {suggest(kind, KINDS)}")
    images = offered.get("generated")
    if client is not None and (images is None or (isinstance(images, Images) and SERVER in images.generators)):
        raise UsageError(f"no client of this run of {method.name} has a generator; leave out --client")
    if central is not None and "similarity" not in offered:
        raise UsageError(f"{method.name} has no pictures that need real features; leave out --central")


# --- the kinds of pictures --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """Images of one generator as raw pixels: the first of each class, how many there are, and class averages."""

    some: list[Tensor]
    counts: list[int]
    averages: Tensor
    real: Tensor  # the averages of all clients' training images
    owner: str


def made_images(drawn: Drawn, data: Images) -> Made:
    """Make images with one generator, and let the method's model say what they show."""
    whose, weights = _generator(drawn, data.generators)
    setting = drawn.setting
    me = setting.client(max(whose, 0), drawn.state.round, {})
    stream = rng.generator(drawn.run.meta["seed"], "draw", drawn.state.round, whose)
    images = data.sample(me, weights, stream, EACH * setting.classes)
    made = labelled_images(images, me.net(data.classifier))
    return Made(
        [first_of_class(made, label, setting.scale) for label in range(setting.classes)],
        made.counts(setting.classes).tolist(),
        class_averages(made, setting.classes, setting.scale),
        class_averages(pooled([site.train for site in setting.sites]), setting.classes, setting.scale),
        "the server" if whose == SERVER else client_label(drawn.client_names, whose),
    )


def _generated(drawn: Drawn, data: Images) -> dict[str, Figure]:
    """Images of one generator by class, and their averages beside those of real images."""
    made = made_images(drawn, data)
    title = f"{drawn.title}: the generator of {made.owner}"
    return {
        "generated": generated_picture(made.some, made.counts, drawn.names, title=title),
        "averages": averages_picture(made.averages, made.real, drawn.names, title=title),
    }


def _generator(drawn: Drawn, generators: Mapping[int, Any]) -> tuple[int, Any]:
    """Whose generator is drawn, and its weights."""
    folder, clients = drawn.run.folder, len(drawn.sizes)
    if drawn.client is not None and drawn.client not in range(clients):
        raise UsageError(f"there is no client {drawn.client} in '{folder}'; clients go from 0 to {clients - 1}")
    if not generators:
        raise UsageError(f"no client in '{folder}' has a generator yet; resume the run first")
    whose = min(generators) if drawn.client is None else drawn.client
    if whose not in generators:
        have = ", ".join(map(str, sorted(generators)))
        who = client_label(drawn.client_names, whose)
        raise UsageError(f"{who} in '{folder}' has no generator yet; these clients have one: {have}")
    return whose, generators[whose]


def _fusion(drawn: Drawn, weights: Tensor) -> dict[str, Figure]:
    """Which client learned from which."""
    return {"fusion": fusion_picture(weights.numpy(), title=drawn.title, client_names=drawn.client_names)}


def _epd(drawn: Drawn, predictions: Tensor) -> dict[str, Figure]:
    """The classes that clients hold beside those that they predict."""
    picture = epd_picture(
        predictions.numpy(), drawn.counts, drawn.names, title=drawn.title, client_names=drawn.client_names
    )
    return {"epd": picture}


def _importance(drawn: Drawn, importance: Tensor) -> dict[str, Figure]:
    """Each client's importance for each class beside its data."""
    table = importance.double().numpy()
    picture = importance_picture(table, drawn.counts, drawn.names, title=drawn.title, client_names=drawn.client_names)
    return {"importance": picture}


def teacher_weights(drawn: Drawn, options: Mapping[str, Any]) -> tuple[Floats, list[list[int]]]:
    """The clients' weights in the teacher after each round, recomputed from the records, and who took part."""
    records = drawn.run.store.records()
    present = took_part([record for record in records if record["round"] <= drawn.state.round])
    return weights_over_rounds(present, drawn.sizes, **options), present


def _trifreqs(drawn: Drawn, options: Mapping[str, Any]) -> dict[str, Figure]:
    """The clients' weights in the teacher."""
    weights, present = teacher_weights(drawn, options)
    return {"trifreqs": trifreqs_picture(weights, present, drawn.sizes, title=drawn.title)}


def similarities(drawn: Drawn, data: Features) -> list[float]:
    """For each class, the similarity of generated features to those of the central network on all training data."""
    run, central = drawn.run, drawn.central
    assert central is not None
    if central.method.name != "centralised":
        raise UsageError(f"'{central.folder}' is a run of {central.method.name}; --central needs one of centralised")
    alike = {
        "data": [r.meta["digests"]["data"] for r in (run, central)],
        "size of the images": [r.meta["model"]["input"] for r in (run, central)],
        "model": [r.meta["experiment"]["model"] for r in (run, central)],
    }
    for what, (ours, theirs) in alike.items():
        if ours != theirs:
            raise UsageError(f"'{run.folder}' and '{central.folder}' differ in the {what}; --central needs the same")
    setting = drawn.setting
    net = in_two_parts(setting.build(SERVER), run.method.name)
    generator = load(data.make(setting.client(0, drawn.state.round, {}), net), data.generator)
    load(net, central.last()[0]["model"])
    found = feature_similarity(
        cast(ConditionalGenerator, generator),
        net,
        pooled([site.train for site in setting.sites]),
        rng.generator(run.meta["seed"], "draw", drawn.state.round),
        compare=drawn.compare,
    )
    return [float(value) for value in found]


def _similarity(drawn: Drawn, data: Features) -> dict[str, Figure]:
    """The similarity of generated features to real ones."""
    values = similarities(drawn, data)
    return {"similarity": similarity_picture(values, drawn.names, title=drawn.title, compare=drawn.compare)}


KINDS: dict[str, Callable[[Drawn, Any], dict[str, Figure]]] = {
    "generated": _generated,
    "similarity": _similarity,
    "fusion": _fusion,
    "epd": _epd,
    "importance": _importance,
    "trifreqs": _trifreqs,
}
