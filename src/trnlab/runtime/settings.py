# SPDX-License-Identifier: Apache-2.0
"""The settings of a run: one record, whose fields say how environment and command line tell each, and what it is.

    Settings.resolved(os.environ)          # what the environment says
    Settings.resolved(os.environ, args)    # what the command line says, and where it is silent the environment

`session.from_settings` makes a session of it. The options of the commands (`cli.options.setting`) and the
tables of docs/settings.md are derived from the same fields.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from trnlab import checks, policy
from trnlab.errors import UsageError
from trnlab.precision import EVERYTHING, MODES
from trnlab.storage import is_url
from trnlab.storage.opening import expanded

PLATFORM = "NEURON_PLATFORM_TARGET_OVERRIDE"
GENERATIONS = {"gen2": "trn1", "gen3": "trn2", "gen4": "trn3"}
ROUNDING = "NEURON_RT_STOCHASTIC_ROUNDING_EN"
LOGICAL = "NEURON_LOGICAL_NC_CONFIG"
EVERYTHING_BF16 = ("XLA_USE_BF16", "XLA_DOWNCAST_BF16")
CHECKPOINT, EVERY, KEEP = "TRNLAB_CHECKPOINT", "TRNLAB_CHECKPOINT_EVERY", "TRNLAB_CHECKPOINT_KEEP"


def platform(environment: Mapping[str, str]) -> str | None:
    """The chip that NEURON_PLATFORM_TARGET_OVERRIDE names: trn1, inf2, trn2, trn3, or gen2 to gen4.

    Source: nki.jit of aws-neuron/aws-neuron-sdk.
    """
    name = environment.get(PLATFORM)
    return GENERATIONS.get(name, name) if name else None


def _vendors_precision(environment: Mapping[str, str]) -> str | None:
    """The precision that PyTorch's XLA front end is told by variables of its own.

    Source: archive/appnotes/torch-neuronx/migration-from-xla-downcast-bf16.rst of aws-neuron/aws-neuron-sdk.
    """
    return EVERYTHING if any(environment.get(name) == "1" for name in EVERYTHING_BF16) else None


def users_folder(environment: Mapping[str, str]) -> str:
    """The user's folder for what trnlab keeps: XDG_CACHE_HOME/trnlab, else ~/.cache/trnlab."""
    return str(Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trnlab")


def _nothing(environment: Mapping[str, str]) -> str | None:
    return None


def _words(text: str) -> tuple[str, ...]:
    """The words between commas."""
    return tuple(filter(None, text.split(",")))


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


def _level(told: str) -> int:
    """How long compiling may take. Raises UsageError (TRN269) for what is no level."""
    if told not in ("0", "1", "2", "3"):
        raise UsageError(
            "TRNLAB_OPTIMIZE is no level of optimization",
            code="TRN269",
            limit="0 to 3",
            got=told,
            remedy="set it to 1, which is the default, or unset it",
        )
    return int(told)


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


@dataclass(frozen=True)
class Setting:
    """How one setting is told."""

    about: str  # what it says, for help and documentation
    default: Any = ""  # where nobody says anything
    variable: str = ""  # of the environment
    option: str = ""  # of the command line; `argument` has the rest of what `argparse` is told
    read: Callable[[str], Any] = str  # from text to the value; raises UsageError
    code: str = ""  # of the error for a value that cannot be
    usual: str = ""  # what is done where nobody says anything, in words, where the default does not say it
    otherwise: Callable[[Mapping[str, str]], str | None] = _nothing  # what other variables, such as the vendor's, say
    late: bool = False  # the variable is read where the setting is needed, since scripts set it while they run
    argument: Mapping[str, Any] = field(default_factory=dict)

    @property
    def default_words(self) -> str:
        """What holds where neither the command line nor the environment says anything; "" for nothing."""
        if self.usual or self.default in ("", None, ()) or isinstance(self.default, bool):
            return self.usual
        return str(self.default)

    @property
    def help(self) -> str:
        """The text of `--help`: what it says, and its default."""
        variable = f"${self.variable}" if self.variable else ""
        default = " or ".join(filter(None, (variable, self.default_words)))
        return self.about + (f"; default: {default}" if default else "")

    def said(self, environment: Mapping[str, str], given: Any = None) -> Any:
        """Its value. given: what the command line says, None or nothing where it says nothing."""
        if given is True or (given is False and self.default is None):  # --NAME, --no-NAME
            return given
        if given is not None and given is not False and given != "" and given != []:
            return self.read(_text(given))
        told = (environment.get(self.variable) if not self.late else None) or self.otherwise(environment)
        return self.read(told) if told else self.default


def _text(given: Any) -> str:
    return ",".join(given) if isinstance(given, list | tuple) else str(given)


def _setting(about: str, default: Any = "", **more: Any) -> Any:
    """A field of `Settings`; what is not a property of a `Setting` is for `argparse`."""
    own = {name: more.pop(name) for name in tuple(more) if name in Setting.__dataclass_fields__}
    return field(default=default, metadata={"setting": Setting(about, default, **own, argument=more)})


@dataclass(frozen=True)
class Settings:
    """What a run is told. A field's name is that of the option, without dashes.

    lnc and streams are text: which values can be depends on the chip, and is checked when a session is made.
    """

    target: str = _setting(
        "what to simulate, e.g. trn1.2xlarge or trn2",
        variable="TRNLAB_TARGET",
        option="--target",
        code="TRN120",
        otherwise=platform,
        metavar="NAME",
    )
    precision: str = _setting(
        "format of matmul operands, or of all that is stored (bf16-all)",
        "bf16",
        variable="TRNLAB_PRECISION",
        option="--precision",
        code="TRN121",
        otherwise=_vendors_precision,
        choices=tuple(MODES),
    )
    precision_rules: str = _setting(
        "file with formats of single modules, TOML",
        variable="TRNLAB_PRECISION_RULES",
        option="--precision-rules",
        code="TRN246",
        metavar="FILE",
    )
    cache: str = _setting(
        "where compiled programs are kept: a folder, a URL, or several with commas",
        variable="TRNLAB_CACHE",
        option="--cache",
        usual="~/.cache/trnlab",
        otherwise=users_folder,
        metavar="DIR_OR_URL",
    )
    no_cache: bool = _setting("compile everything, keep nothing", False, option="--no-cache", action="store_true")
    fault: tuple[str, ...] = _setting(
        "a sick link between ranks, such as efa:node1.rail3=half, or failure, such as rank2:step37=kill (run); "
        "several times for several",
        (),
        variable="TRNLAB_FAULT",
        option="--fault",
        read=_words,
        code="TRN184",
        action="append",
        metavar="LINK=STATE",
    )
    lnc: str = _setting(
        "how many NeuronCores are a logical one",
        "1",
        variable=LOGICAL,
        option="--lnc",
        code="TRN194",
        choices=("1", "2"),
    )
    comm_threshold: float = _setting(
        "share of a step from which the exchange of gradients is warned of",
        0.25,
        variable="TRNLAB_COMM_THRESHOLD",
        option="--comm-threshold",
        read=_share,
        code="TRN192",
        type=float,
        metavar="SHARE",
    )
    overlap: str = _setting(
        "how collectives overlap with compute: prefetch, data, none or shift:K (docs/distributed.md)",
        "prefetch",
        variable="TRNLAB_OVERLAP",
        code="TRN263",
    )
    bucket_mib: int = _setting(
        "reductions are put together up to so many MiB; 0: each by itself",
        50,
        variable="TRNLAB_BUCKET_MIB",
        read=_bucket,
        code="TRN268",
    )
    optimize: int = _setting(
        "how long compiling may take: 0 places nothing between calls, 1 is by rules, 2 times what competes, 3 "
        "goes on until nothing gains",
        1,
        variable="TRNLAB_OPTIMIZE",
        read=_level,
        code="TRN269",
        option="--optimize",
        type=int,
        choices=(0, 1, 2, 3),
    )
    streams: str = _setting(
        "how many collectives of a rank are on their way at once",
        "1",
        variable="TRNLAB_STREAMS",
        code="TRN196",
    )
    stochastic_rounding: bool | None = _setting(
        "round to narrower floats stochastically, reproducibly",
        None,
        variable=ROUNDING,
        option="--stochastic-rounding",
        action=argparse.BooleanOptionalAction,
        usual="with bf16-all only",
        late=True,
    )
    seed: int = _setting(
        "seed of stochastic rounding and the device's random numbers", 0, option="--seed", read=int, type=int
    )
    check: tuple[str, ...] = _setting(
        "a check as error, warn or off, e.g. race=warn",
        (),
        variable="TRNLAB_CHECKS",
        option="--check",
        read=_words,
        code="TRN127",
        late=True,
        action="append",
        metavar="NAME=LEVEL",
    )
    check_nan: bool = _setting(
        "stop at the first instruction that makes a NaN or infinity", False, option="--check-nan", action="store_true"
    )
    schedule: str = _setting(
        "what is made of kernels, e.g. as-written or reuse=off: see trnlab passes",
        variable=policy.VARIABLE,
        option="--schedule",
        usual="scheduled",
        code="TRN106",
        late=True,
        metavar="NAME",
    )
    band: bool = _setting(
        "time kernels with the compiler's other likely choices, too (trnlab passes)",
        False,
        option="--band",
        action="store_true",
    )
    set: tuple[str, ...] = _setting(
        "figures of the chip that are to be others, e.g. chip.dma.engine_bandwidth=30GBps",
        (),
        option="--set",
        read=_words,
        code="TRN104",
        action="append",
        metavar="FIGURE=VALUE",
    )
    checkpoint: str = _setting(
        "write checkpoints there, and go on from the newest one",
        variable=CHECKPOINT,
        option="--checkpoint",
        late=True,
        metavar="DIR_OR_URL",
    )
    every: int | None = _setting(
        "steps between two checkpoints",
        None,
        variable=EVERY,
        option="--every",
        read=int,
        usual="200",
        code="TRN534",
        late=True,
        type=int,
        metavar="N",
    )
    keep: int | None = _setting(
        "checkpoints that stay",
        None,
        variable=KEEP,
        option="--keep",
        read=int,
        usual="3",
        code="TRN534",
        late=True,
        type=int,
        metavar="N",
    )

    @classmethod
    def resolved(cls, environment: Mapping[str, str], given: object = None, **instead: Any) -> Settings:
        """What the command line says, and where it says nothing the environment.

        given: the command's arguments, as attributes of the fields' names; those that a command does not take are
        missing. instead: fields that are said otherwise. Raises UsageError for a value that cannot be.
        """
        told = {name: each.said(environment, getattr(given, name, None)) for name, each in SETTINGS.items()}
        return replace(cls(**told), **instead)

    @property
    def folder(self) -> Path:
        """The folder of this machine for what is kept beside programs: the first of the cache that is one, else the
        user's."""
        return local_folder(self.cache)

    def record(self) -> dict[str, Any]:
        """All of it as plain data, such as JSON holds, for another process."""
        return asdict(self)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Settings:
        """What `record` made, also after JSON made lists of its tuples."""
        values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in record.items()}
        return cls(**values)

    def hold(self) -> None:
        """Have this process, and those that it starts, do what the command line says of the process as a whole:
        levels of checks, what is made of kernels, checkpoints. Raises UsageError for what is none."""
        checks.configure(checks.parse(",".join(self.check)))
        if self.schedule:
            policy.configure(self.schedule)
        self.export()

    def export(self) -> None:
        """Tell the processes that this one starts, and its own front ends, where checkpoints go."""
        told = {CHECKPOINT: self.checkpoint or None, EVERY: self.every, KEEP: self.keep}
        os.environ.update({name: str(value) for name, value in told.items() if value is not None})


SETTINGS: Mapping[str, Setting] = {each.name: each.metadata["setting"] for each in fields(Settings)}


def said(name: str, environment: Mapping[str, str], given: object = None) -> Any:
    """One setting alone; see `Settings.resolved`."""
    return SETTINGS[name].said(environment, getattr(given, name, None))


def kept_folder(given: object = None) -> Path:
    """The folder of this machine for what is kept beside programs, as a command or the environment says."""
    return local_folder(said("cache", os.environ, given))


def local_folder(cache: str) -> Path:
    """The first place of a cache that is a folder, else the user's folder."""
    places = (expanded(place) for place in cache.split(",") if place and not is_url(place))
    return next(places, Path(users_folder(os.environ)))


# What is no setting of a run but of the part that reads it; processes inherit it with the environment.
OF_PARTS = (
    Setting(
        "file with the key of a team, which entries of caches are sealed with (docs/trust.md)",
        "",
        "TRNLAB_CACHE_KEY",
        code="TRN605",
        usual="none: who writes a cache is trusted",
    ),
    Setting(
        "how operators outside of compiled code run: steps, operators or host (docs/operators.md)",
        "steps",
        "TRNLAB_EAGER",
        code="TRN282",
    ),
    Setting(
        "what scripts of PyTorch find that ask for CUDA: chip, or none as on an instance (docs/scripts.md)",
        "chip",
        "TRNLAB_CUDA",
        code="TRN284",
    ),
    Setting(
        "where functions run that JAX, TensorFlow or Keras compile: chip or host", "chip", "TRNLAB_JIT", code="TRN291"
    ),
    Setting("how --ranks starts ranks: fork or spawn (docs/distributed.md)", "fork", "TRNLAB_RANKS", code="TRN189"),
    Setting(
        "folder in which runs say how they are, for trnlab monitor; off: none is written",
        "",
        "TRNLAB_LIVE",
        usual="XDG_RUNTIME_DIR/trnlab",
    ),
    Setting("with numba, loops are compiled here, not taken from the package", "", "TRNLAB_LOOPS"),
    Setting(
        "rounds after which a loop that data ends is stopped, or none", 1_000_000, "TRNLAB_MOST_ROUNDS", code="TRN511"
    ),
    Setting(
        "release of NKI whose instructions are simulated, such as 0.4", "0.6", "TRNLAB_NKI_RELEASE", code="TRN490"
    ),
    Setting("1: try a release of PyTorch that nobody has tried", "", "TRNLAB_UNTRIED_PYTORCH", code="TRN199"),
    Setting(
        "how a script that is followed is kept from changing anything: namespaces or hooks (docs/check.md)",
        "",
        "TRNLAB_VIEW",
        usual="namespaces where there are any",
        code="TRN584",
    ),
    Setting(
        "GiB that such a script may write into memory",
        "",
        "TRNLAB_VIEW_ROOM",
        usual="half of what is free",
        code="TRN584",
    ),
)
