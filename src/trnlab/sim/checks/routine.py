# SPDX-License-Identifier: Apache-2.0
"""Check one routine: run the pass over it, and turn what it found into errors that a kernel's author can act on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.errors import Location
from trnlab.program.routine import COL, Routine
from trnlab.program.spans import Spans
from trnlab.sim.checks import findings as f
from trnlab.sim.checks import shadow_memory as w
from trnlab.sim.checks.access_ranges import (
    BASE,
    COARSE,
    DIMS,
    EVERYWHERE,
    ITEM_BYTES,
    ON_CHIP,
    RUN,
    Regions,
    access_ranges,
)
from trnlab.sim.checks.usage import usage

Array = np.ndarray[Any, Any]
_LARGEST = 1 << 27  # cells; a routine that needs more (many huge HBM tensors, odd offsets) is not checked


@dataclass(frozen=True)
class Returned:
    """A result: a view of an HBM buffer. strides and offset count elements of `itemsize` bytes."""

    buffer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    itemsize: int


@dataclass(frozen=True)
class Scene:
    """What a routine does not say about itself.

    filled: buffers with contents at the start. observed: buffers that are seen at the end, all of them; those filled,
    if it is None. results: what else is seen at the end. explicit: tiles whose address the kernel chose. told:
    instructions of which the kernel itself said that they accumulate. free: instructions that may carry values from
    one iteration to the next. spans: iterations that are declared independent. lines: asked for the line that made
    each tile. masks: the kernel's dialect has masks, which leave parts of tiles undefined on purpose.
    """

    filled: frozenset[int] = frozenset()
    observed: frozenset[int] | None = None
    results: tuple[Returned, ...] = ()
    explicit: frozenset[int] = frozenset()
    accumulating: tuple[int, ...] = ()
    free: tuple[int, ...] = ()
    spans: Spans = field(default_factory=Spans)
    lines: Callable[[], Mapping[int, Location]] = dict
    masks: bool = False


class _Pass:
    """The arrays of one run of `scan`."""

    def __init__(self, routine: Routine, scene: Scene, patterns: Array, regions: Regions) -> None:
        flags, what = usage(routine)
        what[list(scene.accumulating)] |= w.TOLD
        what[list(scene.free)] |= w.FREE
        self.routine, self.ranges, self.regions, self.flags, self.what = routine, patterns, regions, flags, what
        self.span_of, self.spans = scene.spans.of_instructions(len(routine)), scene.spans.columns()
        self.grid = any(loop.kind == "grid" for loop in scene.spans.loops)
        self.observed = sorted(scene.filled if scene.observed is None else scene.observed)
        self.results = scene.results
        self.table = regions.table({*self.observed, *(result.buffer for result in scene.results)})
        self.filled = [number for number in scene.filled if number < len(routine.buffers)]

    def run(self, instructions: int) -> tuple[Array, Array]:
        """Over the first instructions; returns findings and the last writer of each cell.

        What is undefined at the end where the caller looks is among them.
        """
        r, g = self.routine, self.regions
        writer = np.zeros(g.cells, np.int32)
        for number in self.filled:
            first = g.first[g.of_buffer[number]]
            writer[first : first + g.size(int(g.of_buffer[number]))] = w.INITIAL
        found, taint = np.zeros((w.MOST, w.FINDING), np.int64), np.zeros(g.cells, np.int32)
        count = w.scan(
            r.first_operand[: instructions + 1],
            self.ranges,
            self.flags,
            np.ascontiguousarray(r.operands[:, COL["buffer"]]),
            np.ascontiguousarray(r.operands[:, COL["is_hbm"]]),
            self.what,
            self.span_of[:instructions],
            self.spans,
            g.first[g.of_buffer],
            g.shared,
            writer,
            np.zeros(g.cells if g.own else 0, np.int32),
            np.zeros(g.own, np.uint8),
            np.zeros(g.psum, np.int64),
            np.zeros(g.cells if self.grid else 0, np.int32),
            g.psum,
            found,
            r.operands,
            ITEM_BYTES,
            self.table,
            taint,
        )
        return np.concatenate([found[:count], self._seen(writer, taint)]), writer

    def _seen(self, writer: Array, taint: Array) -> Array:
        """Rows of findings for what is undefined at the end where the caller looks."""
        if not taint.any():
            return np.zeros((0, w.FINDING), np.int64)
        g = self.regions
        cells = [np.zeros(0, np.int64)]
        for result in self.results:
            if taint[g.cells_of(int(g.of_buffer[result.buffer]))].any():
                cells.append(_cells_of(result, g))
        for number in self.observed:
            if number < len(g.of_buffer):
                mine = g.cells_of(int(g.of_buffer[number]))
                cells.append(mine.start + np.flatnonzero(taint[mine]))
        at = np.concatenate([c[taint[c] > 0] for c in cells])
        origins, amounts = np.unique(np.stack([taint[at], writer[at]], axis=1), axis=0, return_counts=True)
        rows = np.full((len(origins), w.FINDING), -1, np.int64)
        rows[:, 0], rows[:, 2] = w.MISSING, amounts
        rows[:, 1], rows[:, 3] = origins[:, 0] - 1, origins[:, 1] - w.WRITTEN
        return rows


def check_routine(routine: Routine, chip: Chip, scene: Scene) -> tuple[f.CheckFinding, ...]:
    """What is wrong, in the order of the instructions; one finding per kind, line and buffer."""
    patterns, regions = access_ranges(routine, scene.explicit, COARSE)
    if max(regions.cells, regions.own) > _LARGEST:
        return ()
    watched = _Pass(routine, scene, patterns, regions)
    rows, writer = watched.run(len(routine))
    for fine in (ON_CHIP, EVERYWHERE):  # cells may hold together what has to be told apart now
        if not (rows[:, 0] == w.MISSING).any():
            break
        smaller = access_ranges(routine, scene.explicit, fine)
        if smaller[1].cells > _LARGEST // 2:
            break
        patterns, regions = smaller
        watched = _Pass(routine, scene, patterns, regions)
        rows, writer = watched.run(len(routine))
    rows = rows[~_benign(rows, routine, scene.spans)]
    rows = rows[np.argsort(rows[:, 1], kind="stable")]
    out: dict[Any, f.CheckFinding] = {}
    about = f.About(routine, chip, scene.spans, scene.lines)
    for row in rows.tolist():
        kind, operand, cells, other, loop = row
        if kind == w.FOREIGN and chip.has("matmul_onto_any"):
            continue
        key = about.key(kind, operand, other)
        if key in out:
            continue
        if kind == w.MISSING:
            _, before = watched.run(about.instruction(operand))
            gaps = _gaps(patterns[operand], regions, about.buffer(operand).id, before)
            out[key] = about.missing(operand, gaps, other, masks=scene.masks)
        else:
            out[key] = about.finding(kind, operand, cells, other, loop)
    for result in scene.results:
        missing = _unwritten(result, regions, writer)
        if missing:
            out[("unwritten", result.buffer)] = about.unwritten(result.buffer, missing, int(np.prod(result.shape)))
    return tuple(out.values())


def _benign(rows: Array, routine: Routine, spans: Spans) -> Array:
    """Which findings are programs of a grid that all do the same: they write the same values, whoever is last."""
    grids = [number for number, loop in enumerate(spans.loops) if loop.kind == "grid"]
    drop = np.zeros(len(rows), bool)
    if grids and np.isin(rows[:, 0], (w.CARRIED, w.REWRITTEN, w.OVERTAKEN)).any():
        programs = [span for span in spans.spans if span.loop == grids[0]]
        streams = {_stream(routine, span.first, span.last) for span in programs}
        if len(streams) == 1:
            drop = (np.isin(rows[:, 4], grids) & (rows[:, 0] == w.REWRITTEN)) | (rows[:, 0] == w.OVERTAKEN)
    return drop


def _stream(routine: Routine, first: int, last: int) -> bytes:
    """The instructions of one program as bytes, whichever tiles they use."""
    operands = routine.operands[routine.first_operand[first] : routine.first_operand[last]].copy()
    operands[:, [COL["first"], COL["last"]]] = 0
    operands[operands[:, COL["is_hbm"]] == 0, COL["buffer"]] = 0
    columns = [routine.opcode[first:last], routine.engine[first:last], routine.attr[first:last], operands]
    return b"".join(np.ascontiguousarray(column).tobytes() for column in columns)


def _gaps(pattern: Array, regions: Regions, buffer: int, writer: Array) -> f.Gaps:
    """Which partitions and bytes of an operand hold nothing yet."""
    region = int(regions.of_buffer[buffer])
    axes = [np.arange(pattern[DIMS + 2 * d + 1]) * pattern[DIMS + 2 * d] for d in range(5)]
    cells = pattern[BASE] + np.arange(pattern[RUN])
    for axis in reversed(axes):
        cells = axis[(...,) + (None,) * cells.ndim] + cells[None]
    flat = cells.reshape(-1)
    local = flat[writer[flat] == w.NEVER] - regions.first[region]
    row, size, height = (
        int(regions.row[region]),
        int(regions.cell_bytes[region]),
        int(regions.cell_partitions[region]),
    )
    partition, byte = local // row * height - regions.partition[buffer], local % row * size - regions.byte[buffer]
    return f.Gaps(
        nbytes=len(local) * size * height,
        touched=len(flat) * size * height,
        partitions=(int(partition.min()), int(partition.max()) + height),
        bytes=(int(byte.min()), int(byte.max()) + size),
    )


def _unwritten(result: Returned, regions: Regions, writer: Array) -> int:
    """Elements of a result that nothing wrote."""
    region = int(regions.of_buffer[result.buffer])
    first = int(regions.first[region])
    if (writer[first : first + regions.size(region)] != w.NEVER).all():
        return 0
    return int(np.count_nonzero(writer[_cells_of(result, regions)] == w.NEVER))


def _cells_of(result: Returned, regions: Regions) -> Array:
    """The cell of each element of a result."""
    region = int(regions.of_buffer[result.buffer])
    at = np.full((), result.offset, np.int64)
    for count, stride in zip(result.shape, result.strides):
        at = at[..., None] + np.arange(count) * stride
    return np.asarray(regions.first[region] + at.ravel() * result.itemsize // int(regions.cell_bytes[region]))
