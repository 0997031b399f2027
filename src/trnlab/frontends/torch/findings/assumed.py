# SPDX-License-Identifier: Apache-2.0
"""What stands for results that depend on values nobody has, so that the walk goes on after it has noted them.

Where values decide how long a result is, it gets the most that it can have: every element chosen. A number that
Python asks for is one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trnlab.errors import Location
from trnlab.findings import ERROR, WARNING
from trnlab.frontends.torch.findings.locations import RecordLines
from trnlab.frontends.torch.findings.survey import Survey
from trnlab.frontends.torch.pytorch import pytree
from trnlab.frontends.torch.pytorch.dispatcher import TorchDispatchMode
from trnlab.frontends.torch.pytorch.fakes import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorDeviceMismatchError,
)

_INDEX = (
    "aten::index",
    "aten::index_put",
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::_unsafe_index",
    "aten::_unsafe_index_put",
)
_BY_MASK = "indexing with a boolean mask"
_MASKS = (torch.bool, torch.uint8)
EVERY = "the walk went on as if every element was chosen"
ON_HOST = f"so that it runs on the host and can be in no compiled step; {EVERY}"
COUNTED = "so that how many are chosen is read back, which cuts the step, and it can be in no compiled step"


def assumed(op: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """What stands for the result of an operator that depends on values."""
    name = op._schema.name
    if name in _INDEX:
        return op(args[0], _every(args[1]), *args[2:], **kwargs)
    if name == "aten::_local_scalar_dense":
        return number_for(args[0].dtype)
    if name in ("aten::equal", "aten::is_nonzero", "aten::allclose"):
        return True
    if name == "aten::_linalg_check_errors":
        return None  # a matrix that nobody knows is not singular
    x = next(a for a in args if isinstance(a, Tensor))
    if name in ("aten::nonzero", "aten::argwhere"):
        return x.new_zeros((x.numel(), x.dim()), dtype=torch.int64)
    if name == "aten::masked_select":
        shape = torch.broadcast_shapes(x.shape, args[1].shape)
        return x.expand(shape).reshape(-1)
    if name in ("aten::_unique2", "aten::unique_consecutive", "aten::unique_dim", "aten::_unique"):
        values = x.clone() if name == "aten::unique_dim" else x.reshape(-1)
        index = x.new_zeros(x.shape, dtype=torch.int64)
        return (values, index) if name == "aten::_unique" else (values, index, index.reshape(-1))
    if name == "aten::repeat_interleave":
        return x.new_zeros((x.numel(),), dtype=torch.int64)
    if name == "aten::bincount":
        return x.new_zeros((max(int(kwargs.get("minlength", 0)), 1),), dtype=torch.int64)
    raise NotImplementedError(f"the result of {name} has a shape that depends on values")


def _every(indices: Sequence[Any]) -> list[Any]:
    """Indices of every element in the place of masks."""
    found: list[Any] = []
    for i in indices:
        if is_mask(i):
            found += [i.new_zeros((i.numel(),), dtype=torch.int64) for _ in range(i.dim())]
        else:
            found.append(i)
    return found


def is_mask(index: Any) -> bool:
    """Whether an index chooses elements by their places, so that its values say how many there are."""
    return isinstance(index, Tensor) and index.dtype in _MASKS


def number_for(dtype: torch.dtype, computed: Any = None) -> Any:
    """A number in place of one that nobody knows: what was computed from others like it where that is finite and
    positive, else one, which logarithms, quotients and comparisons take."""
    if dtype is torch.bool:
        return True if computed is None else computed
    if isinstance(computed, (int, float)) and math.isfinite(computed) and computed > 0:
        return computed
    return 1.0 if dtype.is_floating_point else complex(1) if dtype.is_complex else 1


class Assumed(TorchDispatchMode):
    """While a step is traced for a survey: operators that depend on values, and mixed devices, are noted, and
    something stands for their results."""

    def __init__(self, lines: RecordLines, survey: Survey) -> None:
        super().__init__()
        self._lines, self._survey = lines, survey

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchDispatchMode`."""
        kwargs = kwargs or {}
        try:
            return op(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            note_values(self._survey, op, self._lines.here())
            return assumed(op, args, kwargs)
        except FakeTensorDeviceMismatchError as error:
            self._survey.note(
                "TRN111",
                "an operator of the step gets tensors of two devices",
                self._lines.here(),
                why=str(error).strip().splitlines()[-1],
                do='move the batch and what else it reads with x.to("neuron")',
                subject=str(self._lines.here()),
            )
            moved = pytree.tree_map_only(Tensor, lambda t: t.to("neuron"), (args, kwargs))
            return op(*moved[0], **moved[1])


def note_values(survey: Survey, op: Any, where: Location | None, how: str = "") -> None:
    """An operator whose result has a shape, or is a number, that depends on values. how: what becomes of it outside
    of programs; in one it is an error."""
    name = op._schema.name.removeprefix("aten::").strip("_")
    by_mask, first = f"{_BY_MASK} {where}", f"nonzero {where}"
    if name == "nonzero" and survey.knows("TRN204", by_mask):
        return  # which is how PyTorch takes a mask
    said = _BY_MASK if op._schema.name in _INDEX else name
    if said == _BY_MASK:
        survey.drop("TRN204", first)
    survey.note(
        "TRN204",
        f"{said} needs the values of a tensor: the shape of its result depends on them",
        where,
        severity=WARNING if how else ERROR,
        why="a program of the chip has fixed shapes" + (f", {how}" if how else f"; {EVERY}"),
        do="keep the shape and choose with torch.where(mask, x, 0) or a multiplication by the mask; x[mask].mean() "
        "is (x * mask).sum() / mask.sum()",
        subject=f"{said} {where}",
    )
