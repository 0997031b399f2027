# SPDX-License-Identifier: Apache-2.0
"""Optimizers' steps of small parameters: all of them are one call, decay included."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from trnlab import chips
from trnlab.compiler import compile
from trnlab.frontends.torch import capture_step

LAYERS = 6


class Loss(nn.Module):
    """Of a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The mean of squares of distances."""
        return nn.functional.mse_loss(self.model(x), y)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda given: torch.optim.AdamW(given, lr=1e-3, weight_decay=0.1),
        lambda given: torch.optim.AdamW(given, lr=1e-3, weight_decay=0.0),
        lambda given: torch.optim.SGD(given, lr=1e-3, momentum=0.9, weight_decay=0.1),
    ],
)
def test_small_updates_are_one_call(optimizer):
    """The decay of a parameter waits for nothing, and what waits for its gradient alone reads it."""
    with FakeTensorMode(), torch.device("neuron"):
        model = nn.Sequential(*(nn.Sequential(nn.Linear(128, 128), nn.LayerNorm(128)) for _ in range(LAYERS)))
        x, y = torch.zeros(256, 128), torch.zeros(256, 128)
        made = optimizer(model.parameters())
        graph = capture_step(Loss(model), made, None, [x, y]).graph
    program = compile(graph, chips.get("trn1"), {"precision": "fp32"})
    vectors = {place for place, v in zip(program.outputs, graph.outputs) if v.shape == (128,)}
    writing = [call for call in program.calls if vectors & {*call.args} and "optimizer" not in call.label]
    updates = [call for call in writing if f"(x{3 * LAYERS})" in call.label]
    assert len(updates) == 1
    assert vectors <= {*updates[0].args}
