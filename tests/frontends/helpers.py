# SPDX-License-Identifier: Apache-2.0
"""Run a PyTorch function, with its gradients, through capture and importer on two engines: the graph's interpreter,
and the program that the compiler makes, executed on the simulated chip."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from itertools import cycle

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import trnlab.frontends.torch as neuron
from trnlab import chips
from trnlab.frontends.torch.capture import tracing
from trnlab.frontends.torch.capture.import_fx import import_fx
from trnlab.frontends.torch.device.buffers import ChipArray, tensor_from
from trnlab.runtime import session

TRN1 = "trn1"
_LATER = cycle(("trn2", None, "trn3", None))  # every other test runs on a later chip, too
TOLERANCE = 1e-5  # of the largest magnitude of each tensor: fp32 sums in another order


def worst_error(got, expected) -> float:
    """Largest difference, relative to the largest finite magnitude expected."""
    got, expected = got.detach().cpu().double(), expected.detach().cpu().double()
    assert got.shape == expected.shape
    finite = torch.isfinite(expected)
    assert torch.equal(got[~finite].nan_to_num(nan=0.0), expected[~finite].nan_to_num(nan=0.0))
    assert torch.isfinite(got[finite]).all()
    if not finite.any():
        return 0.0
    scale = expected[finite].abs().max().clamp_min(1e-30)
    return float((got[finite] - expected[finite]).abs().max() / scale)


def with_gradients(function, inputs, weights=None):
    """Outputs of the function, and the gradients of a weighted sum of them by each float input; also the weights."""
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point() or x.is_complex()) for x in inputs]
    with torch.enable_grad():
        outputs = listed(function(*leaves))
        wanted = [x for x in leaves if x.requires_grad]
        parts = [o for o in outputs if o.requires_grad]
        weights = [weights_like(o) for o in parts] if weights is None else weights
        grads = torch.autograd.grad(parts, wanted, list(weights), allow_unused=True) if parts else []
    return [o.detach() for o in outputs], [g for g in grads if g is not None], list(weights)


def weights_like(x):
    """Distinct weights, so that no two neighbours of a gradient agree by chance: multiples of 1/64, always exact."""
    if x.is_complex():
        return torch.view_as_complex(weights_like(torch.view_as_real(x.detach().resolve_conj()).contiguous()))
    count = torch.arange(x.numel(), dtype=torch.int32).mul(37).remainder(64)
    return (0.5 + count.to(torch.float32) / 64).reshape(x.shape).to(x.dtype).to(x.device)


@contextmanager
def engine(name, device=neuron.DeviceEngine):
    """The engine called "interpreter", or the compiler in fp32 for a chip, in a session of its own."""
    if name == "interpreter":
        with neuron.use(neuron.InterpreterEngine()) as chosen:
            yield chosen
    else:
        with session.activate(session.Session(chips.target(name), "fp32")), neuron.use(device()) as chosen:
            yield chosen


class Beside(neuron.DeviceEngine):
    """The chip, and at every call the graph's interpreter beside it, on the inputs as they were: what both return
    agrees. So one capture of a step is tried as the graph is defined, and as the chip computes it.

    Floats are within TOLERANCE, of bf16's rounding where the graph computes in it; what is updated in place differs
    by at most 2e-2 of the distance that it moved, since an optimizer enlarges what rounding leaves of a gradient.
    """

    def compile(self, graph, frozen=()):
        chip, meaning = super().compile(graph, frozen), neuron.InterpreterEngine().compile(graph)
        rough = any(str(value.type.dtype) == "bfloat16" for op in graph.ops for value in op.results)

        def run(inputs):
            before, copies = ([np.array(x) for x in inputs] for _ in range(2))
            results = chip(inputs)
            for i, (got, wanted) in enumerate(zip(results, meaning(copies), strict=True)):
                origin = before[graph.aliases[i]] if i in graph.aliases else None
                assert_near(np.asarray(got), wanted, 2**-7 if rough else TOLERANCE, origin)
            return results

        return run


def assert_near(got, expected, tolerance, origin=None):
    """Integers are equal. origin: what both were before, of which the distance counts."""
    if got.dtype.kind in "biu":
        assert np.array_equal(got, expected)
        return
    got, expected = (torch.from_numpy(x.astype(np.float64)) for x in (got, expected))
    error = worst_error(got, expected)
    if origin is not None and error > tolerance:
        moved = np.abs(expected.numpy() - origin.astype(np.float64)).max()
        assert float((got - expected).abs().max()) <= 2e-2 * moved
    else:
        assert error <= tolerance


class Traced:
    """A function with its gradients as one graph, ready for any engine."""

    def __init__(self, function, inputs, weights=None):
        self.inputs = [*inputs, *(weights or [])]
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        fakes = [tracing.fake_like(mode, x, "neuron") for x in self.inputs]

        def traced(lines, *args):
            given, into = args[: len(inputs)], args[len(inputs) :]
            outputs, grads = listed(function(*given)), []
            if weights is not None:
                outputs, grads, _ = with_gradients(function, given, into)
            self.split = len(outputs)
            return [*outputs, *grads]

        self.module = tracing.trace(traced, fakes, mode)
        self.imported = import_fx(self.module, "test")
        self.graph = self.imported.graph

    def run(self, on="interpreter"):
        """Outputs and gradients."""
        placeholders = [n.name for n in self.module.graph.nodes if n.op == "placeholder"]
        seed = torch.tensor([1, 2], dtype=torch.int32)
        given = [seed if n is None else self.inputs[placeholders.index(n)] for n in self.imported.inputs]
        with engine(on) as chosen:
            results = chosen.compile(self.graph)([ChipArray(x).array() for x in given])
        returned = next(n for n in self.module.graph.nodes if n.op == "output").args[0]
        kinds = [returned[i].meta["val"].dtype for i in self.imported.outputs]
        tensors = [tensor_from(r, k, "cpu") for r, k in zip(results, kinds)]
        return tensors[: self.split], tensors[self.split :]


def through_graph(function, inputs, gradients=True, on="interpreter"):
    """What `with_gradients` gives, computed by an engine; also the graph."""
    weights = with_gradients(function, inputs)[2] if gradients else None
    traced = Traced(function, inputs, weights)
    return *traced.run(on), traced.graph


def listed(outputs):
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def assert_same(got, expected, rtol=None, atol=None):
    """Equal shapes and dtypes, and every element as near as PyTorch asks of two devices (`assert_close`):
    in fp32 within 1.3e-6 of its own magnitude, and of 1e-5; integers and bools equal."""
    torch.testing.assert_close(got.detach().cpu(), expected.detach().cpu(), rtol=rtol, atol=atol, equal_nan=True)


def engines():
    """The interpreter, trn1, and in rotation a later chip."""
    later = next(_LATER)
    return ["interpreter", TRN1, *([later] if later else [])]


def check(function, inputs, gradients=True, rtol=None, atol=None, on=None):
    """The graph agrees with eager PyTorch on the CPU on all engines, outputs and gradients, element by element."""
    if gradients:
        expected, expected_grads, weights = with_gradients(function, inputs)
    else:
        expected, expected_grads, weights = listed(function(*inputs)), [], None
    traced = Traced(function, inputs, weights)
    for engine_name in on or engines():
        got, grads = traced.run(engine_name)
        assert len(got) == len(expected)
        assert len(grads) == len(expected_grads)
        for a, b in zip([*got, *grads], [*expected, *expected_grads]):
            assert_same(a, b, rtol, atol)
    return traced.graph


class CapturedGradients:
    """Loss and gradients of a model on `neuron`, captured once through `capture_step`, ready for any engine."""

    def __init__(self, model, batch, loss_fn=None):
        model, batch = copy.deepcopy(model).to("neuron"), [x.to("neuron") for x in batch]
        self.captured = neuron.capture_step(model, None, loss_fn, batch)
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self.given = [batch[r.place] if r.kind == "batch" else tensors[r.name] for r in self.captured.inputs]

    def run(self, on="interpreter"):
        """The loss, and the gradients by name."""
        with engine(on) as chosen:
            results = chosen.compile(self.captured.graph)([ChipArray(x).array() for x in self.given])
        roles = zip(self.captured.outputs, results)
        return torch.from_numpy(results[0]), {r.name: torch.from_numpy(g) for r, g in roles if r.kind == "gradient"}
