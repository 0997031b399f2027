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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trnlab import chips, host_ops
from trnlab.buckets import Seen
from trnlab.collectives import Communicator
from trnlab.errors import UsageError
from trnlab.fabric.cluster import CORES_PER_RANK, Cluster, parse
from trnlab.fabric.faults import applied
from trnlab.fabric.network import build
from trnlab.host_ops import HostOps
from trnlab.precision import EVERYTHING, MODES, Rules, read
from trnlab.runtime import rehearsal
from trnlab.storage import is_url
from trnlab.storage.opening import expanded

if TYPE_CHECKING:  # made with a session; importing them takes a while
    from trnlab.fabric.world import World
    from trnlab.graph.ir import Graph
    from trnlab.runtime.cache.executables import Cache
    from trnlab.runtime.cache.fingerprint import Fingerprint
    from trnlab.runtime.communication import Outside
    from trnlab.runtime.executable import Executable
    from trnlab.sim.functional import Machine

PLATFORM = "NEURON_PLATFORM_TARGET_OVERRIDE"
GENERATIONS = {"gen2": "trn1", "gen3": "trn2", "gen4": "trn3"}
KERNEL_CHIP = "trn2"
_SEVERAL = re.compile(r"\d+x[a-z]")  # instances of a target: 2xtrn1.32xlarge
ROUNDING = "NEURON_RT_STOCHASTIC_ROUNDING_EN"
LOGICAL = "NEURON_LOGICAL_NC_CONFIG"
EVERYTHING_BF16 = ("XLA_USE_BF16", "XLA_DOWNCAST_BF16")
# The fields of a session that are told, and not counted, kept or made.
TOLD = (
    "target",
    "precision",
    "rules",
    "stochastic_rounding",
    "seed",
    "check_nan",
    "band",
    "chosen",
    "instances",
    "overlap",
    "bucket_mib",
    "faults",
    "rehearsed",
    "streams",
    "pairs",
    "comm_threshold",
)


class Network(Protocol):
    """What knows what this rank sent over the network, see `runtime.traffic.Fabric`."""

    world: World
    rank: int

    def take(self) -> list[Outside]:
        """What was done together, outside of programs, since this was last asked."""
        ...

    def record(self) -> dict[str, Any]:
        """For the summary."""
        ...


@dataclass
class Counters:
    """What happened so far. `host`: operators that ran on the host. `shapes`: what compiled code was called on.
    products: by graph, how many are in which format of the precision, and which were left as they are, and why."""

    steps: int = 0
    resumed: int = 0  # steps that were done before this process began
    instructions: int = 0
    host: HostOps = field(default_factory=HostOps)
    shapes: Seen = field(default_factory=Seen)
    products: dict[str, dict[str, Any]] = field(default_factory=dict)
    fabric: Network | None = None  # where this process is one rank of several


@dataclass(frozen=True)
class Compiled:
    """What was compiled last under some graph's name."""

    fingerprint: Fingerprint
    graph: Graph


class Recorder(Protocol):
    """What keeps a record of the session's run, see `runtime.run.Run`."""

    script: Any
    executables: dict[str, Executable]

    def begins(self) -> None:
        """An executable is about to run."""
        ...

    def executed(self, executable: Executable) -> None:
        """`executable` ran once."""
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
    """The settings of one run and what it counted.

    chosen: whether somebody chose the target. Kernels have a default of their own (`for_kernels`), models have none.
    precision: one of `MODES`: "bf16" (matmul operands rounded to bfloat16, sums in float32), "fp32",
    "bf16-all" (all that is stored, too), "fp8" or "mxfp8" (operands of matrix products). rules: for single modules.
    stochastic_rounding: None for what the mode and NEURON_RT_STOCHASTIC_ROUNDING_EN say.
    seed: of stochastic rounding and of the device's random streams. check_nan: stop at the first NaN or infinity.
    emit: called with each graph that is compiled or found in the cache, and its key.
    instances: how many of the target the ranks of a job lie on. communicator: the connection with the other ranks,
    where this process is one. overlap, bucket_mib: see `compiler.communication` and `compiler.collectives`.
    faults: of the network between the ranks, see `fabric.faults`. streams: how many of a rank's collectives are on
    their way at once, see `sim.timing.streams`. pairs: whether two cores share what a rank does, as on a logical core
    (`sim.timing.pair`; NEURON_LOGICAL_NC_CONFIG). All three decide times alone. rehearsed: failures of ranks, see
    `rehearsal`.
    known: by graph with collectives, what was made for it, see `compiler.compile`.
    comm_threshold: share of a step from which the exchange of gradients is worth a warning.
    band: time the kernels that a script calls under the alternatives of the policy, too.
    """

    target: chips.Target
    precision: str = "bf16"
    rules: Rules = field(default_factory=Rules)
    stochastic_rounding: bool | None = None
    seed: int = 0
    check_nan: bool = False
    band: bool = False
    cache: Cache | None = None
    run: Recorder | None = None
    emit: Callable[[Graph, str], None] | None = None
    counters: Counters = field(default_factory=Counters)
    executables: dict[str, Executable] = field(default_factory=dict)  # by key: compiled or read in this process
    compiled: dict[str, Compiled] = field(default_factory=dict)  # the latest of each graph name
    core: Machine | None = None  # made when something first runs
    chosen: bool = True
    instances: int = 1
    communicator: Communicator | None = None
    overlap: str = "prefetch"
    bucket_mib: int = 50
    faults: tuple[str, ...] = ()
    rehearsed: tuple[rehearsal.Fault, ...] = ()
    streams: int = 1
    pairs: bool = False
    comm_threshold: float = 0.25
    known: dict[Any, dict[Any, Any]] = field(default_factory=dict)
    unfinished: list[Callable[[], None]] = field(default_factory=list)  # what a front end has to do before the end

    def __post_init__(self) -> None:
        if self.precision not in MODES:
            raise UsageError(
                f"unknown precision {self.precision!r}",
                code="TRN121",
                limit=", ".join(MODES),
                remedy="choose one of these",
            )
        self.check_formats()

    def told(self) -> dict[str, Any]:
        """Its settings and the place of its cache, to be sent to another process of the same job (`do_as`)."""
        return {name: getattr(self, name) for name in TOLD} | {"cache": self.cache and self.cache.place}

    def do_as(self, told: Mapping[str, Any]) -> None:
        """Take over the settings of another process's session, before anything ran in this one."""
        from trnlab.runtime.cache.executables import open_cache

        for name in TOLD:
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
        rehearsal.check(self.rehearsed, ranks, self.instances)
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
        return {"precision": "fp32" if self.precision == "fp32" else "bf16"}

    def communication_options(self) -> dict[str, Any]:
        """What a program of several ranks depends on besides; nothing where this process is none of them."""
        if self.communicator is None:
            return {}
        options = {"cluster": Cluster(self.target, self.instances).name, "ranks": self.communicator.size}
        return options | {"overlap": self.overlap, "bucket_mib": self.bucket_mib}


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
    if not _active and (os.environ.get("TRNLAB_TARGET") or platform(os.environ)):
        return current()
    return active()


def precision_now() -> tuple[str, Rules] | None:
    """What the session computes in; programs of another precision are others."""
    now = asked()
    return None if now is None else (now.precision, now.rules)


@contextmanager
def computing(precision: str | None, rules: Rules | str | Path | None = None) -> Iterator[None]:
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
        now.rules = rules if isinstance(rules, Rules) else read(Path(rules))
    try:
        now.__post_init__()
        yield
        now.settle()
    finally:
        now.precision, now.rules = saved


def from_environment(environment: Mapping[str, str]) -> Session:
    """The session that environment variables describe: TRNLAB_TARGET, else the variable that NKI's tools read.

    Raises UsageError when they name no known target.
    """
    from trnlab.runtime.cache.executables import open_cache

    name = environment.get("TRNLAB_TARGET") or platform(environment)
    if not name:
        raise _no_target()
    told = environment.get("TRNLAB_PRECISION") or _vendors_mode(environment)
    file = environment.get("TRNLAB_PRECISION_RULES")
    rules = read(Path(file)) if file else Rules()
    cluster = parse(name) if _SEVERAL.match(name) else Cluster(chips.target(name), 1)
    cache = open_cache(cache_place(environment))
    made = Session(cluster.target, told, rules, cache=cache, instances=cluster.instances)
    made.overlap = environment.get("TRNLAB_OVERLAP", made.overlap)
    made.bucket_mib = _bucket(environment.get("TRNLAB_BUCKET_MIB", str(made.bucket_mib)))
    made.streams = _streams(environment.get("TRNLAB_STREAMS", "1"), made.chip)
    made.pairs = _logical(environment.get(LOGICAL, "1"), made.chip)
    told_faults = tuple(filter(None, environment.get("TRNLAB_FAULT", "").split(",")))
    made.rehearsed, made.faults = rehearsal.split(told_faults)
    made.comm_threshold = _share(environment.get("TRNLAB_COMM_THRESHOLD", str(made.comm_threshold)))
    return made


def _share(told: str) -> float:
    """A share of a step. Raises UsageError (TRN192) for what is none."""
    try:
        share = float(told)
    except ValueError:
        share = -1.0
    if not share >= 0:
        raise UsageError(
            "TRNLAB_COMM_THRESHOLD is no share of a step",
            code="TRN192",
            limit="a number from 0 on",
            got=told,
            remedy="set it to such as 0.25, or unset it",
        )
    return share


def _bucket(told: str) -> int:
    """Bytes of a bucket of reductions, in MiB. Raises UsageError (TRN268) for what is no number."""
    if not told.isdecimal():
        raise UsageError(
            "TRNLAB_BUCKET_MIB is no size of buckets",
            code="TRN268",
            limit="whole MiB, 0 for no buckets",
            got=told,
            remedy="set it to such as 50, or unset it",
        )
    return int(told)


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


def _vendors_mode(environment: Mapping[str, str]) -> str:
    """The mode that PyTorch's XLA front end is told by variables of its own.

    Source: archive/appnotes/torch-neuronx/migration-from-xla-downcast-bf16.rst of aws-neuron/aws-neuron-sdk.
    """
    return EVERYTHING if any(environment.get(name) == "1" for name in EVERYTHING_BF16) else "bf16"


def for_kernels(environment: Mapping[str, str]) -> Session:
    """As `from_environment`, but where nobody chose a target the session is for kernels alone, on their default."""
    if environment.get("TRNLAB_TARGET") or platform(environment):
        return from_environment(environment)
    session = from_environment({**environment, "TRNLAB_TARGET": KERNEL_CHIP})
    session.chosen = False
    return session


def platform(environment: Mapping[str, str]) -> str | None:
    """The chip that NEURON_PLATFORM_TARGET_OVERRIDE names: trn1, inf2, trn2, trn3, or gen2 to gen4.

    Source: nki.jit of aws-neuron/aws-neuron-sdk.
    """
    name = environment.get(PLATFORM)
    return GENERATIONS.get(name, name) if name else None


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


def cache_place(environment: Mapping[str, str]) -> str:
    """Where compiled programs are kept unless a command says otherwise: TRNLAB_CACHE, which is a folder, a URL, or
    several with commas (see `runtime.cache.open_cache`); else the user's cache folder."""
    return environment.get("TRNLAB_CACHE") or str(_users_folder(environment))


def cache_folder(environment: Mapping[str, str]) -> Path:
    """The folder of this machine for what is kept beside programs: that of TRNLAB_CACHE where one is named, or the
    user's cache folder."""
    places = environment.get("TRNLAB_CACHE", "").split(",")
    return next((expanded(p) for p in places if p and not is_url(p)), _users_folder(environment))


def _users_folder(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trnlab"
