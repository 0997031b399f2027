# SPDX-License-Identifier: Apache-2.0
"""What a script of the sweep is: its model, batch and loss as lines of Python, and how it trains."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

STEPS = 3
DEVICE = "neuron"


@dataclass(frozen=True)
class TrainingScript:
    """A script as somebody would write it. `build`, `batch` and `loss` are lines of it that make `model`, `device`'s
    tensors of one batch, and `loss`.

    batch_size: samples of a batch. length: tokens of a sample, 0 where it has none. precision: "autocast",
    "bfloat16" (the model itself) or "float32". accumulate: batches of a step. checkpoint: the line that asks for
    activations to be computed again. whole: the script itself, where it is none of this form.
    """

    build: str
    batch: str = ""
    loss: str = ""
    batch_size: int = 1
    length: int = 0
    precision: str = "autocast"
    accumulate: int = 1
    checkpoint: str = ""
    clip: bool = True
    schedule: bool = True
    compiled: bool = False
    whole: bool = False

    @property
    def text(self) -> str:
        """The script."""
        return self.build if self.whole else "\n".join(filter(None, [self._setup(), self._loop(), ""]))

    def _setup(self) -> str:
        moved = f'model.to("{DEVICE}"' + (", torch.bfloat16)" if self.precision == "bfloat16" else ")")
        return "\n".join(
            filter(
                None,
                [
                    "import torch",
                    "import torch.nn.functional as F",
                    "",
                    "torch.manual_seed(0)",
                    f"batch_size, length = {self.batch_size}, {self.length}",
                    textwrap.dedent(self.build).strip(),
                    self.checkpoint,
                    f"model = {moved}",
                    "model.train()",
                    "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)",
                    "scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)"
                    if self.schedule
                    else "",
                    f'model = torch.compile(model, backend="{DEVICE}")' if self.compiled else "",
                ],
            )
        )

    def _loop(self) -> str:
        loss = textwrap.dedent(self.loss).strip()
        if self.precision == "autocast":
            loss = f'with torch.autocast("{DEVICE}", dtype=torch.bfloat16):\n' + textwrap.indent(loss, "    ")
        if self.accumulate > 1:
            loss += f"\nloss = loss / {self.accumulate}"
        one = f"{textwrap.dedent(self.batch).strip()}\n{loss}\nloss.backward()"
        if self.accumulate > 1:
            one = f"for _ in range({self.accumulate}):\n" + textwrap.indent(one, "    ")
        clip = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)" if self.clip else ""
        update = ["optimizer.step()", "scheduler.step()" if self.schedule else "", "optimizer.zero_grad()"]
        lines = filter(None, [one, clip, *update, "print(step, loss.item())"])
        return f"for step in range({STEPS}):\n" + textwrap.indent("\n".join(lines), "    ")


SCRIPTS: dict[str, TrainingScript] = {}


def add(name: str, script: TrainingScript) -> None:
    """Register a script by the name of its model."""
    if name in SCRIPTS:
        raise ValueError(f"two scripts are named {name}")
    SCRIPTS[name] = script
