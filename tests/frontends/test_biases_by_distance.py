# SPDX-License-Identifier: Apache-2.0
"""Many rows of a small table, as biases of attention by distance: columns are gathered, gradients are a product."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import trnlab.frontends.torch as neuron
from trnlab import chips
from trnlab.compiler.rewriting.legalize.products import FEW_ROWS, MANY
from trnlab.compiler.rewriting.picks import MANY_ROWS
from trnlab.compiler.rules.conditions import MOST_MARKED
from trnlab.frontends.torch import recording
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interval_analysis import Intervals
from trnlab.numerics.dtypes import float32
from trnlab.runtime import session

pytestmark = pytest.mark.torch
SIDE, HEADS, BUCKETS = 128, 3, 32
INF, NAN = float("inf"), float("nan")


@pytest.fixture(params=["trn1.2xlarge", "trn2.3xlarge"])
def engine(request):
    here = session.Session(chips.target(request.param), "fp32")
    with session.activate(here), recording.using("steps"), neuron.use(neuron.DeviceEngine()) as used:
        yield used
        recording.flush()


def buckets():
    place = torch.arange(SIDE)
    return (place[None] - place[:, None]).abs().clamp(max=BUCKETS - 2)


def on_both(table, gradient, ids=None):
    found = []
    for device in ("cpu", "neuron"):
        rows = table.detach().clone().to(device).requires_grad_()
        picked = torch.nn.functional.embedding((buckets() if ids is None else ids).to(device), rows)
        bias = picked.permute(2, 0, 1).unsqueeze(0)
        bias.backward(gradient.to(device))
        found.append((bias.detach().cpu(), rows.grad.cpu()))
    return found


def same(a, b):
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def test_sizes_are_those_that_are_rewritten():
    assert max(MANY_ROWS, MANY * MOST_MARKED) <= SIDE * SIDE
    assert BUCKETS <= FEW_ROWS


def test_numbers_are_those_of_the_cpu(engine):
    table = torch.randn(BUCKETS, HEADS, generator=torch.Generator().manual_seed(0))
    gradient = torch.randn(1, HEADS, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    (bias, grad), (got_bias, got_grad) = on_both(table, gradient)
    assert same(bias, got_bias)
    rows = gradient[0].permute(1, 2, 0).reshape(-1, HEADS).double()
    exact, terms = (
        torch.zeros(BUCKETS, HEADS, dtype=torch.float64).index_add_(0, buckets().reshape(-1), x)
        for x in (rows, rows.abs())
    )
    assert ((got_grad - exact).abs() <= 1e-6 * terms).all()
    assert ((grad - exact).abs() <= 1e-6 * terms).all()
    assert (got_grad[BUCKETS - 1] == 0).all()  # nobody reads the last row


def test_hostile_values_stay_in_their_rows_and_columns(engine):
    table = torch.randn(BUCKETS, HEADS, generator=torch.Generator().manual_seed(0))
    table[1, 0], table[2, 1], table[3, 2], table[4, 0] = INF, -INF, NAN, -0.0
    gradient = torch.ones(1, HEADS, SIDE, SIDE)
    gradient[0, 0, 0, 1], gradient[0, 1, 5, 5], gradient[0, 2, 9, 7] = INF, -INF, NAN
    gradient[0, 0, 30, 10], gradient[0, 0, 10, 30] = INF, -INF  # of one row: NaN
    gradient[0, 1, 60, 63] = 3e38
    gradient[0, 1, 63, 60] = 3e38  # whose sum overflows
    (bias, grad), (got_bias, got_grad) = on_both(table, gradient)
    assert torch.equal(torch.nan_to_num(bias, 7.0), torch.nan_to_num(got_bias, 7.0))
    assert torch.equal(torch.signbit(bias[:, :2]), torch.signbit(got_bias[:, :2]))
    assert torch.equal(bias.isnan(), got_bias.isnan())
    assert torch.equal(grad.isnan(), got_grad.isnan())
    assert torch.equal(torch.nan_to_num(grad, 7.0), torch.nan_to_num(got_grad, 7.0))


def test_a_table_whose_rows_are_read_as_they_are(engine):
    """Without a transpose behind it."""
    table = torch.randn(BUCKETS, HEADS, generator=torch.Generator().manual_seed(0)).to("neuron")
    got = torch.nn.functional.embedding(buckets().to("neuron"), table) * 1.0
    assert torch.equal(got.cpu(), table.cpu()[buckets()])


def test_what_is_asked_whether_it_is_finite_is_known_to_be():
    b = GraphBuilder("finite")
    x, y = b.input("x", (4,), float32), b.input("y", (4,), float32)
    known = Intervals({})
    found = known.of(b.reshape(b.select(b.is_finite(x), x, 0.0), (2, 2)))
    assert (found.infinite, found.nan) == (False, False)
    assert found.high >= np.finfo(np.float32).max
    for other in (b.select(b.is_finite(y), x, 0.0), b.select(b.is_finite(x), x, y)):
        assert known.of(other).infinite
