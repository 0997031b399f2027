# SPDX-License-Identifier: Apache-2.0
"""A planned step of a model that is no stack of blocks takes as long as `trnlab estimate` finds for a script of all
its ranks. `python tests/fleet/test_wholes_and_scripts.py NAME...` prints rows of NETWORKS."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from trnlab.cli.main import main
from trnlab.fleet import Question, plan
from trnlab.fleet.models.configurations import catalogue, from_config
from trnlab.fleet.search.layout import pinned

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SCRIPT = """
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from trnlab.frontends.torch import compile_step
from trnlab.frontends.torch.recipes.{recipe} import {network}

dist.init_process_group("neuron")
model = DistributedDataParallel({network}({arguments}).to("neuron", torch.bfloat16))
step = compile_step(model, {optimizer}, {loss})
for _ in range(2):
    step(*(x.to("neuron") for x in ({batch})))
"""
IMAGES = {
    "recipe": "resnet",
    "network": "ResNet",
    "loss": "lambda m, x, y: F.cross_entropy(m(x), y)",
    "optimizer": "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-5)",
}
LATENTS = {
    "recipe": "unet",
    "network": "UNet",
    "loss": "lambda m, x, t, w, y: F.mse_loss(m(x, t, w), y)",
    "optimizer": "torch.optim.AdamW(model.parameters(), lr=1e-4)",
}
RESNET = {
    "model_type": "resnet",
    "embedding_size": 32,
    "hidden_sizes": [256, 512],
    "depths": [1, 1],
    "num_labels": 10,
    "image_size": 64,
}
UNET = {
    "_class_name": "UNet2DConditionModel",
    "block_out_channels": [32],
    "down_block_types": ["DownBlock2D"],
    "up_block_types": ["UpBlock2D"],
    "layers_per_block": 1,
    "cross_attention_dim": 32,
    "attention_head_dim": 2,
    "norm_num_groups": 8,
    "sample_size": 16,
}
LABELLED = "torch.randn({b}, 3, {side}, {side}, dtype=torch.bfloat16), torch.randint(0, {classes}, ({b},))"
NOISED = (
    "torch.randn({b}, 4, 16, 16, dtype=torch.bfloat16), torch.randint(0, 1000, ({b}, 1)).float(), "
    "torch.randn({b}, 77, 32, dtype=torch.bfloat16), torch.randn({b}, 4, 16, 16, dtype=torch.bfloat16)"
)
NETWORKS: dict[str, tuple[dict[str, Any], dict[str, str], str, int]] = {  # configuration, script, its batch, samples
    "resnet-small": (
        RESNET,
        IMAGES | {"arguments": "(1, 1), (256, 512), 32, 3, 10"},
        LABELLED.format(b=16, side=64, classes=10),
        16,
    ),
    "unet-small": (UNET, LATENTS | {"arguments": "(32,), (0,), 2, (1,), 1, 32, 0, 8, 4"}, NOISED.format(b=4), 4),
    "resnet50": (
        catalogue()["resnet50"],
        IMAGES | {"arguments": ""},
        LABELLED.format(b=8, side=224, classes=1000),
        8,
    ),
}
TARGET, RANKS = "trn1.32xlarge", 32
APART = 0.06  # of a step; the plan of the small ResNet is too short by 5.9 %


def planned(name: str) -> Any:
    """The step of one layout, put together."""
    from trnlab.frontends.torch.recipes.steps import Steps

    config, _, _, batch = NETWORKS[name]
    model = from_config(config, name)
    fixed = pinned(f"mb={batch},zero=0,overlap=1")
    asked = Question(model, 1e9, (TARGET,), (1, 1), batch=batch * RANKS, fixed=fixed, captured=Steps(model))
    return plan(asked).chosen.step


def script(name: str) -> str:
    """Of one rank of that layout."""
    _, words, batch, _ = NETWORKS[name]
    return SCRIPT.format(**words, batch=batch)


def command(file: Path) -> list[str]:
    """That times it."""
    return ["estimate", "--json", "--no-cache", "--target", TARGET, "--ranks", str(RANKS), str(file)]


def test_a_planned_step_takes_as_long_as_its_script(tmp_path, capsys):
    """Within what was measured, which is more than is asked for (docs/plan.md has larger ones)."""
    file = tmp_path / "train.py"
    file.write_text(script("resnet-small"))
    assert main(command(file)) == 0
    told = json.loads(capsys.readouterr().out)["targets"][0]
    step = planned("resnet-small")
    assert abs(step.total / told["step_s"] - 1) < APART


if __name__ == "__main__":
    import contextlib
    import io
    import tempfile

    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out:
            file = Path(folder) / "train.py"
            file.write_text(script(name))
            main(command(file))
        found = json.loads(out.getvalue())["targets"][0]
        step = planned(name)
        size = sum(step.bytes.values()) / found["memory"]["total"] - 1
        print(f"{name}: step {found['step_s'] * 1e6:,.0f} us, of the plan {step.total / found['step_s'] - 1:+.1%}")
        print(f"memory {found['memory']['total'] / 1e6:,.2f} MB, of the plan {size:+.1%}", flush=True)
