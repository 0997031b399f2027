# SPDX-License-Identifier: Apache-2.0
"""Collectives as operators of PyTorch's dispatcher, where somebody listens there.

A process group written in C++ calls operators `c10d::...`; one written in Python is called itself. Modes would see
nothing of it (`CommDebugMode` counts those operators), and tensors of classes with a `__torch_dispatch__` of their
own (DTensor, tensors made of others) would arrive as they are, with no memory to read. So such a call goes through
the operator, by a process group of C++ that has nothing but the operators, and comes back to the method as its
kernel: below the modes, and once for each tensor that a class puts in its place.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from trnlab.frontends.torch.device.dispatch import untraced
from trnlab.frontends.torch.distributed.jobs import PendingCall
from trnlab.frontends.torch.distributed.work import NeuronWork
from trnlab.frontends.torch.pytorch.collectives import FakeWork
from trnlab.frontends.torch.pytorch.dispatcher import is_handled_in_python, mode_count, modes

Method = Callable[..., NeuronWork]
Group = TypeVar("Group")

_OPERATORS = {
    "allreduce": "allreduce_",
    "allreduce_coalesced": "allreduce_coalesced_",
    "reduce": "reduce_",
    "reduce_scatter": "reduce_scatter_",
    "reduce_scatter_single": "_reduce_scatter_base_",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced_",
    "broadcast": "broadcast_",
    "allgather": "allgather_",
    "allgather_coalesced": "allgather_coalesced_",
    "all_gather_single": "_allgather_base_",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced_",
    "gather": "gather_",
    "scatter": "scatter_",
    "all_to_all_single": "alltoall_base_",
    "alltoall": "alltoall_",
    "send": "send",
    "recv": "recv_",
    "recv_anysource": "recv_any_source_",
}
_LIBRARIES: list[torch.library.Library] = []


class _Asked(NamedTuple):
    """A call on its way through the dispatcher."""

    method: Method
    group: Any
    arguments: tuple[Any, ...]
    jobs: list[PendingCall]  # what it came to


_ASKED: ContextVar[_Asked | None] = ContextVar("_ASKED", default=None)


def dispatched(cls: type[Group]) -> type[Group]:
    """The same class of process groups; its collectives are operators where somebody listens."""
    for name in _OPERATORS:
        method = vars(cls)[name]
        heard = _heard(name, method)
        for alias in [alias for alias, member in vars(cls).items() if member is method]:
            setattr(cls, alias, heard)
    return cls


def _heard(name: str, method: Method) -> Method:
    taking = inspect.signature(method)

    @untraced
    @wraps(method)
    def collective(group: Any, *arguments: Any, **named: Any) -> NeuronWork:
        if named:
            arguments = taking.bind(group, *arguments, **named).args[1:]
        if not group.transport.reads or not _listeners(arguments):
            return method(group, *arguments)
        asked = _Asked(method, group, arguments, [])
        token = _ASKED.set(asked)
        try:
            getattr(_operators(group), name)(*arguments)
        finally:
            _ASKED.reset(token)
        return NeuronWork(asked.jobs, arguments[0])

    return collective


def _operators(group: Any) -> dist.ProcessGroup:
    """A process group of C++ with the same ranks. Its methods call the operators, whose kernels are ours."""
    if not _LIBRARIES:
        _install()
    return dist.ProcessGroup(group.getRank(), group.getSize())


def _listeners(arguments: tuple[Any, ...]) -> bool:
    """Whether a mode of the script's is on, or a class of tensors handles operators, for tensors of the device."""
    tensors = list(_tensors(arguments))
    if not any(tensor.device.type == "neuron" for tensor in tensors):
        return False
    if mode_count() and any(map(_of_the_script, modes())):
        return True
    return any(map(is_handled_in_python, tensors))


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _of_the_script(mode: Any) -> bool:
    """Neither one of ours nor one that PyTorch itself traces with."""
    return getattr(mode, "_mode_key", None) is None and not type(mode).__module__.startswith("trnlab.")


def _install() -> None:
    """Make the methods what the operators run on the device, for calls that come from them; no others change."""
    library = torch.library.Library("c10d", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of PyTorch, that kernels are replaced: on purpose
        for operator in _OPERATORS.values():
            op = getattr(torch.ops.c10d, operator).default
            kernel = _kernel(op._schema, torch.library.get_kernel(op, "PrivateUse1"))
            library.impl(operator, kernel, "PrivateUse1", with_keyset=True, allow_override=True)
    _LIBRARIES.append(library)


def _kernel(schema: Any, former: Any) -> Callable[..., Any]:
    count = [argument.name for argument in schema.arguments].index("process_group")  # tensors stand before it
    alone = len(schema.returns) == 1

    @untraced
    def kernel(keys: Any, *arguments: Any) -> Any:
        asked = _ASKED.get()
        if asked is None:
            return former.call_boxed(keys, *arguments)
        work = asked.method(asked.group, *arguments[:count], *asked.arguments[count:])
        asked.jobs.extend(work.jobs)
        handle = FakeWork().boxed()  # of the operator; the script gets what the jobs say
        return handle if alone else (arguments[0], handle)

    return kernel
