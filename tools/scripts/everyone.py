# SPDX-License-Identifier: Apache-2.0
"""Scripts of many families that nobody named, as people have them: Keras, Flax, Equinox, small repositories."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tools.scripts import data
from tools.scripts.script import Script

_NUMBER = r"(-?\d+\.\d+(?:e-?\d+)?)"
_SEEDED = "seeded.py"  # for scripts that draw without a seed: it gives one, and runs the script as it is


def _keras(
    file: str,
    backend: str,
    losses: str,
    edits: Mapping[str, str],
    make: Callable[[Path], None] = data.nothing,
    note: str = "",
    draws: bool = False,
) -> Script:
    """One of Keras' demos. On TensorFlow and JAX the reference is the script without trnlab."""
    start = (_SEEDED, f"{file}.py")
    return Script(
        f"keras, {file}, {backend}",
        "keras",
        "examples",
        start,
        make,
        None if backend == "torch" else start,
        losses=losses,
        environment={"KERAS_BACKEND": backend},
        edits=edits,
        note=note,
        draws=draws,
    )


_FUNCTIONAL = {"50000": "160", "epochs = 5": "epochs = 2", "Dense(512": "Dense(64"}
_MADE = {"keras.datasets.mnist.load_data()": '__import__("made").mnist()'}
_FEWER = {
    **_MADE,
    "batch_size = 128": "batch_size = 16",
    "epochs = 3": "epochs = 2",
    "(32, k": "(8, k",
    "(64, k": "(8, k",
}
_LOOP = {**_MADE, "batch_size = 64": "batch_size = 6", "(32, k": "(8, k", "(64, k": "(8, k"}
_BACKENDS = ("torch", "jax", "tensorflow")

_MADEMORE = (
    "makemore.py",
    "-i",
    "names.txt",
    "-o",
    "out",
    "--max-steps",
    "11",
    "--n-layer",
    "2",
    "--n-head",
    "2",
    "--n-embd",
    "16",
    "--n-embd2",
    "16",
    "-b",
    "4",
    "--num-workers",
    "0",
    "--device",
)
_MINGPT = (
    "--model.model_type=gpt-nano",
    "--trainer.max_iters=11",
    "--trainer.batch_size=4",
    "--trainer.num_workers=0",
)
_LLAMA = (
    "train.py",
    "--vocab_source=custom",
    "--vocab_size=64",
    "--batch_size=4",
    "--max_seq_len=16",
    "--dim=32",
    "--n_layers=2",
    "--n_heads=4",
    "--n_kv_heads=2",
    "--gradient_accumulation_steps=2",
    "--max_iters=5",
    "--warmup_iters=1",
    "--eval_iters=1",
    "--eval_interval=3",
    "--always_save_checkpoint=True",
    "--dtype=float32",
    "--learning_rate=1e-3",
)

_TIMM = (
    "train.py",
    "--data-dir=images",
    "--num-classes=2",
    "--batch-size=2",
    "--epochs=2",
    "--warmup-epochs=1",
    "--workers=1",
    "--img-size=32",
    "--lr=0.001",
    "--seed=1",
    "--output=out",
)
_DDPM = (
    "train_unconditional.py",
    "--train_data_dir=images",
    "--model_config_name_or_path=config",
    "--resolution=16",
    "--train_batch_size=2",
    "--eval_batch_size=2",
    "--num_epochs=2",
    "--save_images_epochs=2",
    "--ddpm_num_inference_steps=3",
    "--lr_warmup_steps=1",
    "--dataloader_num_workers=0",
    "--output_dir=out",
    "--use_ema",
)


_TITAN = (
    "-m",
    "torchtitan.train",
    "--job.config_file=torchtitan/models/llama3/train_configs/debug_model.toml",
    "--training.seq_len=64",
    "--training.local_batch_size=2",
    "--training.steps=3",
    "--training.mixed_precision_param=float32",
    "--metrics.disable_color_printing",
    "--debug.seed=0",
)


def _timm(name: str, *more: str) -> Script:
    return Script(
        f"timm, train, {name}",
        "timm",
        "",
        (*_TIMM, *more, "--device=neuron"),
        data.imagenet,
        (*_TIMM, *more, "--device=cpu"),
        losses=rf'"loss": {_NUMBER}',
    )


def _titan(name: str, ranks: int = 1, *more: str) -> Script:
    """torchtitan knows no CPU: the reference is its device with the host's operators."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29611"}
    return Script(
        f"torchtitan, {name}",
        "torchtitan",
        "",
        (*_TITAN, *more),
        data.titan,
        ranks=ranks,
        losses=rf"loss:\s+{_NUMBER}",
        environment=alone if ranks == 1 else {},
        older="triton",
    )


def _mademore(kind: str) -> Script:
    more = ("--type", kind)
    return Script(
        f"makemore, {kind}",
        "makemore",
        "",
        (*_MADEMORE, "neuron", *more),
        cpu=(*_MADEMORE, "cpu", *more),
        losses=rf"loss {_NUMBER}",
    )


def _llama(name: str, **given: str) -> Script:
    more = tuple(f"--{option}={value}" for option, value in given.items())
    return Script(
        f"llama2.c, train, {name}",
        "llama2.c",
        "",
        (*_LLAMA, *more, "--device=neuron"),
        data.stories,
        (*_LLAMA, "--compile=False", "--device=cpu"),
        losses=rf"loss {_NUMBER}",
    )


SCRIPTS = (
    *(_keras("demo_functional", each, rf"loss': (?:\[[\d.e-]+, )?{_NUMBER}", _FUNCTIONAL) for each in _BACKENDS),
    *(
        _keras(
            "demo_mnist_convnet",
            each,
            rf"Test loss: {_NUMBER}",
            _FEWER,
            data.keras_mnist,
            draws=each == "tensorflow",  # whose generator the chip has not
        )
        for each in _BACKENDS
    ),
    _keras(
        "demo_custom_torch_workflow",
        "torch",
        rf"Loss: {_NUMBER}",
        _LOOP,
        data.keras_mnist,
        "takes Keras' device, the accelerator, for its model and leaves targets on the host, as beside a GPU",
    ),
    *(
        Script(
            f"examples/distributed/{folder}, {file}", "examples", f"distributed/{folder}", (f"{file}.py",), ranks=2
        )
        for folder, file in (
            ("ddp", "example"),
            ("tensor_parallelism", "tensor_parallel_example"),
            ("tensor_parallelism", "sequence_parallel_example"),
        )
    ),
    *(_mademore(kind) for kind in ("transformer", "gru", "bow")),
    Script(
        "minGPT, adder",
        "minGPT",
        "",
        ("projects/adder/adder.py", "--data.ndigit=1", *_MINGPT, "--trainer.device=neuron"),
        data.mingpt,
        ("projects/adder/adder.py", "--data.ndigit=1", *_MINGPT, "--trainer.device=cpu"),
        losses=rf"train loss {_NUMBER}",
    ),
    _timm("test_vit, AdamW, EMA and mixup", "--model=test_vit", "--opt=adamw", "--model-ema", "--mixup=0.2"),
    _timm("test_resnet, LAMB", "--model=test_resnet", "--opt=lamb", "--clip-grad=1", "--grad-accum-steps=2"),
    Script(
        "diffusers, train_unconditional",
        "diffusers",
        "examples/unconditional_image_generation",
        (_SEEDED, *_DDPM),
        data.images_and_unet,
        (_SEEDED, *_DDPM),
        losses=rf"loss={_NUMBER}",
        note="prints its loss as often as its bar is drawn, so that they are not counted alike",
    ),
    _titan("Llama 3"),
    _titan("Llama 3, FSDP2", 2),
    _titan("Llama 3, tensor and sequence parallel", 2, "--parallelism.tensor_parallel_degree=2"),
    _llama("eager", compile="False"),
    _llama("compile", compile="True"),
    Script(
        "flax, nnx_toy_examples/02_lifted_transforms",
        "flax",
        "examples/nnx_toy_examples",
        (_SEEDED, "02_lifted_transforms.py"),
        cpu=(_SEEDED, "02_lifted_transforms.py"),
        losses=rf"loss: {_NUMBER}",
        environment={"MPLBACKEND": "agg"},
        edits={"10_000": "40", "% 1000": "% 10"},
    ),
    Script(
        "equinox, train_rnn",
        "equinox",
        "docs/examples",
        (_SEEDED, "train_rnn.py"),
        data.spirals,
        (_SEEDED, "train_rnn.py"),
        losses=rf"loss={_NUMBER}",
        edits={"dataset_size=10000": "dataset_size=128", "steps=200": "steps=12"},
    ),
)
