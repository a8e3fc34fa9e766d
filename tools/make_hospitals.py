"""Make the five hospitals that come with fedalloy from the breast cancer data in scikit-learn's wheel.

Run it from the project's root: `python tools/make_hospitals.py scikit_learn-*.whl` (`pip download --no-deps
scikit-learn` fetches a wheel), or give the wheel's `breast_cancer.csv`. The same input gives the same files. What is
done to the data is described in `src/fedalloy/data/embedded/hospitals/README.md`.
"""

from __future__ import annotations

import csv
import hashlib
import io
import sys
import zipfile
from pathlib import Path

import numpy as np

OUT = Path(__file__).parents[1] / "src" / "fedalloy" / "data" / "embedded" / "hospitals"
MEMBER = "sklearn/datasets/data/breast_cancer.csv"
SHA256 = "fed3eb72d0575ef6192293f5093c6e801b1476b577d0386bf4455504522172ed"  # in scikit-learn 1.9.1
# The file's header has no names. These are the columns that are kept, all of them means over a patient's cell nuclei.
KEPT = {"texture": 1, "smoothness": 4, "compactness": 5, "concavity": 6, "symmetry": 8, "fractal_dimension": 9}
SORTED_BY = "fractal_dimension"
SITES = {"north_clinic": 44, "east_clinic": 75, "south_clinic": 110, "west_hospital": 150, "central_hospital": 190}
MISSING, SEED = 0.08, 0


def sites(text: str) -> dict[str, str]:
    """Return the CSV file of each site, given scikit-learn's file of all patients."""
    header, *rows = csv.reader(io.StringIO(text))
    names = header[2:]  # after the numbers of rows and columns
    if len(rows) != sum(SITES.values()):
        raise ValueError(f"there are {len(rows)} patients instead of {sum(SITES.values())}")
    # Each value is deleted or kept on its own; a diagnosis is never deleted.
    deleted = np.random.default_rng(SEED).random((len(rows), len(KEPT))) < MISSING
    by_feature = np.argsort([float(row[KEPT[SORTED_BY]]) for row in rows], kind="stable")
    parts = np.split(by_feature, np.cumsum(list(SITES.values()))[:-1])
    made = {}
    for site, part in zip(SITES, parts, strict=True):
        lines = [",".join((*KEPT, "diagnosis"))]
        for row in sorted(part.tolist()):  # within a site, the published order
            cells = ["" if gone else rows[row][at] for at, gone in zip(KEPT.values(), deleted[row], strict=True)]
            lines.append(",".join((*cells, names[int(rows[row][-1])])))
        made[site] = "\n".join(lines) + "\n"
    return made


def main(source: Path) -> None:
    """Write the embedded files."""
    data = zipfile.ZipFile(source).read(MEMBER) if source.suffix == ".whl" else source.read_bytes()
    if hashlib.sha256(data).hexdigest() != SHA256:
        raise SystemExit(f"{source} has another breast_cancer.csv than scikit-learn 1.9.1")
    for site, text in sites(data.decode("ascii")).items():
        (OUT / f"{site}.csv").write_text(text, encoding="ascii", newline="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
