# SPDX-License-Identifier: Apache-2.0
"""A routine that somebody scheduled already, as one op of a graph: what a custom_call carries.

The compiler puts a call of the routine between those that it makes, and changes nothing in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from trnlab.graph.ir import TensorType
from trnlab.program.digest import matmul_flops, routine_digest
from trnlab.program.routine import Routine

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False, repr=False)
class RoutineCallee:
    """A routine, and what each of its parameters is of the op.

    params: per parameter ("operand", i), ("result", i), ("constant", i) or ("scratch", 0). updates: results that
    start as an operand and are overwritten, as result -> operand. run: results from operands on a simulated core.
    """

    name: str
    routine: Routine
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    params: tuple[tuple[str, int], ...]
    run: Callable[[Sequence[Array]], list[Array]]
    constants: tuple[Array, ...] = ()
    updates: Mapping[int, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{self.name} {self.digest[:12]}"

    @cached_property
    def digest(self) -> str:
        """That of the routine, the bindings and the constants."""
        digest = hashlib.sha256(routine_digest(self.routine).encode())
        digest.update(repr((self.params, sorted(self.updates.items()))).encode())
        digest.update(repr([(str(t)) for t in (*self.operands, *self.results)]).encode())
        for constant in self.constants:
            digest.update(constant.tobytes())
        return digest.hexdigest()

    @property
    def flops(self) -> int:
        """Operations of its matrix products."""
        return matmul_flops(self.routine)

    def execute(self, arrays: Sequence[Array]) -> list[Array]:
        """Results from operands, in the NumPy dtypes of their formats; nothing is overwritten."""
        return self.run(arrays)
