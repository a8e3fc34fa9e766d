"""The five hospitals that come with fedalloy, and the tool that makes them."""

from __future__ import annotations

import csv
import importlib.util
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedalloy.data import catalogue

ROOT = Path(__file__).parents[2]
FOLDER = Path(str(catalogue.__file__)).with_name("embedded") / "hospitals"
SIZES = {"north_clinic": 44, "east_clinic": 75, "south_clinic": 110, "west_hospital": 150, "central_hospital": 190}


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("make_hospitals", ROOT / "tools" / "make_hospitals.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(site: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return a site's columns, inputs with NaN for missing values, and labels (1: malignant)."""
    header, *rows = csv.reader((FOLDER / f"{site}.csv").open(encoding="ascii"))
    x = np.array([[float(cell or "nan") for cell in row[:-1]] for row in rows])
    return header, x, np.array([["benign", "malignant"].index(row[-1]) for row in rows])


def balanced(y: np.ndarray, said: np.ndarray) -> float:
    return float(np.mean([(said[y == label] == label).mean() for label in (0, 1)]))


def test_five_sites_of_different_sizes_and_shares_with_missing_values() -> None:
    assert {path.stem for path in FOLDER.glob("*.csv")} == set(SIZES)
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 150_000
    parts = {site: read(site) for site in SIZES}
    assert {site: len(y) for site, (_, _, y) in parts.items()} == SIZES
    assert len({tuple(header) for header, _, _ in parts.values()}) == 1
    assert parts["north_clinic"][0][-1] == "diagnosis"
    assert sum(int(y.sum()) for _, _, y in parts.values()) == 212  # the published number of malignant cases
    shares = [y.mean() for _, _, y in parts.values()]
    assert max(shares) - min(shares) > 0.3
    gone = np.isnan(np.concatenate([x for _, x, _ in parts.values()]))
    assert 0.06 < gone.mean() < 0.10
    assert all(np.isnan(x).any() and not np.isnan(x).all(axis=0).any() for _, x, _ in parts.values())


def test_sites_are_consecutive_in_the_sorted_feature() -> None:
    spans = []
    for site in SIZES:
        header, x, _ = read(site)
        values = x[:, header.index("fractal_dimension")]
        spans.append((np.nanmin(values), np.nanmax(values)))
    assert all(low[1] <= high[0] for low, high in pairwise(spans))


def test_the_readme_says_where_the_data_are_from() -> None:
    words = (FOLDER / "README.md").read_text()
    for fact in ("10.24432/C5DW2B", "CC BY 4.0", "scikit-learn", "fractal dimension", "8 %", *SIZES):
        assert fact in words


def test_pooled_rows_can_be_learned() -> None:
    parts = [read(site)[1:] for site in SIZES]
    x, y = np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])
    x = np.where(np.isnan(x), np.nanmean(x, axis=0), x)
    x = np.c_[(x - x.mean(axis=0)) / x.std(axis=0), np.ones(len(x))]
    train = np.random.default_rng(1).permutation(len(y)) < 400
    weight = np.where(y == 1, 1 / y[train].sum(), 1 / (1 - y[train]).sum())
    w = np.zeros(x.shape[1])
    for _ in range(500):  # logistic regression, both classes counting the same
        chance = 1 / (1 + np.exp(-x[train] @ w))
        w -= x[train].T @ (weight[train] * (chance - y[train]))
    assert balanced(y[~train], (x[~train] @ w > 0).astype(int)) > 0.8


def test_the_tool_splits_by_the_feature_and_deletes_no_label(tool: Any) -> None:
    rng = np.random.default_rng(5)
    patients = sum(SIZES.values())
    values, labels = rng.random((patients, 30)), rng.integers(0, 2, patients)
    lines = [",".join([*(repr(float(v)) for v in row), str(label)]) for row, label in zip(values, labels, strict=True)]
    made = tool.sites("\n".join([f"{patients},30,malignant,benign", *lines]) + "\n")
    assert list(made) == list(SIZES)
    rows = [line.split(",") for text in made.values() for line in text.splitlines()[1:]]
    assert sum(row[-1] == "malignant" for row in rows) == int((labels == 0).sum())
    assert {row[-1] for row in rows} == {"malignant", "benign"}
    kept = {repr(float(v)) for v in values[:, list(tool.KEPT.values())].ravel()}
    assert {cell for row in rows for cell in row[:-1] if cell} <= kept
    with pytest.raises(ValueError, match="568"):
        tool.sites("\n".join(["568,30,malignant,benign", *lines[1:]]) + "\n")
