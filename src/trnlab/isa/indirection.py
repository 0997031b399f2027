# SPDX-License-Identifier: Apache-2.0
"""Tensor indirection: an index picks the columns of an operand in SBUF or PSUM that an instruction reads or writes.

An instruction names in `indirect` which of its operands may be picked; each has then a further operand, the index,
with offsets into the free dimension in elements. Offsets lie in a snake over groups of partitions, 16 for the engines
and 32 for the PE array: offset i of a group is element i // 16 of its partition i % 16. The whole group uses them.

Source: NkiTensor.indirect in nki.language and "Tensor indirection" of the instructions in nki.isa (NKI 0.6.0);
trainium3_arch.rst:235-262.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa.base import SBUF_ONLY, Array, Engine, Instruction, Memory, Operand, OperandSpec

OFFSETS = frozenset({"int32", "uint32", "uint16"})
QUADRANT = 32
SUFFIX = "_index"
SCALE = "_scale"  # the scales of an operand are picked with it


def index_specs(names: tuple[str, ...]) -> tuple[OperandSpec, ...]:
    """The operands that pick from operands of these names."""
    return tuple(
        OperandSpec(name + SUFFIX, "src", SBUF_ONLY, optional=True, shape=("", ""), dtypes=OFFSETS, index_of=name)
        for name in names
    )


def index_name(name: str) -> str:
    """What the index of an operand is called."""
    return name.removesuffix(SCALE) + SUFFIX


def group_of(engine: Engine) -> int:
    """Partitions that share offsets."""
    return 32 if engine is Engine.TENSOR else 16


def offsets_of(index: Array, count: int, engine: Engine) -> Array:
    """[P, count]: the columns that each partition picks."""
    rows, group = index.reshape(index.shape[0], -1).astype(np.int64), group_of(engine)
    groups = rows.reshape(-1, min(group, len(rows)), rows.shape[1])  # [group, partition of it, column]
    picked = groups.transpose(0, 2, 1).reshape(len(groups), -1)[:, :count]
    return np.repeat(picked, min(group, len(rows)), axis=0)


def check_indirection(
    instr: Instruction, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip
) -> None:
    """Raise ConstraintError for an index that cannot pick."""
    indices = [spec for spec in instr.operands if spec.index_of and spec.name in ops]
    if not indices:
        return
    if not chip.has("tensor_indirection") or engine is Engine.GPSIMD:
        instr.refuse(
            "columns cannot be picked by an index here",
            limit="vector, scalar or tensor on chips with tensor_indirection",
            got=f"{engine.name.lower()} of NeuronCore-v{chip.generation}",
            chip=chip,
            remedy="gather with nc_n_gather or local_gather first",
            code="TRN414",
        )
    for spec in indices:
        _check_index(instr, spec, ops, engine, chip)
    _check_engine(instr, ops, attrs, engine, chip)


def _check_index(
    instr: Instruction, spec: OperandSpec, ops: Mapping[str, Operand], engine: Engine, chip: Chip
) -> None:
    index, table, group = ops[spec.name], ops[spec.index_of], group_of(engine)
    enough = min(group, index.partitions) * index.free
    tall = index.partitions == table.partitions and (index.partitions <= group or index.partitions % group == 0)
    if not tall or table.free > enough:
        instr.refuse(
            f"{spec.name} does not hold the columns of {spec.index_of}",
            limit=f"[{table.partitions}, n], n times {min(group, index.partitions)} at least {table.free}",
            got=[index.partitions, index.free],
            chip=chip,
            remedy="give every group its offsets, in a snake over its partitions; pass num_elem=",
            code="TRN409",
        )
    source = next(s.role for s in instr.operands if s.name == spec.index_of) == "src"
    starts = index.first_partition % QUADRANT == 0
    if not starts or (source and index.first_partition != table.first_partition):
        instr.refuse(
            f"{spec.name} starts on partition {index.first_partition}",
            limit="a multiple of 32" + (f", that of {spec.index_of}" if source else ""),
            got=index.first_partition,
            chip=chip,
            remedy="place both on the same partitions",
            code="TRN405",
        )


def _check_engine(
    instr: Instruction, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip
) -> None:
    if engine is Engine.SCALAR and "dst" + SUFFIX in ops and ops["dst"].memory is Memory.PSUM:
        instr.refuse(
            "scalar does not scatter to PSUM",
            limit="dst in SBUF",
            got="PSUM",
            chip=chip,
            remedy="issue it on vector, or write to SBUF",
            code="TRN403",
        )
    if engine is not Engine.TENSOR:
        return
    picked = [ops[s.index_of] for s in instr.operands if s.index_of and s.name in ops and s.index_of != "dst"]
    transposed = attrs.get("is_transpose") and "moving" + SUFFIX in ops
    if transposed or attrs.get("tile_position") or any(op.dtype.name in ("float32", "tfloat32") for op in picked):
        instr.refuse(
            "the PE array does not pick these columns",
            limit="16-bit and narrower floats, the whole array, no moving operand that is transposed",
            got=", ".join(op.dtype.name for op in picked),
            chip=chip,
            remedy="leave tile_position and is_transpose out",
            code="TRN411",
        )
