# SPDX-License-Identifier: Apache-2.0
"""Train a Llama with its parameters, gradients and optimizer state sharded over all ranks (FSDP2).

    trnlab estimate --target 4xtrn2.48xlarge examples/train_llama.py                       # Llama-3-8B, 256 ranks
    trnlab run --target trn1.32xlarge --ranks 4 examples/train_llama.py --model tiny       # four ranks, their values

Each rank has one sequence a step. Blocks are units of `fully_shard`, computed again in the backward pass; parameters
compute in bf16, gradients are added up and the optimizer runs in fp32. The corpus is this file.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from trnlab.frontends.torch import compile_step


@dataclass(frozen=True)
class Config:
    """Sizes of a model, in the names of Llama's own configuration."""

    hidden: int = 4096
    layers: int = 32
    heads: int = 32
    kv_heads: int = 8
    mlp: int = 14336
    words: int = 128256
    sequence: int = 8192
    theta: float = 500000.0


MODELS = {"8b": Config(), "tiny": Config(64, 2, 4, 2, 128, 256, 32)}


class Attention(nn.Module):
    """Grouped queries, rotary positions, causal."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.size = config.hidden // config.heads
        self.query = nn.Linear(config.hidden, config.heads * self.size, bias=False)
        self.key = nn.Linear(config.hidden, config.kv_heads * self.size, bias=False)
        self.value = nn.Linear(config.hidden, config.kv_heads * self.size, bias=False)
        self.out = nn.Linear(config.heads * self.size, config.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for f in (self.query, self.key, self.value))
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a gated multilayer perceptron, each after a norm."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.before_attention = nn.RMSNorm(config.hidden, eps=1e-5)
        self.before_mlp = nn.RMSNorm(config.hidden, eps=1e-5)
        self.attention = Attention(config)
        self.gate = nn.Linear(config.hidden, config.mlp, bias=False)
        self.up = nn.Linear(config.hidden, config.mlp, bias=False)
        self.down = nn.Linear(config.mlp, config.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return checkpoint(self._forward, x, cos, sin, use_reentrant=False)

    def _forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x), cos, sin)
        y = self.before_mlp(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """From token numbers to logits."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.words, config.hidden)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden, eps=1e-5)
        self.head = nn.Linear(config.hidden, config.words, bias=False)

    def forward(self, tokens: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions, halves of a head as real and imaginary parts."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def rotations(config: Config) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles of all positions, [sequence, size of a head]."""
    size = config.hidden // config.heads
    angles = torch.arange(config.sequence).float()[:, None] * config.theta ** -(torch.arange(0, size, 2) / size)
    return torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()


def sharded(config: Config) -> Llama:
    """The model on the device, of which each rank has ever had its shards alone."""
    torch.manual_seed(0)
    mesh = init_device_mesh("neuron", (dist.get_world_size(),), mesh_dim_names=("shard",))
    formats = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    with torch.device("meta"):
        model = Llama(config)
    for part in (*model.blocks, model.words, model.head, model):
        fully_shard(part, mesh=mesh, mp_policy=formats)
    model.to_empty(device="neuron")
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            parameter.fill_(1.0) if "norm" in name or "before" in name else parameter.normal_(std=0.02)
    return model


def loss_of(model: Llama, tokens: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Mean loss of the next token."""
    logits = model(tokens[:, :-1], cos, sin)
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def main() -> None:
    """Train for some steps."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--model", choices=MODELS, default="8b")
    arguments.add_argument("--steps", type=int, default=3)
    given = arguments.parse_args()
    dist.init_process_group("neuron")
    config = MODELS[given.model]
    model = sharded(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    step = compile_step(model, optimizer, loss_of, max_norm=1.0)
    corpus = torch.tensor(list(Path(__file__).read_bytes())).repeat(8)
    cos, sin = (x.to("neuron") for x in rotations(config))
    for number in range(given.steps):
        first = (number * dist.get_world_size() + dist.get_rank()) * 17 % (len(corpus) - config.sequence - 1)
        tokens = corpus[first : first + config.sequence + 1][None].to("neuron")
        loss = step(tokens, cos, sin)
        dist.all_reduce(loss, dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"step {number}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
