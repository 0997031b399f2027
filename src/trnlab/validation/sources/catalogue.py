# SPDX-License-Identifier: Apache-2.0
"""Which kernels there are, where their sources lie, and how long they took on a real chip."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from trnlab.validation.anchors import PS, Split


@dataclass(frozen=True, slots=True)
class CatalogueCall:
    """One call of a kernel. arguments: "format[sizes]" for an array, anything else as it is."""

    function: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class SourceKernel:
    """A kernel in a public repository and its measured latency in picoseconds.

    Several launches are measured one by one, and `measured` is their sum.
    """

    id: str
    split: Split
    name: str
    repository: str
    commit: str
    path: str
    chip: str
    launches: tuple[CatalogueCall, ...]
    measured: float
    statistic: str  # "p50" or "p99" of the benchmark's latency, or "profile", the total time under the profiler
    lines: tuple[int, int] | None = None  # first and last line of the source; None for the whole file
    # pairs (regular expression, replacement) that make the variant that was measured
    edits: tuple[tuple[str, str], ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()  # of the hardware's compiler
    note: str = ""
    group: str = "kernels"  # what the kernel is listed under
    # what it computes, in words; kernels of one chip with the same problem are variants of each other
    problem: str = ""
    # where the full JSON of the profiler lies in the repository, if it does; then more than the total is
    # compared, see `observed`
    profile: str = ""


def load() -> tuple[SourceKernel, ...]:
    """All kernels of the package, in file order; those of `kernels.toml` come first."""
    folder = files("trnlab.validation").joinpath("data", "sources")
    found = [entry.name for entry in folder.iterdir() if entry.name.endswith(".toml")]
    names = sorted(found, key=lambda name: (name != "kernels.toml", name))
    return tuple(kernel for name in names for kernel in parse(folder.joinpath(name).read_text(encoding="utf-8")))


def parse(text: str) -> tuple[SourceKernel, ...]:
    """The kernels of one file. Raises ValueError, KeyError or TypeError for one that is not well formed."""
    return tuple(_kernel(entry) for entry in tomllib.loads(text)["kernel"])


def _kernel(entry: dict[str, Any]) -> SourceKernel:
    number, unit = entry.pop("measured").split()
    lines = entry.pop("lines", None)
    return SourceKernel(
        split=Split(entry.pop("split")),
        launches=tuple(CatalogueCall(x["function"], tuple(x["arguments"])) for x in entry.pop("launches")),
        measured=float(number) * PS[unit],
        lines=None if lines is None else (lines[0], lines[1]),
        edits=tuple((old, new) for old, new in entry.pop("edits", ())),
        flags=tuple(entry.pop("flags", ())),
        **entry,
    )
