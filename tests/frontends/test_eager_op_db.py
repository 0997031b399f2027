# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own database of operators in eager mode: results, gradients and strides as on the CPU, or a refusal.

One of every STRIDE entries runs by default; TRNLAB_OP_DB=all runs each of them.
"""

from __future__ import annotations

import itertools
import os
import warnings

import pytest
import torch
from torch.utils import _pytree as pytree

from tools.opdb.samples import operators
from trnlab.errors import TrnlabError

pytestmark = pytest.mark.torch
STRIDE, SAMPLES = (1, 4) if os.environ.get("TRNLAB_OP_DB") == "all" else (8, 2)
KINDS = (torch.float32, torch.int64, torch.bool, torch.complex64)
UNDEFINED = ("empty", "new_empty", "as_strided")  # contents that nobody wrote, or memory beyond the tensor's own
TOLERANCE = 2e-4  # composites take another order of sums than the CPU's own kernels: layer norm, attention


def name_of(op):
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def moved(tree, device):
    def one(x):
        if isinstance(x, torch.Tensor):
            return x.detach().clone().to(device).requires_grad_(x.requires_grad)
        return torch.device(device) if isinstance(x, torch.device) else device if x == "cpu" else x

    return pytree.tree_map(one, tree)


def tensors(tree):
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def run(op, sample, device):
    """Results and gradients on a device."""
    torch.manual_seed(1)
    given = moved((sample.input, tuple(sample.args), dict(sample.kwargs)), device)
    results = tensors(op.op(given[0], *given[1], **given[2]))
    wanted, outputs = ([x for x in tensors(t) if x.requires_grad] for t in (given, results))
    if not (wanted and outputs and op.supports_autograd):
        return results, []
    ones = [torch.ones_like(x) for x in outputs]
    return results, [g for g in torch.autograd.grad(outputs, wanted, ones, allow_unused=True) if g is not None]


def compare(op, sample):
    try:
        expected = run(op, sample, "cpu")
    except Exception:
        return  # PyTorch's CPU refuses it
    got = run(op, sample, "neuron")
    for a, b in zip([*got[0], *got[1]], [*expected[0], *expected[1]], strict=True):
        assert (a.dtype, a.shape, a.stride(), a.device.type) == (b.dtype, b.shape, b.stride(), "neuron")
        if not op.name.startswith(UNDEFINED):
            torch.testing.assert_close(a.cpu(), b, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)


def refused(error):
    while error is not None and not isinstance(error, TrnlabError):
        error = error.__cause__
    return error is not None


@pytest.mark.parametrize("op", operators()[::STRIDE], ids=name_of)
def test_operator(op):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in KINDS:
            if kind not in op.supported_dtypes("cpu"):
                continue
            torch.manual_seed(0)
            grad = op.supports_autograd and kind.is_floating_point
            for sample in itertools.islice(op.sample_inputs("cpu", kind, requires_grad=grad), SAMPLES):
                try:
                    compare(op, sample)
                except Exception as error:
                    if not refused(error):
                        raise
