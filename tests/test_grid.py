"""Axes of an experiment, and the table that its cells make."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedalloy.base.text import MISSING
from fedalloy.cli.main import main
from fedalloy.config.experiment import experiment
from fedalloy.config.grid import cells
from fedalloy.errors import UsageError
from fedalloy.report.grid_table import Grid, grid
from fedalloy.storage.results import Run

AXES = [
    {
        "name": "n",
        "values": [{"label": "few", "set": {"partition.clients": 2}}, {"label": "more", "set": {"rounds": 3}}],
    },
    {"name": "alpha", "values": [{"label": x, "set": {"partition.alpha": float(x)}} for x in ("0.1", "1", "10")]},
]
VALUES: dict[str, Any] = {"data": "tiny", "rounds": 1, "partition": {"clients": 4, "alpha": 5.0}, "axes": AXES}


def test_cells_are_all_combinations_the_first_axis_slowest() -> None:
    names, found = cells(VALUES)
    assert names == ["n", "alpha"]
    assert [cell.name for cell in found] == ["few, 0.1", "few, 1", "few, 10", "more, 0.1", "more, 1", "more, 10"]
    assert found[1].values == {"data": "tiny", "rounds": 1, "partition": {"clients": 2, "alpha": 1.0}}
    assert found[5].values == {"data": "tiny", "rounds": 3, "partition": {"clients": 4, "alpha": 10.0}}
    assert VALUES["partition"] == {"clients": 4, "alpha": 5.0}  # untouched


def test_other_commands_read_the_experiment_without_its_axes() -> None:
    assert experiment(VALUES).partition.options == {"alpha": 5.0}


@pytest.mark.parametrize(
    ("axes", "sentence"),
    [
        ([], "has no .*axes"),
        ("alpha", "axes must be a list of tables"),
        ([{"name": "a"}], "needs a name and values"),
        ([{"name": "a", "values": []}], "values with different labels"),
        ([{"name": "a", "values": [{"label": "x"}]}], "needs a label and what it sets"),
        ([{"name": "a", "values": [{"label": "x", "set": {}}, {"label": "x", "set": {}}]}], "different labels"),
    ],
)
def test_axes_that_make_no_sense_are_refused(axes: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        cells({"axes": axes})


def run(
    label: str, seed: int, amp: float, published: list[Any], alpha: float, amps: dict[str, float] | None = None
) -> Run:
    zeros = dict.fromkeys(("fm", "wlp", "bottom10", "worst_client", "loss"), 0.0)
    views = {
        name: {"amp": amp, "alma": amp / 2, "test": None, "validation": None, **zeros}
        for name, amp in (amps or {"personal": amp}).items()
    }
    record = {"round": 1, "views": views, "bytes": {}, "seconds": {}}
    meta = {"label": label, "seed": seed, "experiment": {"published": published, "partition": {"alpha": alpha}}}
    return Run(meta, (record,))


def test_our_figures_stand_beside_the_published_ones_of_their_cell() -> None:
    paper = [
        {"source": "Paper", "where": {"partition.alpha": a}, "metrics": ["alma"], "rows": [["KnFu", "personal", text]]}
        for a, text in ((0.1, "93.5 ± 0.6"), (1.0, "78.5 ± 3.9"))
    ]
    lines = [
        ([label], [run("KnFu", s, amp + s / 50, paper, alpha) for s in (0, 1)] + [run("Local", 0, 0.5, paper, alpha)])
        for label, amp, alpha in (("0.1", 0.90, 0.1), ("1", 0.80, 1.0), ("10", 0.70, 10.0))
    ]
    table = grid(["alpha"], lines)
    assert table.title == "Compared with Paper"
    assert table.headings == ["alpha", "KnFu", "paper", "Local", "paper"]
    assert table.body[0] == ["0.1", "45.50 ± 0.71", "93.5 ± 0.6", "25.00", MISSING]
    assert table.body[1] == ["1", "40.50 ± 0.71", "78.5 ± 3.9", "25.00", MISSING]
    assert table.body[2] == ["10", "71.00 ± 1.41", MISSING, "50.00", MISSING]  # nothing was published: AMP
    assert table.markdown().splitlines()[2] == "| alpha | KnFu | paper | Local | paper |"
    assert table.table().row_count == 3


def test_every_published_view_of_a_method_has_its_columns_and_a_gap_is_shown() -> None:
    paper = [
        {
            "source": "Paper",
            "where": {"partition.alpha": 0.1},
            "metrics": ["amp"],
            "rows": [
                *(["FedMD+Global", "global", "59.76"], ["FedMD+Global", "distilled", "54.77"]),
                *(["FedMD+Global", "personal", "32.13"], ["FedAvg", "aca", "61.00"], ["Elsewhere", "aca", "1.00"]),
            ],
        }
    ]

    def runs(alpha: float) -> list[Run]:
        views = {"global": 0.6, "distilled": 0.5, "personal": 0.2}
        return [
            run("FedMD+Global", 0, 0.0, paper, alpha, views),
            run("FedAvg", 0, 0.0, paper, alpha, {"aca": 0.4, "oca": 0.7}),
            run("Local", 0, 0.3, paper, alpha, {"personal": 0.3, "odd": 0.35}),
        ]

    table = grid(["alpha"], [(["0.1"], runs(0.1)), (["1"], runs(1.0)), (["none"], runs(1.0)[2:])])
    ours = ("FedMD+Global (global)", "FedMD+Global (distilled)", "FedMD+Global (personal)")
    pairs = [heading for view in ours for heading in (view, "paper")]
    assert table.headings == ["alpha", *pairs, "gap", "FedAvg", "paper", "Local", "paper"]
    shown = ("60.00", "59.76", "50.00", "54.77", "20.00", "32.13", "30.00", "40.00", "61.00", "35.00", MISSING)
    assert table.body[0] == ["0.1", *shown]
    # Where nothing is published, the same views are shown; what was not run has no figure.
    assert table.body[1] == ["1", *(MISSING if i in (1, 3, 5, 8) else text for i, text in enumerate(shown))]
    assert table.body[2] == ["none", *[MISSING] * 9, "35.00", MISSING]


def test_without_published_tables_there_is_one_column_for_each_method() -> None:
    table = grid(["n"], [(["2"], [run("Local", 0, 0.5, [], 1.0)])])
    assert (table.headings, list(table.body)) == (["n", "Local"], [["2", "50.00"]])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ('"partition.alhpa" = 2.0', "partition has no key 'alhpa'; did you mean 'alpha'?"),
        ('"partition" = "classes"', "the partition 'classes' needs per_client; write per_client=..."),
        ('"data" = "tinny"', "there is no data set 'tinny'; did you mean 'tiny'?"),
        ('"data.augment" = "kdai"', "there is no augmentation 'kdai'; "),
        ('"model.hiden" = [3]', "model has no key 'hiden'; did you mean 'hidden'?"),
        ('"public.sampels" = 9', "public has no key 'sampels'; did you mean 'samples'?"),
    ],
)
def test_the_last_cell_is_checked_before_the_first_one_runs(
    change: str, sentence: str, tmp_path: Path, capsys: Any
) -> None:
    file = tmp_path / "small.toml"
    file.write_text(
        f"""
        data = "tiny"
        model = "mlp"
        rounds = 1
        partition = {{ clients = 2, alpha = 1.0 }}
        [[axes]]
        name = "alpha"
        values = [{{ label = "1", set = {{ "partition.alpha" = 1.0 }} }}, {{ label = "2", set = {{ {change} }} }}]
        """
    )
    with pytest.raises(SystemExit) as left:
        main(["table", str(file), "--out", str(tmp_path / "out")])
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith(f"fedalloy: cell '2': {sentence}")
    assert not (tmp_path / "out").exists()


def test_a_method_that_would_not_run_is_refused(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "small.toml").write_text(
        '[methods.local]\n[[axes]]\nname = "alpha"\nvalues = [{ label = "1", set = { "partition.alpha" = 1.0 } }]\n'
    )
    with pytest.raises(SystemExit) as left:
        main(["table", str(tmp_path / "small.toml"), "method=qffl"])
    assert left.value.code == 2
    assert re.fullmatch(
        r"fedalloy: method=qffl .*\[methods\].*write \[methods\.qffl\] in the file\n", capsys.readouterr().err
    )


def test_the_command_runs_every_cell_and_goes_on_where_it_stopped(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "small.toml"
    file.write_text(
        """
        data = "tiny"
        model = "mlp"
        rounds = 1
        partition = { clients = 2, alpha = 1.0 }
        [methods.local]
        [methods.fedavg]
        [[axes]]
        name = "alpha"
        values = [
          { label = "1", set = { "partition.alpha" = 1.0 } },
          { label = "9", set = { "partition.alpha" = 9.0 } },
        ]
        """
    )
    for _ in range(2):
        with pytest.raises(SystemExit) as left:
            main(["table", str(file), "--seeds", "2", "--out", str(tmp_path / "out")])
        assert left.value.code == 0
    lines = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert lines[2] == "| alpha | Local, equal rounds | FedAvg |"
    assert len(lines) == 6
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["1", "9", "table.md"]
    assert "already finished" in capsys.readouterr().out


def test_skipped_rounds_are_told_cell_by_cell(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "small.toml"
    file.write_text(
        """
        data = "tiny"
        model = "mlp"
        rounds = 2
        partition = { clients = 4, alpha = 1.0 }
        participation = { late_drop = 0.2 }
        [[axes]]
        name = "quorum"
        values = [
          { label = "none", set = { "quorum.fraction" = 0.0 } },
          { label = "all", set = { "quorum.fraction" = 1.0 } },
        ]
        """
    )
    with pytest.raises(SystemExit) as left:
        main(["table", str(file), "--out", str(tmp_path / "out")])
    assert left.value.code == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "was skipped" in line]
    assert len(said) == 1
    assert said[0].startswith("all: FedAvg, seed 0: round 2 of 2 was skipped")
    assert (tmp_path / "out" / "table.md").read_text().endswith(f"\n\n- {said[0]}\n")


def test_a_narrow_terminal_hides_no_digit() -> None:
    methods = [text for label in ("KnFu", "FedMD", "Local, equal rounds", "Selective-FD") for text in (label, "paper")]
    wide = Grid("Table 1", ["alpha", *methods], [["0.25", *["88.12 ± 0.61", "88.1 ± 0.6"] * 4]], [])
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(wide.table())
    shown = console.export_text()
    assert "…" not in shown
    assert shown.count("88.1") == 8
