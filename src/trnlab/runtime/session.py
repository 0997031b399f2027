# SPDX-License-Identifier: Apache-2.0
"""What a training script runs under: target, precision, options, cache, counters. There is no default target.

    with session.activate(Session(chips.target("trn1.2xlarge"))):
        ...                                  # everything that asks `session.current()` gets it

`trnlab run` activates one for the script. Without it the environment decides (TRNLAB_TARGET, TRNLAB_PRECISION,
TRNLAB_CACHE), and where that is silent too, the error says how to choose.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trnlab import chips, host_ops
from trnlab.buckets import Seen
from trnlab.errors import UsageError
from trnlab.graph.ir import Graph
from trnlab.host_ops import HostOps
from trnlab.precision import EVERYTHING, MODES, Rules, read
from trnlab.runtime.cache import Cache
from trnlab.runtime.fingerprint import Fingerprint

if TYPE_CHECKING:  # made with a session; importing them takes a while
    from trnlab.runtime.executable import Executable
    from trnlab.sim.functional import Machine

PLATFORM = "NEURON_PLATFORM_TARGET_OVERRIDE"
GENERATIONS = {"gen2": "trn1", "gen3": "trn2", "gen4": "trn3"}
KERNEL_CHIP = "trn2"
ROUNDING = "NEURON_RT_STOCHASTIC_ROUNDING_EN"
EVERYTHING_BF16 = ("XLA_USE_BF16", "XLA_DOWNCAST_BF16")


@dataclass
class Counters:
    """What happened so far. `host`: operators that ran on the host. `shapes`: what compiled code was called on."""

    steps: int = 0
    instructions: int = 0
    host: HostOps = field(default_factory=HostOps)
    shapes: Seen = field(default_factory=Seen)


@dataclass(frozen=True)
class Compiled:
    """What was compiled last under some graph's name."""

    fingerprint: Fingerprint
    graph: Graph


class Recorder(Protocol):
    """What keeps a record of the session's run, see `runtime.run.Run`."""

    script: Any
    executables: dict[str, Executable]

    def executed(self, executable: Executable) -> None:
        """`executable` ran once."""
        ...

    def updated(self) -> None:
        """An optimizer made a step, outside of compiled programs."""
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

    def __post_init__(self) -> None:
        if self.precision not in MODES:
            raise UsageError(
                f"unknown precision {self.precision!r}", code="TRN121", limit=", ".join(MODES),
                remedy="choose one of these",
            )  # fmt: skip
        self.check_formats()

    def check_formats(self) -> None:
        """Raise UsageError (TRN245) when the precision or a rule asks for a format that the chip cannot multiply."""
        if self.rules.needs("mxfp8", self.precision) and not self.chip.has("mx_formats"):
            having = ", ".join(name for name in chips.NAMES if chips.get(name).has("mx_formats"))
            raise UsageError(
                "mxfp8 needs a chip that multiplies the MX formats", code="TRN245", chip=self.chip.name, limit=having,
                got=self.chip.name, remedy="choose a target with such a chip, or --precision fp8 on any chip",
            )  # fmt: skip

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

    def compile_options(self) -> dict[str, Any]:
        """The settings that change the program; they are part of the cache key."""
        return {"precision": "fp32" if self.precision == "fp32" else "bf16"}


_active: list[Session] = []


@contextmanager
def activate(session: Session) -> Iterator[Session]:
    """Make `session` the current one within the block."""
    _active.append(session)
    try:
        with host_ops.use(session.counters.host):
            yield session
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


def from_environment(environment: Mapping[str, str]) -> Session:
    """The session that environment variables describe: TRNLAB_TARGET, else the variable that NKI's tools read.

    Raises UsageError when they name no known target.
    """
    name = environment.get("TRNLAB_TARGET") or platform(environment)
    if not name:
        raise _no_target()
    told = environment.get("TRNLAB_PRECISION") or _vendors_mode(environment)
    file = environment.get("TRNLAB_PRECISION_RULES")
    rules = read(Path(file)) if file else Rules()
    return Session(chips.target(name), told, rules, cache=Cache(cache_folder(environment)))


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


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where compiled programs are kept unless a command says otherwise: TRNLAB_CACHE, or the user's cache folder."""
    if chosen := environment.get("TRNLAB_CACHE"):
        return Path(chosen)
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trnlab"
