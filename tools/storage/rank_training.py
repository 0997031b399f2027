# SPDX-License-Identifier: Apache-2.0
"""A small training on ranks: `trnlab run --ranks N tools/storage/rank_training.py KIND LOG [RANK:STEP]`.

KIND is ddp, fsdp or tp, behind it `-steps` for a script of compile_step that knows nothing of checkpoints. Each rank
writes its losses, to the last bit, to LOG.<rank>. RANK:STEP: that rank kills itself when that step is done.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset

from trnlab import checkpoint
from trnlab.frontends.torch import compile_step

STEPS, BATCH, WIDTH, INNER = 12, 4, 8, 18  # 18 rows do not divide by four ranks


class Model(nn.Module):
    """Two products with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.dropout, self.down = nn.Linear(WIDTH, INNER), nn.Dropout(0.2), nn.Linear(INNER, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The model."""
        found: torch.Tensor = self.down(self.dropout(self.up(x)).relu())
        return found


def parallel(kind: str) -> Any:
    """The model, spread over the ranks."""
    torch.manual_seed(0)
    model: Any = Model().to("neuron")
    mesh = init_device_mesh("neuron", (dist.get_world_size(),))
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp":
        return fully_shard(model, mesh=mesh)
    return parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Mean squared error of the model as an identity."""
    return (model(x) - x).square().mean()


def main(kind: str, log: str, kill: str = ":") -> None:
    """Train; ranks of tensor parallelism see the same batches, the others their own."""
    kind, _, style = kind.partition("-")
    dist.init_process_group("neuron")
    rank = dist.get_rank()
    model = parallel(kind)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)
    step = compile_step(model, optimizer, loss_of)
    seed = torch.Generator().manual_seed(rank if kind != "tp" else 0)
    data = TensorDataset(torch.randn(STEPS * BATCH, WIDTH, generator=seed))
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    run = checkpoint.resume(model=model, optimizer=optimizer, schedule=schedule) if style != "steps" else None
    count = run.step if run is not None else 0
    with open(f"{log}.{rank}", "a") as lines:
        for (x,) in run.batches(loader) if run is not None else loader:
            loss = step(x.to("neuron"))
            schedule.step()
            count += 1
            lines.write(f"{count} {loss.item().hex()} {optimizer.param_groups[0]['lr']}\n")
            lines.flush()
            if run is not None:
                run.stepped()
            if kill == f"{rank}:{count}":
                os.kill(os.getpid(), signal.SIGKILL)
    if run is not None:
        run.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
