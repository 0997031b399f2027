# SPDX-License-Identifier: Apache-2.0
"""Does it fit in HBM: a forecast before anything is compiled or run, with the largest tensors by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trnlab.chips.spec import Chip
from trnlab.errors import CapacityError
from trnlab.graph.ir import Graph, Value
from trnlab.program.routine import Program
from trnlab.units import format_bytes

LARGEST = 5


@dataclass(frozen=True)
class Need:
    """One tensor that takes HBM."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)} {format_bytes(self.nbytes)}"


@dataclass(frozen=True)
class Forecast:
    """Peak bytes of HBM, of the capacity that `cores` have, one or two that are one logical core; `tensors` are those
    that count, largest first."""

    peak_bytes: int
    capacity_bytes: int
    tensors: tuple[Need, ...]
    cores: int = 1

    def require(self, name: str, chip: Chip) -> None:
        """Raise CapacityError when the peak is past the capacity."""
        if self.peak_bytes <= self.capacity_bytes:
            return
        largest = ", ".join(map(str, self.tensors[:LARGEST]))
        raise CapacityError(
            f"{name!r} does not fit in the HBM of {'one core' if self.cores == 1 else 'a logical core'}",
            code="TRN510",
            limit=format_bytes(self.capacity_bytes),
            got=f"{format_bytes(self.peak_bytes)}; largest: {largest}",
            chip=chip.name,
            remedy="use a smaller batch or model, or a target with more memory (see `trnlab chips`)",
        )


def forecast_graph(graph: Graph, chip: Chip, cores: int = 1) -> Forecast:
    """The least that any program of this graph needs: inputs, and outputs that do not overwrite one."""
    outputs = [v for i, v in enumerate(graph.outputs) if i not in graph.aliases]
    needs = [_need(v, i) for i, v in enumerate(dict.fromkeys([*graph.inputs, *outputs]))]
    return _forecast(sum(need.nbytes for need in needs), needs, chip, cores)


def forecast_program(program: Program, chip: Chip, cores: int = 1) -> Forecast:
    """What a compiled program needs: inputs, outputs and constants, the arena of its temporaries, and scratch."""
    kept = sum(t.nbytes for t in program.tensors if t.kind != "temp")
    tensors = [Need(t.name, t.shape, t.dtype.name, t.nbytes) for t in program.tensors]
    return _forecast(kept + program.arena_bytes, tensors, chip, cores)


def _forecast(peak: int, tensors: Iterable[Need], chip: Chip, cores: int) -> Forecast:
    largest = tuple(sorted(tensors, key=lambda need: -need.nbytes))
    return Forecast(peak, chip.hbm.capacity_bytes * cores, largest, cores)


def _need(value: Value, index: int) -> Need:
    return Need(value.name or f"value {index}", value.shape, value.dtype.name, value.type.nbytes)
