# SPDX-License-Identifier: Apache-2.0
"""Where a step of the demo goes on this machine, by kind of instruction: `python -m benchmarks.breakdown` in tools/.

Each instruction counts with the least cycles that it took in several steps, so what else the machine does hardly
shows.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from typing import Any

import numpy as np

from benchmarks import subject
from trnlab import isa
from trnlab.isa.base import Engine
from trnlab.loops import compiled
from trnlab.program.routine import Routine
from trnlab.runtime.session import Session, activate
from trnlab.sim.functional import Machine, RunOptions
from trnlab.sim.functional.native import clock

STEPS = 8


def cycles_of(session: Session, steps: int) -> list[tuple[Routine, Any]]:
    """Each call of a step with the least cycles per instruction. The first step, which compiles, does not count."""
    model, optimizer, batch = subject.model_and_batch("neuron")
    step = subject.train_gpt.captured_step(model, optimizer)
    core = session.core = Machine(session.chip, RunOptions(threads=1, measure=True))
    least: list[tuple[Routine, Any]] = []
    for number in range(steps + 1):
        core.measured.clear()
        step(*batch)
        if number == 1:
            least = [(routine, cycles.copy()) for routine, cycles in core.measured]
        for (_, known), (_, now) in zip(least, core.measured):
            np.minimum(known, now, out=known)
    return least


def kinds(calls: list[tuple[Routine, Any]], by_routine: bool) -> dict[str, tuple[int, int]]:
    """Cycles and number of instructions, by instruction and engine or by routine."""
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for routine, cycles in calls:
        for opcode, engine in set(zip(routine.opcode.tolist(), routine.engine.tolist())):
            mine = (routine.opcode == opcode) & (routine.engine == engine)
            kind = f"{isa.BY_OPCODE[opcode].name} ({Engine(engine).name.lower()})"
            entry = found[routine.name if by_routine else kind]
            entry[0] += int(cycles[mine].sum())
            entry[1] += int(mine.sum())
    return {kind: (cycles, count) for kind, (cycles, count) in found.items()}


@compiled
def cycles() -> Any:
    """Of the counter, now."""
    return clock()


def hertz() -> float:
    """Cycles of the counter per second."""
    cycles()
    start, first = time.perf_counter(), cycles()
    time.sleep(0.2)
    return float((cycles() - first) / (time.perf_counter() - start))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--routines", action="store_true", help="by routine instead")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    session = subject.session()
    with activate(session):
        calls = cycles_of(session, options.steps)
    rate, found = hertz(), kinds(calls, options.routines)
    total = sum(cycles for cycles, _ in found.values())
    print(f"{total / rate * 1e3:.1f} ms on one thread, {sum(n for _, n in found.values())} instructions")
    for kind, (cycles, count) in sorted(found.items(), key=lambda item: -item[1][0]):
        each = f"{cycles / count / rate * 1e6:8.2f} us"
        print(f"{kind:<40} {cycles / total:6.1%} {cycles / rate * 1e3:8.2f} ms {count:7} x {each}")


if __name__ == "__main__":
    main()
