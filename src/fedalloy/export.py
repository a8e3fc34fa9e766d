"""Trained models as files: safetensors, readable by anybody, with the few lines that load them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from fedalloy.config import build_method, experiment
from fedalloy.errors import DataError, UsageError
from fedalloy.evaluation import PERSONAL
from fedalloy.files import write_atomically
from fedalloy.registry import suggest
from fedalloy.results import read
from fedalloy.store import Store
from fedalloy.tree import Tree


def export_model(folder: Path, view: str | None, client: int | None, path: Path | None) -> tuple[Path, str]:
    """Write one view's model of a run's last round; returns where, and the lines that load it."""
    meta = read(folder).meta
    exp = experiment(meta["experiment"])
    method = build_method(exp.method)
    saved = Store(folder).restore()
    if saved is None:
        raise DataError(f"the run in '{folder}' has not completed a round")
    state, memories = saved
    models: dict[str, Tree] = dict(method.models(state))
    if client is not None:
        if client not in memories:
            raise UsageError(f"client {client} has no model of its own in '{folder}'")
        models[PERSONAL] = memories[client]["model"]
    if not models:
        raise UsageError(f"{method.name} gives each client a model of its own; say whose with --client")
    view = view or (PERSONAL if client is not None else next(iter(models)))
    if view not in models:
        raise UsageError(f"the run in '{folder}' has no view '{view}'; {suggest(view, list(models))}")
    path = path or folder / f"{view}{'' if client is None else f'-{client}'}.safetensors"
    about = {"method": method.name, "view": view, "round": str(state.round), "model": exp.model.name}
    write_weights(models[view], path, about)
    channels, size, _ = meta["model"]["input"]
    lines = loading_lines(path, exp.model.name, meta["model"]["classes"], channels, size, exp.model.options)
    return path, lines


def write_weights(weights: Mapping[str, Tensor], path: Path, about: Mapping[str, str]) -> None:
    """Write a model's weights, with strings that say what they are."""
    # Clones, because two names of one tensor cannot be stored.
    data = safetensors.torch.save({name: t.detach().clone() for name, t in weights.items()}, metadata=dict(about))
    write_atomically(path, data)


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Read weights that `fedalloy export` wrote."""
    try:
        return safetensors.torch.load_file(path)
    except FileNotFoundError as error:
        raise DataError(f"there is no model file '{path}'") from error
    except (OSError, safetensors.SafetensorError) as error:
        raise DataError(f"the model file '{path}' cannot be read: {error}") from error


def loading_lines(path: Path, model: str, classes: int, channels: int, size: int, options: Mapping[str, object]) -> str:
    """The few lines of Python that load an exported model.

    >>> print(loading_lines(Path("oca.safetensors"), "lenet5", 26, 1, 32, {}))
    from safetensors.torch import load_file
    from fedalloy.models import create
    <BLANKLINE>
    net = create("lenet5", classes=26, channels=1, size=32)
    net.load_state_dict(load_file("oca.safetensors"))
    net.eval()
    """
    more = "".join(f", {key}={value!r}" for key, value in options.items())
    return "\n".join(
        [
            "from safetensors.torch import load_file",
            "from fedalloy.models import create",
            "",
            f'net = create("{model}", classes={classes}, channels={channels}, size={size}{more})',
            f'net.load_state_dict(load_file("{path.name}"))',
            "net.eval()",
        ]
    )
