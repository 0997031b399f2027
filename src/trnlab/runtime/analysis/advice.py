# SPDX-License-Identifier: Apache-2.0
"""What could make a step faster: each cost in turn is taken out of the program, and the program is timed again.

The gain of an entry is therefore the most that work on that cost alone can bring. Gains do not add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa.base import Engine
from trnlab.profile.critical import Pieces, by_label
from trnlab.profile.data import Step
from trnlab.profile.names import short_label
from trnlab.profile.stall_attribution import lines
from trnlab.program.routine import Program, Routine
from trnlab.sim.timing import layout, whatif
from trnlab.sim.timing.plan import TimingPlan

SMALLEST = 0.002  # gains below this share of the step are not worth a line
LINES, LABELS = 6, 4  # source lines and ops of the graph that are tried
COPIES = 2
_NAMES = {Engine.TENSOR: "TensorE", Engine.VECTOR: "VectorE", Engine.SCALAR: "ScalarE", Engine.GPSIMD: "GpSimdE"}
_WAYS = {
    Engine.TENSOR: "use a faster format, moving tiles of 512 columns, and fewer transposes",
    Engine.VECTOR: "move work to an engine that waits, fuse instructions, or use formats of 16 bits",
    Engine.SCALAR: "move copies and simple arithmetic to VectorE or GpSimdE, and fuse scale, bias and reduction into "
    "activations",
    Engine.GPSIMD: "move work to VectorE or ScalarE, which are faster per element",
}
_DMA_LATENCY = (
    "dma.start",
    "dma.start_indirect",
    "dma.wake_gpsimd",
    "dma.start_ring",
    "dma.read_latency",
    "dma.completion",
)
_DMA_TRIGGER = ("dma.trigger", "dma.trigger_gpsimd", "dma.trigger_ring", "dma.queue_interval")
_FIXED = tuple(
    f"{engine}.{name}"
    for engine in ("tensor", "vector", "scalar", "gpsimd")
    for name in ("min_interval", "issue", "latency", "function_issue", "function_latency")
)


@dataclass(frozen=True, slots=True)
class Advice:
    """One way to shorten a run."""

    cost: str  # a name for programs
    about: str  # a source line or ""
    what: str  # the cost in words
    way: str  # what to do about it
    gain: int  # picoseconds that the run would be shorter without the cost


def advice(
    program: Program, chip: Chip, step: Step, chain: Pieces, own_lines: Sequence[tuple[list[int], int]]
) -> list[Advice]:
    """What a run of `program`, which is `step` with the critical path `chain`, could gain; the most first.

    own_lines: for each call the source line of each instruction of its routine, or the line of them all where that is
    not -1; as in the details of a run.
    """
    total = step.timeline.total
    tried = [
        *_engines(program, chip),
        *_transfers(program, chip),
        *_synchronisation(program, chip),
        *_formats(program, chip),
        *_lines(program, chip, step, chain, own_lines),
        *_labels(program, chip, step, chain),
    ]
    found = [Advice(cost, about, what, way, total - without) for cost, about, what, way, without in tried]
    return sorted((a for a in found if a.gain > SMALLEST * total), key=lambda a: (-a.gain, a.cost))


Tried = tuple[str, str, str, str, int]


def _engines(program: Program, chip: Chip) -> Iterator[Tried]:
    for engine, name in _NAMES.items():
        total = whatif.retime(program, chip, whatif.without(_of_engine(engine), whatif.WORK))
        yield f"{engine.name.lower()} work", "", f"all work of {name}", _WAYS[engine], total
    total = whatif.retime_with(program, chip, dict.fromkeys(_FIXED, 0.0))
    yield (
        "instruction overhead",
        "",
        "what instructions take however little they do, and the way to their results",
        "let each instruction do more: longer free dimensions, fused operations",
        total,
    )
    total = whatif.retime(program, chip, whatif.without(_everything, whatif.PORTS))
    yield (
        "shared ports",
        "",
        "waiting for the memory port that two engines share",
        "give work of both engines on the same memory to one of them",
        total,
    )
    total = whatif.retime_with(program, chip, {"scalar.table_load": 0.0})
    yield (
        "table loads",
        "",
        "loads of ScalarE's tables of functions",
        "order activations so that those of one table follow each other",
        total,
    )


def _transfers(program: Program, chip: Chip) -> Iterator[Tried]:
    total = whatif.retime(program, chip, whatif.without(_moving, whatif.MOVING))
    yield (
        "data movement",
        "",
        "the moving of bytes by the DMA engines",
        "keep data on chip, move them once, in a smaller format, and spread over all 16 engines",
        total,
    )
    total = whatif.retime_with(program, chip, dict.fromkeys(_DMA_LATENCY, 0.0))
    yield (
        "transfer latency",
        "",
        "the way of transfers to their first byte and after their last",
        "issue loads earlier (a buffer more for what comes next), and make fewer and larger transfers",
        total,
    )
    total = whatif.retime_with(program, chip, dict.fromkeys(_DMA_TRIGGER, 0.0))
    yield (
        "transfer triggers",
        "",
        "the making of descriptors: engines that trigger, and queues that wait for it",
        "make fewer and larger transfers, and spread triggers over engines that wait anyway",
        total,
    )
    total = whatif.retime_with(program, chip, {"dma.descriptor": 0.0, "dma.descriptor_bytes": float(1 << 40)})
    yield (
        "short descriptors",
        "",
        "the fixed cost of each row that a transfer moves",
        "move longer contiguous rows: 512 bytes and more in HBM for each partition",
        total,
    )
    total = whatif.retime_with(program, chip, {"hbm.bandwidth": float(1 << 60)})
    yield (
        "HBM bandwidth",
        "",
        "the core's share of HBM's bandwidth",
        "read each byte once: larger tiles, fused operations, smaller formats",
        total,
    )


def _synchronisation(program: Program, chip: Chip) -> Iterator[Tried]:
    total = whatif.retime_with(program, chip, {"sync.semaphore": 0.0})
    yield (
        "semaphores",
        "",
        "signals from one engine to another",
        "hand over less often: larger tiles, chains of operations on one engine",
        total,
    )
    total = whatif.retime(*_with(whatif.more_copies(program, chip, COPIES), chip))
    yield (
        "buffers",
        "",
        "waiting for tiles that are still in use to become free",
        f"allocate {COPIES} buffers for tiles that are filled again and again",
        total,
    )


def _with(changed: tuple[Program, whatif.Edit], chip: Chip) -> tuple[Program, Chip, whatif.Edit]:
    return changed[0], chip, changed[1]


def _formats(program: Program, chip: Chip) -> Iterator[Tried]:
    narrow = whatif.with_dtype(program, "pe.", "float32", "bfloat16")
    if narrow.routines != program.routines:
        yield (
            "float32 matmuls",
            "",
            "matmuls in float32, which take several passes",
            "multiply in bfloat16; sums stay in float32",
            whatif.retime(narrow, chip),
        )


def _lines(
    program: Program, chip: Chip, step: Step, chain: Pieces, own_lines: Sequence[tuple[list[int], int]]
) -> Iterator[Tried]:
    """The source lines with most of the critical path."""
    count = len(program.routines)
    for line in lines(step, chain)[:LINES]:
        place, text = step.sources[line.source]
        if not place or not line.critical:
            continue
        split = whatif.split_calls(program, [own == line.source for _, own in own_lines])
        chosen: dict[int, Any] = {id(r): True for r in split.routines[count:]}
        for call, (each, own) in zip(split.calls, own_lines):
            if own < 0:
                chosen[id(split.routines[call.routine])] = np.array(each) == line.source
        total = whatif.retime(split, chip, whatif.without(_these(chosen), whatif.WORK))
        yield "line", place, f"the instructions of `{text}`" if text else "its instructions", "", total


def _labels(program: Program, chip: Chip, step: Step, chain: Pieces) -> Iterator[Tried]:
    """The ops of the graph with most of the critical path, where there are several."""
    labels = [call.label for call in step.timeline.calls]
    if len(set(labels)) < 2:
        return
    for label in list(by_label(step, chain))[:LABELS]:
        split = whatif.split_calls(program, [label == mine for mine in labels])
        chosen: dict[int, Any] = {id(r): True for r in split.routines[len(program.routines) :]}
        total = whatif.retime(split, chip, whatif.without(_these(chosen), whatif.WORK))
        yield "graph op", "", f"the op `{short_label(label)}` of the graph", "", total


def _these(chosen: dict[int, Any]) -> whatif.Choose:
    def choose(routine: Routine, p: TimingPlan) -> whatif.Mask:
        return np.broadcast_to(chosen.get(id(routine), False), len(p.row_of))

    return choose


def _of_engine(engine: Engine) -> Callable[[Routine, TimingPlan], whatif.Mask]:
    def choose(routine: Routine, p: TimingPlan) -> whatif.Mask:
        rows = p.rows[p.row_of]
        return np.asarray((rows[:, layout.ENGINE] == engine) & (rows[:, layout.RING] < 0))

    return choose


def _moving(routine: Routine, p: TimingPlan) -> whatif.Mask:
    return np.asarray(p.rows[p.row_of, layout.RING] >= 0)


def _everything(routine: Routine, p: TimingPlan) -> whatif.Mask:
    return np.ones(len(p.row_of), np.bool_)
