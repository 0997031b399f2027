# SPDX-License-Identifier: Apache-2.0
"""What a training script runs under: target, precision, options, cache, counters. There is no default target.

    with session.activate(Session(chips.target("trn1.2xlarge"))):
        ...                                  # everything that asks `session.current()` gets it

`trnlab run` activates one for the script. Without it the environment decides (TRNLAB_TARGET, TRNLAB_PRECISION,
TRNLAB_CACHE), and where that is silent too, the error says how to choose.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trnlab import chips, host_ops
from trnlab.buckets import Seen
from trnlab.collectives import Communicator
from trnlab.compiler.choices import QUICK
from trnlab.errors import UsageError
from trnlab.fabric.cluster import CORES_PER_RANK, Cluster, parse
from trnlab.fabric.faults import applied
from trnlab.fabric.network import build
from trnlab.host_ops import HostOps
from trnlab.precision import EVERYTHING, MODES, PrecisionRules, read
from trnlab.runtime import fault_injection
from trnlab.runtime.settings import LOGICAL, ROUNDING, Settings, platform, said
from trnlab.stacks import OWN as OWN_STACK
from trnlab.stacks import Stack

if TYPE_CHECKING:  # made with a session; importing them takes a while
    from trnlab.fabric.world import World
    from trnlab.graph.ir import Graph
    from trnlab.runtime.cache.executables import Cache
    from trnlab.runtime.cache.fingerprint import Fingerprint
    from trnlab.runtime.communication import UncapturedCollective
    from trnlab.runtime.executable import Executable
    from trnlab.sim.functional import Machine

KERNEL_CHIP = "trn2"
_SEVERAL = re.compile(r"\d+x[a-z]")  # instances of a target: 2xtrn1.32xlarge
OWN = {"own": True}  # of a field that is counted, kept or made in this process; the others are told to its ranks


class TrafficSource(Protocol):
    """What knows what this rank sent over the network, see `runtime.traffic.Fabric`."""

    world: World
    rank: int

    def take(self) -> list[UncapturedCollective]:
        """What was done together, outside of programs, since this was last asked."""
        ...

    def record(self) -> dict[str, Any]:
        """For the summary."""
        ...


@dataclass
class Counters:
    """What happened so far."""

    steps: int = 0
    resumed: int = 0  # steps that were done before this process began
    instructions: int = 0
    host: HostOps = field(default_factory=HostOps)  # operators that ran on the host
    shapes: Seen = field(default_factory=Seen)  # what compiled code was called on
    # by graph, how many are in which format of the precision, and which were left as they are, and why
    products: dict[str, dict[str, Any]] = field(default_factory=dict)
    fabric: TrafficSource | None = None  # where this process is one rank of several


@dataclass(frozen=True)
class LastCompiled:
    """What was compiled last under some graph's name."""

    fingerprint: Fingerprint
    graph: Graph


class RunObserver(Protocol):
    """What keeps a record of the session's run, see `runtime.run.RunRecord`."""

    script: Any
    executables: dict[str, Executable]

    def begins(self) -> None:
        """An executable is about to run."""
        ...

    def executed(self, executable: Executable, beside: int = 0) -> None:
        """`executable` ran once, with so many bytes of HBM in use beside its own."""
        ...

    def updated(self) -> None:
        """An optimizer made a step, outside of compiled programs."""
        ...

    def waited(self, seconds: float) -> None:
        """The script waited so long for its data."""
        ...

    def reads(self, record: Callable[[float | None], dict[str, Any]]) -> None:
        """A data set is read; `record` says what that came to so far; given a step's simulated seconds, also what it
        costs."""
        ...

    def step(self, loss: float, tokens: int = 0) -> None:
        """A training step is over: its loss, and how many tokens (or samples) it learned from."""
        ...


@dataclass
class Session:
    """The settings of one run and what it counted."""

    target: chips.Target
    # one of `MODES`: "bf16" (matmul operands rounded to bfloat16, sums in float32), "fp32", "bf16-all" (all that
    # is stored, too), "fp8" or "mxfp8" (operands of matrix products)
    # one of `MODES`: "bf16" (matmul operands rounded to bfloat16, sums in float32), "fp32", "bf16-all" (all that
    # is stored, too), "fp8" or "mxfp8" (operands of matrix products)
    precision: str = "bf16"
    rules: PrecisionRules = field(default_factory=PrecisionRules)  # for single modules
    stochastic_rounding: bool | None = None  # None for what the mode and NEURON_RT_STOCHASTIC_ROUNDING_EN say
    seed: int = 0  # of stochastic rounding and of the device's random streams
    check_nan: bool = False  # stop at the first NaN or infinity
    band: bool = False  # time the kernels that a script calls under the alternatives of the policy, too
    cache: Cache | None = field(default=None, metadata=OWN)
    run: RunObserver | None = field(default=None, metadata=OWN)
    # called with each graph that is compiled or found in the cache, and its key
    emit: Callable[[Graph, str], None] | None = field(default=None, metadata=OWN)
    counters: Counters = field(default_factory=Counters, metadata=OWN)
    # by key: compiled or read in this process
    executables: dict[str, Executable] = field(default_factory=dict, metadata=OWN)
    compiled: dict[str, LastCompiled] = field(default_factory=dict, metadata=OWN)  # the latest of each graph name
    core: Machine | None = field(default=None, metadata=OWN)  # made when something first runs
    # whether somebody chose the target. Kernels have a default of their own (`for_kernels`), models have none.
    chosen: bool = True
    instances: int = 1  # how many of the target the ranks of a job lie on
    # the connection with the other ranks, where this process is one
    communicator: Communicator | None = field(default=None, metadata=OWN)
    # overlap, bucket_mib: see `compiler.communication` and `compiler.collectives`
    overlap: str = "prefetch"
    bucket_mib: int = 50
    optimize: int = 1  # how long compiling may take, see `runtime.searched`
    faults: tuple[str, ...] = ()  # of the network between the ranks, see `fabric.faults`
    rehearsed: tuple[fault_injection.Fault, ...] = ()  # failures of ranks, see `fault_injection`
    streams: int = 1  # how many of a rank's collectives are on their way at once, see `sim.timing.streams`
    # whether two cores share what a rank does, as on a logical core (`sim.timing.logical_core`;
    # NEURON_LOGICAL_NC_CONFIG). All three decide times alone.
    # whether two cores share what a rank does, as on a logical core (`sim.timing.logical_core`;
    # NEURON_LOGICAL_NC_CONFIG). All three decide times alone.
    pairs: bool = False
    # whose compiler makes the programs; those of another than ours are timed and never run
    stack: Stack = field(default=OWN_STACK, metadata=OWN)
    comm_threshold: float = 0.25  # share of a step from which the exchange of gradients is worth a warning
    # by graph with collectives, what was made for it, see `compiler.compile`
    known: dict[Any, dict[Any, Any]] = field(default_factory=dict, metadata=OWN)
    # what a front end has to do before the end
    unfinished: list[Callable[[], None]] = field(default_factory=list, metadata=OWN)

    def __post_init__(self) -> None:
        if self.precision not in MODES:
            raise UsageError(
                f"unknown precision {self.precision!r}",
                code="TRN121",
                limit=", ".join(MODES),
                remedy="choose one of these",
            )
        self.check_formats()

    def settings_to_send(self) -> dict[str, Any]:
        """Its settings and the place of its cache, to be sent to another process of the same job (`adopt`)."""
        return {name: getattr(self, name) for name in _sent_names()} | {"cache": self.cache and self.cache.place}

    def adopt(self, told: Mapping[str, Any]) -> None:
        """Take over the settings of another process's session, before anything ran in this one."""
        from trnlab.runtime.cache.executables import open_cache

        for name in _sent_names():
            setattr(self, name, told[name])
        self.cache = open_cache(told["cache"]) if told["cache"] else None

    def settle(self) -> None:
        """Compute what was recorded and not computed yet: the session ends, or its counts are wanted."""
        for finish in self.unfinished:
            finish()

    def check_formats(self) -> None:
        """Raise UsageError (TRN245) when the precision or a rule asks for a format that the chip cannot multiply."""
        if self.chip.has("mx_formats") or not self.rules.needs("mxfp8", self.precision):
            return
        having = ", ".join(name for name in chips.NAMES if chips.get(name).has("mx_formats"))
        asked, way = "", "--precision fp8, which every chip multiplies"
        if self.precision != "mxfp8":
            patterns = next(rule.modules for rule in self.rules.rules if rule.choice.format == "mxfp8")
            asked = f", which the rule for {', '.join(map(repr, patterns))} asks for"
            way = 'format = "fp8" in that rule, which every chip multiplies'
        raise UsageError(
            f"mxfp8 needs a chip that multiplies the MX formats{asked}",
            code="TRN245",
            chip=self.chip.name,
            limit=having,
            got=self.chip.name,
            remedy=f"choose a target with such a chip, or {way}",
        )

    @property
    def rounds_stochastically(self) -> bool:
        """Whether writes to narrower floats round at random: as told, else as NEURON_RT_STOCHASTIC_ROUNDING_EN says,
        else where everything is bf16.

        Source: about-neuron/arch/neuron-features/rounding-modes.rst:89-92 of aws-neuron/aws-neuron-sdk.
        """
        if self.stochastic_rounding is not None:
            return self.stochastic_rounding
        said = os.environ.get(ROUNDING, "")
        return said == "1" if said else self.precision == EVERYTHING

    @property
    def chip(self) -> chips.Chip:
        """The chip of the target."""
        return self.target.chip

    def require_target(self) -> None:
        """Raise UsageError, with the ways to choose one, when nobody chose the target."""
        if not self.chosen:
            raise _no_target()

    def check_faults(self, ranks: int) -> None:
        """Raise UsageError for faults of links that the network of the target does not have (TRN184), or where there
        is nobody to talk to over them (TRN195), and for failures of ranks that the job does not have (TRN554).
        """
        fault_injection.check(self.rehearsed, ranks, self.instances)
        if self.faults and ranks < 2:
            raise UsageError(
                "a sick network changes nothing for a rank by itself",
                code="TRN195",
                got=", ".join(self.faults),
                limit="at least two ranks",
                remedy="start several: --ranks 4, or torchrun --nproc-per-node 4",
            )
        if self.faults:
            applied(build(Cluster(self.target, self.instances)), self.faults)

    def compile_options(self) -> dict[str, Any]:
        """The settings that change the program; they are part of the cache key."""
        told = self.precision == "fp32" and self.stack.products == "told"
        options = {"precision": "fp32" if told else "bf16"} | self.stack.compile_options()
        if self.optimize == 1:
            return options
        return options | (QUICK if self.optimize == 0 else {"optimize": str(self.optimize)})

    def communication_options(self) -> dict[str, Any]:
        """What a program of several ranks depends on besides; nothing where this process is none of them."""
        if self.communicator is None:
            return {}
        options = {"cluster": Cluster(self.target, self.instances).name, "ranks": self.communicator.size}
        return options | {"overlap": self.overlap, "bucket_mib": self.bucket_mib}


def _sent_names() -> tuple[str, ...]:
    """The fields of a session that are settings."""
    return tuple(each.name for each in fields(Session) if not each.metadata.get("own"))


_active: list[Session] = []


@contextmanager
def activate(session: Session) -> Iterator[Session]:
    """Make `session` the current one within the block."""
    if _active:
        _active[-1].settle()
    _active.append(session)
    try:
        with host_ops.use(session.counters.host):
            yield session
            session.settle()
    finally:
        _active.remove(session)


def current() -> Session:
    """The session of this process. Raises UsageError, with the ways to choose one, when no target was chosen."""
    if not _active:
        _active.append(from_environment(os.environ))
        _active[-1].counters.host = host_ops.current()
    return _active[-1]


def active() -> Session | None:
    """The session that was activated or made, if there is one."""
    return _active[-1] if _active else None


def asked() -> Session | None:
    """The session that was activated, or that the environment asks for; None where nobody has chosen a target."""
    if not _active and said("target", os.environ):
        return current()
    return active()


def precision_now() -> tuple[str, PrecisionRules] | None:
    """What the session computes in; programs of another precision are others."""
    now = asked()
    return None if now is None else (now.precision, now.rules)


@contextmanager
def computing(precision: str | None, rules: PrecisionRules | str | Path | None = None) -> Iterator[None]:
    """Within the block the session computes in another precision, or by other rules; as it is where both are None.

    rules: those of modules, or a file of them. Raises UsageError: TRN121 for an unknown precision, TRN245 for a
    format that the chip does not have, TRN246 for a file that cannot be read.
    """
    if precision is None and rules is None:
        yield
        return
    now = current()
    now.settle()
    saved = now.precision, now.rules
    now.precision = precision or now.precision
    if rules is not None:
        now.rules = rules if isinstance(rules, PrecisionRules) else read(Path(rules))
    try:
        now.__post_init__()
        yield
        now.settle()
    finally:
        now.precision, now.rules = saved


def from_environment(environment: Mapping[str, str]) -> Session:
    """The session that environment variables describe. Raises what `from_settings` raises."""
    return from_settings(Settings.resolved(environment))


def from_settings(settings: Settings) -> Session:
    """The session of a run with these settings.

    Raises UsageError: TRN120 where they name no target, TRN101 for an unknown one, and for each setting that cannot
    be, as on this target, the code of its field.
    """
    from trnlab.runtime.cache.executables import open_cache

    name = settings.target
    if not name:
        raise _no_target()
    rules = read(Path(settings.precision_rules)) if settings.precision_rules else PrecisionRules()
    cluster = parse(name) if _SEVERAL.match(name) else Cluster(chips.target(name), 1)
    target, chip = cluster.target, cluster.target.chip
    rehearsed, faults = fault_injection.split(settings.fault)
    return Session(
        replace(target, chip=chips.apply_settings(chip, settings.set)) if settings.set else target,
        settings.precision,
        rules,
        stochastic_rounding=settings.stochastic_rounding,
        seed=settings.seed,
        check_nan=settings.check_nan,
        band=settings.band,
        cache=open_cache(settings.cache) if settings.cache and not settings.no_cache else None,
        instances=cluster.instances,
        overlap=settings.overlap,
        optimize=settings.optimize,
        bucket_mib=settings.bucket_mib,
        faults=faults,
        rehearsed=rehearsed,
        streams=_streams(settings.streams, chip),
        pairs=_logical(settings.lnc, chip),
        comm_threshold=settings.comm_threshold,
    )


def _streams(told: str, chip: chips.Chip) -> int:
    """Streams of collectives. Raises UsageError (TRN196) for more than a rank has CC cores."""
    most = int(chip.links.cc_cores.value) * CORES_PER_RANK.get(chip.name, 1)
    if not told.isdecimal() or not 1 <= int(told) <= most:
        raise UsageError(
            "TRNLAB_STREAMS is no number of streams that a rank's collectives can have",
            code="TRN196",
            limit=f"1 to {most}: a stream needs a CC core",
            got=told,
            chip=chip.name,
            remedy="set it to such as 2, one for tensor parallel and one for sharded layers, or unset it",
        )
    return int(told)


def _logical(told: str, chip: chips.Chip) -> bool:
    """Whether two NeuronCores are one logical core. Raises UsageError (TRN194) where the chip cannot join them.

    Source: tools/neuron-sys-tools/nccom-test.rst of aws-neuron/aws-neuron-sdk: 1 or 2, on Trainium2 and 3.
    """
    allowed = ("1", "2") if chip.has("logical_cores") else ("1",)
    if told not in allowed:
        raise UsageError(
            f"{chip.name} has no logical cores of so many NeuronCores",
            code="TRN194",
            limit=" or ".join(allowed),
            got=told,
            chip=chip.name,
            remedy=f"--lnc {allowed[-1]}, or {LOGICAL}={allowed[-1]}",
        )
    return told == "2"


def for_kernels(settings: Settings) -> Session:
    """As `from_settings`, but where nobody chose a target the session is for kernels alone, on their default."""
    if settings.target:
        return from_settings(settings)
    session = from_settings(replace(settings, target=KERNEL_CHIP))
    session.chosen = False
    return session


def kernel_chip() -> chips.Chip:
    """The chip that kernels are recorded for now: the target that was chosen for this process, else what
    NEURON_PLATFORM_TARGET_OVERRIDE says at this moment, for scripts set it, else trn2.

    Raises UsageError for a name that is none.
    """
    now = active() or (current() if os.environ.get("TRNLAB_TARGET") else None)
    if now is not None and now.chosen:
        return now.chip
    name = platform(os.environ)
    if name is not None and (now is None or name != now.chip.name):
        return chips.get(name)
    return now.chip if now is not None else chips.get(KERNEL_CHIP)


def _no_target() -> UsageError:
    return UsageError(
        "no target is chosen, and none is guessed",
        code="TRN120",
        limit=", ".join(chips.TARGETS),
        remedy="start the script with `trnlab run --target NAME SCRIPT`, or set TRNLAB_TARGET=NAME",
    )
