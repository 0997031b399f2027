# SPDX-License-Identifier: Apache-2.0
"""Tensors of the kernel language: strided views of tiles in SBUF and PSUM and of arrays in HBM.

A view costs nothing: it is worked out while recording and ends as the access pattern of an instruction. On chip the
first dimension is the partition; it stays first and is never dropped. Strides and offsets count elements.

Source: class NkiTensor of nki.language and get-started/nki-language-guide.rst in aws-neuron/aws-neuron-sdk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from sys import getrefcount
from typing import Any, NoReturn, Self

from trnlab.isa.base import Memory
from trnlab.lang.dynamic_index import Dynamic, Indirect, Lookup
from trnlab.lang.formats import Format, chip_format, format_of
from trnlab.lang.storage import MemorySpace, Storage, refuse
from trnlab.program.access import AP, Pattern, Recorded, Reference, free_dims, hbm_view, pattern_of, record_of
from trnlab.program.strided import inferred, reshaped, row_major

# What `tensor[key] = value` does with the view, the value and the references to it; it is built from tensors itself.
_assign: list[Callable[[Tensor, Any, int], None]] = []


def assigns(function: Callable[[Tensor, Any, int], None]) -> None:
    """Let assignments to tensors do this."""
    _assign.append(function)


PatternList = list[list[int]]
_ALL = slice(None)
_HBM, _IN_SBUF = Memory.HBM, MemorySpace.sbuf  # to look a member up takes 200 ns in Python 3.11


@dataclass(frozen=True)
class IndexWindow:
    """`size` elements from `start` on, in the place of a slice."""

    start: int
    size: int


class Tensor(Reference):
    """A view: `shape` elements, `strides` elements apart, from element `offset` of its storage."""

    __slots__ = ("_indirect", "format", "name", "offset", "shape", "storage", "strides")

    def __init__(
        self,
        storage: Storage,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int = 0,
        fmt: Format | None = None,
        indirect: Indirection | None = None,
        name: str = "",
    ) -> None:
        self.storage, self.shape, self.strides, self.offset = storage, tuple(shape), tuple(strides), offset
        self.format, self._indirect, self.name = fmt or storage.format, indirect, name
        self._recorded = None  # a view does not change, and many instructions name the same one

    # -- what it is ---------------------------------------------------------------------------------------------
    @property
    def dtype(self) -> Format:
        """Its number format."""
        return self.format

    @property
    def buffer(self) -> MemorySpace:
        """Where it lives."""
        return self.storage.region

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def on_chip(self) -> bool:
        """Whether it lies in SBUF or PSUM."""
        return self.storage.region.memory is not _HBM

    @property
    def indirection(self) -> Indirection | None:
        """What of its address is chosen at run time."""
        return self._indirect

    @property
    def indirect_rows(self) -> Indirect[Tensor] | None:
        """How its rows are chosen at run time, if they are."""
        return self._indirect if isinstance(self._indirect, Indirect) else None

    def is_indirect(self) -> bool:
        """Whether its address is known only at run time."""
        return self._indirect is not None

    def is_contiguous(self) -> bool:
        """Whether it walks its storage densely in row-major order (on chip: within each partition)."""
        skip = 1 if self.on_chip else 0
        dense = row_major(self.shape)
        return all(n == 1 or s == d for n, s, d in list(zip(self.shape, self.strides, dense))[skip:])

    def get_pattern(self) -> PatternList:
        """[[stride, count], ...] per dimension, as `ap` takes it."""
        return [[step, count] for step, count in zip(self.strides, self.shape)]

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"<{type(self).__name__}{name} {self.format} {list(self.shape)} in {self.storage.region.value}>"

    def __str__(self) -> str:
        """What it holds at this point of the kernel, while that is recorded with its arrays; else as `repr`."""
        if not self.storage.recorder.watching():
            return repr(self)
        return str(self.storage.recorder.read(self))

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        """Always: kernels ask so whether an argument is there. What it holds is known only when the kernel runs."""
        return True

    @property
    def base_tensor(self) -> Self:
        """All of the memory that it is a view of, in its own format. No documented name; nki-library asks for it."""
        return type(self)(self.storage, self.storage.shape, row_major(self.storage.shape), name=self.name)

    # -- views --------------------------------------------------------------------------------------------------
    def _like(
        self, shape: tuple[int, ...], strides: tuple[int, ...], offset: int | None = None, fmt: Format | None = None
    ) -> Self:
        offset = self.offset if offset is None else offset
        return type(self)(self.storage, shape, strides, offset, fmt or self.format, self._indirect, self.name)

    def __getitem__(self, key: Any) -> Self:
        """Index with integers, slices, `...` and windows, as NumPy would; nothing is clamped."""
        given = key if isinstance(key, tuple) else (key,)
        view = self._window(given)
        if view is not None:
            return view
        keys = self._expand(given)
        if self.indirect_rows is not None and keys[0] != slice(None):
            refuse(
                "rows chosen at run time cannot be sliced",
                limit="all of dimension 0",
                got=keys[0],
                remedy="slice the index instead",
                code="TRN410",
            )
        shape: list[int] = []
        strides: list[int] = []
        offset = self.offset
        for axis, (one, count, step) in enumerate(zip(keys, self.shape, self.strides)):
            start, length, stride, keep = self._bounds(one, axis, count)
            offset += start * step
            if keep:
                shape.append(length)
                strides.append(step * stride)
        while len(shape) < min(2 if self.on_chip else 1, len(self.shape)):
            shape.append(1)
            strides.append(1)
        return self._like(tuple(shape), tuple(strides), offset)

    def _window(self, keys: tuple[Any, ...]) -> Self | None:
        """The view that one slice a dimension selects, which is how kernels mostly index; None for other keys."""
        if len(keys) != len(self.shape) or self._indirect is not None:
            return None
        offset, shape = self.offset, []
        for key, count, step in zip(keys, self.shape, self.strides):
            if key.__class__ is not slice or key.step is not None:
                return None
            start = 0 if key.start is None else key.start
            stop = count if key.stop is None else key.stop
            if start.__class__ is not int or stop.__class__ is not int or not 0 <= start < stop <= count:
                return None
            offset += start * step
            shape.append(stop - start)
        return self._like(tuple(shape), self.strides, offset)

    def _expand(self, keys: tuple[Any, ...]) -> list[Any]:
        ndim = len(self.shape)
        for at, key in enumerate(keys):
            if key is Ellipsis:
                keys = (*keys[:at], *[_ALL] * (ndim - len(keys) + 1), *keys[at + 1 :])
                break
        if len(keys) > ndim:
            refuse(
                "too many indices",
                limit=f"{ndim} dimensions {list(self.shape)}",
                got=len(keys),
                remedy="index at most one per dimension",
                code="TRN410",
            )
        keys = tuple(slice(k.start, k.stop, k.step) if isinstance(k, range) else k for k in keys)
        return [*keys, *[_ALL] * (ndim - len(keys))]

    def _bounds(self, key: Any, axis: int, count: int) -> tuple[int, int, int, bool]:
        """First element, number, step, and whether the dimension stays."""
        if key is _ALL:
            return 0, count, 1, True
        if isinstance(key, IndexWindow):
            key = slice(key.start, key.start + key.size)
        if isinstance(key, slice):
            step = 1 if key.step is None else int(key.step)
            start = 0 if key.start is None else int(key.start)
            stop = count if key.stop is None else int(key.stop)
            start, stop = start + count * (start < 0), stop + count * (stop < 0)
            if not (0 <= start <= stop <= count and step >= 1):
                self._outside(axis, f"{key.start}:{key.stop}:{key.step}".replace("None", "").removesuffix(":"))
            return start, -(-(stop - start) // step), step, True
        if hasattr(key, "__index__"):
            index = int(key)
            index += count * (index < 0)
            if not 0 <= index < count:
                self._outside(axis, int(key))
            return index, 1, 1, axis == 0 and self.on_chip
        refuse(
            f"cannot index dimension {axis} with {type(key).__name__}",
            limit="integers, slices, ..., nl.ds",
            got=key,
            remedy="use a slice, or .ap() for other patterns",
            code="TRN410",
        )

    def _outside(self, axis: int, got: object) -> NoReturn:
        name = self.name or self.storage.buffer.name
        refuse(
            f"index outside of {name!r}, dimension {axis}",
            limit=f"0..{self.shape[axis]} of {list(self.shape)}",
            got=got,
            remedy="slice within the shape, e.g. with min(stop, size)",
            code="TRN410",
        )

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> Self:
        """Elements start, start + step, ... before `end` of one dimension."""
        keys: list[Any] = [slice(None)] * self.ndim
        keys[dim] = slice(start, end, step)
        return self[tuple(keys)]

    def select(self, dim: int, index: Any) -> Self:
        """One element of a dimension, which goes away. A register or a [1, 1] tensor chooses it at run time."""
        keys: list[Any] = [slice(None)] * self.ndim
        if not isinstance(index, Tensor) and not hasattr(index, "operand"):
            keys[dim] = index
            return self[tuple(keys)]
        dim %= self.ndim
        self._not_partition(dim, "select at run time", on_chip_only=True)
        start = self._dynamic(index, self.strides[dim], self.shape[dim])
        keys[dim] = 0
        view = self[tuple(keys)]
        return type(self)(view.storage, view.shape, view.strides, view.offset, view.format, start, view.name)

    def _dynamic(self, index: Any, step: int, count: int | None) -> Dynamic[Tensor]:
        """Checks that one offset is chosen once. Raises ConstraintError otherwise."""
        if self._indirect is not None:
            refuse(
                "only one dynamic address per tensor",
                limit="a view without run-time indices",
                got=self,
                remedy="check with is_indirect(), or move the rows first",
                code="TRN411",
            )
        if isinstance(index, Tensor) and (index.size != 1 or index.format.dtype.kind not in "iu"):
            refuse(
                "a run-time offset is one whole number",
                limit="int32 or uint32 of shape (1, 1), or a register",
                got=index,
                remedy="slice out one element",
                code="TRN409",
            )
        self.storage.recorder.dynamic = True
        return Dynamic(index, step, count)

    def vector_select(self, dim: int, vector_offset: Tensor) -> Self:
        """Row p of the result is row vector_offset[p] of this HBM tensor (dim 0 only)."""
        if dim != 0 or self.on_chip or self._indirect is not None:
            refuse(
                "vector_select works once, on dimension 0 of a tensor in HBM",
                limit="dim=0, HBM",
                got=(dim, self),
                remedy="move the dimension to the front, or load the rows first",
                code="TRN410",
            )
        rows = Indirect(vector_offset, self.shape[0], self.strides[0])
        shape = (vector_offset.shape[0], *self.shape[1:])
        return type(self)(self.storage, shape, self.strides, self.offset, self.format, rows, self.name)

    def permute(self, dims: tuple[int, ...]) -> Self:
        """Dimensions in another order; on chip dimension 0 stays first."""
        dims = tuple(d + self.ndim if d < 0 else d for d in dims)
        if sorted(dims) != list(range(self.ndim)) or (self.on_chip and dims[0] != 0):
            refuse(
                "not an order of the dimensions that keeps the partition first",
                limit=list(range(self.ndim)),
                got=list(dims),
                remedy="use nc_transpose or dma_transpose to swap with the partition",
            )
        return self._like(tuple(self.shape[d] for d in dims), tuple(self.strides[d] for d in dims))

    def broadcast(self, dim: int, size: int) -> Self:
        """Repeat a dimension of one element `size` times."""
        dim += self.ndim * (dim < 0)
        if self.shape[dim] != 1 or (self.on_chip and dim == 0):
            refuse(
                "only a free dimension of one element can be broadcast",
                limit="size 1, not the partition",
                got=f"dimension {dim} of {list(self.shape)}",
                remedy="expand_dim first",
            )
        shape, strides = list(self.shape), list(self.strides)
        shape[dim], strides[dim] = size, 0
        return self._like(tuple(shape), tuple(strides))

    def expand_dim(self, dim: int) -> Self:
        """A new dimension of one element at `dim`, counted in the result."""
        dim += (self.ndim + 1) * (dim < 0)
        self._not_partition(dim, "expand_dim")
        return self._like((*self.shape[:dim], 1, *self.shape[dim:]), (*self.strides[:dim], 1, *self.strides[dim:]))

    def squeeze_dim(self, dim: int) -> Self:
        """Without dimension `dim`, which has one element."""
        dim += self.ndim * (dim < 0)
        self._not_partition(dim, "squeeze_dim")
        if self.shape[dim] != 1:
            refuse("only a dimension of one element can go", limit=1, got=self.shape[dim], remedy="use reshape")
        return self._like(
            (*self.shape[:dim], *self.shape[dim + 1 :]), (*self.strides[:dim], *self.strides[dim + 1 :])
        )

    def reshape_dim(self, dim: int, shape: tuple[int, ...]) -> Self:
        """Split one dimension; one of the new sizes may be -1."""
        dim += self.ndim * (dim < 0)
        shape = inferred(tuple(shape), self.shape[dim])
        if len(shape) > 1:
            self._not_partition(dim, "reshape_dim")
        return self._reshaped((*self.shape[:dim], *shape, *self.shape[dim + 1 :]))

    def flatten_dims(self, start_dim: int, end_dim: int) -> Self:
        """Merge dimensions start_dim..end_dim, both included."""
        start_dim, end_dim = (dim + self.ndim * (dim < 0) for dim in (start_dim, end_dim))
        self._not_partition(start_dim, "flatten_dims")
        middle = prod(self.shape[start_dim : end_dim + 1])
        return self._reshaped((*self.shape[:start_dim], middle, *self.shape[end_dim + 1 :]))

    def reshape(self, shape: Any, *more: Any) -> Self:
        """The same elements in another shape, a tuple or its sizes; on chip the partition keeps its size."""
        sizes = shape if isinstance(shape, (tuple, list)) else (shape, *more)
        wanted = inferred(tuple(int(s) for s in sizes), self.size)
        if self.on_chip and wanted[0] != self.shape[0]:
            refuse(
                "reshape keeps the partition dimension",
                limit=self.shape[0],
                got=list(wanted),
                remedy="load it in that shape, nl.load(x.reshape(...)) or nl.load_transpose2d(x), or move it to a "
                "tile of that shape with nisa.dma_copy or nc_transpose",
            )
        return self._reshaped(wanted)

    def _reshaped(self, wanted: tuple[int, ...]) -> Self:
        keep = 1 if self.on_chip or self.indirect_rows is not None else 0
        strides = None
        if prod(wanted) == self.size and wanted[:keep] == self.shape[:keep]:
            strides = reshaped(self.shape[keep:], self.strides[keep:], wanted[keep:])
        if strides is None:
            refuse(
                "no such view of this tensor",
                limit=f"{list(self.shape)} with strides {list(self.strides)}",
                got=list(wanted),
                remedy="copy it into a contiguous tile first",
            )
        return self._like(wanted, (*self.strides[:keep], *strides))

    def rearrange(
        self, src_pattern: tuple[Any, ...], dst_pattern: tuple[Any, ...], fixed_sizes: dict[str, int] | None = None
    ) -> Self:
        """Split, reorder and merge named dimensions, e.g. ("p", ("h", "w")) to ("p", "w", "h")."""
        known = dict(fixed_sizes or {})
        split: list[int] = []
        names: list[str] = []
        for size, group in zip(self.shape, src_pattern):
            group = (group,) if isinstance(group, str) else tuple(group)
            sizes = inferred(tuple(known.get(n, -1) for n in group), size)
            known.update(zip(group, sizes))
            split.extend(sizes)
            names.extend(group)
        groups = [(g,) if isinstance(g, str) else tuple(g) for g in dst_pattern]
        order = [names.index(n) for g in groups for n in g]
        view = self._reshaped(tuple(split))
        view = view._like(tuple(view.shape[i] for i in order), tuple(view.strides[i] for i in order))
        return view._reshaped(tuple(prod(known[n] for n in g) for g in groups))

    def ap(
        self,
        pattern: Any,
        offset: int | None = None,
        scalar_offset: Any = None,
        vector_offset: Tensor | None = None,
        indirect_dim: int = 0,
        dtype: Any = None,
    ) -> Self:
        """Any pattern [[stride, count], ...] over the storage; `offset` counts elements from this view's own."""
        fmt = self.format if dtype is None else format_of(dtype)
        base = self.offset * self.format.itemsize // fmt.itemsize
        chosen: Indirection | None = self._indirect
        if scalar_offset is not None or vector_offset is not None:
            indirect_dim %= self.ndim
            step = self.strides[indirect_dim] * self.format.itemsize // fmt.itemsize
        if scalar_offset is not None:
            if vector_offset is not None:
                refuse(
                    "an access pattern takes one kind of offset",
                    limit="scalar_offset or vector_offset",
                    got="both",
                    remedy="leave one out",
                    code="TRN411",
                )
            if not isinstance(scalar_offset, Tensor) and not hasattr(scalar_offset, "operand"):
                base += int(scalar_offset) * step
            else:
                self._not_partition(indirect_dim, "a run-time offset", on_chip_only=True)
                chosen = self._dynamic(scalar_offset, step, None)
        if vector_offset is not None:
            if indirect_dim != 0:
                refuse(
                    "a vector of offsets picks rows of dimension 0",
                    limit="indirect_dim=0",
                    got=indirect_dim,
                    remedy="reshape so that rows are picked, or use nisa.nc_n_gather",
                    code="TRN411",
                )
            chosen = Indirect(vector_offset, self.shape[indirect_dim], step)
        shape, strides = tuple(int(c) for _, c in pattern), tuple(int(s) for s, _ in pattern)
        return type(self)(self.storage, shape, strides, base + (offset or 0), fmt, chosen, self.name)

    def view(self, dtype: Any) -> Self:
        """The same bytes read as another format; the last dimension grows or shrinks with the element size."""
        fmt = format_of(dtype)
        old, new = self.format.itemsize, fmt.itemsize
        if self.strides[-1] != 1 and self.shape[-1] != 1 and old != new:
            refuse(
                "only a contiguous last dimension can change its format",
                limit="stride 1",
                got=self.strides[-1],
                remedy="take the view before slicing or permuting",
            )
        if self.shape[-1] * old % new or any(s * old % new for s in (*self.strides[:-1], self.offset)):
            refuse(
                "the new format does not divide the rows",
                limit=f"multiples of {new} bytes",
                got=list(self.shape),
                remedy="choose a row length that is a multiple of the element size",
            )
        shape = (*self.shape[:-1], self.shape[-1] * old // new)
        strides = (*(s * old // new for s in self.strides[:-1]), 1)
        return self._like(shape, strides, self.offset * old // new, fmt)

    reinterpret_cast = view

    def _rows_left(self, rows: Indirect[Tensor]) -> int:
        """How many rows of a table there are from the view's offset on, all within the tensor."""
        span = sum((n - 1) * s for n, s in zip(self.shape[1:], self.strides[1:]))
        size = self.storage.buffer.nbytes // self.format.itemsize
        return max(min(rows.rows, (size - 1 - span - self.offset) // max(rows.step, 1) + 1), 1)

    def indirect(self, index: Tensor, num_elem: int | None = None) -> Self:
        """Columns of an on-chip tensor chosen at run time: [P, num_elem]; see `isa.indirection` for the index.

        Raises ConstraintError for a tensor whose rows are not dense.
        """
        if not self.on_chip or self._indirect is not None or not self.is_contiguous():
            refuse(
                "columns are picked of a dense tensor on chip",
                limit="SBUF or PSUM, contiguous rows",
                got=self,
                remedy="copy it into a tile of its own first",
                code="TRN410",
            )
        in_sbuf = isinstance(index, Tensor) and index.storage.region is _IN_SBUF
        if not in_sbuf or index.shape[0] != self.shape[0]:
            refuse(
                "an index has the partitions of what it picks from",
                limit=f"[{self.shape[0]}, n] in SBUF",
                got=index,
                remedy="load the offsets into a tile of that height",
            )
        self.storage.recorder.dynamic = True
        count = index.size if num_elem is None else int(num_elem)
        lookup = Lookup(index, prod(self.shape[1:]))
        return type(self)(
            self.storage, (self.shape[0], count), (self.strides[0], 0), self.offset, self.format, lookup, self.name
        )

    def _not_partition(self, dim: int, what: str, on_chip_only: bool = False) -> None:
        if dim == 0 and (self.on_chip or (self.indirect_rows is not None and not on_chip_only)):
            refuse(
                f"{what} cannot touch the partition dimension",
                limit="dim > 0",
                got=dim,
                remedy="only data movement changes partitions",
            )

    def __setitem__(self, key: Any, value: Any) -> None:
        """A copy, a transfer or a fill, see `lang.assignment`."""
        references = getrefcount(value)
        if not _assign:
            refuse(
                "nothing says what an assignment does",
                limit="trnlab.nki imported",
                got=f"{self!r}[...] = ...",
                remedy="import trnlab.nki",
                code="TRN411",
            )
        _assign[-1](self[key], value, references)

    # -- what instructions see ----------------------------------------------------------------------------------
    def access(self, keep_dims: bool = False) -> AP:
        """The access pattern. `keep_dims`: free dimensions as they are, for instructions that tell them apart.

        Raises ConstraintError for a pattern that no instruction can carry, such as that of no elements: a core that
        has nothing to do may slice its share, and not use it.
        """
        if not self.size:
            refuse(
                "an instruction on no elements",
                limit="1 element and more",
                got=list(self.shape),
                remedy="leave the instruction out where the slice is empty",
                code="TRN410",
            )
        return self._pattern(keep_dims)

    def recorded(self) -> Recorded:
        """As that of its access pattern, which is made only for tensors of a new form."""
        if self._recorded is None:
            self._recorded = self._placed() or self._pattern(False).recorded()
        return self._recorded

    def _placed(self) -> Recorded | None:
        """What is recorded of a view on chip; None for other views, and those that instructions cannot carry."""
        storage = self.storage
        buffer = storage.buffer
        if storage.region.memory is _HBM or self._indirect is not None:
            return None
        pattern, itemsize, step = _form(storage.region.memory, self.format, self.shape, self.strides)
        row = buffer.nbytes // itemsize
        if row == 0 or (step and step != row):
            return None
        partition, start = divmod(self.offset, row)
        offset = start * itemsize
        inside = partition + self.shape[0] <= buffer.partitions and offset + pattern.high < buffer.nbytes
        return record_of(pattern.number, buffer, partition, offset) if inside and pattern.low + offset >= 0 else None

    def _pattern(self, keep_dims: bool) -> AP:
        fmt = chip_format(self.format)
        dims = free_dims(self.strides, self.shape, keep_dims)
        buffer = self.storage.buffer
        if not self.on_chip:
            step = self.strides[0] if self.shape else 1
            count = self.shape[0] if self.shape else 1
            rows = self.indirect_rows
            if rows is not None:
                step, count = rows.step, self._rows_left(rows)
            if len(self.shape) < 2 and count > 1 and rows is None:  # a vector is one row
                step, count, dims = 0, 1, ((step, count),)
            if fmt is buffer.dtype:
                return hbm_view(buffer, self.offset, ((step, count), *dims))
            return AP(buffer, fmt, 0, count, step * fmt.itemsize, self.offset * fmt.itemsize, dims)
        row = buffer.nbytes // fmt.itemsize
        if self.shape[0] > 1 and self.strides[0] != row:
            refuse(
                "the partition step must be the tile's own",
                limit=f"{row} elements per partition",
                got=self.strides[0],
                remedy="start the pattern with [elements per partition, partitions]",
                code="TRN407",
            )
        partition, start = divmod(self.offset, row) if row else (0, 0)
        reach = self._indirect.reach if isinstance(self._indirect, Lookup) else 0
        return AP(buffer, fmt, partition, self.shape[0], 0, start * fmt.itemsize, dims, reach)


Indirection = Indirect[Tensor] | Dynamic[Tensor] | Lookup[Tensor]


@lru_cache(maxsize=65536)
def _form(memory: Memory, fmt: Format, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[Pattern, int, int]:
    """What views on chip of one form share: the pattern, bytes of an element, and the step between partitions, 0 for
    one."""
    chip = chip_format(fmt)
    form = pattern_of(int(memory), chip.code, shape[0], 0, free_dims(strides, shape))
    return form, chip.itemsize, strides[0] if shape[0] > 1 else 0
