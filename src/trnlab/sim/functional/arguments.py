# SPDX-License-Identifier: Apache-2.0
"""The interpreter's arrays in loops behind symbols, to which only addresses pass.

`operands(address(views))` is `views` again, of the same Numba type, so that what takes either is compiled once.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from trnlab.loops import intrinsic
from trnlab.loops.kinds import LoopType, float32, i64
from trnlab.sim.functional.copying import DIMENSIONS, WALK
from trnlab.sim.functional.kernels import FLOATS, INTS, SLOTS
from trnlab.sim.functional.views import VIEW


@intrinsic
def address(typingctx: Any, array: Any) -> Any:
    """Absolute address of an array's first element."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        held = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.ptrtoint(held.data, ir.IntType(64))

    return i64.numba()(array), codegen


def _array(item_kind: LoopType, *shape: int) -> Any:
    @intrinsic
    def array(typingctx: Any, address: Any) -> Any:
        from numba import types
        from numba.np import arrayobj

        dtype = item_kind.numba()
        kind = types.Array(dtype, len(shape), "C")

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            made = context.make_array(kind)(context, builder)
            item = context.get_abi_sizeof(context.get_data_type(dtype))
            strides = [item]
            for count in reversed(shape[1:]):
                strides.insert(0, strides[0] * count)
            counts = [context.get_constant(types.intp, count) for count in shape]
            steps = [context.get_constant(types.intp, step) for step in strides]
            size = context.get_constant(types.intp, item)
            data = builder.inttoptr(args[0], made.data.type)
            arrayobj.populate_array(made, data=data, shape=counts, strides=steps, itemsize=size, meminfo=None)
            return made._getvalue()

        return kind(types.int64), codegen

    return array


# Nothing is compared with these lengths when compiled code indexes: rows of integers may be shorter.
operands = _array(i64, SLOTS, VIEW)
packed_operands = _array(i64, 2, VIEW)
two_walks = _array(i64, 2, DIMENSIONS, WALK)
columns = _array(i64, INTS)
numbers = _array(float32, FLOATS)
