# SPDX-License-Identifier: Apache-2.0
"""Process groups of a rank that is followed alone: what is asked for outside of compiled code is written down.

Nobody answers: small tensors that a collective fills from all ranks get this rank's values for each of them, since
PyTorch compares and unpacks such; all others stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from torch import Tensor

from trnlab.collectives import Collective, whole_mesh
from trnlab.frontends.torch.device import dlpack
from trnlab.frontends.torch.device.dispatch import untraced_methods
from trnlab.frontends.torch.device.dlpack import as_host, to_numpy_alias
from trnlab.frontends.torch.distributed import batch_norm, comm_hooks, fully_sharded, functional, sites
from trnlab.frontends.torch.distributed.process_group import NeuronProcessGroup
from trnlab.frontends.torch.distributed.reductions import Reduction
from trnlab.frontends.torch.distributed.work import NeuronWork
from trnlab.frontends.torch.parallel.groups import purpose_of
from trnlab.frontends.torch.pytorch.fakes import FakeTensor
from trnlab.runtime.communication import Asked

Tensors = Sequence[Tensor]
SMALL = 1 << 16  # bytes up to which values are handed on


class Ledger:
    """What the device's tensors were exchanged by since this was last asked."""

    def __init__(self) -> None:
        self._asked: list[Asked] = []

    def note(self, asked: Asked) -> None:
        """One more."""
        self._asked.append(asked)

    def take(self) -> list[Asked]:
        """All, in order, once."""
        found, self._asked = self._asked, []
        return found


@untraced_methods
class CountedGroup(NeuronProcessGroup):
    """A group whose other ranks do not exist. Collectives are over at once, and in the ledger.

    Tensors of the host are not counted, as in a run; a barrier moves nothing.
    """

    def __init__(self, ranks: Sequence[int], rank: int, size: int, name: str, ledger: Ledger) -> None:
        self.ranks = tuple(ranks)
        dist.ProcessGroup.__init__(self, self.ranks.index(rank), len(self.ranks))
        self._name, self._desc, self.first = name, "", False
        self.world: Any = SimpleNamespace(rank=rank)
        self.groups = whole_mesh(self.ranks, size)
        self._ledger, self._asked = ledger, 0

    # -- what PyTorch asks about a group --------------------------------------------------------------------------
    def _get_sequence_number_for_group(self) -> int:
        return self._asked

    def _wait_for_pending_works(self) -> None:
        """Nothing is pending."""

    def shutdown(self) -> None:
        """There is no connection."""

    abort = shutdown

    def set_timeout(self, timeout: Any) -> None:
        """Nobody waits."""

    _set_default_timeout = set_timeout

    # -- reductions -----------------------------------------------------------------------------------------------
    def allreduce(self, tensors: Tensors, opts: Any = None) -> NeuronWork:
        """See `NeuronProcessGroup`, as all others."""
        return self._all("all_reduce", tensors, tensors, opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> NeuronWork:
        """As one buffer where they have one format."""
        if len({(t.dtype, t.device) for t in tensors}) > 1:
            return self.allreduce(tensors, opts)
        nbytes = sum(map(_nbytes, tensors))
        self._note("all_reduce", tensors[0], nbytes, nbytes, _reduction(opts))
        return NeuronWork([], tensors)

    def reduce(self, tensors: Tensors, opts: Any) -> NeuronWork:
        """As all-reduce."""
        return self._all("all_reduce", tensors, tensors, opts)

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any = None) -> NeuronWork:
        """Reduce-scatter of one tensor."""
        return self._all("reduce_scatter", [given], output, opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter(self, outputs: Tensors, givens: Sequence[Tensors], opts: Any = None) -> NeuronWork:
        """Reduce-scatter of lists, each part as large as the largest."""
        for output, parts in zip(outputs, givens, strict=True):
            nbytes = max(map(_nbytes, parts)) * len(self.ranks)
            self._note("reduce_scatter", output, nbytes, nbytes, _reduction(opts))
        return NeuronWork([], outputs)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, givens: Tensors, opts: Any = None) -> NeuronWork:
        """Several at once."""
        return self._all("reduce_scatter", givens, outputs, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # -- gathering and scattering ---------------------------------------------------------------------------------
    def broadcast(self, tensors: Tensors, opts: Any) -> NeuronWork:
        """From the root, whose position the schedule has."""
        for t in tensors:
            self._note("collective_broadcast", t, _nbytes(t), _nbytes(t), root=opts.rootRank)
        return NeuronWork([], tensors)

    def all_gather_single(self, output: Tensor, given: Tensor, opts: Any = None) -> NeuronWork:
        """Into one tensor."""
        self._note("all_gather", given, _nbytes(given), _nbytes(given) * len(self.ranks))
        _hand_on(given, [output])
        return NeuronWork([], output)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, givens: Tensors, opts: Any = None) -> NeuronWork:
        """Several at once."""
        for output, given in zip(outputs, givens):
            self.all_gather_single(output, given)
        return NeuronWork([], outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(self, outputs: Sequence[Tensors], givens: Tensors, opts: Any = None) -> NeuronWork:
        """Into lists, each part as large as the largest."""
        for parts, given in zip(outputs, givens, strict=True):
            each = max(map(_nbytes, parts))
            self._note("all_gather", given, each, each * len(self.ranks))
            _hand_on(given, parts)
        return NeuronWork([], outputs)

    def gather(self, outputs: Sequence[Tensors], givens: Tensors, opts: Any) -> NeuronWork:
        """As all-gather."""
        self._note("all_gather", givens[0], _nbytes(givens[0]), _nbytes(givens[0]) * len(self.ranks))
        _hand_on(givens[0], outputs[0] if outputs else [])
        return NeuronWork([], outputs)

    def scatter(self, outputs: Tensors, givens: Sequence[Tensors], opts: Any) -> NeuronWork:
        """As a broadcast of all parts."""
        nbytes = _nbytes(outputs[0]) * len(self.ranks)
        self._note("collective_broadcast", outputs[0], nbytes, nbytes, root=opts.rootRank)
        if givens:
            _hand_on(givens[0][self.getRank()], outputs)
        return NeuronWork([], outputs)

    # -- all to all -----------------------------------------------------------------------------------------------
    def all_to_all_single(
        self,
        output: Tensor,
        given: Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> NeuronWork:
        """Equal parts, or those that the script names, in rows."""
        if not output_splits and not input_splits:
            self._note("all_to_all", given, _nbytes(given), _nbytes(given))
        else:
            sides = ((output, output_splits), (given, input_splits))
            takes, gives = (self._parts(tensor, rows) for tensor, rows in sides)
            self._uneven_parts(given, gives, takes)
        return NeuronWork([], output)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Tensors, givens: Tensors, opts: Any = None) -> NeuronWork:
        """All-to-all of lists."""
        self._uneven_parts(givens[0], [t.numel() for t in givens], [t.numel() for t in outputs])
        return NeuronWork([], outputs)

    def _parts(self, tensor: Tensor, rows: Sequence[int]) -> list[int]:
        """Elements of each position's part."""
        if not rows:
            return [tensor.numel() // len(self.ranks)] * len(self.ranks)
        return [n * prod(tensor.shape[1:]) for n in rows]

    def _uneven_parts(self, like: Tensor, gives: list[int], takes: list[int]) -> None:
        largest = max(sum(gives), sum(takes)) * like.element_size()
        self._note("all_to_all", like, sum(gives) * like.element_size(), largest, parts=(gives, takes))

    # -- ranks alone and in pairs ---------------------------------------------------------------------------------
    def barrier(self, opts: Any = None) -> NeuronWork:
        """All are there."""
        return NeuronWork([], [])

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """All are there."""

    def send(self, tensors: Tensors, target: int, tag: int = 0) -> NeuronWork:
        """To a position of the group."""
        for t in tensors:
            self._transfer("send", t, (self.world.rank, self.ranks[target]))
        return NeuronWork([], tensors)

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> NeuronWork:
        """From a position of the group."""
        for t in tensors:
            self._transfer("recv", t, (self.ranks[source], self.world.rank))
        return NeuronWork([], tensors)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> NeuronWork:
        """From the next position (assumed: nobody knows whose message is first)."""
        return self.recv(tensors, (self.getRank() + 1) % len(self.ranks), tag)

    def _start_coalescing(self, device: Any = None) -> None:
        """Each is counted by itself."""

    def _end_coalescing(self, device: Any = None) -> NeuronWork:
        return NeuronWork([], [])

    # -- helpers --------------------------------------------------------------------------------------------------
    def _all(self, kind: str, givens: Tensors, results: Any, opts: Any) -> NeuronWork:
        for t in givens:
            self._note(kind, t, _nbytes(t), _nbytes(t), _reduction(opts))
        return NeuronWork([], results)

    def _note(
        self,
        kind: str,
        like: Tensor,
        nbytes: int,
        buffer: int,
        reduction: str = "sum",
        root: int = 0,
        parts: tuple[Sequence[int], Sequence[int]] = ((), ()),
    ) -> None:
        """nbytes: given by this rank; buffer: of the larger of input and output."""
        self._asked += 1
        if like.device.type == "neuron":
            dlpack.before_host(like, False)
            gives, takes = map(tuple, parts)
            position = self.getRank() if gives else 0
            asked = Collective(kind, self.groups, reduction, root=root, gives=gives, takes=takes, position=position)
            self._ledger.note(Asked(asked, sites.purpose(kind, purpose_of(self)), nbytes, buffer))

    def _transfer(self, kind: str, tensor: Tensor, pair: tuple[int, int]) -> None:
        """A message between two ranks: who receives it gives nothing."""
        if tensor.device.type == "neuron":
            dlpack.before_host(tensor, False)
            asked, nbytes = Collective("collective_permute", pairs=(pair,)), _nbytes(tensor)
            given = nbytes if kind == "send" else 0
            self._ledger.note(Asked(asked, sites.purpose(kind, purpose_of(self)), given, nbytes))


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _reduction(opts: Any) -> str:
    return "sum" if opts is None else Reduction(opts.reduceOp).name


def _hand_on(given: Tensor, places: Tensors) -> None:
    """Put the values of a small tensor wherever the other ranks' would be."""
    if isinstance(given, FakeTensor) or given.is_meta or not 0 < _nbytes(given) <= SMALL:
        return
    values = to_numpy_alias(as_host(given.detach())).reshape(-1).copy()
    for place in places:
        target = to_numpy_alias(as_host(place.detach()))
        if target.size % values.size == 0 and place.numel() * place.element_size() <= SMALL * SMALL:
            target.reshape(-1, values.size)[...] = values


def created(options: Any, rank: int, size: int, ledger: Ledger) -> CountedGroup:
    """What `init_process_group` and `new_group` make of a rank that is followed alone."""
    for each in (batch_norm, comm_hooks, fully_sharded, functional):
        each.install()
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    return CountedGroup(ranks, rank, size, options.group_id, ledger)
