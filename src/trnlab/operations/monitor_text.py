# SPDX-License-Identifier: Apache-2.0
"""Reports of the monitor for Prometheus and for people.

Names and labels for Prometheus are those of the vendor's neuron-monitor-prometheus.py, as printed by its users
(aws/amazon-cloudwatch-agent's tests of the receiver; the SDK's Grafana dashboard).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trnlab.documents import Bar, Bars, Document, Note, Section, Table, text
from trnlab.quoting import metric_label
from trnlab.runtime.status_file import State
from trnlab.units import format_bytes

_INFO = {
    "availability_zone": "instance_availability_zone",
    "instance_id": "instance_id",
    "instance_name": "instance_name",
    "instance_type": "instance_type",
    "region": "instance_region",
    "subnet_id": "subnet_id",
}
Labels = Mapping[str, object]


class MetricSamples:
    """Samples by name, in the order in which names are first met."""

    def __init__(self) -> None:
        self._samples: dict[str, tuple[str, str, list[tuple[Labels, float]]]] = {}

    def add(self, name: str, kind: str, help: str, labels: Labels, value: float) -> None:
        """One more sample; `kind` is "gauge" or "counter"."""
        self._samples.setdefault(name, (kind, help, []))[2].append((labels, value))

    def text(self) -> str:
        """In the text format of Prometheus, 0.0.4."""
        lines = []
        for name, (kind, help, samples) in self._samples.items():
            lines += [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
            for labels, value in samples:
                told = ",".join(f'{key}="{metric_label(labels[key])}"' for key in sorted(labels))
                lines.append(f"{name}{{{told}}} {float(value)!r}")
        return "\n".join(lines) + "\n"


def prometheus(reports: Sequence[Mapping[str, Any]]) -> str:
    """Reports in the format of Prometheus over the whole life of each process, so that counters only grow."""
    metrics = MetricSamples()
    for report in reports:
        info = {label: report["instance_info"].get(name, "") for label, name in _INFO.items()}
        for application in report["neuron_runtime_data"]:
            _application(metrics, application["report"], {**info, "runtime_tag": application["neuron_runtime_tag"]})
        _system(metrics, report["system_data"], info)
        metrics.add("instance_info", "gauge", "EC2 instance information", info, 1.0)
    return metrics.text()


def _application(metrics: MetricSamples, report: Mapping[str, Any], labels: Labels) -> None:
    stats = report["execution_stats"]
    for kind, count in stats["error_summary"].items():
        metrics.add(
            "execution_errors_total", "counter", "Execution errors total", {**labels, "error_type": kind}, count
        )
    for kind, count in stats["execution_summary"].items():
        metrics.add(
            "execution_status_total", "counter", "Execution status total", {**labels, "status_type": kind}, count
        )
    for percentile, seconds in (stats["latency_stats"]["total_latency"] or {}).items():
        each = {**labels, "percentile": percentile}
        metrics.add("execution_latency_seconds", "gauge", "Execution latency in seconds", each, seconds)
    used = report["memory_used"]["neuron_runtime_used_bytes"]
    for place in ("host", "neuron_device"):
        each = {**labels, "memory_location": place}
        metrics.add("neuron_runtime_memory_used_bytes", "gauge", "Runtime memory used bytes", each, used[place])
    for core, categories in used["usage_breakdown"]["neuroncore_memory_usage"].items():
        for category, nbytes in categories.items():
            each = {**labels, "neuroncore": core, "memory_location": "None"}
            metrics.add(
                f"neuroncore_memory_usage_{category}",
                "gauge",
                f"NeuronCore memory utilization for {category}",
                each,
                nbytes,
            )
    for kind, percent in report["neuron_runtime_vcpu_usage"]["vcpu_usage"].items():
        metrics.add(
            "neuron_runtime_vcpu_usage_ratio",
            "gauge",
            "Runtime vCPU utilization ratio",
            {**labels, "usage_type": kind},
            percent / 100,
        )
    for core, counters in report["neuroncore_counters"]["neuroncores_in_use"].items():
        metrics.add(
            "neuroncore_utilization_ratio",
            "gauge",
            "NeuronCore utilization ratio",
            {**labels, "neuroncore": core},
            counters["neuroncore_utilization"] / 100,
        )


def _system(metrics: MetricSamples, system: Mapping[str, Any], labels: Labels) -> None:
    memory = system["memory_info"]
    for name in ("memory_total_bytes", "memory_used_bytes", "swap_total_bytes", "swap_used_bytes"):
        metrics.add(f"system_{name}", "gauge", f"System {name.replace('_', ' ', 1)} bytes", labels, memory[name])
    for device in system["neuron_hw_counters"]["neuron_devices"]:
        for event, count in device.items():
            if event != "neuron_device_index":
                each = {**labels, "event_type": event, "neuron_device_index": device["neuron_device_index"]}
                metrics.add("hardware_ecc_events_total", "counter", "Hardware ecc events total", each, count)
    usage = system["vcpu_usage"]
    metrics.add("system_vcpu_count", "gauge", "System vCPU count", labels, len(usage["usage_data"]))
    for kind, percent in usage["average_usage"].items():
        metrics.add(
            "system_vcpu_usage_ratio",
            "gauge",
            "System CPU utilization ratio",
            {**labels, "usage_type": kind},
            percent / 100,
        )


# -- for people ----------------------------------------------------------------------------------------------------
# Heads are as wide as most of what stands below them, so that columns stay where they are when the page is renewed.
_WIDE = {"RANK": 4, "PID": 7, "CORE": 4, "UTIL": 5, "LATENCY": 8, "STEPS": 6, "LOSS": 8, "DEVICE": 9, "HOST": 9}
_HEAD = (*(name.rjust(width) for name, width in _WIDE.items()), "TAG, SCRIPT")


def top(reports: Sequence[Mapping[str, Any]], states: Mapping[int, State], width: int = 118) -> str:
    """A page of what runs now, for a terminal. width: of a line; what is longer is cut, since a line that is broken
    in two would shift all that follows whenever the page is renewed."""
    lines = text(document(reports, states)).splitlines()
    return "\n".join(line[:width].rstrip() for line in lines) + "\n"


def document(reports: Sequence[Mapping[str, Any]], states: Mapping[int, State]) -> Document:
    """What runs now: a row for each process, bars of the cores, memory, errors."""
    nothing = Note("nothing runs on a simulated device (trnlab run SCRIPT starts something)")
    sections = [section for report in reports for section in _instance(report, states)]
    return Document("What runs now", sections if states else [nothing], over="trnlab monitor")


def _instance(report: Mapping[str, Any], states: Mapping[int, State]) -> Iterator[Section]:
    hardware, info = report["neuron_hardware_info"], report["instance_info"]
    usage = report["system_data"]["vcpu_usage"]["average_usage"]
    memory = report["system_data"]["memory_info"]
    devices = f"{hardware['neuron_device_count']} devices, simulated"
    host = (
        f"host: {usage.get('user', 0):.0f}% user, {usage.get('system', 0):.0f}% system, "
        f"{format_bytes(memory['memory_used_bytes'])} of {format_bytes(memory['memory_total_bytes'])}"
    )
    yield Section(parts=[Note(f"{info['instance_type']} {info['instance_id']}: {devices}   {host}")])
    rows = [row for found in report["neuron_runtime_data"] for row in _process(found, states[found["pid"]])]
    yield Section(parts=[Table(rows, _HEAD, range(len(_HEAD) - 1))])
    yield Section(parts=[Bars(list(_cores(report))), *_events(report)])


def _process(application: Mapping[str, Any], state: State) -> Iterator[tuple[str, ...]]:
    """Its row, and below that what is wrong with it."""
    report, record = application["report"], state.record
    used = report["memory_used"]["neuron_runtime_used_bytes"]
    cores = report["neuroncore_counters"]["neuroncores_in_use"]
    latency = (report["execution_stats"]["latency_stats"]["device_latency"] or {}).get("p50")
    loss = record.get("loss")
    yield (
        str(record["rank"]),
        str(state.pid),
        next(iter(cores), "-"),
        f"{next((c['neuroncore_utilization'] for c in cores.values()), 0.0):.0f}%",
        "-" if latency is None else _seconds(latency),
        str(record.get("steps", 0)),
        "-" if not loss else f"{loss[0]:.4g}",
        format_bytes(used["neuron_device"]),
        format_bytes(used["host"]),
        f"{application['neuron_runtime_tag']}, {record.get('script', '')}",
    )
    if application["error"]:
        yield "", application["error"]


def _cores(report: Mapping[str, Any]) -> Iterator[Bar]:
    for application in report["neuron_runtime_data"]:
        for core, counters in application["report"]["neuroncore_counters"]["neuroncores_in_use"].items():
            used = counters["neuroncore_utilization"]
            yield Bar.of(f"core {core:>4}", used / 100, f"{used:5.1f}%", f"{counters['flops'] / 1e12:.3g} TFLOPS")


def _events(report: Mapping[str, Any]) -> Iterator[Note]:
    """What its devices counted of errors of memory."""
    for device in report["system_data"]["neuron_hw_counters"]["neuron_devices"]:
        events = {name: count for name, count in device.items() if name != "neuron_device_index" and count}
        if events:
            told = ", ".join(f"{count} {name}" for name, count in events.items())
            yield Note(f"device {device['neuron_device_index']}: {told}")


def _seconds(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"
