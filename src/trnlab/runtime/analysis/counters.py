# SPDX-License-Identifier: Apache-2.0
"""What the vendor's profiler counts of a run, under its names, for a program and its timeline.

Each counter is what the profiler's own dumps say of it under "terminology": times in seconds, sizes in bytes, shares
(called percent) from 0 to 1. `mfu_estimated_percent` of a kernel is (hardware_flops - transpose_flops) over two times
the number of elements of the PE array, its clock and the time. Of several cores times are those of the whole, and
counts their sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import BY_OPCODE
from trnlab.isa.base import Memory
from trnlab.numerics.dtypes import BY_CODE
from trnlab.program.routine import COL, Program, Routine
from trnlab.runtime.analysis.usage import spilled
from trnlab.sim.timing.summary import engine_use, summarise
from trnlab.timeline import Timeline
from trnlab.units import PS_PER_S

PE_ELEMENTS = 128 * 128  # of the array, of all generations: see `isa/products`
_COUNTS = tuple(COL[f"count{i}"] for i in range(4))
_SIDES = ("sbuf_read", "sbuf_write", "psum_read", "psum_write")


def counters(program: Program, timeline: Timeline, chip: Chip) -> dict[str, Any]:
    """All counters of one run."""
    seconds, summary = timeline.total / PS_PER_S, summarise(timeline)
    saved, reloaded = spilled(program, timeline)
    moved = summary.hbm_read + summary.hbm_write
    flops, transposes = _flops(timeline)
    fastest = 2 * PE_ELEMENTS * chip.tensor.clock.value * program.cores
    bandwidth = chip.hbm.alone.value * program.cores
    share = 1 / seconds if seconds else 0.0
    return {
        "total_time": seconds,
        "instance_type": timeline.target,
        **dict(_engines(timeline, seconds)),
        "hbm_read_bytes": summary.hbm_read,
        "hbm_write_bytes": summary.hbm_write,
        **on_chip_bytes(program),
        "spill_save_bytes": saved,
        "spill_reload_bytes": reloaded,
        "hardware_flops": flops,
        "transpose_flops": transposes,
        "model_flops": 0,  # of a kernel nobody says what its model is
        "mm_arithmetic_intensity": (flops - transposes) / moved if moved else 0.0,
        "peak_flops_bandwidth_ratio": fastest / bandwidth,
        "hfu_estimated_percent": flops / fastest * share,
        "mfu_estimated_percent": (flops - transposes) / fastest * share,
        "mbu_estimated_percent": moved / bandwidth * share,
        **_instructions(timeline),
    }


def with_counters(timeline: Timeline, program: Program, chip: Chip) -> Timeline:
    """The timeline of a program with its counters, as a profile of the vendor's has them."""
    return replace(timeline, meta={**timeline.meta, "counters": counters(program, timeline, chip)})


def on_chip_bytes(program: Program) -> dict[str, int]:
    """Bytes that instructions and transfers read from and write to SBUF and PSUM, each time that one runs."""
    total = np.zeros(len(_SIDES), np.int64)
    for _, routine in program:
        found = routine._memo.get("on-chip bytes")
        if found is None:
            found = routine._memo["on-chip bytes"] = _on_chip_bytes(routine)
        total += found
    return {f"{side}_bytes": int(size) for side, size in zip(_SIDES, total)}


def _on_chip_bytes(routine: Routine) -> np.ndarray[Any, np.dtype[np.int64]]:
    operands = routine.operands
    memory = np.array([b.memory for b in routine.buffers] or [Memory.HBM], np.int64)[operands[:, COL["buffer"]]]
    size = np.array([BY_CODE[c].itemsize if c in BY_CODE else 0 for c in range(max(BY_CODE) + 1)], np.int64)
    nbytes = operands[:, COL["partitions"]] * size[operands[:, COL["dtype"]]]
    nbytes = nbytes * np.prod(operands[:, _COUNTS], axis=1)
    opcode = np.repeat(routine.opcode, np.diff(routine.first_operand)).astype(np.int64)
    pairs, which = np.unique(np.stack([opcode, operands[:, COL["role"]]], axis=1), axis=0, return_inverse=True)
    writes = np.array([BY_OPCODE[o].operands[r].role == "dst" for o, r in pairs.tolist()], np.bool_)[
        which.reshape(-1)
    ]
    sides = ((Memory.SBUF, False), (Memory.SBUF, True), (Memory.PSUM, False), (Memory.PSUM, True))
    return np.array([nbytes[(memory == place) & (writes == side)].sum() for place, side in sides], np.int64)


def _flops(timeline: Timeline) -> tuple[int, int]:
    """Operations of everything that passes through the PE array, and of the transposes among it."""
    counts = np.bincount(timeline.op, minlength=len(timeline.ops)).tolist()
    of = [(op.kind, 2 * op.k * op.m * op.n * n) for op, n in zip(timeline.ops, counts) if op.kind.startswith("pe.")]
    return sum(flops for _, flops in of), sum(flops for kind, flops in of if kind == "pe.transpose")


def _engines(timeline: Timeline, seconds: float) -> Iterator[tuple[str, Any]]:
    for use in engine_use(timeline):
        name = use.name if use.name == "dma" else f"{use.name}_engine"
        yield f"{name}_active_time", use.active / PS_PER_S
        yield f"{name}_active_time_percent", use.active / PS_PER_S / seconds if seconds else 0.0
        yield f"{name}_instruction_count" if use.name != "dma" else "dma_transfer_count", use.instructions


def _instructions(timeline: Timeline) -> dict[str, int]:
    kinds = np.bincount(timeline.op, minlength=len(timeline.ops)).tolist()
    by_kind = [(op.kind, n) for op, n in zip(timeline.ops, kinds)]
    return {
        "matmul_instruction_count": sum(n for kind, n in by_kind if kind.startswith("pe.")),
        "activate_instruction_count": sum(n for kind, n in by_kind if kind.startswith("scalar.activat")),
    }
