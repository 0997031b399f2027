# SPDX-License-Identifier: Apache-2.0
"""What an asynchronous checkpoint of 1 GiB holds training up for, against a copy of as much in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks import lines
from trnlab.frontends.torch.saving import training_state as states
from trnlab.units import GIB

ROUNDS, TENSORS = 5, 64


def processor_seconds(function: Callable[[], Any]) -> float:
    """Of one call. Both copies are by one thread, and what else the machine does is not in it."""
    start = time.process_time()
    function()
    return time.process_time() - start


def main() -> None:
    """Measure and report."""
    torch.set_num_threads(1)
    rows = GIB // TENSORS // 4 // 1024
    model = nn.Module()
    for i in range(TENSORS):
        model.register_parameter(f"w{i}", nn.Parameter(torch.ones(rows, 1024)))
    model = model.to("neuron")
    source, target = torch.ones(GIB // 4), torch.empty(GIB // 4)
    buffers = states.Buffers()

    def stall() -> None:
        buffers.begin()
        states.taken(model, buffers=buffers)

    def copy() -> None:
        target.copy_(source)

    first = processor_seconds(stall), processor_seconds(copy)
    rounds = [(processor_seconds(stall), processor_seconds(copy)) for _ in range(ROUNDS)]
    stalled, copied = (min(column) for column in zip(*rounds))
    note = "processor time of one thread"
    lines.report(
        [
            lines.at_most(
                "checkpoint: stall of 1 GiB, against a copy of memory", stalled / copied, 1.3, "times", note
            ),
            lines.Line(
                "checkpoint: the first, against a copy into new memory", first[0] / first[1], "times", "", None
            ),
        ]
    )


if __name__ == "__main__":
    main()
