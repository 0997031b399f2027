# SPDX-License-Identifier: Apache-2.0
"""What a run's steps would take and cost on the chip: the timed half of the summary, see `docs/summary.md`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from trnlab import chips, policy
from trnlab.precision import MODES
from trnlab.profile.band import band
from trnlab.runtime.analysis.compiled import kernel_fields
from trnlab.runtime.analysis.insight import insight, parts_of
from trnlab.runtime.analysis.limits import limit_of_step
from trnlab.runtime.analysis.remedies import RankStep, remedies
from trnlab.runtime.communication import UncapturedCollective
from trnlab.runtime.executable import Executable
from trnlab.runtime.faults import compare
from trnlab.runtime.session import Session
from trnlab.runtime.step_cost import StepPrograms
from trnlab.sim import timing
from trnlab.units import PS_PER_S

if TYPE_CHECKING:  # it takes a while
    from trnlab.runtime.executable import Executable

MILLION = 1e6
LARGEST_TENSORS = 12


StepCalls = tuple[tuple[str, int], ...]  # executables of one step: key, times executed


class Fullest(NamedTuple):
    """When most of HBM is in use: bytes at that moment, the executable that runs then, and bytes of other tensors."""

    peak_bytes: int = 0
    executable: str = ""
    other_bytes: int = 0

    @classmethod
    def of(cls, executable: Executable, beside: int) -> Fullest:
        """While an executable runs."""
        return cls(executable.forecast.peak_bytes + beside, executable.key, beside)


NOTHING = Fullest()


@dataclass(frozen=True)
class ExecutedSteps:
    """What a run executed. By key: executables, details of them, how often each ran in all."""

    session: Session
    executables: Mapping[str, Executable]
    details: dict[str, dict[str, Any]]
    calls: Mapping[str, int]
    typical: StepCalls  # the calls of a typical step
    patterns: Sequence[StepCalls]  # those of each step, in order
    tokens: int  # of a typical step
    # what the last step of a pattern asked of the other ranks between its executables
    outside: Mapping[StepCalls, Sequence[UncapturedCollective]] = field(default_factory=dict)
    fullest: Fullest = NOTHING  # of the typical step

    def programs(self, pattern: StepCalls) -> StepPrograms:
        """A step of the pattern."""
        calls = [(self.executables[key], count) for key, count in pattern if key in self.executables]
        return StepPrograms(calls, self.outside.get(pattern, ()))


def summarise(run: ExecutedSteps) -> dict[str, Any]:
    """The fields that come from the timelines of the executables of a typical step; empty when nothing ran."""
    step = run.programs(run.typical)
    calls = step.calls
    if not calls:
        return {}
    chip = run.session.chip
    parts = [(timing.summarise(e.timeline), count) for e, count in calls]
    step_s = step.seconds
    cores = max(e.cores for e, _ in calls)
    peak = chip.peak_flops(MODES[run.session.precision]) * cores
    flops = sum(e.metadata["model_flops"] * count for e, count in calls)
    executed = sum(sum(part.pe_flops.values()) * count for part, count in parts)
    read, written = (sum(getattr(part, side) * n for part, n in parts) for side in ("hbm_read", "hbm_write"))
    critical = _critical(parts, step_s, step.outside_s)
    tokens_per_s = run.tokens / step_s
    assumed, choices = _assumptions(calls, step_s), _choices(calls, step_s)
    return {
        "step": [{"executable": e.key, "times": count} for e, count in calls],
        "kernels": _kernels(run),
        "step_time_s": step_s,
        "step_time_band_s": list(band(step_s, assumed, choices)),
        "tokens_per_step": run.tokens,
        "tokens_per_s": tokens_per_s,
        "mfu": flops / (step_s * peak),
        "hfu": executed / (step_s * peak),
        "mbu": (read + written) / (step_s * chip.hbm.bandwidth.value * cores),
        "model_flops_per_step": flops,
        **_limit(calls, run.session.precision),
        "peak_flops": peak,
        "instructions_per_step": sum(e.laid.num_instructions * count for e, count in calls),
        "engines": _engines(parts, step_s),
        "critical_path": critical,
        "bound_by": next(iter(critical)),
        "hbm": {
            "read_bytes": read,
            "write_bytes": written,
            "bandwidth_used": (read + written) / (step_s * chip.hbm.bandwidth.value * cores),
        },
        "memory": _memory(run.executables, run.fullest),
        "cost": _cost(run.session.target, tokens_per_s, cores),
        "step_kinds": _step_kinds(run),
        **insight(parts_of(calls, run.details), chip),
        "assumptions": assumed,
        **({"choices": choices} if choices else {}),
        **_lowerings(calls),
        **_together(run, step),
    }


def _limit(calls: Sequence[tuple[Executable, int]], precision: str) -> dict[str, Any]:
    """What the chip allows at best of a step; nothing of kernels alone."""
    found = limit_of_step(calls, MODES[precision])
    return {"limit": {"seconds": found.seconds, "by": found.by}} if found is not None else {}


def _lowerings(calls: Sequence[tuple[Executable, int]]) -> dict[str, Any]:
    """What was chosen of lowerings that compete, by program; nothing where nobody asked for that."""
    found = [{"program": e.name, **e.metadata["choices"]} for e, _ in calls if e.metadata.get("choices")]
    return {"lowerings": found} if found else {}


def _together(run: ExecutedSteps, step: StepPrograms) -> dict[str, Any]:
    """What the ranks do together in a step, and what faults of their network do to it; nothing of one core."""
    fabric, faults = run.session.counters.fabric, run.session.faults
    found = step.communication(fabric.world if fabric is not None else None, run.session.comm_threshold)
    if found is None:
        return {}
    if run.session.communicator is not None and run.session.communicator.rank == 0:
        graphs = {each.fingerprint.key: each.graph for each in run.session.compiled.values()}
        found["remedies"] = remedies(RankStep(step, graphs, run.session))
    programs = StepPrograms(step.calls)  # what the host exchanges between them was timed on the network as it is
    return {"communication": found, **({"faults": compare(programs, faults).as_json()} if faults else {})}


def _step_kinds(run: ExecutedSteps) -> list[dict[str, Any]]:
    """The steps that ran different executables, in the order of their first: what they ran, how long, and which."""
    found: dict[StepCalls, list[int]] = {}
    for number, pattern in enumerate(run.patterns, 1):
        if pattern:
            found.setdefault(pattern, []).append(number)
    return [
        {
            "executables": [{"executable": key, "times": times} for key, times in pattern],
            "step_time_s": run.programs(pattern).seconds,
            "steps": _ranges(numbers),
        }
        for pattern, numbers in found.items()
    ]


def _ranges(numbers: list[int]) -> list[list[int]]:
    """Ascending numbers as ranges [first, last]."""
    found: list[list[int]] = []
    for n in numbers:
        if found and found[-1][1] == n - 1:
            found[-1][1] = n
        else:
            found.append([n, n])
    return found


def _engines(parts: list[tuple[timing.Summary, int]], step_s: float) -> dict[str, dict[str, float]]:
    """Per engine, and for the DMA engines together, the shares of the step in which it is active and busy."""
    active: Counter[str] = Counter()
    busy: Counter[str] = Counter()
    for part, count in parts:
        for use in part.engines:
            active[use.name] += use.active * count
            busy[use.name] += use.busy * count
    return {
        name: {"active": active[name] / PS_PER_S / step_s, "busy": busy[name] / PS_PER_S / step_s} for name in active
    }


def _kernels(run: ExecutedSteps) -> list[dict[str, Any]]:
    """The kernels that the script called by themselves: those that take longest over all calls first."""
    found = []
    for key, executable in run.executables.items():
        if executable.is_kernel:
            part = timing.summarise(executable.timeline)
            found.append(
                {
                    "name": executable.name,
                    "executable": key,
                    "chip": executable.chip.name,
                    "calls": run.calls[key],
                    "instructions": executable.program.num_instructions,
                    "time_s": part.total / PS_PER_S,
                    "engines": _engines([(part, 1)], part.total / PS_PER_S),
                    "bound_by": next(iter(part.critical)),
                    **kernel_fields(executable),
                }
            )
    return sorted(found, key=lambda kernel: -kernel["time_s"] * kernel["calls"])


def _choices(calls: Sequence[tuple[Executable, int]], step_s: float) -> list[dict[str, Any]]:
    """Changes of the step's time, relative to it, where kernels were also timed under alternatives of the policy."""
    changes: Counter[tuple[str, str]] = Counter()
    for executable, count in calls:
        for (option, value), time in executable.alternatives.items():
            changes[option, value] += (time - executable.timeline.total) * count
    return [
        {"option": option, "value": value, "change": change / PS_PER_S / step_s}
        for (option, value), change in changes.items()
    ]


def _critical(parts: list[tuple[timing.Summary, int]], step_s: float, waited_s: float) -> dict[str, float]:
    """Shares of the step by what the longest chain of dependencies spent its time on, the largest first; what the
    host waited for the network between programs is on it."""
    spent: Counter[str] = Counter({"network": round(waited_s * PS_PER_S)} if waited_s else {})
    for part, count in parts:
        for name, time in part.critical.items():
            spent[name] += time * count
    return {name: time / PS_PER_S / step_s for name, time in spent.most_common()}


def _memory(executables: Mapping[str, Executable], fullest: Fullest) -> dict[str, Any]:
    """HBM at its fullest by what fills it, and the largest of the tensors that the program then has."""
    executable = executables[fullest.executable]
    program, forecast = executable.program, executable.forecast
    updated = {program.inputs[source] for _, source in executable.metadata["aliases"]}
    kept = sorted((t for t in program.tensors if t.kind != "temp"), key=lambda t: -t.nbytes)
    parts = {"updated in place": 0, "inputs": 0, "outputs": 0, "constants": 0, "temporaries": program.hbm_bytes}
    for t in kept:
        name = "updated in place" if t.id in updated else f"{t.kind}s"
        parts[name] += t.nbytes
    parts["scratch"] = forecast.peak_bytes - sum(parts.values())
    parts["of other programs"] = fullest.other_bytes
    return {
        "peak_bytes": fullest.peak_bytes,
        "capacity_bytes": forecast.capacity_bytes,
        "parts": parts,
        "largest": [
            {"name": t.name, "shape": list(t.shape), "dtype": t.dtype.name, "bytes": t.nbytes}
            for t in kept[:LARGEST_TENSORS]
        ],
    }


def _assumptions(calls: Sequence[tuple[Executable, int]], step_s: float) -> list[dict[str, Any]]:
    """The assumed figures that the step's time depends on, the most important first."""
    found: dict[str, dict[str, Any]] = {}
    for executable, count in calls:
        total = executable.timeline.total
        with policy.use(executable.policy):
            assumed = timing.assumptions(executable.laid, executable.chip)
        for a in assumed:
            entry = found.setdefault(
                a.path,
                {
                    "figure": a.path,
                    "value": a.figure.value,
                    "unit": a.figure.unit,
                    "reason": a.figure.source,
                    "halved": 0.0,
                    "doubled": 0.0,
                },
            )
            for side in ("halved", "doubled"):
                entry[side] += (getattr(a, side) - total) * count / PS_PER_S / step_s
    return sorted(found.values(), key=lambda entry: -max(abs(entry["halved"]), abs(entry["doubled"])))


def _cost(target: chips.Target, tokens_per_s: float, cores: int) -> dict[str, Any]:
    """Dollars of the whole instance for a million tokens, with one of its cores at work, or a logical one."""
    price = target.price
    usd = price.usd_of(MILLION / tokens_per_s) if price and tokens_per_s else None
    return {
        "usd_per_million_tokens": usd,
        "usd_per_hour": price.usd_per_hour if price else None,
        "price_kind": price.kind if price else None,
        "price_date": price.date if price else "",
        "price_source": price.source if price else "",
        "cores": target.cores,
        "cores_used": cores,
    }
