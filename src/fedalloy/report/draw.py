"""Pictures of what a run has made besides a model: generated images, and whose answers count."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from matplotlib.figure import Figure

import fedalloy.methods  # noqa: F401  # registers the built-in methods
from fedalloy.base import rng
from fedalloy.base.files import make_folder
from fedalloy.base.tree import Tree
from fedalloy.config.build import Built, build
from fedalloy.config.experiment import make_method, recorded
from fedalloy.data.samples import Dataset, Samples
from fedalloy.errors import DataError, UsageError
from fedalloy.federation.core import Method, Network, State, methods
from fedalloy.federation.setting import SERVER, Setting, pooled
from fedalloy.knowledge.similarity import feature_similarity
from fedalloy.methods import KDIA, DaFKD, DataFreeKD, FedKF, KnFu
from fedalloy.nets.generators import ConditionalGenerator, ImageGenerator
from fedalloy.nets.models import in_two_parts
from fedalloy.report.attendance import took_part
from fedalloy.report.fusion_plot import epd_picture, fusion_picture
from fedalloy.report.generated import class_averages, first_of_class, labelled_images
from fedalloy.report.generated_plot import averages_picture, generated_picture
from fedalloy.report.importance_plot import importance_picture
from fedalloy.report.similarity_plot import similarity_picture
from fedalloy.report.svg import save
from fedalloy.report.trifreqs_plot import trifreqs_picture, weights_over_rounds
from fedalloy.storage.run_files import check_drawable
from fedalloy.storage.store import Say, Store, described
from fedalloy.train.fit import load, one_thread, predict

EACH = 100  # images of each class, if they were made evenly


@dataclass(frozen=True)
class Opened:
    """A run as its folder holds it after its last whole round; `build` reads its data and makes its setting."""

    folder: Path
    meta: Mapping[str, Any]
    method: Method
    state: State
    memories: Mapping[int, Tree]
    build: Callable[[], Built]

    def setting(self) -> Setting:
        """The run's setting, if the data is still what it was."""
        built = self.build()
        if built.digests["data"] != self.meta["digests"]["data"]:
            raise DataError(f"the data set '{built.dataset.name}' is not the one that the run in '{self.folder}' had")
        return built.setting

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.meta["clients"]["train_sizes"])

    @property
    def names(self) -> list[str]:
        """The classes by name, or else by number."""
        return self.meta["clients"]["label_names"] or [str(c) for c in range(self.meta["model"]["classes"])]

    @property
    def title(self) -> str:
        """What stands above a picture of it."""
        return f"{self.meta['label']} on {self.meta['data']['name']}, round {self.state.round}"


def draw(
    folder: str | Path,
    client: int | None = None,
    out: str | Path | None = None,
    *,
    central: str | Path | None = None,
    dataset: Dataset | None = None,
    network: Network | None = None,
    say: Say = lambda _: None,
) -> list[Path]:
    """Draw what a run, finished or not, has made; returns the files, which lie in its folder unless `out` is given.

    `client` says whose generator is drawn, `central` names a run of `centralised` whose features stand for real ones.
    A data set or a network of your own must be given again.
    """
    run = _open(Path(folder), dataset, network)
    with one_thread():
        if isinstance(run.method, FedKF | DataFreeKD):
            if central is not None:
                raise UsageError(f"{run.method.name} makes images, not features; leave out --central")
            pictures = _images(run, run.method, client)
        elif isinstance(run.method, KDIA):
            if client is not None:
                raise UsageError(f"{run.method.name} has one generator, the server's; leave out --client")
            reference = _open(Path(central), dataset, network) if central is not None else None
            pictures = _features(run, run.method, reference, say)
        elif isinstance(run.method, DaFKD):
            if client is not None or central is not None:
                raise UsageError(f"{run.method.name} has one generator, the server's; leave out --client and --central")
            pictures = _domains(run, run.method, say)
        elif isinstance(run.method, KnFu):
            if client is not None or central is not None:
                raise UsageError(f"{run.method.name} has no generator; leave out --client and --central")
            pictures = _fusion(run)
        else:
            drawn = FedKF | DataFreeKD | KDIA | DaFKD | KnFu
            able = ", ".join(name for name, cls in methods.items() if issubclass(cls, drawn))
            raise UsageError(f"{run.method.name} makes nothing that can be drawn; draw a run of one of: {able}")
    target = Path(out) if out is not None else run.folder
    make_folder(target)
    return [save(figure, target / f"{name}.png") for name, figure in pictures.items()]


def _fusion(run: Opened) -> dict[str, Figure]:
    """Who learned from whom in the last round, and what clients hold beside what they answer."""
    if "weights" not in run.state.body:
        raise UsageError(f"nobody has answered in '{run.folder}' yet; go on with the run first")
    counts = np.asarray(run.meta["clients"]["class_counts"], dtype=np.int64)
    return {
        "fusion": fusion_picture(run.state["weights"].numpy(), title=run.title),
        "epd": epd_picture(run.state["epd"].numpy(), counts, run.names, title=run.title),
    }


def _open(folder: Path, dataset: Dataset | None, network: Network | None) -> Opened:
    meta = described(folder)
    check_drawable(f"{folder / 'run.json'}", meta)
    exp = recorded(meta)
    saved = Store(folder).restore()
    if saved is None:
        raise DataError(f"the run in '{folder}' has not completed a round")
    return Opened(folder, meta, make_method(exp), *saved, build=lambda: build(exp, dataset, network))


def _images(run: Opened, method: FedKF | DataFreeKD, client: int | None) -> dict[str, Figure]:
    """Images of one generator, sorted by the teacher."""
    whose, weights = _generator(run, method, client)
    setting = run.setting()
    me = setting.client(max(whose, 0), run.state.round, {})
    make = partial(ImageGenerator, me.shape, me.scale, noise=method.noise, width=method.width, bn_eps=method.bn_eps)
    made = labelled_images(
        cast(ImageGenerator, load(me.generator(make), weights)),
        me.net(_teacher(run.state, method)),
        rng.generator(run.meta["seed"], "draw", run.state.round, whose),
        EACH * setting.classes,
    )
    title = f"{run.title}: the generator of {'the server' if whose == SERVER else f'client {whose}'}"
    return _by_class(made, setting, run.names, title)


def _by_class(made: Samples, setting: Setting, names: Sequence[str], title: str) -> dict[str, Figure]:
    """Some images of each class, and the average ones beside the real ones."""
    some = [first_of_class(made, label, setting.scale) for label in range(setting.classes)]
    averages = class_averages(made, setting.classes, setting.scale)
    real = class_averages(pooled([site.train for site in setting.sites]), setting.classes, setting.scale)
    return {
        "generated": generated_picture(some, made.counts(setting.classes).tolist(), names, title=title),
        "averages": averages_picture(averages, real, names, title=title),
    }


def _teacher(s: State, method: FedKF | DataFreeKD) -> Tree:
    """The newest teacher, OCA for FedKF, else the model; the generator learned from that of its own last round."""
    sent = method.teacher(s) if isinstance(method, FedKF) else {}
    return cast(Tree, sent.get("teacher", s["model"]))


def _generator(run: Opened, method: FedKF | DataFreeKD, client: int | None) -> tuple[int, Tree]:
    """Whose generator is drawn, and its weights."""
    begins = method.kd_from if isinstance(method, FedKF) else method.teacher_rounds + 1
    if run.state.round < begins:
        raise UsageError(
            f"there are no generated images in '{run.folder}' yet: {method.name} begins to distil in round {begins}, "
            f"and the run has completed {run.state.round}"
        )
    if isinstance(method, DataFreeKD) or method.generator_side == "server":
        if client is not None:
            raise UsageError(f"the generator in '{run.folder}' is the server's; leave out --client")
        return SERVER, run.state["generator"]
    owners = sorted(k for k, memory in run.memories.items() if "generator" in memory)
    if client is not None and client not in range(run.clients):
        raise UsageError(f"there is no client {client} in '{run.folder}'; clients go from 0 to {run.clients - 1}")
    if not owners:
        raise UsageError(f"no client in '{run.folder}' has made images yet; go on with the run first")
    whose = owners[0] if client is None else client
    if whose not in owners:
        have = ", ".join(map(str, owners))
        raise UsageError(f"client {client} in '{run.folder}' has made no images yet; these have: {have}")
    return whose, run.memories[whose]["generator"]


def _features(run: Opened, method: KDIA, central: Opened | None, say: Say) -> dict[str, Figure]:
    """The teacher's weights, recomputed from the records, and how close generated features come to real ones."""
    present = took_part([record for record in Store(run.folder).records() if record["round"] <= run.state.round])
    sizes: Sequence[int] = run.meta["clients"]["train_sizes"]
    weights = weights_over_rounds(
        present, sizes, mean=method.mean, use=method.freqs, seen_only=method.empty_slots() == "seen_only"
    )
    pictures = {"trifreqs": trifreqs_picture(weights, present, sizes, title=run.title)}
    if central is None:
        say("no similarity.png: it needs real features; name a run of centralised on the same data with --central")
    elif "generator" not in run.state.body:
        say(f"no similarity.png: {method.name} made no features, since lambda_gen = 0")
    else:
        pictures["similarity"] = similarity_picture(_similarity(run, method, central), run.names, title=run.title)
    return pictures


def _similarity(run: Opened, method: KDIA, central: Opened) -> list[float]:
    """For each class the similarity of generated features to those of the central network on all training data."""
    if central.method.name != "centralised":
        raise UsageError(f"'{central.folder}' is a run of {central.method.name}; --central needs one of centralised")
    alike = {
        "data": [r.meta["digests"]["data"] for r in (run, central)],
        "size of their images": [r.meta["model"]["input"] for r in (run, central)],
        "model": [r.meta["experiment"]["model"] for r in (run, central)],
    }
    for what, (ours, theirs) in alike.items():
        if ours != theirs:
            raise UsageError(f"'{run.folder}' and '{central.folder}' differ in the {what}; --central needs the same")
    setting = run.setting()
    net = in_two_parts(setting.build(SERVER), method.name)
    generator = method.new_generator(setting.client(0, run.state.round, {}), net)
    load(generator, run.state["generator"])
    load(net, central.state["model"])
    found = feature_similarity(
        cast(ConditionalGenerator, generator),
        net,
        pooled([site.train for site in setting.sites]),
        rng.generator(run.meta["seed"], "draw", run.state.round),
    )
    return [float(value) for value in found]


def _domains(run: Opened, method: DaFKD, say: Say) -> dict[str, Figure]:
    """Each client's importance for each class beside its data, and images of the averaged generator."""
    pictures: dict[str, Figure] = {}
    missing: list[str] = []
    if "importance" in run.state.body:
        importance: np.ndarray = run.state["importance"].double().numpy()
        counts = np.asarray(run.meta["clients"]["class_counts"], dtype=np.int64)
        pictures["importance"] = importance_picture(importance, counts, run.names, title=run.title)
    elif method.upload == "predictions" and method.correlation:
        missing.append("no importance.png: with upload = 'predictions' the server does not learn it")
    else:
        missing.append(f"no importance.png: {method.name} has not distilled in this run")
    if method.generator_output == "images":
        pictures |= _averaged(run, method)
    else:
        missing.append(f"no generated.png: {method.name} made features, not images")
    if not pictures:
        raise UsageError(f"there is nothing to draw in '{run.folder}': {'; '.join(missing)}")
    for sentence in missing:
        say(sentence)
    return pictures


def _averaged(run: Opened, method: DaFKD) -> dict[str, Figure]:
    """Images that are made as those for the distillation are, sorted by the global model."""
    setting = run.setting()
    me = setting.client(0, run.state.round, {})
    stream = rng.generator(run.meta["seed"], "draw", run.state.round, SERVER)
    number = int(torch.randint(2**62, (), generator=stream))
    many = replace(method, distil_samples=EACH * setting.classes)
    images = many.pseudo_set(me, method.two_heads(me), run.state["generator"], number)
    rows = torch.arange(len(images), device=images.device)
    labels = predict(me.net(run.state["model"]), Samples(images, rows, rows)).argmax(1)
    title = f"{run.title}: the averaged generator, sorted by the global model"
    return _by_class(Samples(images, labels, rows), setting, run.names, title)
