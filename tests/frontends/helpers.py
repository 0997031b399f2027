# SPDX-License-Identifier: Apache-2.0
"""Run a PyTorch function through capture, importer and graph interpreter, with its gradients."""

from __future__ import annotations

import copy

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import trnlab.frontends.torch as neuron
from trnlab.frontends.torch import tracing
from trnlab.frontends.torch.buffers import Buffer, tensor_from
from trnlab.frontends.torch.import_fx import import_fx

TOLERANCE = 1e-5  # of the largest magnitude of each tensor: fp32 sums in another order


def worst_error(got, expected) -> float:
    """Largest difference, relative to the largest finite magnitude expected."""
    got, expected = got.detach().cpu().double(), expected.detach().cpu().double()
    assert got.shape == expected.shape
    finite = torch.isfinite(expected)
    assert torch.equal(torch.isfinite(got), finite)
    if not finite.any():
        return 0.0
    scale = expected[finite].abs().max().clamp_min(1e-30)
    return float((got[finite] - expected[finite]).abs().max() / scale)


def with_gradients(function, inputs):
    """Outputs of the function, and the gradients of a weighted sum of them by each float input."""
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    with torch.enable_grad():
        outputs = function(*leaves)
        outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
        wanted = [x for x in leaves if x.requires_grad]
        total = sum((o * weights_like(o)).sum() for o in outputs if o.requires_grad)
        grads = torch.autograd.grad(total, wanted, allow_unused=True) if isinstance(total, torch.Tensor) else []
    return [o.detach() for o in outputs], [g for g in grads if g is not None]


def weights_like(x):
    """Distinct weights, so that no two elements of a gradient agree by chance."""
    count = torch.arange(x.numel(), dtype=torch.float32, device=x.device)
    return (0.5 + torch.sin(count + 1.0)).reshape(x.shape).to(x.dtype)


def through_graph(function, inputs, gradients=True):
    """What `with_gradients` gives, computed by the graph's interpreter; also the graph."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [tracing.fake_like(mode, x, "neuron") for x in inputs]
    split = []

    def traced(lines, *args):
        outputs, grads = with_gradients(function, args) if gradients else (listed(function(*args)), [])
        split.append(len(outputs))
        return [*outputs, *grads]

    module = tracing.trace(traced, fakes, mode)
    imported = import_fx(module, "test")
    placeholders = [n.name for n in module.graph.nodes if n.op == "placeholder"]
    seed = torch.tensor([1, 2], dtype=torch.int32)
    arrays = [Buffer(seed if n is None else inputs[placeholders.index(n)]).array() for n in imported.inputs]
    results = neuron.InterpreterEngine().compile(imported.graph)(arrays)
    returned = next(n for n in module.graph.nodes if n.op == "output").args[0]
    kinds = [returned[i].meta["val"].dtype for i in imported.outputs]
    tensors = [tensor_from(r, k, "cpu") for r, k in zip(results, kinds)]
    return tensors[: split[0]], tensors[split[0] :], imported.graph


def listed(outputs):
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def check(function, inputs, tolerance=TOLERANCE):
    """The graph agrees with eager PyTorch on the CPU, outputs and gradients."""
    expected, expected_grads = with_gradients(function, inputs)
    got, grads, graph = through_graph(function, inputs)
    assert len(got) == len(expected)
    assert len(grads) == len(expected_grads)
    for a, b in zip([*got, *grads], [*expected, *expected_grads]):
        assert a.dtype == b.dtype
        assert worst_error(a, b) <= tolerance
    return graph


def gradients_through_graph(model, batch, loss_fn=None):
    """Loss and gradients by name of a model on `neuron`, through `capture_step` and the interpreter."""
    model, batch = copy.deepcopy(model).to("neuron"), [x.to("neuron") for x in batch]
    captured = neuron.capture_step(model, None, loss_fn, batch)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    arrays = [Buffer(batch[r.place] if r.kind == "batch" else tensors[r.name]).array() for r in captured.inputs]
    results = neuron.InterpreterEngine().compile(captured.graph)(arrays)
    named = {role.name: torch.from_numpy(r) for role, r in zip(captured.outputs, results) if role.kind == "gradient"}
    return torch.from_numpy(results[0]), named, captured
