# SPDX-License-Identifier: Apache-2.0
"""One side of a comparison: what some instances make of a piece of training, Neuron's by compiled programs, others by
what was published of them. Either has a band, and says what it leans on.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from trnlab.chips.catalog import TARGETS
from trnlab.errors import UsageError
from trnlab.fleet.costs.timed import SharedRoutines
from trnlab.fleet.gpus import catalogue
from trnlab.fleet.gpus.catalogue import Instance
from trnlab.fleet.gpus.layouts import fastest
from trnlab.fleet.gpus.utilisation import class_of, utilisation
from trnlab.fleet.models.transformer import Model
from trnlab.fleet.models.unpartitioned import UnpartitionedModel
from trnlab.fleet.planning.plan import plan
from trnlab.fleet.planning.question import Question
from trnlab.fleet.ranges import PublishedRange
from trnlab.stacks import OWN, Stack
from trnlab.units import SECONDS_PER_HOUR

ENOUGH = 3  # runs of a chip, in a format, for a band of their own; of fewer, those of all chips serve
TOKENS = 1e12  # that a plan is asked for; rates do not depend on it
_SPELLING = re.compile(r"(?:(\d+)x)?([A-Za-z][\w.-]*)")


@dataclass(frozen=True)
class Workload:
    """What is trained."""

    name: str
    kind: str  # its class, see `utilisation`
    unit: str  # what is counted: "tokens", "images" or "clips"
    flops: float  # of one unit, forward and backward
    parameters: float  # that a unit meets
    batch: int = 0  # units of a step, 0 where it is not known
    model: Model | None = None
    sequences: int = 0
    sequence: int = 0
    optimizer: str = "AdamW in mixed bf16"


@dataclass(frozen=True)
class RunToMeasure:
    """A training run whose measured step would narrow a band; fields as `trnlab validate --mine` has them."""

    model: str
    target: str
    instances: int
    batch: int  # sequences of a step
    sequence: int
    layout: str
    precision: str


@dataclass(frozen=True)
class Contender:
    """One side of a comparison: so many instances of a type, and the rate at which they train."""

    instance: str
    instances: int
    accelerator: str
    accelerators: int
    rate: PublishedRange  # units a second of all instances
    known: bool  # whether its middle is more than that of a band
    mfu: PublishedRange
    how: str = ""
    # the share of a step in which ranks wait for the network, None where nothing says it
    exchange: float | None = None
    basis: tuple[str, ...] = field(default_factory=tuple)  # what all that leans on
    measure: RunToMeasure | None = None  # what would narrow its band; None where no run of ours stands for it

    @property
    def name(self) -> str:
        """As it is written: 4xp5.48xlarge."""
        return self.instance if self.instances == 1 else f"{self.instances}x{self.instance}"

    def step(self, work: Workload) -> PublishedRange | None:
        """Seconds of a step; None where its batch is not known."""
        if not work.batch:
            return None
        r = self.rate
        return PublishedRange(work.batch / r.value, work.batch / r.high, work.batch / r.low)

    def hours(self, units: float) -> PublishedRange:
        """Instance hours of so many units."""
        r, scale = self.rate, units * self.instances / SECONDS_PER_HOUR
        return PublishedRange(scale / r.value, scale / r.high, scale / r.low)


def spelled(text: str) -> tuple[int, str]:
    """`4xp5.48xlarge` as a count and an instance type, of Neuron or another vendor. Raises UsageError (TRN156)."""
    found = _SPELLING.fullmatch(text)
    count, name = (int(found[1] or 1), found[2]) if found else (0, text)
    if count < 1:
        raise UsageError(
            f"{text!r} names no instances",
            code="TRN156",
            limit="COUNTxTYPE or TYPE, e.g. 4xp5.48xlarge",
            got=text,
            remedy="give one type, and how many of it",
        )
    if name not in TARGETS:
        catalogue.instance(name)
    return count, name


def work_of(model: Model, sequences: int, sequence: int = 0) -> Workload:
    """Training a model on steps of so many sequences; images and clips are sequences that are counted whole."""
    length = sequence or model.sequence
    whole = model.unit != "tokens"
    per_unit = length if whole else 1
    known = model if isinstance(model, UnpartitionedModel) and model.optimizer else None
    return Workload(
        model.name,
        class_of(model),
        model.unit,
        model.flops_per_token(length) * per_unit,
        model.used,
        sequences * (1 if whole else length),
        model if model.stacks or known is not None else None,
        sequences,
        length,
        *([known.optimizer] if known is not None else []),
    )


@dataclass(frozen=True)
class PlanAccuracy:
    """How plans stand beside published runs."""

    errors: tuple[float, ...] = ()  # planned rate over measured, less 1
    runs: str = ""  # which they are

    def __str__(self) -> str:
        if not self.errors:
            return "no published run was compared: a half to twice is assumed"
        return f"{min(self.errors):+.0%} to {max(self.errors):+.0%} in {self.runs}"


UNHELD = PlanAccuracy()


def off_by(held: PlanAccuracy) -> PublishedRange:
    """Factors between which a rate may lie, from how far plans of published runs were off; without any, a half to
    twice."""
    errors = held.errors
    if not errors:
        return PublishedRange(1.0, 0.5, 2.0, "assumed", "no published run was compared")
    low, high = (1 / (1 + edge) for edge in (max(*errors, 0.0), min(*errors, 0.0)))
    return PublishedRange(1.0, low, high)


def of_neuron(
    work: Workload,
    name: str,
    instances: int,
    held: PlanAccuracy,
    folder: Path | None = None,
    stack: Stack = OWN,
    routines: SharedRoutines | None = None,
) -> Contender:
    """By the fastest layout of a plan under a stack. held: beside published runs; routines: see `plan`.
    Raises UsageError as `plan` does."""
    assert work.model is not None
    question = Question(
        work.model,
        TOKENS,
        (name,),
        (instances, instances),
        batch=work.sequences,
        sequence=work.sequence,
        stack=stack,
    )
    chosen = plan(question, folder, routines=routines).chosen
    step = chosen.step
    rate = step.tokens_per_s / (1 if work.unit == "tokens" else work.sequence)
    exchange = sum(step.seconds.get(k, 0.0) for k in ("tensor parallel", "gradients", "weights", "rows")) / step.total
    found = neuron_contender(name, instances, rate, step.mfu, held, str(step.layout), exchange)
    spelled_layout = step.layout.spelled()
    measure = RunToMeasure(
        work.model.name, name, instances, work.sequences, work.sequence, spelled_layout, question.precision
    )
    return replace(found, measure=measure)


def neuron_contender(
    name: str,
    instances: int,
    rate: float,
    mfu: float,
    held: PlanAccuracy,
    how: str = "",
    exchange: float | None = None,
) -> Contender:
    """From a rate that programs on the simulated chip have."""
    target, band = TARGETS[name], off_by(held)
    basis = f"compiled for {target.chip.title} and timed; the band is how far plans are off: {held}"
    count = instances * target.chips
    return Contender(
        name, instances, target.chip.name, count, band.times(rate), True, band.times(mfu), how, exchange, (basis,)
    )


def gpu_contender(work: Workload, name: str, instances: int, form: str = "bf16") -> Contender:
    """By what was published of the accelerator; the roofline of the fastest layout says what is exchanged."""
    instance = catalogue.instance(name)
    used = utilisation(work.kind, instance.accelerator, form, work.parameters)
    middle = used.value if used.value is not None else math.sqrt(used.low * used.high)
    mfu = PublishedRange(middle, used.low, used.high)
    count = instance.count * instances
    rate = mfu.times(count * instance.accelerator.peak(form) / work.flops)
    how, exchange, more = _layout(work, instance, instances, form)
    return Contender(
        name,
        instances,
        instance.accelerator.name,
        count,
        rate,
        used.published,
        mfu,
        how,
        exchange,
        (used.basis, *more),
    )


def _layout(
    work: Workload, instance: Instance, instances: int, form: str
) -> tuple[str, float | None, tuple[str, ...]]:
    """The fastest layout, its share of exchange, and its roofline in words."""
    if work.model is None or not work.model.stacks:
        return "", None, ()
    best = fastest(work.model, instance, instances, work.sequences, work.sequence, form)
    if best.job is None or best.roofline is None:
        if math.isinf(best.lacking):
            return "", None, (f"a batch of {work.sequences} does not divide among {instance.count * instances}",)
        raise UsageError(
            f"{work.name} fits no layout on {instances} {instance.name}",
            code="TRN157",
            limit=f"{instance.accelerator.memory / 2**30:.0f} GiB each",
            got=f"{best.lacking / 2**30:.1f} GiB too much",
            remedy="take more instances",
        )
    found = best.roofline
    text = f"roofline of {best.job.layout}: {found.total:.4g} s a step, {found.mfu:.1%} of the peak"
    text += f" ({'; '.join(found.assumed)})" if found.assumed else ""
    return str(best.job.layout), found.exchange, (text,)
