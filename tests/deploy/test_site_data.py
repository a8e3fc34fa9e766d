"""A site's own files against the format that all sites agreed on; what is wrong with any file is in tests/data/own."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedalloy.config.experiment import experiment
from fedalloy.config.sections import DataPart
from fedalloy.deploy.agreed import read_site_data
from fedalloy.errors import DataError, FedalloyError, SecurityError

IMAGES = {"name": "sites", "channels": 1, "size": 4, "mean": [0.5], "std": [0.25], "names": ["no", "yes"]}
TABLE = {"name": "sites", "columns": ["a", "b"], "names": ["no", "yes"]}
NUMBERED = {**TABLE, "columns": ["0", "1"]}  # as the columns of an .npz file are named


def agreed(values: dict[str, Any]) -> DataPart:
    return experiment({"data": values}).data


def refused(path: Path, *named: str, form: dict[str, Any] = TABLE, label: str | None = None) -> str:
    """The one sentence with which a path is refused; it has its name and all of `named`."""
    with pytest.raises(DataError) as caught:
        read_site_data(path, agreed(form), label)
    sentence = str(caught.value)
    assert sentence.isprintable()
    assert path.name in sentence
    assert len(sentence) < 800
    assert [word for word in named if word not in sentence] == []
    return sentence


def savez(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def written(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# --- .npz -------------------------------------------------------------------------------------------------------------


def test_an_npz_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    whole = savez(tmp_path / "a.npz", x_train=np.zeros((4, 2), np.float32), y_train=[0, 1, 0, 1]).read_bytes()
    for end in range(2, len(whole), 97):
        refused(written(tmp_path / "a.npz", whole[:end]), form=NUMBERED)


def test_objects_in_an_npz_file_are_not_unpickled(tmp_path: Path) -> None:
    file = savez(tmp_path / "a.npz", x_train=np.array([{}], object), y_train=[0])
    with pytest.raises(SecurityError):
        read_site_data(file, agreed(NUMBERED))


@pytest.mark.parametrize(
    "labels", [[0, 1, 2, 1], [1, 2, 1, 2], [0, -1, 0, 1], [0, 1.5, 0, 1], ["no", "yes", "x", "no"]]
)
def test_a_label_that_is_no_agreed_class_is_refused(labels: list[Any], tmp_path: Path) -> None:
    refused(savez(tmp_path / "a.npz", x_train=np.zeros((4, 2)), y_train=labels), "no, yes", form=NUMBERED)


@pytest.mark.parametrize(
    "labels", [[0, 1, 0, 1], [0.0, 1.0, 0.0, 1.0], ["no", "1", "no", "1"], ["0", "yes", "no", "yes"]]
)
def test_labels_are_whole_numbers_of_any_kind_or_names(labels: list[Any], tmp_path: Path) -> None:
    found = read_site_data(savez(tmp_path / "a.npz", x_train=np.zeros((4, 2)), y_train=labels), agreed(NUMBERED))
    assert found.y.tolist() == [0, 1, 0, 1]


def test_a_site_may_have_rows_of_one_class_alone(tmp_path: Path) -> None:
    found = read_site_data(savez(tmp_path / "a.npz", x=np.zeros((4, 2)), y=[1] * 4), agreed(NUMBERED))
    assert (found.classes, found.y.tolist()) == (2, [1] * 4)


def test_columns_are_kept_as_they_are_whatever_their_type(tmp_path: Path) -> None:
    """Whole numbers of one byte are pixels only where they are images."""
    x = np.array([[200, 1], [100, 2], [0, 3], [50, 4]], np.uint8)
    found = read_site_data(savez(tmp_path / "a.npz", x_train=x, y_train=[0, 1, 0, 1]), agreed(NUMBERED))
    assert found.x.dtype == np.float32
    assert found.x[:, :, 0, 0].tolist() == x.tolist()


def test_columns_of_another_number_or_name_are_refused(tmp_path: Path) -> None:
    refused(savez(tmp_path / "a.npz", x_train=np.zeros((4, 3)), y_train=[0, 1, 0, 1]), "'2'", form=NUMBERED)
    refused(savez(tmp_path / "a.npz", x_train=np.zeros((4, 1)), y_train=[0, 1, 0, 1]), "'1'", form=NUMBERED)
    refused(savez(tmp_path / "a.npz", x_train=np.zeros((4, 2)), y_train=[0, 1, 0, 1]), "'a'")
    found = read_site_data(
        savez(tmp_path / "a.npz", x=np.array([[1.0, 2.0]] * 4), y=[0, 1, 0, 1], columns=np.array(["b", "a"])),
        agreed(TABLE),
    )
    assert found.x[0, :, 0, 0].tolist() == [2.0, 1.0]  # in the agreed order


def test_images_with_other_channels_than_agreed_are_told_so(tmp_path: Path) -> None:
    file = savez(tmp_path / "a.npz", x_train=np.zeros((4, 3, 4, 4)), y_train=[0, 1, 0, 1])
    refused(file, "3 channels", form=IMAGES)
    refused(savez(tmp_path / "a.npz", x_train=np.zeros((4, 16)), y_train=[0, 1, 0, 1]), form=IMAGES)
    refused(savez(tmp_path / "a.npz", x_train=np.zeros((4, 4, 4)), y_train=[0, 1, 0, 1]), form=NUMBERED)


# --- .csv -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("a,b,y\n1,2,0\n3,,1\n", ["line 3", "'b'"]),
        ("a,b,y\n1,2,0\n3,1e300,1\n", ["line 3", "'b'", "1e300"]),
        ("a,b,y\n1,2,0\n3,x,1\n", ["line 3", "'b'", "'x'"]),
        ('a,b,y\n"1\n",2,0\n3,4\n', ["line 4"]),
        ("a,b,y\n1,2,0\n3,4,maybe\n", ["line 3", "'maybe'", "no, yes"]),
        ("a,b,y\n1,2,0\n3,4,2\n", ["line 3", "'2'"]),
        ("a,b,y\n1,2,0\n3,4,\n", ["line 3"]),
        ("a;b;y\n1;2;0\n3;4;1\n", ["semicolon"]),
        ("", ["empty"]),
        ("a,b,y\n", ["no rows"]),
        ("a,b,c,y\n1,2,3,0\n3,4,5,1\n", ["'c'"]),
        ("a,y\n1,0\n3,1\n", ["'b'"]),
        ("a,b,b,y\n1,2,2,0\n3,4,4,1\n", ["'b'"]),
        (b"a,b,y\n1,\xff\xfe,0\n", ["UTF-8"]),
    ],
    ids=range(14),
)
def test_a_csv_file_is_refused_with_the_place_of_what_is_wrong(
    content: bytes | str, named: list[str], tmp_path: Path
) -> None:
    refused(written(tmp_path / "a.csv", content), *named)


def test_a_label_that_the_file_lacks_is_named(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "a,b,c\n1,2,0\n3,4,1\n")
    with pytest.raises(FedalloyError, match="'diagnosis'"):
        read_site_data(file, agreed(TABLE), "diagnosis")


def test_what_spreadsheets_add_to_a_csv_file_does_no_harm(tmp_path: Path) -> None:
    """A byte order mark before the first name, lines that end in two characters, and empty lines."""
    file = written(tmp_path / "a.csv", b"\xef\xbb\xbfy,a,b\r\nno,1,2\r\nyes,3,4\r\n\r\n")
    found = read_site_data(file, agreed(TABLE), label="y")
    assert found.x[:, :, 0, 0].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert found.y.tolist() == [0, 1]


# --- images -----------------------------------------------------------------------------------------------------------


def png(mode: str = "L") -> bytes:
    file = io.BytesIO()
    Image.new(mode, (4, 4)).save(file, "PNG")
    return file.getvalue()


def folder_with(place: Path, content: bytes, label: str = "yes") -> Path:
    for name in ("no", "yes", label):
        (place / name).mkdir(exist_ok=True, parents=True)
        Image.new("L", (4, 4)).save(place / name / "0.png")
    (place / label / "1.png").write_bytes(content)
    return place


@pytest.mark.parametrize("content", [b"", b"not an image", png()[:40], png("I;16")], ids=range(4))
def test_an_image_that_cannot_be_read_is_named(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"1\.png"):
        read_site_data(folder_with(tmp_path / "own", content), agreed(IMAGES))


def test_a_class_of_images_that_was_not_agreed_on_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'maybe'"):
        read_site_data(folder_with(tmp_path / "own", png(), "maybe"), agreed(IMAGES))


def test_images_where_columns_were_agreed_on_are_refused(tmp_path: Path) -> None:
    refused(folder_with(tmp_path / "own", png()))
    refused(written(tmp_path / "a.csv", "a,b,y\n1,2,0\n3,4,1\n"), form=IMAGES)


# --- what is no file at all -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.npz", "a.csv"])
def test_what_is_no_file_is_refused_at_once(name: str, tmp_path: Path) -> None:
    refused(tmp_path / name)
    os.mkfifo(tmp_path / name)
    refused(tmp_path / name)


def test_a_name_that_no_disk_can_hold_is_refused() -> None:
    with pytest.raises(DataError):
        read_site_data(Path("n" * 5000 + ".npz"), agreed(TABLE))
