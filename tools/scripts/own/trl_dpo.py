# SPDX-License-Identifier: Apache-2.0
"""trl's DPOTrainer: trl_dpo.py neuron|cpu."""

import sys

import words
from datasets import Dataset
from trl import DPOConfig, DPOTrainer

rows = range(16)
data = Dataset.from_dict(
    {
        "prompt": [words.sentence(i, 3) for i in rows],
        "chosen": [" " + words.sentence(i + 1, 3) for i in rows],
        "rejected": [" " + words.sentence(i + 5, 3) for i in rows],
    }
)
words.report(
    DPOTrainer(
        words.model(),
        words.model(),
        words.told(DPOConfig, sys.argv[1]),
        train_dataset=data,
        processing_class=words.tokenizer(),
    )
)
