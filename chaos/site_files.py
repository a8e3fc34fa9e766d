"""A site's own files, damaged in every way: refused in one line, or read as a valid data set.

There are four kinds: an .npz file, a .csv file, a folder of images (PNG, JPEG, BMP) and a site.toml, each tested
`--count` times. Half of the damage changes bytes, half changes contents: arrays of other shapes and dtypes, headers
that claim too much, columns and rows that do not fit, images of other sizes and modes. What is read must be finite, of
the agreed shape, and its labels among the agreed classes. The trials have little memory, so that code that trusts a
claimed size fails.

    python chaos/site_files.py --count 10000 --save
"""

from __future__ import annotations

import io
import struct
import tempfile
import warnings
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from harness import Dice, FaultError, little_memory, one_line, run_from_command_line, show, told, trials
from mutants import PLAIN, damaged, no_file
from PIL import Image
from specimens import Hurt, npz, zipped

from fedalloy.config.experiment import experiment
from fedalloy.deploy.agreed import constants, frame, read_site_data
from fedalloy.deploy.settings import for_site
from fedalloy.deploy.site import read_site
from fedalloy.errors import DataError, UsageError

TABLE = experiment(
    {
        "data": {
            "name": "sites",
            "columns": ["a", "b", "c"],
            "mean": [0.0] * 3,
            "std": [1.0] * 3,
            "names": ["no", "yes"],
        },
        "model": {"name": "mlp", "hidden": [2]},
    }
)
PICTURES = experiment(
    {
        "data": {"name": "sites", "channels": 1, "size": 4, "mean": [0.0], "std": [1.0], "names": ["no", "yes"]},
        "model": {"name": "mlp", "hidden": [2]},
    }
)
KINDS = ("npz", "csv", "images", "site.toml")
Made = Callable[[Dice, Path], Path]


def main(count: int, seed: int, *, save: bool = False) -> dict[str, Any]:
    """Test `count` damaged files of each kind."""
    with little_memory():
        report = trials("site-files", count * len(KINDS), seed, file_trial, save=save, finish=breadth)
    show(report)
    return {"site-files": report}


def breadth(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Report the number of trials of each kind."""
    return {"kinds": list(KINDS), "each": report["trials"] // len(KINDS)}


def file_trial(dice: Dice) -> str:
    """Read a damaged file; the kinds alternate."""
    kind = KINDS[dice.number % len(KINDS)]
    with tempfile.TemporaryDirectory() as there, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return outcome(kind, MAKERS[kind](dice, Path(there)), dice)


def outcome(kind: str, path: Path, dice: Dice) -> str:
    """Return whether a file was read or refused; anything else is a fault."""
    try:
        if kind == "site.toml":
            read_site(path)
        else:
            use(path, dice, table=kind != "images" and dice.random() < 0.9)
    except (DataError, UsageError) as error:
        one_line(error, str(path.parent))
        if not str(error).isprintable():
            raise FaultError(f"{kind}: the error message cannot be printed: {error!s:.200}") from error
        return f"{kind}: refused"
    except FaultError:
        raise
    except Exception as error:
        raise FaultError(f"{kind}: {told(error)}") from error
    return f"{kind}: read"


def use(path: Path, dice: Dice, *, table: bool) -> None:
    """Read a site's data and build its setting; both must be valid."""
    exp = TABLE if table else PICTURES
    label = mostly(dice, None, "y", "no such column")
    data = read_site_data(path, exp.data, label)
    for x, y in ((data.x, data.y), (data.x_test, data.y_test)):
        if x is not None and y is not None and not (np.isfinite(x).all() and ((y >= 0) & (y < 2)).all()):
            raise FaultError("the data is not finite, or has a label that is not a class")
    ready = constants(frame(exp.data))
    assert ready is not None
    own = for_site(exp, 0, 2, data, ready).sites[0]
    for part in (own.train, own.test):
        if part.x.shape[1:] != ((3, 1, 1) if table else (1, 4, 4)) or not part.inputs.isfinite().all():
            raise FaultError(f"a sample is {tuple(part.x.shape[1:])}, or not finite")


# --- .npz -------------------------------------------------------------------------------------------------------------


def an_npz(dice: Dice, there: Path) -> Path:
    """Write arrays with wrong contents or damaged bytes."""
    path = there / mostly(dice, "a.npz", "a\nb.npz", "a.NPZ", "a\x1b.npz")
    if dice.random() < 0.02:
        return no_file(there, dice)
    if dice.random() < 0.2:
        content = claiming(dice)
    else:
        content = npz(Hurt(dice) if dice.random() < 0.2 else Hurt(), **arrays(dice))
    path.write_bytes(damaged(content, dice) if dice.random() < 0.3 else content)
    return path


def mostly(dice: Dice, right: Any, *strange: Any) -> Any:
    """Return the correct value, or sometimes a strange one; if all were strange, only the first would be tested."""
    return dice.choice(strange) if dice.random() < 0.2 else right


COLUMNS: tuple[Any, ...] = (["c", "a", "b"], ["a", "b"], ["a", "a", "b"], ["a", "b", "\x1b"], [1, 2, 3], [], "abc")


def arrays(dice: Dice) -> dict[str, Any]:
    """Return what a site may have saved, or almost."""
    rows = mostly(dice, 10, 0, 1, 2)
    shape = mostly(dice, (rows, 3), (rows, 4, 4), (rows, 1, 4, 4), (rows,), (), (3,), (rows, 0), (rows, 1, 2, 3, 4))
    kind = mostly(dice, "f4", "f8", "f2", "i8", "u1", "i2", "c8", "U3", "S3", "?", "M8[s]", "V3", "g")
    x = np.asarray(np.resize(np.arange(7), shape)).astype("i8").astype(kind)
    if x.size and x.dtype.kind == "f" and dice.random() < 0.2:
        x.flat[dice.randrange(x.size)] = dice.choice((np.nan, np.inf, -np.inf, 1e300, -3e38, 1e-45))
    numbers = ([1, 2], [0, 2, 5], [-1, 0], [0.5], [0.0, 1.0], [True, False], [1e300], [2**63 - 1])
    names = (["no", "yes"], ["0", "1"], ["no", "\x1b"], ["maybe"], [b"no"], ["x" * 999])
    labels: Any = np.resize(np.array(mostly(dice, [0, 1], *numbers, *names)), rows)
    labels = mostly(dice, labels, labels[:, None], labels[:1], np.zeros((rows, 2)), np.float64(0), np.array([]))
    keys = mostly(dice, ("x_train", "y_train"), ("x", "y"), ("x", "y_train"), ("a", "b"))
    found = {keys[0]: x, keys[1]: labels, "columns": np.array(mostly(dice, ["a", "b", "c"], *COLUMNS))}
    if dice.random() < 0.4:
        found |= {"x_test": x[:2] if x.ndim else x, "y_test": labels[:2] if np.ndim(labels) else labels}
    return found


def claiming(dice: Dice) -> bytes:
    """Return array headers that claim another size or dtype than their bytes."""
    shape = dice.choice(
        ("(10, 3)", "(10**6, 3)", "(99999999999, 3)", "(2**62, 3)", "(-1, 3)", "(3,)", "()", "(1e9, 3)", "(10,,)")
    )
    shape = shape.replace("10**6", "1000000").replace("2**62", str(2**62))
    kind = dice.choice(("<f4", "<f8", "|O", "<U99999999", "|V2147483647", "<i8", "nonsense", "<M8[s]"))
    text = f"{{'descr': '{kind}', 'fortran_order': {dice.choice(('False', 'True', '7'))}, 'shape': {shape}, }}"
    text = (
        dice.choice((text, text, text, "[" * 900, "{'descr': " * 50, "__import__('os')", "{}", "\0" * 64)).ljust(117)
        + "\n"
    )
    version = dice.choice((b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x09\x09"))
    length = dice.choice((len(text), len(text), 0, 65535))
    head = b"\x93NUMPY" + version + struct.pack("<I" if version == b"\x02\x00" else "<H", length) + text.encode()
    members = {"x_train.npy": head + bytes(dice.choice((0, 12, 120))), "y_train.npy": head + bytes(80)}
    return zipped(Hurt(), members)


# --- .csv -------------------------------------------------------------------------------------------------------------

CELLS = [
    *(
        "",
        " ",
        "1",
        "-2.5",
        "1e5",
        "nan",
        "inf",
        "-inf",
        "1e400",
        "1e39",
        "0x10",
        "1_000",
        "1,5",
        "١٢",
        "None",
        "NA",
        "\0",
    ),
    *(
        "no",
        "yes",
        "maybe",
        '"',
        "'",
        "\ud7ff",
        "x" * 200_000,
        "9" * 5000,
        "true",
        "2020-01-01",
        "=1+1",
        "\x1b[2J",
        "\u202e",
    ),
]
NAMES = ["a", "b", "c", "y", "y", "", " ", "a", "é", "\ufeff", "x" * 3000, "\x1b", "1"]


def a_csv(dice: Dice, there: Path) -> Path:
    """Write columns and rows with wrong contents or damaged bytes."""
    path = there / "a.csv"
    header = ["a", "b", "c", "y"]
    rows = [["1", "2.5", "-3e2", dice.choice(("no", "yes", "0", "1"))] for _ in range(mostly(dice, 12, 0, 1, 2))]
    for _ in range(dice.choice((0, 0, 1, 1, 3))):
        lines = [header, *rows]
        line = header if dice.random() < 0.3 else dice.choice(lines)
        what = dice.random()
        if what < 0.6 and line:
            line[dice.randrange(len(line))] = dice.choice(NAMES if line is header else CELLS)
        elif what < 0.8:
            line.append(dice.choice(CELLS))
        elif line:
            line.pop()
    comma, end = mostly(dice, ",", ";", "\t", "|"), mostly(dice, "\n", "\r\n", "\r", "\n\n")
    text = end.join(comma.join(row) for row in (header, *rows)) + dice.choice(("", end))
    code = mostly(dice, "utf-8", "utf-8-sig", "utf-16", "latin-1", "utf-7")
    content = text.encode(code, errors="replace")
    path.write_bytes(damaged(content, dice) if dice.random() < 0.3 else content)
    return path


# --- images -----------------------------------------------------------------------------------------------------------


def some_images(dice: Dice, there: Path) -> Path:
    """Write a folder of small images, with one damaged or strange image, or a strange folder."""
    path = there / "own"
    for split in dice.choice(((), (), ("train", "test"), ("train",), ("test",))) or (".",):
        for name in dice.choice(
            (("no", "yes"), ("no", "yes"), ("0", "1"), ("no",), ("no", "maybe"), ("no", "\x1b"), ())
        ):
            folder = path / split / name
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(3):
                content, suffix = an_image(dice)
                (folder / f"{number}.{suffix}").write_bytes(content)
            if dice.random() < 0.05:
                (folder / "folder.png").mkdir()
            if dice.random() < 0.05:
                no_file(folder, dice).with_suffix(".png")
    path.mkdir(exist_ok=True)
    return path


def an_image(dice: Dice) -> tuple[bytes, str]:
    """Return the bytes of an image, often damaged, and its file extension."""
    kind, suffix = mostly(dice, ("PNG", "png"), ("JPEG", "jpg"), ("BMP", "bmp"), ("PNG", "jpg"), ("GIF", "png"))
    modes = {"PNG": ("L", "RGB", "RGBA", "P", "1", "I;16", "LA"), "JPEG": ("L", "RGB", "CMYK")}
    mode = mostly(dice, "L", *modes.get(kind, ("L",)))
    file = io.BytesIO()
    size = dice.choice(((4, 4), (4, 4), (6, 5), (1, 1), (40, 40)))
    Image.new(mode, size, color=1).save(file, kind)
    content = file.getvalue()
    if kind == "PNG" and dice.random() < 0.05:  # it claims another size, with the right checksum
        wide, high = (dice.choice((0, 1, 4, 60_000, 2**31 - 1, 2**32 - 1)) for _ in range(2))
        head = struct.pack(">II", wide, high) + content[24:29]
        content = content[:16] + head + struct.pack(">I", zlib.crc32(b"IHDR" + head)) + content[33:]
    return damaged(content, dice) if dice.random() < 0.1 else content, suffix


# --- site.toml --------------------------------------------------------------------------------------------------------


def a_site_file(dice: Dice, there: Path) -> Path:
    """Write a folder with a wrong site.toml."""
    keys = dice.sample(
        ("client", "client", "data", "label", "share", "shares", '"a\\nb"', "client.x"), dice.randrange(1, 4)
    )
    lines = [f"{key} = {_as_toml(dice)}" for key in keys]
    content = "\n".join(dice.choice((lines, ["client = 1", 'data = "a.npz"'], ["client = 0", "share = 0"]))).encode(
        errors="replace"
    )
    (there / "site.toml").write_bytes(damaged(content, dice) if dice.random() < 0.5 else content)
    return there


def _as_toml(dice: Dice) -> str:
    value = dice.choice(PLAIN)
    if isinstance(value, str):
        return '"' + value[:2000].encode("unicode_escape").decode().replace('"', "") + '"'
    if isinstance(value, int) and value > 1 << 70:
        return "9" * 5000
    return repr(value)[:6000] if value is not None else '"x'


MAKERS: dict[str, Made] = {"npz": an_npz, "csv": a_csv, "images": some_images, "site.toml": a_site_file}


if __name__ == "__main__":
    run_from_command_line(main, 500)
