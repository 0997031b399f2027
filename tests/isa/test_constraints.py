# SPDX-License-Identifier: Apache-2.0
"""Every instruction accepts what its declarations allow, and refuses the first thing beyond each limit.

Valid cases are generated from the declarations (operand shapes, memories, formats, sizes, engines, attributes); then
one of them is changed for the worse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from isa_cases import QUICK, Case, refused, tile, valid_cases

from tests.extent import examples
from trnlab import isa
from trnlab.isa.base import ANY_DTYPE, ON_CHIP, Engine, Instruction, Memory, OperandSpec
from trnlab.isa.costs import COST_CLASSES
from trnlab.isa.documentation import cost_classes
from trnlab.isa.rules import MAX_FREE
from trnlab.program.access import AP

NAMES = sorted(isa.REGISTRY)


@pytest.mark.parametrize("name", NAMES)
def test_what_the_declarations_allow_is_accepted(name: str) -> None:
    """A valid case passes, and its work is in a documented cost class with positive amounts."""

    @QUICK
    @given(case=valid_cases(name))
    def check(case: Case) -> None:
        work = case.validate()
        assert work.kind in cost_classes(case.instr)
        assert work.n > 0
        assert 0 < work.k <= 128
        assert work.m >= 0
        assert work.flops >= 0

    check()


def _applies(instr: Instruction, mutation: str) -> bool:
    """Whether the instruction has a limit that this mutation can pass."""
    if mutation == "engine":
        return set(instr.engines) != set(Engine)  # every sequencer can trigger a DMA
    if mutation == "memory":
        return any(spec.memories != set(Memory) for spec in instr.operands)
    if mutation == "format":
        drawn = [spec for spec in instr.operands if not spec.name.endswith("_index")]  # the cases leave those out
        return bool(instr.same_dtype) or any(ANY_DTYPE - spec.dtypes for spec in drawn)
    on_chip = any(spec.memories & ON_CHIP for spec in instr.operands)
    if mutation == "step" and all(spec.shape[1] == "1" for spec in instr.operands):
        return False
    if mutation in ("start", "step", "long"):
        return on_chip and not instr.is_dma
    if mutation in ("partitions", "dimensions"):
        return on_chip
    if mutation == "mismatch":
        return bool(_matched([spec for spec in instr.operands if not spec.optional]))
    return True


def _matched(specs: Sequence[OperandSpec]) -> list[OperandSpec]:
    """Operands that share the letter, or number, of their free size with another."""
    letters = [spec.shape[1] for spec in specs]
    return [spec for spec in specs if spec.shape[1] not in ("", "1") and letters.count(spec.shape[1]) > 1]


MUTATIONS = [
    (name, mutation)
    for name in NAMES
    for mutation in (
        "engine",
        "memory",
        "format",
        "partitions",
        "start",
        "dimensions",
        "step",
        "long",
        "missing",
        "unknown",
        "mismatch",
    )
    if _applies(isa.REGISTRY[name], mutation)
]


@pytest.mark.parametrize(("name", "mutation"), MUTATIONS)
def test_one_past_a_shared_limit_is_refused(name: str, mutation: str) -> None:
    """A valid case with one thing changed for the worse does not pass."""

    @settings(QUICK, max_examples=examples(8))
    @given(case=valid_cases(name), data=st.data())
    def check(case: Case, data: st.DataObject) -> None:
        codes = _spoil(case, mutation, data.draw)
        refused(case, *codes)

    check()


def _spoil(case: Case, mutation: str, draw: Any) -> tuple[str, ...]:
    """Break one rule in place; the codes that may be reported."""
    if mutation == "engine":
        wrong = [e for e in Engine if e not in case.instr.engines_on(case.chip)]
        case.engine = draw(st.sampled_from(wrong))
        return ("TRN401",)
    if mutation == "unknown":
        case.attrs["colour"] = 1
        return ("TRN411",)
    present = [spec for spec in case.instr.operands if spec.name in case.ops]
    if mutation == "missing":
        del case.ops[draw(st.sampled_from([spec.name for spec in present if not spec.optional]))]
        return ("TRN402",)
    if mutation == "memory":
        spec = draw(st.sampled_from([spec for spec in present if spec.memories != set(Memory)]))
        wrong_place = draw(st.sampled_from(sorted(set(Memory) - spec.memories)))
        case.ops[spec.name] = _moved(case.ops[spec.name], wrong_place)
        return ("TRN403",)
    if mutation == "format":
        return _spoil_format(case, present, draw)
    spec = draw(st.sampled_from(_matched(present) if mutation == "mismatch" else present))
    op = case.ops[spec.name]
    return _spoil_shape(case, mutation, spec.name, op)


def _spoil_format(case: Case, present: list[OperandSpec], draw: Any) -> tuple[str, ...]:
    """A format outside of the list of an operand, or one that differs from its partner's."""
    partners = [name for name in case.instr.same_dtype if name in case.ops]
    choices = {spec.name: sorted(ANY_DTYPE - spec.dtypes) for spec in present}
    if len(partners) > 1:
        choices[partners[0]] = ["int8" if case.ops[partners[0]].dtype.name != "int8" else "uint8"]
    choices = {name: wrong for name, wrong in choices.items() if wrong}
    assume(choices)  # the operand with the limit may be an optional one that was left out
    name = draw(st.sampled_from(sorted(choices)))
    op = case.ops[name]
    case.ops[name] = tile(op.shape, draw(st.sampled_from(choices[name])), op.memory, op.first_partition)
    return ("TRN408",)


def _spoil_shape(case: Case, mutation: str, name: str, op: AP) -> tuple[str, ...]:
    assume(op.memory is not Memory.HBM)
    dma = case.instr.is_dma
    if mutation == "partitions":
        case.ops[name] = tile((129, *op.shape[1:]), op.dtype, op.memory)
        return ("TRN404", "TRN409", "TRN416")
    if mutation == "start":
        spec = next(spec for spec in case.instr.operands if spec.name == name)
        assume(not dma and len(spec.starts) < 32)  # sequencers reach every partition
        case.ops[name] = replace(op, start_partition=op.start_partition + 1)
        return ("TRN405",)
    if mutation == "dimensions":
        case.ops[name] = op.with_dims(*[(1, 1)] * (5 - len(op.dims)), *op.dims)
        return ("TRN407",)
    if mutation == "step":
        assume(op.free > 1)
        case.ops[name] = op.with_dims((1 << 15, op.free))
        return ("TRN407",)
    if mutation == "long":
        case.ops[name] = op.with_dims((0, 2 * MAX_FREE[op.memory] + 1))
        return ("TRN406",)
    assert mutation == "mismatch"
    assume(len(case.ops) > 1)
    longer = tile((op.partitions, op.free + 1), op.dtype, op.memory, op.first_partition)
    case.ops[name] = longer
    return ("TRN409", "TRN406", "TRN416")


def _moved(op: AP, memory: Memory) -> AP:
    return tile(op.shape, op.dtype, memory, op.first_partition if memory is not Memory.HBM else 0)


def test_every_cost_class_belongs_to_an_instruction() -> None:
    """No cost class is left over, and none is missing."""
    assert {kind for instr in isa.REGISTRY.values() for kind in cost_classes(instr)} == set(COST_CLASSES)
