# SPDX-License-Identifier: Apache-2.0
"""Phase 1 of BERT-Large's pre-training, as data parallel ranks do it: masked words at 128 places, AdamW.

    trnlab estimate --target trn1.32xlarge --ranks 32 tools/training/bert.py SEQUENCES MICROBATCHES

A step takes so many micro-batches of so many sequences. Without dropout and the prediction of the next sentence,
which the published runs have.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bert import BertLarge

from trnlab.frontends.torch import compile_step

LENGTH = 128


class Accumulated(nn.Module):
    """The mean loss over the micro-batches that lie side by side in a batch [micro-batches, sequences, length]."""

    def __init__(self) -> None:
        super().__init__()
        self.model = BertLarge()

    def forward(self, x: torch.Tensor, kinds: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss."""
        each = [self.model(*part) for part in zip(x, kinds, y)]
        return torch.stack(each).mean()


def main(sequences: int, microbatches: int) -> None:
    """Two steps on words that mean nothing."""
    dist.init_process_group("neuron")
    with torch.device("neuron"):
        model = DistributedDataParallel(Accumulated())
        step = compile_step(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
        for _ in range(2):
            step(*(torch.zeros(microbatches, sequences, LENGTH, dtype=torch.int64) for _ in range(3)))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
