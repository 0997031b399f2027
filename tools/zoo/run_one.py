# SPDX-License-Identifier: Apache-2.0
"""Train one model of the zoo in this process, and print what became of it as a line of JSON.

The ways are those of `WAYS`; "eager" is a script that compiles nothing, and in "xla" XLA runs on the CPU what
compile_step captures.
"""

from __future__ import annotations

import contextlib
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

from tools.zoo.gradients import GradientReference, compared, drawn_gradients, gradients, reference_gradients
from tools.zoo.training import Training, by_xla

WAYS = ("compile_step", "torch.compile", "eager", "xla")


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
    slopes = drawn_gradients(subject) if subject.draws else reference_gradients(subject)
    for way in ways:
        found = outcome(subject, way, host or (lambda way=way: drawn(subject, steps, way)), slopes)
        print("RESULT " + json.dumps({"model": name, "way": way, "steps": steps} | found), flush=True)


def outcome(
    subject: Any, way: str, host: Reference | Callable[[], Reference], slopes: GradientReference
) -> dict[str, Any]:
    """What became of one training, whatever it is."""
    began = time.process_time()
    if subject.draws and way == "xla":
        return {"verdict": "the reference", "seconds": 0.0}
    try:
        record = on_device(subject, way, host() if callable(host) else host)
        record["gradients"] = compared(gradients(subject, way=way), slopes)
        if record["gradients"]["wrong"]:
            record["verdict"] = "wrong"
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
