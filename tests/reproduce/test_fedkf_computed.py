"""FedKF's computed claims on small records: as claimed, the other way round, equal, and with runs missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from fedalloy.reproduce.catalogue import Claim, Item, paper
from fedalloy.reproduce.claims import judge
from fedalloy.reproduce.computed import FUNCTIONS, fedkf
from fedalloy.reproduce.results import Results
from fedalloy.storage.results import Run

FEDKF = paper("fedkf")
SEEDS = (0, 1, 2)
HOLDS = "holds at reduced scale"
Rounds = Callable[[str, str, int], list[dict[str, Any]]]  # of a method's key, in a column, with a seed


def recorded(item: Item, columns: tuple[str, ...], rounds: Rounds, scale: str = "cpu") -> Results:
    """The runs of an item whose rounds have this content."""
    runs = {}
    for column in columns:
        for method in dict.fromkeys(row.method for row in item.rows):
            for seed in SEEDS:
                records = tuple({"round": t, **part} for t, part in enumerate(rounds(method, column, seed), 1))
                runs[column, method, seed] = Run({"label": method, "seed": seed}, records)
    return Results(item, scale, columns, SEEDS, runs)


def without(results: Results, column: str, method: str, seed: int) -> Results:
    return replace(results, runs={key: run for key, run in results.runs.items() if key != (column, method, seed)})


def verdict(name: str, results: Results) -> str:
    return judge(claim(name), results).verdict


def claim(name: str) -> Claim:
    return next(one for one in FEDKF.claims if one.function == name)


def values(name: str, results: Results | None) -> Mapping[int, float]:
    found = FUNCTIONS[name](results)
    assert found.values is not None, found.text
    return found.values


# --- the best two of Table V ------------------------------------------------------------------------------------------


def table5(scores: Mapping[tuple[str, str], tuple[float, float, float]]) -> Results:
    """AMP, FM (thousandths) and WLP by method and view; others have 50, 5 and 40. A little more with each seed."""

    def rounds(method: str, _: str, seed: int) -> list[dict[str, Any]]:
        views = {}
        for view in ("aca", "oca"):
            amp, fm, wlp = scores.get((method, view), (50.0, 5.0, 40.0))
            views[view] = {"amp": (amp + seed) / 100, "fm": fm / 1000, "wlp": (wlp + seed) / 100}
        return [{"views": views}]

    return recorded(FEDKF.item("tablev"), ("alpha = 0.1", "alpha = 1"), rounds)


def test_the_lead_over_the_third_best_is_the_least_of_three_metrics() -> None:
    best = table5({("fedkf", "oca"): (60.0, 3.0, 55.0), ("fedgen", "aca"): (62.0, 2.0, 60.0)})
    assert values("fedkf_top_two", best) == dict.fromkeys(SEEDS, pytest.approx(2.0)), "FM, in thousandths"
    assert verdict("fedkf_top_two", best) == HOLDS


def test_the_best_form_may_be_another_one_in_each_metric() -> None:
    mixed = table5({("fedkf", "oca"): (60.0, 9.0, 10.0), ("fedkf-minus", "aca"): (10.0, 1.0, 70.0)})
    assert values("fedkf_top_two", mixed) == dict.fromkeys(SEEDS, pytest.approx(4.0))


@pytest.mark.parametrize("worse", [(40.0, 3.0, 55.0), (60.0, 9.0, 55.0), (60.0, 3.0, 30.0)])
def test_one_metric_in_which_no_form_is_among_the_best_two_contradicts(worse: tuple[float, float, float]) -> None:
    forms = {(method, view): worse for method in ("fedkf", "fedkf-minus") for view in ("aca", "oca")}
    assert verdict("fedkf_top_two", table5(forms)) == "contradicted"


def test_equal_rows_show_no_lead() -> None:
    assert values("fedkf_top_two", table5({})) == dict.fromkeys(SEEDS, 0.0)
    assert verdict("fedkf_top_two", table5({})) == "not shown"


def test_controls_are_not_among_the_rows() -> None:
    """FedAvg (OCA) is a row that the paper does not have."""
    rivals = {("fedavg", "oca"): (90.0, 0.1, 90.0), ("fedgen", "aca"): (80.0, 0.2, 80.0)}
    assert values("fedkf_top_two", table5({**rivals, ("fedkf", "aca"): (60.0, 3.0, 55.0)}))[0] > 0


def test_the_best_two_need_every_run_of_the_column() -> None:
    whole = table5({})
    assert FUNCTIONS["fedkf_top_two"](without(whole, "alpha = 1", "qffl", 1)).text == "Missing runs with seed 1."
    assert FUNCTIONS["fedkf_top_two"](without(whole, "alpha = 0.1", "qffl", 1)).values is not None
    elsewhere = FUNCTIONS["fedkf_top_two"](replace(whole, columns=("alpha = 0.1",)))
    assert (elsewhere.values, elsewhere.holds) == (None, None)


# --- fluctuation, Fig. 5 ----------------------------------------------------------------------------------------------


def fig5(aca: float, oca: float, length: int = 24) -> Results:
    """FM of FedKF goes up and down by so many thousandths; the first rounds are wild."""

    def rounds(method: str, _: str, seed: int) -> list[dict[str, Any]]:
        def fm(t: int, swing: float) -> float:
            return (5 + seed + (-1) ** t * (swing if t >= length - 20 else 90)) / 1000

        both = [{"aca": {"fm": fm(t, aca)}, "oca": {"fm": fm(t, oca)}} for t in range(length)]
        wrong = [{"aca": {"fm": t / 10}, "oca": {"fm": t / 10}} for t in range(length)]
        return [{"views": views} for views in (both if method == "fedkf" else wrong)]

    return recorded(FEDKF.item("fig5"), ("EMNIST",), rounds)


def test_fluctuation_is_the_deviation_over_the_last_rounds() -> None:
    spread = (20 / 19) ** 0.5  # of twenty values, 1 and -1 in turn
    assert values("fedkf_fm_fluctuation", fig5(3.0, 1.0)) == dict.fromkeys(SEEDS, pytest.approx(2 * spread))
    found = [verdict("fedkf_fm_fluctuation", fig5(*swings)) for swings in ((3.0, 1.0), (1.0, 3.0), (2.0, 2.0))]
    assert found == [HOLDS, "contradicted", "not shown"]


def test_a_single_round_does_not_fluctuate() -> None:
    assert verdict("fedkf_fm_fluctuation", fig5(3.0, 1.0, length=1)) == "not tested"


# --- passes and bytes, Table IX ---------------------------------------------------------------------------------------

PASSES = {"fedavg": (1, 1, 0, 0), "fedprox": (1, 1, 0, 0), "fedgen": (1.5, 1.5, 1, 0), "fedgkd": (2, 1, 0, 0)} | {
    "qffl": (1, 1, 0, 0),
    "fedkf-minus": (3, 3, 1, 1),
    "fedkf": (3, 3, 1, 1),
}


def table9(passes: Mapping[str, tuple[float, ...]], sent: Mapping[str, tuple[int, int]] | None = None) -> Results:
    kinds = ("forward", "backward", "generator_forward", "generator_backward")

    def rounds(method: str, _: str, __: int) -> list[dict[str, Any]]:
        counts = dict(zip(kinds, (10 * count for count in passes[method]), strict=True))
        up, down = (sent or {}).get(method, (100, 100))
        costs = {"passes": {"clients": {**counts, "steps": 10}}, "bytes": {"up": {"x": up}, "down": {"x": down}}}
        return [{"views": {"aca": {"amp": 0.5}}, **costs}] * 2

    return recorded(FEDKF.item("tableix"), ("EMNIST",), rounds)


def test_passes_are_those_of_the_table() -> None:
    found = FUNCTIONS["fedkf_passes"](table9(PASSES))
    assert (found.holds, found.text) == (True, "All 28 counts of Table IX are those of the records.")


@pytest.mark.parametrize("method", PASSES)
@pytest.mark.parametrize("kind", range(4))
def test_a_single_other_count_contradicts(method: str, kind: int) -> None:
    counts = list(PASSES[method])
    counts[kind] += 0.01
    found = FUNCTIONS["fedkf_passes"](table9({**PASSES, method: tuple(counts)}))
    assert found.holds is False
    assert found.text.startswith("1 of 28 counts differ: ")


def test_a_single_run_with_another_count_contradicts() -> None:
    whole, other = table9(PASSES), table9({**PASSES, "fedkf": (4, 4, 1, 1)})
    odd = {**whole.runs, ("EMNIST", "fedkf", 2): other.runs["EMNIST", "fedkf", 2]}
    assert FUNCTIONS["fedkf_passes"](replace(whole, runs=odd)).holds is False


def test_passes_need_runs_of_each_method_and_figures_to_compare_with() -> None:
    whole = table9(PASSES)
    some = replace(whole, runs={key: run for key, run in whole.runs.items() if key[1] != "fedgen"})
    assert FUNCTIONS["fedkf_passes"](some).text == "Missing runs: FedGen."
    unknown = FUNCTIONS["fedkf_passes"](replace(whole, item=replace(whole.item, published=(), paper="", id="none")))
    assert unknown.holds is None, "no count is not every count"


RIGHT = {"fedavg": (100, 100), "fedkf": (100, 200), "fedkf-minus": (100, 100)}


@pytest.mark.parametrize(
    ("sent", "holds"),
    [
        (RIGHT, True),
        ({**RIGHT, "fedkf": (100, 201)}, True),
        ({**RIGHT, "fedkf": (200, 100)}, False),
        ({**RIGHT, "fedkf": (100, 100)}, False),
        ({**RIGHT, "fedkf": (102, 200)}, False),
        ({**RIGHT, "fedkf-minus": (100, 200)}, False),
        ({**RIGHT, "fedkf-minus": (98, 100)}, False),
        ({**RIGHT, "fedavg": (100, 200)}, False),
    ],
)
def test_bytes_are_once_and_twice_those_of_fedavg(sent: dict[str, tuple[int, int]], holds: bool) -> None:
    found = FUNCTIONS["fedkf_bytes"](table9(PASSES, sent))
    assert found.holds is holds
    assert f"FedKF down {sent['fedkf'][1] / sent['fedavg'][1]:.3f}" in found.text


def test_bytes_need_runs() -> None:
    whole = table9(PASSES, RIGHT)
    for method in RIGHT:
        some = replace(whole, runs={key: run for key, run in whole.runs.items() if key[1] != method})
        found = FUNCTIONS["fedkf_bytes"](some)
        assert (found.holds, found.text[:12]) == (None, "Missing runs")


# --- to a target, Tables VIII and XI ----------------------------------------------------------------------------------


def to_target(item: str, reached: Mapping[tuple[str, str], int], each: Mapping[str, float]) -> Results:
    """Ten rounds; the AMP is reached in this one (or never), and a round costs so many megabytes and seconds."""

    def rounds(method: str, _: str, seed: int) -> list[dict[str, Any]]:
        def views(t: int) -> dict[str, Any]:
            first = {view: reached.get((method, view), 99) for view in ("aca", "oca")}
            return {view: {"amp": 0.60 + seed / 1000 if t >= first[view] else 0.59} for view in first}

        spent = each.get(method, 1.0)
        sent = {"up": {"x": 0.75e6 * spent}, "down": {"x": 0.25e6 * spent}}
        seconds = {"client": 0.75 * spent, "server": 0.25 * spent, "evaluation": 50.0}
        return [{"views": views(t), "bytes": sent, "seconds": seconds} for t in range(1, 11)]

    return recorded(FEDKF.item(item), ("EMNIST",), rounds)


SOON = {("fedavg", "aca"): 8, ("fedavg", "oca"): 1, ("fedkf", "oca"): 3, ("fedkf-minus", "oca"): 2}


def test_bytes_to_a_target_are_those_of_the_rounds_up_to_it() -> None:
    costs = {"fedavg": 2.0, "fedkf": 3.0, "fedkf-minus": 2.0}
    found = to_target("tableviii", SOON, costs)
    assert values("fedkf_bytes_to_target", found) == dict.fromkeys(SEEDS, pytest.approx(8 * 2 - 3 * 3))
    assert verdict("fedkf_bytes_to_target", found) == HOLDS


def test_the_larger_of_both_counts_and_a_missed_target_twice() -> None:
    costs = {"fedavg": 2.0, "fedkf": 3.0, "fedkf-minus": 2.0}
    late = to_target("tableviii", {**SOON, ("fedkf-minus", "oca"): 9}, costs)
    assert values("fedkf_bytes_to_target", late) == dict.fromkeys(SEEDS, pytest.approx(16 - 18))
    assert verdict("fedkf_bytes_to_target", late) == "contradicted"
    never = to_target("tableviii", {**SOON, ("fedkf", "oca"): 11}, costs)
    assert values("fedkf_bytes_to_target", never) == dict.fromkeys(SEEDS, pytest.approx(16 - 2 * 10 * 3))
    nobody = to_target("tableviii", {}, {})
    assert verdict("fedkf_bytes_to_target", nobody) == "not shown"


def test_time_to_a_target_leaves_out_evaluation() -> None:
    costs = {"fedavg": 1.0, "fedkf": 2.0}
    found = to_target("tablexi", SOON, costs)
    assert values("fedkf_time_to_target", found) == dict.fromkeys(SEEDS, pytest.approx(8 - 6))
    slower = to_target("tablexi", SOON, {**costs, "fedkf": 4.0})
    equal = to_target("tablexi", {**SOON, ("fedavg", "aca"): 6}, costs)
    found_verdicts = [verdict("fedkf_time_to_target", one) for one in (found, slower, equal)]
    assert found_verdicts == [HOLDS, "contradicted", "not shown"]


@pytest.mark.parametrize(
    ("name", "item"), [("fedkf_bytes_to_target", "tableviii"), ("fedkf_time_to_target", "tablexi")]
)
def test_runs_or_costs_that_are_missing_test_nothing(name: str, item: str) -> None:
    whole = to_target(item, SOON, {})
    assert FUNCTIONS[name](without(whole, "EMNIST", "fedavg", 2)).text == "Missing runs with seed 2: FedAvg."
    none = {"bytes": {"up": None, "down": None}, "seconds": {}}
    bare = {key: replace(run, rounds=tuple({**r, **none} for r in run.rounds)) for key, run in whole.runs.items()}
    found = judge(claim(name), replace(whole, runs=bare))
    assert (found.verdict, "no number for seed 0, 1 and 2" in found.reason) == ("not tested", True)


# --- time, Table X ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ratio", "expected"), [(1.5, HOLDS), (2.5, "contradicted"), (2.0, "not shown")])
def test_the_ratio_of_training_times(ratio: float, expected: str) -> None:
    def rounds(method: str, _: str, seed: int) -> list[dict[str, Any]]:
        spent = (ratio if method == "fedkf" else 1.0) * (seed + 1)
        return [{"views": {"aca": {"amp": 0.5}}, "seconds": {"client": spent, "server": spent, "evaluation": 70.0}}] * 3

    found = recorded(FEDKF.item("tablex"), ("EMNIST",), rounds)
    assert values("fedkf_time_ratio", found) == dict.fromkeys(SEEDS, pytest.approx(2 - ratio))
    assert verdict("fedkf_time_ratio", found) == expected
    assert (
        FUNCTIONS["fedkf_time_ratio"](without(found, "EMNIST", "fedkf", 0)).text == "Missing runs with seed 0: FedKF."
    )


# --- participation, Fig. 7 --------------------------------------------------------------------------------------------


def fig7(amps: Mapping[str, tuple[float, float]]) -> Results:
    """AMP by alpha, with all clients and with a fifth of them; the other view would say the contrary."""
    columns = tuple(f"EMNIST, K = 20, alpha = {alpha}, C = {share}" for alpha in amps for share in ("1", "0.2"))

    def rounds(_: str, column: str, seed: int) -> list[dict[str, Any]]:
        alpha = column.split("alpha = ")[1].split(",")[0]
        amp = amps[alpha][column.endswith("0.2")] + seed
        return [{"views": {"aca": {"amp": amp / 100}, "oca": {"amp": 1 - amp / 100}}}]

    return recorded(FEDKF.item("fig7"), columns, rounds)


def test_what_participation_costs_by_alpha() -> None:
    more, less = {"0.01": (60.0, 40.0), "0.1": (70.0, 65.0)}, {"0.01": (60.0, 58.0), "0.1": (70.0, 60.0)}
    same = {"0.01": (60.0, 50.0), "0.1": (70.0, 60.0)}
    assert values("fedkf_participation_gap", fig7(more)) == dict.fromkeys(SEEDS, pytest.approx(20 - 5))
    found = [verdict("fedkf_participation_gap", fig7(amps)) for amps in (more, less, same)]
    assert found == [HOLDS, "contradicted", "not shown"]
    some = without(fig7(more), "EMNIST, K = 20, alpha = 0.1, C = 1", "fedavg", 1)
    assert judge(claim("fedkf_participation_gap"), some).verdict == "not tested"
    assert "seed 1" in judge(claim("fedkf_participation_gap"), some).reason
    assert FUNCTIONS["fedkf_participation_gap"](replace(some, runs={})) == fedkf.NONE


# --- examples ---------------------------------------------------------------------------------------------------------


def test_the_papers_example_and_the_counterexample(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fedkf.example(None).holds is True
    found = fedkf.worst_and_fair(None)
    assert found.holds is False
    assert "0.0162 against 0.0050" in found.text
    monkeypatch.setattr(fedkf, "fm", lambda accuracies: 1.5 * 0.00667)  # by the number of clients less one
    assert fedkf.example(None).holds is False
    assert fedkf.worst_and_fair(None).holds is True


def test_without_runs_nothing_is_computed() -> None:
    free = ("fedkf_table2", "fedkf_wlp_is_joint", "fedkf_top_two")
    for name, function in FUNCTIONS.items():
        if function.__module__ == fedkf.__name__ and name not in free:
            assert function(None) == fedkf.NONE
    assert fedkf.top_two(None).values is None
