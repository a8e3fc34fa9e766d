"""Read a .parquet file."""

from __future__ import annotations

from pathlib import Path

from fedalloy.base.files import quoted
from fedalloy.data.own.arrow import as_table, library, refuse_large
from fedalloy.data.own.parts import Held, part_of
from fedalloy.data.own.roles import Layout, roles
from fedalloy.data.own.wanted import Wanted
from fedalloy.errors import DataError


def read_parquet(path: Path, wanted: Wanted, layout: Layout | None) -> Held:
    """Read a .parquet file; the label is by default its last column."""
    parquet = library("pyarrow.parquet", "a .parquet file")
    with path.open("rb") as stream:
        if stream.read(4) != b"PAR1":
            raise DataError(f"{quoted(path)} is not a .parquet file; write one with DataFrame.to_parquet(path)")
    with parquet.ParquetFile(path, memory_map=False) as held:
        header = held.schema_arrow.names
        chosen = roles(path, header, wanted, layout)
        groups = [held.metadata.row_group(k) for k in range(held.num_row_groups)]
        # A few bytes can stand for a huge number of equal values.
        refuse_large(path, max(8 * held.metadata.num_rows * len(chosen.read), sum(g.total_byte_size for g in groups)))
        text = [name for name in chosen.read if str(held.schema_arrow.field(name).type) in ("string", "large_string")]
    with parquet.ParquetFile(path, memory_map=False, read_dictionary=text) as held:
        table = as_table(path, held.read(columns=list(chosen.read), use_threads=False), chosen, wanted)
    part = part_of(table, chosen, wanted)
    return Held(part, None, Layout(chosen.inputs, f"{quoted(path)} has", chosen.labels), frozenset(header))
