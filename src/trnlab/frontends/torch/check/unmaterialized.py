# SPDX-License-Identifier: Apache-2.0
"""Tensors that are too large to be worth values: they have memory, which nobody writes.

The operating system gives a page of memory when it is first written. So a model of any size can be built, moved and
trained as far as shapes go: operators on large tensors are asked for the shapes of their results alone, and these are
allocated and left alone. Small tensors have values as ever, as have integers of any size on the host: data loaders,
samplers and tokenizers look at those.

What depends on values that nobody has is made up, and known to be: ones, which logarithms, quotients and
comparisons take, and zeros of integers, which are indices. Python may ask for such a number and come to grief, so
that each that was handed out is told to whoever follows the script.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, cast

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from trnlab.frontends.torch.device import dlpack
from trnlab.frontends.torch.device.dlpack import as_neuron
from trnlab.frontends.torch.device.host_ops import NOT_HERE
from trnlab.frontends.torch.findings.assumed import assumed, is_mask, number_for
from trnlab.frontends.torch.pytorch import pytree
from trnlab.frontends.torch.pytorch.dispatcher import TorchDispatchMode, modes_off
from trnlab.frontends.torch.pytorch.fakes import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from trnlab.frontends.torch.recording import barriers, choice

LARGE = 1 << 18  # bytes
_MAPPED = 1 << 30  # from this size on not even room in memory is asked for
_ALLOCATES = frozenset(
    {
        "aten::empty",
        "aten::empty_strided",
        "aten::empty_like",
        "aten::new_empty",
        "aten::new_empty_strided",
    }
)
_NUMBER = "aten::_local_scalar_dense"
_NO_WORK = frozenset({"aten::detach", "aten::alias", "aten::set_", "aten::lift_fresh", _NUMBER})
_COLLECTIVES = ("c10d::", "_c10d_functional::", "_dtensor::")  # which groups answer
_COPIES = frozenset({"aten::_to_copy", "aten::copy_", "aten::_copy_from"})

_BY_MASKS = frozenset(
    {
        "aten::index",
        "aten::index_put",
        "aten::index_put_",
        "aten::_index_put_impl_",
        "aten::_unsafe_index",
        "aten::_unsafe_index_put",
    }
)
KEEP = ("aten::_amp",)  # which say whether gradients overflowed: they did not
_WITHOUT_SHAPES = (AssertionError, NotImplementedError, RuntimeError)  # PyTorch's, of operators that it cannot follow

HostOperator = Callable[[str], None]
_MANY = 4096
_made_up: dict[int, StorageWeakRef] = {}  # memory whose values nobody computed, by address of PyTorch's record of it
_known: dict[int, StorageWeakRef] = {}  # large memory that has values all the same


class Unwritten(TorchDispatchMode):
    """Within, large tensors get no values. `on_device` is told each operator that would compute on the device, `read`
    each number that Python asked for and that was made up, `wrote` the tensors that an operator writes to, `arrived`
    each that comes to the device, and `computed` each that the host computes of what is there."""

    def __init__(
        self,
        on_device: HostOperator,
        found: Callable[[Any, Any], None],
        read: Callable[[Any], None] = lambda x: None,
        wrote: Callable[[Sequence[Tensor]], None] = lambda x: None,
        arrived: Callable[[Tensor], None] = lambda x: None,
        computed: Callable[[Tensor], None] = lambda x: None,
    ) -> None:
        super().__init__()
        self._arrived, self._computed = arrived, computed
        self._on_device, self._found, self._read, self._wrote = on_device, found, read, wrote
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """PyTorch's compiler works as if this mode were not there."""
        return True

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchDispatchMode`."""
        kwargs = kwargs or {}
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if any(type(t) not in (Tensor, torch.nn.Parameter) for t in tensors):
            return op(*args, **kwargs)  # of PyTorch's tracers
        if any(t.is_meta for t in tensors) or torch.device(kwargs.get("device") or "cpu").type == "meta":
            return op(*args, **kwargs)  # they have no values by themselves
        if op._schema.is_mutable:
            self._wrote([t for t in pytree.tree_leaves(_changed(op, args, kwargs)) if isinstance(t, Tensor)])
        result = self._followed(op, tensors, args, kwargs)
        if isinstance(result, Tensor) and result.device.type == "neuron":
            if all(t.is_cpu for t in tensors):
                self._arrived(result)
                if not any(is_made_up(t) or is_large(t) for t in tensors):
                    keep_values(memory_of(result), StorageWeakRef(result.untyped_storage()))
            elif _is_made_by_host(op, result):
                self._computed(result)
        if any(map(barriers.is_recorded, pytree.tree_leaves(result))):
            return result  # what it is made of is known when it is computed
        if not any(is_made_up(t) or is_large(t) for t in tensors):
            return result
        if op._schema.name == "aten::all":  # what a script insists on, as on finite gradients, holds
            result.fill_(1)
        return all_made_up(result)

    def _followed(self, op: Any, tensors: Sequence[Tensor], args: Any, kwargs: Any) -> Any:
        name = op._schema.name
        if name == _NUMBER:
            return self._number(op, args[0])
        if self._is_recorded(op, name, tensors, kwargs):
            return op(*args, **kwargs)  # its kernel records it, or asks `on_host`
        if name in _COPIES:
            self._meets(op, tensors, args, kwargs)
        if _is_on_device(tensors, kwargs) and not op.is_view and name not in _NO_WORK | _COPIES | _ALLOCATES:
            self._on_device(name)
            if _by_values(op, args):
                self._found(op, args)
                return self._assumed(op, args, kwargs)
        if op.is_view or torch.Tag.inplace_view in op.tags or name in _NO_WORK:
            return op(*args, **kwargs)
        if any(map(is_large, tensors)):
            return self._shapes(op, args, kwargs)
        if not tensors or name in _ALLOCATES:
            return self._made(op, args, kwargs)
        return op(*args, **kwargs)

    @staticmethod
    def _is_recorded(op: Any, name: str, tensors: Sequence[Tensor], kwargs: Any) -> bool:
        """Whether the operator goes on to the kernel that records: it computes on the device alone."""
        if not _is_on_device(tensors, kwargs) or not choice.follows():
            return False
        if op.is_view or torch.Tag.inplace_view in op.tags or name in _NO_WORK | _ALLOCATES:
            return False
        if name in _COPIES:
            place = kwargs.get("device")
            return all(t.device.type == "neuron" for t in tensors) and (
                place is None or torch.device(place).type == "neuron"
            )
        return not name.startswith(_COLLECTIVES)

    @staticmethod
    def _meets(op: Any, tensors: Sequence[Tensor], args: Any, kwargs: Any) -> None:
        """The host reads or writes memory of the device: what was recorded of it is computed first."""
        written = set(map(id, pytree.tree_leaves(_changed(op, args, kwargs)))) if op._schema.is_mutable else set()
        for t in tensors:
            if t.device.type == "neuron":
                dlpack.before_host(t, id(t) not in written)

    def on_host(self, op: Any, args: Any, kwargs: Any) -> Any:
        """What an operator returns that the host computes; `NOT_HERE` where it is to compute it as ever."""
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        self._on_device(op._schema.name)
        self._meets(op, tensors, args, kwargs)
        with barriers.suspended():
            if _by_values(op, args):
                self._found(op, args)
                return self._assumed(op, args, kwargs)
            return self._shapes(op, args, kwargs) if any(map(is_large, tensors)) else NOT_HERE

    def _number(self, op: Any, tensor: Tensor) -> Any:
        """What Python gets that asks for a number: a harmless one where nobody computed it."""
        if tensor.device.type == "neuron":
            dlpack.before_host(tensor, True)
        if has_values(tensor):
            return op(tensor)
        number = number_for(tensor.dtype, None if is_large(tensor) else op(tensor))
        self._read(number)
        return number

    def _made(self, op: Any, args: Any, kwargs: Any) -> Any:
        """A new tensor: without values where it is large and of floating point."""
        sizes = next((a for a in args if isinstance(a, (list, tuple, torch.Size))), ())
        if not all(isinstance(n, int) for n in sizes) or prod(sizes) * 8 < LARGE:
            return op(*args, **kwargs)
        kind = kwargs.get("dtype") or torch.get_default_dtype()
        if not kind.is_floating_point and str(kwargs.get("device") or "cpu") == "cpu":
            return op(*args, **kwargs)
        return self._shapes(op, args, kwargs)

    def _shapes(self, op: Any, args: Any, kwargs: Any) -> Any:
        """What the operator returns, as far as shapes go; what it writes to stays as it is."""
        if op._schema.is_mutable and not op._schema.returns:
            return None
        if op._schema.is_mutable:
            written = _written(op, args, kwargs)
            if written is not None:
                return written if op._schema.name.startswith(KEEP) else all_made_up(written)
        with modes_off(), self._fake as mode:
            fakes = pytree.tree_map_only(Tensor, lambda t: _fake_of(mode, t), (args, kwargs))
            try:
                result = op(*fakes[0], **fakes[1])
            except (DataDependentOutputException, DynamicOutputShapeException):
                result = None
            except _WITHOUT_SHAPES:
                result = NotImplemented
        if result is NotImplemented:
            return all_made_up(op(*args, **kwargs))
        if result is None:
            return self._assumed(op, _chosen(op, args), kwargs)
        given = {id(f): t for f, t in zip(pytree.tree_leaves(fakes), pytree.tree_leaves((args, kwargs)))}
        return pytree.tree_map_only(Tensor, lambda t: given.get(id(t)) if id(t) in given else like(t), result)

    def _assumed(self, op: Any, args: Any, kwargs: Any) -> Any:
        """What stands for the result; where nothing does, what the operator computes of whatever is there."""
        try:
            with self:
                return assumed(op, args, kwargs)
        except NotImplementedError:
            return all_made_up(op(*args, **kwargs))


@contextmanager
def values_kept() -> Iterator[None]:
    """Within the block operators compute as ever."""
    with modes_off():
        yield


def is_large(tensor: Tensor) -> bool:
    """Whether a tensor has no values: it is large, and on the device or of floating point."""
    try:
        nbytes = tensor.untyped_storage().nbytes()
    except (NotImplementedError, RuntimeError):  # a sparse tensor has no memory of its own
        return False
    return nbytes >= LARGE and (tensor.device.type == "neuron" or tensor.is_floating_point() or tensor.is_complex())


def is_made_up(tensor: Tensor) -> bool:
    """Whether nobody computed the values of a tensor, or those that they were computed from."""
    return is_made_up_memory(memory_of(tensor))


def memory_of(tensor: Tensor) -> int:
    """What all tensors over the same memory have in common; 0 where there is none."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # a sparse tensor has no memory of its own
        return 0


def is_made_up_memory(memory: int) -> bool:
    """`is_made_up`, of what `memory_of` says."""
    held = _made_up.get(memory)
    return held is not None and not held.expired()


def has_values(tensor: Tensor) -> bool:
    """Whether the values of a tensor are what the script would have."""
    return not is_made_up(tensor) and (not is_large(tensor) or is_known_memory(memory_of(tensor)))


def is_known_memory(memory: int) -> bool:
    """Whether large memory has values."""
    held = _known.get(memory)
    return held is not None and not held.expired() and not is_made_up_memory(memory)


def keep_values(memory: int, held: StorageWeakRef) -> None:
    """Memory has values, even if it is large."""
    _forget_gone(_known)
    _known[memory] = held


def _forget_gone(memories: dict[int, StorageWeakRef]) -> None:
    if len(memories) > _MANY:
        for gone in [key for key, held in memories.items() if held.expired()]:
            del memories[gone]


def make_up(memory: int, held: StorageWeakRef) -> None:
    """Nobody computes what is in this memory."""
    _made_up.setdefault(memory, held)


def all_made_up(result: Any) -> Any:
    """What an operator returns, from now on known to be made up."""
    _forget_gone(_made_up)
    for made in pytree.tree_leaves(result):
        if isinstance(made, Tensor) and memory_of(made) and not is_made_up(made):
            _made_up[memory_of(made)] = StorageWeakRef(made.untyped_storage())
    return result


def _chosen(op: Any, args: Any) -> Any:
    """The arguments with masks that do have values, as those of the host may, as indices of what they choose."""
    if op._schema.name not in _BY_MASKS:
        return args
    found: list[Any] = []
    for i in args[1]:
        if is_mask(i) and i.device.type == "cpu" and not is_made_up(i):
            found += i.nonzero(as_tuple=True)
        else:
            found.append(i)
    return (args[0], found, *args[2:])


def like(fake: Tensor) -> Tensor:
    """A tensor with the shape, strides, format and device of `fake`, whose values are made up."""
    return unwritten(fake.shape, fake.stride(), fake.dtype, fake.device.type)


def unwritten(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: str) -> Tensor:
    """A tensor that nobody has written to; a small one is ones, and zeros where it may be indices."""
    made = room(shape, strides, dtype)
    with modes_off():
        return cast(Tensor, all_made_up(as_neuron(made) if device == "neuron" else made))


def room(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Memory of the host that takes none while it is large and nobody writes to it; see `unwritten`."""
    shape, strides = [int(n) for n in shape], [int(n) for n in strides]
    length = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides))
    nbytes = length * dtype.itemsize
    with modes_off():
        floats = dtype.is_floating_point or dtype.is_complex
        if nbytes < LARGE:
            flat = torch.full((length,), int(floats), dtype=dtype)
        elif nbytes < _MAPPED and floats:
            flat = torch.empty(length, dtype=dtype)
        else:
            flat = torch.frombuffer(_mapped(nbytes), dtype=dtype, count=length)
        return flat.as_strided(shape, strides)


def _mapped(nbytes: int) -> mmap.mmap:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    return mmap.mmap(-1, nbytes, flags=flags)


def _fake_of(mode: FakeTensorMode, tensor: Tensor) -> Tensor:
    if tensor.layout is not torch.strided:
        return tensor
    if tensor.dim() == 0 and tensor.device.type == "cpu":
        return tensor  # a number, which PyTorch may want to know
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _written(op: Any, args: Any, kwargs: Any) -> Any:
    """What an operator returns that writes to its arguments: those, as they are; None for one that does more."""
    changed, returns = _changed(op, args, kwargs), op._schema.returns
    if (
        len(changed) == len(returns)
        and all(isinstance(c, Tensor) for c in changed)
        and not op._schema.name.endswith("resize_")
    ):
        return changed[0] if len(changed) == 1 else tuple(changed)
    return None


def _changed(op: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that an operator writes to."""
    names = [a.name for a in op._schema.arguments]
    given = {**dict(zip(names, args)), **kwargs}
    return [
        given[a.name]
        for a in op._schema.arguments
        if a.alias_info is not None and a.alias_info.is_write and a.name in given
    ]


def _is_made_by_host(op: Any, result: Tensor) -> bool:
    """Whether a result on the device is memory of its own with what the host computed, of tensors of the device."""
    moves = op.is_view or op._schema.is_mutable or op._schema.name in _NO_WORK | _ALLOCATES | _COPIES
    return not moves and not barriers.is_recorded(result)


def _is_on_device(tensors: Sequence[Tensor], kwargs: Any) -> bool:
    return any(t.device.type == "neuron" for t in tensors) or (
        not tensors and torch.device(kwargs.get("device") or "cpu").type == "neuron"
    )


def _by_values(op: Any, args: Any) -> bool:
    """Whether the shape of the operator's result depends on values: with indices of integers it does not."""
    if op._schema.name in _BY_MASKS:
        return any(map(is_mask, args[1]))
    return torch.Tag.dynamic_output_shape in op.tags
