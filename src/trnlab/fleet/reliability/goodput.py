# SPDX-License-Identifier: Apache-2.0
"""How much of its time a job of many devices advances: failures, checkpoints, restarts, spares, blast radius.

Nobody has published failures of Trainium. The rate is that of 16,384 H100 over 54 days, assumed for each device, and
is meant to be swept (`Reliability.scaled`, a third to three times).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from trnlab.chips.sources import assumed, derived, documented
from trnlab.chips.spec import Figure
from trnlab.errors import UsageError
from trnlab.fleet.reliability.renewal import Stops, none_free, replicas, spares_for, young
from trnlab.fleet.reliability.stores import HOST_LINK, store
from trnlab.units import SECONDS_PER_HOUR

LLAMA3 = "Meta, The Llama 3 Herd of Models (arXiv:2407.21783), table 5: 16,384 H100 for 54 days"
STOPS = {  # unexpected ones by cause; the table has further rows, which are one here
    "accelerator": 148,
    "its memory": 72,
    "switches and cables": 35,
    "its SRAM": 19,
    "its system processor": 17,
    "host processor": 2,
    "other, software among them": 126,
}
DEVICE_HOURS = derived(
    16384 * 54 * 24 / sum(STOPS.values()), "h", f"{LLAMA3}, {sum(STOPS.values())} unexpected stops"
)
DETECTION = documented(30, "s", "NEURON_RT_EXEC_TIMEOUT of the Neuron runtime; its prose says 2 s")
REPLACEMENT = documented(270, "s", "a node starts in 4 to 5 minutes (aws-neuron-sdk, ParallelCluster tutorial)")
SWAP = assumed(10, "s", "a spare is up and has the programs: only the list of hosts changes")
WARM_UP = assumed(60, "s", "processes start and connect, programs are loaded from the cache, the first step")
BARRIER = assumed(1, "s", "all ranks meet, and the save is entered: not published; it grows with the ranks")
REGROUP = assumed(15, "s", "those left form new groups of collectives; not published")
AWAY = assumed(24, "h", "until a failed instance is repaired and serves as a spare again")
TOTAL = assumed(0.01, "ratio", "of failures, those that stop all replicas at once: storage, control, network")
SCARCE = 0.001  # spares are as many as leave a failure without one so rarely
KEPT = 4  # checkpoints that a file system has room for
SWEEP = (0.3, 1.0, 3.0)
FIGURES: Mapping[str, Figure] = {
    "device_hours": DEVICE_HOURS,
    "detection": DETECTION,
    "replacement": REPLACEMENT,
    "swap": SWAP,
    "warm_up": WARM_UP,
    "barrier": BARRIER,
    "regroup": REGROUP,
    "away": AWAY,
    "total": TOTAL,
    "host_link": HOST_LINK,
}


@dataclass(frozen=True)
class Goodput:
    """Goodput of a job."""

    # of the time, what advances it; with `waste`, by cause, 1. Times in seconds.
    share: float
    waste: dict[str, float]
    interval: float  # of work between two saves
    young: float  # what Young's formula says
    between: float  # from one failure of any device to the next
    stall: float  # that a save holds the job up
    upload: float  # until it counts
    phases: dict[str, float]  # of a restart
    spares: int  # instances beside the job
    spared: float  # probability that a spare is free
    instances: int
    first_order: float | None  # the share as Daly's formula has it, None where it does not apply (blast radius)
    file_system_tib: float

    @property
    def bought(self) -> float:
        """The share of all instances' time, spares counted."""
        return self.share * self.instances / (self.instances + self.spares)

    def as_json(self) -> dict[str, object]:
        """As plain data."""
        return asdict(self) | {"bought": self.bought}


@dataclass(frozen=True)
class Reliability:
    """What fails how often, and what is done about it; figures and sources: `FIGURES`. Times in seconds."""

    device_hours: float = DEVICE_HOURS.value  # between stops, per device
    store: str = "s3"  # where checkpoints go, see `stores`
    asynchronous: bool = True  # a save holds the job up for the copy to the host's memory only
    interval: float | None = None  # seconds of work between saves, None for the best
    # instances that stand by, None for as many as leave a failure without one 1 time in 1000
    spares: int | None = None
    # devices that stop when one of them fails while the others go on, None for all of the job; a smaller part
    # takes replicas that can leave and come back, with their state from another replica
    blast: int | None = None
    detection: float = DETECTION.value
    replacement: float = REPLACEMENT.value
    swap: float = SWAP.value
    warm_up: float = WARM_UP.value
    regroup: float = REGROUP.value
    away: float = AWAY.value * SECONDS_PER_HOUR
    total: float = TOTAL.value  # share of failures that stop all even then
    file_system_tib: float = 0.0  # 0: as large as `KEPT` checkpoints
    requests: float = 0.0  # in which a state is written, and read, by all ranks together

    def scaled(self, rate: float) -> Reliability:
        """With so many times as many failures."""
        return replace(self, device_hours=self.device_hours / rate)

    def between(self, devices: int) -> float:
        """Seconds between failures of so many devices."""
        return self.device_hours * SECONDS_PER_HOUR / devices

    def goodput(
        self, devices: int, state_bytes: float, per_instance: int = 16, network: float = 4e11, step: float = 0.0
    ) -> Goodput:
        """Goodput of a job on so many devices, `per_instance` of them in one, whose state (weights and what the
        optimizer keeps, once) has `state_bytes`. network: byte/s of an instance's cards; step: seconds of one.

        Raises UsageError for a store that is not known (TRN164), and for what cannot be (TRN165).
        """
        self._checked(devices, state_bytes, per_instance)
        instances = -(-devices // per_instance)
        between = self.between(devices)
        busy = self.away / (self.device_hours * SECONDS_PER_HOUR / devices)
        spares = spares_for(busy, SCARCE) if self.spares is None else self.spares
        missing = none_free(spares, busy)
        phases, stall, upload, tib = self._times(state_bytes, instances, network)
        with_spare = sum(phases.values())
        restarts = [(1 - missing, with_spare), (missing, with_spare - self.swap + self.replacement)]
        alone = self.blast is None or self.blast >= devices
        stops = Stops(between if alone else between / max(self.total, 1e-12), stall, upload, restarts)
        every = max(stops.best() if self.interval is None else self.interval, upload - stall, step)
        share, waste = stops.share(every), stops.waste(every)
        if not alone:
            share, waste = self._contained(
                share, waste, devices, stops.restart - phases["reading the checkpoint"], step
            )
        return Goodput(
            share,
            waste,
            every,
            young(stall, stops.between),
            between,
            stall,
            upload,
            phases,
            spares,
            1 - missing,
            instances,
            stops.first_order(every) if alone else None,
            tib,
        )

    def _checked(self, devices: int, state_bytes: float, per_instance: int) -> None:
        for name, value, least in (
            ("devices", devices, 1),
            ("bytes of state", state_bytes, 1),
            ("devices of an instance", per_instance, 1),
            ("hours between failures of a device", self.device_hours, 1e-9),
            ("spares", self.spares or 0, 0),
            ("devices that stop together", self.blast or 1, 1),
            ("interval", self.interval or 1, 1e-9),
        ):
            if not value >= least or math.isinf(value):
                raise UsageError(
                    f"no job has {value:g} {name}",
                    code="TRN165",
                    limit=f"at least {least:g}",
                    got=value,
                    remedy="give a positive number",
                )

    def _times(
        self, state_bytes: float, instances: int, network: float
    ) -> tuple[dict[str, float], float, float, float]:
        """Phases of a restart, the stall of a save, its upload, and TiB of the file system."""
        where = store(self.store, network)
        tib = self.file_system_tib or where.size(state_bytes, KEPT)
        copy = state_bytes / (instances * HOST_LINK.value)
        written = where.seconds(state_bytes, instances, tib, requests=self.requests)
        phases = {
            "detection": self.detection,
            "another instance": self.swap,
            "reading the checkpoint": where.seconds(state_bytes, instances, tib, True, self.requests) + copy,
            "warm-up": self.warm_up,
        }
        stall = BARRIER.value + copy
        return (phases, stall, written, tib) if self.asynchronous else (phases, stall + written, 0.0, tib)

    def _contained(
        self, share: float, waste: dict[str, float], devices: int, away: float, step: float
    ) -> tuple[float, dict[str, float]]:
        """With replicas that leave and come back; a failure costs the others a pause, and half a step that they make
        again."""
        assert self.blast is not None
        pause = self.detection + self.regroup + step / 2
        there, running = replicas(devices / self.blast, self.between(self.blast), away, pause)
        contained = {name: value * there * running for name, value in waste.items()}
        contained["pauses"] = 1.0 - running
        contained["replicas away"] = running * (1.0 - there)
        return share * there * running, contained
