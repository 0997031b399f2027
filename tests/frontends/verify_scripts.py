# SPDX-License-Identifier: Apache-2.0
"""Scripts for `trnlab verify`, clean and with faults; `line` finds the line of a fault by its text."""

from __future__ import annotations

from pathlib import Path

HEAD = """\
import sys
sys.path.insert(0, {folder!r})
import torch, torch.nn.functional as F
from torch import nn
from trnlab.frontends.torch import compile_step
from models import BERT, GPT
torch.manual_seed(0)
"""

GPT = """\
model = GPT(width=16, layers=1).to("neuron")
step = compile_step(model, torch.optim.AdamW(model.parameters(), lr=1e-3), max_norm=1.0)
for _ in range(5):
    x = torch.randint(67, (2, 16)).to("neuron")
    step(x, x)
"""

BERT = """\
model = BERT(width=16, dropout=0.1).to("neuron")
step = compile_step(model, torch.optim.AdamW(model.parameters(), lr=1e-3), max_norm=1.0)
for _ in range(5):
    x, follows = torch.randint(61, (2, 16)).to("neuron"), torch.randint(2, (2,)).to("neuron")
    step(x, x, follows)
"""

COMPILED = """\
model = GPT(width=16, layers=1).to("neuron")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
fast = torch.compile(model, backend="neuron")
for _ in range(5):
    x = torch.randint(67, (2, 16)).to("neuron")
    loss = fast(x, x)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

UNEDITED = """\
model = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Dropout(0.25), nn.MaxPool2d(2), nn.ConvTranspose2d(8, 4, 2, stride=2),
    nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(64, 10),
).to("neuron")
optimizer = torch.optim.Adadelta(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    F.cross_entropy(model(torch.randn(32, 1, 8, 8).to("neuron")), torch.randint(10, (32,)).to("neuron")).backward()
    optimizer.step()
"""

# Rotary positions of neighbours, written out, a norm of RMS, a gated layer: what compilers make one op of each.
LLAMA = """\
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(32)
        self.qkv, self.out = nn.Linear(32, 96, bias=False), nn.Linear(32, 32, bias=False)
        self.gate, self.up, self.down = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32)
        angles = torch.outer(torch.arange(24.0), 1e4 ** -(torch.arange(8) / 8))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
    def turned(self, x):
        pairs = x.float().reshape(*x.shape[:-1], -1, 2)
        a, b, cos, sin = pairs[..., 0], pairs[..., 1], self.cos[:, None], self.sin[:, None]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(3).type_as(x)  # turns
    def forward(self, x):
        q, k, v = (y.unflatten(-1, (2, 16)) for y in self.qkv(self.norm(x)).chunk(3, -1))
        heads = [y.transpose(1, 2) for y in (self.turned(q), self.turned(k), v)]
        x = x + self.out(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))
model = nn.Sequential(nn.Embedding(61, 32), Layer(), nn.Linear(32, 61)).to("neuron")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(3):
    x = torch.randint(61, (2, 24)).to("neuron")
    optimizer.zero_grad()
    F.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
    optimizer.step()
"""

_NET = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x, y):
        h = self.first(x)
{body}
        return F.cross_entropy(self.last(h), y)


model = Net().to("neuron")
step = compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(5):
    x, y = torch.randn(8, 16), torch.randint(4, (8,))
    step(x.to("neuron"), y.to("neuron"))
"""

OVERFLOW = _NET.format(body="        h = h.half() * 60000  # overflows\n        h = torch.tanh(h.float() / 60000)")
CANCELLATION = _NET.format(
    body="""\
        h = h + 4000.0
        mean = h.mean(-1, keepdim=True)
        variance = (h * h).mean(-1, keepdim=True) - mean * mean  # cancels
        h = (h - mean) / torch.sqrt(variance.abs() + 1e-5)"""
)
SMALL = _NET.format(body="        h = torch.log1p(torch.exp(h - 12))  # small\n        h = h * 1e4")
SUM = _NET.format(body="        h = h - h.abs().sum(-1, keepdim=True)  # sums")
ACTIVATION = _NET.format(body="        h = F.tanh(h)  # tanh")
KERNEL = """\
import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl


@nki.jit
def double(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out, src=tile)
    return out


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return double(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


""" + _NET.format(body="        h = Doubled.apply(h)  # kernel")

NORM = """\
class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, eps={eps})  # norm


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.proj = Norm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).split(16, -1)
        weights = torch.softmax(q @ k.transpose(-2, -1) / 4, dim={axis})  # weights
        return x + self.proj(weights @ v)


model = nn.Sequential(nn.Embedding(50, 16), Layer(), Layer(), nn.Linear(16, 50)).to("neuron")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = compile_step(model, optimizer, lambda m, x: F.cross_entropy(m(x).flatten(0, 1), x.flatten()))
for _ in range(5):
    step(torch.randint(50, (2, 8)).to("neuron"))
"""


def write(folder: Path, name: str, text: str) -> Path:
    """A script in `folder`."""
    path = folder / f"{name}.py"
    path.write_text(HEAD.format(folder=str(Path(__file__).parent)) + text)
    return path


def line(path: Path, text: str) -> int:
    """The number of the line that contains `text`."""
    return next(i for i, content in enumerate(path.read_text().splitlines(), 1) if text in content)
