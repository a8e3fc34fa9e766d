"""Trained models as safetensors files, with the few lines of code that load them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from fedalloy.base.files import write_weights
from fedalloy.base.registry import suggest
from fedalloy.base.tree import Tree
from fedalloy.config.sections import Choice, Experiment, check_options
from fedalloy.data.samples import Dataset, Scale
from fedalloy.errors import DataError, UsageError
from fedalloy.federation.core import Network
from fedalloy.federation.evaluation import PERSONAL
from fedalloy.nets.models import create
from fedalloy.nets.models import models as registered
from fedalloy.run.comparison import slug
from fedalloy.run.opened import open_run
from fedalloy.storage.results import read


def export_model(
    folder: str | Path,
    view: str | None = None,
    client: int | None = None,
    path: str | Path | None = None,
    *,
    dataset: Dataset | None = None,
    network: Network | None = None,
) -> tuple[Path, str]:
    """Write the model of one view after a run's last round; returns the file, and the lines of code that load it.

    A client's own model needs the run's setting: pass the data set or network again if the run had its own.
    """
    run = open_run(folder)
    folder, meta, exp, method = run.folder, run.meta, run.experiment, run.method
    state, memories = run.last()
    views: dict[str, Tree] = dict(method.models(state))
    if client is not None:
        setting = run.build(dataset, network).setting
        if client not in setting.ids:
            raise UsageError(f"there is no client {client} in '{folder}'; clients go from 0 to {setting.ids[-1]}")
        own = method.personal(setting.client(client, state.round, memories.get(client, {})))
        if own is None:
            raise UsageError(f"{method.name} has no personal models; leave out --client")
        views = {PERSONAL: own}
    if not views:
        raise UsageError(f"{method.name} has personal models only; choose a client with --client")
    view = view or next(iter(views))
    if view not in views:
        raise UsageError(f"the run in '{folder}' has no view '{view}'; {suggest(view, list(views))}")
    path = Path(path or folder / f"{slug(view)}{'' if client is None else f'-{client}'}.safetensors")
    try:
        channels, size, _ = meta["model"]["input"]
        outputs = meta["model"].get("outputs", meta["model"]["classes"])
    except (LookupError, TypeError, ValueError) as error:
        raise DataError(f"{folder / 'run.json'} lacks the input or outputs of the model; restore it") from error
    weights, name = views[view], view

    def trained() -> nn.Module:
        setting = run.build(dataset, network).setting
        return setting.fitting(weights, name) if client is None else setting.build(client)

    model = _network_of(weights, exp, trained, classes=outputs, channels=channels, size=size)
    scale = _scale(meta)
    columns = meta.get("data", {}).get("columns") if size == 1 else None
    targets = meta.get("data", {}).get("targets")
    answer = _ANSWERS.get(_task(run.folder, view), "softmax(1)")
    lines = loading_lines(
        path, model, outputs, channels, size, scale, answer, table=bool(columns), targets=bool(targets)
    )
    about = {"method": method.name, "view": view, "round": str(state.round), "model": model.name}
    about |= (
        {"outputs": json.dumps(meta["clients"]["label_names"])} if meta.get("clients", {}).get("label_names") else {}
    )
    if columns:
        about["columns"] = json.dumps(columns)
    if targets:
        about["targets"] = json.dumps(targets)
    if not columns and scale is not None:
        about |= {"mean": json.dumps(scale.mean), "std": json.dumps(scale.std)}
    write_weights(weights, path, about)
    return path, lines


_ANSWERS = {"labels": "sigmoid()", "numbers": ""}  # how outputs become an answer, if not class probabilities


def _task(folder: Path, view: str) -> str:
    """What a run learned, according to its last evaluated round."""
    views = [record["views"] for record in read(folder).rounds if view in record["views"]]
    return str(views[-1][view].get("task", "classes")) if views else "classes"


def _network_of(weights: Tree, exp: Experiment, trained: Callable[[], nn.Module], **given: int) -> Choice:
    """Which of the experiment's networks has these weights; clients may have different ones.

    The names and shapes of the parameters mostly decide. If they do not, it is the one that was `trained`, which is
    built only then, because that needs the run's data.
    """
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    fitting: dict[str, Choice] = {}
    own = [Choice(name=part.name, options=part.options) for part in exp.models]
    own += [client.network for client in exp.clients if client.network is not None]
    for choice in [exp.model, *own] if own else []:
        if choice.name in registered:
            net = create(choice.name, **given, **choice.options)
            if {name: tensor.shape for name, tensor in net.state_dict().items()} == shapes:
                fitting.setdefault(repr(net), choice)
    kind = repr(trained()) if len(fitting) > 1 else next(iter(fitting), "")
    return fitting.get(kind, exp.model)


def _scale(meta: Mapping[str, Any]) -> Scale | None:
    """How the run's inputs were normalised, if it was recorded."""
    try:
        mean, std = (tuple(map(float, meta["data"][name])) for name in ("mean", "std"))
    except (LookupError, TypeError, ValueError):
        return None
    return Scale(mean, std)


def loading_lines(
    path: Path,
    model: Choice,
    classes: int,
    channels: int,
    size: int,
    scale: Scale | None = None,
    answer: str = "softmax(1)",
    *,
    table: bool = False,
    targets: bool = False,
) -> str:
    """The few lines of Python that load an exported model and apply it, with inputs normalised as in training.

    Numbers that were standardised as `targets` are answered in their own units. The weights stay as they were trained,
    so that a run can start from them.

    >>> print(loading_lines(Path("oca.safetensors"), Choice(name="lenet5"), 26, 1, 32, Scale((0.5,), (0.25,))))
    import torch
    from safetensors.torch import load_file
    from fedalloy.nets.models import create
    <BLANKLINE>
    net = create("lenet5", classes=26, channels=1, size=32)
    net.load_state_dict(load_file("oca.safetensors"))
    net.eval()
    <BLANKLINE>
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in ([0.5], [0.25]))
    <BLANKLINE>
    def probabilities(x):  # of N x 1 x 32 x 32; pixels from 0 to 1
        return net((x - mean) / std).softmax(1)
    """
    given: Mapping[str, object] = {"classes": classes, "channels": channels, "size": size}
    known = model.name in registered
    # These lines will be pasted and run, so a run.json from elsewhere must not inject code into them.
    if known:
        check_options(model, registered[model.name], "model", given)
    elif not model.name.isidentifier():
        raise DataError(f"the run's model is called {model.name!r}, which is not a valid name; correct its run.json")
    options = {**given, **model.options}
    keywords = ", ".join(f"{key}={value!r}" for key, value in options.items())
    file = json.dumps(path.as_posix(), ensure_ascii=False)
    made = f'net = create("{model.name}", {keywords})' if known else f"net = {model.name}()  # a network of your own"
    creating = ["from fedalloy.nets.models import create"] if known else []
    ending = f".{answer}" if answer else ""
    described = [key for key, wanted in (("columns", table), ("targets", targets)) if wanted]
    imported = [name for name, wanted in (("in_units", targets), ("table_inputs", table)) if wanted]
    loading = ["from safetensors.torch import load_file"], [f"net.load_state_dict(load_file({file}))"]
    if described:
        loading = (
            ["from safetensors import safe_open", f"from fedalloy.data.statistics import {', '.join(imported)}"],
            [
                f'with safe_open({file}, "pt") as file:',
                *(f'    {key} = file.metadata()["{key}"]' for key in described),
                "    net.load_state_dict({key: file.get_tensor(key) for key in file.keys()})",
            ],
        )

    def answering(name: str, given: str, about: str, inputs: str) -> list[str]:
        found = f"net({inputs}){ending}"
        returned = f"in_units({found}, targets)" if targets else found
        return ["", f"def {name}({given}):  # {about}", f"    return {returned}"]

    scaling, asking = list[str](), list[str]()
    if table:
        about = 'a list of rows such as {"age": 61, "sex": "f"}; None is a missing value'
        asking = answering("answers", "rows", about, "table_inputs(rows, columns)")
    elif scale is not None:
        means = f"({[*scale.mean]}, {[*scale.std]})"
        scaling = ["", f"mean, std = (torch.tensor(v).view(-1, 1, 1) for v in {means})"]
        about = f"of N x {channels} x {size} x {size}; {_unit(size)}"
        asking = answering("probabilities" if answer else "answers", "x", about, "(x - mean) / std")
    return "\n".join(
        [
            *(["import torch"] if scaling else []),
            *loading[0],
            *creating,
            "",
            made,
            *loading[1],
            "net.eval()",
            *scaling,
            *asking,
        ]
    )


def _unit(size: int) -> str:
    return "pixels from 0 to 1" if size > 1 else "features in their own units"
