# SPDX-License-Identifier: Apache-2.0
"""Train one model of the zoo in this process, and print what became of it as a line of JSON.

The ways are those of `WAYS`; in "xla" XLA runs on the CPU what compile_step captures.
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
from collections.abc import Callable
from typing import Any

import torch

WAYS = ("compile_step", "torch.compile", "xla")


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


class Training:
    """A model that is trained step by step: on the host in one format, or on the simulated chip in one way.

    moved: unless 0, the weights to begin with are off by up to two roundings, in a way that the number stands for.
    """

    def __init__(
        self, subject: Any, dtype: torch.dtype = torch.float32, way: str | None = None, moved: int = 0
    ) -> None:
        self.moved = moved
        self.subject, self.dtype, self.device = subject, dtype, "cpu" if way is None else "neuron"
        self.model = copy.deepcopy(subject.model).to(self.device, dtype)
        self._move()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.step = self._eager(self.model, self.optimizer.step) if way is None else self._compiled(way)

    def losses(self, steps: int, starts: list[Any] | None = None) -> list[float]:
        """Of so many steps. With `starts`, of pairs of steps on one batch, each pair from the state given for it."""
        torch.manual_seed(0)  # what is drawn on the host is the same everywhere
        found = []
        for i in range(steps):
            if starts is not None and i % 2 == 0:
                self._load(starts[i // 2])
            found.append(self._loss(i if starts is None else i // 2))
        return found

    def starts(self, steps: int) -> tuple[list[Any], list[float]]:
        """States before each pair of steps on one batch, and the losses."""
        torch.manual_seed(0)
        states, found = [], []
        for i in range(steps):
            if i % 2 == 0:
                states.append(copy.deepcopy((self.model.state_dict(), self._states())))
            found.append(self._loss(i // 2))
        return states, found

    def _loss(self, seed: int) -> float:
        batch = [x.to(self.dtype) if x.is_floating_point() else x for x in self.subject.batch(seed)]
        return float(self.step(*(x.to(self.device) for x in batch)))

    def _states(self) -> list[dict[str, Any]]:
        return [self.optimizer.state.get(p, {}) for p in self.model.parameters()]

    def _load(self, start: Any) -> None:
        weights, states = start
        self.model.load_state_dict({k: v.to(self.dtype) if v.is_floating_point() else v for k, v in weights.items()})
        self._move()
        for mine, given in zip(self._states(), states):
            for name, value in given.items():
                mine[name].copy_(value)

    def _move(self) -> None:
        generator = torch.Generator().manual_seed(self.moved)
        for p in self.model.parameters() if self.moved else ():
            with torch.no_grad():
                factors = 1 + (2 * torch.rand(p.shape, generator=generator) - 1) * 2**-22
                p.mul_(factors.to(p.device))

    def _eager(self, model: Any, update: Any) -> Any:
        def step(*batch: torch.Tensor) -> torch.Tensor:
            loss = self.subject.loss(model, *batch)
            self.optimizer.zero_grad()
            loss.backward()
            update()
            return loss.detach()

        return step

    def _compiled(self, way: str) -> Any:
        import trnlab.frontends.torch as neuron

        if way != "torch.compile":
            return neuron.compile_step(self.model, self.optimizer, self.subject.loss)
        model = torch.compile(self.model, backend="neuron")
        return self._eager(model, torch.compile(self.optimizer.step, backend="neuron"))


@dataclasses.dataclass
class Reference:
    """The host's losses of several trainings with rounding, those to compare with, and their format.

    Where rounding decides what comes after a few steps, the losses are of pairs of steps from `starts`.
    """

    rounded: list[list[float]]
    exact: list[float]
    host: str
    starts: list[Any] | None = None

    @property
    def band(self) -> float:
        """How far rounding moves a loss."""
        return max(abs(a - b) for losses in self.rounded for a, b in zip(losses, self.exact))

    @property
    def scale(self) -> float:
        """The largest loss."""
        return max(map(abs, self.exact))

    @property
    def decides(self) -> bool:
        """Whether rounding alone moves the losses so much that they show nothing."""
        return self.band > 1e-3 * self.scale


def reference(subject: Any, steps: int) -> Reference:
    """What the host computes.

    Float64 is exact enough; where an operator has no form for it, float32 stands for it. How far rounding moves the
    losses is what it did to four trainings in float32, three of them from weights that are off by a rounding or two.
    """
    rounded = [Training(subject, moved=seed).losses(steps) for seed in range(4)]
    try:
        found = Reference(rounded, Training(subject, torch.float64).losses(steps), "float64")
    except RuntimeError:
        return Reference(rounded[1:], rounded[0], "float32")
    if not found.decides:
        return found
    starts, exact = Training(subject, torch.float64).starts(steps)
    return Reference(
        [Training(subject, moved=seed).losses(steps, starts) for seed in range(4)], exact, "float64", starts
    )


def drawn(subject: Any, steps: int, way: str) -> Reference:
    """For a model that draws: XLA computes what is captured, and draws the numbers that the chip draws."""
    with by_xla():
        exact, *rounded = [Training(subject, way=way, moved=seed).losses(steps) for seed in range(4)]
    torch.compiler.reset()  # what XLA compiled is not for the chip
    return Reference(rounded, exact, "XLA")


def by_xla() -> Any:
    """Within the block XLA on the CPU runs captured programs."""
    import trnlab.frontends.torch as neuron
    from tools.xla import XlaEngine

    return neuron.use(XlaEngine())


def verdict(gap: float, reference: Reference) -> str:
    """Whether rounding explains losses off by `gap`. Where rounding alone moves them much, that says little."""
    if gap > 20 * reference.band + 1e-5 * reference.scale:
        return "wrong"
    return "undecided" if reference.decides else "trains"


def on_device(subject: Any, way: str, host: Reference) -> dict[str, Any]:
    """What the same training on the simulated chip gives, and the operators that ran on the host during its steps."""
    import trnlab.frontends.torch as neuron

    training = Training(subject, way=way)
    neuron.reset_fallback_counts()
    with by_xla() if way == "xla" else contextlib.nullcontext():
        got = training.losses(len(host.exact), host.starts)
    gap = max(abs(a - b) for a, b in zip(got, host.exact))
    return {
        "losses": got,
        "host_losses": host.exact,
        "host": host.host,
        "pairs": host.starts is not None,
        "gap": gap,
        "band": host.band,
        "scale": host.scale,
        "host_ops": dict(neuron.fallback_counts()),
        "verdict": verdict(gap, host),
    }


def main() -> None:
    """Arguments: name, steps, ways."""
    name, steps, ways = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    os.environ.setdefault("TRNLAB_TARGET", "trn1.2xlarge")
    warnings.filterwarnings("ignore")
    declare_missing_operators()
    from tools.zoo.models import MODELS

    torch.manual_seed(0)
    subject = MODELS[name]()
    host = None if subject.draws else reference(subject, steps)
    for way in ways:
        found = outcome(subject, way, host or (lambda way=way: drawn(subject, steps, way)))
        print("RESULT " + json.dumps({"model": name, "way": way, "steps": steps} | found), flush=True)


def outcome(subject: Any, way: str, host: Reference | Callable[[], Reference]) -> dict[str, Any]:
    """What became of one training, whatever it is."""
    began = time.process_time()
    if subject.draws and way == "xla":
        return {"verdict": "the reference", "seconds": 0.0}
    try:
        record = on_device(subject, way, host() if callable(host) else host)
    except Exception as error:  # it is the result
        text = str(error)
        code = re.search(r"TRN\d{3}", text)
        record = {
            "verdict": "refused" if code else "crash",
            "code": code[0] if code else type(error).__name__,
            "operators": sorted(set(re.findall(r"\d+\. (\S+?)\(", text))),
            "message": text[:2000],
        }
    return record | {"seconds": round(time.process_time() - began, 1)}


if __name__ == "__main__":
    main()
