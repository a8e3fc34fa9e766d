"""Own files that are wrong: each is refused in one sentence that says where."""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
import time
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))  # for own_files, which is no test

from own_files import png, refused, savez, table, written

from fedalloy.data.columns import Recipe, agree, summarise
from fedalloy.data.own import Wanted, read_own
from fedalloy.data.own.dataset import own_dataset
from fedalloy.errors import DataError, SecurityError, UsageError

HERE = Path(__file__).parent / "hugging_face"


def header(shape: str, kind: str = "<f4") -> bytes:
    """The beginning of an .npy file that claims this shape."""
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("a,b,y\n1,2,0\n3,,1\n", ["line 3", "'b'"]),
        ("a,b,y\n1,2,0\n3,nan,1\n", ["line 3", "'b'"]),
        ("a,b,y\n1,2,0\n3,inf,1\n", ["line 3", "'b'", "inf"]),
        ("a,b,y\n1,2,0\n3,1e300,1\n", ["line 3", "'b'", "1e300"]),
        ("a,b,y\n1,2,0\n3,x,1\n", ["line 3", "'b'", "'x'"]),
        ("a,b,y\n1,2,0\n3,1_000,1\n", ["line 3", "'b'"]),
        ('a,b,y\n"1\n",2,0\n3,4\n', ["line 4"]),
        ('"a\n",b,y\n1,2,0\n3,4\n', ["line 4"]),
        ("a,b,y\n1,2,0\n3,4,\n", ["line 3", "'y'"]),
        ("a;b;y\n1;2;0\n3;4;1\n", ["semicolon"]),
        ("a\tb\ty\n1\t2\t0\n3\t4\t1\n", ["tab"]),
        ("", ["empty"]),
        ("a,b,y\n", ["no rows"]),
        ("a,b,y\n1," + "2" * 200_000 + ",0\n", ["line 2"]),
        ("a,b,y\n1,2," + "x" * 100_000 + "\n", ["line 2"]),
        ("a,b,y\n1,2,0\n3,4,0\n", ["'0'"]),
        ("age,age,y\n1,0,1\n2,1,0\n", ["'age'"]),
        (",age,y\n1,0,1\n2,1,0\n", ["column 1"]),
        ("y\n1\n2\n", ["'y'"]),
        ("x,y\n" + "".join(f"1,{k}.5\n" for k in range(50)), ['data.task = "numbers"']),
        (b"a,b,y\n1,\xff\xfe,0\n", ["UTF-8"]),
        ("a,b,y\n1,2,0\n".encode("utf-16"), ["UTF-8"]),
        (b"a,b,y\n1,\0,0\n", ["line 2"]),
        ('a,b,y\n1,2,0\n3,"4,1\n5,6,0\n', ["line 4"]),
        ('a,b,y\n1,2,0\n3,"4"5,1\n', ["line 3"]),
    ],
    ids=range(25),
)
def test_a_csv_file_is_refused_with_its_place(content: bytes | str, named: list[str], tmp_path: Path) -> None:
    refused(written(tmp_path / "a.csv", content), "a.csv", *named, error=DataError)


@pytest.mark.parametrize("known", [["f", "m"], ["f", "m", "F "], ["1.0", "f", "m"]])
def test_a_category_that_the_experiment_does_not_name_is_no_row_of_zeros(known: list[str], tmp_path: Path) -> None:
    (tmp_path / "north.csv").write_text("sex,ill\nf,y\nm,n\n")
    (tmp_path / "south.csv").write_text("sex,ill\nf,y\nF,n\n")
    with pytest.raises(DataError, match=r"'sex' of south .*'F'"):
        own_dataset(tmp_path, categories={"sex": known})
    held = own_dataset(tmp_path, categories={"sex": ["f", "m", "F", "x"]})  # some may have no rows
    assert held.prepared(agree([], held.columns, Recipe(categories={"sex": ("f", "m", "F", "x")}))).x.sum() == 4


def test_a_quote_that_is_never_closed_costs_no_rows_in_silence(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('age,ill,note\n61,y,k\n47,n,k\n33,y,"oops\n52,n,k\n58,y,k\n')
    with pytest.raises(DataError, match="line 6"):
        read_own(tmp_path / "a.csv", Wanted(label="ill", drop=("note",)))


def test_the_time_for_many_columns_grows_with_their_number(tmp_path: Path) -> None:
    def seconds(columns: int) -> float:
        names = [f"gene{k}" for k in range(columns)]
        (tmp_path / "a.csv").write_text(f"{','.join(names)},ill\n" + f"{'1,' * columns}y\n{'2,' * columns}n\n")
        own = read_own(tmp_path / "a.csv", Wanted())
        start = time.process_time()
        again = read_own(tmp_path / "a.csv", Wanted(), own.format)
        agree([summarise(again.x, again.columns, Recipe())] * 2, again.columns, Recipe())
        return time.process_time() - start

    assert seconds(24_000) < 18 * seconds(4_000)  # six times as many; each with each other would be 36 times the work


def test_what_spreadsheets_add_does_no_harm(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", b"\xef\xbb\xbfy,a,b\r\nno,1,2\r\nyes,3,4\r\n\r\n")
    own = read_own(file, Wanted(label="y"))
    assert (table(own), own.y.tolist()) == ([[1, 2], [3, 4]], [0, 1])


@pytest.mark.parametrize(
    "wanted",
    [{"label": "z"}, {"drop": ("z",)}, {"client": "z"}, {"categorical": ("z",)}, {"label": "a", "drop": ("a",)}],
)
def test_a_key_that_names_no_column_is_refused(wanted: dict[str, Any], tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "a,b,y\n1,2,0\n3,4,1\n")
    refused(file, "'a'" if wanted.get("drop") == ("a",) else "'z'", **wanted)


def test_files_must_have_the_same_columns(tmp_path: Path) -> None:
    written(tmp_path / "a.csv", "age,chol,y\n1,2,0\n3,4,1\n")
    written(tmp_path / "b.csv", "age,y\n1,0\n")
    refused(tmp_path, "b.csv", "a.csv", "'chol'", 'data.drop = ["chol"]', error=DataError)
    assert read_own(tmp_path, Wanted(drop=("chol",))).format.columns == ("age",)
    written(tmp_path / "b.csv", "age,bmi,chol,y\n1,2,3,0\n")
    refused(tmp_path, "b.csv", "'bmi'", 'data.drop = ["bmi"]', error=DataError)
    written(tmp_path / "b.csv", "age,chol,ill\n1,2,0\n")
    refused(tmp_path, "b.csv", "'y'", "data.label", error=DataError)


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        ("absent,present", "1,2", ["'absent'", "'1'", 'data.names = ["1", "2", "absent", "present"]']),
        ("n,y", "n,Y", ["'y'", "'Y'", 'data.names = ["Y", "n", "y"]']),
        ("no,yes", "No,YES", ["'no'", "'No'"]),
        ("absent,absent", "1,1", ["'absent'", "'1'"]),
    ],
)
def test_files_that_write_the_same_classes_differently_are_refused(
    first: str, second: str, named: list[str], tmp_path: Path
) -> None:
    both = {"a.csv": first.split(","), "b.csv": second.split(",")}
    for name, labels in both.items():
        written(tmp_path / name, "age,y\n" + "".join(f"{k},{label}\n" for k, label in enumerate(labels)))
    refused(tmp_path, "a.csv", "b.csv", *named, error=DataError)
    meant = tuple(sorted({*first.split(","), *second.split(",")}))
    assert read_own(tmp_path, Wanted(names=meant)).format.label_names == meant


def test_a_file_that_has_both_ways_of_writing_means_both(tmp_path: Path) -> None:
    written(tmp_path / "a.csv", "age,y\n1,u\n2,U\n3,7\n")
    written(tmp_path / "b.csv", "age,y\n1,U\n2,7\n")
    assert read_own(tmp_path, Wanted()).format.label_names == ("7", "U", "u")


@pytest.mark.parametrize("other", ["b.npz", "b.xlsx", "b.tsv", "folder/x.png"])
def test_a_mixture_of_kinds_is_refused(other: str, tmp_path: Path) -> None:
    written(tmp_path / "a.csv", "a,y\n1,0\n2,1\n")
    written(tmp_path / other, b"x")
    refused(tmp_path, error=DataError)


def test_folders_that_hold_nothing_readable_are_refused(tmp_path: Path) -> None:
    refused(tmp_path, error=DataError)
    refused(tmp_path / "nothing.csv", "nothing.csv", error=DataError)
    refused(Path("n" * 5000 + ".npz"), error=DataError)
    refused([], error=UsageError)
    refused(written(tmp_path / "images" / "0.png", png()).parent, "class", error=DataError)
    refused(written(tmp_path / "data.xlsx", "x"), "data.xlsx", error=DataError)


@pytest.mark.parametrize("name", ["a.npz", "a.csv", "a.parquet"])
def test_a_pipe_is_refused_at_once(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    refused(tmp_path / name, name)
    refused(tmp_path, name)


def test_an_npz_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    whole = savez(tmp_path / "a.npz", x_train=np.zeros((4, 2), np.float32), y_train=[0, 1, 0, 1]).read_bytes()
    for end in range(0, len(whole), 37):
        refused(written(tmp_path / "a.npz", whole[:end]), "a.npz")


@pytest.mark.parametrize("shape", [(), (4,), (0, 2), (4, 0), (1, 2, 3, 4, 5)])
def test_an_npz_array_of_a_strange_shape_is_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    refused(savez(tmp_path / "a.npz", x=np.zeros(shape, np.float32), y=[0, 1, 0, 1]), "a.npz", error=DataError)


@pytest.mark.parametrize("shape", ["(1000000000000, 2)", "(9223372036854775807, 2)", "(-1, 2)", "(2, 'a')", "[" * 500])
def test_an_npz_array_that_claims_too_much_is_refused(shape: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", header(shape) + bytes(32))
        archive.writestr("y.npy", header("(4,)", "<i8") + bytes(32))
    refused(tmp_path / "a.npz", "a.npz", error=DataError)


def test_an_npz_file_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = savez(tmp_path / "a.npz", x=np.zeros((1000, 2), np.float32), y=np.zeros(1000, np.int64))
    monkeypatch.setattr("fedalloy.data.readers.memory", lambda: 10_000)
    refused(file, "16", error=DataError)


def test_a_parquet_file_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"a": np.zeros(10_000), "y": np.arange(10_000) % 2}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 160_000
    monkeypatch.setattr("fedalloy.data.own.arrow.memory", lambda: 100_000)
    refused(tmp_path / "a.parquet", "160,000", error=DataError)


def test_objects_and_texts_in_an_npz_file_are_refused(tmp_path: Path) -> None:
    refused(savez(tmp_path / "a.npz", x=np.array([{}], object), y=[0]), error=SecurityError)
    refused(written(tmp_path / "a.npz", b"\x80\x04K\x01."), error=SecurityError)
    refused(savez(tmp_path / "a.npz", x=np.array([["1", "2"]] * 4), y=[0, 1, 0, 1]), error=DataError)
    refused(savez(tmp_path / "a.npz", x=np.zeros((4, 2), complex), y=[0, 1, 0, 1]), error=DataError)
    refused(savez(tmp_path / "a.npz", x=np.zeros((4, 2)), y=np.array([b"no"] * 4)), error=DataError)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_a_value_that_is_not_finite_is_refused_with_its_place(value: float, tmp_path: Path) -> None:
    x = np.zeros((4, 2))
    x[2, 1] = value
    refused(savez(tmp_path / "a.npz", x=x, y=[0, 1, 0, 1]), "row 2", "'1'", error=DataError)
    images = np.zeros((4, 2, 2))
    images[2, 1, 1] = value
    refused(savez(tmp_path / "a.npz", x=images, y=[0, 1, 0, 1]), "row 2", error=DataError)


def claiming(width: int, height: int) -> bytes:
    """A small PNG file that claims to be this large."""
    whole = png()
    head = struct.pack(">II", width, height) + whole[24:29]
    return whole[:16] + head + struct.pack(">I", zlib.crc32(b"IHDR" + head)) + whole[33:]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not an image",
        png()[:40],
        png()[:36] + b"\xff" * 8 + png()[44:],
        claiming(60_000, 60_000),
        claiming(0, 4),
        claiming(2**31 - 1, 2**31 - 1),
        png(mode="I;16"),
    ],
    ids=range(8),
)
def test_an_image_that_cannot_be_read_is_named(content: bytes, tmp_path: Path) -> None:
    for label in ("no", "yes"):
        written(tmp_path / "own" / label / "0.png", png())
    written(tmp_path / "own" / "yes" / "1.png", content)
    refused(tmp_path / "own", "1.png", error=DataError)


def test_images_at_different_depths_are_refused(tmp_path: Path) -> None:
    written(tmp_path / "cat" / "0.png", png())
    written(tmp_path / "north" / "cat" / "0.png", png())
    refused(tmp_path, "north", error=DataError)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("state.json", "data-00000", "../data-00000"),
        ("state.json", "data-00000", "data-00001"),
        ("state.json", "{", "["),
        ("dataset_info.json", '"cow"', '"cat"'),
        ("dataset_info.json", '"features"', '"figures"'),
        ("dataset_info.json", ',\n        "dog"', ""),
    ],
)
def test_a_hugging_face_folder_that_lies_is_refused(file: str, old: str, new: str, tmp_path: Path) -> None:
    shutil.copytree(HERE / "images", tmp_path / "own")
    text = (tmp_path / "own" / file).read_text()
    assert old in text
    (tmp_path / "own" / file).write_text(text.replace(old, new))
    refused(tmp_path / "own", "own", error=DataError)


def test_all_columns_of_words_are_named_at_once_but_not_a_slip(tmp_path: Path) -> None:
    rows = "".join(f"{k},{'mf'[k % 2]},{['low', 'high'][k % 2]},{k},{'ny'[k % 2]}\n" for k in range(9))
    file = written(tmp_path / "a.csv", f"age,sex,pain,chol,y\n{rows}7,m,low,1O,n\n")
    refused(file, "line 2", "'sex'", 'data.categorical = ["sex", "pain"]', 'data.drop = ["sex", "pain"]')
    refused(file, "line 11", "'chol'", "'1O'", 'data.drop = ["chol"]', categorical=("sex", "pain"))


def test_a_line_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    rows = "".join(f"{k},{'ny'[k % 2]}\n" for k in range(30))
    refused(written(tmp_path / "a.csv", b"age,y\n" + rows.encode() + b"7,j\xe4\n"), "line 32", "UTF-8", error=DataError)


def test_a_folder_without_data_says_what_it_has(tmp_path: Path) -> None:
    refused(tmp_path, "empty", error=DataError)
    written(tmp_path / "north.xlsx", "x")
    refused(tmp_path, "north.xlsx", error=DataError)


@pytest.mark.parametrize("wanted", [{"categorical": ("ward",), "impute": "most_frequent"}, {}])
def test_a_code_in_an_arrow_stream_that_stands_for_nothing_is_no_missing_value(
    wanted: dict[str, Any], tmp_path: Path
) -> None:
    arrow, ipc = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.ipc")
    codes = arrow.array([0, 1, 2, 0], arrow.int8())
    names = ["1", "2"] if wanted else [1.5, 2.5]
    ward = arrow.DictionaryArray.from_arrays(codes, arrow.array(names), safe=False)
    table = arrow.table({"ward": ward, "ill": ["y", "n", "y", "n"]})
    with ipc.new_stream(str(written(tmp_path / "own" / "data.arrow", "")), table.schema) as stream:
        stream.write_table(table)
    written(tmp_path / "own" / "state.json", json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    features = {"ward": {"_type": "Value"}, "ill": {"_type": "Value"}}
    written(tmp_path / "own" / "dataset_info.json", json.dumps({"features": features}))
    refused(tmp_path / "own", "own", error=DataError, **wanted)


def test_a_hugging_face_folder_does_not_name_files_elsewhere(tmp_path: Path) -> None:
    shutil.copytree(HERE / "images", tmp_path / "own")
    (stream,) = (tmp_path / "own").glob("*.arrow")
    shutil.move(stream, tmp_path / stream.name)
    state = tmp_path / "own" / "state.json"
    state.write_text(state.read_text().replace(stream.name, f"../{stream.name}"))
    refused(tmp_path / "own", "state.json", error=DataError)


def test_a_pipe_among_images_is_not_read(tmp_path: Path) -> None:
    written(tmp_path / "cat" / "0.png", png())
    written(tmp_path / "dog" / "0.png", png())
    os.mkfifo(tmp_path / "dog" / "1.png")
    handle = os.open(tmp_path / "dog" / "1.png", os.O_RDWR)  # or a reader would wait for a writer
    os.write(handle, png())
    try:
        refused(tmp_path, "1.png", "not a file", error=DataError)
    finally:
        os.close(handle)


def test_an_image_of_another_format_is_refused_whatever_its_name(tmp_path: Path) -> None:
    written(tmp_path / "cat" / "0.png", png())
    (tmp_path / "dog").mkdir()
    Image.new("L", (4, 4)).save(tmp_path / "dog" / "0.png", "GIF")
    refused(tmp_path, "0.png", error=DataError)


def test_an_image_with_far_too_many_pixels_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 15)
    written(tmp_path / "cat" / "0.png", png())
    written(tmp_path / "dog" / "0.png", png())
    refused(tmp_path, "0.png", error=DataError)
