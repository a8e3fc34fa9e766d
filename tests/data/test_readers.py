"""Every format on a small file that the test writes itself."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedalloy.data import readers
from fedalloy.data.matlab import read_matlab
from fedalloy.errors import DataError


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def element(kind: int, content: bytes) -> bytes:
    return struct.pack("<II", kind, len(content)) + content + b"\0" * (-len(content) % 8)


def matrix(name: str, array: np.ndarray, stored: int = 2) -> bytes:
    small_name = struct.pack("<HH4s", 1, len(name), name.encode())  # names of up to 4 letters sit in the tag
    return element(
        14,
        element(6, struct.pack("<II", 9, 0))
        + element(5, np.array(array.shape, "<i4").tobytes())
        + small_name
        + element(stored, array.tobytes(order="F")),
    )


def mat(*elements: bytes) -> bytes:
    return b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H2s", 0x0100, b"IM") + b"".join(elements)


def packed(content: bytes) -> bytes:
    squeezed = zlib.compress(content)
    return struct.pack("<II", 15, len(squeezed)) + squeezed  # compressed elements are not padded


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx_reads_plain_and_gzipped(tmp_path: Path, pack: type[bytes]) -> None:
    array = pixels(5, 3, 2)
    (tmp_path / "a").write_bytes(pack(idx(array)))
    assert np.array_equal(readers.read_idx(tmp_path / "a"), array)


@pytest.mark.parametrize(
    "content", [b"", b"not an idx", idx(pixels(4, 2, 2))[:-1], gzip.compress(idx(pixels(99)))[:-9], b"\x1f\x8b"]
)
def test_a_broken_idx_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken").write_bytes(content)
    with pytest.raises(DataError, match=r"broken'.*idx file: .+"):
        readers.read_idx(tmp_path / "broken")


def test_mnist_gets_a_channel_and_int64_labels(tmp_path: Path) -> None:
    parts = [pixels(3, 28, 28), np.array([7, 0, 9]), pixels(2, 28, 28, seed=1), np.array([1, 2])]
    for i, part in enumerate(parts):
        (tmp_path / str(i)).write_bytes(idx(part))
    got = readers.read_mnist([tmp_path / str(i) for i in range(4)])
    assert np.array_equal(got.x[:, 0], parts[0])
    assert got.y.tolist() == [7, 0, 9]
    assert got.y.dtype == np.int64
    assert got.x_test is not None
    assert got.x_test.shape == (2, 1, 28, 28)


def test_cifar10_joins_the_batches_in_order(tmp_path: Path) -> None:
    x = pixels(12, 3, 32, 32)
    records = [bytes([label]) + image.tobytes() for label, image in enumerate(x)]
    members = {f"cifar-10-batches-bin/data_batch_{i}.bin": b"".join(records[2 * i - 2 : 2 * i]) for i in range(1, 6)}
    # In the archive the test batch comes in between; order must come from the names.
    order = {"cifar-10-batches-bin/test_batch.bin": b"".join(records[10:]), **dict(reversed(members.items()))}
    write_tar(tmp_path / "c.tar.gz", order)
    got = readers.read_cifar10(tmp_path / "c.tar.gz")
    assert np.array_equal(got.x, x[:10])
    assert got.y.tolist() == list(range(10))
    assert got.y_test is not None
    assert got.y_test.tolist() == [10, 11]
    assert np.array_equal(got.x_test, x[10:])


@pytest.mark.parametrize(
    ("coarse", "labels", "names"), [(True, [4, 1], ("fish", "people")), (False, [30, 91], ("a", "b"))]
)
def test_cifar100_has_coarse_before_fine(tmp_path: Path, coarse: bool, labels: list[int], names: tuple[str]) -> None:
    x = pixels(2, 3, 32, 32)
    train = bytes([4, 30]) + x[0].tobytes() + bytes([1, 91]) + x[1].tobytes()
    members = {"train.bin": train, "test.bin": bytes([2, 3]) + x[0].tobytes()}
    members |= {"fine_label_names.txt": b"a\nb\n", "coarse_label_names.txt": b"fish\npeople\n"}
    write_tar(tmp_path / "c.tar.gz", {f"cifar-100-binary/{name}": content for name, content in members.items()})
    got = readers.read_cifar100(tmp_path / "c.tar.gz", coarse=coarse)
    assert np.array_equal(got.x, x)
    assert got.y.tolist() == labels
    assert got.label_names == names


def test_broken_cifar_archives(tmp_path: Path) -> None:
    path = tmp_path / "c.tar.gz"
    write_tar(path, {"data_batch_1.bin": bytes(3073)})
    with pytest.raises(DataError, match=r"c\.tar\.gz.*CIFAR-10: data_batch_2\.bin"):
        readers.read_cifar10(path)
    write_tar(path, {"train.bin": bytes(3075), "test.bin": bytes(3074)})
    with pytest.raises(DataError, match=r"c\.tar\.gz.*CIFAR-100"):
        readers.read_cifar100(path, coarse=False)
    write_tar(path, {f"data_batch_{i}.bin": pixels(3073, seed=i).tobytes() for i in range(1, 6)})
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(DataError, match=r"c\.tar\.gz.*CIFAR-10"):
        readers.read_cifar10(path)


def test_emnist_letters_are_turned_upright_and_count_from_zero(tmp_path: Path) -> None:
    upright = pixels(3, 28, 28)
    with zipfile.ZipFile(tmp_path / "gzip.zip", "w") as archive:
        for split in ("train", "test"):
            lying = upright.transpose(0, 2, 1)
            archive.writestr(f"gzip/emnist-letters-{split}-images-idx3-ubyte.gz", gzip.compress(idx(lying)))
            labels = gzip.compress(idx(np.array([1, 26, 2])))
            archive.writestr(f"gzip/emnist-letters-{split}-labels-idx1-ubyte.gz", labels)
    got = readers.read_emnist_letters(tmp_path / "gzip.zip")
    assert np.array_equal(got.x[:, 0], upright)
    assert got.y.tolist() == [0, 25, 1]
    (tmp_path / "bad.zip").write_bytes((tmp_path / "gzip.zip").read_bytes()[:-30])
    with pytest.raises(DataError, match="EMNIST"):
        readers.read_emnist_letters(tmp_path / "bad.zip")


@pytest.mark.parametrize("squeeze", [packed, bytes])
def test_svhn(tmp_path: Path, squeeze: type[bytes]) -> None:
    x = pixels(2, 3, 32, 32)
    labels = np.array([[10], [3]], np.uint8)
    content = mat(squeeze(matrix("X", x.transpose(2, 3, 1, 0))), squeeze(matrix("y", labels)))
    (tmp_path / "a.mat").write_bytes(content)
    got = readers.read_svhn(tmp_path / "a.mat", tmp_path / "a.mat")
    assert np.array_equal(got.x, x)
    assert got.y.tolist() == [0, 3]
    assert got.y_test is not None
    assert got.y_test.dtype == np.int64


def test_matlab_keeps_stored_types_and_refuses_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    numbers = np.array([[1.5, 2.5, -1.0], [0.0, 4.0, 8.0]])
    path.write_bytes(mat(packed(matrix("d", numbers, stored=9)), matrix("i", np.array([[1, -2]], "<i2"), stored=3)))
    got = read_matlab(path)
    assert np.array_equal(got["d"], numbers)
    assert got["i"].tolist() == [[1, -2]]
    whole = mat(packed(matrix("X", pixels(4, 4))), matrix("y", pixels(64, 1)))
    for cut in (10, len(whole) - 9, 150):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError, match=r"a\.mat' is "):
            read_matlab(path)
    path.write_bytes(mat(matrix("y", pixels(2, 1))))
    with pytest.raises(DataError, match=r"SVHN.*: X"):
        readers.read_svhn(path, path)


def png(image: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image).save(out, "png")
    return out.getvalue()


def test_cinic10_is_sorted_by_name_and_leaves_valid_out(tmp_path: Path) -> None:
    images = pixels(4, 32, 32, 3)
    grey = pixels(32, 32)
    members = {
        "./train/dog/b.png": png(images[0]),
        "./valid/dog/x.png": png(images[3]),
        "./train/cat/z.png": png(grey),
        "./train/dog/a.png": png(images[1]),
        "./test/cat/q.png": png(images[2]),
        "./README": b"read me",
    }
    write_tar(tmp_path / "c.tar.gz", members)
    got = readers.read_cinic10(tmp_path / "c.tar.gz", ["cat", "dog"])
    assert got.y.tolist() == [0, 1, 1]
    assert np.array_equal(got.x[0], np.stack([grey] * 3))
    assert np.array_equal(got.x[1], images[1].transpose(2, 0, 1))
    assert np.array_equal(got.x[2], images[0].transpose(2, 0, 1))
    assert got.y_test is not None
    assert got.y_test.tolist() == [0]
    with pytest.raises(DataError, match="CINIC-10"):
        readers.read_cinic10(tmp_path / "c.tar.gz", ["cat"])
    write_tar(tmp_path / "e.tar.gz", {"train/cat/a.png": png(grey)})
    with pytest.raises(DataError, match=r"PNG.*'test'"):
        readers.read_cinic10(tmp_path / "e.tar.gz", ["cat"])
    whole = (tmp_path / "c.tar.gz").read_bytes()
    (tmp_path / "c.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="CINIC-10"):
        readers.read_cinic10(tmp_path / "c.tar.gz", ["cat", "dog"])


def differences(x: np.ndarray) -> np.ndarray:
    """Code images as the compact copies do: against green, then against the left, then against the row above."""
    r = x.transpose(1, 0, 2, 3).copy()
    r[0] -= r[1]
    r[2] -= r[1]
    r[..., 1:] = np.diff(r, axis=3)
    r[:, :, 1:] = np.diff(r, axis=2)
    return r


def test_compact_colour_copies(tmp_path: Path) -> None:
    x = pixels(5, 3, 32, 32)
    np.savez_compressed(
        tmp_path / "c.npz",
        r_train_1=differences(x[:2]),
        r_train_2=differences(x[2:4]),
        r_test=differences(x[4:]),
        y_train=np.array([1, 2, 3, 4], np.uint8),
        y_test=np.array([0], np.uint8),
        yc_train=np.array([0, 0, 1, 1], np.uint8),
        yc_test=np.array([1], np.uint8),
        classes=np.array(list("abcde")),
        coarse_classes=np.array(["x", "y"]),
    )
    fine, coarse = readers.read_compact(tmp_path / "c.npz"), readers.read_compact(tmp_path / "c.npz", coarse=True)
    assert np.array_equal(fine.x, x[:4])
    assert np.array_equal(fine.x_test, x[4:])
    assert fine.y.tolist() == [1, 2, 3, 4]
    assert coarse.y.tolist() == [0, 0, 1, 1]
    assert coarse.label_names == ("x", "y")


def test_an_npz_is_never_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "u.npz"
    np.savez(path, x=np.array([{"any": "thing"}], dtype=object), y=np.zeros(1))
    with pytest.raises(DataError, match="allow_pickle=False"):
        readers.read_npz(path)
    np.savez(path, x=np.zeros((1, 2)))
    with pytest.raises(DataError, match=r"array y\b.*numpy\.savez_compressed"):
        readers.read_npz(path)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match=r"u\.npz'.*\.npz file"):
        readers.read_npz(path)
    for content in (b"x,y\n1,0\n", b"", b"\x93NUMPY\x01\x00"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"u\.npz'.*\.npz file.*numpy\.savez_compressed") as caught:
            readers.read_npz(path)
        assert "unsafe" not in str(caught.value)
