"""The theorems of the papers as code: each is evaluated on a small problem of which everything is known."""

from __future__ import annotations

from collections.abc import Callable

from fedalloy.theory.dafkd import dafkd_theorem1_f, dafkd_theorem1_pg
from fedalloy.theory.dafkd_bound import dafkd_theorem2, dafkd_theorem2_limit
from fedalloy.theory.fedkf import fedkf_bound, fedkf_lemma1
from fedalloy.theory.finding import Finding
from fedalloy.theory.kdia import kdia_assumption2, kdia_theorem1, kdia_theorem1_proof

FINDINGS: dict[str, Callable[[], Finding]] = {
    "fedkf_lemma1": fedkf_lemma1,
    "fedkf_bound": fedkf_bound,
    "kdia_theorem1": kdia_theorem1,
    "kdia_theorem1_proof": kdia_theorem1_proof,
    "kdia_assumption2": kdia_assumption2,
    "dafkd_theorem1_f": dafkd_theorem1_f,
    "dafkd_theorem1_pg": dafkd_theorem1_pg,
    "dafkd_theorem2": dafkd_theorem2,
    "dafkd_theorem2_limit": dafkd_theorem2_limit,
}

__all__ = ["FINDINGS", "Finding", *FINDINGS]
