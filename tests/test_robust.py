"""Bounded influence: medians, trimmed means, clipped updates and capped shares by hand, and what one client can do."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedalloy.aggregation import robust
from fedalloy.aggregation.averaging import average
from fedalloy.aggregation.robust import capped, clip_norm, clipped, combined, krum, median, nearest, trimmed
from fedalloy.base.tree import digest, equal
from fedalloy.errors import UsageError


def one(*values, dtype=torch.float32):
    return {"w": torch.tensor(values, dtype=dtype)}


def some(clients, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [
        {"w": torch.randn(4, 3, generator=draw), "b": torch.randn((), generator=draw), "n": torch.tensor(k)}
        for k in range(clients)
    ]


SERVER = {"w": torch.zeros(4, 3), "b": torch.zeros(()), "n": torch.tensor(99)}
ZERO = one(0.0)

# --- combining --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "middle"), [((7.0,), 7.0), ((1.0, 5.0), 3.0), ((9.0, 1.0, 2.0), 2.0), ((9.0, 1.0, 2.0, 4.0), 3.0)]
)
def test_the_median_by_hand(values, middle):
    assert median([one(v) for v in values], ZERO)["w"].item() == middle


def test_the_median_is_taken_in_each_coordinate():
    assert median([one(1.0, 9.0), one(2.0, 7.0), one(3.0, 8.0)], one(0.0, 0.0))["w"].tolist() == [2.0, 8.0]


@pytest.mark.parametrize(
    ("trim", "mean"),
    [(0.0, 24.0), (0.19, 24.0), (0.2, 6.0), (0.39, 6.0), (0.4, 5.0), (0.499, 5.0)],  # of 5: none, 1, 2 at either end
)
def test_the_trimmed_mean_by_hand(trim, mean):
    assert trimmed([one(v) for v in (100.0, 3.0, 10.0, 2.0, 5.0)], ZERO, trim)["w"].item() == mean


def test_trim_is_the_decimal_that_was_written():
    # 0.29 * 100 is 28.999999999999996 in binary; 29 at either end must go, which leaves 0 and the outliers' ends out.
    models = [one(1.0)] * 29 + [one(0.0)] * 42 + [one(-3.0)] * 29
    assert trimmed(models, ZERO, 0.29)["w"].item() == 0.0


@given(st.integers(1, 30), st.floats(0, 0.5, exclude_max=True))
def test_something_is_always_left(clients, trim):
    assert trimmed([one(2.0)] * clients, ZERO, trim)["w"].item() == 2.0
    assert krum([one(2.0)] * clients, ZERO, trim)["w"].item() == 2.0


# Of 0, 1, 2.5, 4.5 and 30, f = 1, each with its 5 - 1 - 2 = 2 nearest: 1 + 6.25, 1 + 2.25, 2.25 + 4, 4 + 12.25 and
# 25.5^2 + 27.5^2. With f = 2 one neighbour is left: 1, 1, 2.25, 4 and 25.5^2.
@pytest.mark.parametrize(("trim", "mean"), [(0.19, 7.6), (0.2, 2.0), (0.4, 3.5 / 3)])
def test_krum_by_hand(trim, mean):
    assert krum([one(v) for v in (30.0, 1.0, 4.5, 0.0, 2.5)], ZERO, trim)["w"].item() == pytest.approx(mean)


def test_krum_drops_whole_clients_by_all_their_entries():
    models = [
        {"w": torch.tensor([w]), "b": torch.tensor([b])} for w, b in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.5, 9.0))
    ]
    kept = krum(models, {"w": torch.zeros(1), "b": torch.zeros(1)}, 0.25)
    assert kept["w"].item() == pytest.approx(1 / 3)  # 0.5 was the middle of its coordinate
    assert kept["b"].item() == pytest.approx(1 / 3)


def test_copies_of_one_model_do_not_vouch_for_each_other():
    honest, echo = [4.0, 5.0, 6.0, 7.0, 9.0, 9.5], 0.0
    models = [one(v) for v in (echo, *honest[:3], echo, *honest[3:])]
    assert nearest(models, ZERO, 0.25) == [1, 2, 3, 5, 6, 7]  # f = 2: one echo is a copy, and the other the loneliest
    # f = 2: three equal ones must have an honest one among them.
    assert nearest([one(v) for v in (9.0, 0.0, 0.0, 1.0, 0.0)], ZERO, 0.4) == [1, 2, 4]


def test_of_equally_lonely_models_krum_keeps_the_first():
    assert krum([one(0.0), one(1.0), one(2.0), one(3.0)], ZERO, 0.25)["w"].item() == 1.0
    assert krum([one(3.0), one(2.0), one(1.0), one(0.0)], ZERO, 0.25)["w"].item() == 2.0


@given(st.permutations([0.0, 1.0, 2.25, 4.5, 7.0, 30.0, -55.0]))
def test_krum_knows_no_order_where_there_are_no_ties(values):
    models = [one(v) for v in (0.0, 1.0, 2.25, 4.5, 7.0, 30.0, -55.0)]
    assert digest(krum([one(v) for v in values], ZERO, 0.3)) == digest(krum(models, ZERO, 0.3))


def test_no_models_are_refused():
    with pytest.raises(UsageError, match="no models"):
        median([], ZERO)


@pytest.mark.parametrize("combine", ["median", "trimmed"])
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=9), st.randoms())
def test_the_order_of_clients_does_not_matter(combine, values, dice):
    values = [v + 0.0 for v in values]  # one zero: which sign of equal ones stands in the middle is not said
    mixed = dice.sample(values, len(values))
    one_way, other = (combined([one(v) for v in order], [1] * len(order), ZERO, combine) for order in (values, mixed))
    assert digest(one_way) == digest(other)


@pytest.mark.parametrize("combine", ["mean", "median", "trimmed", "krum"])
@given(st.floats(width=32, allow_nan=False))
def test_one_model_is_returned_bit_for_bit(combine, value):
    assert equal(combined([one(value)], [3], ZERO, combine), one(value))


def test_the_default_is_the_average_bit_for_bit():
    models = some(5)
    assert equal(combined(models, [3, 1, 4, 1, 5], SERVER), average(models, [3, 1, 4, 1, 5], SERVER))


@pytest.mark.parametrize("combine", ["median", "trimmed", "krum"])
def test_weights_are_not_used(combine):
    models = some(5)
    assert equal(combined(models, [1] * 5, SERVER, combine), combined(models, [9, 1, 1, 1, 1], SERVER, combine))


@pytest.mark.parametrize("combine", ["median", "trimmed", "krum"])
def test_integer_buffers_stay_the_servers_and_dtypes_too(combine):
    result = combined(some(5), [1] * 5, SERVER, combine)
    assert result["n"].item() == 99
    assert result["n"].data_ptr() != SERVER["n"].data_ptr()
    assert {name: (t.dtype, t.shape) for name, t in result.items()} == {
        n: (t.dtype, t.shape) for n, t in SERVER.items()
    }
    halves = [one(1.0, dtype=torch.bfloat16), one(2.0, dtype=torch.bfloat16)]
    assert combined(halves, [1, 1], ZERO, combine)["w"].dtype == torch.float32


def test_sums_are_taken_in_float64_and_cast_once():
    models = [one(3.0), one(3 * 2.0**-24), one(3 * 2.0**-24)]
    assert trimmed(models, ZERO, 0.0)["w"].item() == 1 + 2.0**-23


@pytest.mark.parametrize("combine", ["median", "trimmed", "krum"])
def test_neither_blocks_nor_memory_layout_change_a_bit(combine, monkeypatch):
    draw = torch.Generator().manual_seed(1)
    models = [{"w": torch.randn(3, 2, 5, 5, generator=draw)} for _ in range(6)]
    turned = [{"w": m["w"].contiguous(memory_format=torch.channels_last)} for m in models]
    empty = {"w": torch.zeros(3, 2, 5, 5)}
    whole = combined(models, [1] * 6, empty, combine)
    assert equal(whole, combined(turned, [1] * 6, empty, combine))
    monkeypatch.setattr(robust, "BLOCK", 42)  # seven coordinates at a time
    assert equal(whole, combined(models, [1] * 6, empty, combine))


def test_an_empty_tensor_stays_empty():
    assert median([{"w": torch.zeros(0, 3)}] * 2, {"w": torch.zeros(0, 3)})["w"].shape == (0, 3)


LIES = [1e30, -1e30, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("combine", ["median", "trimmed", "krum"])
@given(
    st.lists(st.floats(-10, 10, width=32), min_size=4, max_size=9, unique=True),
    st.integers(0, 4),
    st.sampled_from(LIES),
)
def test_one_liar_moves_the_result_no_further_than_the_honest_range(combine, honest, place, lie):
    values = [*honest[:place], lie, *honest[place:]]
    result = combined([one(v) for v in values], [1] * len(values), ZERO, combine, 0.2)["w"].item()
    assert min(honest) <= result <= max(honest)


def test_a_plain_mean_is_moved_as_far_as_one_likes():
    assert combined([one(1.0), one(1.0), one(1e30)], [1, 1, 1], ZERO)["w"].item() > 1e29


def test_logits_are_combined_by_the_same_functions():
    said = [{"logits": torch.tensor([row])} for row in ([4.0, 0.0], [2.0, 1.0], [1e30, 1e30])]
    assert median(said, said[0])["logits"].tolist() == [[4.0, 1.0]]


# --- clipping ---------------------------------------------------------------------------------------------------------


def test_clipping_by_hand():
    server = one(1.0, 1.0)
    models = [one(4.0, 5.0), one(1.0, 3.0), one(1.0, 1.0)]  # updates of norm 5, 2, 0
    assert [m["w"].tolist() for m in clip_norm(models, server, 2.5)] == [[2.5, 3.0], [1.0, 3.0], [1.0, 1.0]]
    # The median of 5, 2, 0 is 2; of 5 and 2 alone it is 3.5.
    assert clip_norm(models, server, "median")[0]["w"].tolist() == pytest.approx([2.2, 2.6])
    assert clip_norm(models[:2], server, "median")[0]["w"].tolist() == pytest.approx([3.1, 3.8])


def test_within_the_bound_nothing_is_touched():
    server, model = one(1.0, 1.0), one(4.0, 5.0)
    assert clip_norm([model], server, 5.0)[0] is model
    assert clip_norm([model], server, "median")[0] is model
    assert clip_norm([server], server, 1e-9)[0] is server


def test_a_round_in_which_most_stand_still_stands_still():
    server = one(1.0, 1.0)
    assert equal(clip_norm([server, server, one(4.0, 5.0)], server, "median")[2], server)


def test_the_norm_is_that_of_all_floating_point_entries_and_integers_are_left_alone():
    server = {"w": torch.zeros(1), "running_var": torch.zeros(1), "n": torch.tensor(0)}
    model = {"w": torch.tensor([3.0]), "running_var": torch.tensor([4.0]), "n": torch.tensor(70)}
    (short,) = clip_norm([model], server, 1.0)
    assert short["w"].item() == pytest.approx(0.6)
    assert short["running_var"].item() == pytest.approx(0.8)
    assert short["n"].item() == 70
    assert model["w"].item() == 3.0


def test_a_huge_update_keeps_its_direction():
    assert clip_norm([one(3e30, 4e30)], one(0.0, 0.0), 5.0)[0]["w"].tolist() == pytest.approx([3.0, 4.0])


@pytest.mark.parametrize("lie", [math.nan, math.inf])
def test_an_update_that_is_not_finite_counts_as_none(lie):
    server, honest = one(1.0, 1.0), one(1.0, 2.0)
    fixed, by_median = (clip_norm([one(lie, 3.0), honest, honest], server, bound) for bound in (10.0, "median"))
    assert [equal(m[0], server) for m in (fixed, by_median)] == [True, True]
    assert fixed[1] is by_median[1] is honest


@given(st.integers(1, 7), st.floats(1e-3, 10), st.integers(0, 10**6))
def test_no_update_is_longer_than_the_bound(clients, bound, seed):
    models = [{name: t.double() if t.is_floating_point() else t for name, t in m.items()} for m in some(clients, seed)]
    for short, model in zip(clip_norm(models, SERVER, bound), models, strict=True):
        length, was = (math.hypot(*m["w"].flatten().tolist(), m["b"].item()) for m in (short, model))
        assert length == pytest.approx(min(bound, was), rel=1e-12)


def test_the_norm_depends_neither_on_the_order_of_names_nor_on_the_layout():
    draw = torch.Generator().manual_seed(0)
    model = {name: torch.randn(8, 4, 3, 3, generator=draw) for name in "badc"}
    turned = {n: t.contiguous(memory_format=torch.channels_last) for n, t in sorted(model.items())}
    server = {name: torch.zeros(8, 4, 3, 3) for name in "badc"}
    a, b = clip_norm([model], server, 1.0)[0], clip_norm([turned], dict(sorted(server.items())), 1.0)[0]
    assert equal(a, b)


# --- shares -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shares", "cap", "expected"),
    [
        ((0.6, 0.3, 0.1), 0.5, (0.5, 0.375, 0.125)),
        ((0.6, 0.35, 0.05), 0.45, (0.45, 0.45, 0.1)),  # the second overflows with what the first leaves
        ((1.0, 0.0, 0.0), 0.5, (0.5, 0.25, 0.25)),
        ((0.8, 0.1, 0.1), 0.1, (1 / 3, 1 / 3, 1 / 3)),
        ((6.0, 3.0, 1.0), 1.0, (0.6, 0.3, 0.1)),
        ((1.0,), 0.2, (1.0,)),
    ],
)
def test_capped_shares_by_hand(shares, cap, expected):
    assert capped(shares, cap).tolist() == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12).filter(any), st.floats(0.01, 1))
def test_capped_shares_are_shares_below_the_cap(weights, cap):
    parts = capped(weights, cap)
    assert parts.sum().item() == pytest.approx(1, abs=1e-12)
    assert parts.min() >= 0
    assert parts.max() <= max(cap, 1 / len(weights)) + 1e-12


# --- logits -----------------------------------------------------------------------------------------------------------


def test_clipped_logits_by_hand():
    rows = torch.tensor([[101.0, 103.0, 105.0], [1e30, 0.0, 0.0], [0.5, 0.5, 0.5]])
    assert clipped(rows, 1.5).tolist() == [[-1.5, 0.0, 1.5], [1.5, -1.5, -1.5], [0.0, 0.0, 0.0]]


def test_logits_within_the_bound_mean_what_they_meant():
    rows = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(clipped(rows, 50.0).softmax(1), rows.softmax(1))
    assert clipped(rows.bfloat16(), 1.0).dtype == torch.bfloat16


@pytest.mark.parametrize("lie", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_says_nothing(lie):
    assert clipped(torch.tensor([[lie, 1.0], [4.0, 2.0]]), 9.0).tolist() == [[0.0, 0.0], [1.0, -1.0]]


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan])
def test_a_bound_on_logits_is_positive(bound):
    with pytest.raises(UsageError, match="must be positive"):
        clipped(torch.zeros(1, 2), bound)
