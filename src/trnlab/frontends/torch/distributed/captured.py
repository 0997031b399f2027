# SPDX-License-Identifier: Apache-2.0
"""What a captured step asks a process group for by itself (`dist.all_reduce`, ...), as operators of its trace.

The methods of process groups, which all spellings end in, are replaced while a step is traced: each calls the
functional collective and copies the result to where the script wants it. That is done when somebody reads it, so a
handle has nothing to wait for. Transfers between two ranks that are on their way together are one exchange of the
whole group.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from trnlab.errors import UnsupportedOpError
from trnlab.frontends.torch.findings.locations import RecordLines
from trnlab.frontends.torch.pytorch.collectives import operators

Tensors = Sequence[Tensor]
_INSTEAD = {
    "reduce": "use all_reduce, and read the result where it is wanted",
    "gather": "use all_gather_into_tensor, and read the result where it is wanted",
    "scatter": "broadcast the whole tensor, and take this rank's part of it",
    "recv_anysource": "name the rank that sends",
    "allgather_coalesced": "use all_gather_into_tensor for each tensor; the compiler moves them together",
}


class Handle:
    """What the script gets for a collective of its trace. `wait` runs the transfers that it stands for."""

    def __init__(self, tensors: Any, transfers: Transfers | None = None) -> None:
        self.tensors, self._transfers = tensors, transfers

    def wait(self, timeout: Any = None) -> bool:
        """True: the results are there for whoever reads them."""
        if self._transfers is not None:
            self._transfers.run()
        return True

    def synchronize(self) -> None:
        """The same."""
        self.wait()

    block_current_stream = synchronize

    def is_completed(self) -> bool:
        """Whether it is over: when somebody asks it is."""
        return self.wait()

    is_success = is_completed

    def exception(self) -> None:
        """Nothing: what goes wrong does so when the program runs."""

    def result(self) -> Any:
        """The tensors that are written."""
        return self.tensors

    def get_future(self) -> Any:
        """A future that is there already."""
        self.wait()
        future: Any = torch.futures.Future()
        future.set_result(self.tensors)
        return future


class Transfers:
    """Messages from and to other ranks of a group, from the first that is asked for until somebody waits for one."""

    def __init__(self, group: Any) -> None:
        self.group, self._sent, self._wanted = group, [], []  # type: ignore[var-annotated]

    def send(self, tensor: Tensor, peer: int) -> None:
        """The values that it has now."""
        self._sent.append((peer, tensor.detach().clone().reshape(-1)))

    def receive(self, tensor: Tensor, peer: int) -> None:
        """Into a tensor."""
        self._wanted.append((peer, tensor))

    def run(self) -> None:
        """One exchange of all, for each format in turn."""
        (sent, wanted), (self._sent, self._wanted) = (self._sent, self._wanted), ([], [])
        for dtype in sorted({x.dtype for _, x in (*sent, *wanted)}, key=str):
            self._exchange([x for x in sent if x[1].dtype == dtype], [x for x in wanted if x[1].dtype == dtype])

    def _exchange(self, sent: list[tuple[int, Tensor]], wanted: list[tuple[int, Tensor]]) -> None:
        size = self.group.size()
        gives, takes = (
            [sum(x.numel() for peer, x in some if peer == p) for p in range(size)] for some in (sent, wanted)
        )
        like = (sent or wanted)[0][1]
        parts = [x for p in range(size) for peer, x in sent if peer == p]
        flat = torch.cat(parts) if parts else like.new_zeros(0)
        places = [x for p in range(size) for peer, x in wanted if peer == p]
        _put_parts(places, _call("all_to_all_single", flat, takes, gives, self.group.group_name))


class _Groups:
    """The methods, as they are while a step is traced. The first argument of each is the process group."""

    def __init__(self, lines: RecordLines) -> None:
        self._lines = lines
        self._transfers: dict[Any, Transfers] = {}

    def finish(self) -> None:
        """Run the transfers that nobody has waited for."""
        for each in self._transfers.values():
            each.run()

    def methods(self) -> dict[str, Callable[..., Any]]:
        """By the name that a process group has for each."""
        own: dict[str, Callable[..., Any]] = {
            "allreduce": self.all_reduce,
            "allreduce_coalesced": self.all_reduce,
            "all_gather_single": self.all_gather_single,
            "_allgather_base": self.all_gather_single,
            "all_gather_single_coalesced": self.all_gather_coalesced,
            "allgather_into_tensor_coalesced": self.all_gather_coalesced,
            "allgather": self.all_gather,
            "reduce_scatter_single": self.reduce_scatter_single,
            "_reduce_scatter_base": self.reduce_scatter_single,
            "reduce_scatter_single_coalesced": self.reduce_scatter_coalesced,
            "reduce_scatter_tensor_coalesced": self.reduce_scatter_coalesced,
            "reduce_scatter": self.reduce_scatter,
            "broadcast": self.broadcast,
            "all_to_all_single": self.all_to_all_single,
            "alltoall_base": self.all_to_all_single,
            "alltoall": self.all_to_all,
            "barrier": self.barrier,
            "monitored_barrier": self.barrier,
            "_start_coalescing": self.barrier,
            "_end_coalescing": self.barrier,
        }
        found = {name: self._method(method) for name, method in own.items()}
        transfers = {"send": self.send, "recv": self.receive}
        return (
            found
            | {name: _traced(method) for name, method in transfers.items()}
            | {name: self._refused(name) for name in _INSTEAD}
        )

    def _method(self, run: Callable[..., Any]) -> Callable[..., Handle]:
        def method(group: Any, *args: Any, **kwargs: Any) -> Handle:
            self.finish()  # who sends first and then meets the others does so on all ranks
            return Handle(run(group, *args, **kwargs))

        return _traced(method)

    def _refused(self, name: str) -> Callable[..., Any]:
        def method(group: Any, *args: Any, **kwargs: Any) -> Any:
            raise UnsupportedOpError(
                f"a captured step calls {name}, and the programs of its ranks would not be alike",
                code="TRN286",
                where=self._lines.here(),
                limit="collectives in which all ranks do the same",
                got=name,
                remedy=_INSTEAD[name],
            )

        return method

    # -- collectives --------------------------------------------------------------------------------------------
    def all_reduce(self, group: Any, tensors: Tensors, opts: Any = None) -> Tensors:
        """In place, several at once."""
        op, factor = _reduction(opts)
        given = [x.detach() if factor is None else x.detach() * factor for x in tensors]
        _put(tensors, _call("all_reduce_coalesced", given, op, group.group_name))
        return tensors

    def all_gather_single(self, group: Any, output: Tensor, given: Tensor, opts: Any = None) -> Tensor:
        """One tensor behind the other."""
        self.all_gather_coalesced(group, [output], [given])
        return output

    def all_gather_coalesced(self, group: Any, outputs: Tensors, givens: Tensors, opts: Any = None) -> Tensors:
        """Several at once."""
        flat = [x.detach().reshape(-1) for x in givens]
        _put(outputs, _call("all_gather_into_tensor_coalesced", flat, group.size(), group.group_name))
        return outputs

    def all_gather(self, group: Any, outputs: Sequence[Tensors], givens: Tensors, opts: Any = None) -> Any:
        """Into lists, whose tensors may differ in size."""
        for places, given in zip(outputs, givens, strict=True):
            largest = max(x.numel() for x in places)
            whole = _call("all_gather_into_tensor", _padded(given, largest), group.size(), group.group_name)
            _put(places, [part[: x.numel()] for x, part in zip(places, whole.view(len(places), largest))])
        return outputs

    def reduce_scatter_single(self, group: Any, output: Tensor, given: Tensor, opts: Any = None) -> Tensor:
        """Reduce-scatter of one part for each rank."""
        self.reduce_scatter_coalesced(group, [output], [given], opts)
        return output

    def reduce_scatter_coalesced(self, group: Any, outputs: Tensors, givens: Tensors, opts: Any = None) -> Tensors:
        """Several at once."""
        op, factor = _reduction(opts)
        flat = [(x.detach() if factor is None else x.detach() * factor).reshape(-1) for x in givens]
        found = _call("reduce_scatter_tensor_coalesced", flat, op, group.size(), group.group_name)
        _put(outputs, found)
        return outputs

    def reduce_scatter(self, group: Any, outputs: Tensors, givens: Sequence[Tensors], opts: Any = None) -> Tensors:
        """Reduce-scatter of lists, whose tensors may differ in size."""
        op, factor = _reduction(opts)
        for output, parts in zip(outputs, givens, strict=True):
            largest = max(x.numel() for x in parts)
            flat = torch.cat([_padded(x if factor is None else x * factor, largest) for x in parts])
            found = _call("reduce_scatter_tensor", flat, op, group.size(), group.group_name)
            _put([output], [found[: output.numel()]])
        return outputs

    def broadcast(self, group: Any, tensors: Tensors, opts: Any = None) -> Tensors:
        """From a position of the group."""
        root = opts.rootRank if opts is not None else 0
        _put(tensors, [_call("broadcast", x.detach(), root, group.group_name) for x in tensors])
        return tensors

    def all_to_all_single(
        self, group: Any, output: Tensor, given: Tensor, takes: Sequence[int], gives: Sequence[int], opts: Any = None
    ) -> Tensor:
        """Parts along the first dimension, equal where no sizes are named."""
        if not takes and not gives:  # of all elements, whatever the shapes
            count, size = given.numel() // group.size(), group.size()
            takes = gives = [count] * size
            given = given.reshape(-1)
        takes = list(takes) or [output.shape[0] // group.size()] * group.size()
        gives = list(gives) or [given.shape[0] // group.size()] * group.size()
        _put([output], [_call("all_to_all_single", given.detach(), takes, gives, group.group_name)])
        return output

    def all_to_all(self, group: Any, outputs: Tensors, givens: Tensors, opts: Any = None) -> Tensors:
        """All-to-all of lists."""
        flat = torch.cat([x.detach().reshape(-1) for x in givens])
        takes, gives = [x.numel() for x in outputs], [x.numel() for x in givens]
        _put_parts(outputs, _call("all_to_all_single", flat, takes, gives, group.group_name))
        return outputs

    def barrier(self, group: Any, *args: Any, **kwargs: Any) -> None:
        """Nothing: in a program nobody goes on without what it waits for."""

    # -- transfers ----------------------------------------------------------------------------------------------
    def _on_their_way(self, group: Any) -> Transfers:
        return self._transfers.setdefault(group, Transfers(group))

    def send(self, group: Any, tensors: Tensors, peer: int, tag: int = 0) -> Handle:
        """To a position of the group."""
        for x in tensors:
            self._on_their_way(group).send(x, peer)
        return Handle(tensors, self._on_their_way(group))

    def receive(self, group: Any, tensors: Tensors, peer: int, tag: int = 0) -> Handle:
        """From a position of the group."""
        for x in tensors:
            self._on_their_way(group).receive(x, peer)
        return Handle(tensors, self._on_their_way(group))


@contextmanager
def collectives_of_groups(lines: RecordLines) -> Iterator[None]:
    """Within the block, in which a step is traced, what process groups are asked for becomes operators of the trace.

    Raises UnsupportedOpError (TRN286) for a collective in which one rank has another part than the others.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        yield
        return
    groups = _Groups(lines)
    methods, kept = groups.methods(), []
    base: type = distributed.ProcessGroup
    for cls in _classes(base):
        for name in methods.keys() & vars(cls).keys():
            kept.append((cls, name, vars(cls)[name]))
            setattr(cls, name, methods[name])
    try:
        yield
        groups.finish()
    finally:
        for cls, name, method in kept:
            setattr(cls, name, method)


def _classes(cls: type) -> list[type]:
    """A class and all that are made of it."""
    below: list[type] = cls.__subclasses__()
    return [cls, *(each for found in below for each in _classes(found))]


def _traced(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method outside of autograd, as collectives are."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return method(*args, **kwargs)

    return run


def _call(name: str, *args: Any) -> Any:
    """A functional collective, and its results."""
    found = getattr(operators, name)(*args)
    wait = operators.wait_tensor
    return [wait(x) for x in found] if isinstance(found, (list, tuple)) else wait(found)


def _put(places: Tensors, values: Sequence[Tensor]) -> None:
    """Write results to where the script wants them."""
    for place, value in zip(places, values):
        place.detach().copy_(value.view(place.shape))


def _put_parts(places: Tensors, flat: Tensor) -> None:
    """The same of one result, parts of it one behind the other."""
    _put(places, flat.split([x.numel() for x in places]) if places else [])


def _padded(x: Tensor, size: int) -> Tensor:
    return torch.nn.functional.pad(x.detach().reshape(-1), (0, size - x.numel()))


def _reduction(opts: Any) -> tuple[str, Any]:
    """What the functional collectives call a reduction, and the factor before it where there is one."""
    if opts is None:
        return "sum", None
    from trnlab.frontends.torch.distributed.reductions import ReduceOp

    found = ReduceOp(opts.reduceOp)
    named = {"prod": "product", "premul_sum": "sum"}.get(found.spoken, found.spoken)
    return named, found.factor
