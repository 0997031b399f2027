# SPDX-License-Identifier: Apache-2.0
"""What calls of nki.isa return: handles that dependencies between instructions are made with."""

from __future__ import annotations

from typing import Any

from trnlab.lang import instructions as ins
from trnlab.lang.recorder import current
from trnlab.lang.storage import refuse
from trnlab.lang.tensor import Tensor
from trnlab.nki.enums import chip_engine, engine


class NkiInstruction:
    """A recorded instruction: the last that a call made, with its label."""

    __slots__ = ("_at", "_loops", "_recorder", "name")

    def __init__(self, name: str | None) -> None:
        recorder = current()
        self.name, self._recorder, self._at = name, recorder, len(recorder.builder) - 1
        self._loops = tuple(recorder.loops) if recorder.loops else ()
        if name is not None:
            recorder.labels[name] = self._at

    def depends_on(self, *producers: NkiInstruction) -> NkiInstruction:
        """Start after all of `producers` are done, which were issued before; returns itself.

        Raises ConstraintError for what is no instruction of this kernel, or lies in another loop on the device.
        """
        for producer in producers:
            known = isinstance(producer, NkiInstruction) and producer._recorder is self._recorder
            if not known or producer._at >= self._at:
                refuse(
                    "an instruction depends on one that was issued before it",
                    limit="instructions of this kernel",
                    got=producer,
                    remedy="call depends_on of the later one",
                    code="TRN411",
                )
            if producer._loops != self._loops[: len(producer._loops)]:
                refuse(
                    "a dependency leads out of a loop on the device",
                    limit="one loop, or from outside into it",
                    got=producer.name,
                    remedy="move both into the loop",
                    code="TRN411",
                )
            self._recorder.builder.after(producer._at, self._at)
        return self

    def __repr__(self) -> str:
        return f"<NkiInstruction {self._at} {self.name or ''}>"


def issue(instruction: str, label: str | None, *, on: engine | None = None, **arguments: Any) -> NkiInstruction:
    """Record one instruction, on an engine if the kernel says which."""
    ins.record(instruction, chip_engine(on), arguments)
    return NkiInstruction(label)


def number(value: Any) -> Any:
    """An operand that may be a tile or a number; None where the operator has no second operand."""
    return value if value is None or isinstance(value, Tensor) else float(value)
