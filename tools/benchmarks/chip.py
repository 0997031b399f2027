# SPDX-License-Identifier: Apache-2.0
"""What kernels are worth on the chip: the share of a call's time in which matmuls occupy the PE array."""

from __future__ import annotations

from benchmarks import lines
from benchmarks.matmul import product
from trnlab import chips
from trnlab.kernels.attention import attention_forward
from trnlab.kernels.attention_backward import attention_backward
from trnlab.kernels.convolutions.forward import convolution
from trnlab.kernels.view import full
from trnlab.kernels.windows import Slide
from trnlab.numerics.dtypes import bfloat16, float32
from trnlab.program import Builder, Routine
from trnlab.sim.timing import time_routine
from trnlab.timeline import ENGINES

TENSOR = ENGINES.index("tensor")


def attention(chip: chips.Chip, tokens: int, depth: int) -> Routine:
    """One head of attention without a mask, bf16."""
    b = Builder("attention", chip)
    q, k, v, out = (full(b.param(name, (1, 1, tokens, depth), bfloat16)) for name in ("q", "k", "v", "out"))
    lse = full(b.param("lse", (1, 1, tokens), float32))
    attention_forward(b, q, k, v, out, lse, causal=False, scale=depth**-0.5)
    return b.build()


def attention_gradients(chip: chips.Chip, tokens: int, depth: int) -> Routine:
    """The backward pass of the same head."""
    b = Builder("attention_gradients", chip)
    names = ("dout", "q", "k", "v", "out", "dq", "dk", "dv")
    views = {name: full(b.param(name, (1, 1, tokens, depth), bfloat16)) for name in names}
    lse = full(b.param("lse", (1, 1, tokens), float32))
    attention_backward(b, **views, lse=lse, causal=False, scale=depth**-0.5)
    return b.build()


def depthwise(chip: chips.Chip, images: int, channels: int, size: int) -> Routine:
    """A depthwise 3 x 3 convolution, bf16."""
    b = Builder("depthwise", chip)
    x, out = (full(b.param(name, (images, channels, size, size), bfloat16)) for name in ("x", "out"))
    weight = full(b.param("weight", (channels, 1, 3, 3), bfloat16))
    slide = Slide(size, 3, size, 1, 1)
    convolution(b, x, weight, out, (slide, slide), groups=channels)
    return b.build()


def busy(routine: Routine, chip: chips.Chip) -> tuple[float, float]:
    """Percent of the call, start and end included, in which matmuls hold the PE array; microseconds of the call."""
    t = time_routine(routine, chip)
    matmuls = [op.kind == "pe.matmul" for op in t.ops]
    held = sum(int(end - start) for start, end, op in zip(t.start, t.end, t.op) if matmuls[op])
    return 100 * held / t.total, t.total / 1e6


def main() -> None:
    """Measure and report."""
    found = []
    for name in ("trn1", "trn2"):
        chip = chips.get(name)
        percent, us = busy(product(chip, 4096, 8192, 8192), chip)
        what = f"PE busy in bf16 matmul 4096 x 8192 x 8192 on {name}"
        found.append(lines.at_least(what, percent, 85, "%", f"{us / 1e3:.2f} ms on the chip"))
        percent, us = busy(attention(chip, 4096, 128), chip)
        what = f"PE busy in attention forward 4096 x 128 bf16 on {name}"
        found.append(lines.at_least(what, percent, 75, "%", f"{us:.0f} us on the chip"))
        if name == "trn1":
            found.append(lines.at_most("  its time", us, 270, "us"))
        percent, us = busy(attention_gradients(chip, 4096, 128), chip)
        what = f"  in its backward pass on {name}"
        found.append(lines.Line(what, percent, "%", "", None, f"{us:.0f} us on the chip"))
        percent, us = busy(depthwise(chip, 8, 128, 56), chip)
        what = f"PE busy in depthwise 3 x 3 of 8 x 128 x 56 x 56 bf16 on {name}"
        found.append(lines.Line(what, percent, "%", "", None, f"{us:.0f} us on the chip"))
    lines.report(found)


if __name__ == "__main__":
    main()
