"""Verdicts on synthetic records: each kind of claim by hand, and every claim of every paper held, swapped and equal."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest

from fedalloy.errors import DataError
from fedalloy.federation.metrics import METRICS
from fedalloy.reproduce import computed
from fedalloy.reproduce.catalogue import Claim, Item, PublishedColumn, Row, Scale, papers
from fedalloy.reproduce.claims import judge
from fedalloy.reproduce.computed import Computed
from fedalloy.reproduce.plan import columns as cells
from fedalloy.reproduce.published import published
from fedalloy.reproduce.results import TARGET, Results, digest
from fedalloy.storage.results import Run

SEEDS = (0, 1, 2)
HOLDS = "holds at reduced scale"


def records(metric, by_view, length):
    """Rounds in which `metric` is the given number for each view, in the unit that is printed."""
    target, known = TARGET.fullmatch(metric), METRICS.get(metric)
    (first, *others) = by_view.values()
    found = []
    for t in range(1, length + 1):
        record = {"round": t, "notes": {}, "views": {}}
        for view, value in by_view.items():
            scores = record["views"][view] = dict.fromkeys(("amp", "test", "validation", "alma"), 0.1)
            if target:
                scores[target[1]] = 0.99 if t >= value else 0.0
            elif metric == "stability":
                scores["amp"] = 0.5 + value / 100 * (-1) ** t
            elif metric == "gap":
                record["views"]["distilled"] = {"amp": scores["amp"] + value / 100}
            elif known and known.source == "view":
                scores[metric] = value / known.factor
        if metric.startswith("note ") or (known and known.path):
            assert all(value == first for value in others), "two views of one run have the same costs and notes"
            record["notes"][metric.removeprefix("note ")] = first
        if known and known.path:
            for path, value in ((known.path, first), (known.plus, 0), (known.per, 1)):
                if path:
                    where = record.setdefault(path[0], {})
                    for part in path[1:-1]:
                        where = where.setdefault(part, {})
                    where[path[-1] if len(path) > 1 else "up"] = value if known.per or t == 1 else 0
        found.append(record)
    return tuple(found)


def results(item, scale, columns, value, *, metric="", seeds=SEEDS, length=20, labels=()):
    """The records in which each row, or each of these, has in each column and seed what `value` says."""
    rows = [row for row in item.rows if not labels or row.label in labels]
    runs = {}
    for column, method, seed in product(columns, dict.fromkeys(row.method for row in rows), seeds):
        by_view = {row.view: value(row.label, column, seed) for row in rows if row.method == method}
        run = Run({"label": method, "seed": seed}, records(metric or item.metrics[0], by_view, length))
        runs[column, method, seed] = run
    return Results(item, scale, tuple(columns), tuple(seeds), runs)


ITEM = Item(
    "table1",
    "a table",
    "4",
    "scores",
    full=Scale(),
    cpu=Scale(stands_for={"small": "large"}),
    smoke=Scale(),
    rows=tuple(Row(label, label.lower(), "aca") for label in "ABC"),
    published=(PublishedColumn("x", (("A", "60.0 ± 1"), ("B", "50.0"), ("C", ""))),),
)


def claim(kind="greater", left=("A",), right=("B",), **more):
    return Claim("one", "table1", "4", "words", kind, left, right, **more)


def told(one, values, *, scale="cpu", columns=("x", "y"), seeds=SEEDS, item=ITEM):
    """The judgement on records that give a number, or one for each seed, for a row or for a row and column."""

    def value(label, column, seed):
        found = values.get((label, column), values.get(label, 30.0))
        return found[seed] if isinstance(found, tuple) else found

    return judge(one, results(item, scale, columns, value, metric=one.metric, seeds=seeds))


HIGH, LOW, NOISY = (50.0, 50.5, 49.5), (40.0, 40.2, 39.9), (60.0, 20.0, 45.0)
WIDE = {("A", "x"): HIGH, ("B", "x"): LOW, "A": 45.0, "B": 44.0}
CASES = {
    "greater": (claim(), {"A": HIGH, "B": LOW}, {"A": LOW, "B": HIGH}, {"A": HIGH, "B": HIGH}, {"A": NOISY, "B": LOW}),
    "less": (
        claim("less", metric="fm"), {"A": LOW, "B": HIGH}, {"A": HIGH, "B": LOW}, {"A": LOW, "B": LOW},
        {"A": NOISY, "B": LOW},
    ),
    "mean": (
        claim(over="mean"), {"A": LOW, ("A", "x"): HIGH, "B": LOW}, {"B": LOW, ("B", "x"): HIGH, "A": LOW},
        {"A": LOW, "B": LOW}, {"A": NOISY, "B": LOW},
    ),
    "other columns": (
        claim(right=(), columns=("x",), right_columns=("y",)), {("A", "x"): HIGH, ("A", "y"): LOW},
        {("A", "x"): LOW, ("A", "y"): HIGH}, {"A": HIGH}, {("A", "x"): NOISY, ("A", "y"): LOW},
    ),
    "margin": (
        claim(margin=5.0), {"A": HIGH, "B": LOW}, {"A": LOW, "B": HIGH}, {"A": HIGH, "B": HIGH},
        {"A": (43.0, 44.0, 42.0), "B": LOW},
    ),
    "wider": (
        claim("wider", columns=("x",), right_columns=("y",)), WIDE, {**WIDE, "A": 80.0}, {"A": HIGH, "B": LOW},
        {**WIDE, ("A", "x"): NOISY},
    ),
    "within columns": (
        claim("within", right=(), margin=3.0), {("A", "x"): HIGH, "A": 50.0}, {("A", "x"): HIGH, "A": 20.0},
        {("A", "x"): 50.0, "A": 47.0}, {("A", "x"): NOISY, "A": 44.0},
    ),
    "within rows": (
        claim("within", left=("A", "B"), right=(), columns=("x",), margin=3.0), {"A": HIGH, "B": 50.0},
        {"A": HIGH, "B": 20.0}, {"A": 50.0, "B": 47.0}, {"A": NOISY, "B": 44.0},
    ),
    "rounds to a target": (
        claim("less", metric="rounds to test 0.7"), {"A": 3, "B": 12}, {"A": 12, "B": 3}, {"A": 5, "B": 5},
        {"A": (3, 12, 9), "B": 9},
    ),
    "a note": (claim(metric="note size"), {"A": HIGH, "B": LOW}, {"A": LOW, "B": HIGH}, {}, {"A": NOISY, "B": LOW}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_kind_holds_is_contradicted_and_is_not_shown(case):
    one, *records = CASES[case]
    verdicts = [told(one, values).verdict for values in records]
    assert verdicts == [HOLDS, "contradicted", "not shown", "not shown"]


def test_the_judgement_says_what_it_rests_on():
    found = told(claim(columns=("x",)), {"A": (61.0, 62.0, 63.0), "B": 50.0}, scale="full")
    (one,) = found.comparisons
    assert (found.verdict, found.scale, found.round, found.seeds) == ("reproduced", "full", "last", SEEDS)
    assert (one.text, one.published) == ("A - B, x", 10.0)
    assert [round(value, 9) for value in one.values.values()] == [11.0, 12.0, 13.0]
    assert (round(one.interval.low, 2), round(one.interval.high, 2)) == (9.52, 14.48)
    assert found.reason == "A - B, x is 12.00 [9.52, 14.48] over 3 seeds: above zero."
    assert [run.name for run in found.runs] == [f"{method}, seed {seed}" for method in "ab" for seed in SEEDS]


def test_every_row_must_be_above_every_other():
    both = claim(left=("A", "B"), right=("C",))
    assert told(both, {"A": HIGH, "B": HIGH, "C": LOW}).verdict == HOLDS
    assert told(both, {"A": HIGH, "B": LOW, "C": LOW}).verdict == "not shown"
    found = told(both, {"A": HIGH, "B": LOW, "C": 45.0})
    assert found.verdict == "contradicted"
    assert "(its 98.8 % interval, for 4 differences)" in found.reason


def test_a_contradiction_by_one_of_many_needs_more_than_one_in_twenty():
    slightly = {"B": 40.0, "A": (39.0, 38.4, 38.0)}
    assert told(claim(columns=("x",)), slightly).verdict == "contradicted"
    assert told(claim(), {("A", "y"): 41.0, **slightly}).verdict == "not shown"


def test_a_difference_short_of_its_margin_is_not_shown():
    assert told(claim(margin=10.0), {"A": 50.3, "B": 40.3}).verdict == "not shown"
    assert told(claim(margin=10.0), {"A": 45.0, "B": 40.0}).verdict == "not shown"
    assert told(claim(margin=-2.0), {"A": 39.0, "B": 40.0}).verdict == HOLDS
    assert told(claim(margin=-2.0), {"A": 37.0, "B": 40.0}).verdict == "contradicted"


def test_columns_are_named_as_in_the_paper_or_as_ours():
    for name in ("small", "large"):
        found = told(claim(columns=(name,)), {"A": HIGH, "B": LOW}, columns=("x", "small"))
        assert [one.text for one in found.comparisons] == ["A - B, small"]


def test_columns_and_rows_that_a_scale_lacks_are_left_out_and_named():
    found = told(claim(columns=("x", "z")), {"A": HIGH, "B": LOW}, scale="full")
    assert (found.verdict, len(found.comparisons)) == (HOLDS, 1)
    assert "Not run at this scale: the column 'z'." in found.reason
    assert told(claim(columns=("z",)), {"A": HIGH, "B": LOW}).verdict == "not tested"
    fewer = replace(ITEM, cpu=Scale(rows=("A", "B")))
    found = told(claim(right=("B", "C")), {"A": HIGH, "B": LOW}, item=fewer)
    assert found.reason.endswith("Not run at this scale: the row 'C'.")
    assert told(claim(right=("C",)), {"A": HIGH, "B": LOW}, item=fewer).verdict == "not tested"


def test_as_many_right_columns_are_taken_pair_by_pair_and_others_each_with_each():
    some = ("x", "y", "z", "w")
    pairs = told(claim(right=(), columns=("x", "y"), right_columns=("z", "w")), {}, columns=some)
    assert [one.text for one in pairs.comparisons] == ["A (x) - A (z)", "A (y) - A (w)"]
    each = told(claim(columns=("x",), right_columns=("z", "w")), {}, columns=some)
    assert [one.text for one in each.comparisons] == ["A (x) - B (z)", "A (x) - B (w)"]


def test_a_mean_over_pairs_of_columns_leaves_out_both_sides_of_a_pair():
    """Otherwise the means would be over different data."""
    mean = claim(right=(), columns=("x", "hard"), right_columns=("y", "hard, too"), over="mean")
    values = {("A", "x"): HIGH, ("A", "y"): LOW, ("A", "hard"): 10.0}
    found = told(mean, values, columns=("x", "y", "hard"))
    assert (found.verdict, [one.text for one in found.comparisons]) == (HOLDS, ["A (x) - A (y)"])
    assert "Not run at this scale: the column 'hard, too'." in found.reason
    assert told(mean, values, columns=("x", "hard, too")).verdict == "not tested"


def test_few_seeds_missing_runs_and_smoke_test_nothing():
    good = {"A": HIGH, "B": LOW}
    assert told(claim(), good, seeds=(0, 1)).reason == "There are 2 seeds; at least three are needed."
    whole = results(ITEM, "cpu", ("x",), lambda label, column, seed: 50.0)
    without = replace(whole, runs={key: run for key, run in whole.runs.items() if key != ("x", "b", 1)})
    assert judge(claim(), without).reason == "Missing runs: B, x, seed 1."
    shared = replace(ITEM, rows=(Row("A", "a", "teacher"), Row("B", "a", "student")), published=())
    empty = Results(shared, "cpu", ("",), (0,), {})
    assert judge(claim(), empty).reason == "Missing runs: A, seed 0."
    nothing = told(claim(), {**good, "B": (40.0, float("nan"), 40.0)})
    assert nothing.reason == "Missing runs: B, x, seed 1 (no test); B, y, seed 1 (no test)."
    smoke = told(claim(), good, scale="smoke")
    assert {told(claim(), good, seeds=(0, 1)).verdict, judge(claim(), without).verdict, smoke.verdict} == {"not tested"}
    assert (judge(claim(), None).verdict, judge(claim(), None).scale) == ("not tested", "")


def test_reproduced_needs_the_published_difference_where_there_is_one():
    near, far = {"A": (61.0, 62.0, 63.0), "B": 50.0}, {"A": 75.0, "B": 50.0}
    one = claim(columns=("x",), tolerance=3.0)
    assert [told(one, values, scale="full").verdict for values in (near, far)] == ["reproduced", "not shown"]
    assert told(one, far).verdict == HOLDS
    assert told(claim(right=("C",), tolerance=3.0), {"A": 75.0, "C": 50.0}, scale="full").verdict == "reproduced"


def test_ours_may_be_no_further_below_than_above_the_published_difference():
    one = claim(columns=("x",), tolerance=3.0)
    assert told(one, {"A": 52.0, "B": 50.0}, scale="full").verdict == "not shown"
    assert told(one, {"A": 58.0, "B": 50.0}, scale="full").verdict == "reproduced"


def test_the_difference_that_is_furthest_from_the_published_one_counts():
    figures = (PublishedColumn("x", (("A", "60"), ("B", "50"))), PublishedColumn("large", (("A", "60"), ("B", "40"))))
    item = replace(ITEM, published=figures, full=Scale(stands_for={"small": "large"}))
    values = {("A", "x"): 61.0, ("B", "x"): 50.0, ("A", "small"): 70.0, ("B", "small"): 40.0}
    found = told(claim(tolerance=3.0), values, scale="full", columns=("x", "small"), item=item)
    assert [one.published for one in found.comparisons] == [10.0, 20.0]
    assert found.verdict == "not shown"
    assert "A - B, small is 30.00, but 20.00 in the paper" in found.reason
    near = told(claim(tolerance=3.0), {**values, ("A", "small"): 61.0}, scale="full", columns=("x", "small"), item=item)
    assert near.verdict == "reproduced"


def test_the_published_difference_has_the_claims_sign():
    less = told(claim("less", left=("B",), right=("A",), columns=("x",)), {"A": 61.0, "B": 50.0}, scale="full")
    assert [one.published for one in less.comparisons] == [10.0]
    turned = told(claim(left=("B",), right=("A",), columns=("x",)), {}, scale="full")
    assert [one.published for one in turned.comparisons] == [-10.0]


def test_an_infinite_value_tests_nothing():
    found = told(claim(metric="loss"), {"A": (3.0, float("inf"), 3.0), "B": 1.0})
    assert (found.verdict, found.reason[:40]) == ("not tested", "Missing runs: A, x, seed 1 (no loss); A,")


def test_several_rows_in_other_columns_are_each_compared_with_themselves():
    both = claim(left=("A", "B"), right=(), columns=("x",), right_columns=("y",))
    found = told(both, {("A", "x"): HIGH, ("A", "y"): LOW, ("B", "x"): 30.0, ("B", "y"): 20.0})
    assert [one.text for one in found.comparisons] == ["A (x) - A (y)", "B (x) - B (y)"]
    assert found.verdict == HOLDS
    assert [one.text for one in told(replace(both, right=("A", "B")), {}).comparisons] == [
        "A (x) - A (y)",
        "B (x) - B (y)",
    ]


def test_a_computed_number_must_exceed_its_margin(monkeypatch):
    answer = Computed({0: 1.0, 1: 1.1, 2: 0.9}, None, "left - right")
    monkeypatch.setitem(computed.FUNCTIONS, "lemma", lambda results: answer)
    one = claim("computed", left=(), right=(), function="lemma")
    verdicts = [judge(replace(one, margin=margin), None).verdict for margin in (0.5, 0.9, 2.0)]
    assert verdicts == ["reproduced", "not shown", "not shown"]


def test_targets_that_are_not_reached_are_counted():
    found = told(claim("less", metric="rounds to test 0.7"), {"A": 3, "B": 99})
    assert found.verdict == HOLDS
    assert found.comparisons[0].values == {0: 37.0, 1: 37.0, 2: 37.0}
    assert found.reason.endswith("Of 12 runs, 6 did not reach the target and count as twice their rounds.")


def test_exact_counts_at_any_scale_and_with_one_seed():
    one = claim("exact", left=("A", "B", "C"), right=(), columns=("x",))
    right, wrong = {"A": 60.004, "B": 50.0}, {"A": 60.0, "B": 60.0}
    assert told(one, right, seeds=(0,)).verdict == told(one, right, scale="full").verdict == "reproduced"
    assert told(one, wrong).verdict == "contradicted"
    assert told(one, wrong).reason == "B, x: 60.00, but 50.00 in the paper."
    assert told(one, {**right, "A": (60.0, 60.0, 61.0)}).verdict == "contradicted", "in every seed"
    assert told(one, right, scale="smoke").verdict == "not tested"
    assert told(replace(one, left=("C",)), right).reason == "The paper's text does not hold the figures."


@pytest.mark.parametrize(
    ("answer", "alone", "cpu"),
    [
        (Computed(None, True, "f = 0.5."), "reproduced", HOLDS),
        (Computed(None, False, "f = 0.5."), "contradicted", "contradicted"),
        (Computed(None, None, "It needs runs."), "not tested", "not tested"),
        (Computed({0: 1.0, 1: 1.1, 2: 0.9}, None, "left - right"), "reproduced", HOLDS),
        (Computed({0: -1.0, 1: -1.1, 2: -0.9}, None, "left - right"), "contradicted", "contradicted"),
        (Computed({0: 0.0, 1: 0.0, 2: 0.0}, None, "left - right"), "not shown", "not shown"),
        (Computed({0: 1.0, 1: 1.1}, None, "left - right"), "not tested", "not tested"),
    ],
)
def test_a_computed_claim_is_what_its_function_says(monkeypatch, answer, alone, cpu):
    monkeypatch.setitem(computed.FUNCTIONS, "lemma", lambda results: answer)
    one = claim("computed", left=(), right=(), function="lemma")
    records = results(ITEM, "cpu", ("x",), lambda label, column, seed: 50.0)
    assert [judge(one, given).verdict for given in (None, records)] == [alone, cpu]
    assert judge(one, replace(records, scale="smoke")).verdict == "not tested"


def test_a_computed_number_that_is_not_there_tests_nothing(monkeypatch):
    one = claim("computed", left=(), right=(), function="lemma")
    records = results(ITEM, "cpu", ("x",), lambda label, column, seed: 50.0, seeds=(0, 1, 2, 3))
    for last, reason in (
        ({3: math.nan}, "left - right: no number for seed 3."),
        ({3: math.inf}, "left - right: no number for seed 3."),
        ({}, "left - right: no number for seed 3."),
    ):
        answer = Computed({0: 1.0, 1: 1.1, 2: 0.9, **last}, None, "left - right")
        monkeypatch.setitem(computed.FUNCTIONS, "lemma", lambda results, answer=answer: answer)
        found = judge(one, records)
        assert (found.verdict, found.reason) == ("not tested", reason)


def test_columns_that_a_claim_means_but_a_scale_lacks_are_named():
    """A claim about every column that rests on one of several says so."""
    values = [{"label": label, "set": {"partition.samples": n}} for n, label in enumerate("xyzwv", 1)]
    item = replace(ITEM, full=Scale(experiment="knfu-mnist", axes=({"name": "n", "values": values},)))
    good = {"A": HIGH, "B": LOW}
    assert told(claim(), good, item=item, columns=tuple("xyzwv")).reason.endswith("over 3 seeds.")
    found = told(claim(over="mean"), good, item=item, columns=("x", "y"))
    assert (found.verdict, len(found.comparisons)) == (HOLDS, 1)
    assert found.reason.endswith("Not run at this scale: the column 'z', the column 'w' and the column 'v'.")
    assert told(claim(), good, item=item, columns=("x",)).reason.endswith("Not run at this scale: 4 of 5 columns.")


def test_an_unknown_function_is_named():
    with pytest.raises(DataError, match="names the function 'lemna'"):
        judge(claim("computed", left=(), right=(), function="lemna"), None)


def test_runs_are_named_by_folder_and_digest(tmp_path):
    found = results(ITEM, "cpu", ("x",), lambda label, column, seed: 50.0 + seed)
    placed = {key: replace(run, folder=tmp_path / f"{key[1]}-seed{key[2]}-abc") for key, run in found.runs.items()}
    sources = judge(claim(), replace(found, runs=placed)).runs
    assert [one.name for one in sources] == [f"{method}-seed{seed}-abc" for method in "ab" for seed in SEEDS]
    digests = {run.folder.name: digest(run) for run in placed.values()}
    assert [one.digest for one in sources] == [digests[one.name] for one in sources]
    assert len({one.digest for one in sources}) == len(SEEDS)


# Every claim of every paper, on records made for it.

CLAIMS = {claim.name: (claim, paper.item(claim.item)) for paper in papers().values() for claim in paper.claims}
COMPARED = [name for name, (claim, _) in CLAIMS.items() if claim.kind != "computed"]


class Synthetic:
    """A claim at a scale: how its places must be ordered for it to hold."""

    def __init__(self, name, scale):
        claim, self.item = CLAIMS[name]
        self.claim, self.scale = replace(claim, tolerance=None), scale
        chosen = self.item.scale(scale)
        self.metric = claim.metric or self.item.metrics[0]
        self.columns = [cell.name for cell in cells(self.item, scale)] if chosen.experiment else []
        self.stands_for = chosen.stands_for or {}
        kept = [row.label for row in self.item.rows if not chosen.rows or row.label in chosen.rows]
        self.left, self.right = ([row for row in side if row in kept] for side in (claim.left, claim.right))
        self.gap = math.ceil(abs(claim.margin)) + 10  # whole numbers, for rounds to a target
        known = METRICS.get(self.metric)
        self.of_run = self.metric.startswith("note ") or (known is not None and bool(known.path))

    def named(self, names):
        """Our columns of these names, in the order of the names."""
        wanted = names or self.columns
        return [[ours for ours in self.columns if name in (ours, self.stands_for.get(ours))] for name in wanted]

    def column_pairs(self):
        claim, first, second = self.claim, self.named(self.claim.columns), self.named(self.claim.right_columns)
        if not claim.right_columns:
            return [(one, one) for ours in first for one in ours]
        each = claim.over == "mean" or len(first) != len(second)
        pairs = product(first, second) if each else zip(first, second, strict=True)
        return [pair for ours, others in pairs for pair in product(ours, others)]

    def higher(self):
        """Pairs of places of which the first must have the higher value."""
        claim = self.claim
        if claim.kind == "wider":
            pairs = [((a, x), (a, y)) for a in self.left for x, y in self.column_pairs() if self.right]
        elif claim.right_columns and claim.right in ((), claim.left):
            pairs = [((a, x), (a, y)) for a in self.left for x, y in self.column_pairs()]
        else:
            pairs = [((a, x), (b, y)) for a, b in product(self.left, self.right) for x, y in self.column_pairs()]
        return [(b, a) for a, b in pairs] if claim.kind == "less" else pairs

    def spoken_of(self):
        """Whether the claim is about anything that is run at this scale."""
        columns = [column for ours in self.named(self.claim.columns) for column in ours]
        if self.claim.kind == "exact":
            return bool(self.left and columns)
        if self.claim.kind == "within":
            over_rows = len(self.claim.columns or columns) == 1
            return len(self.left if over_rows else columns) > 1 and bool(self.left and columns)
        return bool(self.higher())

    def levels(self):
        """How many places each place is above, one after the other."""
        pairs = self.higher()
        found = dict.fromkeys((place for pair in pairs for place in pair), 0)
        for _ in found:
            for high, low in pairs:
                found[high] = max(found[high], found[low] + 1)
        assert all(found[high] > found[low] for high, low in pairs), "the claim goes round in a circle"
        return found

    def speaker(self, label):
        """The row whose value a row has: costs and notes are those of a run, which several rows may share."""
        method = self.item.row(label).method
        named = (row for row in (*self.left, *self.right) if self.item.row(row).method == method)
        return next(named, label) if self.of_run else label

    def verdict(self, value, *, noise=True):
        """The verdict if each place has this value, and the seeds differ."""
        noise = noise and not TARGET.fullmatch(self.metric)

        def noisy(label, column, seed):
            label = self.speaker(label)
            return value(label, column) + seed + 0.001 * (len(f"{label}{column}") * (seed + 1) % 7) * noise

        return judge(self.claim, self.records(noisy)).verdict

    def records(self, value):
        labels = (*self.claim.left, *self.claim.right)
        more = {"metric": self.metric, "length": self.length, "labels": labels}
        return results(self.item, self.scale, self.columns, value, **more)

    @property
    def length(self):
        long = 40 + self.gap * len(self.columns) if TARGET.fullmatch(self.metric) else 2
        return 20 if self.metric == "stability" else long

    @property
    def holds(self):
        return "reproduced" if self.scale == "full" else HOLDS


@pytest.mark.parametrize("scale", ["full", "cpu"])
@pytest.mark.parametrize("name", COMPARED)
def test_every_claim_holds_swapped_is_contradicted_and_equal_is_not_shown(name, scale):
    made = Synthetic(name, scale)
    if made.claim.kind == "exact":
        verdicts, expected = exact_verdicts(made)
    elif made.claim.kind == "within":
        verdicts, expected = within_verdicts(made)
    else:
        verdicts, expected = ordered_verdicts(made)
    if scale == "cpu" and not made.spoken_of():
        expected = ["not tested"] * len(expected)
    assert verdicts == expected


def ordered_verdicts(made):
    levels, margin = made.levels(), min(made.claim.margin, 0.0)
    top = max(levels.values(), default=0)
    held = made.verdict(lambda *place: 20 + made.gap * levels.get(place, 0))
    swapped = made.verdict(lambda *place: 20 + made.gap * (top - levels.get(place, 0)))
    # Of a claim to be at most so much worse, "equal" is exactly so much.
    equal = made.verdict(lambda *place: 20 + margin * (levels.get(place, 0) > 0), noise=False)
    return [held, swapped, equal], [made.holds, "contradicted", "not shown"]


def within_verdicts(made):
    places = [(row, column) for ours in made.named(made.claim.columns) for column in ours for row in made.left]
    spread = lambda size: made.verdict(lambda *place: 20 + size * (place in places[:1]), noise=False)  # noqa: E731
    margin = made.claim.margin
    assert margin > 0, "a claim of little spread needs a margin"
    return [spread(0), spread(margin + made.gap), spread(margin)], [made.holds, "contradicted", "not shown"]


def exact_verdicts(made):
    figures = published(made.item)

    def printed(label, column):
        found = figures.get((label, made.stands_for.get(column, column), made.metric))
        return 0.0 if found is None else found.value

    def verdict(more):
        value = lambda label, column, _: printed(made.speaker(label), column) + more  # noqa: E731
        return judge(made.claim, made.records(value)).verdict

    return [verdict(0.0), verdict(1.0)], ["reproduced", "contradicted"]


def test_every_computed_claim_has_its_function_and_every_function_its_claim():
    found = {claim.function for claim, _ in CLAIMS.values() if claim.kind == "computed"}
    assert found == set(computed.FUNCTIONS)
