# SPDX-License-Identifier: Apache-2.0
"""Whose software a model runs on: one list of choices over whole programs, as `policy` is for kernels.

    trnlab stacks                                   # prints the list
    trnlab plan ... --stack vendor                  # as the vendor's newest release does it
    trnlab plan ... --stack vendor,release=2.18     # as an older one did
    trnlab plan ... --stack vendor,library=axlearn,fusion=loops

The machine is one; what differs is which instructions reach it. A field of `Stack` is a choice; there is no other
list. Each changes the program that is compiled and timed, or says what the host does beside it; none is a factor on
a result, and none changes a value that a program computes. Each value of the vendor's says what it rests on:
"documented" (the vendor's own texts, scripts or sources), "inferred" (from calibration rows of published runs) or
"assumed". docs/stacks.md has the evidence in full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from trnlab.errors import UsageError

OURS, VENDOR = NAMES = "ours", "vendor"
NEWEST = "2.29"  # the vendor's release that a stack stands for where none is named
LIBRARIES = ("nxd", "axlearn")
DOCUMENTED, INFERRED, ASSUMED = "documented", "inferred", "assumed"
LOOPS, OPERATORS = "loops", "operators"  # of `fusion`
KERNEL, SOFTMAX, WRITTEN = "kernel", "softmax", "written"  # of `attention`
SPREAD, TURNED = "spread", "turned"  # of `few_rows`
JOINED, APART = "joined", "apart"  # of `siblings` and `rows`
INTERLEAVED = "interleaved"  # or APART: of `interleaving`
SCHEDULED, RECORDED = "scheduled", "recorded"  # of `order`
FOLLOWED, ESTIMATED = "followed", "estimated"  # of `blockings`
Value = str | float


@dataclass(frozen=True)
class Since:
    """A value of the vendor's from a release on."""

    release: str
    value: Value
    basis: str  # DOCUMENTED, INFERRED or ASSUMED
    source: str  # what it rests on


@dataclass(frozen=True)
class Choice:
    """One choice over whole programs."""

    name: str
    about: str
    ours: Value  # its value where trnlab compiles
    vendor: tuple[Since, ...]  # by release, the oldest first
    libraries: Mapping[str, Since]  # where a library of the vendor's chips does otherwise
    alternatives: tuple[Value, ...]  # values that the evidence leaves open
    choices: tuple[str, ...]  # what it may be; none for a number

    def of(self, release: str, library: str) -> Since:
        """The vendor's value in a release, under a library."""
        if library in self.libraries:
            return self.libraries[library]
        known = [each for each in self.vendor if _number(each.release) <= _number(release)]
        return known[-1] if known else self.vendor[0]

    def read(self, text: str) -> Value:
        """The value that a text says. Raises ValueError for one that it cannot be."""
        if self.choices:
            if text not in self.choices:
                raise ValueError(text)
            return text
        number = float(text)
        if not 0 <= number < float("inf"):
            raise ValueError(text)
        return number

    @property
    def values(self) -> str:
        """What it may be, for people."""
        return ", ".join(self.choices) if self.choices else "a number from 0 on"


def _choice(about: str, ours: Value, vendor: Sequence[Since], **more: Any) -> Any:
    """A field of `Stack`."""
    rest = {"libraries": {}, "alternatives": (), "choices": ()} | more
    return field(default=ours, metadata={"about": about, "ours": ours, "vendor": tuple(vendor), **rest})


def _asked(**values: tuple[str, str]) -> dict[str, str]:
    """The options whose value, the first, is not the default, the second."""
    return {name: value for name, (value, default) in values.items() if value != default}


@dataclass(frozen=True)
class Stack:
    """Whose compiler and libraries make programs of a model."""

    name: str = OURS  # OURS or VENDOR
    # release, library: of the vendor's, "" in ours
    release: str = ""
    library: str = ""
    text: str = OURS  # as `parse` reads it

    attention: str = _choice(
        "a kernel that passes over what causality hides; a loop over all pairs that keeps the scores of "
        "some rows on chip, under a mask in memory; or written out, scores of all pairs in memory",
        KERNEL,
        (
            Since(
                "2.0",
                SOFTMAX,
                INFERRED,
                "S00040, S00415 and S00434, with what their scripts make again: written out they would be 22, 29 and "
                "26 % slower than published. NEURON_FUSE_SOFTMAX=1 is in scripts of neuronx-nemo-megatron (4813f8b, "
                "2023-06-15; c074b13, release 2.13.1)",
            ),
            Since(
                "2.16",
                SOFTMAX,
                DOCUMENTED,
                "NEURON_FUSE_SOFTMAX=1 in all Llama scripts of neuronx-distributed since a80091d, 2023-12-22",
            ),
            Since(
                "2.19",
                KERNEL,
                DOCUMENTED,
                "release notes of NxD Core 0.8.0 and neuronx-nemo-megatron 0.6.0, 2024-07-03: flash attention kernel",
            ),
        ),
        alternatives=(WRITTEN,),
        choices=(KERNEL, SOFTMAX, WRITTEN),
    )
    fusion: str = _choice(
        "what one loop computes: all that one pass over its rows can; or operators with what is elementwise before "
        "and after them, while a residual beside a product, a norm and a softmax are further passes over memory",
        LOOPS,
        (
            Since(
                "2.0",
                LOOPS,
                INFERRED,
                "by operators S00415, S01144 and all eight of inference are farther off, S00434 as far; S01774 alone "
                "is nearer, by 5 %",
            ),
        ),
        alternatives=(OPERATORS,),
        choices=(LOOPS, OPERATORS),
    )
    products: str = _choice(
        "operands of products in a model that is told float32: as it says, or rounded to bfloat16",
        "told",
        (
            Since("2.0", "bf16", DOCUMENTED, "default of neuronx-cc --auto-cast: matmult (mixed precision app note)"),
            Since("2.27", "told", DOCUMENTED, "release notes of 2.27.0, 2025-12-19: --auto-cast defaults to none"),
        ),
        choices=("told", "bf16"),
    )
    few_rows: str = _choice(
        "products of few rows, as generation has them: contracted in an order in which nothing is turned, or with "
        "their rows turned on the PE array",
        SPREAD,
        (
            Since(
                "2.0",
                TURNED,
                INFERRED,
                "S01165, S01171, S01173 and S01192: turned they are 0 to +15 % off, the other way +12 to +31 %",
            ),
        ),
        alternatives=(SPREAD,),
        choices=(SPREAD, TURNED),
    )
    siblings: str = _choice(
        "products of the same rows, as queries, keys and values: one call that brings the rows on chip once, where "
        "that takes less time, or a call each",
        JOINED,
        (
            Since(
                "2.0",
                APART,
                INFERRED,
                "S00072, S00351, S01048 and S00436: apart they are -3 to +18 % off, joined +8 to +22 %",
            ),
        ),
        alternatives=(JOINED,),
        choices=(JOINED, APART),
    )
    blockings: str = _choice(
        "how products are cut into blocks: the best of many by an estimate are gone through piece by piece, or the "
        "estimate decides",
        FOLLOWED,
        (
            Since(
                "2.0",
                ESTIMATED,
                INFERRED,
                "S00072, S00351, S01048 and S00436: estimated they are -3 to +18 % off, followed +10 to +28 %, "
                "followed and joined +13 to +33 %",
            ),
        ),
        alternatives=(FOLLOWED,),
        choices=(FOLLOWED, ESTIMATED),
    )
    order: str = _choice(
        "instructions of a call: in the order that a list scheduler finds, where that takes less time, or as loops "
        "are written",
        SCHEDULED,
        (
            Since(
                "2.0",
                RECORDED,
                INFERRED,
                "calibration rows: Llama-2-13B of 2.18 and Llama-2-7B of 2.13 are +0 and +6 % off as written, +9 and "
                "+15 % scheduled",
            ),
        ),
        alternatives=(SCHEDULED,),
        choices=(SCHEDULED, RECORDED),
    )
    rows: str = _choice(
        "loops over whole rows, as norms: computed with the product whose rows they read where that takes less time, "
        "or calls of their own",
        JOINED,
        (
            Since(
                "2.0",
                APART,
                ASSUMED,
                "no calibration row tells: those with rows this short are -9 and +14 % off either way",
            ),
        ),
        alternatives=(JOINED,),
        choices=(JOINED, APART),
    )
    gradients: str = _choice(
        "gradients of weights among data parallel ranks: on their way during the backward pass, or after it",
        "during",
        (
            Since(
                "2.0",
                "after",
                DOCUMENTED,
                "ZeRO-1 of neuronx-distributed and the vendor's BERT script exchange them in the optimizer's step",
            ),
        ),
        libraries={
            "axlearn": Since(
                "2.0", "after", ASSUMED, "shifts of FSDP's collectives are options that are off (NEURON_FSDP)"
            )
        },
        alternatives=("during",),
        choices=("during", "after"),
    )
    again: str = _choice(
        "what the backward pass makes again where nobody says: what the search finds best, the core of attention, "
        "or also what is inside a network",
        "search",
        (Since("2.0", "search", DOCUMENTED, "an option of the vendor's scripts, and the renter's to choose"),),
        libraries={
            "axlearn": Since(
                "2.0",
                "network",
                DOCUMENTED,
                "build_remat_spec of apple/axlearn at 34aed43c keeps projections of attention, and nothing of a "
                "network nor what a flash kernel made",
            )
        },
        choices=("search", "network"),
    )
    residual: str = _choice(
        "the residual stream among the ranks of a tensor group: divided by the sequence, or whole on each",
        "divided",
        (
            Since(
                "2.0", "divided", DOCUMENTED, "sequence_parallel_enabled in the Llama scripts of neuronx-distributed"
            ),
        ),
        libraries={
            "axlearn": Since(
                "2.0",
                "whole",
                DOCUMENTED,
                "fuji.py of apple/axlearn at 34aed43c: partitions of trn2 divide the batch, and no sequence",
            )
        },
        choices=("divided", "whole"),
    )
    tracing_us: float = _choice(
        "microseconds of the host for each operator of a step, which it traces anew while the device computes what "
        "came before; a step begins when the loss of the one before was read",
        0.0,
        (
            Since(
                "2.0",
                30.0,
                INFERRED,
                "between S00040, none of whose 512 microbatches of two sequences can be sooner than its operators "
                "are traced (27), and S01506, a step of two microbatches, whose end nothing else explains (40)",
            ),
        ),
        libraries={"axlearn": Since("2.0", 0.0, DOCUMENTED, "jax.jit traces once")},
        alternatives=(0.0, 60.0),
    )

    def compile_options(self) -> dict[str, str]:
        """Options of `compiler.compile` that differ from its defaults."""
        order, rows = (self.order, SCHEDULED), (self.rows, JOINED)
        return _asked(fusion=(self.fusion, LOOPS), attention=(self.attention, KERNEL), order=order, rows=rows)

    @property
    def inference_options(self) -> dict[str, str]:
        """Those of forward passes and of programs that generate, beside `compile_options`.

        Steps of training change by 0 to 5 % with them (docs/stacks.md); they are compiled once for both stacks.
        """
        few_rows, siblings = (self.few_rows, SPREAD), (self.siblings, JOINED)
        return _asked(few_rows=few_rows, siblings=siblings, blockings=(self.blockings, FOLLOWED))

    @property
    def layout(self) -> dict[str, int]:
        """Columns of `fleet.search.layout.Layouts` that it decides."""
        return {"overlap": 0} if self.gradients == "after" else {}

    @property
    def remakes(self) -> bool:
        """Whether networks, and what a kernel of attention made, are made again where nobody says."""
        return self.again == "network"

    @property
    def title(self) -> str:
        """For people."""
        if self.name == OURS:
            return "trnlab's compiler"
        by = f" under {self.library}" if self.library != LIBRARIES[0] else ""
        return f"the vendor's release {self.release}{by}"

    def basis(self, choice: Choice) -> Since:
        """What the vendor's value of a choice rests on."""
        return choice.of(self.release or NEWEST, self.library or LIBRARIES[0])


OWN = Stack()


def choices() -> list[Choice]:
    """All choices, in order."""
    return [Choice(f.name, **f.metadata) for f in fields(Stack) if f.metadata]


def parse(text: str) -> Stack:
    """The stack that a text says: a name, then choices, `release` and `library` of the vendor's.

    Raises UsageError (TRN587) for what it cannot be.
    """
    name, *rest = [part.strip() for part in text.split(",")]
    if name not in NAMES:
        raise _unknown("no such stack", " or ".join(NAMES), name)
    said = dict(_told(part) for part in rest)
    release, library = said.pop("release", NEWEST), said.pop("library", LIBRARIES[0])
    if library not in LIBRARIES:
        raise _unknown("no such library", ", ".join(LIBRARIES), library)
    try:
        _number(release)
    except ValueError:
        raise _unknown("a release is two numbers", f"such as {NEWEST}", release) from None
    known = {choice.name: choice for choice in choices()}
    values: dict[str, Any] = {}
    if name == VENDOR:
        values = {each.name: each.of(release, library).value for each in known.values()}
        values |= {"release": release, "library": library}
    for key, value in said.items():
        if key not in known:
            raise _unknown("no such choice", ", ".join((*known, "release", "library")), key)
        try:
            values[key] = known[key].read(value)
        except ValueError:
            raise _unknown(f"{key} cannot be that", known[key].values, value) from None
    return Stack(name, **{"text": text} | values)


def _told(part: str) -> tuple[str, str]:
    key, sep, value = part.partition("=")
    if not sep:
        raise _unknown("a choice has a value", "NAME=VALUE", part)
    return key.strip(), value.strip()


def _number(release: str) -> tuple[int, int]:
    """Major and minor number of a release such as "2.18" or "2.18.1"."""
    major, minor, *_ = release.split(".")
    return int(major), int(minor)


def _unknown(what: str, limit: str, got: str) -> UsageError:
    return UsageError(what, code="TRN587", limit=limit, got=got, remedy="`trnlab stacks` lists the choices")
