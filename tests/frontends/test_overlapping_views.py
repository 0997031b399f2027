# SPDX-License-Identifier: Apache-2.0
"""Strided views whose windows overlap, and their gradients: slices, with the bits of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import trnlab.frontends.torch as neuron
from trnlab import chips
from trnlab.frontends.torch import recording
from trnlab.frontends.torch.steps_in_memory import Steps
from trnlab.runtime import session

pytestmark = pytest.mark.torch


class Keeping(neuron.InterpreterEngine):
    """Keeps the graphs of programs."""

    def __init__(self):
        super().__init__()
        self.graphs = []

    def compile(self, graph, frozen=()):
        self.graphs.append(graph)
        return super().compile(graph, frozen)


@pytest.fixture(params=["interpreter", "chip"])
def engine(request):
    here = session.Session(chips.target("trn1.2xlarge"), "fp32")
    used = Keeping() if request.param == "interpreter" else neuron.DeviceEngine()
    with session.activate(here), recording.using("steps"), neuron.use(used):
        yield used
        recording.flush()


def longformer(x):
    """Chunks of 8 rows, one every 4."""
    return x.as_strided((2, 5, 8, 3), (72, 12, 3, 1))


VIEWS = {
    "chunks that half overlap": longformer,
    "windows of three chunks": lambda x: x.as_strided((2, 4, 12, 3), (72, 12, 3, 1)),
    "the last chunk is shorter": lambda x: x.as_strided((2, 4, 10, 3), (72, 12, 3, 1)),
    "from an offset": lambda x: x.as_strided((2, 4, 8, 3), (72, 12, 3, 1), 12),
    "in another order": lambda x: x.as_strided((3, 8, 5, 2), (1, 3, 12, 72)),
    "no overlap": lambda x: x.as_strided((2, 3, 3), (72, 24, 2)),
    "single steps": lambda x: x.reshape(-1).as_strided((140, 5), (1, 1)),
    "the same element": lambda x: x.reshape(-1).as_strided((4, 3), (0, 7)),
    "unfold": lambda x: x.unfold(1, 8, 4),
    "unfold with gaps": lambda x: x.unfold(1, 3, 5),
}
HOSTILE = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-40, 3e38, 1.5])


def values(kind, dtype):
    x = torch.randn(2, 24, 3, generator=torch.Generator().manual_seed(3))
    if kind == "hostile":
        x = HOSTILE[torch.arange(144) % 8].view(2, 24, 3) * x.sign()
    return x.to(dtype)


def both(view, x, weight):
    found = []
    for device in ("cpu", "neuron"):
        given = x.detach().clone().to(device).requires_grad_()
        seen = view(given)
        seen.backward(weight(seen).to(device))
        found.append((seen.detach().cpu(), given.grad.cpu()))
    return found


def alike(a, b):
    """Bits, but for those of NaN."""
    same = (a == b) & (torch.signbit(a) == torch.signbit(b))
    return bool((same | (a.isnan() & b.isnan())).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["plain", "hostile"])
@pytest.mark.parametrize("name", VIEWS)
def test_views_and_gradients_have_the_bits_of_the_cpu(name, kind, dtype, engine):
    def weight(seen):
        line = torch.arange(seen.numel()).view(seen.shape)
        if kind == "hostile":
            return HOSTILE[line % 8].to(dtype)
        return (line % 7 - 3).to(dtype)  # whose sums are exact in either format

    (seen, grad), (got_seen, got_grad) = both(VIEWS[name], values(kind, dtype), weight)
    if kind == "hostile":  # denormals are zeros on the chip
        tensors = (seen, grad, got_seen, got_grad)
        seen, grad, got_seen, got_grad = (torch.where(t.abs() < 1e-37, t * 0, t) for t in tensors)
    if "unfold" in name:  # whose gradient PyTorch's decomposition adds to zeros, and its kernel does not
        grad, got_grad = grad + 0.0, got_grad + 0.0
    assert alike(got_seen, seen)
    assert alike(got_grad, grad)


def test_windows_before_come_first(engine):
    x = values("plain", torch.float32)
    found = both(longformer, x, lambda seen: torch.randn(seen.shape, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(found[0][1], found[1][1])


def test_nothing_is_gathered_or_scattered():
    here = session.Session(chips.target("trn1.2xlarge"), "fp32")
    with session.activate(here), recording.using("steps"), neuron.use(Keeping()) as engine:
        x = values("plain", torch.float32).to("neuron").requires_grad_()
        (longformer(x) * 2).sum().backward()
        x.grad.cpu()
        names = {op.name for graph in engine.graphs for op in graph.ops}
    assert "concatenate" in names
    assert not names & {"gather", "scatter"}


def test_added_where_nothing_changes_the_sign_of_zero(engine):
    x = torch.full((12,), -0.0)
    i = torch.arange(12).as_strided((2, 4), (2, 1)).reshape(-1)
    expected = x.index_add(0, i, torch.full((8,), -0.0))
    d = torch.arange(12, device="neuron").as_strided((2, 4), (2, 1)).reshape(-1)
    got = x.to("neuron").index_add(0, d, torch.full((8,), -0.0).to("neuron")).cpu()
    assert alike(got, expected)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        (np.arange(12).reshape(3, 4), Steps(0, (3, 4), (4, 1))),
        (np.arange(12)[::-1].copy(), None),
        (np.array([0, 1, 3]), None),
        (np.zeros((2, 2), int), Steps(0, (2, 2), (0, 0))),
    ],
)
def test_steps_of_places(places, expected):
    assert Steps.of(places) == expected


def test_a_line_is_counted_in_as_many_dimensions_as_it_has():
    line = (np.arange(3)[:, None, None] * 100 + np.arange(4)[:, None] * 10 + np.arange(20)).reshape(-1)
    assert Steps.of_line(line) == Steps(0, (3, 4, 20), (100, 10, 1))
    assert Steps.of_line(np.array([0, 1, 2, 5, 6])) is None
