"""FedMD+Global's computed claims on small records."""

from __future__ import annotations

import pytest

from fedalloy.reproduce.catalogue import paper
from fedalloy.reproduce.claims import judge
from fedalloy.reproduce.computed import fedmd_global
from fedalloy.reproduce.published import figure_of, published
from fedalloy.reproduce.results import Results
from fedalloy.storage.results import Run

FEDMD_GLOBAL = paper("fedmd-global")
SEEDS = (0, 1, 2)
DROPPING = {
    "FedAvg (100%), 0.1, 5": 0.6,
    "FedAvg (40%), 0.1, 5": 0.4,
    "FedAvg (100%), 0.5, 5": 0.7,
    "FedAvg (40%), 0.5, 5": 0.65,
}
LWOF = {"LwoF, 0.1, 5": 0.4, "Ours, 0.1, 5": 0.3, "LwoF, 0.5, 5": 0.52, "Ours, 0.5, 5": 0.5}


def recorded(item: str, view: str, amp: dict[str, float], noise: float = 0.01) -> Results:
    """Runs of one round whose AMP is that of their column, with a little that differs from seed to seed."""
    runs = {
        (column, "system", seed): Run(
            {"label": "system", "seed": seed, "status": "done"},
            ({"round": 1, "views": {view: {"amp": value + noise * seed * (1 + 0.1 * place)}}},),
        )
        for place, (column, value) in enumerate(amp.items())
        for seed in SEEDS
    }
    return Results(FEDMD_GLOBAL.item(item), "cpu", tuple(amp), SEEDS, runs)


def turned(amp: dict[str, float]) -> dict[str, float]:
    """The same with the two alphas changed for each other."""
    other = {"0.1": "0.5", "0.5": "0.1"}
    return {column.replace(alpha := column.split(", ")[1], other[alpha]): value for column, value in amp.items()}


@pytest.mark.parametrize(
    ("claim", "view", "amp", "difference"),
    [
        ("dropping-costs-more-at-0.1", "aca", DROPPING, 15.0),
        ("lwof-helps-more-at-0.1", "personal", LWOF, 8.0),
    ],
)
def test_what_the_alphas_change(claim: str, view: str, amp: dict[str, float], difference: float) -> None:
    one = next(found for found in FEDMD_GLOBAL.claims if found.id == claim)
    judged = judge(one, recorded(one.item, view, amp))
    assert judged.verdict == "holds at reduced scale"
    assert judged.comparisons[0].values[0] == pytest.approx(difference)
    assert judge(one, recorded(one.item, view, turned(amp))).verdict == "contradicted"
    assert judge(one, recorded(one.item, view, dict.fromkeys(amp, 0.5))).verdict == "not shown"
    assert judge(one, None).verdict == "not tested"
    few = recorded(one.item, view, dict(list(amp.items())[:3]))
    assert judge(one, few).reason == "The four columns that it compares are not run at this scale."
    lacking = recorded(one.item, view, amp)
    runs = {key: run for key, run in lacking.runs.items() if key != (next(iter(amp)), "system", 2)}
    told = judge(one, Results(lacking.item, "cpu", lacking.columns, SEEDS, runs))
    assert (told.verdict, told.reason) == ("not tested", f"Missing runs with seed 2: {next(iter(amp))}.")


def test_the_number_of_epochs_with_the_smaller_difference_counts() -> None:
    ten = {column.removesuffix("5") + "10": value for column, value in DROPPING.items()}
    ten["FedAvg (40%), 0.1, 10"] = 0.5
    values = fedmd_global.dropping_by_alpha(recorded("table2", "aca", DROPPING | ten, noise=0.0)).values
    assert values == pytest.approx(dict.fromkeys(SEEDS, 5.0))


def test_the_papers_own_figures_have_these_differences() -> None:
    for item, view, row, one, least in (
        ("table2", "aca", "FedAvg", fedmd_global.dropping_by_alpha, 6.02),
        ("table3", "personal", "Personalised", fedmd_global.lwof_gain_by_alpha, 2.71),
    ):
        figures = published(FEDMD_GLOBAL.item(item))
        columns = {column for label, column, _ in figures if label == row}
        printed = {column: (figure_of(figures, row, column, "amp") or 0.0) / 100 for column in columns}
        assert one(recorded(item, view, printed, noise=0.0)).values == pytest.approx(dict.fromkeys(SEEDS, least))


def test_parameters_of_table_1() -> None:
    found = fedmd_global.parameters(None)
    assert found.holds
    assert "4.7 million" in found.text
    assert "6.8" in found.text
    assert "11.3" in found.text
