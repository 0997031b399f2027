# SPDX-License-Identifier: Apache-2.0
"""Which operators on sparse tensors have a form in dense ones, by PyTorch's name and overload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from trnlab.frontends.torch.device.dispatch import operator
from trnlab.frontends.torch.device.dlpack import no_sparse
from trnlab.frontends.torch.sparse import elementwise, products, structure
from trnlab.frontends.torch.sparse.parts import (
    COMPRESSED_KEY,
    COO,
    COO_KEY,
    LAYOUTS,
    NO_FORM,
    SparseComponents,
    is_sparse,
)
from trnlab.frontends.torch.sparse.parts import parts_of as raw_parts
from trnlab.frontends.torch.sparse.places import parts_of

_aten = torch.ops.aten

HEADERS_OF_COO = (
    "_indices",
    "_values",
    "indices",
    "values",
    "_nnz",
    "is_coalesced",
    "sparse_dim",
    "dense_dim",
    "_coalesced_",
    "_sparse_coo_tensor_with_dims_and_tensors",
    "_sparse_coo_tensor_with_dims",
    "sparse_resize_",
    "sparse_resize_and_clear_",
)
HEADERS_OF_COMPRESSED = (
    "crow_indices",
    "col_indices",
    "ccol_indices",
    "row_indices",
    "values",
    "_nnz",
    "sparse_dim",
    "dense_dim",
    "sparse_compressed_tensor.comp_plain_value_size",
    "sparse_compressed_tensor.comp_plain_value",
    "zeros",
)
_COMPRESSED_MADE = _aten.sparse_compressed_tensor.comp_plain_value_size


def header(op: Any, key: Any) -> Callable[..., Any]:
    """PyTorch's own kernel for the host, which reads or makes the object alone; TRN150 for layouts that are none of
    the device's."""

    def run(*args: Any, **kwargs: Any) -> Any:
        layout = kwargs.get("layout")
        if layout is not None and layout not in LAYOUTS:
            raise no_sparse(layout)
        return op.redispatch(key, *args, **kwargs)

    return run


def clone(a: Tensor, *, memory_format: Any = None) -> Tensor:
    """The same structure and a copy of the values."""
    parts = raw_parts(a)
    return parts.with_values(parts.values.clone()).tensor()


def alias(a: Tensor) -> Tensor:
    """The same tensor, of which autograd knows nothing."""
    return raw_parts(a).tensor()


def like(value: float) -> Callable[..., Any]:
    """A tensor of the same structure full of one value; of zeros PyTorch's has no elements, which is the same."""

    def run(a: Tensor, *, dtype: Any = None, layout: Any = None, device: Any = None, **rest: Any) -> Any:
        if layout not in (None, a.layout) or (device is not None and torch.device(device).type != a.device.type):
            return NO_FORM
        parts = raw_parts(a)
        return parts.with_values(torch.full_like(parts.values, value, dtype=dtype)).tensor()

    return run


def to_copy(
    a: Tensor,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> Any:
    """Another format or device: that of each part."""
    if layout not in (None, a.layout):
        return NO_FORM
    parts = parts_of(a)
    indices = tuple(i.to(device=device) for i in parts.indices)
    made = SparseComponents(
        parts.layout,
        parts.shape,
        indices,
        parts.values.to(device=device, dtype=dtype, copy=True),
        parts.split,
        parts.merged,
    )
    if made.values.device.type != "cpu":
        return made.tensor()
    from trnlab.frontends.torch.sparse.on_host import of_host

    return of_host(made)


def empty(size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, **rest: Any) -> Tensor:
    """A matrix of no elements."""
    dims = len(size)
    if layout is COO:
        indices = torch.empty((dims, 0), dtype=torch.int64, device=device)
        values = torch.empty(0, dtype=dtype, device=device)
        return SparseComponents(COO, tuple(size), (indices,), values, (dims, 0), True).tensor()
    lines = size[-2] if layout is torch.sparse_csr else size[-1]
    start = torch.zeros(lines + 1, dtype=torch.int64, device=device)
    plain = torch.empty(0, dtype=torch.int64, device=device)
    values = torch.empty(0, dtype=dtype, device=device)
    return SparseComponents(layout, tuple(size), (start, plain), values, (dims, 0), True).tensor()


def copied(a: Tensor, b: Tensor, non_blocking: bool = False) -> Any:
    """Elements and places of one sparse tensor for another."""
    if not (is_sparse(a) and is_sparse(b)) or a.layout is not b.layout or a.shape != b.shape:
        return NO_FORM
    parts, given = parts_of(a), parts_of(b)
    if parts.layout is COO:
        return _aten.copy_sparse_to_sparse_.default.redispatch(COO_KEY, a, given.tensor())
    if parts.count != given.count:
        return NO_FORM
    for old, new in zip((*parts.indices, parts.values), (*given.indices, given.values)):
        old.copy_(new)
    return a


def filled(a: Tensor, value: Any) -> Any:
    """All stored values become one value, which PyTorch has of compressed matrices alone."""
    if a.layout is COO:
        return NO_FORM
    raw_parts(a).values.fill_(value)
    return a


def zeroed(a: Tensor) -> Tensor:
    """All stored values become zero."""
    raw_parts(a).values.zero_()
    return a


_NAMED: dict[str, Callable[..., Any]] = {
    "mm": products.mm,
    "mv": products.mv,
    "bmm": products.bmm,
    "addmm": products.addmm,
    "addmv": products.addmv,
    "_sparse_addmm": products.addmm,
    "_sparse_mm": products.mm,
    "_sparse_sum": elementwise.total,
    "sparse_sampled_addmm": products.sampled,
    "add_.Tensor": products.added_to,
    "t": structure.t,
    "transpose.int": structure.transposed,
    "_to_dense": structure.dense,
    "_coalesce": structure.merged,
    "_to_sparse": structure.to_layout,
    "sparse_mask": structure.at_places,
    "clone": clone,
    "_to_copy": to_copy,
    "empty_like": like(0),
    "zeros_like": like(0),
    "ones_like": like(1),
    "zero_": zeroed,
    "fill_.Scalar": filled,
    "_sparse_sum.dim": elementwise.over_dimensions,
    "_sparse_sum_backward": elementwise.over_dimensions_backward,
    "sum": elementwise.total,
    "_sparse_softmax": elementwise.softmax,
    "_sparse_softmax_backward_data": elementwise.softmax_backward,
    "_sparse_log_softmax": elementwise.log_softmax,
    "_sparse_log_softmax_backward_data": elementwise.log_softmax_backward,
    "mul.Tensor": elementwise.scaled(torch.mul),
    "div.Tensor": elementwise.scaled(torch.div),
    "mul.Scalar": elementwise.scaled(torch.mul),
    "div.Scalar": elementwise.scaled(torch.div),
}
KERNELS: dict[Any, Callable[..., Any]] = {operator(name): kernel for name, kernel in _NAMED.items()}
KERNELS |= {
    operator(name): elementwise.of_each(name)
    for name in (*elementwise.LINEAR, *elementwise.OF_EACH)
    if hasattr(_aten, name)
}


def _sum_of_two(a: Any, b: Any, *, alpha: Any = 1) -> Any:
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return NO_FORM
    if is_sparse(a) and is_sparse(b):
        return elementwise.summed(a, b, alpha=alpha)
    return products.added(a, b, alpha) if is_sparse(b) else NO_FORM


def _to_coo(a: Tensor, sparse_dim: int) -> Any:
    return structure.to_layout(a) if sparse_dim == a.dim() else NO_FORM


def _to_compressed(layout: torch.layout) -> Callable[..., Any]:
    def run(a: Tensor, dense_dim: Any = None) -> Any:
        return structure.to_layout(a, layout=layout, dense_dim=dense_dim)

    return run


KERNELS[operator("add.Tensor")] = _sum_of_two
KERNELS[operator("_to_sparse.sparse_dim")] = _to_coo
KERNELS[operator("_to_sparse_csr")] = _to_compressed(torch.sparse_csr)
KERNELS[operator("_to_sparse_csc")] = _to_compressed(torch.sparse_csc)
KERNELS[operator("copy_")] = KERNELS[operator("copy_sparse_to_sparse_")] = copied
FROM_DENSE = tuple(map(operator, ("_to_sparse", "_to_sparse.sparse_dim", "_to_sparse_csr", "_to_sparse_csc")))


def computed(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The result of an operator in dense ones; `NO_FORM` where there is none."""
    kernel = KERNELS.get(op)
    with torch.no_grad():
        result = NO_FORM if kernel is None else kernel(*args, **kwargs)
        plain = without_write(op)
        if result is not NO_FORM or plain not in KERNELS:
            return result
        made = KERNELS[plain](*args, **kwargs)
        return NO_FORM if made is NO_FORM else copied(args[0], made)


def without_write(op: Any) -> Any:
    """For an operator in place, the one that returns what it would write; None where it is none, or has none."""
    name = op._schema.name.removeprefix("aten::")
    packet = getattr(_aten, name.removesuffix("_"), None) if name.endswith("_") else None
    return getattr(packet, op._schema.overload_name or "default", None)


def read(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The result of an operator that makes or reads the object alone; `NO_FORM` of any other."""
    name = op._schema.name.removeprefix("aten::")
    if op is _COMPRESSED_MADE:
        return op.redispatch(COMPRESSED_KEY, *args, **kwargs)
    layout = args[0].layout if args and isinstance(args[0], Tensor) else COO
    if layout in (COO, torch.strided):
        return op.redispatch(COO_KEY, *args, **kwargs) if name in HEADERS_OF_COO else NO_FORM
    return op.redispatch(COMPRESSED_KEY, *args, **kwargs) if name in HEADERS_OF_COMPRESSED else NO_FORM
