"""Heart Disease: patients of four hospitals, with 13 attributes of which many were not recorded.

The publisher is the UCI Machine Learning Repository: Janosi, Steinbrunn, Pfisterer and Detrano 1989, Heart Disease,
doi.org/10.24432/C52P4X, CC BY 4.0. The label is whether a coronary artery is narrowed by half or more (`num` above 0).

FLamby's Fed-Heart-Disease is a part of it: 740 patients for whom the first ten attributes were recorded.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from fedalloy.base.checked import shown
from fedalloy.base.files import quoted
from fedalloy.data import files
from fedalloy.data.columns import Column, Floats
from fedalloy.data.fetch import fetch, find
from fedalloy.data.readers import reading
from fedalloy.errors import DataError, UsageError

Keep = Literal["all", "flamby"]

HOSPITALS = ("Cleveland", "Hungary", "Switzerland", "Long Beach")
COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal"),
)
# The published codes. cp, chest pain: typical angina, atypical, other pain, none. restecg, the ECG at rest: normal,
# ST-T abnormal, hypertrophy. slope of ST in exercise: up, flat, down. thal: normal, fixed or reversible defect.
CATEGORICAL = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2), "slope": (1, 2, 3), "thal": (3, 6, 7)}
BINARY = ("sex", "fbs", "exang")  # 1: male; fasting blood sugar above 120 mg/dl; angina in exercise
_NOT_MEASURED = ("?", "-9", "-9.0", "")
_NEVER_ZERO = ("trestbps", "chol")  # nobody's blood pressure or cholesterol is 0
_FLAMBY_COLUMNS = 10  # without slope, ca and thal, which three hospitals rarely recorded

# FLamby's test patients, one bit for each patient that it keeps, in the order of the files. FLamby draws them with
# scikit-learn's train_test_split for each hospital: 66 % for training, random_state 43, stratified by the label if each
# label has more than two patients. The bits are what scikit-learn 1.9.1 draws; the numbers agree with FLamby's README.
_FLAMBY_TEST = (
    (303, "040480a020b3c59dc48a03b505c0481087c001ac9430180a847015a598491260f8e2001cebe4"),
    (261, "1100847cb841d42c88700d510093869198d144134848122f693a0411802910ba30"),
    (46, "07863a8c80c0"),
    (130, "464800245b65020eb85b04886003a74580"),
)


class Patients(NamedTuple):
    """Rows of the four hospitals, in the publisher's coding, with NaN for what was not recorded."""

    x: Floats  # N x C
    y: NDArray[np.int64]  # 1: narrowed
    client_ids: NDArray[np.int64]  # the position in client_names
    client_names: tuple[str, ...]
    columns: tuple[str, ...]
    test: NDArray[np.bool_] | None  # the rows that FLamby tests with


def find_heart() -> list[Path]:
    """Return the four files: the published ones or compact copies, if they are on this computer, else downloads."""
    published = [find(file) for file in files.HEART]
    if None in published:
        compact = [path for file in files.COMPACT_HEART if (path := find(file)) is not None]
        if len(compact) == len(files.COMPACT_HEART):
            return compact
    return [found or fetch(file) for found, file in zip(published, files.HEART, strict=True)]


def read_heart(paths: Sequence[Path], *, keep: Keep = "all") -> Patients:
    """Read the files of Cleveland, Hungary, Switzerland and Long Beach, in this order.

    With `keep="all"`, all 920 patients and 13 attributes are returned. A blood pressure or cholesterol of 0 is treated
    as missing: Switzerland wrote a cholesterol of 0 for all its patients, Long Beach for a quarter of them.

    With `keep="flamby"`, these are the 740 patients and ten attributes of FLamby's Fed-Heart-Disease (303, 261, 46 and
    130 patients), without slope, ca and thal, and `test` marks FLamby's test rows. As there, a 0 counts as a value;
    otherwise no Swiss patient would be left. FLamby then makes 13 inputs of these columns: cp and restecg are one-hot
    without their first category, and each hospital standardises with its own training rows.
    """
    if keep not in get_args(Keep):
        raise UsageError(f'keep = {keep!r} is invalid; write "all" or "flamby"')
    if len(paths) != len(HOSPITALS):
        raise DataError(f"Heart Disease has {len(HOSPITALS)} files, one per hospital, but {len(paths)} were given")
    tables = [_read(path) for path in paths]
    client_ids = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    table = np.concatenate(tables)
    x, y = table[:, :-1].astype(np.float32), (table[:, -1] > 0).astype(np.int64)
    if keep == "all":
        for name in _NEVER_ZERO:
            values = x[:, COLUMNS.index(name)]
            values[values == 0] = np.nan
        return Patients(x, y, client_ids, HOSPITALS, COLUMNS, None)
    x = x[:, :_FLAMBY_COLUMNS]
    whole = ~np.isnan(x).any(axis=1)
    x, y, client_ids = x[whole], y[whole], client_ids[whole]
    return Patients(x, y, client_ids, HOSPITALS, COLUMNS[:_FLAMBY_COLUMNS], _flamby_test(client_ids))


def as_table(patients: Patients) -> tuple[Floats, tuple[Column, ...]]:
    """Return the rows with a code for each category, as `Column` has it; categories are named by the published codes.

    >>> row = np.array([[63, 7], [50, np.nan]], np.float32)
    >>> label = np.array([0, 1])
    >>> x, columns = as_table(Patients(row, label, label, ("here", "there"), ("age", "thal"), None))
    >>> x.tolist(), columns[1]
    ([[63.0, 2.0], [50.0, nan]], Column(name='thal', categories=('3', '6', '7')))
    """
    x = patients.x.copy()
    columns = []
    for place, name in enumerate(patients.columns):
        codes = CATEGORICAL.get(name)
        columns.append(Column(name, None if codes is None else tuple(str(code) for code in codes)))
        if codes is not None:
            held = ~np.isnan(x[:, place])
            x[held, place] = np.searchsorted(codes, x[held, place])
    return x, tuple(columns)


def _read(path: Path) -> NDArray[np.float64]:
    """Read one hospital's file, N x 14: the publisher's, or a copy with a header and empty cells."""
    names = (*COLUMNS, "num")
    with reading(path, "a file of Heart Disease"), path.open(encoding="ascii", newline="") as text:
        rows = []
        for number, cells in enumerate(csv.reader(text), start=1):
            if not cells or (number == 1 and tuple(cells) == names):
                continue
            where = f"{quoted(path)}, line {number}"
            if len(cells) != len(names):
                raise DataError(f"{where}: there are {len(cells)} values instead of {len(names)}; replace the file")
            rows.append([_value(cell.strip(), name, where) for cell, name in zip(cells, names, strict=True)])
    if not rows:
        raise DataError(f"{quoted(path)} has no patients; replace it with the published file")
    return np.array(rows)


def _value(cell: str, name: str, where: str) -> float:
    if cell in _NOT_MEASURED and name != "num":
        return math.nan
    allowed = (0, 1, 2, 3, 4) if name == "num" else (0, 1) if name in BINARY else CATEGORICAL.get(name)
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (allowed is not None and value not in allowed):
        what = "a number" if allowed is None else f"one of {', '.join(map(str, allowed))}"
        raise DataError(f"{where}: {name} is {shown(cell)}, but it must be {what}; replace the file")
    return value


def _flamby_test(client_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    parts = []
    for hospital, (patients, bits) in enumerate(_FLAMBY_TEST):
        held = int((client_ids == hospital).sum())
        if held != patients:
            raise DataError(
                f'keep = "flamby" needs the published files: {HOSPITALS[hospital]} has {held} patients without missing '
                f"values instead of {patients}"
            )
        parts.append(np.unpackbits(np.frombuffer(bytes.fromhex(bits), np.uint8), count=patients).astype(np.bool_))
    return np.concatenate(parts)
