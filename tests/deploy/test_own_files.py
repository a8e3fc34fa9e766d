"""From own files to sites: the same rows, statistics and bits as in a simulation of the same files."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedalloy.config.experiment import experiment
from fedalloy.deploy.app import conducted
from fedalloy.deploy.folder import Deployment
from fedalloy.deploy.init import init
from fedalloy.deploy.site import read_site, site_setting, site_summary
from fedalloy.errors import DataError, UsageError
from fedalloy.run.runner import simulate
from fedalloy.storage.store import Store

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parent))

from sites_grid import Killed, Mortal, grid_of

NAMES = ("north", "south", "west")


def hospitals(folder: Path, rows: int = 40, missing: bool = True) -> Path:
    """Three hospitals' tables with numbers, categories and missing values; the label follows from the numbers."""
    folder.mkdir()
    for k, name in enumerate(NAMES):
        rng = np.random.default_rng(k)
        age, dose = rng.normal(50 + 5 * k, 10, rows), rng.exponential(3, rows)
        sex = rng.choice(["f", "m"] if name != "west" else ["f", "m", "x"], rows)
        ill = (age / 10 + dose + rng.normal(0, 1, rows) > 8 + k / 2).astype(int)
        lines = ["age,sex,dose,outcome"]
        for row in range(rows):
            empty = missing and row % 7 == k
            lines.append(
                f"{'' if empty else round(age[row], 2)},{sex[row]},{dose[row]:.3f},{['well', 'ill'][ill[row]]}"
            )
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return folder


def values(folder: Path, **more: Any) -> dict[str, Any]:
    data = {"name": str(folder), "label": "outcome", "categorical": ["sex"], "impute": "median"}
    return {"rounds": 2, "data": data, "model": "mlp", "aggregation": {"cap": 1.0}, **more}


def deployed(made: Deployment, grid: Any = None) -> list[str]:
    said: list[str] = []
    conducted(grid or grid_of(made), made, said.append)
    return said


def final(folder: Path) -> Any:
    restored = Store(folder).restore()
    assert restored is not None
    return restored[0].body


def same(one: Any, other: Any) -> bool:
    from fedalloy.base import tree

    return tree.digest(one) == tree.digest(other)


@pytest.mark.parametrize("impute", ["mean", "median"])
@pytest.mark.parametrize("validation", [0.0, 0.2])
def test_sites_have_the_bits_of_a_simulation_of_their_files(tmp_path: Path, impute: str, validation: float) -> None:
    given = values(hospitals(tmp_path / "h"), partition={"validation": validation})
    given["data"]["impute"] = impute
    run = simulate(experiment(given), tmp_path / "here")
    made = init(given, tmp_path / "lab", address="127.0.0.1:23456")
    assert (made.sites, made.names) == (3, NAMES)
    deployed(made)
    assert same(final(tmp_path / "here"), final(made.run))
    there = json.loads((made.run / "run.json").read_text())
    assert there["data"]["columns"] == run.meta["data"]["columns"]
    assert there["data"]["statistics"] == run.meta["data"]["statistics"]
    assert there["clients"]["names"] == list(NAMES)
    first = json.loads((made.run / "rounds.jsonl").read_text().splitlines()[0])
    assert first["bytes"] == run.rounds[0]["bytes"]
    assert first["bytes"]["up"]["statistics"] == there["data"]["statistics"]["up"] > 0


def test_what_sites_get_describes_the_files_and_has_no_row_of_them(tmp_path: Path) -> None:
    folder = hospitals(tmp_path / "h")
    made = init(values(folder), tmp_path / "lab", address="127.0.0.1:23456")
    agreed = experiment(tomllib.loads((made.site(1) / "experiment.toml").read_text()))
    assert agreed.data.name == "sites"
    assert list(agreed.data.options["columns"]) == ["age", "sex", "dose"]
    assert list(agreed.data.options["names"]) == ["ill", "well"]
    assert [client.name for client in agreed.clients] == list(NAMES)
    assert read_site(made.site(1)).data == str(folder / "south.csv")
    assert str(tmp_path) not in (made.site(1) / "experiment.toml").read_text()


def test_a_run_that_died_resumes_with_the_statistics_that_it_began_with(tmp_path: Path) -> None:
    given = values(hospitals(tmp_path / "h"), rounds=3)
    simulate(experiment(given), tmp_path / "here")
    made = init(given, tmp_path / "lab", address="127.0.0.1:23456")
    with pytest.raises(Killed):
        deployed(made, grid_of(made, Mortal(3 + 3 + 6 + 4)))
    deployed(made)
    assert same(final(tmp_path / "here"), final(made.run))


def test_each_client_may_have_a_network_and_a_public_file_is_handed_to_all(tmp_path: Path) -> None:
    folder = hospitals(tmp_path / "h")
    public = hospitals(tmp_path / "p") / "north.csv"
    listed = [{"name": f"{name} clinic", "data": str(folder / f"{name}.csv")} for name in NAMES]
    listed[1]["network"] = {"name": "mlp", "hidden": 20}  # type: ignore[assignment]
    given = {
        **values(folder),
        "clients": listed,
        "method": {"name": "knfu"},
        "public": {"data": str(public), "samples": 20, "labelled": True},
    }
    given["data"].pop("name")
    run = simulate(experiment(given), tmp_path / "here")
    assert len(run.meta["models"]) == 2
    made = init(given, tmp_path / "lab", address="127.0.0.1:23456")
    assert (made.site(2) / "public.csv").read_bytes() == public.read_bytes()
    deployed(made)
    there = json.loads((made.run / "rounds.jsonl").read_text().splitlines()[-1])
    assert there["views"] == run.rounds[-1]["views"]
    (made.site(2) / "public.csv").write_text(public.read_text().replace("ill", "well", 1))
    prepared = json.dumps(json.loads((made.run / "run.json").read_text())["data"]["columns"])
    with pytest.raises(DataError, match="SHA-256"):
        site_setting(made.site(2), 3, prepared)


def test_under_privacy_only_constants_prepare_rows(tmp_path: Path) -> None:
    given = values(hospitals(tmp_path / "h"), privacy={"noise_multiplier": 1.0})
    with pytest.raises(UsageError, match=r"data\.mean"):
        init(given, tmp_path / "lab", address="127.0.0.1:23456")
    with pytest.raises(UsageError, match=r"data\.mean"):
        simulate(experiment(given))
    given["data"] |= {"impute": "mean", "mean": [55.0, 3.0], "std": [10.0, 3.0], "categories": {"sex": ["f", "m", "x"]}}
    run = simulate(experiment(given))
    assert "statistics" not in run.rounds[0]["bytes"]["up"]
    init(given, tmp_path / "lab", address="127.0.0.1:23456")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda h: (h / "south.csv").write_text("age,sex,outcome\n1,f,ill\n2,m,well\n"), "dose"),
        (lambda h: (h / "south.csv").write_text("age,sex,dose,outcome\n1,f,2,dead\n"), "dead"),
        (lambda h: (h / "south.csv").write_text("age,sex,dose,outcome\nold,f,2,ill\n"), "old"),
    ],
)
def test_a_site_whose_file_differs_from_the_agreed_format_says_where(tmp_path: Path, change: Any, word: str) -> None:
    folder = hospitals(tmp_path / "h")
    made = init(values(folder), tmp_path / "lab", address="127.0.0.1:23456")
    change(folder)
    with pytest.raises(DataError, match=word):
        site_setting(made.site(1), 3, "[]")


def test_files_without_clients_cannot_be_deployed(tmp_path: Path) -> None:
    folder = hospitals(tmp_path / "h")
    given = values(folder / "north.csv", partition={"name": "iid", "clients": 2})
    with pytest.raises(UsageError, match="clients"):
        init(given, tmp_path / "lab", 2, "127.0.0.1:23456")


@pytest.mark.parametrize("constants", [{}, {"mean": [0.5], "std": [0.25]}])
def test_images_that_are_resized_need_constants(tmp_path: Path, constants: dict[str, Any]) -> None:
    """A site tells statistics of its own pixels, of which its server does not know how many there are."""
    folder = tmp_path / "scans"
    folder.mkdir()
    for k, name in enumerate(NAMES):
        rng = np.random.default_rng(k)
        np.savez(folder / name, x=rng.integers(0, 256, (20, 3, 16, 16), np.uint8), y=rng.integers(0, 2, 20))
    given = {"rounds": 1, "data": {"name": str(folder), "size": 8, **constants}, "model": "mlp"}
    simulate(experiment(given), tmp_path / "here")
    if not constants:
        with pytest.raises(UsageError, match="16 x 16"):
            init(given, tmp_path / "lab", address="127.0.0.1:23456")
    else:
        made = init(given, tmp_path / "lab", address="127.0.0.1:23456")
        assert site_setting(made.site(0), 3)[1].sites[0].train.x.shape[1:] == (3, 8, 8)


def test_a_site_whose_images_would_be_resized_says_why_it_tells_nothing(tmp_path: Path) -> None:
    given = {"rounds": 1, "data": {"name": "sites", "classes": 2, "channels": 1, "size": 8}, "model": "mlp"}
    made = init(given, tmp_path / "lab", 2, address="127.0.0.1:23456")
    np.savez(made.site(0) / "own.npz", x=np.zeros((20, 1, 16, 16), np.uint8), y=np.arange(20) % 2)
    (made.site(0) / "site.toml").write_text('client = 0\ndata = "own.npz"\n')
    with pytest.raises(UsageError, match="16 x 16"):
        site_summary(made.site(0), 2)
