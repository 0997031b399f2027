# SPDX-License-Identifier: Apache-2.0
"""A full training step of GPT-2 small, compiled and timed for Trainium 1 without any data.

124 M parameters, 12 layers, context 1024, batch 8, bf16 matmuls, AdamW, gradients clipped. Parameters and batch are
fake tensors: shapes without memory.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks import lines
from trnlab import chips, compiler
from trnlab.compiler import ahead
from trnlab.frontends.torch import capture_step
from trnlab.graph.flops import model_flops
from trnlab.graph.ir import Graph
from trnlab.sim.timing import time_program
from trnlab.units import PS_PER_S

VOCABULARY, CONTEXT, WIDTH, LAYERS, HEADS, BATCH = 50257, 1024, 768, 12, 12, 8


class Block(nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc, self.out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [B, T, C] to the same shape."""
        B, T, C = x.shape
        parts = self.qkv(self.ln1(x)).split(C, 2)
        q, k, v = (part.view(B, T, HEADS, C // HEADS).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)
        x = x + self.proj(y)
        return x + self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class GPT2(nn.Module):
    """The model of 124 M parameters, its head tied to its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks, self.ln = nn.Sequential(*(Block() for _ in range(LAYERS))), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss of predicting y [B, T] from x [B, T]."""
        stream = self.blocks(self.tokens(x) + self.places(torch.arange(CONTEXT, device=x.device)))
        logits = F.linear(self.ln(stream), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, VOCABULARY), y.view(-1))


def compiled_alone_and_together(graph: Graph, chip: chips.Chip) -> list[float]:
    """Seconds that compiling takes by one process, and with a second one that records (`compiler.ahead`)."""
    helps = ahead.can_help

    def seconds(wanted: bool) -> Callable[[], Any]:
        def run() -> None:
            ahead.can_help = lambda: wanted and helps()
            compiler.compile(graph, chip, {"precision": "bf16"})

        return run

    found = lines.in_turns([seconds(False), seconds(True)], 2)
    ahead.can_help = helps
    return found


def processor_seconds() -> float:
    """Of this process, and of those that it started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def main() -> None:
    """Measure and report."""
    chip = chips.get("trn1")
    with FakeTensorMode(), torch.device("neuron"):
        model = GPT2()
        optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
        batch = [torch.zeros(BATCH, CONTEXT, dtype=torch.int64) for _ in range(2)]
        start, begun = time.perf_counter(), processor_seconds()
        captured = capture_step(model, optimizer, None, batch, max_norm=1.0)
    traced = time.perf_counter()
    program = compiler.compile(captured.graph, chip, {"precision": "bf16"})
    compiled = time.perf_counter()
    timeline = time_program(program, chip)
    end = time.perf_counter()
    used = processor_seconds() - begun
    alone, both = compiled_alone_and_together(captured.graph, chip)
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    step_s = timeline.total / PS_PER_S
    mfu = model_flops(captured.graph) / step_s / chip.peak_flops("bfloat16")
    spent = f"capture {traced - start:.0f} s, compile {compiled - traced:.0f} s, time {end - compiled:.0f} s"
    size = f"{program.num_instructions / 1e6:.2f} M instructions"
    lines.report(
        [
            lines.at_most("GPT-2 small's step compiled and timed", used, 8, "s", f"processor; {spent}; {size}"),
            lines.Line(
                "  compiled by two processes / by one", both / alone, "x", "", None, f"{both:.1f} s, {alone:.1f} s"
            ),
            lines.at_most("  in memory", peak_gb, 8, "GB"),
            lines.at_least("  MFU of its step on trn1", 100 * mfu, 42, "%", f"{step_s * 1e3:.0f} ms on the chip"),
        ]
    )


if __name__ == "__main__":
    main()
