# SPDX-License-Identifier: Apache-2.0
"""PyTorch's dtypes and the chip's.

The chip has no 64-bit formats. int64 lies on it as int32 and is watched (`graph.overflow`); float64 is refused,
because half of its digits would be lost without a word. In the mode in which all is bf16, float32 lies on the chip as
bfloat16, but for what `unnarrowed` is said of.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch

from trnlab.errors import UnsupportedOpError
from trnlab.frontends.torch.pytorch.fakes import FakeScriptObject
from trnlab.graph.ir import TensorType
from trnlab.numerics import dtypes
from trnlab.numerics.dtypes import DType
from trnlab.precision import EVERYTHING

if TYPE_CHECKING:
    from trnlab.runtime.session import Session

_exact: ContextVar[bool] = ContextVar("float32 stays as it is", default=False)

_FORMATS: dict[torch.dtype, DType] = {
    torch.float32: dtypes.float32,
    torch.bfloat16: dtypes.bfloat16,
    torch.float16: dtypes.float16,
    torch.float8_e5m2: dtypes.float8_e5m2,
    torch.float8_e4m3fn: dtypes.float8_e4m3fn,
    torch.int64: dtypes.int32,
    torch.int32: dtypes.int32,
    torch.int16: dtypes.int16,
    torch.int8: dtypes.int8,
    torch.uint8: dtypes.uint8,
    torch.bool: dtypes.bool_,
}
_WIDE = (torch.int64,)
_WAYS_OUT = {
    torch.float64: "compute in float32 (x.float(), dtype=torch.float32), or use the host, in eager mode",
    torch.complex64: "keep real and imaginary parts apart (torch.view_as_real), or use the host, in eager mode",
    torch.complex128: "compute in complex64 (x.to(torch.complex64)), or use the host, in eager mode",
}


def format_of(kind: torch.dtype) -> DType:
    """The chip's format for a PyTorch dtype; int64 lies in 32 bits.

    Raises UnsupportedOpError when there is none: TRN212 for float64, TRN248 for the OCP's E4M3 on chips that have
    another one, TRN203 for all others.
    """
    if kind not in _FORMATS:
        name = str(kind).removeprefix("torch.")
        raise UnsupportedOpError(
            f"the chip has no format for {name}",
            code="TRN212" if kind is torch.float64 else "TRN203",
            limit=", ".join(sorted(str(known).removeprefix("torch.") for known in _FORMATS)),
            got=name,
            remedy=_WAYS_OUT.get(kind, "convert it to one of these before the step"),
        )
    if kind is torch.float8_e4m3fn:
        _check_e4m3fn()
    if kind is torch.float32 and is_narrowed():
        return dtypes.bfloat16
    return _FORMATS[kind]


def _check_e4m3fn() -> None:
    now = session()
    if now is None or now.chip.has("fp8_e4m3fn"):
        return
    raise UnsupportedOpError(
        "the chip has no float8_e4m3fn: its E4M3 ends at 240, not at 448, and the vendor's compiler refuses the "
        "format there (NCC_EVRF051)",
        code="TRN248",
        limit="trn3",
        got="float8_e4m3fn",
        chip=now.chip.name,
        remedy="choose a target with trn3, or keep the model in bf16 or fp32 and give --precision fp8, which scales "
        "to the chip's own E4M3",
    )


def session() -> Session | None:
    """The session whose precision decides; None where nobody has chosen a target, as in tests of the importer."""
    from trnlab.runtime import session as sessions

    return sessions.asked()


def is_narrowed() -> bool:
    """Whether what PyTorch calls float32 lies on the chip in bfloat16."""
    if _exact.get():
        return False
    now = session()
    return now is not None and now.precision == EVERYTHING


@contextmanager
def unnarrowed() -> Iterator[None]:
    """Within the block float32 is float32 in every mode."""
    token = _exact.set(True)
    try:
        yield
    finally:
        _exact.reset(token)


def is_wide(kind: torch.dtype) -> bool:
    """Whether numbers of this dtype have more bits than the format that they lie in on the chip."""
    return kind in _WIDE


def kind_of(format: DType) -> torch.dtype:
    """The PyTorch dtype that has this format on the chip, without narrowing."""
    return next(kind for kind, known in _FORMATS.items() if known is format and kind not in _WIDE)


def has_format(kind: torch.dtype) -> bool:
    """Whether tensors of this dtype can lie on the chip."""
    return kind in _FORMATS or kind is torch.complex64


def type_of(tensor: torch.Tensor) -> TensorType:
    """Shape and format that a tensor has on the chip: complex64 is float32 with its two parts as a last dimension."""
    shape = tuple(int(n) for n in tensor.shape)
    if tensor.dtype is torch.complex64 or _is_python_number(tensor):
        return TensorType((*shape, 2), format_of(torch.float32))
    return TensorType(shape, format_of(tensor.dtype))


def _is_python_number(tensor: torch.Tensor) -> bool:
    """Whether a tensor is what PyTorch makes of a complex number of Python: it gives way to the format beside it."""
    return tensor.dtype is torch.complex128 and tensor.dim() == 0 and tensor.device.type == "cpu"


def is_opaque(value: Any) -> bool:
    """Whether a value of a graph is an object that PyTorch does not look into: a process group, a mesh."""
    return isinstance(value, FakeScriptObject)
