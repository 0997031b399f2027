# SPDX-License-Identifier: Apache-2.0
"""An error of Python within a backward pass, which is C++, arrives as what it is, wherever it is raised."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests import processes

pytestmark = pytest.mark.torch

FAILING = """
import torch
from torch.utils._python_dispatch import TorchDispatchMode

class Failing(TorchDispatchMode):
    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if "sigmoid_backward" in str(op):
            raise KINDError("the end of it")
        return op(*args, **(kwargs or {}))

x = torch.ones(4, 3, device="neuron", requires_grad=True)
for _ in range(3):
    loss = x.sigmoid().sum()
    try:
        with Failing():
            loss.backward()
    except KINDError as error:
        print(type(error).__name__, error, error.__traceback__ is not None)
loss = (x * 2).sum()
loss.backward()
print(x.grad.sum().item())
"""
CHOSEN = """
import torch
import trnlab.frontends.torch as neuron
from trnlab.errors import TrnlabError

class Chosen(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return grad[ctx.saved_tensors[0] > 0].sum() * grad

net = torch.nn.Linear(3, 2).to("neuron")
step = neuron.compile_step(net, torch.optim.SGD(net.parameters(), 0.1), lambda m, x: Chosen.apply(m(x)).sum())
for _ in range(3):
    try:
        step(torch.ones(2, 3, device="neuron"))
    except TrnlabError as error:
        print(error.code)
"""


def printed(text: str, folder: Path, **environment: str) -> list[str]:
    """What a script prints; it may end as badly as it likes."""
    (folder / "script.py").write_text(text)
    known = {**os.environ, "TRNLAB_TARGET": "trn1.2xlarge", "TRNLAB_CACHE": str(folder / "cache"), **environment}
    ended = processes.run([sys.executable, "script.py"], cwd=folder, text=True, capture_output=True, env=known)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.parametrize("way", ["steps", "host"])
@pytest.mark.parametrize("kind", ["Value", "Runtime"])
def test_an_error_of_a_kernel_in_python(way: str, kind: str, tmp_path: Path) -> None:
    lines = printed(FAILING.replace("KIND", kind), tmp_path, TRNLAB_EAGER=way)
    assert lines == [*[f"{kind}Error the end of it True"] * 3, "24.0"]


def test_a_refusal_within_the_backward_pass_of_a_captured_step(tmp_path: Path) -> None:
    assert printed(CHOSEN, tmp_path) == ["TRN204"] * 3
