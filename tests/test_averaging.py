"""Averages of models: exact weights, one model bit for bit, buffers and dtypes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedalloy.aggregation.averaging import average, shares
from fedalloy.base.tree import equal
from fedalloy.errors import UsageError


def one(value, dtype=torch.float32):
    return {"w": torch.tensor([value], dtype=dtype)}


def test_weighted_mean_by_hand():
    assert average([one(1.0), one(2.0), one(8.0)], [1, 2, 5], one(0.0))["w"].item() == 45 / 8


def test_the_servers_own_values_do_not_enter():
    assert average([one(1.0), one(3.0)], [1, 1], one(100.0))["w"].item() == 2.0


@given(st.floats(width=32, allow_nan=False), st.integers(1, 10**6))
def test_one_model_is_returned_bit_for_bit(value, weight):
    # Zero has a sign; multiply-then-divide would also lose bits here.
    assert equal(average([one(value)], [weight], one(0.0)), one(value))


def test_one_whole_network_is_returned_bit_for_bit():
    w = {"w": torch.randn(1000, generator=torch.Generator().manual_seed(0))}
    assert equal(average([w], [37], {"w": torch.zeros(1000)}), w)


def test_a_client_without_data_contributes_nothing():
    assert average([one(5.0), one(0.1)], [0, 7], one(0.0))["w"].item() == one(0.1)["w"].item()


def test_sums_are_accumulated_in_float64_and_cast_once():
    # In float32 the sum 1 + 2^-24 + 2^-24 stays at 1; in float64 it does not.
    models = [one(3.0), one(3 * 2.0**-24), one(3 * 2.0**-24)]
    mean = average(models, [1, 1, 1], one(0.0))["w"]
    assert mean.dtype == torch.float32
    assert mean.item() == 1 + 2.0**-23


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_dtype_is_the_servers(dtype):
    mean = average([one(1.0, dtype), one(2.0, dtype)], [1, 1], one(0.0, dtype))["w"]
    assert mean.dtype == dtype
    assert mean.item() == 1.5


@pytest.mark.parametrize(
    ("server", "client"), [(torch.tensor(5), torch.tensor(9)), (torch.tensor(True), torch.tensor(False))]
)
def test_integer_buffers_stay_the_servers(server, client):
    mean = average([{"n": client}, {"n": client}], [1, 1], {"n": server})["n"]
    assert torch.equal(mean, server)
    assert mean.dtype == server.dtype
    assert mean.data_ptr() != server.data_ptr()


def test_the_result_shares_no_memory_with_a_model():
    w = one(1.0)
    average([w], [1], one(0.0))["w"].add_(1)
    assert w["w"].item() == 1.0


@given(st.lists(st.integers(0, 10**6), min_size=1).filter(any))
def test_shares_sum_to_one_and_keep_proportions(weights):
    parts = shares(weights)
    assert math.fsum(parts) == pytest.approx(1, abs=1e-12)
    assert [p * sum(weights) for p in parts] == pytest.approx(weights, rel=1e-12)


@pytest.mark.parametrize("weights", [[], [0, 0], [1, -1, 3]])
def test_impossible_weights_are_refused(weights):
    with pytest.raises(UsageError, match="weights must be non-negative with a positive sum"):
        shares(weights)


@pytest.mark.parametrize("weights", [[1], [1, 2, 3]])
def test_a_weight_for_each_model(weights):
    with pytest.raises(ValueError, match="zip"):
        average([one(1.0), one(2.0)], weights, one(0.0))
