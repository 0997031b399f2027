# SPDX-License-Identifier: Apache-2.0
"""complex64 in steps: compiled and recorded, values and gradients as on the CPU, and nothing left to the host."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import check, engine, through_graph, with_gradients
from torch import nn

import trnlab.frontends.torch as neuron
from trnlab import chips, host_ops
from trnlab.compiler.rewriting.recognize import recognize
from trnlab.errors import UnsupportedOpError
from trnlab.frontends.torch import recording
from trnlab.graph.passes import simplify
from trnlab.runtime import session

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning:torch")]


def numbers(*shape, seed=0, dtype=torch.complex64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def written(x, y):
    """Through views of its parts, by a slice, and by its real part."""
    z = x * 1
    torch.view_as_real(z)[..., 0] = 7.0
    z[1:3, 2] = 1 - 1j
    z.real.add_(1.0)
    return z * y


CASES = {
    "product": lambda x, y: x * y,
    "with a conjugate": lambda x, y: x * y.conj(),
    "quotient": lambda x, y: x / y,
    "one over it": lambda x, y: 1j / x + y.reciprocal(),
    "Python's numbers": lambda x, y: x * 2.5 + (1 - 2j) * y - 3j,
    "of real ones": lambda x, y: x.real * y + y.imag * 2j,
    "added with a factor": lambda x, y: torch.add(x, y.real, alpha=2) - torch.sub(x, y, alpha=1j),
    "parts": lambda x, y: x.real + y.imag,
    "parts of a conjugate": lambda x, y: x.conj().imag + y.mT.conj().imag.mT,
    "conjugates resolved": lambda x, y: x.conj().resolve_conj() - y.conj().clone(),
    "polar": lambda x, y: torch.polar(x.abs(), y.angle()),
    "made of parts": lambda x, y: torch.complex(x.real, y.imag),
    "exponential": lambda x, y: torch.exp(x) + y,
    "matrix product": lambda x, y: x @ y.mH,
    "einsum": lambda x, y: torch.einsum("ij,kj->ik", x, y.conj()),
    "sums": lambda x, y: x.sum(0) + y.mean() + x.mean(-1).sum(),
    "norm": lambda x, y: torch.linalg.vector_norm(x) * y,
    "squares": lambda x, y: x**2 - y.square() + x**3,
    "slices": lambda x, y: torch.cat([x[:, 1:3], y[:, ::2]], 1).t().reshape(-1),
    "stacked": lambda x, y: torch.stack([x, y], -1).flatten(1).unsqueeze(0),
    "expanded": lambda x, y: (x[:1].expand(6, 5) * y).transpose(0, 1).contiguous(),
    "permuted": lambda x, y: x.view(3, 2, 5).permute(2, 0, -2).reshape(5, 6).T + y,
    "moved": lambda x, y: x.roll(1, 0).flip(1).tril() + y.diagonal().sum(),
    "selected": lambda x, y: (
        x[[0, 2, 5]][:, [1, 1]] + y.index_select(0, torch.tensor([1, 1, 3], device=y.device))[:, :2]
    ),
    "chosen": lambda x, y: torch.where(x.real > 0, x, y).masked_fill(y.imag > 1, 2j),
    "cast": lambda x, y: x.real.to(torch.complex64) * y.real.bfloat16(),
    "filled": lambda x, y: torch.ones_like(x) * y + torch.full_like(x, 1 - 2j) + torch.zeros_like(x),
    "in pairs": lambda x, y: torch.view_as_real(torch.view_as_complex(torch.view_as_real(x) * 2) * y),
    "padded": lambda x, y: torch.nn.functional.pad(x, (1, 2), value=0.0)[:, :5] * y,
    "written over": written,
}
TOLERANCE = {"rtol": 4e-6, "atol": 2e-5}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_compiled(case):
    """On the interpreter and the chips, gradients too."""
    check(case, [numbers(6, 5), numbers(6, 5, seed=1)], **TOLERANCE)


@pytest.fixture
def steps():
    """A session whose operators are recorded; yields the operators that were left to the host."""
    here = session.Session(chips.target("trn1.2xlarge"), "fp32")
    with session.activate(here), recording.using("steps"), neuron.use(neuron.DeviceEngine()):
        left = host_ops.current()
        left.reset()
        yield left
        recording.flush()


def eagerly(case, device):
    leaves = [numbers(6, 5, seed=i).to(device).requires_grad_() for i in (0, 1)]
    result = case(*leaves)
    weight = torch.arange(result.numel(), device=device).reshape(result.shape) / 8
    parts = torch.view_as_real(result.resolve_conj()).sum(-1) if result.is_complex() else result
    grads = torch.autograd.grad((parts * weight).sum(), leaves, allow_unused=True)
    return result.stride(), [x.detach().cpu() for x in (result, *grads) if x is not None]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_recorded(steps, case):
    got = eagerly(case, "neuron")
    assert not steps.setup
    assert not steps.training
    expected = eagerly(case, "cpu")
    assert got[0] == expected[0]
    torch.testing.assert_close(got[1], expected[1], **TOLERANCE)


HOSTILE = [math.inf, -math.inf, math.nan, -0.0, 0.0, 1.5, 3e38, 1e-30]


def hostile():
    """All pairs of these as parts."""
    values = torch.tensor(HOSTILE)
    return torch.complex(values.repeat_interleave(8), values.repeat(8))


@pytest.mark.parametrize("name", ["interpreter", "trn1"])
def test_the_product_is_pytorchs_on_all_numbers(name):
    """Infinities that meet zeros are NaN, part by part; finite numbers and signs of zeros as on the CPU."""
    x, y = hostile()[:, None].expand(64, 64).contiguous(), hostile()[None].expand(64, 64).contiguous()
    parts = [torch.view_as_real(v) for v in (x, y)]
    a, b, c, d = (parts[i][..., j] for i in (0, 1) for j in (0, 1))
    expected = torch.stack([a * c - b * d, a * d + b * c], -1)
    (got,), _, _ = through_graph(lambda x, y: torch.view_as_real(x * y), [x, y], gradients=False, on=name)
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    known = ~expected.isnan()
    assert torch.equal(got.signbit()[known], expected.signbit()[known])
    finite = torch.isfinite(torch.view_as_real(x * y)).all(-1) & torch.isfinite(expected).all(-1)
    assert finite.sum() > 400
    torch.testing.assert_close(got[finite], torch.view_as_real(x * y)[finite], rtol=0, atol=0)


def test_real_numbers_scale_both_parts():
    """An infinite part does not make the other one NaN, as it does on the CPU; all else is the CPU's."""
    x = hostile()
    (got,), _, _ = through_graph(lambda x: torch.view_as_real(x * 2.0), [x], gradients=False, on="trn1")
    torch.testing.assert_close(got, torch.view_as_real(x) * 2, rtol=0, atol=0, equal_nan=True)


def test_magnitudes_are_within_the_format():
    """Squares of 3e38 are not."""
    x = hostile()
    (got,), _, _ = through_graph(lambda x: x.abs(), [x], gradients=False, on="trn1")
    torch.testing.assert_close(got, x.abs(), equal_nan=True)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", [torch.complex128, torch.complex32])
def test_other_complex_formats_are_refused(dtype):
    with pytest.raises(UnsupportedOpError, match="TRN203"):
        through_graph(lambda x: x + x, [numbers(3).to(dtype)], gradients=False)


def test_operators_without_a_form_in_parts_are_refused_with_a_way_out():
    with pytest.raises(UnsupportedOpError, match=r"TRN203[\s\S]*aten.tanh[\s\S]*view_as_real"):
        through_graph(torch.tanh, [numbers(3)], gradients=False)


def test_a_conjugate_that_nobody_computed_is_an_input_like_any_other():
    x = numbers(4, 3).conj()
    assert x.is_conj()
    (got,), _, _ = through_graph(lambda x: x * 2, [x], gradients=False, on="trn1")
    torch.testing.assert_close(got, x * 2)


# -- rotary positions -----------------------------------------------------------------------------------------------


def rotated(x, turns):
    """As Llama's own code turns heads."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[: x.shape[1]].view(1, x.shape[1], 1, -1)).flatten(3).type_as(x)


def turns(places, dim):
    angles = torch.outer(torch.arange(places), 1e4 ** -(torch.arange(0, dim, 2) / dim)).float()
    return torch.polar(torch.ones_like(angles), angles)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotary_positions_are_rotations(dtype):
    """They become the op that turns pairs where they are, once there and once back."""
    x = numbers(2, 7, 3, 16, dtype=torch.float32).to(dtype)
    graph = check(lambda x, f: rotated(x, torch.view_as_complex(f.detach())), [x, torch.view_as_real(turns(9, 16))])
    simplify(graph)
    recognize(graph)
    assert [op.name for op in graph.ops].count("trn.rotate_half") == 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.heads = nn.Embedding(32, 32), nn.Linear(32, 96, bias=False)
        self.out = nn.Linear(32, 32)
        self.register_buffer("turns", turns(12, 16), persistent=False)

    def forward(self, ids):
        q, k, v = self.heads(self.embedding(ids)).view(*ids.shape, 3, 2, 16).unbind(2)
        q, k, v = (x.transpose(1, 2) for x in (rotated(q, self.turns), rotated(k, self.turns), v))
        o = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(o.transpose(1, 2).flatten(2))


def trained(device, captured=False):
    torch.manual_seed(0)
    model = Attention().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = [torch.randint(0, 32, (2, 11), generator=torch.Generator().manual_seed(i)) for i in range(3)]

    def loss_of(model, ids):
        return nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    step = neuron.compile_step(model, optimizer, loss_of) if captured else None
    losses = []
    for ids in batches:
        if step is not None:
            losses.append(float(step(ids.to(device))))
            continue
        loss = loss_of(model, ids.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_script_with_complex_positions_is_one_program_a_step(steps):
    got = trained("neuron")
    assert not steps.training
    assert not steps.setup
    torch.testing.assert_close(got, trained("cpu"), rtol=1e-5, atol=0)


def test_a_captured_step_with_complex_positions():
    expected = trained("cpu")
    for name in ("interpreter", "trn1"):
        with engine(name), session.activate(session.Session(chips.target("trn1"), "fp32")):
            torch.testing.assert_close(trained("neuron", captured=True), expected, rtol=1e-5, atol=0)


def test_gradients_of_complex_inputs_are_the_cpus():
    """PyTorch's gradient is that by the conjugate."""
    x = numbers(4)
    _, (expected,), _ = with_gradients(lambda x: (x * x.conj()).real, [x])
    _, (got,), _ = through_graph(lambda x: (x * x.conj()).real, [x], on="trn1")
    torch.testing.assert_close(got, expected)
