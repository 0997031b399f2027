# SPDX-License-Identifier: Apache-2.0
"""A training step of the demo as simulated instructions, against the same step in eager PyTorch fp32 on this CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks import lines, subject
from trnlab.runtime.session import activate
from trnlab.sim.functional import Machine, RunOptions

ROUNDS = 9


def on_threads(count: int, step: Callable[[], Any]) -> Callable[[], Any]:
    """`step` with PyTorch on `count` threads: all of them win on an idle machine, one on a busy one."""

    def run() -> None:
        torch.set_num_threads(count)
        step()

    return run


def main() -> None:
    """Measure and report."""
    example = subject.train_gpt
    session = subject.session()
    with activate(session):
        model, optimizer, batch = subject.model_and_batch("neuron")
        twin, its_optimizer, its_batch = subject.model_and_batch("cpu")
        simulated = example.captured_step(model, optimizer)
        eager = example.eager_step(twin, its_optimizer)
        threads = torch.get_num_threads()
        helped, alone = (Machine(session.chip, RunOptions(threads=n)) for n in (2, 1))

        def on(core: Machine) -> None:
            session.core = core
            simulated(*batch)

        ways = [
            lambda: on(helped),
            lambda: on(alone),
            *(on_threads(n, lambda: eager(*its_batch)) for n in {1, threads}),
        ]
        ours, single, *theirs = lines.in_turns(ways, ROUNDS)
    note = f"{ours * 1e3:.0f} ms against {min(theirs) * 1e3:.0f} ms, the better of 1 and {threads} threads"
    spent = f"{ours * 1e3:.0f} ms against {single * 1e3:.0f} ms"
    lines.report(
        [
            lines.at_most("demo's step simulated / eager PyTorch fp32", ours / min(theirs), 1.25, "x", note),
            lines.Line("  simulated by two threads / by one", ours / single, "x", "", None, spent),
        ]
    )


if __name__ == "__main__":
    main()
