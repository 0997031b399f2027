# SPDX-License-Identifier: Apache-2.0
"""Kernels inside of models: one node of the graph, one call of the program; values and gradients as in eager mode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from gelu_kernels import gelu_forward, product
from helpers import TOLERANCE, worst_error
from torch import nn

import trnlab.frontends.torch as neuron
import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl
import trnlab.nki.neuronxcc as old
import trnlab.nki.neuronxcc.language as onl
from trnlab import chips
from trnlab.errors import UsageError
from trnlab.frontends.common.engine import InterpreterEngine, use
from trnlab.runtime.cache.executables import Cache
from trnlab.runtime.session import Session, activate

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),  # Dynamo does it itself
]


@pytest.fixture(autouse=True)
def session(tmp_path):
    with activate(Session(chips.target("trn2"), "fp32", cache=Cache(tmp_path))) as now:
        yield now


def tiles(x):
    return [slice(i, min(i + 128, x.shape[0])) for i in range(0, x.shape[0], 128)]


@nki.jit
def scale(x, by=2.0, how=nl.multiply, dtype=None):
    out = nl.ndarray(x.shape, dtype=dtype or x.dtype, buffer=nl.shared_hbm)
    for rows in tiles(x):
        source = nl.load(x[rows])
        result = nl.ndarray(source.shape, dtype=out.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=result, data=source, op0=how, operand0=by)
        nl.store(out[rows], result)
    return out


@dataclass(frozen=True)
class Options:
    by: float = 2.0
    dtype: Any = None


@nki.jit
def scale_with(x, options):
    return scale(x, options.by, dtype=options.dtype)


class Gelu(torch.autograd.Function):
    """As the vendor's guide has it: kernels in forward and backward."""

    @staticmethod
    def forward(ctx, x):
        out, slope = gelu_forward(x)
        ctx.save_for_backward(slope)
        return out

    @staticmethod
    def backward(ctx, dy):
        (slope,) = ctx.saved_tensors
        return product(dy, slope)


scaled = neuron.kernel_op(scale, backward=lambda grads, inputs, outputs: scale(grads[0], 3.0))


DOUBLE = Options()


class Net(nn.Module):
    def __init__(self, with_kernels):
        super().__init__()
        self.first, self.last, self.with_kernels = nn.Linear(24, 40), nn.Linear(40, 5), with_kernels

    def forward(self, x):
        hidden = self.first(x)
        if self.with_kernels:
            hidden = scaled(Gelu.apply(hidden), 3.0)
        else:
            hidden = nn.functional.gelu(hidden) * 3
        return self.last(hidden).square().mean()


@pytest.fixture
def nets():
    """The model in eager PyTorch, with its gradients, and the same with kernels on the device; and a batch."""
    torch.manual_seed(0)
    plain, x = Net(False), torch.randn(150, 24)
    kernels = Net(True)
    kernels.load_state_dict(plain.state_dict())
    loss = plain(x)
    loss.backward()
    return plain, loss.detach(), kernels.to("neuron"), x.to("neuron")


def calls_of(session):
    """How often each kernel is called by the programs that were compiled."""
    programs = [e.program for e in session.executables.values()]
    labels = [c.label for p in programs for c in p.calls]
    return {k: labels.count(k) for k in ("scale", "gelu_forward", "product")}


def test_a_compiled_model_calls_kernels_forward_and_backward(nets, session):
    plain, expected, net, x = nets
    loss = torch.compile(net, backend="neuron", fullgraph=True)(x)
    loss.backward()
    assert worst_error(loss, expected) <= TOLERANCE
    for a, b in zip(net.parameters(), plain.parameters()):
        assert worst_error(a.grad, b.grad) <= TOLERANCE
    assert calls_of(session) == {"scale": 2, "gelu_forward": 1, "product": 1}


@pytest.mark.parametrize("engine", [None, InterpreterEngine()])
def test_a_captured_step_calls_kernels(nets, session, engine):
    plain, expected, net, x = nets
    step = neuron.compile_step(net, torch.optim.SGD(net.parameters(), lr=0.1))
    with use(engine or neuron.DeviceEngine()):
        assert worst_error(step(x), expected) <= TOLERANCE
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    for a, b in zip(net.parameters(), plain.parameters()):
        assert worst_error(a, b) <= TOLERANCE
    graph = step.captured.graph
    called = [op.attrs["callee"].name for op in graph.ops if op.name == "custom_call"]
    assert called == ["gelu_forward", "scale", "scale", "product"]
    assert all(op.loc.file == __file__ for op in graph.ops if op.name == "custom_call")


def test_the_eager_device_differentiates_too(nets):
    plain, expected, net, x = nets
    loss = net(x)
    loss.backward()
    assert worst_error(loss, expected) <= TOLERANCE
    assert worst_error(net.first.weight.grad, plain.first.weight.grad) <= TOLERANCE


def test_time_and_profile_know_a_kernel_by_its_name(nets, session):
    *_, net, x = nets
    neuron.compile_step(net, torch.optim.SGD(net.parameters(), lr=0.1))(x)
    (executable,) = session.executables.values()
    timeline = executable.timeline
    (call,) = (c for c in timeline.calls if c.label == "gelu_forward")
    assert call.routine == "gelu_forward"
    own = slice(call.first, call.first + call.count)
    assert 0 < timeline.start[own].min() < timeline.done[own].max() < timeline.total


def test_the_cache_keeps_a_program_with_its_kernels(session):
    def double(x):
        return scale(x, 2.0) + 1

    x = torch.randn(130, 8).to("neuron")
    expected = torch.compile(double, backend="neuron")(x)
    (first,) = session.executables.values()
    torch._dynamo.reset()
    with activate(Session(chips.target("trn2"), "fp32", cache=session.cache)) as later:
        assert torch.equal(torch.compile(double, backend="neuron")(x).cpu(), expected.cpu())
        (again,) = later.executables.values()
    assert (first.cache, again.cache) == ("miss", "hit")
    assert again.timeline.total == first.timeline.total


def test_the_key_follows_the_code_of_the_kernel(session):
    x = torch.ones(8, 8).to("neuron")
    keys = []
    for by in (2.0, 3.0, 2.0):
        torch._dynamo.reset()
        torch.compile(lambda x, by=by: scale(x, by), backend="neuron")(x)
        keys.append(set(session.executables))
    assert len(keys[0]) == 1
    assert len(keys[1]) == len(keys[2]) == 2


def compiled(function, *tensors):
    """A function's results on the device, on the interpreter, and in eager mode, as CPU tensors."""
    found = []
    for engine in (neuron.DeviceEngine(), InterpreterEngine()):
        torch._dynamo.reset()
        with use(engine):
            out = torch.compile(function, backend="neuron", fullgraph=True)(
                *(t.clone().to("neuron") for t in tensors)
            )
        found.append([t.cpu() for t in (out if isinstance(out, tuple) else (out,))])
    return found


def agree(function, expected, *tensors):
    expected = expected if isinstance(expected, tuple) else (expected,)
    for found in compiled(function, *tensors):
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_operands_that_are_views_constants_and_attention_lie_in_memory_first():
    x = torch.arange(6.0 * 10).reshape(6, 10)
    agree(lambda x: scale(x.T), x.T * 2, x)
    agree(lambda x: scale(x[::2, 1:4]), x[::2, 1:4] * 2, x)
    agree(lambda x: scale(x.reshape(3, 20)), x.reshape(3, 20) * 2, x)
    agree(lambda x: product(x, torch.full_like(x, 3.0)), x * 3, x)
    agree(lambda x: product(x, x[:1].expand(6, 10)), x * x[:1], x)
    agree(lambda x: product(x, torch.arange(10.0, device=x.device).expand(6, 10)), x * torch.arange(10.0), x)
    agree(lambda x: product(x, x), x * x, x)


def test_results_are_read_like_any_other_value():
    x = torch.randn(6, 10)
    agree(lambda x: (scale(x).T @ x, scale(x) + 1, scale(scale(x), 0.5)), (2 * x.T @ x, 2 * x + 1, x), x)
    agree(lambda x: gelu_forward(x)[0], nn.functional.gelu(x), x)


def test_formats_and_options_pass_through_dynamo():
    x = torch.randn(6, 10)
    agree(lambda x: scale(x, 1.0, how=nl.add, dtype=nl.bfloat16), (x + 1).bfloat16(), x)
    agree(lambda x: scale(x, 2.0, dtype=None), x * 2, x)
    whole = torch.arange(60, dtype=torch.int64).reshape(6, 10)
    agree(lambda n: scale(n, 3).long(), whole * 3, whole)
    agree(lambda x: scale[1](x), x * 2, x)
    agree(lambda x: scale_with(x, options=DOUBLE), x * 2, x)
    agree(lambda x: scale_with(x, Options(3.0, nl.bfloat16)), (x * 3).bfloat16(), x)


@nki.jit
def add_into(total, x):
    """Overwrites its first argument, through memory of its own."""
    own = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.private_hbm)
    nl.store(own, nl.add(nl.load(total), nl.load(x)))
    nl.store(total, nl.load(own))


def test_arguments_that_a_kernel_overwrites():
    def twice(total, x):
        total = total * 1
        add_into(total, x)
        add_into(total, x)
        return total

    def in_place(total, x):
        add_into(total, x)
        return total + 0

    total, x = torch.randn(6, 10), torch.randn(6, 10)
    agree(twice, total + 2 * x, total, x)
    agree(in_place, total + x, total, x)
    given = total.clone().to("neuron")
    torch.compile(in_place, backend="neuron")(given, x.to("neuron"))
    torch.testing.assert_close(given.cpu(), total + x)


@nki.jit
def with_table(x):
    """Has a constant, and returns a part of a tensor."""
    out = nl.ndarray((2, *x.shape), dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out[0], nl.load(x))
    nl.store(out[1], nl.add(nl.load(x), 1.0))
    return out[1]


def test_a_part_of_a_tensor_is_a_view_of_it():
    x = torch.randn(6, 10)
    agree(lambda x: with_table(x) * 2, 2 * (x + 1), x)


def test_numpy_arguments_are_constants_of_the_program():
    table = np.arange(60 * 200, dtype=np.float32).reshape(60, 200)
    other = np.where(table == 6000, -1, table).astype(np.float32)  # the same at both ends
    x = torch.randn(60, 200)
    agree(lambda x: (product(x, table), product(x, other)), (x * torch.tensor(table), x * torch.tensor(other)), x)


def test_numpy_arguments_of_a_captured_step():
    table = np.arange(60, dtype=np.float32).reshape(6, 10)
    x = torch.randn(6, 10)
    step = neuron.compile_step(
        net := nn.Linear(10, 10, bias=False).to("neuron"),
        torch.optim.SGD(net.parameters(), lr=0.0),
        lambda net, x: net(x).sum() * 0 + product(x, table).sum(),
    )
    torch.testing.assert_close(step(x.to("neuron")).cpu(), (x * torch.from_numpy(table)).sum())


@old.jit
def old_double(x):
    out = onl.ndarray(x.shape, dtype=x.dtype, buffer=onl.shared_hbm)
    onl.store(out, onl.load(x) * 2)
    return out


def test_kernels_of_the_old_dialect():
    x = torch.randn(6, 10)
    agree(lambda x: old_double(x) + 1, 2 * x + 1, x)


# -- refusals -------------------------------------------------------------------------------------------------------


def test_a_kernel_without_a_derivative_says_how_to_give_one():
    x = torch.randn(6, 10).to("neuron").requires_grad_()
    with pytest.raises(UsageError, match="TRN133") as refused:
        scale(x).sum().backward()
    assert "kernel_op" in str(refused.value)


def test_a_derivative_gives_one_gradient_per_tensor():
    op = neuron.kernel_op(product, backward=lambda grads, inputs, outputs: grads[0])
    x = torch.randn(6, 10).to("neuron").requires_grad_()
    with pytest.raises(UsageError, match="wrong number of gradients"):
        op(x, x).sum().backward()


def test_only_kernels_become_operators():
    with pytest.raises(UsageError, match="TRN132"):
        neuron.kernel_op(lambda x: x)


def refusal(function, *tensors):
    with pytest.raises(Exception, match="TRN20") as refused:
        torch.compile(function, backend="neuron", fullgraph=True)(*(t.to("neuron") for t in tensors))
    return str(refused.value)


@nki.jit
def transposed(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(x))
    return out.permute((1, 0))


def test_a_kernel_for_another_chip_is_refused_in_a_model():
    elsewhere = nki.Kernel(scale.function, chip=chips.get("trn3"))
    assert "TRN206" in refusal(lambda x: elsewhere(x) + 1, torch.randn(6, 10))


FACTOR = 2.0


@nki.jit
def scale_by_global(x):
    return scale.function(x, FACTOR)


def test_a_compiled_model_sees_what_a_kernel_reads_change(monkeypatch):
    function = torch.compile(lambda x: scale_by_global(x) + 1, backend="neuron", fullgraph=True)
    x = torch.ones(8, 4).to("neuron")
    assert torch.equal(function(x).cpu(), torch.full((8, 4), 3.0))
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    assert torch.equal(function(x).cpu(), torch.full((8, 4), 6.0))


def test_what_changed_is_told_by_the_kernels_digest(capfd):
    x = torch.randn(6, 10).to("neuron")
    step = [lambda net, x, by=by: scale(net(x).detach(), by).sum() + net(x).sum() for by in (2.0, 3.0)]
    for loss in step:
        net = nn.Linear(10, 10).to("neuron")
        neuron.compile_step(net, torch.optim.SGD(net.parameters(), lr=0.1), loss)(x)
    (said,) = [line for line in capfd.readouterr().err.splitlines() if "again" in line]
    assert "custom_call" in said
    assert len(said) < 500


def test_a_strided_result_is_refused_in_a_model():
    assert "TRN205" in refusal(lambda x: transposed(x) + 1, torch.randn(6, 10))


@nki.jit
def with_a_dimension_of_one(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(x))
    return out.reshape((*x.shape, 1))


def test_a_result_reshaped_to_a_dimension_of_one_is_a_run_of_elements():
    x = torch.randn(6, 10)
    function = torch.compile(lambda x: with_a_dimension_of_one(x) + 1, backend="neuron", fullgraph=True)
    assert torch.equal(function(x.to("neuron")).cpu(), x[..., None] + 1)
