# SPDX-License-Identifier: Apache-2.0
"""Where collectives start and end in the order of a program: a policy with a name, "overlap".

    prefetch   gathers start where the gather before them stands, so that one is on its way while what the other
               brought is computed with, as PyTorch's FSDP does; products that stand before a collective which does
               not need them follow its start and hide it, as gradients of weights do in Megatron-LM and in the
               vendor's LinearWithAsyncCommunication (neuronx_distributed, layers.py); else as data. The default
    data       a collective starts where its operands are there, and is done where its result is read
    none       nothing else happens while one is on its way
    shift:K    as data; gathers start K gathers earlier, scatters K scatters later, as far as data allow: a collective
               per layer makes that K layers. shift:K,L: K and L (the vendor's NEURON_FSDP_NUM_LAYER_EARLY_AG_SHIFT,
               .._LATE_RS_SHIFT)

A gather that starts earlier holds its result in HBM for longer, and so does a scatter that starts later. Where memory
is used again at once, a gather waits for the one before: with `data`, nothing hides what the next layer gathers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trnlab.compiler.fusing.fusion import Partition
from trnlab.compiler.fusing.groups import FusionGroup, GroupKind
from trnlab.errors import UsageError
from trnlab.program import Call, Routine
from trnlab.program.communication import buffers_of, collective_of

Unit = list[FusionGroup]
EARLY, LATE = ("all_gather",), ("reduce_scatter", "all_reduce")
IN_FLIGHT = 2  # collectives that start before one gives back what it reads; FSDP waits for the last before the next
DEFAULT = "prefetch"
PLAIN = {
    "prefetch": (1, 0),
    "data": (0, 0),
    "none": (0, 0),
}  # policies without numbers: gathers earlier, scatters later


@dataclass(frozen=True)
class ExecutionWorld:
    """Who executes a program together, and how it overlaps with what they compute."""

    cluster: str = ""
    ranks: int = 1
    waits: bool = False
    # early, late: by how many gathers and scatters theirs are moved
    early: int = 0
    late: int = 0
    fills: bool = False  # whether products follow starts


def world_of(options: Mapping[str, Any]) -> ExecutionWorld:
    """What compile options say. Raises UsageError: TRN260 where they name no ranks, TRN263 for an unknown policy."""
    if "ranks" not in options:
        raise UsageError(
            "the step has collectives, and this process is no rank of a job",
            code="TRN260",
            limit="collectives over groups of one rank",
            got="groups of several",
            remedy="start it with torchrun, and call torch.distributed.init_process_group",
        )
    policy = str(options.get("overlap", DEFAULT))
    name, _, numbers = policy.partition(":")
    by = numbers.split(",") if numbers else []
    if (name in PLAIN and by) or (name not in PLAIN and not _is_shift(name, by)):
        raise UsageError(
            "no such policy of overlap",
            code="TRN263",
            limit=", ".join((*PLAIN, "shift:K", "shift:K,L")),
            got=policy,
            remedy="choose one of these",
        )
    early, late = PLAIN.get(name) or (int(by[0]), int(by[-1]))
    return ExecutionWorld(
        str(options["cluster"]), int(options["ranks"]), name == "none", early, late, name == DEFAULT
    )


def _is_shift(name: str, by: Sequence[str]) -> bool:
    return name == "shift" and len(by) in (1, 2) and all(n.isdecimal() for n in by)


def shifted(units: list[Unit], part: Partition, world: ExecutionWorld) -> list[Unit]:
    """The units with starts of gathers moved to where earlier gathers stood, and of scatters to later ones'."""
    place = {id(unit): (float(i), 0) for i, unit in enumerate(units)}
    gathers = [i for i, unit in enumerate(units) if _is(unit, EARLY)] if world.early else []
    for number, at in enumerate(gathers):
        before = gathers[max(number - world.early, 0)]
        last = max((i for i in range(before, at) if waits(units[at], units[i], part)), default=before)
        place[id(units[at])] = (last + 0.5 if at > before else at, number)
    scatters = [i for i, unit in enumerate(units) if _is(unit, LATE)] if world.late else []
    for number, at in enumerate(scatters):
        after = scatters[number + world.late] if number + world.late < len(scatters) else len(units)
        readers = (place[id(unit)][0] for unit in units[at + 1 :] if waits(unit, units[at], part))
        place[id(units[at])] = (min(float(after), min(readers, default=after)) - 0.25, number)
    return sorted(units, key=lambda unit: place[id(unit)])


def filled(units: list[Unit], part: Partition, world: ExecutionWorld) -> list[Unit]:
    """The units with products moved behind the start of the next collective, where that does not wait for them.

    Those that hide the collective before, whose result nobody has asked for yet, stay.
    """
    if not world.fills:
        return units
    done: list[Unit] = []
    since = 0  # from where in `done` units may move: past the last collective
    for unit in units:
        done.append(unit)
        if unit[0].kind is GroupKind.COLLECTIVE:
            moved = _not_needed(done, since, part)
            behind = {id(u) for u in moved}
            done[since:] = [u for u in done[since:] if id(u) not in behind]
            since = len(done)
            done += moved
    return done


def _not_needed(units: Sequence[Unit], since: int, part: Partition) -> list[Unit]:
    """Products from `since` on that the last unit, a collective, and all between do not wait for, in order."""
    before = units[since - 1] if since else None
    asked = next((i for i in range(since, len(units)) if before is None or waits(units[i], before, part)), len(units))
    moved: list[Unit] = []
    kept = [units[-1]]
    for unit in reversed(units[asked:-1]):
        if unit[0].kind is GroupKind.DOT and not any(waits(other, unit, part) for other in kept):
            moved.append(unit)
        else:
            kept.append(unit)
    return moved[::-1]


def _is(unit: Unit, names: Sequence[str]) -> bool:
    return unit[0].kind is GroupKind.COLLECTIVE and unit[0].anchor.name in names


def waits(late: Unit, early: Unit, part: Partition) -> bool:
    """Whether a group of one unit must run after one of another."""
    return any(part.dependencies.runs_before(before.id, group.id) for group in late for before in early)


def spans(calls: Sequence[Call], code: Sequence[Routine]) -> Iterator[tuple[int, int]]:
    """For each collective the calls where it starts and where its memory is given back.

    It keeps what it reads until its first result is touched, or until `IN_FLIGHT` more have started, whichever comes
    first: gradients on their way would else stay until the optimizer reads the first of them. Who overwrites what is
    still being read waits for it, as for any transfer.
    """
    starts = [i for i, call in enumerate(calls) if collective_of(code[call.routine]) is not None]
    for number, start in enumerate(starts):
        routine = code[calls[start].routine]
        results = {calls[start].args[written] for _, written in buffers_of(routine)}
        readers = (i for i in range(start + 1, len(calls)) if not results.isdisjoint(calls[i].args))
        last = starts[number + IN_FLIGHT] if number + IN_FLIGHT < len(starts) else len(calls)
        yield start, min(next(readers, len(calls)), last)
