"""Trained models as files: safetensors, readable by anybody, with the few lines that load them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from fedalloy.errors import DataError
from fedalloy.files import write_atomically


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
