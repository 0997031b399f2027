# SPDX-License-Identifier: Apache-2.0
"""A kernel that somebody scheduled already, as one op of a graph: what a custom_call carries.

The compiler puts a call of each of its routines between those that it makes, and changes nothing in them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from trnlab.graph.ir import Graph, TensorType
from trnlab.program.digest import matmul_flops, routine_digest
from trnlab.program.routine import Program

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False, repr=False)
class KernelCallee:
    """The program of a kernel, a call for each core, and what each of its tensors is of the op."""

    name: str
    program: Program
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    # per tensor of the program ("operand", i), ("result", i), ("constant", i) or ("scratch", 0)
    tensors: tuple[tuple[str, int], ...]
    run: Callable[[Sequence[Array]], list[Array]]  # results from operands on the simulated chip
    constants: tuple[Array, ...] = ()
    # results that start as an operand and are overwritten, as result -> operand
    updates: Mapping[int, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{self.name} {self.digest[:12]}"

    @cached_property
    def digest(self) -> str:
        """That of the routines, who executes them, the bindings and the constants."""
        digest = hashlib.sha256("".join(map(routine_digest, self.program.routines)).encode())
        digest.update(repr([(call.args, call.place) for call in self.program.calls]).encode())
        digest.update(repr((self.tensors, sorted(self.updates.items()))).encode())
        digest.update(repr([(str(t)) for t in (*self.operands, *self.results)]).encode())
        for constant in self.constants:
            digest.update(constant.tobytes())
        return digest.hexdigest()

    @property
    def flops(self) -> int:
        """Operations of its matrix products."""
        return sum(map(matmul_flops, self.program.routines))

    def execute(self, arrays: Sequence[Array]) -> list[Array]:
        """Results from operands, in the NumPy dtypes of their formats; nothing is overwritten."""
        return self.run(arrays)


def needs_two_cores(graph: Graph) -> bool:
    """Whether a kernel in it, or in the rounds of its loops, was written for both cores of a logical core."""
    bodies = (op.attrs["body"].graph for op in graph.ops if op.name == "loop")
    kernels = (op.attrs["callee"] for op in graph.ops if op.name == "custom_call")
    return any(kernel.program.cores > 1 for kernel in kernels) or any(map(needs_two_cores, bodies))
