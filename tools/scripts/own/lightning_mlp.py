# SPDX-License-Identifier: Apache-2.0
"""A LightningModule and a Trainer: lightning_mlp.py neuron|cpu."""

import sys

import torch
from lightning import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(LightningModule):
    """Two layers."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))

    def training_step(self, batch, index):
        """The loss of a batch."""
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        print(f"loss: {loss.item():.6f}")
        return loss

    def configure_optimizers(self):
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), 1e-2)


seed_everything(0)
inputs = torch.randn(64, 16)
loader = DataLoader(TensorDataset(inputs, (inputs[:, 0] > 0).long()), 16)
accelerator = "auto" if sys.argv[1] == "neuron" else sys.argv[1]
trainer = Trainer(max_epochs=2, accelerator=accelerator, logger=False, enable_checkpointing=False, devices=1)
trainer.fit(Classifier(), loader)
