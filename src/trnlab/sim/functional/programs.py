# SPDX-License-Identifier: Apache-2.0
"""Execution of programs: calls in order, on the core that each says; those beside each other that meet, as a gang."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.collectives import Communicator
from trnlab.errors import RunError
from trnlab.program.communication import collective_of
from trnlab.program.gang import Gang, arguments_of, bound_to, gang_of
from trnlab.program.routine import Call, Program, ProgramTensor
from trnlab.sim.functional.communication import execute_collective
from trnlab.sim.functional.gang import GangRun, MemberMachine
from trnlab.sim.functional.machine import Machine, RunOptions, address_of
from trnlab.sim.functional.meaning import array_at

Array = np.ndarray[Any, Any]
_ALIGN = 64


def run_program(
    program: Program,
    bindings: Mapping[int, Array],
    chip: Chip,
    *,
    options: RunOptions | None = None,
    machine: Machine | None = None,
    ranks: Communicator | None = None,
) -> Machine:
    """Execute a program: inputs and outputs are `bindings` (tensor id to array), temporaries live in an arena.

    machine: the first core; others have machines beside it. ranks: the connection with those that execute it at the
    same time, where it has collectives.
    Constants come from the program unless bound. Returns the machine, whose counters and memories can be looked at.
    Raises RunError for a tensor that is neither bound nor placed, and what `Machine.call` and `GangRun.run` raise.
    """
    machine = machine or Machine(chip, options, sbuf_bytes=program.sbuf_bytes)
    machine.check_calls(program)
    running = _Running(program, machine, bindings)
    for calls in program.together():
        gang = gang_of(program, calls)
        if gang is not None:
            running.gang(gang, calls)
            continue
        call, routine = calls[0], program.routines[calls[0].routine]
        if collective_of(routine) is None:
            running.call(call)
        else:
            execute_collective(routine, running.addresses(call), ranks, call.loc)
            machine.executed += len(routine)
    return machine


class _Running:
    """A program that is executed: where its tensors are, and the machine and the scratch memory of each core."""

    def __init__(self, program: Program, machine: Machine, bindings: Mapping[int, Array]) -> None:
        self.program = program
        spill = -(-program.scratch_bytes // _ALIGN) * _ALIGN
        places = program.places
        memory = machine.poisoned_hbm(program.hbm_bytes + spill * len(places))
        tensors = {**program.constants, **bindings}
        self.alive = (memory, *tensors.values())
        self.where = _addresses(program, tensors, memory[: program.hbm_bytes])
        rest = memory[program.hbm_bytes :]
        self.scratch = {place: rest[n * spill : (n + 1) * spill] for n, place in enumerate(places)}
        self.machines = {places[0]: machine}
        for place in places[1:]:
            top = max(call.sbuf_base + routine.sbuf_bytes for call, routine in program if call.place == place)
            self.machines[place] = machine.other_core(place, top)

    def addresses(self, call: Call) -> Array:
        """Where the arguments of a call begin."""
        found: Array = self.where[list(call.args)]
        return found + np.array(call.offsets, np.int64) if call.offsets else found

    def call(self, call: Call) -> None:
        """Execute a call by itself."""
        routine, machine = self.program.routines[call.routine], self.machines[call.place]
        machine.call_at(routine, self.addresses(call), call.sbuf_base, self.scratch[call.place], self.alive)

    def gang(self, gang: Gang, calls: Sequence[Call]) -> None:
        """Execute calls beside each other."""
        buffers = {
            argument: self.program.routines[call.routine].buffers[param]
            for call in calls
            for argument, param in zip(bound_to(call), self.program.routines[call.routine].params)
        }
        tensors = []
        for tensor, offset in arguments_of(calls):
            kind, nbytes = buffers[tensor, offset].dtype.numpy, buffers[tensor, offset].nbytes
            address = int(self.where[tensor]) + offset
            tensors.append(array_at(address, (nbytes // kind.itemsize,), (kind.itemsize,), kind))
        seats = [MemberMachine(self.machines[call.place], call.sbuf_base, self.scratch[call.place]) for call in calls]
        GangRun(gang, tensors, seats).run()


def _addresses(program: Program, tensors: Mapping[int, Array], arena: Array) -> Array:
    """Where each tensor begins."""
    where, start = np.zeros(len(program.tensors), np.int64), address_of(arena)
    for tensor in program.tensors:
        if tensor.id in tensors:
            where[tensor.id] = _checked_address(tensor, tensors[tensor.id])
        elif tensor.address < 0 or tensor.address + tensor.nbytes > len(arena):
            raise RunError(f"tensor {tensor.name!r} of program {program.name!r} is neither bound nor placed")
        else:
            where[tensor.id] = start + tensor.address
    return where


def _checked_address(tensor: ProgramTensor, array: Array) -> int:
    """Where the array of a tensor lies. Raises RunError for one that does not match."""
    if array.nbytes != tensor.nbytes or not array.flags.c_contiguous:
        raise RunError(
            f"tensor {tensor.name!r} is bound to an array that does not match it",
            limit=f"{tensor.nbytes} contiguous bytes ({tensor.dtype} {list(tensor.shape)})",
            got=f"{array.nbytes} bytes, {array.dtype} {list(array.shape)}",
        )
    return address_of(array)
