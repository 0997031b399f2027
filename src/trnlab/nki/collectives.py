# SPDX-License-Identifier: Apache-2.0
"""nki.collectives: communication between ranks, inside a kernel.

Ranks are simulated in one process, `nki.simulate(kernel, ranks=4)`; each has HBM of its own and one logical core, of
one or two cores. On tensors in shared HBM both cores of a logical core call the collective and take part in it
together; on tiles in SBUF, core 0 of a rank meets core 0 of the others, and core 1 their core 1.

Source: nki/api/nki/collectives/__init__.py of aws-neuron/aws-neuron-sdk (NKI 0.6.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trnlab.lang import registers
from trnlab.lang.recorder import current
from trnlab.lang.registers import VirtualRegister
from trnlab.lang.storage import refuse
from trnlab.lang.tensor import Tensor
from trnlab.nki.objects import NKIObject
from trnlab.nki.operators import alu_name

__all__ = [
    "ReplicaGroup",
    "all_gather",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "collective_permute",
    "collective_permute_implicit",
    "collective_permute_implicit_current_processing_rank_id",
    "collective_permute_implicit_reduce",
    "rank_id",
    "reduce_scatter",
]
Tensors = Sequence[Tensor]
MOST_CHANNELS = 4


@dataclass
class ReplicaGroup(NKIObject):
    """Which ranks communicate with each other: a list of groups, each a list of ranks. Groups share no rank."""

    groups: Any = ((0,),)

    @property
    def ranks(self) -> tuple[tuple[int, ...], ...]:
        """The groups as tuples."""
        return tuple(tuple(int(rank) for rank in group) for group in self.groups)


def all_reduce(
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    op: Any,
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """Each dst = the srcs of all ranks of the group, combined with nl.add, nl.minimum or nl.maximum."""
    _each("all_reduce", srcs, dsts, groups=_groups(replica_group), op=alu_name(op), priority=priority)


def all_gather(
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    collective_dim: int,
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """Each dst = the srcs of all ranks, concatenated along collective_dim: 0, for tiles in SBUF also 1."""
    _each("all_gather", srcs, dsts, groups=_groups(replica_group), dim=collective_dim, priority=priority)


def reduce_scatter(
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    collective_dim: int,
    op: Any,
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """Each dst on the r-th rank = the r-th part along dimension 0 of the ranks' srcs, combined with op."""
    _only_first(collective_dim)
    _each("reduce_scatter", srcs, dsts, groups=_groups(replica_group), op=alu_name(op), priority=priority)


def all_to_all(
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    collective_dim: int,
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """The s-th part along dimension 0 of dst on the r-th rank = the r-th part of src on the s-th rank."""
    _only_first(collective_dim)
    _each("all_to_all", srcs, dsts, groups=_groups(replica_group), priority=priority)


def all_gather_v(
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    metadata_tensor: Tensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """Each rank sends one piece of src, of a length of its own, to all; see `trnlab isa all_gather_v`."""
    _variable("all_gather_v", srcs, dsts, replica_group, metadata_tensor, recv_counts_known, has_rdispls, priority)


def all_to_all_v(
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    metadata_tensor: Tensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """Each rank sends each a piece of src of a length of its own; see `trnlab isa all_to_all_v`."""
    _variable("all_to_all_v", srcs, dsts, replica_group, metadata_tensor, recv_counts_known, has_rdispls, priority)


def collective_permute(
    srcs: Tensors,
    dsts: Tensors,
    source_target_pairs: Sequence[tuple[int, int]],
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """dst on the target of each pair = src on its source, in HBM; ranks that no pair sends to keep dst."""
    if any(t.on_chip for t in (*srcs, *dsts)):
        refuse(
            "collective_permute works on tensors in HBM",
            limit="HBM",
            got=[*srcs, *dsts],
            remedy="use collective_permute_implicit for tiles in SBUF",
            code="TRN403",
        )
    pairs = tuple((int(source), int(target)) for source, target in source_target_pairs)
    _each("collective_permute", *_one(srcs, dsts), pairs=pairs, priority=priority)


def collective_permute_implicit(
    srcs_by_channel: Sequence[Tensors],
    dsts_by_channel: Sequence[Tensors],
    replica_group: ReplicaGroup,
    channel_ids: Sequence[int] = (0,),
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """dst on each rank = src on the rank before it in its group, which is a ring; on each channel."""
    _check_channels(channel_ids, srcs_by_channel, dsts_by_channel)
    for channel, srcs, dsts in zip(channel_ids, srcs_by_channel, dsts_by_channel):
        _each("collective_permute", *_one(srcs, dsts), pairs=_ring(replica_group), channel=channel, priority=priority)


def collective_permute_implicit_reduce(
    srcs0_by_channel: Sequence[Tensors],
    srcs1_by_channel: Sequence[Tensors],
    dsts_by_channel: Sequence[Tensors],
    replica_group: ReplicaGroup,
    op: Any,
    channel_ids: Sequence[int] = (0,),
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """dst on each rank = src0 op src1 of the rank before it in its group; on each channel."""
    _check_channels(channel_ids, srcs0_by_channel, srcs1_by_channel, dsts_by_channel)
    for channel, srcs0, srcs1, dsts in zip(channel_ids, srcs0_by_channel, srcs1_by_channel, dsts_by_channel):
        (src0,), (src1,), (dst,) = srcs0, srcs1, dsts
        current().emit(
            "collective_permute_reduce",
            dst=dst,
            src0=src0,
            src1=src1,
            pairs=_ring(replica_group),
            op=alu_name(op),
            channel=channel,
            priority=priority,
            joint=_joint(dst, src0, src1),
        )


def collective_permute_implicit_current_processing_rank_id(
    iteration_id: Any, replica_group: ReplicaGroup, channel_id: int = 0, name: str | None = None
) -> VirtualRegister:
    """The rank whose data this rank has after so many steps around the ring: its own at 0, then the one before it.

    All channels go around in the order of the group (assumed: the hardware chooses rings by its links).
    """
    rank = current().rank
    group = next((g for g in _groups(replica_group) if rank in g), None)
    if group is None:
        refuse(
            "this rank is in no group",
            limit=_groups(replica_group),
            got=rank,
            remedy="name every rank in one group of ReplicaGroup",
            code="TRN411",
        )
    return registers.allocate(group[(group.index(rank) - int(iteration_id)) % len(group)])


def rank_id(name: str | None = None) -> VirtualRegister:
    """A register with the number of this rank."""
    return registers.allocate(current().rank)


# -- what they share ------------------------------------------------------------------------------------------------
def _groups(replica_group: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(replica_group, ReplicaGroup):
        refuse(
            "ranks are named by a ReplicaGroup",
            limit="ReplicaGroup([[0, 1], [2, 3]])",
            got=replica_group,
            remedy="pass nki.collectives.ReplicaGroup(groups)",
            code="TRN411",
        )
    return replica_group.ranks


def _ring(replica_group: Any) -> tuple[tuple[int, int], ...]:
    """Each rank of a group and the one behind it."""
    rings = [(group, (*group[1:], group[0])) for group in _groups(replica_group)]
    mine = [ring for ring in rings if current().rank in ring[0]] or rings
    return tuple(zip(*mine[0]))


def _each(name: str, srcs: Tensors, dsts: Tensors, **attrs: Any) -> None:
    """One instruction for each tensor of a coalesced collective."""
    if len(srcs) != len(dsts) or not srcs:
        refuse(
            "as many destinations as sources",
            limit=f"{len(srcs)} sources",
            got=f"{len(dsts)} destinations",
            remedy="pass two lists of the same length",
            code="TRN409",
        )
    if len(srcs) > 1 and any(t.on_chip for t in (*srcs, *dsts)):
        refuse(
            "several tensors at once only in HBM",
            limit="one tensor in SBUF",
            got=len(srcs),
            remedy="call the collective once for each tile",
            code="TRN403",
        )
    for src, dst in zip(srcs, dsts):
        current().emit(name, dst=dst, src=src, joint=_joint(dst, src), **attrs)


def _variable(
    name: str,
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    metadata: Tensor,
    known: bool,
    has_rdispls: bool,
    priority: int | None,
) -> None:
    (src,), (dst,) = _one(srcs, dsts)
    current().emit(
        name,
        dst=dst,
        metadata=metadata,
        src=src,
        groups=_groups(replica_group),
        joint=_joint(dst, src),
        recv_counts_known=bool(known),
        has_rdispls=bool(has_rdispls),
        priority=priority,
    )


def _joint(*tensors: Tensor) -> bool:
    """Whether both cores of the logical core take part: it has two, and the tensors are those of both."""
    return current().cores > 1 and all(t.storage.common for t in tensors)


def _one(srcs: Tensors, dsts: Tensors) -> tuple[Tensors, Tensors]:
    if len(srcs) != 1 or len(dsts) != 1:
        refuse(
            "several tensors at once are not supported here",
            limit="lists of one tensor",
            got=f"{len(srcs)} and {len(dsts)}",
            remedy="call it once for each tensor",
            code="TRN409",
        )
    return srcs, dsts


def _check_channels(channel_ids: Sequence[int], *lists: Sequence[Tensors]) -> None:
    if list(channel_ids) != list(range(len(channel_ids))) or len(channel_ids) > MOST_CHANNELS:
        refuse(
            "channels are numbered from 0 on",
            limit=f"at most {MOST_CHANNELS} of them",
            got=list(channel_ids),
            remedy="pass channel_ids=[0, 1, ...]",
            code="TRN411",
        )
    if any(len(one) != len(channel_ids) or any(len(tensors) != 1 for tensors in one) for one in lists):
        refuse(
            "one list of one tensor for each channel",
            limit=f"{len(channel_ids)} channels",
            got=[len(one) for one in lists],
            remedy="pass [[tensor]] for channel_ids=[0]",
            code="TRN409",
        )


def _only_first(collective_dim: int) -> None:
    if collective_dim != 0:
        refuse("only dimension 0 can be split", limit=0, got=collective_dim, remedy="transpose first", code="TRN411")
