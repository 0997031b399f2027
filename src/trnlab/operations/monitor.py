# SPDX-License-Identifier: Apache-2.0
"""Reports of simulated devices in the form of the vendor's monitor: one JSON object per instance and period.

Names and nesting: tools/neuron-sys-tools/neuron-monitor-user-guide.rst of aws-neuron/aws-neuron-sdk, 2.32 (2026-08).

A simulated device has a time of its own. Utilisation is the share of it in which the core executes: the rest is
collectives outside of programs and, of real time, what the script waited for its data. Latencies are of that time,
too. What belongs to the host (processors, memory, `vcpu_usage`) is the real host's. ECC events are those that were
rehearsed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trnlab import chips
from trnlab.chips import Target
from trnlab.operations import host
from trnlab.runtime.status_file import State

PERCENTILES = (0, 1, 25, 50, 75, 99, 100)
ERRORS = ("generic", "numerical", "transient", "model", "runtime", "hardware")
OUTCOMES = (
    "completed",
    "completed_with_err",
    "completed_with_num_err",
    "timed_out",
    "incorrect_input",
    "failed_to_queue",
)
ECC = ("mem_ecc_corrected", "mem_ecc_uncorrected", "sram_ecc_uncorrected", "sram_ecc_corrected")
CATEGORIES = ("constants", "model_code", "model_shared_scratchpad", "runtime_memory", "tensors")
_DEVICES = {"trn1": "trainium1", "trn2": "trainium2", "trn3": "trainium3", "inf2": "inferentia2"}
_VERSIONS = {"trn2": ("v4", "v3d")}  # the one that the user guide prints


@dataclass
class MonitorSnapshot:
    """What was seen at one time: processes and the host. at: seconds, of the clock."""

    at: float = 0.0
    states: dict[int, State] = field(default_factory=dict)
    processors: host.Processors = field(default_factory=host.Processors)
    used: dict[int, tuple[float, float]] = field(default_factory=dict)


def moment(states: Iterable[State]) -> MonitorSnapshot:
    """Now."""
    found = {state.pid: state for state in states}
    return MonitorSnapshot(time.time(), found, host.processors(), {pid: host.used_s(pid) for pid in found})


def reports(now: MonitorSnapshot, before: MonitorSnapshot) -> list[dict[str, Any]]:
    """A report for each instance of each target that somebody uses; one without applications where nobody does.

    Counters and percentiles are of the time between the two moments; of a process that `before` does not know, of its
    whole life.
    """
    by_instance: dict[tuple[str, int], list[State]] = {}
    for state in now.states.values():
        by_instance.setdefault((state.record["target"], int(state.record["place"]["instance"])), []).append(state)
    return [_report(place, states, now, before) for place, states in sorted(by_instance.items())] or [
        _report(None, [], now, before)
    ]


def _report(
    place: tuple[str, int] | None, states: Sequence[State], now: MonitorSnapshot, before: MonitorSnapshot
) -> dict[str, Any]:
    period = now.at - before.at if before.at else 0.0
    target = chips.target(place[0]) if place is not None else None
    logical = max((int(s.record.get("logical") or 1) for s in states), default=1)
    return {
        "neuron_runtime_data": [_application(state, target, now, before) for state in states],
        "system_data": {
            "neuron_hw_counters": {"period": period, "neuron_devices": _devices(states, target), "error": ""},
            "vcpu_usage": _vcpu(now, before, period),
            "memory_info": _memory_info(period),
        },
        "instance_info": _instance(place),
        "neuron_hardware_info": _hardware(target, logical),
    }


def _application(
    state: State, target: Target | None, now: MonitorSnapshot, before: MonitorSnapshot
) -> dict[str, Any]:
    earlier = before.states.get(state.pid)
    then = earlier.record if earlier is not None and earlier.record["birth"] == state.record["birth"] else {}
    period = now.at - (before.at if then else float(state.record["started"]))
    return {
        "pid": state.pid,
        "address": "",
        "neuron_runtime_tag": str(state.record["tag"]),
        "error": state.why,
        "report": {
            "neuroncore_counters": _cores(state, then, target, period),
            "execution_stats": _executions(state.record, then, period),
            "memory_used": _memory(state, target, period),
            "neuron_runtime_vcpu_usage": _own_vcpu(state.pid, now, before if then else MonitorSnapshot(), period),
        },
    }


def core_index(record: Mapping[str, Any], target: Target) -> int:
    """The number of a process's core within its instance, of logical cores where they are in use."""
    each = max(1, int(target.chip.cores.value) // int(record.get("logical") or 1))
    return int(record["place"]["chip"]) * each + int(record["place"]["core"])


def latencies(record: Mapping[str, Any], then: Mapping[str, Any]) -> list[tuple[float, int]]:
    """Seconds of an execution, and how many there were since `then`; of those whose time is known."""
    earlier = {each["key"]: int(each["calls"]) for each in then.get("executions", ())}
    found = [
        (float(each["latency_s"]), int(each["calls"]) - earlier.get(each["key"], 0))
        for each in record["executions"]
        if each["latency_s"] is not None
    ]
    return sorted((latency, count) for latency, count in found if count > 0)


def utilisation(record: Mapping[str, Any], then: Mapping[str, Any]) -> float:
    """Percent of the device's time since `then` in which the core executed; 0 where no time is known."""
    busy = sum(latency * count for latency, count in latencies(record, then))
    idle = sum(float(record.get(name) or 0) - float(then.get(name) or 0) for name in ("network_s", "input_s"))
    return 100 * busy / (busy + max(idle, 0.0)) if busy else 0.0


def _cores(state: State, then: Mapping[str, Any], target: Target | None, period: float) -> dict[str, Any]:
    if target is None or state.gone:
        return {"period": period, "neuroncores_in_use": {}, "error": ""}
    record = state.record
    index, used = core_index(record, target), utilisation(record, then)
    counted = latencies(record, then)
    seconds = sum(latency * count for latency, count in counted) * 100 / used if used else 0.0
    earlier = {each["key"]: int(each["calls"]) for each in then.get("executions", ())}
    flops = sum(
        int(each["flops"]) * (int(each["calls"]) - earlier.get(each["key"], 0))
        for each in record["executions"]
        if each["latency_s"] is not None
    )
    core: dict[str, Any] = {"neuroncore_utilization": used, "flops": int(flops / seconds) if seconds else 0}
    if int(record.get("logical") or 1) == 2:
        halves = (used, used) if record.get("pairs") else (used, 0.0)
        core["neuroncore_utilization"] = sum(halves) / 2
        core["v3d"] = {f"nc_v3.{2 * index + i}": {"neuroncore_utilization": half} for i, half in enumerate(halves)}
    return {"period": period, "neuroncores_in_use": {str(index): core}, "error": ""}


def _executions(record: Mapping[str, Any], then: Mapping[str, Any], period: float) -> dict[str, Any]:
    def since(name: str, key: str) -> int:
        return int(record[name].get(key, 0)) - int(then.get(name, {}).get(key, 0))

    calls = sum(int(each["calls"]) for each in record["executions"])
    calls -= sum(int(each["calls"]) for each in then.get("executions", ()))
    found = percentiles(latencies(record, then))
    return {
        "period": period,
        "error_summary": {name: since("errors", name) for name in ERRORS},
        "execution_summary": {name: since("outcomes", name) for name in OUTCOMES} | {"completed": calls},
        "latency_stats": {"total_latency": found, "device_latency": found},
        "error": "",
    }


def percentiles(counted: Sequence[tuple[float, int]]) -> dict[str, float] | None:
    """Percentiles of latencies and how often each was: the least that so many percent do not exceed. None of none."""
    total = sum(count for _, count in counted)
    if not total:
        return None
    found = {}
    for percent in PERCENTILES:
        rank, seen = max(1, -(-percent * total // 100)), 0
        for latency, count in counted:
            seen += count
            if seen >= rank:
                found[f"p{percent}"] = latency
                break
    return found


def _memory(state: State, target: Target | None, period: float) -> dict[str, Any]:
    record = state.record
    index = str(core_index(record, target)) if target is not None else "0"
    used = {name: int(record.get("memory", {}).get(name, 0)) for name in CATEGORIES}
    on_host = {"application_memory": host.resident(state.pid), "constants": 0, "dma_buffers": 0, "tensors": 0}
    device = sum(used.values())
    return {
        "period": period,
        "neuron_runtime_used_bytes": {
            "host": on_host["application_memory"],
            "neuron_device": device,
            "usage_breakdown": {"host": on_host, "neuroncore_memory_usage": {index: used}},
        },
        "loaded_models": [_model(each, i, index, record) for i, each in enumerate(record["executions"])],
        "error": "",
    }


def _model(each: Mapping[str, Any], number: int, index: str, record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": each["name"],
        "uuid": str(each["key"])[:32],
        "model_id": 10001 + number,
        "is_running": True,
        "subgraphs": {"sg_00": {"neuroncore_index": int(index), "neuron_device_index": int(record["place"]["chip"])}},
    }


def _own_vcpu(pid: int, now: MonitorSnapshot, before: MonitorSnapshot, period: float) -> dict[str, Any]:
    user, system = now.used.get(pid, (0.0, 0.0))
    was_user, was_system = before.used.get(pid, (0.0, 0.0))
    share = 100 / period if period > 0 else 0.0
    usage = {"user": (user - was_user) * share, "system": (system - was_system) * share}
    return {"period": period, "vcpu_usage": usage, "error": ""}


def _devices(states: Sequence[State], target: Target | None) -> list[dict[str, int]]:
    counted = {i: dict.fromkeys(ECC, 0) for i in range(target.chips if target is not None else 0)}
    for state in states:
        device = counted.get(int(state.record["place"]["chip"]), {})
        for name, count in state.record["ecc"].items():
            if name in device:
                device[name] += int(count)
    return [{"neuron_device_index": i, **events} for i, events in counted.items()]


def _vcpu(now: MonitorSnapshot, before: MonitorSnapshot, period: float) -> dict[str, Any]:
    each = {name: now.processors.usage(before.processors, name) for name in now.processors.ticks if name}
    return {
        "period": period,
        "average_usage": now.processors.usage(before.processors),
        "usage_data": each,
        "context_switch_count": now.processors.switches - before.processors.switches,
        "error": "" if each else "/proc/stat cannot be read",
    }


def _memory_info(period: float) -> dict[str, Any]:
    known = host.memory()
    total, swap = known.get("MemTotal", 0), known.get("SwapTotal", 0)
    return {
        "period": period,
        "memory_total_bytes": total,
        "memory_used_bytes": total - known.get("MemAvailable", 0),
        "swap_total_bytes": swap,
        "swap_used_bytes": swap - known.get("SwapFree", 0),
        "error": "" if known else "/proc/meminfo cannot be read",
    }


def _instance(place: tuple[str, int] | None) -> dict[str, str]:
    target, number = place if place is not None else ("", 0)
    return {
        "instance_name": "simulated",
        "instance_id": f"i-simulated-{number}",
        "instance_type": target,
        "instance_availability_zone": "",
        "instance_availability_zone_id": "",
        "instance_region": "",
        "ami_id": "",
        "subnet_id": "",
        "error": "",
    }


def _hardware(target: Target | None, logical: int) -> dict[str, Any]:
    if target is None:
        return {"neuron_device_count": 0, "error": "nothing runs on a simulated device"}
    chip = target.chip
    device, core = _VERSIONS.get(chip.name, ("", ""))
    cores = int(chip.cores.value)
    return {
        "neuron_device_type": _DEVICES.get(chip.name, chip.name),
        "neuron_device_version": device,
        "neuroncore_version": core,
        "neuron_device_count": target.chips,
        "neuron_device_memory_size": chip.hbm.capacity_bytes * cores,
        "neuroncore_per_device_count": cores // logical,
        "logical_neuroncore_config": logical,
        "error": "",
    }
