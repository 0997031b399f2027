# SPDX-License-Identifier: Apache-2.0
"""The record of a check, and its form as JSON: see docs/check.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from trnlab.findings import ERROR, SEVERITIES, Finding, UserLine
from trnlab.runtime.faults import DegradedStep
from trnlab.view.effects import Effects, effects_of

if TYPE_CHECKING:  # it brings what pages are made of; findings are recorded wherever a step is captured
    from trnlab.estimate.job import JobStep

SCHEMA, VERSION = "trnlab-check", 1


@dataclass(frozen=True)
class OperatorReport:
    """An operator of the step. status: "supported", "refused" or "host"."""

    name: str
    count: int
    status: str


@dataclass(frozen=True)
class LargeTensor:
    """One of the largest tensors."""

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclass
class MemoryReport:
    """Bytes of HBM that one core holds at its fullest, by what fills it. copies: of parameters, in bf16."""

    parameters: int = 0
    copies: int = 0
    gradients: int = 0
    state: int = 0
    activations: int = 0
    batch: int = 0
    temporaries: int = 0
    largest: list[LargeTensor] = field(default_factory=list)

    @property
    def kept(self) -> int:
        """What data-parallel cores can divide among themselves: parameters, gradients, the optimizer's state."""
        return self.parameters + self.copies + self.gradients + self.state

    @property
    def rest(self) -> int:
        """What belongs to the batch."""
        return self.activations + self.batch + self.temporaries

    @property
    def total(self) -> int:
        """All of it."""
        return self.kept + self.rest


@dataclass
class CoreLayout:
    """Cores over which a step is laid out. time_s: shortest (all communication hidden) and longest (none hidden)."""

    cores: int = 1
    tensor: int = 1
    bytes_per_core: int = 0
    communication_s: float = 0.0
    time_s: tuple[float, float] = (0.0, 0.0)
    basis: str = ""


@dataclass
class TargetResult:
    """What a target makes of the step. Times in seconds.

    per_s is of all cores of the instance (or of the fewest that hold the step), per_s_of_core of one that holds it
    alone.
    """

    name: str
    chip: str = ""
    cores: int = 0
    capacity: int = 0
    fits: bool = False
    memory: MemoryReport = field(default_factory=MemoryReport)
    step_s: float | None = None
    mfu: float | None = None
    limit: dict[str, Any] = field(default_factory=dict)  # seconds that the chip allows at best, by what; see `limits`
    per_s: float | None = None
    per_s_of_core: float | None = None
    layout: CoreLayout | None = None
    usd_per_hour: float | None = None
    price: str = ""
    usd_per_step: float | None = None
    usd_per_million: float | None = None
    parts: dict[str, float] = field(default_factory=dict)  # seconds of forward, backward and update
    modules: list[tuple[str, float]] = field(default_factory=list)  # seconds by module, the largest first
    compiled_s: float = 0.0
    why: str = ""  # why there is no time
    job: JobStep | None = None  # of a cluster: the step of all ranks
    # of a logical core: the share of its time, without collectives, that two cores share
    on_both: float | None = None
    input_s: float = 0.0  # that a step waits for its data, on top of `step_s`; rates, MFU and prices have it
    # of each data set of the step, what reading it takes and costs, see docs/data.md
    reading: list[dict[str, Any]] = field(default_factory=list)
    compiling_s: float = 0.0  # that compiling its programs took here, now or when the cache got them
    # published minutes of compiling a step of so many parameters, with tag and source
    vendor: dict[str, Any] = field(default_factory=dict)


@dataclass
class StackTargets:
    """What targets make of the step under one stack."""

    stack: str  # as `stacks.parse` reads it
    about: str  # for people
    targets: list[TargetResult] = field(default_factory=list)


@dataclass
class Report:
    """What is known of a script."""

    script: str
    precision: str = "bf16"
    how: str = ""
    steps: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    operators: list[OperatorReport] = field(default_factory=list)
    targets: list[TargetResult] = field(default_factory=list)  # of the first stack
    # of all stacks that were asked for, in their order; none where there is no step
    stacks: list[StackTargets] = field(default_factory=list)
    parameters: int = 0
    per_step: int = 0
    counted: str = ""  # what `per_step` counts, "tokens" or "samples"
    complete: bool = True
    learns: bool = True  # whether its step has a backward pass
    cached: bool = False
    notes: list[str] = field(default_factory=list)
    effects: Effects | None = None  # what the script would have done besides, where it was kept from that

    @property
    def results(self) -> Iterator[TargetResult]:
        """What targets make of it, of all stacks."""
        for each in self.stacks:
            yield from each.targets

    def having(self, severity: str) -> list[Finding]:
        """Findings of one severity."""
        return [f for f in self.findings if f.severity == severity]

    @property
    def failed(self) -> bool:
        """Whether something refuses or does not fit."""
        return bool(self.having(ERROR))

    def ordered(self) -> Iterator[Finding]:
        """The findings, the gravest first, each kind in the order in which it was met."""
        for severity in SEVERITIES:
            yield from self.having(severity)


def to_json(report: Report) -> dict[str, Any]:
    """The record, see docs/check.md."""
    record = asdict(replace(report, targets=[], stacks=[]))
    record["findings"] = [asdict(f) for f in report.ordered()]
    record["targets"] = [_target_to_json(target) for target in report.targets]
    record["stacks"] = [
        {"stack": each.stack, "about": each.about, "targets": [_target_to_json(target) for target in each.targets]}
        for each in report.stacks
    ]
    record["effects"] = report.effects.as_json() if report.effects is not None else None
    return {"schema": SCHEMA, "version": VERSION, "failed": report.failed, **record}


def _target_to_json(target: TargetResult) -> dict[str, Any]:
    record = asdict(target)
    record["memory"]["total"] = target.memory.total
    if target.job is not None:
        del record["job"]["degraded"]  # which the record calls `sick`
        record["job"]["sick"] = target.job.degraded.as_json() if target.job.degraded is not None else None
    return record


def from_json(record: dict[str, Any]) -> Report:
    """A report that `to_json` wrote."""
    fields = {k: v for k, v in record.items() if k not in ("schema", "version", "failed")}
    fields["findings"] = [_finding(f) for f in record["findings"]]
    fields["operators"] = [OperatorReport(**o) for o in record["operators"]]
    fields["stacks"] = [
        StackTargets(each["stack"], each["about"], [_target(t) for t in each["targets"]]) for each in record["stacks"]
    ]
    fields["targets"] = fields["stacks"][0].targets if fields["stacks"] else []
    fields["effects"] = effects_of(record.get("effects"))
    return Report(**fields)


def _finding(record: dict[str, Any]) -> Finding:
    places = [UserLine(**p) for p in record["places"]]
    return Finding(**{**record, "place": UserLine(**record["place"]), "places": places})


def _target(record: dict[str, Any]) -> TargetResult:
    memory = {k: v for k, v in record["memory"].items() if k != "total"}
    memory["largest"] = [LargeTensor(**{**t, "shape": tuple(t["shape"])}) for t in memory["largest"]]
    layout = record["layout"]
    if layout is not None:
        layout = CoreLayout(**{**layout, "time_s": tuple(layout["time_s"])})
    modules = [(name, seconds) for name, seconds in record["modules"]]
    job = _job(record["job"]) if record.get("job") else None
    return TargetResult(
        **{**record, "memory": MemoryReport(**memory), "layout": layout, "modules": modules, "job": job}
    )


def _job(record: dict[str, Any]) -> JobStep:
    from trnlab.estimate.job import JobStep

    fields = {key: value for key, value in record.items() if key != "sick"}
    return JobStep(**fields, degraded=DegradedStep.from_json(record["sick"]) if record["sick"] else None)
