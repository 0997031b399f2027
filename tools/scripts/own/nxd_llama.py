# SPDX-License-Identifier: Apache-2.0
"""A tiny Llama for neuronx-distributed's example: `make` writes data and weights, `train` trains it in one process.

`train`'s step is what the example's is: AdamW, clipped at 1, the example's schedule, of the rows that all ranks read.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import datasets
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

LAYERS, WORDS, LENGTH, BATCH, STEPS = 2, 64, 16, 8, 4
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": LAYERS,
    "vocab_size": WORDS,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
}


def make(folder: Path) -> None:
    """The configuration, the data and the weights."""
    torch.manual_seed(0)
    (folder / "model").mkdir(parents=True, exist_ok=True)
    more = {"pretraining_tp": 1, "sequence_parallel_enabled": False, "selective_checkpoint_enabled": False}
    told = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SIZES, **more}
    (folder / "model" / "config.json").write_text(json.dumps(told))
    tokens = (np.cumsum(np.random.default_rng(0).integers(0, 3, (64, LENGTH)), 1) % WORDS).tolist()
    rows = {"input_ids": tokens, "attention_mask": [[1] * LENGTH] * 64, "labels": tokens}
    datasets.Dataset.from_dict(rows).save_to_disk(folder / "data")
    torch.save(LlamaForCausalLM(LlamaConfig(**SIZES)).state_dict(), folder / "model" / "whole.bin")


def train(folder: Path, replicas: int) -> None:
    """Print the loss of the first replica's rows at each step, which is what the example prints."""
    from lr import CosineAnnealing  # the example's

    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    model.load_state_dict(torch.load(folder / "model" / "whole.bin"))
    norms = [p for name, p in model.named_parameters() if "norm" in name]
    rest = [p for name, p in model.named_parameters() if "norm" not in name]
    groups = [{"params": rest, "weight_decay": 0.01}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95))
    schedule = CosineAnnealing(optimizer, max_steps=STEPS, min_lr=0.001, warmup_steps=1, constant_steps=0)
    rows = torch.tensor(datasets.load_from_disk(folder / "data")["input_ids"])
    for step in range(STEPS):
        own = BATCH // replicas
        batch = rows[step * BATCH : (step + 1) * BATCH].reshape(own, replicas, LENGTH).transpose(0, 1)
        losses = [model(input_ids=part, labels=part).loss for part in batch]
        torch.stack(losses).mean().backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        print(f"step {step} step loss {losses[0].item()} grad norm {norm.item()}", flush=True)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


if __name__ == "__main__":
    make(Path(sys.argv[2])) if sys.argv[1] == "make" else train(Path(sys.argv[2]), int(sys.argv[3]))
