# SPDX-License-Identifier: Apache-2.0
"""`torch.autocast("neuron")` chooses types as PyTorch's GPUs do, in eager mode and in captured graphs."""

import pytest
import torch
import torch.nn.functional as F
from models import GPT
from torch import nn

import trnlab.frontends.torch as neuron

pytestmark = pytest.mark.torch


@pytest.fixture
def x():
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(0)).to("neuron")


LOW = {
    "linear": lambda x: F.linear(x, x),
    "matmul": lambda x: x @ x.t(),
    "addmm": lambda x: torch.addmm(x[:, :4], x, x.t()),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(1, 2, 2, 8)] * 3),
    "convolution": lambda x: F.conv1d(x.view(1, 4, 8), torch.ones(2, 4, 3, device="neuron")),
}
WIDE = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2, 3], device="neuron")),
    "exp": torch.exp,
    "pow": lambda x: x.pow(2),
    "sum": torch.sum,
}


@pytest.mark.parametrize("name", LOW)
def test_products_run_in_low_precision(name, x):
    with torch.autocast("neuron"):
        assert LOW[name](x).dtype == torch.bfloat16
    with torch.autocast("neuron", dtype=torch.float16):
        assert LOW[name](x).dtype == torch.float16
    with torch.autocast("neuron", enabled=False):
        assert LOW[name](x).dtype == torch.float32


@pytest.mark.parametrize("name", WIDE)
def test_sensitive_operators_run_in_fp32(name, x):
    with torch.autocast("neuron", dtype=torch.bfloat16):
        assert WIDE[name](x.bfloat16()).dtype == torch.float32


def test_mixed_inputs_are_widened(x):
    with torch.autocast("neuron"):
        assert torch.cat([x, x.bfloat16()]).dtype == torch.float32
        assert torch.cat([x.bfloat16(), x.bfloat16()]).dtype == torch.bfloat16
        assert (x.bfloat16() + x.bfloat16()).dtype == torch.bfloat16


def test_training_keeps_parameters_and_gradients_in_fp32(x):
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4)).to("neuron")
    with torch.autocast("neuron", dtype=torch.bfloat16):
        out = model(x)
        loss = F.cross_entropy(out, torch.tensor([0, 1, 2, 3], device="neuron"))
    loss.backward()
    assert out.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}


def test_captured_graph_multiplies_in_bf16():
    """Every matrix product of a step under autocast has bf16 operands, in the backward pass too."""
    model = GPT(layers=1).to("neuron")
    ids = torch.zeros(1, 16, dtype=torch.int64, device="neuron")

    def loss(model, ids):
        with torch.autocast("neuron", dtype=torch.bfloat16):
            return model(ids, ids)

    graph = neuron.capture_step(model, None, loss, (ids,)).graph
    products = [op for op in graph.ops if op.name in ("dot_general", "trn.attention", "trn.attention_backward")]
    assert len(products) > 10
    assert {op.operands[0].dtype.name for op in products} == {"bfloat16"}
    assert graph.outputs[0].dtype.name == "float32"
