"""Nothing is drawn from a global stream by name: every draw has a generator, and layers are initialised from a seed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TORCH = {"rand", "randn", "randint", "randperm", "multinomial", "normal", "bernoulli", "poisson"}
LIKE = {"rand_like", "randn_like", "randint_like"}  # which take no generator
IN_PLACE = {"normal_", "uniform_", "bernoulli_", "exponential_", "random_", "geometric_", "cauchy_", "log_normal_"}
SOUND = {"Random", "seed", "getstate", "setstate", "default_rng", "Generator", "RandomState", "get_state", "set_state"}


def draws(code: str) -> Iterator[int]:
    """The lines in which something is drawn from a global stream, and not on purpose, as a comment there says."""
    lines = code.splitlines()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and _is_global(node) and "# on purpose" not in lines[node.lineno - 1]:
            yield node.lineno


def _is_global(call: ast.Call) -> bool:
    owner, _, name = ast.unparse(call.func).rpartition(".")
    if any(word.arg in ("generator", None) for word in call.keywords):  # None: **options, which may have one
        return False
    if owner in ("random", "np.random", "numpy.random"):
        return name not in SOUND
    if owner.endswith("init"):  # nn.init.normal_: with its layer
        return False
    return (owner == "torch" and name in TORCH) or name in LIKE or name in IN_PLACE


@pytest.mark.parametrize("folder", ["src", "tests", "bench", "chaos", "tools", "examples"])
def test_every_draw_has_a_generator(folder: str) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in sorted((ROOT / folder).rglob("*.py"))
        for line in draws(file.read_text(encoding="utf-8"))
    ]
    assert not found, found


def test_what_is_a_draw() -> None:
    bad = ["torch.rand(2)", "x.uniform_()", "torch.randn_like(x)", "random.sample(x, 2)", "np.random.rand(2)"]
    good = ["torch.rand(2, generator=g)", "nn.init.uniform_(x)", "random.Random(0).sample(x, 2)", "random.seed(7)"]
    assert list(draws("\n".join(bad + good))) == [1, 2, 3, 4, 5]
    assert list(draws("torch.rand(2)  # on purpose")) == []
