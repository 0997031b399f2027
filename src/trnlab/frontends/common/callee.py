# SPDX-License-Identifier: Apache-2.0
"""Recorded kernels as what an op of the graph carries, whichever framework called them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trnlab.graph.ir import TensorType
from trnlab.nki.tracing.traces import Trace
from trnlab.program.callee import KernelCallee

Array = np.ndarray[Any, Any]


class NotAnOp(Exception):  # noqa: N818
    """No graph can hold this call of a kernel: the reason, and what to do instead."""

    def __init__(self, reason: str, do: str) -> None:
        super().__init__(reason)
        self.reason, self.do = reason, do


def callee_of(
    name: str,
    trace: Trace,
    places: Sequence[int],
    operands: Sequence[TensorType],
    returned: Sequence[int],
    constant: Callable[[int], Array],
    run: Callable[[Sequence[Array]], list[Array]],
) -> KernelCallee:
    """A recorded call as the callee of an op.

    places: for each array argument of the kernel the operand that it is, or -1 for a constant. returned: tensors of
    the trace that are results, new ones first, then arguments that are written. constant: contents of an argument.
    run: results from operands, on a simulated core. Raises NotAnOp.
    """
    if trace.content is not None:
        raise NotAnOp(
            f"the instructions of kernel {name!r} depend on the contents of its arguments",
            "call it outside of the model",
        )
    if any(places[p] < 0 for p in trace.written):
        raise NotAnOp(f"kernel {name!r} writes to a constant", "pass a tensor")
    place = {p: i for i, p in enumerate(returned)}
    written = [p for p in returned if p < trace.arguments]
    results = tuple(
        operands[places[p]] if p in written else TensorType(trace.tensors[p].shape, trace.tensors[p].dtype)
        for p in returned
    )
    bound: list[tuple[str, int]] = []
    constants: list[Array] = []
    for number in range(len(trace.tensors)):
        if number in place:
            bound.append(("result", place[number]))
        elif number < trace.arguments and places[number] >= 0:
            bound.append(("operand", places[number]))
        elif number < trace.arguments or number in trace.arrays:
            bound.append(("constant", len(constants)))
            constants.append(trace.arrays[number] if number in trace.arrays else constant(number))
        else:
            bound.append(("scratch", 0))
    updates = {place[p]: places[p] for p in written}
    return KernelCallee(name, trace.program, tuple(operands), results, tuple(bound), run, tuple(constants), updates)
