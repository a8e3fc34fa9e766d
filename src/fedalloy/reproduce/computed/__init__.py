"""Claims that are computed and not compared: theorems on toy distributions, counts, bytes, places in an order."""

from __future__ import annotations

from fedalloy.reproduce.computed import fedkf, theory
from fedalloy.reproduce.computed.answer import Computed, Function

__all__ = ["FUNCTIONS", "Computed", "Function"]

FUNCTIONS: dict[str, Function] = {
    "fedkf_top_two": fedkf.top_two,
    "fedkf_fm_fluctuation": fedkf.fm_fluctuation,
    "fedkf_passes": fedkf.passes,
    "fedkf_bytes": fedkf.sent,
    "fedkf_bytes_to_target": fedkf.bytes_to_target,
    "fedkf_time_ratio": fedkf.time_ratio,
    "fedkf_participation_gap": fedkf.participation_gap,
    "fedkf_time_to_target": fedkf.time_to_target,
    "fedkf_table2": fedkf.example,
    "fedkf_wlp_is_joint": fedkf.worst_and_fair,
    **theory.FUNCTIONS,
}
"""The functions that claims name, by that name."""
