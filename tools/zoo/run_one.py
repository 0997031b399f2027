# SPDX-License-Identifier: Apache-2.0
"""Train one model of the zoo in this process, and print what became of it as a line of JSON.

The ways are those of `WAYS`, and "xla": what compile_step captures, run by XLA on the CPU.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import os
import re
import sys
import time
import warnings
from typing import Any

import torch

WAYS = ("compile_step", "torch.compile")


def declare_missing_operators() -> None:
    """torchvision made for another build of PyTorch has no operators; its models need only their names."""
    with contextlib.suppress(Exception):
        import torchvision  # noqa: F401

        return
    for name in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for signature in ("nms(Tensor a, Tensor b, float c) -> Tensor", "qnms(Tensor a, Tensor b, float c) -> Tensor"):
        with contextlib.suppress(RuntimeError):
            library.define(signature)
    globals()["_library"] = library  # its operators live as long as it does


def host_losses(subject: Any, steps: int, dtype: torch.dtype) -> list[float]:
    """Of eager training on the CPU."""
    model = copy.deepcopy(subject.model).to(dtype)
    optimizer, losses = _optimizer(model), []
    for i in range(steps):
        batch = [x.to(dtype) if x.is_floating_point() else x for x in subject.batch(i)]
        loss = subject.loss(model, *batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def reference(subject: Any, steps: int) -> tuple[list[float], list[float], str]:
    """The host's losses with rounding, and those to compare with; also what the latter are.

    Float64 is exact enough. Where an operator has no form for it, float32 stands for it, and beside it float32 from
    parameters that are off by one rounding.
    """
    with_rounding = host_losses(subject, steps, torch.float32)
    try:
        return with_rounding, host_losses(subject, steps, torch.float64), "float64"
    except RuntimeError:
        moved = dataclasses.replace(subject, model=rounded_again(subject.model))
        return host_losses(moved, steps, torch.float32), with_rounding, "float32"


def rounded_again(model: torch.nn.Module) -> torch.nn.Module:
    """A copy whose every parameter is the next float32 up or down, or what it was."""
    moved, generator = copy.deepcopy(model), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in moved.parameters():
            way = torch.randint(-1, 2, p.shape, generator=generator).to(p.dtype)
            p.copy_(torch.where(way == 0, p, torch.nextafter(p, way * torch.inf)))
    return moved


def _optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 1e-3)


def device_losses(subject: Any, steps: int, way: str) -> tuple[list[float], dict[str, int]]:
    """Of the same training on the simulated chip; and the operators that ran on the host during the steps."""
    import trnlab.frontends.torch as neuron

    model = copy.deepcopy(subject.model).to("neuron")
    optimizer = _optimizer(model)
    chosen: Any = contextlib.nullcontext()
    if way == "xla":
        from trnlab.frontends.stablehlo.xla import XlaEngine

        chosen = neuron.use(XlaEngine())
    if way in ("compile_step", "xla"):
        step = neuron.compile_step(model, optimizer, subject.loss)
    else:
        compiled, update = torch.compile(model, backend="neuron"), torch.compile(optimizer.step, backend="neuron")

        def step(*batch: torch.Tensor) -> torch.Tensor:
            loss = subject.loss(compiled, *batch)
            optimizer.zero_grad()
            loss.backward()
            update()
            return loss.detach()

    losses = []
    neuron.reset_fallback_counts()
    with chosen:
        for i in range(steps):
            losses.append(float(step(*(x.to("neuron") for x in subject.batch(i)))))
    return losses, dict(neuron.fallback_counts())


def verdict(gap: float, band: float, scale: float) -> str:
    """Whether rounding explains losses off by `gap`. Where rounding alone moves them much, that says little."""
    if gap > 20 * band + 1e-5 * scale:
        return "wrong"
    return "trains" if band <= 1e-3 * scale else "undecided"


def main() -> None:
    """Arguments: name, way, steps."""
    name, way, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    os.environ.setdefault("TRNLAB_TARGET", "trn1.2xlarge")
    warnings.filterwarnings("ignore")
    declare_missing_operators()
    from tools.zoo.models import MODELS

    record: dict[str, Any] = {"model": name, "way": way, "steps": steps}
    began = time.monotonic()
    try:
        torch.manual_seed(0)
        subject = MODELS[name]()
        expected, exact, record["host"] = reference(subject, steps)
        got, host = device_losses(subject, steps, way)
        # What rounding alone does to the host's own losses, and as much again for another order of sums.
        band = max(abs(a - b) for a, b in zip(expected, exact))
        gap = max(abs(a - b) for a, b in zip(got, exact))
        scale = max(map(abs, exact))
        record |= {"losses": got, "host_losses": exact, "gap": gap, "band": band, "scale": scale, "host_ops": host}
        record["verdict"] = verdict(gap, band, scale)
    except Exception as error:  # whatever it is, it is the result
        text = str(error)
        code = re.search(r"TRN\d{3}", text)
        record["verdict"] = "refused" if code else "crash"
        record["code"] = code[0] if code else type(error).__name__
        record["operators"] = sorted(set(re.findall(r"\d+\. (\S+?)\(", text)))
        record["message"] = text[:2000]
    record["seconds"] = round(time.monotonic() - began, 1)
    print("RESULT " + json.dumps(record))


if __name__ == "__main__":
    main()
