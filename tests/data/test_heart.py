"""The four hospitals of Heart Disease: the publisher's files, the compact copies, and FLamby's selection."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from fedalloy.data import fetch as fetching
from fedalloy.data import files
from fedalloy.data.columns import Recipe, agree, summarise
from fedalloy.data.heart import CATEGORICAL, COLUMNS, HOSPITALS, as_table, find_heart, read_heart
from fedalloy.errors import DataError, UsageError

real = pytest.mark.skipif("FEDALLOY_DATA" not in os.environ, reason="FEDALLOY_DATA names no folder")

# A few patients as the publisher writes them: each hospital has its own way to write numbers.
PUBLISHED = {
    "processed.cleveland.data": (
        "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0\n"
        "52.0,1.0,3.0,138.0,223.0,0.0,0.0,169.0,0.0,0.0,1.0,?,3.0,2\n"
    ),
    "processed.hungarian.data": "28,1,2,130,132,0,2,185,0,0,?,?,?,0\n48,0,4,150,-9,0,0,130,1,2,2,-9,-9,1\n",
    "processed.switzerland.data": "36,1,4,110,0,0,0,125,1,-1.5,2,?,6,1\n34,1,4,115,0,?,?,154,0,.2,1,?,?,3\n",
    "processed.va.data": "55,1,3,0,0,0,0,155,0,1.5,2,?,?,3\n63,1,4,140,260,0,1,112,1,3,2,?,?,4\n",
}
MISSING = float("nan")


@pytest.fixture
def published(tmp_path: Path) -> list[Path]:
    for name, text in PUBLISHED.items():
        (tmp_path / name).write_text(text)
    return [tmp_path / name for name in PUBLISHED]


@pytest.fixture
def shared() -> list[Path]:
    return [Path(os.environ["FEDALLOY_DATA"]) / file.home / file.name for file in files.COMPACT_HEART]


def test_the_publishers_files_become_rows(published: list[Path]) -> None:
    patients = read_heart(published)
    assert patients.columns == COLUMNS
    assert patients.client_names == HOSPITALS == ("Cleveland", "Hungary", "Switzerland", "Long Beach")
    assert patients.x.shape == (8, 13)
    assert patients.x.dtype == np.float32
    assert patients.client_ids.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert patients.y.tolist() == [0, 1, 0, 1, 1, 1, 1, 1]  # num is 0 to 4; any narrowing is a 1
    assert patients.y.dtype == np.int64
    assert patients.test is None
    expected = [63, 1, 1, 145, 233, 1, 2, 150, 0, 2.3, 3, 0, 6]
    np.testing.assert_array_equal(patients.x[0], np.array(expected, np.float32))
    swiss = [34, 1, 4, 115, MISSING, MISSING, MISSING, 154, 0, 0.2, 1, MISSING, MISSING]
    np.testing.assert_array_equal(patients.x[5], np.array(swiss, np.float32))
    assert patients.x[4, COLUMNS.index("oldpeak")] == -1.5  # negative, but measured


def test_question_marks_minus_nine_and_impossible_zeros_are_missing(published: list[Path]) -> None:
    x = read_heart(published).x
    missing = {(row, COLUMNS[column]) for row, column in np.argwhere(np.isnan(x))}
    hungary = {(2, "slope"), (2, "ca"), (2, "thal"), (3, "chol"), (3, "ca"), (3, "thal")}
    swiss = {(4, "chol"), (4, "ca"), *((5, c) for c in ("chol", "fbs", "restecg", "ca", "thal"))}
    beach = {(6, "trestbps"), (6, "chol"), (6, "ca"), (6, "thal"), (7, "ca"), (7, "thal")}
    assert missing == {(1, "ca")} | hungary | swiss | beach


def test_a_copy_with_a_header_and_empty_cells_is_the_same(published: list[Path], tmp_path: Path) -> None:
    header = ",".join((*COLUMNS, "num"))
    copies = []
    for path in published:
        copies.append(tmp_path / f"{path.stem}.csv")
        cells = [line.split(",") for line in path.read_text().splitlines()]
        lines = [",".join("" if cell in ("?", "-9") else cell for cell in row) for row in cells]
        copies[-1].write_text("\n".join([header, *lines, ""]))
    ours, theirs = read_heart(copies), read_heart(published)
    np.testing.assert_array_equal(ours.x, theirs.x)
    np.testing.assert_array_equal(ours.y, theirs.y)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("63,1,1,145,233,1,2,150,0,2.3,3,0,6", ["line 3", "13"]),
        ("63,1,9,145,233,1,2,150,0,2.3,3,0,6,0", ["line 3", "cp", "9"]),
        ("63,2,1,145,233,1,2,150,0,2.3,3,0,6,0", ["line 3", "sex", "2"]),
        ("63,1,1,145,many,1,2,150,0,2.3,3,0,6,0", ["line 3", "chol", "many"]),
        ("63,1,1,145,inf,1,2,150,0,2.3,3,0,6,0", ["line 3", "chol", "inf"]),
        ("63,1,1,145,nan,1,2,150,0,2.3,3,0,6,0", ["line 3", "chol", "nan"]),
        ("63,1,1,145,233,1,2,150,0,2.3,3,0,6,?", ["line 3", "num", "?"]),
        ("63,1,1,145,233,1,2,150,0,2.3,3,0,6,5", ["line 3", "num", "5"]),
    ],
)
def test_a_wrong_line_is_named(published: list[Path], line: str, names: list[str]) -> None:
    published[1].write_text(published[1].read_text() + line + "\n")
    with pytest.raises(DataError) as caught:
        read_heart(published)
    assert all(name in str(caught.value) for name in [published[1].name, *names])


def test_a_file_of_another_kind_is_refused(published: list[Path]) -> None:
    published[2].write_bytes(b"PK\x03\x04\xff\xfe")
    with pytest.raises(DataError, match=published[2].name):
        read_heart(published)
    published[2].write_text("")
    with pytest.raises(DataError, match=published[2].name):
        read_heart(published)
    with pytest.raises(DataError, match="3"):
        read_heart(published[:3])


def test_another_selection_is_refused(published: list[Path]) -> None:
    with pytest.raises(UsageError, match=r"keep.*'some'.*flamby"):
        read_heart(published, keep="some")  # type: ignore[arg-type]


def test_flambys_test_rows_belong_to_the_published_files_only(published: list[Path]) -> None:
    with pytest.raises(DataError, match=r"(?s)flamby.*Cleveland.*303"):
        read_heart(published, keep="flamby")


def test_as_a_table_categories_are_codes(published: list[Path]) -> None:
    patients = read_heart(published)
    x, columns = as_table(patients)
    assert [c.name for c in columns] == list(COLUMNS)
    assert {c.name for c in columns if c.categories is not None} == set(CATEGORICAL)
    thal = columns[COLUMNS.index("thal")]
    assert thal.categories == ("3", "6", "7")
    assert x[:2, COLUMNS.index("thal")].tolist() == [1.0, 0.0]  # 6 and 3
    np.testing.assert_array_equal(np.isnan(x), np.isnan(patients.x))
    numbers = [place for place, c in enumerate(columns) if c.categories is None]
    np.testing.assert_array_equal(x[:, numbers], patients.x[:, numbers])

    # What the four hospitals tell is enough to prepare all rows.
    recipe = Recipe(impute="median")
    told = [summarise(x[patients.client_ids == hospital], columns, recipe) for hospital in range(4)]
    ready = agree(told, columns, recipe)
    assert np.isfinite(ready.apply(x, columns)).all()
    assert {"thal=3", "thal=6", "cp=4", "age"} <= set(ready.inputs)


@real
def test_the_compact_copies_hold_all_patients(shared: list[Path]) -> None:
    patients = read_heart(shared)
    assert np.bincount(patients.client_ids).tolist() == [303, 294, 123, 200]
    assert [int(patients.y[patients.client_ids == h].sum()) for h in range(4)] == [139, 106, 115, 149]
    chol = np.isnan(patients.x[:, COLUMNS.index("chol")])
    assert [int(chol[patients.client_ids == h].sum()) for h in range(4)] == [0, 23, 123, 56]


@real
def test_flamby_keeps_740_patients_and_ten_columns(shared: list[Path]) -> None:
    patients = read_heart(shared, keep="flamby")
    assert np.bincount(patients.client_ids).tolist() == [303, 261, 46, 130]
    assert patients.columns == COLUMNS[:10]
    assert not np.isnan(patients.x).any()
    assert (patients.x[patients.client_ids == 2, COLUMNS.index("chol")] == 0).all()  # FLamby leaves zeros as they are
    assert patients.test is not None
    sizes = [(int((~t).sum()), int(t.sum())) for t in (patients.test[patients.client_ids == h] for h in range(4))]
    assert sizes == [(199, 104), (172, 89), (30, 16), (85, 45)]  # as in FLamby's README
    for hospital in (0, 1, 3):  # the split is stratified, except in Switzerland, where one patient has no disease
        own = patients.client_ids == hospital
        shares = [patients.y[own & part].mean() for part in (patients.test, ~patients.test)]
        assert abs(shares[0] - shares[1]) < 0.01


@real
def test_the_compact_copies_are_the_published_bytes_in_another_form(shared: list[Path]) -> None:
    def cleveland(cells: list[str]) -> list[str]:
        return [cell and f"{float(cell):.1f}" for cell in cells[:-1]] + cells[-1:]

    def swiss(cells: list[str]) -> list[str]:
        return [cell.replace("0.", ".") if cell.startswith(("0.", "-0.")) else cell for cell in cells]

    for file, path, write in zip(files.HEART, shared, (cleveland, list, swiss, list), strict=True):
        rows = [write(line.split(",")) for line in path.read_text().splitlines()[1:]]
        text = "".join(",".join(cell or "?" for cell in row) + "\n" for row in rows)
        assert f"sha256:{hashlib.sha256(text.encode()).hexdigest()}" == file.hash


@real
def test_the_compact_copies_are_found(shared: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fetching, "cache_folder", lambda: tmp_path)
    assert find_heart() == shared


@pytest.fixture
def publisher(published: list[Path]) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(published[0].parent))  # type: ignore[arg-type]

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
        httpd.shutdown()
        thread.join()


def test_files_that_are_nowhere_are_downloaded_and_checked(
    publisher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDALLOY_DATA", raising=False)
    monkeypatch.setattr(fetching, "cache_folder", lambda: tmp_path / "cache")
    here = tuple(
        replace(
            file,
            urls=(f"{publisher}/{file.name}",),
            hash="sha256:" + hashlib.sha256(PUBLISHED[file.name].encode()).hexdigest(),
        )
        for file in files.HEART
    )
    monkeypatch.setattr(files, "HEART", here)
    paths = find_heart()
    assert [path.name for path in paths] == list(PUBLISHED)
    assert len(read_heart(paths).y) == 8

    changed = replace(here[3], hash="sha256:" + "0" * 64)
    paths[3].unlink()
    monkeypatch.setattr(files, "HEART", (*here[:3], changed))
    with pytest.raises(DataError, match=r"processed\.va\.data"):
        find_heart()
