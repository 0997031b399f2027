# SPDX-License-Identifier: Apache-2.0
"""What keeps a job's goodput above a target: measures one after the other, and how much of each it takes.

found = examine(Job(chips.target("trn2.48xlarge"), 500_000, parameters=1e12), Reliability(), above=0.9)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from trnlab.chips import interconnects
from trnlab.chips.catalog import Target
from trnlab.errors import UsageError
from trnlab.fleet.arrays import Floats
from trnlab.fleet.bills.site import BisectionTraffic, Site
from trnlab.fleet.reliability.failures import SimulatedGoodput, observe, observe_replicas
from trnlab.fleet.reliability.goodput import SWEEP, Goodput, Reliability
from trnlab.fleet.reliability.renewal import Stops

STATE = 14  # bytes for each parameter: weights in bf16; master, mean and square in fp32
SCATTER = 2.0  # a replica's memory, over what its weights, gradients and optimizer take
QUICK = 5.0  # seconds: NEURON_RT_EXEC_TIMEOUT, set by hand
LIVES = 4000


@dataclass(frozen=True)
class Job:
    """A training on so many chips of a target."""

    target: Target
    chips: int
    parameters: float
    step: float = 10.0  # seconds
    replica: int = 0  # chips of one copy of the model, 0 for the fewest that hold it
    state: int = STATE  # bytes of a parameter in a checkpoint

    @property
    def state_bytes(self) -> float:
        """Bytes of a checkpoint."""
        return self.parameters * self.state

    @property
    def copy(self) -> int:
        """Chips of one copy: `replica`, or whole instances with room for twice weights, gradients and optimizer."""
        if self.replica:
            return self.replica
        chip = self.target.chip
        fewest = SCATTER * self.parameters * (self.state + 4) / (chip.hbm.capacity.value * chip.cores.value)
        return min(math.ceil(fewest / self.target.chips) * self.target.chips, self.chips)

    @property
    def network(self) -> float:
        """Byte/s of an instance's cards, as far as collectives use them."""
        wires = interconnects.of(self.target)
        return wires.cards * wires.card.value * interconnects.COLLECTIVE_COSTS.card_efficiency.value

    def goodput(self, how: Reliability) -> Goodput:
        """See `Reliability.goodput`."""
        return how.goodput(self.chips, self.state_bytes, self.target.chips, self.network, self.step)

    def shares(self, how: Reliability, steps: Floats) -> Floats:
        """The goodput of jobs like this one whose steps take so many seconds; both [N]."""
        short = replace(self, step=0.0).goodput(how)
        found = np.full(len(steps), short.share)
        # a step that is no longer than the time between saves changes it only where the others make theirs again
        matters = steps > (short.interval if how.blast is None else 0.0)
        each, which = np.unique(steps[matters], return_inverse=True)
        found[matters] = np.array([replace(self, step=float(s)).goodput(how).share for s in each])[which]
        return found


@dataclass(frozen=True)
class Measure:
    """Something that is done against failures, with all that precedes it. shares: goodput at each rate of SWEEP."""

    name: str
    how: Reliability
    goodput: Goodput
    shares: tuple[float, ...]


@dataclass(frozen=True)
class MeasureLimits:
    """How far one thing may go, all else as in the last measure, until goodput falls below the target; None where it
    is below whatever it is."""

    blast: int | None  # devices that stop together
    pause: float | None  # seconds from a failure until the others go on
    device_hours: float | None  # between failures of a device


@dataclass(frozen=True)
class ReliabilityStudy:
    """All measures, the first that keeps goodput above the target (None: none does), limits, and the site."""

    job: Job
    above: float
    measures: list[Measure]
    enough: Measure | None
    limits: MeasureLimits
    site: Site
    crossings: list[BisectionTraffic]


def examine(job: Job, how: Reliability, above: float, oversubscription: float = 1.0) -> ReliabilityStudy:
    """Look at all measures. Raises UsageError (TRN166) for a target that is no share."""
    if not 0 < above < 1:
        raise UsageError(
            "this goodput cannot be a target",
            code="TRN166",
            limit="a share between 0 and 1",
            got=above,
            remedy="try 0.9",
        )
    if not 1 <= oversubscription < math.inf:
        raise UsageError(
            "the halves of a network cannot be connected by more than their cards send",
            code="TRN165",
            limit="an oversubscription of at least 1",
            got=oversubscription,
            remedy="1 if nothing blocks",
        )
    measures = [_measure(job, name, changed) for name, changed in _ladder(job, how)]
    enough = next((m for m in measures if m.goodput.share >= above), None)
    last = enough or measures[-1]
    site = Site(job.target, job.chips + last.goodput.spares * job.target.chips, oversubscription)
    return ReliabilityStudy(
        job,
        above,
        measures,
        enough,
        _limits(job, last.how, above),
        site,
        site.crossings(job.parameters, job.copy, job.step),
    )


def _ladder(job: Job, how: Reliability) -> list[tuple[str, Reliability]]:
    """Each with all before it."""
    ladder = [("saves stop the work, no spares", replace(how, asynchronous=False, spares=0, blast=None))]

    def then(name: str, **changes: object) -> None:
        ladder.append((name, replace(ladder[-1][1], **changes)))  # type: ignore[arg-type]

    then("spares stand by", spares=how.spares)
    then("saves go on beside the work", asynchronous=True)
    if job.network > 0:
        then("saves go to a neighbour's memory", store="neighbour")
    then(f"failures are seen within {QUICK:g} s", detection=min(how.detection, QUICK))
    if job.copy < job.chips:
        then(f"replicas of {how.blast or job.copy} chips leave and come back", blast=how.blast or job.copy)
    return ladder


def _measure(job: Job, name: str, how: Reliability) -> Measure:
    shares = tuple(job.goodput(how.scaled(rate)).share for rate in SWEEP)
    return Measure(name, how, job.goodput(how), shares)


def _limits(job: Job, how: Reliability, above: float) -> MeasureLimits:
    def keeps(changed: Reliability) -> bool:
        return job.goodput(changed).share >= above

    blast = _most(lambda n: keeps(replace(how, blast=max(int(n), 1))), 1.0, float(job.chips))
    pause = _most(lambda s: keeps(replace(how, detection=s, regroup=0.0)), 0.0, 1e5)
    scarce = _most(lambda rate: keeps(how.scaled(rate)), 1e-4, 1e4)
    return MeasureLimits(
        int(blast) if blast is not None else None, pause, how.device_hours / scarce if scarce is not None else None
    )


def _most(keeps: Callable[[float], bool], low: float, high: float) -> float | None:
    """The largest that keeps; None where the smallest does not."""
    if not keeps(low):
        return None
    if keeps(high):
        return high
    for _ in range(50):
        middle = math.sqrt(low * high) if low > 0 else (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def simulate(job: Job, measure: Measure, seed: int) -> SimulatedGoodput:
    """What an event simulation sees of a measure: lives of a whole job, or replicas that come and go, with the rare
    stops of all of them simulated by themselves."""
    how, found = measure.how, measure.goodput
    late = sum(found.phases.values())
    ways = [(found.spared, late), (1 - found.spared, late - how.swap + how.replacement)]
    if how.blast is None or how.blast >= job.chips:
        return observe(Stops(found.between, found.stall, found.upload, ways), found.interval, LIVES, seed)
    whole = observe(Stops(found.between / how.total, found.stall, found.upload, ways), found.interval, LIVES, seed)
    away = sum(p * s for p, s in ways) - found.phases["reading the checkpoint"]
    pause = how.detection + how.regroup + job.step / 2
    parts = observe_replicas(job.chips // how.blast, how.between(how.blast), away, pause, 20_000, seed)
    share = whole.share * parts.share
    error = share * math.hypot(whole.error / whole.share, parts.error / parts.share)
    return SimulatedGoodput(share, error, whole.stops + parts.stops)
