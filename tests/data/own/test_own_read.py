"""Own files that are sound: what is read, in which order, with which names."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for own_files, which is no test

from own_files import png, refused, savez, table, written

from fedalloy.data.own import Format, Wanted, read_own
from fedalloy.errors import DataError, UsageError

HERE = Path(__file__).parent / "hugging_face"
NORTH = "age,sex,ill\n61,f,yes\n47,m,no\n"


def test_a_folder_of_files_is_clients_in_natural_order(tmp_path: Path) -> None:
    for name, age in (("site10", 3), ("site2", 2), ("Site1", 1)):
        written(tmp_path / f"{name}.csv", f"age,ill\n{age},yes\n{age},no\n")
    written(tmp_path / ".hidden.csv", "x")
    written(tmp_path / "README.txt", "x")
    own = read_own(tmp_path, Wanted())
    assert own.client_names == ("Site1", "site2", "site10")
    assert own.client_ids is not None
    assert own.client_ids.tolist() == [0, 0, 1, 1, 2, 2]
    assert table(own) == [[1], [1], [2], [2], [3], [3]]
    assert own.y.tolist() == [1, 0] * 3


def test_columns_are_matched_by_name_and_categories_united(tmp_path: Path) -> None:
    written(tmp_path / "a.csv", NORTH)
    written(tmp_path / "b.csv", "ill,sex,age\nno,d,33\n")
    own = read_own(tmp_path, Wanted(categorical=("sex",)))
    assert own.format == Format(("age", "sex"), ("sex",), ("no", "yes"), "classes", (2, 1, 1))
    assert own.columns[1].categories == ("d", "f", "m")
    assert table(own) == [[61, 1], [47, 2], [33, 0]]
    refused(tmp_path, "'sex'", "'f'", 'data.categorical = ["sex"]', error=DataError)


def test_a_site_reads_its_file_as_agreed(tmp_path: Path) -> None:
    form = Format(("age", "sex"), ("sex",), ("no", "yes"), "classes", (2, 1, 1))
    own = read_own(written(tmp_path / "b.csv", "ill,sex,age\nno,d,33\n"), Wanted(), form)
    assert (table(own), own.y.tolist(), own.columns[1].categories, own.format) == ([[33, 0]], [0], ("d",), form)
    refused(written(tmp_path / "b.csv", "ill,sex,age\nmaybe,d,33\n"), "line 2", "'maybe'", "no, yes", agreed=form)
    refused(written(tmp_path / "b.csv", "ill,age\nno,33\n"), "'sex'", "data.drop", agreed=form)
    refused(written(tmp_path / "b.csv", "x,sex,age,ill\n1,d,33,no\n"), "'x'", "data.drop", agreed=form)
    refused(HERE / "images", agreed=form)


@pytest.mark.parametrize(
    ("labels", "names", "numbers"),
    [
        (["10", "9", "1"], ("1", "9", "10"), [2, 1, 0]),
        (["TRUE", "False", "true"], ("false", "true"), [1, 0, 1]),
        (["1.0", "2", "1"], ("1", "2"), [0, 1, 0]),
        (["b", " a", "a"], ("a", "b"), [1, 0, 0]),
    ],
)
def test_labels_of_any_kind(labels: list[str], names: tuple[str, ...], numbers: list[int], tmp_path: Path) -> None:
    rows = "".join(f"{k},{label}\n" for k, label in enumerate(labels))
    own = read_own(written(tmp_path / "a.csv", "x,y\n" + rows), Wanted())
    assert (own.format.label_names, own.y.tolist()) == (names, numbers)
    assert any(sentence.startswith(f"classes: 0 = {names[0]}") for sentence in own.said)


def test_names_and_classes_fix_the_numbers(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "x,y\n1,0\n2,2\n")
    assert read_own(file, Wanted()).y.tolist() == [0, 1]
    assert read_own(file, Wanted(classes=4)).y.tolist() == [0, 2]
    assert read_own(file, Wanted(names=("a", "b", "c"))).format.label_names == ("a", "b", "c")
    assert read_own(file, Wanted(names=("2", "0"))).y.tolist() == [1, 0]
    refused(file, "line 3", "'2'", classes=2)
    refused(file, classes=2, names=("a",), error=UsageError)
    refused(written(tmp_path / "b.csv", "x,y\n1,0\n2,0\n"), "'0'", classes=4)


def test_a_site_with_numbers_for_agreed_names(tmp_path: Path) -> None:
    form = Format(("0",), (), ("no", "yes"), "classes", (1, 1, 1))
    own = read_own(savez(tmp_path / "a.npz", x=np.ones((3, 1)), y=["no", "1", "yes"]), Wanted(), form)
    assert own.y.tolist() == [0, 1, 1]


def test_missing_values_are_kept_only_for_imputation(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "a,b,c,y\n1,?,f,0\nNA,2,None,1\n3,n/a,NULL,1\n")
    own = read_own(file, Wanted(impute="mean", categorical=("c",)))
    assert np.isnan(own.x[:, :, 0, 0]).tolist() == [[False, True, False], [True, False, True], [False, True, True]]
    assert "missing values in 3 rows: a (1), b (2) and c (2)" in own.said
    refused(file, "line 2", "'b'", "data.impute", categorical=("c",), error=DataError)
    refused(written(tmp_path / "a.csv", "a,y\n1,0\n2,\n3,1\n"), "line 3", "'y'", impute="mean")


def test_tasks_beyond_classes(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "x,p,q\n1,yes,0.5\n2,no,1\n")
    numbers = read_own(file, Wanted(label=("q",), drop=("p",), task="numbers"))
    assert (numbers.y.tolist(), numbers.y.dtype, numbers.format.label_names) == ([[0.5], [1.0]], np.float32, ("q",))
    assert read_own(file, Wanted(label="p", drop=("q",), task="labels")).y.tolist() == [[1.0], [0.0]]
    refused(file, "line 2", "'0.5'", label=("p", "q"), task="labels")
    refused(file, "data.task", label=("p", "q"), error=UsageError)
    arrays = savez(tmp_path / "a.npz", x=np.ones((2, 1)), y=np.array([[1, 0], [1, 1]]))
    assert read_own(arrays, Wanted(task="labels", names=("p", "q"))).format.label_names == ("p", "q")


def test_a_column_names_the_clients(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "where,x,y\nward 10,1,0\nward 2,2,1\n")
    own = read_own(file, Wanted(client="where"))
    assert own.client_names == ("ward 2", "ward 10")
    assert own.client_ids is not None
    assert own.client_ids.tolist() == [1, 0]
    assert own.format.columns == ("x",)
    written(tmp_path / "b.csv", "where,x,y\na,1,0\n")
    refused(tmp_path, "data.client", client="where", error=UsageError)


def test_a_list_names_the_clients(tmp_path: Path) -> None:
    a, b = written(tmp_path / "a.csv", NORTH), written(tmp_path / "b.csv", NORTH)
    own = read_own([("North clinic", a), ("South", b)], Wanted(drop=("sex",)))
    assert own.client_names == ("North clinic", "South")
    refused([("North", a), ("South", a)], "'North'", error=UsageError)
    refused([("North", a), ("North", b)], "'North'", error=UsageError)
    refused([("North", a), ("South", HERE / "images")], drop=("sex",))


def test_rows_that_look_numbered_are_pointed_out(tmp_path: Path) -> None:
    own = read_own(written(tmp_path / "a.csv", "patient_id,age,y\n7,3,0\n9,3,1\n"), Wanted())
    assert any("'patient_id'" in sentence and "data.drop" in sentence for sentence in own.said)
    assert own.format.columns == ("patient_id", "age")


def test_an_npz_file_keeps_its_parts_and_clients(tmp_path: Path) -> None:
    x = np.array([[200, 1], [100, 2], [0, 3]], np.uint8)
    arrays = {"x_train": x, "y_train": [1, 2, 1], "x_test": x[:2], "y_test": [2, 1], "columns": ["a", "b"]}
    file = savez(tmp_path / "a.npz", **arrays, client=[1, 0, 1], client_names=["z", "a"])
    own = read_own(file, Wanted(categorical=("b",)))
    assert (table(own), own.y.tolist()) == ([[200, 0], [100, 1], [0, 2]], [0, 1, 0])
    assert own.x_test is not None
    assert own.client_ids is not None
    assert (own.x_test.shape, own.client_ids.tolist(), own.client_names) == ((2, 2, 1, 1), [1, 0, 1], ("z", "a"))
    refused(savez(tmp_path / "b.npz", x=x, y=[0, 2, 0]), "data.classes = 3")


def test_clients_with_test_parts_of_their_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        savez(tmp_path / f"{name}.npz", x=np.ones((2, 1)), y=[0, 1], x_test=np.zeros((1, 1)), y_test=[1])
    own = read_own(tmp_path, Wanted())
    assert own.tests is not None
    assert own.tests.tolist() == [False, False, True] * 2
    savez(tmp_path / "b.npz", x=np.ones((2, 1)), y=[0, 1])
    refused(tmp_path, "a.npz", "b.npz")


def test_folders_of_images(tmp_path: Path) -> None:
    for client, mode in (("north", "L"), ("south", "RGB")):
        for split in ("train", "test"):
            for colour, label in ((0, "cat"), (255, "dog")):
                there = tmp_path / client / split / label / "0.png"
                written(there, png(colour if mode == "L" else (colour, 0, 0), mode=mode))
    own = read_own(tmp_path, Wanted())
    assert (own.x.shape, own.x.dtype, own.format.label_names) == ((8, 3, 4, 4), np.uint8, ("cat", "dog"))
    assert own.x[:, :, 0, 0].tolist() == [[0] * 3, [255] * 3] * 2 + [[0, 0, 0], [255, 0, 0]] * 2
    one = read_own(tmp_path / "north", Wanted(size=2))
    assert one.x_test is not None
    assert (one.x.shape, one.x_test.shape, one.client_ids) == ((2, 1, 2, 2), (2, 1, 2, 2), None)
    at_site = read_own(tmp_path / "north", Wanted(), own.format)
    assert at_site.x.shape == (2, 3, 4, 4)
    written(tmp_path / "north" / "train" / "cat" / "1.png", png(size=(5, 5)))
    refused(tmp_path, "data.size", error=DataError)


def test_hugging_face_folders() -> None:
    own = read_own(HERE / "patients", Wanted(categorical=("sex",), impute="median"))
    assert own.y.tolist() == [1, 0, 0, 1]
    assert own.format == Format(("age", "sex"), ("sex",), ("well", "ill"), "classes", (2, 1, 1))
    assert np.nan_to_num(own.x[:, :, 0, 0], nan=-1).tolist() == [[61, 0], [47.5, 1], [-1, 0], [33, -1]]
    assert own.x_test is not None
    assert own.x_test[:, :, 0, 0].tolist() == [[58, 1], [29, 0]]
    refused(HERE / "patients", "'sex'", impute="median")
    images = read_own(HERE / "images", Wanted())
    assert images.x[:, 0, 0, 0].tolist() == [0, 50, 100]
    assert (images.y.tolist(), images.format.label_names) == ([0, 2, 0], ("cat", "cow", "dog"))


def test_parquet_says_the_same_as_csv(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"age": [61, None], "grade": [1.0, 2.0], "sex": ["f", None], "old": [True, False], "ill": ["yes", "no"]}
    parquet.write_table(arrow.table(columns), tmp_path / "a.parquet")
    text = written(tmp_path / "a.csv", "age,grade,sex,old,ill\n61,1,f,True,yes\n,2.0,,False,no\n")
    wanted = Wanted(categorical=("sex", "grade"), impute="mean")
    one, other = read_own(tmp_path / "a.parquet", wanted), read_own(text, wanted)
    np.testing.assert_array_equal(one.x, other.x)
    assert (one.columns, one.format, one.y.tolist()) == (other.columns, other.format, other.y.tolist())
    refused(tmp_path / "a.parquet", "row 1", "'age'", categorical=("sex",))
    refused(tmp_path / "a.parquet", "row 0", "'sex'", "'f'", impute="mean")


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    refused(written(tmp_path / "a.parquet", "PAR1"), '".[files]"', error=UsageError)
