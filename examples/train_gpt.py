# SPDX-License-Identifier: Apache-2.0
"""Train a small GPT on the source code of Python's standard library.

    trnlab run --target trn1.2xlarge examples/train_gpt.py      a simulated Trainium
    python examples/train_gpt.py --device cpu                   the same script, plain PyTorch in fp32

On the device the step runs as NeuronCore instructions. Two ways lead there: `torch.compile(backend="neuron")`, which
makes a program each of forward, backward and update, and `compile_step`, which captures the step as one. The script
lets the simulated chip time both, says what it found, and trains with the faster. Before that it trains a twin on the
CPU, so that the report can show how far the two curves lie apart.
"""

import argparse
import copy
import logging
import math
import sys
import sysconfig
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

CONTEXT, WIDTH, LAYERS, HEADS, VOCABULARY = 128, 128, 5, 4, 256  # 1.04 million parameters; a token is a byte
LEARNING_RATE, WEIGHT_DECAY, MAX_NORM, WARMUP = 1.5e-3, 0.1, 1.0, 10
CHECKPOINT_EVERY = 50


class Block(nn.Module):
    """Attention and a feed-forward network, each on a normalised copy of the stream and added to it."""

    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc, self.out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (
            part.view(B, T, HEADS, C // HEADS).transpose(1, 2) for part in self.qkv(self.ln1(x)).split(C, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.out(F.gelu(self.fc(self.ln2(x))))


class GPT(nn.Module):
    """A decoder-only transformer in the manner of GPT-2, its head tied to its embedding."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.apply(self._initialise)
        self.head.weight = self.tokens.weight

    @staticmethod
    def _initialise(module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, x, targets):
        x = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln(x))
        return F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


def read_text():
    """The standard library's top-level modules, in alphabetical order, as one tensor of bytes."""
    folder = Path(sysconfig.get_path("stdlib"))
    text = b"\n".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def get_batch(text, step, args, device):
    """Random pieces of the text and, as targets, the same moved by one; step and seed decide which."""
    generator = torch.Generator().manual_seed(1_000_003 * args.seed + step)
    starts = torch.randint(len(text) - CONTEXT, (args.batch,), generator=generator)
    x = torch.stack([text[i : i + CONTEXT] for i in starts])
    y = torch.stack([text[i + 1 : i + CONTEXT + 1] for i in starts])
    return x.to(device), y.to(device)


def make(args, device):
    """Model, optimizer and schedule: fresh from the seed, or as the checkpoint to resume left them."""
    torch.manual_seed(args.seed)
    model = GPT().to(device)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=torch.tensor(LEARNING_RATE), betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: min((i + 1) / WARMUP, 0.55 + 0.45 * math.cos(math.pi * i / args.steps))
    )
    start = 0
    if args.resume:
        state = torch.load(args.resume, map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        start = state["step"]
    return model, optimizer, schedule, start


def save(path, model, optimizer, schedule, step):
    """Write a checkpoint, aside first, so that a killed run leaves the last whole one."""
    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
    aside = path.with_name(path.name + ".part")
    torch.save({**parts, "step": step}, aside)
    aside.replace(path)


def eager_step(model, optimizer):
    """A training step as everybody writes it."""

    def step(x, y):
        optimizer.zero_grad()
        loss = model(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        return loss

    return step


def compiled_step(model, optimizer):
    """The same step with `torch.compile`: PyTorch hands the backend forward, backward and update as three graphs."""
    forward = torch.compile(model, backend="neuron")

    @torch.compile(backend="neuron")
    def update():
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()

    def step(x, y):
        loss = forward(x, y)
        loss.backward()
        update()
        optimizer.zero_grad()
        return loss

    return step


def captured_step(model, optimizer):
    """The same step captured whole, as one graph."""
    from trnlab.frontends.torch import compile_step

    return compile_step(model, optimizer, max_norm=MAX_NORM)


def faster_step(model, optimizer, batch):
    """Let the chip time both ways to compile the step, on copies of model and optimizer; returns the faster."""
    from trnlab.frontends.torch import step_time

    torch._logging.set_logs(dynamo=logging.ERROR)  # it warns that it leaves out the optimizer's profiling marks
    times = {}
    for way, programs in ((compiled_step, "torch.compile"), (captured_step, "compile_step")):
        times[way] = step_time(way(*copy.deepcopy((model, optimizer))), *batch)
        print(f"{programs:<13} makes a step of {times[way] * 1e3:.2f} ms on the chip", flush=True)
    best = min(times, key=times.get)
    print(f"training with {'compile_step' if best is captured_step else 'torch.compile'}, the faster", flush=True)
    return best(model, optimizer)


def report_reference(losses):
    """Tell the run, when `trnlab run` keeps one, what to compare its losses with."""
    from trnlab.runtime import session

    run = session.current().run
    if run is not None:
        run.reference(losses)


class Progress:
    """A bar with the latest loss: drawn over itself on a terminal, a line every tenth of the way elsewhere."""

    def __init__(self, label, start, total):
        self.label, self.start, self.total, self.clock = label, start, total, time.perf_counter()

    def show(self, done, loss):
        line = f"{self.label} {done:>4}/{self.total}  loss {loss:.3f}"
        if sys.stderr.isatty():
            bar = "#" * (30 * done // self.total)
            left = (time.perf_counter() - self.clock) / (done - self.start) * (self.total - done)
            sys.stderr.write(f"\r\x1b[2K{line}  [{bar:<30}]  {left:.0f} s left" + "\n" * (done == self.total))
            sys.stderr.flush()
        elif done * 10 // self.total != (done - 1) * 10 // self.total:
            print(line, file=sys.stderr, flush=True)


def train(args, device, text):
    """Train on `device`; returns the loss of every step."""
    model, optimizer, schedule, start = make(args, device)
    if device.type == "cpu":
        step = eager_step(model, optimizer)
    else:
        step = faster_step(model, optimizer, get_batch(text, start, args, device))
    losses, progress = [], Progress(f"{device.type:<6}", start, args.steps)
    for i in range(start, args.steps):
        losses.append(step(*get_batch(text, i, args, device)).item())
        schedule.step()
        progress.show(i + 1, losses[-1])
        if args.save and ((i + 1) % CHECKPOINT_EVERY == 0 or i + 1 == args.steps):
            save(args.save, model, optimizer, schedule, i + 1)
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("neuron", "cpu"), default="neuron")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8, help="sequences per step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep a checkpoint here")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="go on from this checkpoint")
    parser.add_argument("--no-reference", action="store_true", help="do not train the twin on the CPU")
    args = parser.parse_args()
    text, device = read_text(), torch.device(args.device)
    losses = train(args, device, text)
    if device.type == "neuron" and not args.no_reference:
        args.save = None
        torch.set_num_threads(1)  # so small a model gains little from more, and loses much where others use them
        reference = train(args, torch.device("cpu"), text)
        gap = max(abs(a - b) for a, b in zip(losses, reference))
        print(f"largest distance to the CPU's losses: {gap:.4f}")
        report_reference(reference)


if __name__ == "__main__":
    main()
