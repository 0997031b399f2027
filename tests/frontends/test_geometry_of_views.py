# SPDX-License-Identifier: Apache-2.0
"""Views as a recording writes them down: each is PyTorch's own view, element by element, and is written as such."""

from __future__ import annotations

import random

import pytest
import torch

from trnlab.frontends.torch.geometry import form_of, meet, shown

pytestmark = pytest.mark.torch


def drawn(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Contiguous memory, and a view of it that some of PyTorch's view operators make."""
    draw = random.Random(seed)
    shape = [draw.randint(1, 6) for _ in range(draw.randint(1, 4))]
    memory = torch.arange(float(torch.Size(shape).numel()))
    view = memory.view(shape)
    for _ in range(draw.randint(1, 4)):
        dim = draw.randrange(view.dim()) if view.dim() else 0
        kind = draw.choice(["narrow", "step", "permute", "diagonal", "select", "unfold"])
        if kind == "narrow" and view.dim() and view.shape[dim] > 1:
            begin = draw.randrange(view.shape[dim])
            view = view.narrow(dim, begin, draw.randint(1, view.shape[dim] - begin))
        elif kind == "step" and view.dim():
            view = view[(slice(None),) * dim + (slice(draw.randrange(view.shape[dim]), None, draw.randint(1, 3)),)]
        elif kind == "permute" and view.dim():
            view = view.permute(draw.sample(range(view.dim()), view.dim()))
        elif kind == "diagonal" and view.dim() > 1:
            first, second = draw.sample(range(view.dim()), 2)
            there = view.diagonal(draw.randint(-1, 1), first, second)
            view = there if there.numel() else view
        elif kind == "select" and view.dim() > 1:
            view = view.select(dim, draw.randrange(view.shape[dim]))
        elif kind == "unfold" and view.dim() and view.shape[dim] > 2:
            view = view.unfold(dim, 2, 2)
    return memory, view


def as_shown(memory: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    return shown(memory, form_of(view.shape, view.stride(), view.dtype), view.storage_offset())


@pytest.mark.parametrize("seed", range(8))
def test_a_view_is_pytorchs_own(seed):
    for number in range(100):
        memory, view = drawn(100 * seed + number)
        got = as_shown(memory, view)
        assert torch.equal(got, view), (view.shape, view.stride(), view.storage_offset())
        assert got.untyped_storage()._cdata == memory.untyped_storage()._cdata


def test_nearly_all_of_them_are_written_without_strides():
    """As strides they could be read only: PyTorch writes to nothing through them while it traces."""
    plain = 0
    for seed in range(1000):
        memory, view = drawn(seed)
        base = memory.clone().requires_grad_()
        got = as_shown(base, view)
        plain += "AsStrided" not in type(got.grad_fn).__name__
    assert plain > 990


@pytest.mark.parametrize("seed", range(4))
def test_views_overlap_and_meet_where_their_elements_do(seed):
    for number in range(100):
        memory, view = drawn(100 * seed + number)
        other = memory[number % memory.numel() :]
        form = form_of(view.shape, view.stride(), view.dtype)
        beside = form_of(other.shape, other.stride(), other.dtype)
        places = view.reshape(-1).to(torch.int64)
        if not form.overlaps:
            assert len(places.unique()) == view.numel()
        shared = bool(torch.isin(places, other.to(torch.int64)).any())
        if shared:
            assert meet(form, view.storage_offset(), beside, other.storage_offset())
