# SPDX-License-Identifier: Apache-2.0
"""What the hardware's compiler makes of a kernel: one list of options, each with a name, a value and a meaning.

    trnlab passes                                            # prints the list
    trnlab run --schedule scheduled,reuse=off,window=64 script.py
    TRNLAB_SCHEDULE=as-written python script.py
    with policy.use("scheduled", reuse=False): ...           # nki.schedule(...) is the same

A field of `Policy` is an option; there is no other list. There are three stages: RECORDING, what `program.passes`
change in a kernel before its tiles get addresses; ROOM, what is done in addition where the tiles do not fit; TIME,
what `sim.timing` decides of the finished routine. No option of any stage changes a value that a kernel computes.

The innermost `use` block decides, then what `configure` was given, then the environment, then the default.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache
from typing import Any

from trnlab.errors import UsageError

VARIABLE = "TRNLAB_SCHEDULE"
RECORDING, ROOM, TIME = STAGES = ("recording", "room", "time")
UNLIMITED = 1 << 30  # of a number: "none"
PHASES = {"0": 0.0, "1/4": 0.25, "1/2": 0.5, "3/4": 0.75}  # of a window
Value = bool | int | str
_ONOFF = {"on": True, "off": False}


@dataclass(frozen=True)
class Option:
    """One choice of the compiler."""

    name: str
    stage: str
    about: str  # what it does, in a line
    default: Value  # its value in the policy `scheduled`
    # other defaults, by chip ("trn1"), dialect ("nki", "neuronxcc") or both ("trn1/neuronxcc", which wins)
    differs: Mapping[str, Value] = field(default_factory=dict)
    least: int = 0  # of a number
    choices: tuple[str, ...] = ()  # of a word
    # values that the evidence does not exclude either; together they give the band of a prediction
    alternatives: tuple[Value, ...] = ()
    evidence: str = ""  # what the default rests on

    @property
    def as_written(self) -> Value:
        """Its value in the policy `as written`: off; but what makes room stays, lest legal kernels are refused."""
        return False if isinstance(self.default, bool) and self.stage != ROOM else self.default

    def value_for(self, chip: str, dialect: str) -> Value:
        """The default for kernels of a dialect on a chip."""
        for place in (f"{chip}/{dialect}", dialect, chip):
            if place in self.differs:
                return self.differs[place]
        return self.default

    @property
    def values(self) -> str:
        """What it may be, for people."""
        if isinstance(self.default, bool):
            return "on, off"
        return ", ".join(self.choices) if self.choices else f"a number from {self.least}, or none"

    def read(self, text: str) -> Value:
        """The value that a text says. Raises ValueError for one that it cannot be."""
        if isinstance(self.default, bool):
            if text not in _ONOFF:
                raise ValueError(text)
            return _ONOFF[text]
        if self.choices:
            if text not in self.choices:
                raise ValueError(text)
            return text
        number = UNLIMITED if text == "none" else int(text)
        if number < self.least:
            raise ValueError(text)
        return number


# "It keeps the execution order and memory allocation that developers specify", says nki/get-started/about/index.rst
# (line 20, aws-neuron-sdk) of the compiler of the new dialect: what the middle end of the old one does is off there.
_AS_SPECIFIED: Mapping[str, Value] = {"nki": False}


def shown(value: Value) -> str:
    """A value as it is written in a text."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value == UNLIMITED else str(value)


def _option(stage: str, about: str, default: Value, **more: Any) -> Any:
    """A field of `Policy`."""
    return field(default=default, metadata={"stage": stage, "about": about, "default": default, **more})


@dataclass(frozen=True, slots=True)
class Policy:
    """What a compiler does with a kernel that leaves it the choice. name: as `parse` reads it.

    None of the options touches compiled programs, no_reorder blocks, engines that the kernel names, or addresses that
    it gives.
    """

    name: str

    versions: bool = _option(RECORDING, "a tile that is overwritten as a whole is a new tile from there on", True)
    accumulate: bool = _option(
        RECORDING, "products that are only added to a sum in PSUM are accumulated there", True, differs=_AS_SPECIFIED
    )
    loads: bool = _option(
        RECORDING,
        "what is loaded from HBM again stays in SBUF, of tensors for which there is room",
        True,
        differs=_AS_SPECIFIED,
        evidence="bf16 kernels that load in their inner loop take little more than the time of the PE array, the "
        "vendor's fp32 matmul, whose operands are larger than SBUF, the time of all of its loads",
    )
    loads_window: int = _option(
        RECORDING,
        "bytes of a partition that are loaded before a block of other tensors is loaded again",
        32768,
        alternatives=(4096, 131072),
        evidence="between 3 KiB (fp16 convolutions take the time of the PE array) and 160 KiB (the vendor's matmul)",
    )
    loads_share: int = _option(
        RECORDING,
        "percent of SBUF that what stays may fill, with what is in use beside it",
        87,
        alternatives=(75, 100),
        evidence="no calibration row decides it; what is left is for tiles of several iterations",
    )
    rearranged: bool = _option(
        RECORDING,
        "what was only loaded, transposed and copied is not rearranged a second time",
        True,
        differs=_AS_SPECIFIED,
        evidence="profiles of two public kernels that transpose an operand in every iteration of a loop count the "
        "transposes of one iteration (K0040, K0048)",
    )
    reuse: bool = _option(
        RECORDING,
        "what was computed from the same operands before is not computed again",
        True,
        differs=_AS_SPECIFIED,
    )
    reuse_out_of: str = _option(
        RECORDING,
        "loops that results are moved out of: those around them that do not change them, or all",
        "inner",
        choices=("inner", "all"),
        alternatives=("all",),
        evidence="the vendor's first Mamba kernel, 256 channels, takes the time of all products of delta and u",
    )
    merge: bool = _option(
        RECORDING,
        "iterations that do the same side by side are one instruction",
        True,
        differs=_AS_SPECIFIED,
        evidence="profiles of 512 keys: PSUM copies, small reductions, reciprocals; the public convolution whose "
        "affine_range(64) around instructions of three elements takes a tenth of what affine_range(2048) does",
    )
    merge_columns: int = _option(
        RECORDING,
        "how many columns an instruction has at most that was merged",
        512,
        least=1,
        evidence="profiles: four transposes are one copy of 512 columns, and no instruction has more",
    )
    forward: bool = _option(
        RECORDING,
        "readers of a copy of PSUM read PSUM",
        True,
        differs=_AS_SPECIFIED,
        evidence="profiles of 512 keys: reductions and exp read the scores in PSUM, which the kernels copy to SBUF",
    )
    forward_banks: int = _option(
        RECORDING,
        "in how many banks of PSUM tiles wait for such readers",
        4,
        least=1,
        evidence="profiles of 512 keys: four banks of scores",
    )
    dead: bool = _option(
        RECORDING, "what is overwritten before anybody reads it is not computed", True, differs=_AS_SPECIFIED
    )
    coalesce: bool = _option(
        RECORDING,
        "loads and stores of iterations at equal distances in HBM are one transfer",
        True,
        differs=_AS_SPECIFIED,
        alternatives=(False,),
        evidence="the profiles show 2, 4 and 8 tiles in one transfer; a matmul in bf16 takes half the time that one "
        "engine needs to trigger all of its loads (K0313 to K0315)",
    )
    coalesce_bytes: int = _option(
        RECORDING,
        "bytes of a partition that a transfer of several has at most",
        4096,
        least=1,
        evidence="two tiles of 2 KiB are merged in the profiles, of 4 KiB none",
    )

    demand: bool = _option(
        ROOM,
        "what makes a tile moves to where it is first used, where PSUM is full and no tile has to go to HBM then",
        True,
    )
    spill: bool = _option(
        ROOM,
        "tiles leave the memory between two uses: PSUM to SBUF, SBUF to HBM and back, in the order of the kernel",
        True,
        evidence="a public product with softmax, whose profile counts 754 MB that left SBUF (K0048)",
    )

    triggers: str = _option(
        TIME,
        "who triggers transfers: GpSimdE those of arguments and results, SyncE and ScalarE those of other "
        "memory in HBM (by-role); or SyncE all, on eight queues in turn (sync)",
        "by-role",
        choices=("by-role", "sync"),
        alternatives=("sync",),
        evidence="all 126 transfers of the eight profiles on trn2; on trn1, vectors added element by element take "
        "the time of one queue for all tensors",
    )
    reorder: bool = _option(TIME, "engines take what is ready first", True)
    balance: bool = _option(TIME, "instructions that leave their engine open go where they are done first", True)
    rotate: bool = _option(TIME, "tiles of PSUM take the bank that has been free for longest", True)
    by_use: bool = _option(
        TIME,
        "loads are issued in the order in which they are first used",
        True,
        evidence="profiles of 512 keys: v, which is transposed first, is loaded before q and k, which come first",
    )
    window: int = _option(
        TIME, "how many instructions ahead of the first still to come a compute engine may go", UNLIMITED, least=1
    )
    half_rate: str = _option(
        TIME,
        "the PE array is at half rate until it has worked through a window of its clock; the first begins this "
        "part of a window after the start. Or always at full rate (off)",
        "off",
        differs={"trn2": "0"},
        choices=("off", *PHASES),
        alternatives=tuple(PHASES)[1:],
        evidence="profiles of 512 keys: windows are free running, and every run starts at half rate; on trn2 alone",
    )

    def __str__(self) -> str:
        return self.name

    def with_options(self, **changed: Value) -> Policy:
        """The policy with other values of some options. Raises UsageError for what does not exist."""
        if not changed:
            return self
        values: Any = {}
        parts = dict(part.split("=") for part in self.name.split(",")[1:])
        for name, value in changed.items():
            text = parts[name] = shown(value)
            values[name] = _value(name, text, f"{name}={text}")
        return replace(self, **values, name=",".join([base_of(self), *(f"{n}={v}" for n, v in parts.items())]))

    @property
    def recording(self) -> tuple[Value, ...]:
        """The values on which a recording depends."""
        return tuple(getattr(self, o.name) for o in options() if o.stage != TIME)

    def values(self) -> dict[str, Value]:
        """All options with their values, in order."""
        return {o.name: getattr(self, o.name) for o in options()}


def base_of(policy: Policy) -> str:
    """The named policy that this one differs from by options."""
    return policy.name.partition(",")[0]


@cache
def options() -> tuple[Option, ...]:
    """All options in the order in which they take effect."""
    return tuple(Option(name=f.name, **f.metadata) for f in fields(Policy) if f.metadata)


AS_WRITTEN = Policy("as written", **{o.name: o.as_written for o in options()})  # type: ignore[arg-type]
SCHEDULED = Policy("scheduled")
POLICIES = {policy.name: policy for policy in (AS_WRITTEN, SCHEDULED)}


def alternatives(policy: Policy) -> dict[tuple[str, str], Policy]:
    """Policies that the evidence does not exclude either, each by the option and the value in which it differs."""
    return {
        (o.name, shown(value)): policy.with_options(**{o.name: value})
        for o in options()
        for value in o.alternatives
        if getattr(policy, o.name) not in (value, "off")
    }


@lru_cache(maxsize=256)
def parse(text: str, chip: str = "", dialect: str = "") -> Policy:
    """The policy that a text names, with options that differ: "scheduled,rotate=off,window=64", "reuse=off".

    chip, dialect: of the kernel, on which some defaults depend. Raises UsageError (TRN106) for a name or an option
    that does not exist.
    """
    first, *others = (part.strip() for part in text.split(","))
    if "=" in first:
        first, others = "scheduled", [first, *others]
    base = POLICIES.get(first.replace("-", " "))
    if base is None:
        raise _refused(text, " or ".join(POLICIES) + f", then options: {_names()}")
    if base is SCHEDULED:
        differing: Any = {o.name: o.value_for(chip, dialect) for o in options() if o.differs}
        base = replace(base, **differing)
    given = {}
    for part in others:
        name, _, value = (side.strip() for side in part.partition("="))
        given[name.replace("-", "_")] = _value(name.replace("-", "_"), value, text)
    return base.with_options(**given)


def _value(name: str, value: str, got: str) -> Value:
    """The value of an option as a text says it. Raises UsageError for an option or a value that does not exist."""
    known = next((o for o in options() if o.name == name), None)
    if known is None:
        raise _refused(got, _names())
    try:
        return known.read(value)
    except ValueError:
        raise _refused(got, f"{known.name} = {known.values}") from None


def _names() -> str:
    return ", ".join(f"{o.name} = {o.values}" for o in options())


def _refused(got: str, limit: str) -> UsageError:
    return UsageError(
        f"no such schedule of kernels: {got!r}",
        code="TRN106",
        got=got,
        limit=limit,
        remedy="write it as in --schedule scheduled,window=64; `trnlab passes` lists the options",
    )


_Step = tuple[str | Policy | None, tuple[tuple[str, Value], ...]]
_configured: list[str | Policy] = []
_scoped: ContextVar[tuple[_Step, ...]] = ContextVar("trnlab_schedule", default=())


def configure(choice: str | Policy) -> None:
    """Let kernels of this process be taken so, where nothing else is asked for. Raises what `parse` raises."""
    _read(choice, "", "")
    _configured[:] = [choice]


def configured() -> str | Policy | None:
    """What `configure` was told last."""
    return _configured[0] if _configured else None


@contextmanager
def use(choice: str | Policy | None = None, **changed: Value) -> Iterator[None]:
    """Within the block kernels are recorded and timed so: a policy or its text, with options that differ.

    Without a choice the options differ from what holds outside of the block. Raises what `parse` raises.
    """
    _read(choice or SCHEDULED, "", "").with_options(**changed)
    token = _scoped.set((*_scoped.get(), (choice, tuple(changed.items()))))
    try:
        yield
    finally:
        _scoped.reset(token)


def chosen(chip: str = "", dialect: str = "") -> Policy:
    """The policy for kernels of a dialect ("nki", "neuronxcc") on a chip, here and now."""
    made = _read(_configured[0] if _configured else os.environ.get(VARIABLE) or "scheduled", chip, dialect)
    for choice, changed in _scoped.get():
        made = made if choice is None else _read(choice, chip, dialect)
        made = made.with_options(**dict(changed))
    return made


def _read(choice: str | Policy, chip: str, dialect: str) -> Policy:
    return choice if isinstance(choice, Policy) else parse(choice, chip, dialect)
