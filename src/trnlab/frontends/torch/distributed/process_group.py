# SPDX-License-Identifier: Apache-2.0
"""The process group that `torch.distributed` gets for the backend `neuron`: its collectives as those of the fabric.

Tensors of the host take the same way, since PyTorch exchanges objects in them; their bytes are not counted. Inputs
are read when a collective is asked for, and results are there once it is waited for; or nothing is read at all, where
the group's transport only writes down what it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trnlab.collectives import Collective, whole_mesh
from trnlab.errors import CollectiveError
from trnlab.frontends.torch.device.dispatch import untraced_methods
from trnlab.frontends.torch.distributed import (
    batch_norm,
    comm_hooks,
    fully_sharded,
    functional,
    sharded_tensors,
    sites,
    sparse_sums,
    world,
)
from trnlab.frontends.torch.distributed.dispatched import dispatched
from trnlab.frontends.torch.distributed.flat import Flat
from trnlab.frontends.torch.distributed.jobs import PendingCall
from trnlab.frontends.torch.distributed.reductions import ReduceOp
from trnlab.frontends.torch.distributed.transport import GroupExchange, GroupTransport, WorldTransport
from trnlab.frontends.torch.distributed.work import NeuronWork
from trnlab.frontends.torch.parallel.groups import purpose_of

Tensors = Sequence[Tensor]
_DEFAULT = "the default group"
NOWHERE = Flat(())  # for results that this rank does not keep


@dispatched
@untraced_methods
class NeuronProcessGroup(dist.ProcessGroup):
    """Some ranks of a job of `size` ranks. Positions within it are what PyTorch calls group ranks.

    Every collective raises CollectiveError for tensors that do not fit each other (TRN277) or cannot be exchanged
    (TRN275), and whatever its transport raises.
    """

    def __init__(self, transport: GroupTransport, ranks: Sequence[int], size: int, name: str) -> None:
        self.ranks = tuple(ranks)
        super().__init__(self.ranks.index(transport.rank), len(self.ranks))
        self.transport, self._name, self._desc = transport, name, ""
        self.groups = whole_mesh(self.ranks, size)
        self._coalesced: list[PendingCall] | None = None
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

    default_device = torch.device("neuron")  # where what is made for the group lies

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), self.default_device]

    supports_splitting = supports_coalescing = supports_time_estimate = supports_tensor_alloc = False

    def getRank(self) -> int:
        """The position of this rank."""
        return self.ranks.index(self.transport.rank)

    def getSize(self) -> int:
        """How many ranks it has."""
        return len(self.ranks)

    rank, size = getRank, getSize

    def _get_sequence_number_for_group(self) -> int:
        return self.transport.num_requests

    def _set_sequence_number_for_group(self) -> None:
        """Nothing: calls are counted from one."""

    def _wait_for_pending_works(self) -> None:
        self.transport.drain()

    def shutdown(self) -> None:
        """Finish what was asked for; the group that opened the connection closes it."""
        self.transport.close()

    abort = shutdown

    def set_timeout(self, timeout: timedelta) -> None:
        """From now on collectives have this much time."""
        self.transport.set_timeout(timeout.total_seconds())

    _set_default_timeout = set_timeout

    # -- reductions -----------------------------------------------------------------------------------------------
    def allreduce(self, tensors: Tensors, opts: Any = None) -> NeuronWork:
        """Every rank ends with the reduction of all tensors."""
        reduction = _reduction(opts)
        if any(t.layout != torch.strided for t in tensors):
            for t in tensors:
                sparse_sums.all_reduce(self, t, reduction)
            return self._work([], tensors)
        jobs = [job for t in tensors for job in self._ask("all_reduce", Flat([t]), Flat([t]), reduction)]
        return self._work(jobs, tensors)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> NeuronWork:
        """The same, of several tensors as one buffer where they have one format."""
        if len({(t.dtype, t.device) for t in tensors}) > 1:
            return self.allreduce(tensors, opts)
        together = Flat(tensors)
        return self._work(self._ask("all_reduce", together, together, _reduction(opts)), tensors)

    def reduce(self, tensors: Tensors, opts: Any) -> NeuronWork:
        """The root ends with the reduction. (As all-reduce: the fabric has no other schedule for it.)"""
        root, reduction = opts.rootRank, _reduction(opts)
        kept = [Flat([t]) if self.getRank() == root else NOWHERE for t in tensors]
        jobs = [
            job for t, out in zip(tensors, kept) for job in self._ask("all_reduce", Flat([t]), out, reduction, root)
        ]
        return self._work(jobs, tensors)

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any = None) -> NeuronWork:
        """Each position ends with the reduction of its part."""
        whole = output.numel() * len(self.ranks)
        _expect(given.numel() == whole, "reduce_scatter", whole, given.numel())
        return self._work(self._ask("reduce_scatter", Flat([given]), Flat([output]), _reduction(opts)), output)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter(self, outputs: Tensors, givens: Sequence[Tensors], opts: Any = None) -> NeuronWork:
        """The same, of a list of parts, which may differ in size."""
        reduction = _reduction(opts)
        jobs = [
            job
            for output, parts in zip(outputs, givens, strict=True)
            for job in self._scatter_parts(output, parts, reduction)
        ]
        return self._work(jobs, outputs)

    def _scatter_parts(self, output: Tensor, parts: Tensors, reduction: ReduceOp) -> list[PendingCall]:
        self._expect_parts("reduce_scatter", parts, output)
        each = max(part.numel() for part in parts)
        return self._ask("reduce_scatter", Flat(parts, each), Flat([output]), reduction)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, givens: Tensors, opts: Any = None) -> NeuronWork:
        """Several at once."""
        jobs = [
            job for out, given in zip(outputs, givens) for job in self.reduce_scatter_single(out, given, opts).jobs
        ]
        return self._work(jobs, outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # -- gathering and scattering ---------------------------------------------------------------------------------
    def broadcast(self, tensors: Tensors, opts: Any) -> NeuronWork:
        """Every rank ends with the root's tensors."""
        root = opts.rootRank
        kept = [Flat([t]) if self.getRank() != root else NOWHERE for t in tensors]
        jobs = [
            job
            for t, out in zip(tensors, kept)
            for job in self._ask("collective_broadcast", Flat([t]), out, root=root)
        ]
        return self._work(jobs, tensors)

    def all_gather_single(self, output: Tensor, given: Tensor, opts: Any = None) -> NeuronWork:
        """Every rank ends with the tensors of all, one after the other."""
        whole = given.numel() * len(self.ranks)
        _expect(output.numel() == whole, "all_gather", whole, output.numel())
        return self._work(self._ask("all_gather", Flat([given]), Flat([output])), output)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, givens: Tensors, opts: Any = None) -> NeuronWork:
        """Several at once."""
        jobs = [job for out, given in zip(outputs, givens) for job in self.all_gather_single(out, given).jobs]
        return self._work(jobs, outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(self, outputs: Sequence[Tensors], givens: Tensors, opts: Any = None) -> NeuronWork:
        """Every rank ends with a list of the tensors of all, which may differ in size."""
        jobs = [job for outs, given in zip(outputs, givens, strict=True) for job in self._gather_list(outs, given)]
        return self._work(jobs, outputs, lambda: [_together(outs) for outs in outputs])

    def allgather_coalesced(self, outputs: Sequence[Tensors], givens: Tensors, opts: Any = None) -> NeuronWork:
        """`outputs[p]` are the tensors of position p."""
        return self.allgather([list(outs) for outs in zip(*outputs, strict=True)], givens)

    def _gather_list(self, outputs: Tensors, given: Tensor) -> list[PendingCall]:
        self._expect_parts("all_gather", outputs, given)
        each = max(out.numel() for out in outputs)
        return self._ask("all_gather", Flat([given], each), Flat(outputs, each))

    def gather(self, outputs: Sequence[Tensors], givens: Tensors, opts: Any) -> NeuronWork:
        """The root ends with a list of the tensors of all. (As all-gather: the fabric has no other schedule.)"""
        root, given = opts.rootRank, givens[0]
        kept = outputs[0] if self.getRank() == root else []
        sizes = [out.numel() for out in kept]
        _expect(all(size == given.numel() for size in sizes), "gather", f"tensors of {given.numel()}", sizes)
        return self._work(self._ask("all_gather", Flat([given]), Flat(kept), root=root), outputs)

    def scatter(self, outputs: Tensors, givens: Sequence[Tensors], opts: Any) -> NeuronWork:
        """Each position ends with its part of the root's list. (In the time of a broadcast of the list.)"""
        output, count, position = outputs[0], len(self.ranks), self.getRank()
        parts: Tensors = [output] * count  # of which only the size counts
        if position == opts.rootRank:
            parts = givens[0]
            _expect(
                len(parts) == count and all(t.numel() == output.numel() for t in parts),
                "scatter",
                f"{count} tensors of {output.numel()}",
                [t.numel() for t in parts],
            )
        mine = Flat([output], before=position * output.numel())
        jobs = self._ask("collective_broadcast", Flat(parts), mine, root=opts.rootRank, scatters=True)
        return self._work(jobs, outputs)

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
        if output_splits or input_splits:
            return self._work(self._uneven(Flat([given]), Flat([output]), gives, takes), output)
        _expect(output.numel() == given.numel(), "all_to_all", given.numel(), output.numel())
        return self._work(self._ask("all_to_all", Flat([given]), Flat([output])), output)

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
        return self._work(self._uneven(Flat(givens), Flat(outputs), gives, takes), outputs)

    def _uneven(self, source: Flat, result: Flat, gives: Sequence[int], takes: Sequence[int]) -> list[PendingCall]:
        asked = Collective("all_to_all", self.groups, gives=tuple(gives), takes=tuple(takes), position=self.getRank())
        return self.transport.collective(GroupExchange(asked, source, result, self._purpose("all_to_all", source)))

    # -- ranks alone and in pairs ---------------------------------------------------------------------------------
    def barrier(self, opts: Any = None) -> NeuronWork:
        """Nobody goes on before all are there."""
        return self._work(self.transport.barrier(), [])

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier that ends after `timeout`."""
        self.transport.meet(timeout.total_seconds() if timeout else None)

    def join(self) -> int:
        """Wait for all ranks, with zeros in what those reduce that are not there yet; which rank was the last."""
        jobs = self.transport.join()
        for job in jobs:
            job.wait()
        return int(jobs[0].result) if jobs else self.ranks[-1]

    def send(self, tensors: Tensors, target: int, tag: int = 0) -> NeuronWork:
        """To a position of the group."""
        jobs = []
        for given in (Flat([t]) for t in tensors):
            jobs += self.transport.send(given, self.ranks[target], tag, self._purpose("send", given))
        return self._work(jobs, tensors)

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> NeuronWork:
        """From a position of the group."""
        return self._receive(tensors, self.ranks[source], tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> NeuronWork:
        """From whoever sends first."""
        return self._receive(tensors, None, tag)

    def _receive(self, tensors: Tensors, source: int | None, tag: int) -> NeuronWork:
        jobs = []
        for result in (Flat([t]) for t in tensors):
            jobs += self.transport.receive(result, source, tag, self._purpose("recv", result))
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
        source: Flat,
        result: Flat,
        reduction: ReduceOp | None = None,
        root: int = -1,
        scatters: bool = False,
    ) -> list[PendingCall]:
        name = reduction.name if reduction else "sum"
        asked = Collective(kind, self.groups, name, root=root if kind == "collective_broadcast" else 0)
        exchange = GroupExchange(asked, source, result, self._purpose(kind, source), reduction, root, scatters)
        return self.transport.collective(exchange)

    def _purpose(self, kind: str, source: Flat) -> str:
        """What it is for; "" of the host's tensors, which are not counted."""
        return sites.purpose(kind, purpose_of(self)) if source.tensors[0].device.type == "neuron" else ""

    def _expect_parts(self, operation: str, parts: Tensors, mine: Tensor) -> None:
        """One part for each position; that of this one is as large as `mine`."""
        _expect(len(parts) == len(self.ranks), operation, f"{len(self.ranks)} tensors", len(parts))
        here = parts[self.getRank()].numel()
        _expect(here == mine.numel(), operation, mine.numel(), here)

    def _work(self, jobs: list[PendingCall], tensors: Any, value: Callable[[], Any] | None = None) -> NeuronWork:
        if self._coalesced is not None:
            self._coalesced += jobs
        return NeuronWork(jobs, tensors, value)


def _together(parts: Tensors) -> Any:
    """What a future holds of a list that was gathered: one tensor where they are alike, as from NCCL."""
    return torch.stack(list(parts)) if len({part.shape for part in parts}) == 1 else parts


def _reduction(opts: Any) -> ReduceOp:
    """What the options of a collective name: a sum without any."""
    return ReduceOp((opts if opts is not None else dist.AllreduceOptions()).reduceOp)


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


def install() -> None:
    """Whatever of PyTorch asks groups of this backend in ways of its own."""
    for each in (functional, comm_hooks, batch_norm, fully_sharded, sharded_tensors):
        each.install()


def create(options: Any, backend_options: Any = None) -> NeuronProcessGroup:
    """What `init_process_group("neuron")` and `new_group` call."""
    ranks = ranks_of(options)
    rank = ranks[options.group_rank]
    here = world.current()
    first = here is None or not set(ranks) <= set(here.ranks)
    if first:
        size = dist.get_world_size() if dist.is_initialized() else options.group_size
        install()
        here = world.open_world(options.store, rank, ranks, size, options.timeout)
    assert here is not None
    name = _DEFAULT if first else f"group {options.group_id}"
    connection = WorldTransport(here, name, ranks, whole_mesh(ranks, here.size), options.timeout, first)
    return NeuronProcessGroup(connection, ranks, here.size, options.group_id)


def ranks_of(options: Any) -> list[int]:
    """Who belongs to a group that PyTorch makes: their ranks in the job, in the order of their positions."""
    return list(options.global_ranks_in_group) or list(range(options.group_size))
