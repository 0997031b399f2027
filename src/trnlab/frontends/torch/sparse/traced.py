# SPDX-License-Identifier: Apache-2.0
"""Sparse tensors while a step is captured: objects around fake tensors, whose operators are traced as dense ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trnlab.errors import UnsupportedOpError
from trnlab.frontends.torch.findings.locations import RecordLines
from trnlab.frontends.torch.pytorch.dispatcher import TorchDispatchMode
from trnlab.frontends.torch.pytorch.fakes import FakeTensor
from trnlab.frontends.torch.pytorch.tensors import node_of_backward
from trnlab.frontends.torch.sparse import kernels
from trnlab.frontends.torch.sparse import parts as raw
from trnlab.frontends.torch.sparse.gradients import BAGS
from trnlab.frontends.torch.sparse.parts import COO, NO_FORM, gradient, is_sparse, parts_of

_aten = torch.ops.aten
_DEVICE = torch.ops.prim.device.default
_SPARSE_BAGS = 9  # the argument of `BAGS` that says whether its result is sparse
_ALIASES = (_aten.detach.default, _aten.alias.default, _aten.lift_fresh.default)
_MAKERS = (
    _aten._sparse_coo_tensor_with_dims_and_tensors.default,
    _aten._sparse_coo_tensor_with_dims.default,
    _aten.sparse_compressed_tensor.comp_plain_value_size,
)
_COUNTED = ("values", "col_indices", "row_indices", "crow_indices", "ccol_indices", "_nnz")


class SparseOperators(TorchDispatchMode):
    """While active, operators that meet sparse tensors are computed in dense ones, which are traced."""

    def __init__(self, lines: RecordLines) -> None:
        super().__init__()
        self._lines = lines
        self._error: BaseException | None = None  # that was raised, within

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        held, self._error = self._error, None
        if kind is SystemError and held is not None:
            raise held  # PyTorch's backward pass has lost it

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op is _DEVICE and type(args[0]) is FakeTensor:  # C++ asks several times for each operator
            return args[0].device
        kwargs = kwargs or {}
        try:
            if not _sparse(op, args, kwargs):
                return op(*args, **kwargs)
            with self:
                return self._computed(op, args, kwargs)
        except BaseException as error:
            self._error = error  # its frames hold the tensors: their end would come while C++ passes the error on
            raise

    def _computed(self, op: Any, args: Any, kwargs: Any) -> Any:
        if op in _ALIASES:
            return kernels.alias(args[0])
        if op is BAGS:
            raise UnsupportedOpError(
                "the sparse gradient of an EmbeddingBag has no form in a captured step",
                code="TRN201",
                where=self._lines.failed(),
                remedy="use EmbeddingBag(sparse=False), Embedding(sparse=True) and a sum, or no compile_step",
            )
        if op is _aten._coalesce.default and not parts_of(args[0]).merged:
            return self._merged(args[0])
        self._check_counted(op, args)
        result = kernels.read(op, args, kwargs)
        if result is NO_FORM:
            result = kernels.computed(op, args, kwargs)
        if result is NO_FORM:
            result = op.decompose(*args, **kwargs)
        if result is NotImplemented:
            raise UnsupportedOpError(
                f"{op._schema.name} has no form on the chip for sparse tensors",
                code="TRN201",
                where=self._lines.failed(),
                remedy="use products, x.to_dense(), or torch.index_add on their values",
            )
        return result

    def _merged(self, a: Tensor) -> Tensor:
        """Formulas of gradients merge a tensor to look up what is at its places: they get each of its elements.

        Raises UnsupportedOpError (TRN204) for anybody else, since nobody can count the elements.
        """
        if node_of_backward() is not None:
            parts = raw.parts_of(a)
            return gradient(parts, parts.values).tensor()
        raise UnsupportedOpError(
            "how many elements a sparse tensor has once they are merged hangs on values (coalesce)",
            code="TRN204",
            where=self._lines.failed(),
            remedy="merge it before the step: x.coalesce()",
        )

    def _check_counted(self, op: Any, args: Any) -> None:
        """Raise UnsupportedOpError (TRN204) for a look at elements of which nobody knows how many there are."""
        name = op._schema.name.removeprefix("aten::")
        if name in _COUNTED and is_sparse(args[0]) and args[0].layout is not COO and not parts_of(args[0]).merged:
            raise UnsupportedOpError(
                f"{name} of a sparse tensor whose repeated elements were not added up yet, since that takes values",
                code="TRN204",
                where=self._lines.failed(),
                remedy="convert it before the step: x.coalesce()",
            )


def _sparse(op: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operator meets sparse tensors, or makes one."""
    if op is BAGS:
        return bool(args[_SPARSE_BAGS])
    return op in _MAKERS or op in kernels.FROM_DENSE or any(map(_meets, args)) or any(map(_meets, kwargs.values()))


def _meets(value: Any) -> bool:
    if isinstance(value, Tensor):
        return is_sparse(value)
    return isinstance(value, (list, tuple)) and any(map(_meets, value))
