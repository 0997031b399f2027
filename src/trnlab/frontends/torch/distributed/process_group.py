# SPDX-License-Identifier: Apache-2.0
"""The process group that `torch.distributed` gets for the backend `neuron`: its collectives as those of the fabric.

Tensors of the host take the same way, since PyTorch exchanges objects in them; their bytes are not counted. Inputs
are read when a collective is asked for, and results are there once it is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from trnlab.collectives import Collective, Groups, whole_mesh
from trnlab.errors import CollectiveError
from trnlab.frontends.torch.device.dispatch import untraced_methods
from trnlab.frontends.torch.device.dlpack import as_host, to_numpy_alias
from trnlab.frontends.torch.distributed import (
    batch_norm,
    comm_hooks,
    fully_sharded,
    functional,
    pinned,
    sites,
    world,
)
from trnlab.frontends.torch.distributed.calls import Call
from trnlab.frontends.torch.distributed.dispatched import dispatched
from trnlab.frontends.torch.distributed.jobs import Job
from trnlab.frontends.torch.distributed.reductions import Reduction
from trnlab.frontends.torch.distributed.work import NeuronWork
from trnlab.frontends.torch.distributed.world import Channel, World
from trnlab.frontends.torch.parallel.groups import purpose_of
from trnlab.frontends.torch.pytorch.dispatcher import is_handled_in_python

Array = npt.NDArray[Any]
Tensors = Sequence[Tensor]
_DEFAULT = "the default group"


@dispatched
@untraced_methods
class NeuronProcessGroup(dist.ProcessGroup):
    """Some ranks of a job. Positions within it are what PyTorch calls group ranks. `first`: the world is its own.

    Every collective raises CollectiveError where ranks do not agree on it (TRN270), one of them is gone (TRN271), all
    wait for each other (TRN272), or nothing happens for the group's timeout (TRN273).
    """

    def __init__(self, world: World, ranks: Sequence[int], name: str, first: bool) -> None:
        self.ranks = tuple(ranks)
        super().__init__(self.ranks.index(world.rank), len(self.ranks))
        self.world, self._name, self._desc = world, name, ""
        self.first = first
        self.channel: Channel = world.channel(_DEFAULT if first else f"group {name}", self.ranks)
        self.groups = whole_mesh(self.ranks, world.size)
        world.fabric.check_group(self.groups)
        self._coalesced: list[Job] | None = None
        self._mesh: list[list[int]] = []  # of torch_xla's groups: all that there are at this place

    # -- what PyTorch asks about a group --------------------------------------------------------------------------
    def getBackendName(self) -> str:
        """The name that it was registered under."""
        return "neuron"

    def _get_backend_name(self) -> str:
        return "neuron"

    def _get_backend(self, device: Any) -> Any:
        return self

    def name(self) -> str:
        """The same, as a backend is asked."""
        return "neuron"

    def getGroupName(self) -> str:
        """The name that PyTorch gave it."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Take the name that PyTorch gives."""
        self._name = name

    _set_group_name = setGroupName

    def getGroupDesc(self) -> str:
        """What the script calls it."""
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        """Take what the script calls it."""
        self._desc = desc

    _set_group_desc = setGroupDesc

    @property
    def group_name(self) -> str:
        """The name that PyTorch gave it."""
        return self._name

    @property
    def group_desc(self) -> str:
        """What the script calls it."""
        return self._desc

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), torch.device("neuron")]

    supports_splitting = supports_coalescing = supports_time_estimate = supports_tensor_alloc = False

    def getRank(self) -> int:
        """The position of this rank."""
        return self.ranks.index(self.world.rank)

    def getSize(self) -> int:
        """How many ranks it has."""
        return len(self.ranks)

    rank, size = getRank, getSize

    def _get_sequence_number_for_group(self) -> int:
        return self.channel.asked

    def _set_sequence_number_for_group(self) -> None:
        """Nothing: calls are counted from one."""

    def _wait_for_pending_works(self) -> None:
        self.world.watch.drain()

    def shutdown(self) -> None:
        """Finish what was asked for; the group that opened the connection closes it."""
        if self.first:
            self.world.close()

    abort = shutdown

    def set_timeout(self, timeout: timedelta) -> None:
        """From now on collectives have this much time."""
        self.world.watch.timeout_s = timeout.total_seconds()

    _set_default_timeout = set_timeout

    # -- reductions -----------------------------------------------------------------------------------------------
    def allreduce(self, tensors: Tensors, opts: Any = None) -> NeuronWork:
        """Every rank ends with the reduction of all tensors."""
        opts = opts if opts is not None else dist.AllreduceOptions()
        return self._work([self._reduce("all_reduce", t, t, Reduction(opts.reduceOp)) for t in tensors], tensors)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> NeuronWork:
        """The same, of several tensors as one buffer where they have one format."""
        opts = opts if opts is not None else dist.AllreduceCoalescedOptions()
        reduction = Reduction(opts.reduceOp)
        if len({(t.dtype, t.device) for t in tensors}) > 1:
            return self.allreduce(tensors, opts)
        source = reduction.before(np.concatenate([_read(t) for t in tensors]), tensors[0].dtype)

        def sink(result: Array) -> None:
            _write_parts(tensors, reduction.after(result, len(self.ranks)))

        return self._work([self._ask("all_reduce", source, sink, tensors[0], reduction)], tensors)

    def reduce(self, tensors: Tensors, opts: Any) -> NeuronWork:
        """The root ends with the reduction. (As all-reduce: the fabric has no other schedule for it.)"""
        mine = self.getRank() == opts.rootRank
        reduction = Reduction(opts.reduceOp)
        jobs = [self._reduce("all_reduce", t, t if mine else None, reduction, opts.rootRank) for t in tensors]
        return self._work(jobs, tensors)

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any = None) -> NeuronWork:
        """Each position ends with the reduction of its part."""
        opts = opts if opts is not None else dist.ReduceScatterOptions()
        _expect(
            given.numel() == output.numel() * len(self.ranks),
            "reduce_scatter",
            output.numel() * len(self.ranks),
            given.numel(),
        )
        return self._work([self._reduce("reduce_scatter", given, output, Reduction(opts.reduceOp))], output)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter(self, outputs: Tensors, givens: Sequence[Tensors], opts: Any = None) -> NeuronWork:
        """The same, of a list of parts, which may differ in size."""
        opts = opts if opts is not None else dist.ReduceScatterOptions()
        reduction = Reduction(opts.reduceOp)
        jobs = [self._scatter_parts(out, parts, reduction) for out, parts in zip(outputs, givens, strict=True)]
        return self._work(jobs, outputs)

    def _scatter_parts(self, output: Tensor, parts: Tensors, reduction: Reduction) -> Job:
        _expect(len(parts) == len(self.ranks), "reduce_scatter", f"{len(self.ranks)} parts", len(parts))
        each = max((part.numel() for part in parts), default=0)
        _expect(
            parts[self.getRank()].numel() == output.numel(),
            "reduce_scatter",
            output.numel(),
            parts[self.getRank()].numel(),
        )
        source = np.concatenate([np.resize(_read(part), each) if part.numel() else _read(part) for part in parts])
        source = reduction.before(source, output.dtype)

        def sink(result: Array) -> None:
            _write(output, reduction.after(result[: output.numel()], len(self.ranks)))

        return self._ask("reduce_scatter", source, sink, output, reduction)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, givens: Tensors, opts: Any = None) -> NeuronWork:
        """Several at once."""
        opts = opts if opts is not None else dist.ReduceScatterOptions()
        jobs = [
            job for out, given in zip(outputs, givens) for job in self.reduce_scatter_single(out, given, opts).jobs
        ]
        return self._work(jobs, outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduce(self, kind: str, given: Tensor, output: Tensor | None, reduction: Reduction, root: int = -1) -> Job:
        source = reduction.before(_read(given), given.dtype)

        def sink(result: Array) -> None:
            if output is not None:
                _write(output, reduction.after(result, len(self.ranks)))

        return self._ask(kind, source, sink, given, reduction, root=root)

    # -- gathering and scattering ---------------------------------------------------------------------------------
    def broadcast(self, tensors: Tensors, opts: Any) -> NeuronWork:
        """Every rank ends with the root's tensors."""
        root = opts.rootRank
        jobs = [
            self._ask(
                "collective_broadcast",
                _read(t),
                partial(_write, t) if self.getRank() != root else _drop,
                t,
                root=root,
            )
            for t in tensors
        ]
        return self._work(jobs, tensors)

    def all_gather_single(self, output: Tensor, given: Tensor, opts: Any = None) -> NeuronWork:
        """Every rank ends with the tensors of all, one after the other."""
        _expect(
            output.numel() == given.numel() * len(self.ranks),
            "all_gather",
            given.numel() * len(self.ranks),
            output.numel(),
        )
        return self._work([self._ask("all_gather", _read(given), partial(_write, output), given)], output)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, givens: Tensors, opts: Any = None) -> NeuronWork:
        """Several at once."""
        jobs = [job for out, given in zip(outputs, givens) for job in self.all_gather_single(out, given).jobs]
        return self._work(jobs, outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(self, outputs: Sequence[Tensors], givens: Tensors, opts: Any = None) -> NeuronWork:
        """Every rank ends with a list of the tensors of all, which may differ in size."""
        jobs = [self._gather_list(outs, given) for outs, given in zip(outputs, givens, strict=True)]
        return self._work(jobs, outputs)

    def allgather_coalesced(self, outputs: Sequence[Tensors], givens: Tensors, opts: Any = None) -> NeuronWork:
        """`outputs[p]` are the tensors of position p."""
        return self.allgather([list(outs) for outs in zip(*outputs, strict=True)], givens)

    def _gather_list(self, outputs: Tensors, given: Tensor) -> Job:
        _expect(len(outputs) == len(self.ranks), "all_gather", f"{len(self.ranks)} tensors", len(outputs))
        each = max(out.numel() for out in outputs)
        _expect(
            outputs[self.getRank()].numel() == given.numel(),
            "all_gather",
            outputs[self.getRank()].numel(),
            given.numel(),
        )

        def sink(result: Array) -> None:
            for out, part in zip(outputs, result.reshape(len(outputs), -1)):
                _write(out, part[: out.numel()])

        padded = np.zeros(each, _read(given).dtype)
        padded[: given.numel()] = _read(given)
        return self._ask("all_gather", padded, sink, given)

    def gather(self, outputs: Sequence[Tensors], givens: Tensors, opts: Any) -> NeuronWork:
        """The root ends with a list of the tensors of all. (As all-gather: the fabric has no other schedule.)"""
        mine = self.getRank() == opts.rootRank

        def sink(result: Array) -> None:
            if mine:
                for out, part in zip(outputs[0], result.reshape(len(self.ranks), -1)):
                    _write(out, part)

        jobs = [self._ask("all_gather", _read(givens[0]), sink, givens[0], root=opts.rootRank)]
        return self._work(jobs, outputs)

    def scatter(self, outputs: Tensors, givens: Sequence[Tensors], opts: Any) -> NeuronWork:
        """Each position ends with its part of the root's list. (As a broadcast of the list.)"""
        output, count, position = outputs[0], len(self.ranks), self.getRank()
        if position == opts.rootRank:
            _expect(
                len(givens[0]) == count and all(t.numel() == output.numel() for t in givens[0]),
                "scatter",
                f"{count} tensors of {output.numel()}",
                [t.numel() for t in givens[0]],
            )
            source = np.concatenate([_read(given) for given in givens[0]])
        else:
            source = np.zeros(count * output.numel(), _read(output).dtype)

        def sink(result: Array) -> None:
            _write(output, result.reshape(count, -1)[position])

        return self._work([self._ask("collective_broadcast", source, sink, output, root=opts.rootRank)], outputs)

    # -- all to all -----------------------------------------------------------------------------------------------
    def all_to_all_single(
        self,
        output: Tensor,
        given: Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> NeuronWork:
        """Part q of position p goes to position q; splits are in rows, and equal where there are none."""
        count = len(self.ranks)
        takes, gives = _splits(output, output_splits, count), _splits(given, input_splits, count)
        if not output_splits and not input_splits:
            sink = partial(_write, output)
            return self._work([self._ask("all_to_all", _read(given), sink, given)], output)
        job = self._uneven(_read(given), gives, takes, partial(_write, output), given)
        return self._work([job], output)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Tensors, givens: Tensors, opts: Any = None) -> NeuronWork:
        """The same, of lists."""
        _expect(
            len(outputs) == len(givens) == len(self.ranks),
            "all_to_all",
            f"{len(self.ranks)} tensors",
            (len(outputs), len(givens)),
        )
        gives, takes = [t.numel() for t in givens], [t.numel() for t in outputs]
        source = np.concatenate([_read(t) for t in givens])
        return self._work([self._uneven(source, gives, takes, partial(_write_parts, outputs), givens[0])], outputs)

    def _uneven(
        self, source: Array, gives: list[int], takes: list[int], sink: Callable[[Array], Any], like: Tensor
    ) -> Job:
        """Parts of different sizes: straight from each rank to each. Where each rank has a part for one at most, that
        is a permutation. Else it takes the time of equal parts as large as the largest (assumed: the vendor says of
        its AllToAllV only that it is there)."""
        counted, purpose = like.device.type == "neuron", sites.purpose("all_to_all", purpose_of(self))
        fabric, channel = self.world.fabric, self.channel

        def body(job: Job, calls: Any) -> None:
            result = channel.all_to_all(source, gives, takes)
            if not job.done:
                if counted:
                    fabric.count(*_cost_of_uneven(calls, self.groups, source.dtype), purpose)
                sink(result)

        return channel.ask(Call("all_to_all", source.dtype.name, gives=tuple(gives), takes=tuple(takes)), body)

    # -- ranks alone and in pairs ---------------------------------------------------------------------------------
    def barrier(self, opts: Any = None) -> NeuronWork:
        """Nobody goes on before all are there."""
        return self._work([self.channel.ask(Call("barrier"), lambda job, calls: None)], [])

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier; every barrier here names the ranks that are missing."""
        limit = timeout.total_seconds() if timeout else None
        job = self.channel.ask(Call("barrier"), lambda job, calls: None)
        if not job.wait(limit):
            raise self.world.watch.late(job, limit or 0.0)

    def send(self, tensors: Tensors, target: int, tag: int = 0) -> NeuronWork:
        """To a position of the group."""
        jobs = [
            self.channel.send(
                _read(t), self.ranks[target], tag, sites.purpose("send", purpose_of(self)), t.device.type == "neuron"
            )
            for t in tensors
        ]
        return self._work(jobs, tensors)

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> NeuronWork:
        """From a position of the group."""
        jobs = [
            self.channel.receive(_like(t), self.ranks[source], tag, partial(_write, t), self._received(t))
            for t in tensors
        ]
        return self._work(jobs, tensors)

    def _received(self, like: Tensor) -> str:
        """What a message is for; "" of the host's tensors, which are not counted."""
        return sites.purpose("recv", purpose_of(self)) if like.device.type == "neuron" else ""

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> NeuronWork:
        """From whoever sends first."""
        jobs = [self.channel.receive(_like(t), None, tag, partial(_write, t), self._received(t)) for t in tensors]
        return self._work(jobs, tensors)

    def _start_coalescing(self, device: Any = None) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: Any = None) -> NeuronWork:
        jobs, self._coalesced = self._coalesced or [], None
        return NeuronWork(jobs, [])

    # -- helpers --------------------------------------------------------------------------------------------------
    def _ask(
        self,
        kind: str,
        source: Array,
        sink: Callable[[Array], Any],
        like: Tensor,
        reduction: Reduction | None = None,
        root: int = -1,
    ) -> Job:
        counted = like.device.type == "neuron"
        broadcasts = kind == "collective_broadcast"
        asked = Collective(kind, self.groups, reduction.name if reduction else "sum", root=root if broadcasts else 0)
        call = Call(kind, source.dtype.name, source.size, reduction.spoken if reduction else "", root)
        purpose = sites.purpose(kind, purpose_of(self)) if counted else ""
        return self.channel.collective(asked, source, sink, purpose, call, counted)

    def _work(self, jobs: list[Job], tensors: Any) -> NeuronWork:
        if self._coalesced is not None:
            self._coalesced += jobs
        return NeuronWork(jobs, tensors)


def _read(tensor: Tensor) -> Array:
    """A copy of the tensor's values, flat."""
    tensor = tensor.detach()
    if tensor.is_sparse or tensor.layout != torch.strided:
        raise CollectiveError(
            "collectives take dense tensors", code="TRN275", got=tensor.layout, remedy="x.to_dense() before"
        )
    if is_handled_in_python(tensor):
        raise CollectiveError(
            "collectives of the host's tensors take tensors with memory of their own",
            code="TRN275",
            where=sites.site(),
            got=type(tensor).__name__,
            remedy="give it the tensors inside, one after the other",
        )
    flat: Array = to_numpy_alias(as_host(tensor)).reshape(-1)
    return flat.copy()


def _like(tensor: Tensor) -> Array:
    """An array of the tensor's format and size, of which nothing is read."""
    return to_numpy_alias(as_host(tensor.detach())).reshape(-1)


def _write(tensor: Tensor, values: Array) -> None:
    """Put flat values into a tensor."""
    target = to_numpy_alias(as_host(tensor.detach()))
    target[...] = values.reshape(target.shape)


def _write_parts(tensors: Tensors, values: Array) -> None:
    """Put one flat array into several tensors, one after the other."""
    first = 0
    for tensor in tensors:
        _write(tensor, values[first : first + tensor.numel()])
        first += tensor.numel()


def _drop(values: Array) -> None:
    """The root has what it sent."""


def _splits(tensor: Tensor, rows: Sequence[int], count: int) -> list[int]:
    """How many elements belong to each position."""
    if not rows:
        _expect(tensor.numel() % count == 0, "all_to_all", f"a multiple of {count} rows", list(tensor.shape))
        return [tensor.numel() // count] * count
    _expect(
        len(rows) == count and sum(rows) == (tensor.shape[0] if tensor.dim() else 0),
        "all_to_all",
        f"{count} splits of {tensor.shape[0] if tensor.dim() else 0} rows",
        list(rows),
    )
    each = tensor.numel() // max(tensor.shape[0], 1)
    return [n * each for n in rows]


def _cost_of_uneven(calls: Mapping[int, Call], groups: Groups, dtype: Any) -> tuple[Collective, Array]:
    """What takes the time of an all-to-all whose parts differ, and what a rank gives to it. `calls`: by rank."""
    ranks = sorted(calls)
    pairs = [(rank, ranks[k]) for rank in ranks for k, n in enumerate(calls[rank].gives) if n and ranks[k] != rank]
    largest = max(max(call.gives, default=0) for call in calls.values())
    if pairs and all(len(set(ends)) == len(pairs) for ends in zip(*pairs)):
        return Collective("collective_permute", pairs=tuple(pairs)), np.empty(largest, dtype)
    return Collective("all_to_all", groups), np.empty(largest * len(ranks), dtype)


def _expect(right: bool, operation: str, limit: object, got: object) -> None:
    if not right:
        raise CollectiveError(
            f"tensors of this {operation} do not fit each other",
            code="TRN277",
            where=sites.site(),
            limit=limit,
            got=got,
            remedy="give it tensors of the sizes that the group needs",
        )


def create(options: Any, backend_options: Any = None) -> NeuronProcessGroup:
    """What `init_process_group("neuron")` and `new_group` call."""
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    rank = ranks[options.group_rank]
    here = world.current()
    first = here is None or not set(ranks) <= set(here.ranks)
    if first:
        size = dist.get_world_size() if dist.is_initialized() else options.group_size
        pinned.install()
        functional.install()
        comm_hooks.install()
        batch_norm.install()
        fully_sharded.install()
        here = world.open_world(options.store, rank, ranks, size, options.timeout)
    assert here is not None
    return NeuronProcessGroup(here, ranks, options.group_id, first)
