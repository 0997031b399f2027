# SPDX-License-Identifier: Apache-2.0
"""Scripts of another form: the trainer of transformers, LSTMs, recommendations, PyTorch's own layers."""

from __future__ import annotations

from tools.sweep.script import TrainingScript, add

_TRAINER = """
import torch
from torch.utils.data import Dataset
from transformers import {kind}Config, {head}, Trainer, TrainingArguments

class Texts(Dataset):
    def __init__(self, vocabulary, length, count=64):
        self.ids = torch.randint(5, vocabulary, (count, length))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {{"input_ids": self.ids[i], "labels": self.ids[i]}}

config = {kind}Config({given})
model = {head}(config)
arguments = TrainingArguments(
    output_dir="out", per_device_train_batch_size={count}, gradient_accumulation_steps={accumulate}, bf16={bf16},
    max_steps=4, logging_steps=1, save_strategy="no", report_to=[], lr_scheduler_type="cosine", warmup_steps=1,
    gradient_checkpointing={recomputed}, disable_tqdm=True,
)
Trainer(model=model, args=arguments, train_dataset=Texts(config.vocab_size, {length})).train()
"""
add(
    "trainer_gpt2",
    TrainingScript(
        _TRAINER.format(
            kind="GPT2",
            head="GPT2LMHeadModel",
            given="n_layer=3",
            count=4,
            accumulate=1,
            bf16=True,
            recomputed=False,
            length=512,
        ),
        batch_size=4,
        length=512,
        whole=True,
    ),
)
add(
    "trainer_llama",
    TrainingScript(
        _TRAINER.format(
            kind="Llama",
            head="LlamaForCausalLM",
            given="hidden_size=1024, intermediate_size=2816, num_hidden_layers=2, num_attention_heads=16",
            count=2,
            accumulate=2,
            bf16=True,
            recomputed=True,
            length=512,
        ),
        batch_size=2,
        accumulate=2,
        length=512,
        whole=True,
    ),
)
add(
    "lstm_language",
    TrainingScript(
        """
        class Language(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding = torch.nn.Embedding(33278, 650)
                self.lstm = torch.nn.LSTM(650, 650, 2, dropout=0.5, batch_first=True)
                self.head = torch.nn.Linear(650, 33278)

            def forward(self, ids):
                return self.head(self.lstm(self.embedding(ids))[0])

        model = Language()
        """,
        'ids = torch.randint(0, 33278, (batch_size, length + 1)).to("neuron")',
        "loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())",
        batch_size=20,
        length=35,
        precision="float32",
    ),
)
add(
    "torch_transformer",
    TrainingScript(
        """
        layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, norm_first=True)
        model = torch.nn.Sequential(
            torch.nn.Embedding(32000, 512), torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False),
            torch.nn.Linear(512, 32000),
        )
        """,
        'ids = torch.randint(0, 32000, (batch_size, length)).to("neuron")',
        "loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten(), label_smoothing=0.1)",
        batch_size=8,
        length=256,
    ),
)
add(
    "wide_and_deep",
    TrainingScript(
        """
        class Recommender(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.tables = torch.nn.ModuleList(torch.nn.Embedding(100000, 64) for _ in range(26))
                self.bottom = torch.nn.Sequential(torch.nn.Linear(13, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64))
                self.top = torch.nn.Sequential(
                    torch.nn.Linear(27 * 64, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256), torch.nn.ReLU(),
                    torch.nn.Linear(256, 1),
                )

            def forward(self, dense, sparse):
                rows = [table(sparse[:, i]) for i, table in enumerate(self.tables)]
                return self.top(torch.cat([self.bottom(dense), *rows], 1))[:, 0]

        model = Recommender()
        """,
        """
        dense = torch.randn(batch_size, 13).to("neuron")
        sparse = torch.randint(0, 100000, (batch_size, 26)).to("neuron")
        clicks = torch.randint(0, 2, (batch_size,)).float().to("neuron")
        """,
        "loss = F.binary_cross_entropy_with_logits(model(dense, sparse), clicks)",
        batch_size=2048,
        precision="float32",
    ),
)
