# SPDX-License-Identifier: Apache-2.0
"""A full training step of BERT-Large, compiled and timed for Trainium 1 and 2 without any data.

335 M parameters, 24 layers of 16 heads, masked language modelling over all 30522 words at every place, AdamW, bf16
matmuls, no dropout. Both sequence lengths have 2048 tokens a step. Parameters and batch are fake tensors.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks import lines
from trnlab import chips, compiler
from trnlab.frontends.torch import capture_step
from trnlab.graph.flops import model_flops
from trnlab.sim.timing import time_program
from trnlab.units import PS_PER_S

VOCABULARY, PLACES, WIDTH, LAYERS, HEADS = 30522, 512, 1024, 24, 16
BATCHES = {128: 16, 512: 4}  # sequences, by their length
TARGET = 40.0  # MFU in percent


class Layer(nn.Module):
    """Attention and a feed-forward network, each added to the stream and normalised with it."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.ln1, self.ln2 = (nn.LayerNorm(WIDTH, eps=1e-12) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [B, T, C] to the same shape."""
        B, T, C = x.shape
        q, k, v = (f(x).view(B, T, HEADS, C // HEADS).transpose(1, 2) for f in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, C)
        x = self.ln1(x + self.out(y))
        return self.ln2(x + self.down(F.gelu(self.up(x))))


class BertLarge(nn.Module):
    """The model with its head for masked words, whose matrix is that of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.kinds = (nn.Embedding(n, WIDTH) for n in (VOCABULARY, PLACES, 2))
        self.ln, self.layers = nn.LayerNorm(WIDTH, eps=1e-12), nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.head, self.head_ln = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(VOCABULARY))

    def forward(self, x: torch.Tensor, kinds: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss of finding the words y [B, T] from x [B, T]."""
        places = self.places(torch.arange(x.shape[1], device=x.device))
        stream = self.layers(self.ln(self.words(x) + places + self.kinds(kinds)))
        logits = F.linear(self.head_ln(F.gelu(self.head(stream))), self.words.weight, self.bias)
        return F.cross_entropy(logits.view(-1, VOCABULARY), y.view(-1), ignore_index=-100)


def main() -> None:
    """Measure and report."""
    found = []
    for length, sequences in BATCHES.items():
        with FakeTensorMode(), torch.device("neuron"):
            model = BertLarge()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
            batch = [torch.zeros(sequences, length, dtype=torch.int64) for _ in range(3)]
            graph = capture_step(model, optimizer, None, batch).graph
        for name in ("trn1", "trn2"):
            chip = chips.get(name)
            step_s = time_program(compiler.compile(graph, chip, {"precision": "bf16"}), chip).total / PS_PER_S
            mfu = 100 * model_flops(graph) / step_s / chip.peak_flops("bfloat16")
            what = f"MFU of BERT-Large's step, {sequences} x {length} on {name}"
            found.append(lines.at_least(what, mfu, TARGET, "%", f"{step_s * 1e3:.0f} ms on the chip"))
    lines.report(found)


if __name__ == "__main__":
    main()
