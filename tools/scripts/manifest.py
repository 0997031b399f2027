# SPDX-License-Identifier: Apache-2.0
"""Which scripts are run, from which commit, how, on which data, and what of their output is compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools.scripts import data

# Where sources come from: a repository and a commit. `own` are scripts of this folder, for libraries.
SOURCES: Mapping[str, tuple[str, str]] = {
    "aws-neuron-samples": ("aws-neuron/aws-neuron-samples", "2015d650cd89e4c671ae5bd1b5f1d4499d94d4dd"),
    "examples": ("pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8"),
    "nanoGPT": ("karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291"),
}
_LOSS = r"[Ll]oss(?:[_ ]?\w*)?(?: is)?[:=' ]+\s*(-?\d+\.\d+(?:e-?\d+)?)"
_TRN = "torch-neuronx/training"


@dataclass(frozen=True)
class Script:
    """One script. cpu: its arguments for the CPU, None where the same command runs with the host's operators."""

    name: str
    source: str
    folder: str
    arguments: tuple[str, ...]
    make: Callable[[Path], None] = data.nothing
    cpu: tuple[str, ...] | None = None
    ranks: int = 1
    losses: str = _LOSS
    environment: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    draws: bool = False  # another order of samples, other draws or roundings than on the CPU: losses are not compared
    older: str = ""  # a folder of packages of older versions, which the script is of


_DRAWING = (
    "mnist",  # shuffles on an accelerator alone
    "mnist_forward_forward",  # so does this, and wrong labels are drawn without a seed
    "siamese_network",  # has pairs of Python's random, without a seed
)


def _sample(name: str, folder: str, *arguments: str, **more: object) -> Script:
    return Script(name, "aws-neuron-samples", f"{_TRN}/{folder}", arguments, **more)  # type: ignore[arg-type]


def _example(name: str, *arguments: str, cpu: str = "--no-accel", accel: str = "", **more: object) -> Script:
    mine = (*arguments, accel) if accel else arguments
    theirs = (*arguments, cpu) if cpu else arguments
    return Script(f"examples/{name}", "examples", name, mine, cpu=theirs, draws=name in _DRAWING, **more)  # type: ignore[arg-type]


_BERT = (
    "dp_bert_large_hf_pretrain_hdf5.py",
    "--data_dir",
    "data",
    "--batch_size",
    "2",
    "--lr",
    "1e-3",
    "--max_steps",
    "3",
    "--warmup_steps",
    "1",
    "--grad_accum_usteps",
    "2",
    "--max_pred_len",
    "5",
    "--disable_dropout",
    "--print_grad_norm",
)
_GPT = (
    "train.py",
    "--dataset=shakespeare_char",
    "--eval_iters=1",
    "--eval_interval=4",
    "--log_interval=1",
    "--batch_size=4",
    "--block_size=16",
    "--n_layer=2",
    "--n_head=2",
    "--n_embd=32",
    "--max_iters=4",
    "--dropout=0.0",
    "--gradient_accumulation_steps=2",
    "--always_save_checkpoint=True",
    "--dtype=float32",
    "--learning_rate=1e-3",
    "--warmup_iters=1",
)
# The sizes are those that the script gives to ZeRO-1: 1536 wide, 50304 words. The steps are one more than an epoch's
# batches make, since the last that was asked for ends in the script's own check of sequences a second.
_CLM = (
    "run_clm_no_trainer.py",
    "--model_name_or_path",
    "gpt2",
    "--config_name",
    "config.json",
    "--tokenizer_name",
    "tokenizer",
    "--load_tokenized_dataset",
    "tokenized",
    "--per_device_train_batch_size",
    "2",
    "--gradient_accumulation_steps",
    "2",
    "--max_train_steps",
    "3",
    "--use_zero1",
    "--use_grad_clipping",
    "--seed",
    "1",
    "--block_size",
    "16",
    "--output_dir",
    "out",
)
# At 32 pixels the last layers have one place each: batch norm over the two values of a batch of two leaves little but
# their sign, and PyTorch's own losses in float32 and float64 are 0.3 apart after a step.
_RESNET = (
    "run_image_classification.py",
    "--fake_data",
    "--fake_train_dataset_length",
    "8",
    "--image_dim",
    "64",
    "--batch_size",
    "2",
    "--num_epochs",
    "1",
    "--log_steps",
    "1",
    "--model",
    "resnet18",
    "--max_steps",
    "3",
    "--lr",
    "0.001",
)

SCRIPTS = (
    _sample("mnist_mlp/train.py", "mnist_mlp", "train.py", make=data.mnist_mlp),
    _sample(
        "mnist_mlp/train_cpu.py",
        "mnist_mlp",
        "train_cpu.py",
        make=data.mnist_mlp,
        cpu=("train_cpu.py",),
        note="its device is the CPU, said in the script",
    ),
    _sample("mnist_mlp/train_torchrun.py", "mnist_mlp", "train_torchrun.py", make=data.mnist_mlp, ranks=2),
    _sample(
        "mnist_mlp/train_xmp.py",
        "mnist_mlp",
        "train_xmp.py",
        make=data.mnist_mlp,
        environment={"NEURONCORE_NUM_DEVICES": "2"},
    ),
    _sample("mnist_mlp/eval.py", "mnist_mlp", "eval.py", make=data.mnist_trained, losses=r"Accuracy: \D*([\d.]+)"),
    _sample(
        "mnist_mlp/eval_using_trace.py",
        "mnist_mlp",
        "eval_using_trace.py",
        make=data.mnist_trained,
        losses=r"Accuracy: \D*([\d.]+)",
    ),
    _sample(
        "dp_bert_hf_pretrain, phase 1, AdamW",
        "dp_bert_hf_pretrain",
        *_BERT,
        "--enable_fp32",
        "--seq_len",
        "16",
        make=data.bert_16,
        older="transformers-4.44",
    ),
    _sample(
        "dp_bert_hf_pretrain, phase 1, AdamW, bf16",
        "dp_bert_hf_pretrain",
        *_BERT,
        "--seq_len",
        "16",
        make=data.bert_16,
        older="transformers-4.44",
        draws=True,
        note="rounds at random, as it asks for, to which the CPU is deaf",
    ),
    _sample(
        "dp_bert_hf_pretrain, phase 1, LAMB",
        "dp_bert_hf_pretrain",
        *_BERT,
        "--enable_fp32",
        "--seq_len",
        "16",
        "--optimizer",
        "LAMB",
        make=data.bert_16,
        older="transformers-4.44",
    ),
    _sample(
        "dp_bert_hf_pretrain, phase 2, LAMB",
        "dp_bert_hf_pretrain",
        *_BERT,
        "--enable_fp32",
        "--seq_len",
        "32",
        "--optimizer",
        "LAMB",
        "--phase2",
        "--phase1_end_step",
        "0",
        make=data.bert_32,
        older="transformers-4.44",
    ),
    _sample("resnet50/run_image_classification.py", "resnet50", *_RESNET, make=data.common),
    _sample(
        "zero1_gpt2/run_clm_no_trainer.py", "zero1_gpt2", *_CLM, make=data.gpt2, older="transformers-4.53", ranks=2
    ),
    _sample(
        "hf_text_classification/run_glue.py",
        "hf_text_classification",
        "run_glue.py",
        "--model_name_or_path",
        "bert",
        "--train_file",
        "train.csv",
        "--validation_file",
        "train.csv",
        "--do_train",
        "--max_seq_length",
        "16",
        "--per_device_train_batch_size",
        "4",
        "--max_steps",
        "4",
        "--logging_steps",
        "1",
        "--output_dir",
        "out",
        "--report_to",
        "none",
        make=data.glue,
        older="transformers-4.53",
    ),
    _sample(
        "hf_image_classification/run_image_classification.py",
        "hf_image_classification",
        "run_image_classification.py",
        "--model_name_or_path",
        "vit",
        "--train_dir",
        "images",
        "--do_train",
        "--per_device_train_batch_size",
        "2",
        "--max_steps",
        "4",
        "--logging_steps",
        "1",
        "--output_dir",
        "out",
        "--remove_unused_columns",
        "False",
        "--report_to",
        "none",
        make=data.vit,
        older="transformers-4.53",
    ),
    _example(
        "mnist",
        "main.py",
        "--epochs",
        "1",
        "--batch-size",
        "32",
        "--test-batch-size",
        "64",
        "--log-interval",
        "1",
        make=data.mnist_small,
    ),
    _example(
        "mnist_rnn",
        "main.py",
        "--epochs",
        "1",
        "--batch-size",
        "32",
        "--test-batch-size",
        "64",
        "--log-interval",
        "1",
        cpu="",
        accel="--accel",
        make=data.mnist_small,
    ),
    _example("vae", "main.py", "--epochs", "1", "--batch-size", "32", "--log-interval", "1", make=data.mnist_small),
    _example(
        "siamese_network",
        "main.py",
        "--dry-run",
        "--batch-size",
        "4",
        "--test-batch-size",
        "8",
        "--log-interval",
        "1",
        make=data.mnist_tiny,
    ),
    _example(
        "mnist_forward_forward",
        "main.py",
        "--epochs",
        "3",
        "--train_size",
        "64",
        "--test_size",
        "64",
        "--log-interval",
        "1",
        cpu="--no_accel",
        make=data.mnist_small,
    ),
    _example(
        "word_language_model",
        "main.py",
        "--data",
        "words",
        "--epochs",
        "1",
        "--emsize",
        "16",
        "--nhid",
        "16",
        "--batch_size",
        "4",
        "--bptt",
        "8",
        "--log-interval",
        "1",
        "--dropout",
        "0",
        cpu="",
        accel="--accel",
        make=data.words,
    ),
    _example(
        "dcgan",
        "main.py",
        "--dataset",
        "fake",
        "--dry-run",
        "--imageSize",
        "64",
        "--batchSize",
        "2",
        "--ndf",
        "8",
        "--ngf",
        "8",
        "--nz",
        "16",
        "--manualSeed",
        "1",
        "--workers",
        "0",
        cpu="",
        accel="--accel",
        losses=r"Loss_[DG]: (-?[\d.]+)",
    ),
    _example(
        "super_resolution",
        "main.py",
        "--upscale_factor",
        "2",
        "--batchSize",
        "2",
        "--testBatchSize",
        "2",
        "--nEpochs",
        "1",
        "--threads",
        "0",
        cpu="",
        accel="--accel",
        make=data.bsds,
    ),
    _example(
        "gat",
        "main.py",
        "--epochs",
        "3",
        "--val-every",
        "1",
        "--num-heads",
        "2",
        "--dropout-p",
        "0",
        make=data.cora,
        losses=r"loss_train: ([\d.]+)",
    ),
    _example(
        "gcn",
        "main.py",
        "--epochs",
        "3",
        make=data.cora,
        note="fetches its data from the network whether they are there or not",
    ),
    _example(
        "imagenet",
        "main.py",
        "images",
        "-a",
        "resnet18",
        "-b",
        "2",
        "--epochs",
        "1",
        "-j",
        "0",
        "-p",
        "1",
        "--seed",
        "1",
        make=data.imagenet,
        losses=r"Loss ([\d.e+]+)",
    ),
    Script(
        "nanoGPT, train, eager",
        "nanoGPT",
        "",
        (*_GPT, "--device=neuron", "--compile=False"),
        data.nano,
        (*_GPT, "--device=cpu", "--compile=False"),
        losses=r"loss (\d+\.\d+)",
    ),
    Script(
        "nanoGPT, train, compile",
        "nanoGPT",
        "",
        (*_GPT, "--device=neuron", "--compile=True"),
        data.nano,
        (*_GPT, "--device=cpu", "--compile=False"),
        losses=r"loss (\d+\.\d+)",
    ),
    Script(
        "nanoGPT, train, ddp",
        "nanoGPT",
        "",
        (*_GPT, "--device=neuron", "--compile=False", "--backend=neuron"),
        data.nano,
        ranks=2,
        losses=r"loss (\d+\.\d+)",
        note="asks for the device cuda:RANK whatever --device says",
    ),
    Script(
        "nanoGPT, sample",
        "nanoGPT",
        "",
        ("sample.py", "--device=neuron", "--num_samples=1", "--max_new_tokens=4", "--dtype=float32", "--out_dir=out"),
        data.nano_trained,
        ("sample.py", "--device=cpu", "--num_samples=1", "--max_new_tokens=4", "--dtype=float32", "--out_dir=out"),
        losses=r"ckpt: (\d+\.\d+)",
    ),
    *(
        Script(name, "own", "", (f"{file}.py", *arguments, "neuron"), cpu=(f"{file}.py", *arguments, "cpu"))
        for name, file, arguments in (
            ("Lightning, accelerator neuron", "lightning_mlp", ()),
            ("accelerate", "accelerate_mlp", ()),
            ("Hugging Face Trainer", "trainer_gpt2", ("plain",)),
            ("Hugging Face Trainer, torch_compile", "trainer_gpt2", ("compile",)),
            ("trl, SFTTrainer", "trl_sft", ()),
            ("trl, DPOTrainer", "trl_dpo", ()),
            ("stable-baselines3, PPO", "sb3_ppo", ()),
        )
    ),
)
