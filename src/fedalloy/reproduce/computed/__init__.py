"""Claims that are computed and not compared: theorems on toy distributions, counts, bytes, places in an order."""

from __future__ import annotations

from fedalloy.reproduce.computed import fedkf, fedmd_global, kdia, theory
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
    "fedmd_global_parameters": fedmd_global.parameters,
    "fedmd_global_dropping_by_alpha": fedmd_global.dropping_by_alpha,
    "fedmd_global_lwof_gain_by_alpha": fedmd_global.lwof_gain_by_alpha,
    "kdia_participation_variance": kdia.participation_variance,
    "kdia_interval_variance": kdia.interval_variance,
    "kdia_more_even": kdia.more_even,
    "kdia_less_even": kdia.less_even,
    "kdia_fewer_outliers": kdia.fewer_outliers,
    "kdia_adjusted_similarity": kdia.adjusted_similarity,
    "kdia_trained_similarity": kdia.trained_similarity,
    "kdia_fewer_rounds": kdia.fewer_rounds,
    "kdia_fewer_rounds_than_control": kdia.fewer_rounds_than_control,
    "kdia_bytes_to_target": kdia.bytes_to_target,
    "kdia_mostly_averaging": kdia.mostly_averaging,
    "kdia_lead_by_round": kdia.lead_by_round,
    **theory.FUNCTIONS,
}
"""The functions that claims name, by that name."""
