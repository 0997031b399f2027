# SPDX-License-Identifier: Apache-2.0
"""A tiny Llama for optimum-neuron: `make` writes its weights, `neuron` trains it with NeuronTrainer, `cpu` with HF's.

    optimum_llama.py make|cpu|neuron FOLDER [--tensor N] [--pipeline N] [--data N]

Each prints the loss of every step, which both trainers compute in `compute_loss`; rows come in their order.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch.utils.data import IterableDataset

LAYERS, WORDS, LENGTH, BATCH, STEPS = 2, 64, 16, 4, 4
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": LAYERS,
    "vocab_size": WORDS,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
COMMON = {
    "learning_rate": 0.01,
    "max_steps": STEPS,
    "warmup_steps": 1,
    "lr_scheduler_type": "cosine",
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": [],
    "seed": 1,
    "max_grad_norm": 1.0,
    "weight_decay": 0.01,
    "gradient_checkpointing": False,
    "bf16": False,
}


class Rows(IterableDataset):
    """Tokens that count up, in their order."""

    def __iter__(self):
        drawn = torch.randint(3, (BATCH * STEPS, LENGTH), generator=torch.Generator().manual_seed(0))
        for row in drawn.cumsum(1) % WORDS:
            yield {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row}


def make(folder):
    """The weights as transformers keeps them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(folder / "model")


def told(trainer_class):
    """A trainer that keeps the losses that it computes, each as it is."""

    class Told(trainer_class):
        def compute_loss(self, *arguments, **options):
            loss = super().compute_loss(*arguments, **options)
            self.losses = [*getattr(self, "losses", []), loss.detach()]
            return loss

    return Told


def on_cpu(folder):
    """By the trainer of transformers, in one process."""
    from transformers import LlamaForCausalLM, Trainer, TrainingArguments

    told_of = TrainingArguments(folder / "cpu", use_cpu=True, per_device_train_batch_size=BATCH, **COMMON)
    model = LlamaForCausalLM.from_pretrained(folder / "model", attn_implementation="eager")
    return train(told(Trainer)(model, told_of, train_dataset=Rows()))


def on_neuron(folder, options):
    """By the trainer of optimum-neuron."""
    from optimum.neuron import NeuronTrainer, NeuronTrainingArguments
    from optimum.neuron.models.training import NeuronModelForCausalLM

    told_of = NeuronTrainingArguments(
        folder / "neuron",
        tensor_parallel_size=options.tensor,
        pipeline_parallel_size=options.pipeline,
        per_device_train_batch_size=BATCH // options.data,
        skip_cache_push=True,
        zero_1=options.zero,
        **COMMON,
    )
    model = NeuronModelForCausalLM.from_pretrained(
        folder / "model", told_of.trn_config, torch_dtype=torch.float32, attn_implementation="eager"
    )
    return train(told(NeuronTrainer)(model, told_of, train_dataset=Rows()))


def train(trainer):
    """The losses."""
    trainer.train()
    return trainer.losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what")
    parser.add_argument("folder", type=Path)
    for name in ("tensor", "pipeline", "data"):
        parser.add_argument(f"--{name}", type=int, default=1)
    parser.add_argument("--zero", action="store_true")
    options = parser.parse_args()
    if options.what == "make":
        make(options.folder)
    else:
        found = on_cpu(options.folder) if options.what == "cpu" else on_neuron(options.folder, options)
        for step, loss in enumerate(found):
            print(f"step {step} step loss {loss.item():.7f}", flush=True)
