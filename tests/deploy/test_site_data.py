"""A site's own files, right and wrong: what is read is sound, and what is not is refused in one sentence."""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedalloy.config.experiment import experiment
from fedalloy.data.samples import Dataset
from fedalloy.deploy.agreed import frame
from fedalloy.deploy.site_data import read_samples
from fedalloy.errors import DataError, SecurityError

IMAGES = {"name": "sites", "classes": 2, "channels": 1, "size": 4, "mean": [0.5], "std": [0.25], "names": ["no", "yes"]}
TABLE = {
    "name": "sites",
    "classes": 2,
    "channels": 2,
    "mean": [0.0, 0.0],
    "std": [1.0, 1.0],
    "names": ["no", "yes"],
}


def agreed(**values: Any) -> Dataset:
    return frame(experiment({"data": values}).data)


def refused(path: Path, *, image: bool = False, label: str | None = None) -> str:
    """The one sentence with which a path is refused."""
    with pytest.raises(DataError) as caught:
        read_samples(path, agreed(**(IMAGES if image else TABLE)), label=label, size=4 if image else None)
    sentence = str(caught.value)
    assert sentence.isprintable()
    assert path.name in sentence
    assert len(sentence) < 800
    return sentence


def savez(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def written(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def header(shape: str, kind: str = "<f4") -> bytes:
    """The beginning of an .npy file that claims this shape."""
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def zipped(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return path


# --- .npz -------------------------------------------------------------------------------------------------------------


def test_an_npz_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    whole = savez(tmp_path / "a.npz", x_train=np.zeros((4, 2), np.float32), y_train=[0, 1, 0, 1]).read_bytes()
    for end in range(2, len(whole), 37):
        refused(written(tmp_path / "a.npz", whole[:end]))


@pytest.mark.parametrize("shape", [(), (4,), (0, 2), (4, 0), (1, 2, 3, 4, 5)])
def test_an_npz_array_of_a_strange_shape_is_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    refused(savez(tmp_path / "a.npz", x_train=np.zeros(shape, np.float32), y_train=[0, 1, 0, 1]))


@pytest.mark.parametrize("shape", ["(1000000000000, 2)", "(9223372036854775807, 2)", "(-1, 2)", "(2, 'a')", "[" * 500])
def test_an_npz_array_that_claims_too_much_is_refused(shape: str, tmp_path: Path) -> None:
    refused(zipped(tmp_path / "a.npz", x_train=header(shape) + bytes(32), y_train=header("(4,)", "<i8") + bytes(32)))


def test_an_npz_file_that_would_fill_the_memory_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = savez(tmp_path / "a.npz", x_train=np.zeros((1000, 2), np.float32), y_train=np.zeros(1000, np.int64))
    monkeypatch.setattr("fedalloy.data.readers.memory", lambda: 10_000)
    assert "16" in refused(file)  # kB


def test_objects_and_texts_in_an_npz_file_are_refused(tmp_path: Path) -> None:
    file = savez(tmp_path / "a.npz", x_train=np.array([{}], object), y_train=[0])
    with pytest.raises(SecurityError):
        read_samples(file, agreed(**TABLE))
    refused(savez(tmp_path / "a.npz", x_train=np.array([["1", "2"]] * 4), y_train=[0, 1, 0, 1]))
    refused(savez(tmp_path / "a.npz", x_train=np.zeros((4, 2), complex), y_train=[0, 1, 0, 1]))
    refused(savez(tmp_path / "a.npz", x_train=np.zeros((4, 2)), y_train=np.array([b"no"] * 4)))


def test_a_value_that_is_not_finite_is_refused_with_its_row_and_column(tmp_path: Path) -> None:
    for value in (np.nan, np.inf, 1e300):  # the last is infinite as float32
        x = np.zeros((4, 2))
        x[2, 1] = value
        sentence = refused(savez(tmp_path / "a.npz", x_train=x, y_train=[0, 1, 0, 1]))
        assert "row 2" in sentence
        assert "column 1" in sentence


@pytest.mark.parametrize(
    "labels", [[0, 1, 2, 1], [1, 2, 1, 2], [0, -1, 0, 1], [0, 1.5, 0, 1], ["no", "yes", "x", "no"]]
)
def test_a_label_that_is_no_agreed_class_is_refused(labels: list[Any], tmp_path: Path) -> None:
    refused(savez(tmp_path / "a.npz", x_train=np.zeros((4, 2)), y_train=labels))


@pytest.mark.parametrize(
    "labels", [[0, 1, 0, 1], [0.0, 1.0, 0.0, 1.0], [False, True, False, True], ["no", "1", "no", "1"]]
)
def test_labels_are_whole_numbers_of_any_kind_or_names(labels: list[Any], tmp_path: Path) -> None:
    found = read_samples(savez(tmp_path / "a.npz", x_train=np.zeros((4, 2)), y_train=labels), agreed(**TABLE))
    assert found.y.tolist() == [0, 1, 0, 1]


def test_columns_are_kept_as_they_are_whatever_their_type(tmp_path: Path) -> None:
    """Whole numbers of one byte are pixels only where they are images; agreed constants are in a column's own unit."""
    x = np.array([[200, 1], [100, 2], [0, 3], [50, 4]], np.uint8)
    found = read_samples(savez(tmp_path / "a.npz", x_train=x, y_train=[0, 1, 0, 1]), agreed(**TABLE))
    assert found.x.dtype == np.float32
    assert found.x[:, :, 0, 0].tolist() == x.tolist()


def test_images_with_other_channels_than_agreed_are_told_so(tmp_path: Path) -> None:
    sentence = refused(savez(tmp_path / "a.npz", x_train=np.zeros((4, 3, 4, 4)), y_train=[0, 1, 0, 1]), image=True)
    assert "3 channels" in sentence


# --- .csv -------------------------------------------------------------------------------------------------------------


def test_a_csv_file_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    twice = written(tmp_path / "a.csv", "age,verdict,verdict\n1,0,1\n2,1,0\n")
    assert "'verdict'" in refused(twice, label="verdict")
    assert "'age'" in refused(written(tmp_path / "a.csv", "age,age,verdict\n1,0,1\n2,1,0\n"))
    assert "column 1" in refused(written(tmp_path / "a.csv", ",age,verdict\n1,0,1\n2,1,0\n"))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("a,b,y\n1,2,0\n3,,1\n", ["line 3", "'b'"]),
        ("a,b,y\n1,2,0\n3,nan,1\n", ["line 3", "'b'", "nan"]),
        ("a,b,y\n1,2,0\n3,inf,1\n", ["line 3", "'b'"]),
        ("a,b,y\n1,2,0\n3,1e300,1\n", ["line 3", "'b'", "1e300"]),
        ("a,b,y\n1,2,0\n3,x,1\n", ["line 3", "'b'", "'x'"]),
        ("a,b,y\n1,2,0\n3,1_000,1\n", ["line 3", "'b'"]),
        ('a,b,y\n"1\n",2,0\n3,4\n', ["line 4"]),
        ("a,b,y\n1,2,0\n3,4,maybe\n", ["line 3", "'maybe'", "no, yes"]),
        ("a,b,y\n1,2,0\n3,4,2\n", ["line 3", "'2'"]),
        ("a,b,y\n1,2,0\n3,4,\n", ["line 3"]),
        ("a;b;y\n1;2;0\n3;4;1\n", ["semicolon"]),
        ("a\tb\ty\n1\t2\t0\n3\t4\t1\n", ["tab"]),
        ("", ["empty"]),
        ("a,b,y\n", ["no rows"]),
        ("a,b,y\n1," + "2" * 200_000 + ",0\n", ["line 2"]),
        ("a,b,y\n1,2," + "x" * 100_000 + "\n", ["line 2"]),
        ("a,b,c\n1,2,0\n3,4,1\n", ["'diagnosis'"]),
    ],
    ids=range(17),
)
def test_a_csv_file_is_refused_with_the_place_of_what_is_wrong(content: str, named: list[str], tmp_path: Path) -> None:
    sentence = refused(written(tmp_path / "a.csv", content), label="diagnosis" if "'diagnosis'" in named else None)
    assert [word for word in named if word not in sentence] == []


@pytest.mark.parametrize("content", [b"a,b,y\n1,\xff\xfe,0\n", "a,b,y\n1,2,0\n".encode("utf-16"), b"a,b,y\n1,\0,0\n"])
def test_a_csv_file_that_is_no_text_is_refused(content: bytes, tmp_path: Path) -> None:
    refused(written(tmp_path / "a.csv", content))


def test_what_spreadsheets_add_to_a_csv_file_does_no_harm(tmp_path: Path) -> None:
    """A byte order mark before the first name, lines that end in two characters, and empty lines."""
    file = written(tmp_path / "a.csv", b"\xef\xbb\xbfy,a,b\r\nno,1,2\r\nyes,3,4\r\n\r\n")
    found = read_samples(file, agreed(**TABLE), label="y")
    assert found.x[:, :, 0, 0].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert found.y.tolist() == [0, 1]


# --- images -----------------------------------------------------------------------------------------------------------


def folder_with(place: Path, content: bytes, name: str = "1.png") -> Path:
    for split in ("no", "yes"):
        (place / split).mkdir(exist_ok=True, parents=True)
        Image.new("L", (4, 4)).save(place / split / "0.png")
    (place / "yes" / name).write_bytes(content)
    return place


def png(width: int = 4, height: int = 4, mode: str = "L") -> bytes:
    file = io.BytesIO()
    Image.new(mode, (width, height)).save(file, "PNG")
    return file.getvalue()


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
    ],
    ids=range(7),
)
def test_an_image_that_cannot_be_read_is_named(content: bytes, tmp_path: Path) -> None:
    assert "1.png" in refused(folder_with(tmp_path / "own", content), image=True)


def test_an_image_of_16_bits_is_not_cut_down_to_8_in_silence(tmp_path: Path) -> None:
    sentence = refused(folder_with(tmp_path / "own", png(mode="I;16")), image=True)
    assert "1.png" in sentence
    assert "8 bits" in sentence


def test_a_class_of_images_that_was_not_agreed_on_is_named(tmp_path: Path) -> None:
    folder_with(tmp_path / "own", png())
    (tmp_path / "own" / "maybe").mkdir()
    (tmp_path / "own" / "maybe" / "1.png").write_bytes(png())
    assert "'maybe'" in refused(tmp_path / "own", image=True)


def test_images_where_columns_were_agreed_on_are_refused(tmp_path: Path) -> None:
    refused(folder_with(tmp_path / "own", png()))


# --- what is no file at all -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.npz", "a.csv"])
def test_what_is_no_file_is_refused_at_once(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    refused(tmp_path / name)


def test_a_name_that_no_disk_can_hold_is_refused() -> None:
    with pytest.raises(DataError):
        read_samples(Path("n" * 5000 + ".npz"), agreed(**TABLE))
