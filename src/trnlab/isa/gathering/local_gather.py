# SPDX-License-Identifier: Apache-2.0
"""Gather along the free dimension, by indices that sixteen partitions share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import MOVABLE, SBUF_ONLY, Array, Arrays, Engine, Instruction, Operand, OperandSpec, Work

CORE = 16  # partitions that one GpSimd processor is wired to
RUNS = (1, 2, 4, 8, 16, 32)
MAX_INDICES = 4096


@register
class LocalGather(Instruction):
    """dst[p] = the elements of src_buffer[p] at the indices of p's group of sixteen partitions, one after the other.

    The indices of a group are the first num_valid_indices (all by default) of its [16, I] piece of `index`, read
    partition by partition before column by column. Each names the place in the row, counted in elements, where
    num_elem_per_idx adjacent elements begin. Bits move as they are. An index outside of the row is undefined on
    hardware and an error here.
    """

    name = "local_gather"
    opcode = 24
    partly_used = ("src_buffer", "index")
    engines = (Engine.GPSIMD,)
    operands = (
        OperandSpec("dst", "dst", SBUF_ONLY, shape=("P", "D"), dtypes=MOVABLE),
        OperandSpec("src_buffer", "src", SBUF_ONLY, dtypes=MOVABLE),
        OperandSpec("index", "src", SBUF_ONLY, shape=("P", "I"), dtypes=frozenset({"uint16"})),
    )
    attrs: ClassVar[Mapping[str, Any]] = {"num_elem_per_idx": 1, "num_valid_indices": None}
    same_dtype = ("dst", "src_buffer")
    multiples: ClassVar[Mapping[str, int]] = {"P": CORE}
    limits = (
        "num_elem_per_idx is 1, 2, 4, 8, 16 or 32",
        f"num_valid_indices is at most 16 I, and at most {MAX_INDICES}",
        "D is num_valid_indices * num_elem_per_idx",
    )
    source = "nki.isa.local_gather; nki/test/test_nki_isa_local_gather.py (units of the indices)"
    example = """
        table, index = nl.ones((128, 64), nl.float32), nl.zeros((128, 4), nl.uint16)
        taken = nl.ndarray((128, 64), nl.float32)
        nisa.local_gather(dst=taken, src_buffer=table, index=index)
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Counts are possible and fill dst."""
        run, count = attrs["num_elem_per_idx"], _count(attrs, ops["index"].free)
        if run not in RUNS:
            self.refuse(
                "num_elem_per_idx is not a length it can be",
                limit=", ".join(map(str, RUNS)),
                got=run,
                chip=chip,
                remedy="gather in runs of one of these",
                code="TRN411",
            )
        most = min(CORE * ops["index"].free, MAX_INDICES)
        if not 1 <= count <= most:
            self.refuse(
                "too many indices",
                limit=f"1..{most} for a group of {CORE} partitions",
                got=count,
                chip=chip,
                remedy="gather in several instructions",
                code="TRN406",
            )
        if ops["dst"].free != count * run:
            self.refuse(
                "dst does not hold what is gathered",
                limit=f"{count * run} elements per partition",
                got=ops["dst"].free,
                chip=chip,
                remedy="set num_valid_indices, or reshape dst",
                code="TRN409",
            )

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """Runs of elements, group by group. Raises IndexError for a run that leaves the row."""
        lanes = arrays["dst"].shape[0]
        src, index = arrays["src_buffer"].reshape(lanes, -1), arrays["index"].reshape(lanes, -1)
        count, run = _count(attrs, index.shape[1]), attrs["num_elem_per_idx"]
        result = np.empty((lanes, count * run), src.dtype)
        for first in range(0, lanes, CORE):
            group = slice(first, first + CORE)
            begins = index[group].T.reshape(-1)[:count].astype(np.int64)
            result[group] = src[group][:, (begins[:, None] + np.arange(run)).reshape(-1)]
        return {"dst": result.reshape(arrays["dst"].shape)}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """n indices of m elements each, per partition."""
        dst, count = ops["dst"], _count(attrs, ops["index"].free)
        return Work(
            "gpsimd.local_gather",
            count,
            attrs["num_elem_per_idx"],
            dst.partitions,
            dst.dtype.itemsize,
            dst.dtype.name,
        )


def _count(attrs: Mapping[str, Any], columns: int) -> int:
    valid = attrs["num_valid_indices"]
    return CORE * columns if valid is None else int(valid)
