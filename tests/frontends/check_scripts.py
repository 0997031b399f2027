# SPDX-License-Identifier: Apache-2.0
"""Scripts for `trnlab check`: clean ones, and ones with obstacles, whose lines end in `# TRNxxx`."""

from __future__ import annotations

import re

HEAD = """\
import numpy as np
import torch, torch.nn.functional as F
from torch import nn
from trnlab.frontends.torch import compile_step
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).to("neuron")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
def batches(count=8, size=6):
    for i in range(count):
        yield torch.randn(size, 16).to("neuron"), torch.randint(4, (size,)).to("neuron")
"""

STEP = """
step = compile_step(model, optimizer, loss_fn)
for x, y in batches():
    print(step(x, y).item())
"""

COMPILED = """
@torch.compile(backend="neuron")
def forward(x, y):
    return loss_fn(model, x, y)

@torch.compile(backend="neuron")
def update():
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

for x, y in batches():
    loss = forward(x, y)
    loss.backward()
    update()
    optimizer.zero_grad()
    print(loss.item())
"""

PLAIN = "def loss_fn(model, x, y):\n    return F.cross_entropy(model(x), y)\n"


def loss(body: str) -> str:
    """A loss function with something more in it."""
    return f"def loss_fn(model, x, y):\n    h = model(x)\n{body}\n    return F.cross_entropy(h, y) + z\n"


def in_step(body: str) -> str:
    """A script whose step has something in its way."""
    return HEAD + loss(body) + STEP


CLEAN = {
    "compile_step": HEAD + PLAIN + STEP,
    "torch.compile": HEAD + PLAIN + COMPILED,
    "dropout, a schedule and an evaluation": HEAD
    + """
model.append(nn.Dropout(0.1))
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
step = compile_step(model, optimizer, lambda m, x, y: F.cross_entropy(m(x), y), max_norm=1.0)
for i, (x, y) in enumerate(batches()):
    loss = step(x, y)
    schedule.step()
    if i == 1 and loss.item() > 0:
        print(f"loss {loss:.3f}", loss)
""",
    "an optimizer that nobody compiles": HEAD
    + PLAIN
    + """
forward = torch.compile(lambda x, y: loss_fn(model, x, y), backend="neuron")
for x, y in batches():
    loss = forward(x, y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "nothing compiled": HEAD
    + """
for x, y in batches():
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "a loader whose batches are equal": HEAD
    + PLAIN
    + """
data = torch.utils.data.TensorDataset(torch.randn(20, 16), torch.randint(4, (20,)))
loader = torch.utils.data.DataLoader(data, batch_size=6, shuffle=True, drop_last=True, num_workers=2)
step = compile_step(model, optimizer, loss_fn)
for epoch in range(2):
    for x, y in loader:
        step(x.to("neuron"), y.to("neuron"))
""",
}

OBSTACLES = {
    "a masked select": in_step("    z = h[y > 1].sum()  # TRN204"),
    "control flow by .item()": in_step("    if h.sum().item() > 0:  # TRN204\n        h = h * 2\n    z = h.mean()"),
    "control flow by a tensor": in_step("    z = h.mean() if h.sum() > 0 else h.sum()  # TRN204"),
    "an operator without a lowering": in_step(
        "    z = torch.linalg.svd(h)[1].sum()  # TRN201\n    z = z + h.erfinv().sum()  # TRN201"
    ),
    "a Fourier transform": in_step("    z = torch.fft.rfft(h).abs().mean()  # TRN203"),
    "float64": in_step("    z = h.double().mean().float()  # TRN212"),
    "a sparse matrix of blocks": HEAD
    + """
near = torch.eye(6).to_sparse_bsr((2, 2)).to("neuron")  # TRN150
def loss_fn(model, x, y):
    return F.cross_entropy(near @ model(x), y)
"""
    + STEP,
    "NumPy in the middle": in_step(
        "    weights = np.log1p(np.abs(h.detach().cpu().numpy()))  # TRN204\n"
        "    z = (h * torch.from_numpy(weights).to(h)).mean()"
    ),
    "an autograd.Function that computes on the host": HEAD
    + """
class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(np.clip(x.detach().cpu().numpy(), -1, 1)).to(x)  # TRN204
    @staticmethod
    def backward(ctx, grad):
        return grad
"""
    + loss("    z = Clipped.apply(h).mean()")
    + STEP,
    "a last batch that is smaller": HEAD
    + PLAIN
    + """
data = torch.utils.data.TensorDataset(torch.randn(40, 16), torch.randint(4, (40,)))
loader = torch.utils.data.DataLoader(data, batch_size=6)  # TRN254
step = compile_step(model, optimizer, loss_fn)
for x, y in loader:
    step(x.to("neuron"), y.to("neuron"))
""",
    "batches of several lengths": HEAD
    + PLAIN
    + """
step = compile_step(model, optimizer, loss_fn)
for size in (6, 8, 6, 9):
    for x, y in batches(1, size):
        step(x, y)  # TRN252
""",
    "a Python number that changes each step": HEAD
    + """
model.temperature = 1.0
def loss_fn(model, x, y):
    return F.cross_entropy(model(x) / model.temperature, y)
step = compile_step(model, optimizer, loss_fn)
for x, y in batches():
    model.temperature *= 0.9
    step(x, y)  # TRN253
""",
    "a tensor that is printed": in_step("    z = h.mean()\n    print('logits', h)  # TRN255"),
    "too large for a core": HEAD
    + """
model = nn.Sequential(*(nn.Linear(16384, 16384, bias=False) for _ in range(6))).to("neuron")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
step = compile_step(model, optimizer, lambda m, x: m(x).square().mean())
for i in range(4):
    step(torch.randn(128, 16384).to("neuron"))
# TRN258
""",
    "a graph break": HEAD + loss("    z = h.mean().detach().item()  # TRN251") + COMPILED,
    "a model that is not moved": HEAD
    + PLAIN
    + """
model = nn.Linear(16, 4)
step = compile_step(model, torch.optim.SGD(model.parameters(), 0.1), loss_fn)
for x, y in batches():
    step(x, y)  # TRN111
""",
    "options that it does not know": HEAD
    + "import argparse\nimport sys\nsys.argv.append('--cahce')\nargparse.ArgumentParser().parse_args()  # TRN259\n",
    "an end with a message": HEAD + "raise SystemExit('no data at /nowhere')  # TRN259\n",
    "an error of its own": HEAD + PLAIN + "raise KeyError('batch_size')  # TRN259\n",
    "integers added up by index": in_step(
        "    counts = torch.zeros(4, dtype=torch.int64, device='neuron').index_add(0, y, y)  # TRN257\n"
        "    z = (h * (counts > 1)).mean()"
    ),
}


def planted(source: str) -> set[tuple[str, int]]:
    """Codes and lines of what is planted."""
    found = set()
    for number, line in enumerate(source.splitlines(), 1):
        mark = re.search(r"# (TRN\d+)$", line)
        if mark:
            found.add((mark[1], 0 if line.startswith("#") else number))
    return found
