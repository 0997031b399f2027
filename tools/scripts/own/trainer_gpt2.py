# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer on a tiny GPT-2: trainer_gpt2.py plain|compile neuron|cpu."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(0)
config = GPT2Config(
    vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=16, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
)
tokens = torch.randint(0, 64, (32, 16))
data = [{"input_ids": row, "labels": row} for row in tokens]
told = TrainingArguments(
    output_dir="out",
    max_steps=4,
    per_device_train_batch_size=4,
    logging_steps=1,
    report_to="none",
    seed=0,
    save_strategy="no",
    use_cpu=sys.argv[2] == "cpu",
    learning_rate=1e-3,
    disable_tqdm=True,
    torch_compile=sys.argv[1] == "compile" and sys.argv[2] != "cpu",
)
trainer = Trainer(model=GPT2LMHeadModel(config), args=told, train_dataset=data)
trainer.train()
for each in trainer.state.log_history:
    if "loss" in each:
        print(f"loss: {each['loss']:.6f}")
