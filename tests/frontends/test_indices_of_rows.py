# SPDX-License-Identifier: Apache-2.0
"""Elements of rows by an index of each row, and sums of them, as relative positions of attention are looked up: with
gradients, as PyTorch on the CPU has them."""

from __future__ import annotations

import pytest
import torch
from helpers import check

pytestmark = pytest.mark.torch


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + len(shape)))


def ids(*shape, high):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(len(shape)))


TAKEN = {
    "each row its own": (lambda x, i: x.gather(-1, i), (6, 50, 64), (6, 50, 40)),
    "the same in all heads": (lambda x, i: x.gather(-1, i.expand(20, -1, -1)), (20, 50, 64), (1, 50, 90)),
    "fewer rows": (lambda x, i: x.gather(-1, i.expand(18, -1, -1)), (20, 60, 64), (1, 50, 90)),
    "along the first dimension": (lambda x, i: x.gather(0, i), (64, 50), (40, 50)),
    "along the second of three": (lambda x, i: x.gather(1, i.expand(-1, -1, 9)), (9, 64, 9), (9, 130, 1)),
    "a vector": (lambda x, i: x.gather(0, i), (400,), (60,)),
    "take_along_dim": (lambda x, i: torch.take_along_dim(x, i, -1), (12, 40, 64), (1, 40, 50)),
}


@pytest.mark.parametrize("name", TAKEN)
def test_many_elements_of_each_row(name):
    function, shape, index = TAKEN[name]
    dim = {"along the first dimension": 0, "along the second of three": 1, "a vector": 0}.get(name, -1)
    check(function, [normal(*shape), ids(*index, high=shape[dim])])


def test_gradients_that_are_not_finite_stay_where_they_belong():
    x, index, scale = normal(16, 70, 64), ids(1, 70, 90, high=64), torch.ones(16, 70, 90)
    for place, value in {(0, 1, 2): "inf", (3, 4, 5): "-inf", (7, 8, 9): "nan", (7, 9, 1): "inf"}.items():
        scale[place] = float(value)
    scale[9, 3, :2] = torch.tensor([float("inf"), -float("inf")])
    index[0, 3, :2] = 7  # the same place: their sum is NaN
    check(lambda x, i, s: x.gather(-1, i.expand(16, -1, -1)) * s.detach(), [x, index, scale])


@pytest.mark.parametrize("shared", [True, False])
def test_sums_into_what_is_there(shared):
    x, index, source = normal(12, 80, 64), ids(1 if shared else 12, 70, 90, high=64), normal(12, 70, 90)
    check(lambda x, i, s: x.scatter_add(-1, i.expand(12, -1, -1), s), [x, index, source])


def test_relative_positions_of_disentangled_attention():
    """DeBERTa's two look-ups, whose index hangs on the distance of two tokens, clamped."""
    heads, tokens, span, width = 12, 40, 24, 16
    query, key, table = normal(heads, tokens, width), normal(heads, tokens, width, seed=1), normal(2 * span, width)

    def scores(query, key, table):
        place = torch.arange(tokens, device=query.device)
        distance = (place[:, None] - place[None, :] + span).clamp(0, 2 * span - 1)[None].expand(heads, -1, -1)
        to_place = torch.gather(query @ table.t(), -1, distance)
        to_content = torch.gather(key @ table.t(), -1, distance).transpose(-1, -2)
        return (query @ key.transpose(-1, -2) + to_place + to_content).softmax(-1)

    check(scores, [query, key, table])


def test_sums_into_zeros():
    index, source = ids(1, 70, 90, high=40), normal(12, 70, 90)
    check(
        lambda i, s: torch.zeros(12, 70, 64, device=s.device).scatter_add(-1, i.expand(12, -1, -1), s),
        [index, source],
    )


def test_nothing_is_taken_of_nothing():
    check(lambda x, i: x.take(i), [normal(0, 3), torch.zeros(0, dtype=torch.int64)], gradients=False)
