"""Tables without runs: what the paper states, as data, and what our networks and metrics give for the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedalloy.base.text import MISSING
from fedalloy.errors import DataError
from fedalloy.federation.across import amp, fm, wlp
from fedalloy.nets.models import create, parameter_count
from fedalloy.report.tables import Table
from fedalloy.reproduce.forms.tables_layout import setting
from fedalloy.reproduce.results import Results


def settings(results: Results) -> list[Table]:
    """The table that the item's options hold: `headings`, `rows` of texts, and `words`, the number of word columns.

    Columns of ours follow, each with one entry for every row, empty where there is none: `networks` (a network, or
    several with how many `times` each is counted) gives parameters, `accuracies` (of the clients) AMP, FM and WLP.
    """
    item, options = results.item, results.item.options or {}
    if not {"headings", "rows"} <= options.keys():
        raise DataError(f"{item.paper} {item.id}: a table of settings needs the options headings and rows")
    headings = [str(text) for text in options["headings"]]
    rows = [[str(text) or MISSING for text in row] for row in options["rows"]]
    extra: dict[str, Sequence[str]] = {}
    if "networks" in options:
        extra["parameters (ours)"] = [_parameters(networks) for networks in options["networks"]]
    if "accuracies" in options:
        measured = [_measured(accuracies) for accuracies in options["accuracies"]]
        extra |= {f"{name} (ours)": [texts[i] for texts in measured] for i, name in enumerate(("AMP", "FM", "WLP"))}
    for heading, texts in extra.items():
        if len(texts) != len(rows):
            raise DataError(f"{item.paper} {item.id}: {heading} has {len(texts)} entries for {len(rows)} rows")
    return [
        Table(
            item.heading,
            [*headings, *extra],
            [[*row, *(texts[i] for texts in extra.values())] for i, row in enumerate(rows)],
            setting(results),
            words=int(options.get("words", 1)),
        )
    ]


def _parameters(networks: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> str:
    """How many parameters the networks of a row have together.

    >>> _parameters({"name": "simple-cnn", "classes": 10, "channels": 3, "size": 32})
    '92,626'
    """
    several = [networks] if isinstance(networks, Mapping) else networks
    total = 0
    for network in filter(None, several):
        with torch.device("meta"):  # nothing is drawn and no memory taken
            made = create(**{key: value for key, value in network.items() if key != "times"})
        total += int(network.get("times", 1)) * parameter_count(made)
    return f"{total:,}" if total else MISSING


def _measured(accuracies: Sequence[float]) -> tuple[str, str, str]:
    """AMP, FM and WLP of clients with equally many test samples.

    >>> _measured([0.6, 0.7, 0.8])
    ('0.7', '0.00667', '0.6')
    """
    if not accuracies:
        return MISSING, MISSING, MISSING
    first, second, third = (amp(accuracies, [1] * len(accuracies)), fm(accuracies), wlp(accuracies))
    return f"{first:.3g}", f"{second:.3g}", f"{third:.3g}"
