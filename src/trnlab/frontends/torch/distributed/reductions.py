# SPDX-License-Identifier: Apache-2.0
"""PyTorch's reductions as those of the fabric, with what has to be done to values before and after."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from trnlab.errors import CollectiveError

Array = npt.NDArray[Any]
_Kind = dist.ReduceOp.RedOpType
_NAMES = {
    _Kind.SUM: "sum",
    _Kind.AVG: "sum",
    _Kind.PREMUL_SUM: "sum",
    _Kind.PRODUCT: "prod",
    _Kind.MIN: "min",
    _Kind.MAX: "max",
    _Kind.BAND: "band",
    _Kind.BOR: "bor",
    _Kind.BXOR: "bxor",
}
_ORDERED = ("min", "max")
_BITS = ("band", "bor", "bxor")


_SPOKEN = {_Kind.AVG: "avg", _Kind.PREMUL_SUM: "premul_sum"}


def fabrics_name(spoken: str) -> str:
    """The fabric's name of a reduction that a call says."""
    return next((_NAMES[kind] for kind, said in _SPOKEN.items() if said == spoken), spoken)


class ReduceOp:
    """One of `torch.distributed.ReduceOp`. `name`: the fabric's. `spoken`: what ranks compare and messages say.

    A mean is a sum that is divided by the number of ranks at the end, in the tensor's format; integers are divided
    towards zero.
    """

    def __init__(self, op: Any) -> None:
        kind = op.op if isinstance(op, dist.ReduceOp) else op
        self.kind, self.name = kind, _NAMES[kind]
        self.factor = op.__getstate__()[1] if kind == _Kind.PREMUL_SUM else None
        self.spoken = _SPOKEN.get(kind, self.name)

    def before(self, values: Array, dtype: torch.dtype) -> Array:
        """What goes into the fabric. Raises CollectiveError (TRN275) for what the format does not have."""
        if (dtype.is_complex and self.name in _ORDERED) or (
            self.name in _BITS and (dtype.is_floating_point or dtype.is_complex)
        ):
            raise CollectiveError(
                f"{dtype} has no reduction {self.spoken}",
                code="TRN275",
                got=dtype,
                limit="sum, avg, prod" if dtype.is_complex else "sum, avg, prod, min, max",
                remedy="reduce integers, or another reduction",
            )
        if self.factor is None:
            return values
        factor = self.factor.cpu().item() if isinstance(self.factor, torch.Tensor) else self.factor
        return (values * np.asarray(factor, values.dtype)).astype(values.dtype)

    def after(self, values: Array, ranks: int) -> Array:
        """What the result is of what comes out."""
        if self.kind != _Kind.AVG:
            return values
        if values.dtype.kind in "iub":
            return np.trunc(values / ranks).astype(values.dtype)
        return (values / np.asarray(ranks, values.dtype)).astype(values.dtype)
