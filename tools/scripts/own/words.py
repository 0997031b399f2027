# SPDX-License-Identifier: Apache-2.0
"""A tiny model and a tokenizer of 35 words, for scripts that fine-tune."""

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

NAMES = ["<pad>", "<unk>", "<s>", "</s>", "<x>", *(f"word{i}" for i in range(30))]


def tokenizer():
    """Of words between spaces."""
    made = Tokenizer(models.WordLevel({name: i for i, name in enumerate(NAMES)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def model():
    """A Llama of two layers."""
    set_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=64,
            pad_token_id=0,
            bos_token_id=2,
            eos_token_id=3,
        )
    )


def sentence(start, length=6):
    """Some of the words."""
    return " ".join(f"word{(start * 7 + i * 3) % 30}" for i in range(length))


def told(kind, where):
    """Arguments of a trainer."""
    return kind(
        output_dir="out",
        max_steps=3,
        per_device_train_batch_size=2,
        logging_steps=1,
        report_to="none",
        seed=0,
        save_strategy="no",
        use_cpu=where == "cpu",
        learning_rate=1e-3,
        disable_tqdm=True,
        bf16=False,
        max_length=16,
    )


def report(trainer):
    """Train, and print the losses."""
    trainer.train()
    for each in trainer.state.log_history:
        if "loss" in each:
            print(f"loss: {float(each['loss']):.6f}")
