# SPDX-License-Identifier: Apache-2.0
"""From what was recorded to values: by a program that is known, by one that is compiled now, or by the host."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from typing import Any

from trnlab.errors import NumericsError, TrnlabError, UnsupportedOpError
from trnlab.frontends.common import engine
from trnlab.frontends.torch.pytorch.dispatcher import modes_off
from trnlab.frontends.torch.recording import on_host
from trnlab.frontends.torch.recording.forms import forget
from trnlab.frontends.torch.recording.memory import Memories
from trnlab.frontends.torch.recording.passes import RecordingPart, passes
from trnlab.frontends.torch.recording.programs import NumberedRecording, ProgramVariants, RecordedProgram, read
from trnlab.frontends.torch.recording.recorder import OperatorRecorder, RecordedOperator, Slot
from trnlab.frontends.torch.recording.tracing import follower
from trnlab.runtime import session
from trnlab.runtime.notices import say

_ASK_THE_HOST = ("TRN210", "TRN211", "TRN213")  # integers of more than 32 bits, and indices out of range
_CONSTANTS = ("aten::zero_", "aten::fill_", "aten::arange", "aten::linspace", "aten::eye")
_NAMES = 3  # operators that a program's name mentions

busy = threading.local()


class Computer:
    """Computes recordings; keeps the programs of each engine, session and precision."""

    def __init__(self, recorder: OperatorRecorder) -> None:
        self.recorder = recorder
        self._known: dict[Hashable, ProgramVariants] = {}
        self._names: dict[str, int] = {}
        self._for: tuple[Any, Any] = (None, None)
        self.done: list[RecordedOperator] = []  # of the recording that is computed, by the host
        self._memories: Memories = {}
        self.news = True  # whether what was computed last had not been met before

    def flush(self, what: str = "operators") -> None:
        """Compute all that was recorded. what: the kind of program that it becomes, for its name."""
        if not self.recorder.nodes:
            self.recorder.clear()
            return
        with self.recorder.lock:
            self.recorder.computing = True  # before there is nothing recorded any more, for threads that look
            nodes, slots = self.recorder.clear()
            was, busy.now = getattr(busy, "now", False), True
            try:
                with modes_off():  # whoever listens to operators has heard of these
                    self._compute(nodes, what)
                    for slot in slots.values():
                        slot.computed()
            finally:
                busy.now, self.recorder.computing = was, False

    def _compute(self, nodes: list[RecordedOperator], what: str) -> None:
        """As PyTorch leaves it where an operator raises: what came before it is done, what comes after never was."""
        self.done, self._memories = [], {}
        try:
            self._computed(nodes, what)
        except BaseException as error:
            self.recorder.lose(nodes, self.done, error)
            raise
        finally:
            self._memories = {}

    def _computed(self, nodes: list[RecordedOperator], what: str) -> None:
        filled, nodes = _constants(nodes)
        if filled:
            on_host.run(filled, self.done, self._memories, counts=False)  # no more than the beginning of memory
        followed = follower()
        for part in followed.parts(nodes) if followed is not None else passes(nodes, trains=True):
            self._part(part, what)

    def _part(self, part: RecordingPart, what: str) -> None:
        nodes, reading = part.nodes, read(part.nodes, part.kept)
        if not reading.alive():
            return
        known = self._find(reading, what)
        if known.refused:
            on_host.run(nodes, self.done, self._memories)
            return
        try:
            count = len(known.programs)
            program = known.program(reading)
            self.news = len(known.programs) > count
        except Exception as error:  # whatever the compiler cannot do, the host can
            self._refused(known, nodes, error)
            return
        followed = follower()
        if followed is not None:
            followed.recorded(program, reading, self._memories)
            return
        try:
            program.run(reading, reading.numbers(), self._memories)
        except NumericsError as error:
            if error.code not in _ASK_THE_HOST:
                raise
            on_host.run(nodes, self.done, self._memories)

    def _find(self, reading: NumberedRecording, what: str) -> ProgramVariants:
        now = engine.current(), session.active()
        if now != self._for:
            self._for, self._known, self._names = now, {}, {}
        key = session.precision_now(), reading.key
        if key not in self._known:
            self._names[what] = self._names.get(what, 0) + 1
            count = self._names[what]
            self._known[key] = ProgramVariants(what if count == 1 else f"{what} {count}")
        return self._known[key]

    def _refused(self, known: ProgramVariants, nodes: Sequence[RecordedOperator], error: Exception) -> None:
        """The chip has no form of a recording: from now on its operators without one are left to the host."""
        alone = [] if len(nodes) == 1 else _refused_alone(nodes)
        for node in alone or (nodes if len(nodes) == 1 else []):
            forget(node.made)
        known.refused = True
        names = sorted({node.about.name.removeprefix("aten::") for node in alone or nodes[:1]})
        followed = follower()
        if followed is not None:
            followed.refused(alone or nodes[:1], error)
        elif len(nodes) > 1:
            reason = str(getattr(error, "what", error)).splitlines()[0]
            say(f"{', '.join(names)}: the chip has no form of this; the host computes it ({reason})")
        on_host.run(nodes, self.done, self._memories)


def _refused_alone(nodes: Sequence[RecordedOperator]) -> list[RecordedOperator]:
    """The operators that cannot be compiled by themselves."""
    seen: dict[int, bool] = {}
    found = []
    for node in nodes:
        if node.made.number not in seen:
            seen[node.made.number] = _refused_by_itself(node)
        if seen[node.made.number]:
            found.append(node)
    return found


def _refused_by_itself(node: RecordedOperator) -> bool:
    reading = read([node])
    try:
        RecordedProgram.check(reading)
    except TrnlabError as error:
        return isinstance(error, UnsupportedOpError)
    except Exception:
        return True
    return False


def _constants(nodes: list[RecordedOperator]) -> tuple[list[RecordedOperator], list[RecordedOperator]]:
    """What fills memory with constants and does no more, or before it is changed in place, as optimizers begin their
    state, and all else: the host fills that, so that the first step is the program of all others."""
    fills = [n for n in nodes if len(n.refs) == 1 and n.about.written and n.about.name in _CONSTANTS and _whole(n)]
    if not fills:
        return [], nodes
    users: dict[Any, list[RecordedOperator]] = {n.refs[0][0]: [] for n in fills}
    writers = dict.fromkeys(users, 0)
    for node in nodes:
        for i, (slot, _, _) in enumerate(node.refs):
            if slot in users:
                users[slot].append(node)
                writers[slot] += i in node.made.written
    filled = []
    for node in fills:
        slot = node.refs[0][0]
        only = len(users[slot]) == 1
        if users[slot][0] is node and (only or (node.updates and writers[slot] > 1)):
            filled.append(node)
    gone = set(map(id, filled))
    return filled, [node for node in nodes if id(node) not in gone] if filled else nodes


def _whole(node: RecordedOperator) -> bool:
    """Whether an operator writes all of memory that was there before."""
    slot, form, _ = node.refs[0]
    return isinstance(slot, Slot) and not slot.fresh and form.dense and form.size * form.dtype.itemsize == slot.nbytes
