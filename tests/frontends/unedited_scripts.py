# SPDX-License-Identifier: Apache-2.0
"""Scripts as people write them: nothing of trnlab is in them but the name of the device."""

from __future__ import annotations

HEAD = """\
import torch, torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
"""

MODEL = (
    HEAD
    + """\
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10)).to("neuron")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
def batches(count=4, size=32):
    for i in range(count):
        yield torch.randn(size, 64).to("neuron"), torch.randint(10, (size,)).to("neuron")
"""
)

PLAIN = (
    MODEL
    + """\
for x, y in batches():
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    print(loss.item())
"""
)

MNIST = (
    HEAD
    + """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, 1), nn.Conv2d(8, 8, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(288, 32), nn.Linear(32, 10)
    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = self.dropout1(F.max_pool2d(x, 2))
        x = self.dropout2(F.relu(self.fc1(torch.flatten(x, 1))))
        return F.log_softmax(self.fc2(x), dim=1)
def train(model, device, loader, optimizer, epoch):
    model.train()
    for i, (data, target) in enumerate(loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        if i % 10 == 0:
            print(epoch, loss.item())
def test(model, device, loader):
    model.eval()
    test_loss = correct = 0
    with torch.no_grad():
        for data, target in loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            pred = output.argmax(dim=1, keepdim=True)
            correct += pred.eq(target.view_as(pred)).sum().item()
    print(test_loss, correct)
device = torch.device("neuron")
data = torch.utils.data.TensorDataset(torch.randn(32, 1, 16, 16), torch.randint(10, (32,)))
loader = torch.utils.data.DataLoader(data, batch_size=8)
model = Net().to(device)
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
for epoch in range(1, 3):
    train(model, device, loader, optimizer, epoch)
    test(model, device, loader)
    scheduler.step()
"""
)

GPT = (
    HEAD
    + """\
import math
class Attention(nn.Module):
    def __init__(self, n, heads):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(n, 3 * n, bias=False), nn.Linear(n, n, bias=False)
    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in self.qkv(x).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).contiguous().view(B, T, C))
class Block(nn.Module):
    def __init__(self, n, heads):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(n), Attention(n, heads), nn.LayerNorm(n)
        self.mlp = nn.Sequential(nn.Linear(n, 4 * n), nn.GELU(), nn.Linear(4 * n, n))
    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))
class GPT(nn.Module):
    def __init__(self, vocab=128, block=32, n=64, layers=2, heads=4):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, n), nn.Embedding(block, n)
        self.h = nn.ModuleList(Block(n, heads) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(n), nn.Linear(n, vocab, bias=False)
        self.wte.weight = self.lm_head.weight
    def forward(self, idx, targets):
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
model = GPT().to("neuron")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
def batch():
    ids = torch.randint(128, (4, 33))
    return ids[:, :-1].contiguous().to("neuron"), ids[:, 1:].contiguous().to("neuron")
"""
)

TRAINED_GPT = (
    GPT
    + """\
for i in range(4):
    for micro in range(STEPS):
        x, y = batch()
        logits, loss = model(x, y)
        loss = loss / STEPS
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(loss.item() * STEPS)
"""
)

TRAINED = {
    "plain": PLAIN,
    "pytorch/examples mnist": MNIST,
    "a GPT": TRAINED_GPT.replace("STEPS", "1"),
    "gradients of several batches": TRAINED_GPT.replace("STEPS", "3"),
    "a loss that is read before the update": PLAIN.replace(
        "    optimizer.step()\n    print(loss.item())\n", "    print(loss.item())\n    optimizer.step()\n"
    ),
    "clipping and a schedule": MODEL
    + """\
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
for x, y in batches():
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    print(loss.item(), scheduler.get_last_lr())
""",
    "autocast": MODEL
    + """\
for x, y in batches():
    with torch.autocast("neuron", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(loss.item())
""",
    "by hand": MODEL
    + """\
for x, y in batches():
    loss = F.cross_entropy(model(x), y)
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
    print(loss.item())
""",
}

INFERENCE = {
    "batches": HEAD
    + """\
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to("neuron").eval()
hits = 0
with torch.no_grad():
    for i in range(5):
        x, y = torch.randn(32, 64).to("neuron"), torch.randint(10, (32,))
        hits += (model(x).argmax(1).cpu() == y).sum().item()
print(hits)
""",
    "words of a GPT": GPT.replace("optimizer = ", "# ")
    + """\
model.eval()
x, _ = batch()
with torch.inference_mode():
    for i in range(6):
        logits, _ = model(x, x)
        probs = F.softmax(logits[:, -1, :], dim=-1)
        x = torch.cat((x[:, 1:], torch.topk(probs, 1)[1]), dim=1)
    print(x.tolist())
""",
    "passes that nobody reads, of a model that is cast there": HEAD
    + """\
def main():
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to("neuron").to(torch.bfloat16).eval()
    x = torch.randn(32, 64, dtype=torch.bfloat16, device="neuron")
    with torch.no_grad():
        for i in range(3):
            model(x)
main()
""",
    "one pass that nobody reads": HEAD
    + """\
def main():
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to("neuron").eval()
    with torch.inference_mode():
        return model(torch.randn(32, 64).to("neuron"))
main()
""",
    "passes that go on from each other": HEAD
    + """\
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).to("neuron").eval()
x = torch.randn(32, 64).to("neuron")
with torch.no_grad():
    for i in range(4):
        x = x + model(x)
print(x.sum().item())
""",
}
