# SPDX-License-Identifier: Apache-2.0
"""LSTM and GRU cells on `neuron`, in operators that have derivatives.

`nn.LSTM` and `nn.GRU` ask outside devices for fused cells, which PyTorch has for GPUs only. Gates are in the order of
PyTorch's weights (https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html, .../torch.nn.GRU.html).

Shape letters: N batch, H hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trnlab.frontends.torch.device.dispatch import implement

_LIBRARIES: list[torch.library.Library] = []


def _biased(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


def lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of an LSTM: (hy, cy, gates) from products [N, 4 H] of input and state, and the cell state [N, H]."""
    gates = _biased(input_gates, input_bias) + _biased(hidden_gates, hidden_bias)
    into, keep, new, out = gates.chunk(4, 1)
    cy = torch.sigmoid(keep) * cx + torch.sigmoid(into) * torch.tanh(new)
    return torch.sigmoid(out) * torch.tanh(cy), cy, gates.detach()


def gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One step of a GRU: (hy, gates) from products [N, 3 H] of input and state, and the state [N, H]."""
    given, held = _biased(input_gates, input_bias), _biased(hidden_gates, hidden_bias)
    reset_x, update_x, new_x = given.chunk(3, 1)
    reset_h, update_h, new_h = held.chunk(3, 1)
    update = torch.sigmoid(update_x + update_h)
    new = torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h)
    return new + update * (hx - new), given.detach()


def register() -> None:
    """Give the fused cells their kernels. Called once."""
    aten = torch.library.Library("aten", "IMPL")
    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        implement(aten, "_thnn_fused_lstm_cell", lstm_cell, key)
        implement(aten, "_thnn_fused_gru_cell", gru_cell, key)
    _LIBRARIES.append(aten)
