# SPDX-License-Identifier: Apache-2.0
"""What a run's steps would take and cost on the chip: the timed half of the summary, see `docs/summary.md`."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from trnlab import chips
from trnlab.graph.ir import Graph, Op
from trnlab.runtime.session import PRECISIONS
from trnlab.timeline import ENGINES, Timeline
from trnlab.units import PS_PER_S

if TYPE_CHECKING:
    from trnlab.runtime.run import Run

SECONDS_PER_HOUR = 3600
MILLION = 1e6


def summarise(run: Run) -> dict[str, Any]:
    """The fields that come from the timelines of the executables of a typical step; empty when nothing ran."""
    calls = [(run.executables[key], count) for key, count in run.step_calls if key in run.executables]
    if not calls:
        return {}
    chip = run.session.chip
    step_s = sum(e.timeline.total * count for e, count in calls) / PS_PER_S
    peak = chip.peak_flops(PRECISIONS[run.session.precision])
    flops = sum(e.metadata["model_flops"] * count for e, count in calls)
    timelines = [(e.timeline, count) for e, count in calls]
    engines = engine_activity(timelines)
    read, written, executed = _work(timelines)
    tokens_per_s = run.tokens_per_step / step_s
    return {
        "step_time_s": step_s,
        "tokens_per_step": run.tokens_per_step,
        "tokens_per_s": tokens_per_s,
        "mfu": flops / (step_s * peak),
        "hfu": executed / (step_s * peak),
        "model_flops_per_step": flops,
        "peak_flops": peak,
        "instructions_per_step": sum(e.program.num_instructions * count for e, count in calls),
        "engines": engines,
        "bound_by": max(engines, key=lambda name: float(engines[name]["active"])),
        "hbm": {
            "read_bytes": read,
            "write_bytes": written,
            "bandwidth_used": (read + written) / (step_s * chip.hbm.bandwidth.value),
        },
        "memory": {
            "peak_bytes": max(e.forecast.peak_bytes for e, _ in calls),
            "capacity_bytes": chip.hbm.capacity_bytes,
        },
        "cost": _cost(run.session.target, tokens_per_s),
        "assumptions": [f"{path} = {f.value:g} {f.unit}: {f.source}" for path, f in chips.assumed(chip)],
    }


def model_flops(graph: Graph) -> int:
    """Floating point operations that the model asks for: two per multiply and add of its matrix products.

    Attention counts its products as if nothing were masked, and its backward pass without computing scores again.
    """
    return sum(_op_flops(op) for op in graph.ops)


def _op_flops(op: Op) -> int:
    if op.name == "dot_general":
        shape = op.operands[0].shape
        contracting: tuple[int, ...] = op.attrs["lhs_contracting_dimensions"]
        return 2 * op.result.type.size * prod(shape[d] for d in contracting)
    if op.name in ("trn.attention", "trn.attention_backward"):
        products, first = (2, 0) if op.name == "trn.attention" else (4, 1)
        (b, h, t, d), s = op.operands[first].shape, op.operands[first + 1].shape[2]
        return 2 * products * b * h * t * s * d
    return 0


def engine_activity(calls: list[tuple[Timeline, int]]) -> dict[str, dict[str, float]]:
    """Per engine, and for the DMA engines together, the share of the time in which it is at work.

    calls: timelines with how often each is executed, one after the other.
    """
    busy: Counter[str] = Counter()
    for timeline, count in calls:
        for name, spans in _spans(timeline).items():
            busy[name] += _covered(*spans) * count
    total = sum(timeline.total * count for timeline, count in calls)
    return {name: {"active": busy[name] / total} for name in (*ENGINES, "dma")}


def _spans(timeline: Timeline) -> dict[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """(starts, ends) of the times at which each engine is at work; for DMA, while bytes flow."""
    found = {}
    for i, name in enumerate(ENGINES):
        here = timeline.engine == i
        found[name] = timeline.start[here], timeline.end[here]
    moves = np.array([op.lanes > 0 for op in timeline.ops], bool)[timeline.op]
    return {**found, "dma": (timeline.begin[moves], timeline.done[moves] - timeline.completion)}


def _covered(starts: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]) -> int:
    """Length of the union of intervals."""
    if not len(starts):
        return 0
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    fresh = np.maximum(starts[1:], reach[:-1])
    return int(reach[0] - starts[0] + np.maximum(reach[1:] - fresh, 0).sum())


def _work(calls: list[tuple[Timeline, int]]) -> tuple[int, int, int]:
    """Bytes read from and written to HBM, and floating point operations of the PE array, of one step."""
    read = written = executed = 0
    for timeline, count in calls:
        times = np.bincount(timeline.op, minlength=len(timeline.ops)) * count
        for op, n in zip(timeline.ops, times.tolist()):
            read += op.hbm_read * n
            written += op.hbm_write * n
            executed += op.flops * n if op.kind == "pe.matmul" else 0
    return read, written, executed


def _cost(target: chips.Target, tokens_per_s: float) -> dict[str, Any]:
    """Dollars for a million tokens: with one core at work, as simulated, and if all cores of the instance did so."""
    price = target.usd_per_hour
    usd = price[0] / SECONDS_PER_HOUR / tokens_per_s * MILLION if price and tokens_per_s else None
    return {
        "usd_per_million_tokens": usd,
        "usd_per_million_tokens_all_cores": usd / target.cores if usd is not None else None,
        "usd_per_hour": price[0] if price else None,
        "price_kind": price[1] if price else None,
        "price_date": target.price_date,
        "price_source": target.price_source,
        "cores": target.cores,
        "cores_used": 1,
    }
