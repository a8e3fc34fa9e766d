"""Axes of an experiment, and the table that its cells make."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedalloy.base.text import MISSING, TIMES
from fedalloy.cli.main import main
from fedalloy.config.experiment import experiment
from fedalloy.config.grid import cells
from fedalloy.errors import UsageError
from fedalloy.report.grid_table import Grid, grid
from fedalloy.storage.results import Run, read

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
    assert table.title == "Compared with Paper; ours: last"
    assert table.headings == ["alpha", "KnFu", "paper", "Local", "paper"]
    assert table.body[0] == ["0.1", "45.50 ± 0.71", "93.5 ± 0.6", "25.00", MISSING]
    assert table.body[1] == ["1", "40.50 ± 0.71", "78.5 ± 3.9", "25.00", MISSING]
    assert table.body[2] == ["10", "35.50 ± 0.71", MISSING, "25.00", MISSING]  # nothing was published: the same metric
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
    rest = [heading for view in ("FedAvg (ACA)", "Local (personal)", "Local (odd)") for heading in (view, "paper")]
    assert table.headings == ["alpha", *pairs, "gap", *rest]
    shown = ("60.00", "59.76", "50.00", "54.77", "20.00", "32.13", "30.00", "40.00", "61.00")
    shown += ("30.00", MISSING, "35.00", MISSING)
    assert table.body[0] == ["0.1", *shown]
    # Where nothing is published, the same views are shown; what was not run has no figure.
    assert table.body[1] == ["1", *(MISSING if i in (1, 3, 5, 8) else text for i, text in enumerate(shown))]
    assert table.body[2] == ["none", *[MISSING] * 9, "30.00", MISSING, "35.00", MISSING]


def test_without_published_tables_every_view_of_a_method_has_a_named_column() -> None:
    views = {"aca": 0.4, "oca": 0.7, "initial": 0.1}
    table = grid(["n"], [(["2"], [run("FedAvg", 0, 0.0, [], 1.0, views), run("Local", 0, 0.5, [], 1.0)])])
    assert table.headings == ["n", "FedAvg (ACA)", "FedAvg (OCA)", "Local"]
    assert (table.title, list(table.body)) == ("AMP %: last", [["2", "40.00", "70.00", "50.00"]])


def curve(label: str, published: list[Any], *amps: float) -> Run:
    """A run with one round for each AMP; the worst client is always 0.1 below."""
    records = tuple(run(label, 0, 0.0, published, 0.1, {"aca": amp, "oca": amp + 0.1}).rounds[0] for amp in amps)
    for number, record in enumerate(records, start=1):
        record["round"] = number  # type: ignore[index]
        for view in record["views"].values():
            view |= {"wlp": view["amp"] - 0.1, "fm": view["amp"] / 100}
    return Run({**run(label, 0, 0.0, published, 0.1).meta}, records)


def paper(**more: Any) -> dict[str, Any]:
    rows = [["FedAvg", "aca", "81", "2", "3"], ["FedAvg", "oca", "82", "5", "6"], ["FedKF", "aca", "83", "8", "9"]]
    return {"source": "Paper", "metrics": ["amp", "fm", "wlp"], "rows": rows, **more}


def test_all_published_metrics_are_shown_and_taken_from_the_papers_round() -> None:
    tables = [paper(round="best by amp")]
    cell = [curve("FedAvg", tables, 0.25, 0.5, 0.125), curve("FedProx", tables, 0.25, 0.375)]
    table = grid(["alpha"], [(["0.1"], cell)], selection="last")
    assert table.title == "Compared with Paper; ours: best by amp"
    metrics = [heading for name in ("AMP %", f"FM {TIMES}10³", "WLP %") for heading in (name, "paper")]
    assert table.headings == ["alpha", "Method", "View", *metrics]
    assert table.body == [
        ["0.1", "FedAvg", "ACA", "50.00", "81", "5.00", "2", "40.00", "3"],
        ["0.1", "FedAvg", "OCA", "60.00", "82", "6.00", "5", "50.00", "6"],
        ["0.1", "FedProx", "ACA", "37.50", MISSING, "3.75", MISSING, "27.50", MISSING],
        ["0.1", "FedProx", "OCA", "47.50", MISSING, "4.75", MISSING, "37.50", MISSING],
    ]
    assert table.markdown().splitlines()[3].startswith("| ---: | --- | --- | ---: |")


def test_a_cell_without_a_published_table_reports_the_selected_round_and_says_so() -> None:
    tables = [paper(round="mean of last 2", where={"partition.alpha": 0.1})]
    here, there = curve("FedAvg", tables, 0.25, 0.5, 0.125), curve("FedAvg", [], 0.25, 0.5, 0.125)
    table = grid(["alpha"], [(["0.1"], [here]), (["1"], [there])], selection="best by amp")
    assert table.title == "Compared with Paper; ours: mean of last 2 or best by amp"
    assert [line[3] for line in table.body] == ["31.25", "41.25", "50.00", "60.00"]
    assert table.notes == [
        *(f"0.1: {name}: mean of last 2" for name in ("AMP %", f"FM {TIMES}10³", "WLP %")),
        *(f"1: {name}: best by amp" for name in ("AMP %", f"FM {TIMES}10³", "WLP %")),
    ]


def test_two_published_tables_of_one_cell_both_count() -> None:
    tables = [
        {"source": "T1", "metrics": ["amp"], "rows": [["FedAvg", "aca", "50"]]},
        {"source": "T2", "metrics": ["wlp"], "rows": [["FedAvg", "aca", "40"]], "round": "best by amp"},
    ]
    table = grid(["alpha"], [(["0.1"], [curve("FedAvg", tables, 0.5, 0.25)])])
    assert table.headings == ["alpha", "Method", "View", "AMP %", "paper", "WLP %", "paper"]
    assert table.body == [["0.1", "FedAvg", "ACA", "25.00", "50", "40.00", "40"]]


def test_each_figure_is_of_the_round_of_its_own_table() -> None:
    tables = [
        {"source": "T1", "metrics": ["amp"], "rows": [["FedAvg", "aca", "50"]]},
        {"source": "T2", "metrics": ["amp"], "rows": [["FedAvg", "oca", "60"]], "round": "best by amp"},
    ]
    table = grid(["alpha"], [(["0.1"], [curve("FedAvg", tables, 0.5, 0.25)])])
    assert table.headings == ["alpha", "FedAvg (ACA)", "paper", "FedAvg (OCA)", "paper"]
    assert table.body == [["0.1", "25.00", "50", "60.00", "60"]]
    assert table.notes == ["0.1: AMP %: last or best by amp"]


def test_a_mean_over_too_few_rounds_is_noted() -> None:
    table = grid(["n"], [(["2"], [curve("FedAvg", [], 0.25, 0.5)])], selection="mean of last 10")
    assert table.body == [["2", "37.50", "47.50"]]
    assert table.notes == ["2: FedAvg: the mean is over 2 rounds, all that were evaluated, and not over 10."]


def test_a_bar_in_a_heading_does_not_break_the_markdown() -> None:
    assert grid(["|D|"], [(["2"], [run("Local", 0, 0.5, [], 1.0)])]).markdown().splitlines()[2] == "| \\|D\\| | Local |"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ('"partition.alhpa" = 2.0', "partition has no key 'alhpa'; did you mean 'alpha'?"),
        ('"partition" = "classes"', "the partition 'classes' needs per_client; write partition.per_client=..."),
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
    assert (lines[0], lines[2]) == ("AMP %: last", "| alpha | Local, equal rounds | FedAvg (ACA) | FedAvg (OCA) |")
    assert len(lines) == 6
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["1", "9", "table.md"]
    assert "already finished" in capsys.readouterr().err


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


SMALL = """
    data = "tiny"
    model = "mlp"
    rounds = 3
    partition = { clients = 2, alpha = 1.0 }
    [methods.fedavg]
    [[axes]]
    name = "alpha"
    values = [{ label = "1", set = { "partition.alpha" = 1.0 } }, { label = "9", set = { "partition.alpha" = 9.0 } }]
"""
PUBLISHED = """
    [[published]]
    source = "Paper"
    round = "best by amp"
    metrics = ["amp", "wlp"]
    rows = [["FedAvg", "aca", "81.0", "70.0"]]
"""


def table_of(tmp_path: Path, text: str, *words: str) -> int:
    (tmp_path / "small.toml").write_text(text)
    with pytest.raises(SystemExit) as left:
        main(["table", str(tmp_path / "small.toml"), "--out", str(tmp_path / "out"), *words])
    return int(left.value.code or 0)


def test_the_command_reports_the_papers_round_or_the_selected_one(tmp_path: Path, capsys: Any) -> None:
    assert table_of(tmp_path, SMALL, "--select", "mean of last 2") == 0
    lines = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert lines[0] == "AMP %: mean of last 2"
    done = read(tmp_path / "out" / "1" / "fedavg-seed0")
    assert lines[4].split(" | ")[1] == f"{100 * done.series('aca', 'amp')[1][-2:].mean():.2f}"
    here = SMALL + PUBLISHED + "where = { 'partition.alpha' = 1.0 }\n"  # the finished runs are read again
    assert table_of(tmp_path, here, "--select", "mean of last 2") == 0
    lines = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert lines[0] == "Compared with Paper; ours: best by amp or mean of last 2"
    best = max(done.series("aca", "amp")[1])
    assert lines[4].startswith(f"| 1 | FedAvg | ACA | {100 * best:.2f} | 81.0 | ")


@pytest.mark.parametrize(
    ("text", "word", "sentence"),
    [
        (SMALL, "best on test", "--select is 'best on test'; did you mean 'best by test'?"),
        (SMALL, "best by validation", "partition.validation = 0.1"),
        (SMALL + PUBLISHED, "best by test", "has no effect, because every cell has a published table"),
    ],
)
def test_a_selection_that_cannot_work_is_refused_before_anything_runs(
    text: str, word: str, sentence: str, tmp_path: Path, capsys: Any
) -> None:
    assert table_of(tmp_path, text, "--select", word) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_method_that_no_axis_touches_runs_once_and_the_folder_can_be_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(
        """
        rounds = 1
        data = "tiny"
        model = "mlp"
        partition = {clients = 2, alpha = 5.0}
        [methods.fedavg]
        [methods.fedprox]
        [[axes]]
        name = "mu"
        values = [{label = "0", set = {"methods.fedprox.mu" = 0.0}}, {label = "9", set = {"methods.fedprox.mu" = 9.0}}]
        [[axes]]
        name = "lr"
        values = [{label = "slow", set = {"training.lr" = 0.01}}, {label = "fast", set = {"training.lr" = 0.1}}]
        """
    )
    words = ["table", str(file), "--seeds", "2", "--out", str(tmp_path / "out")]
    for _ in range(2):  # the second time, everything is there
        with pytest.raises(SystemExit) as end:
            main(words)
        assert end.value.code == 0
        made = sorted(str(one.parent.relative_to(tmp_path / "out")) for one in tmp_path.glob("out/**/run.json"))
        fedprox = [f"{cell}/fedprox-seed{s}" for cell in ("0-fast", "0-slow", "9-fast", "9-slow") for s in (0, 1)]
        assert made == sorted([f"0-{lr}/fedavg-seed{seed}" for lr in ("slow", "fast") for seed in (0, 1)] + fedprox)
    lines = [line.split("|")[1:-1] for line in (tmp_path / "out" / "table.md").read_text().splitlines() if "|" in line]
    cells = {tuple(text.strip() for text in line[:2]): [text.strip() for text in line[2:]] for line in lines[2:]}
    assert cells["0", "slow"][:2] == cells["9", "slow"][:2] != cells["0", "fast"][:2]  # FedAvg is in every cell
    assert all(len(cell) == len(cells["0", "slow"]) and MISSING not in cell for cell in cells.values())
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(["report", str(tmp_path / "out"), "--out", str(tmp_path / "report.html")])
    assert end.value.code == 0
    assert "FedProx, " in capsys.readouterr().out
