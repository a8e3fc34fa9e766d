"""What a function answers that computes a claim.

A function of `FUNCTIONS` takes what is recorded of the claim's item, or None if the item has no runs, and answers with
a `Computed`. It answers in one of three ways:

- `values`: a number for each seed, which the claim says is above zero. It is judged as any difference: at least three
  seeds, and where its interval lies.
- `holds`: True or False for a statement without chance, such as a theorem on a toy distribution.
- neither: it could not be computed; `text` says why, and the claim is not tested.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedalloy.reproduce.results import Results


@dataclass(frozen=True)
class Computed:
    """What a function found: numbers by seed or a truth value, and one sentence with the numbers it rests on."""

    values: Mapping[int, float] | None
    holds: bool | None
    text: str


Function = Callable[[Results | None], Computed]
