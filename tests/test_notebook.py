"""The notebook runs from beginning to end: its code cells in order, as a kernel would run them, without Jupyter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

NOTEBOOK = Path(__file__).parents[1] / "examples" / "notebook.ipynb"

# What a kernel does: one namespace for all cells; the value of a last expression is shown by its richest form.
RUNNER = """
import ast, json, sys
cells = json.load(open(sys.argv[1], encoding="utf-8"))["cells"]
space = {"__name__": "__main__"}
for cell in (each for each in cells if each["cell_type"] == "code"):
    tree = ast.parse("".join(cell["source"]))
    last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, cell["id"], "exec"), space)
    value = eval(compile(last, cell["id"], "eval"), space) if last else None
    if value is not None:
        print(cell["id"], "shows", len((getattr(value, "_repr_html_", None) or value.__repr__)()))
"""


def test_the_notebook_runs(tmp_path: Path) -> None:
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    command = [sys.executable, "-c", RUNNER, str(NOTEBOOK)]
    done = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = dict(line.split(" shows ") for line in done.stdout.splitlines() if " shows " in line)
    assert {"table", "frame", "plot"} <= shown.keys()
    assert all(int(length) > 100 for length in shown.values())
    assert "Halfway" in (tmp_path / "notebook-table.tex").read_text(encoding="utf-8")
    assert "\\toprule" in (tmp_path / "notebook-table.tex").read_text(encoding="utf-8")
    assert (tmp_path / "notebook-report.html").is_file()
    assert (tmp_path / "notebook-curves.svg").is_file()


def test_the_notebook_is_saved_without_results() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert len({cell["id"] for cell in cells}) == len(cells)
