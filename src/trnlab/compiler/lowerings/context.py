# SPDX-License-Identifier: Apache-2.0
"""What every lowering is given: the group, the builder, and the HBM parameters behind its values."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType

from trnlab.compiler.choices import RULES
from trnlab.compiler.fusing.fusion import Partition
from trnlab.compiler.fusing.groups import FusionGroup
from trnlab.graph.ir import Value
from trnlab.isa.base import Engine
from trnlab.kernels import residence
from trnlab.kernels.view import HbmView, view_of
from trnlab.program import AP, Builder


@dataclass
class Lowering:
    """One group on its way to a routine."""

    b: Builder
    group: FusionGroup
    part: Partition
    ports: dict[Value, AP]  # the routine's HBM parameter for each value in memory that the group reads or writes
    stores: set[Value]  # values the group must write out
    storing: Engine = Engine.GPSIMD  # triggers what is stored
    chosen: Mapping[str, str] = field(default_factory=lambda: RULES)  # values of `choices.CHOICES`

    def view(self, value: Value) -> HbmView:
        """A value as a strided view of its port."""
        seen = self.part.strided(value)
        return view_of(self.ports[seen.base], seen)

    def fresh(self) -> Lowering:
        """The same group on a builder of its own, for measuring: nothing it records is kept."""
        trial = Builder(self.b.name, self.b.chip, sbuf_limit=1 << 40, banks=self.b.banks)
        trial.follows_blockings = self.b.follows_blockings
        ports = {}
        for v, port in self.ports.items():
            kept, name = residence.of(self.b, port.buffer), v.name or "p"
            ports[v] = trial.param(name, v.shape, v.dtype) if kept is None else residence.keep(trial, name, kept.home)
        return Lowering(trial, self.group, self.part, ports, self.stores, chosen=self.chosen)


class SbufTurns:
    """SBUF for loops that follow each other in one routine: each gets new tiles as long as there are any, so that it
    need not wait for the last; then the turn begins again."""

    def __init__(self, b: Builder) -> None:
        self._b = b
        self._scope = ExitStack()

    def __enter__(self) -> SbufTurns:
        self._scope.enter_context(self._b.scope())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scope.close()

    def make_room(self, nbytes: int) -> None:
        """Begin a new turn unless `nbytes` per partition are left."""
        if self._b.sbuf_free < nbytes:
            self._scope.close()
            self._scope.enter_context(self._b.scope())
