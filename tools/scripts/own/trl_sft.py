# SPDX-License-Identifier: Apache-2.0
"""trl's SFTTrainer: trl_sft.py neuron|cpu."""

import sys

import words
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

data = Dataset.from_dict({"text": [words.sentence(i) for i in range(16)]})
words.report(
    SFTTrainer(
        words.model(), args=words.told(SFTConfig, sys.argv[1]), train_dataset=data, processing_class=words.tokenizer()
    )
)
