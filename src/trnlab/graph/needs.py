# SPDX-License-Identifier: Apache-2.0
"""What typing rules ask of operands and attributes; each raises GraphError where it is not so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from trnlab.errors import GraphError
from trnlab.graph.ir import TensorType

Types = Sequence[TensorType]


def fail(code: str, what: str, *, limit: object = None, got: object = None, remedy: str | None = None) -> NoReturn:
    """Raise the error."""
    raise GraphError(what, code=code, limit=limit, got=got, remedy=remedy)


def need(condition: bool, what: str, limit: object, got: object, code: str = "TRN302") -> None:
    """Raise the error unless the condition holds."""
    if not condition:
        fail(code, what, limit=limit, got=got)


def same_shape(types: Types) -> None:
    """All have one shape."""
    for other in types[1:]:
        if other.shape != types[0].shape:
            fail("TRN302", "operands differ in shape", limit=types[0].shape, got=other.shape)


def same_dtype(types: Types) -> None:
    """All have one format."""
    for other in types[1:]:
        if other.dtype is not types[0].dtype:
            fail("TRN303", "operands differ in dtype", limit=types[0].dtype.name, got=other.dtype.name)


def axes(label: str, axes: tuple[int, ...], rank: int) -> None:
    """Distinct axes of a tensor of `rank` dimensions."""
    legal = len(set(axes)) == len(axes) and all(0 <= a < rank for a in axes)
    need(legal, f"{label} must be distinct axes", f"axes 0..{rank - 1}", axes, "TRN304")
