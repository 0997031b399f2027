# SPDX-License-Identifier: Apache-2.0
"""neuronx-distributed's parallel layers and loss, beside the same model of one process on the CPU.

Each rank gathers the weights of all and trains the whole model on the CPU; the first prints both losses of each step.
`sequence`: the sequence is spread over the ranks, too.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torch_xla.core.xla_model as xm
from neuronx_distributed.parallel_layers import (
    ColumnParallelLinear,
    ParallelEmbedding,
    RowParallelLinear,
    parallel_state,
    random,
)
from neuronx_distributed.parallel_layers.grads import allreduce_sequence_parallel_gradients
from neuronx_distributed.parallel_layers.loss_functions import parallel_cross_entropy
from neuronx_distributed.utils.model_utils import move_model_to_device
from torch import nn

SEQUENCE = "sequence" in sys.argv
SPREAD = {"embedding.weight": 0, "wide.weight": 0, "wide.bias": 0, "narrow.weight": 1, "head.weight": 0}


class Parallel(nn.Module):
    """An embedding, a block and a head, each in parts."""

    def __init__(self):
        super().__init__()
        more = {"sequence_parallel_enabled": SEQUENCE, "device": xm.xla_device()}
        self.embedding, self.norm = ParallelEmbedding(32, 16, **more), nn.LayerNorm(16)
        for parameter in self.norm.parameters():
            parameter.sequence_parallel_enabled = SEQUENCE
        self.wide = ColumnParallelLinear(16, 64, gather_output=False, **more)
        self.narrow = RowParallelLinear(64, 16, input_is_parallel=True, **more)
        self.head = ColumnParallelLinear(16, 32, bias=False, gather_output=False, **more)

    def forward(self, tokens):
        """Logits, of this rank's words."""
        hidden = self.embedding(tokens)
        logits = self.head(hidden + self.narrow(F.gelu(self.wide(self.norm(hidden)))))
        return logits.transpose(0, 1).contiguous() if SEQUENCE else logits


class Whole(nn.Module):
    """The same in one piece."""

    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(32, 16), nn.LayerNorm(16)
        self.wide, self.narrow, self.head = nn.Linear(16, 64), nn.Linear(64, 16), nn.Linear(16, 32, bias=False)

    def forward(self, tokens):
        """Logits."""
        hidden = self.embedding(tokens)
        return self.head(hidden + self.narrow(F.gelu(self.wide(self.norm(hidden)))))


dist.init_process_group("xla", init_method="xla://")
parallel_state.initialize_model_parallel(tensor_model_parallel_size=dist.get_world_size())
random.model_parallel_xla_manual_seed(5)
parts, whole = Parallel(), Whole()
move_model_to_device(parts, xm.xla_device())  # which keeps the marks of parameters
state = parts.state_dict()
whole.load_state_dict(
    {k: (xm.all_gather(v, SPREAD[k]) if k in SPREAD else v).cpu().clone() for k, v in state.items()}
)
optimizer = torch.optim.AdamW(parts.parameters(), lr=0.01)
reference = torch.optim.AdamW(whole.parameters(), lr=0.01)
drawn = torch.Generator().manual_seed(1)
tokens, targets = (torch.randint(32, (8, 4), generator=drawn) for _ in range(2))
for _ in range(4):
    loss = parallel_cross_entropy(parts(tokens.to("xla")), targets.to("xla")).mean()
    loss.backward()
    if SEQUENCE:
        allreduce_sequence_parallel_gradients(optimizer)
    optimizer.step()
    optimizer.zero_grad()
    xm.mark_step()
    expected = F.cross_entropy(whole(tokens).flatten(0, 1), targets.flatten())
    expected.backward()
    reference.step()
    reference.zero_grad()
    xm.master_print(f"loss {loss.item():.7f} beside {expected.item():.7f}")
