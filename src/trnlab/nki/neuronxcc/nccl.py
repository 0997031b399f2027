# SPDX-License-Identifier: Apache-2.0
"""neuronxcc.nki.nccl: communication between ranks in the old dialect, over nki.collectives.

Groups are plain lists of lists. Ranks are simulated with `nki.simulate(kernel, ranks=...)` of trnlab.nki.

Source: uses in aws-neuron/nki-samples (3a99c91, contributed/neuron-team-kernels) and huggingface/optimum-neuron.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trnlab.lang.storage import refuse
from trnlab.lang.tensor import Tensor
from trnlab.nki import collectives as new
from trnlab.nki.collectives import ReplicaGroup
from trnlab.nki.neuronxcc.zeros import settle

__all__ = ["all_gather", "all_reduce", "all_to_all", "collective_permute", "reduce_scatter"]
Groups = Sequence[Sequence[int]]


def all_reduce(op: Any, srcs: Any, dsts: Any, replica_groups: Groups, dtype: Any = None, **_: Any) -> None:
    """Each dst = the srcs of all ranks of a group, combined with op."""
    sources, results = _checked(srcs, dsts, dtype)
    new.all_reduce(sources, results, _group(replica_groups), op)


def all_gather(
    op: Any = None,
    srcs: Any = (),
    dsts: Any = (),
    replica_groups: Groups = (),
    all_gather_dim: int = 0,
    dtype: Any = None,
    **_: Any,
) -> None:
    """Each dst = the srcs of all ranks, one after the other along all_gather_dim. op is not used."""
    sources, results = _checked(srcs, dsts, dtype)
    new.all_gather(sources, results, _group(replica_groups), int(all_gather_dim))


def reduce_scatter(
    op: Any, srcs: Any, dsts: Any, replica_groups: Groups, reduce_scatter_dim: int = 0, dtype: Any = None, **_: Any
) -> None:
    """Each dst on the r-th rank = the r-th part of the ranks' srcs, combined with op."""
    sources, results = _checked(srcs, dsts, dtype)
    new.reduce_scatter(sources, results, _group(replica_groups), int(reduce_scatter_dim), op)


def all_to_all(
    op: Any = None,
    srcs: Any = (),
    dsts: Any = (),
    replica_groups: Groups = (),
    split_dim: int = 0,
    concat_dim: int = 0,
    dtype: Any = None,
    **_: Any,
) -> None:
    """The s-th part of dst on the r-th rank = the r-th part of src on the s-th rank. op is not used."""
    if split_dim != concat_dim:
        refuse(
            "all_to_all of trnlab splits and joins the same dimension",
            limit=split_dim,
            got=concat_dim,
            remedy="transpose before or after it",
            code="TRN411",
        )
    sources, results = _checked(srcs, dsts, dtype)
    new.all_to_all(sources, results, _group(replica_groups), int(split_dim))


def collective_permute(*, src: Tensor, dst: Tensor, source_target_pairs: Sequence[tuple[int, int]], **_: Any) -> None:
    """dst on the target of each pair = src on its source."""
    sources, results = _checked([src], [dst], None)
    new.collective_permute(sources, results, source_target_pairs)


def _group(groups: Groups) -> ReplicaGroup:
    return ReplicaGroup([[int(rank) for rank in group] for group in groups])


def _checked(srcs: Any, dsts: Any, dtype: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Sources and destinations as lists. Raises ConstraintError where their format is not the one asked for."""
    sources, results = ([t] if isinstance(t, Tensor) else list(t) for t in (srcs, dsts))
    for tensor in sources:
        settle(tensor)
    wrong = [t for t in (*sources, *results) if dtype is not None and t.dtype != dtype]
    if wrong:
        refuse(
            "a collective does not change formats",
            limit=str(dtype),
            got=wrong[0],
            remedy="make sources and destinations in the format of dtype=",
            code="TRN409",
        )
    return sources, results


def __getattr__(name: str) -> Any:
    """Raises ImportError, which scripts expect of a name that their release lacks."""
    if name.startswith("__"):
        raise AttributeError(name)
    raise ImportError(
        f"neuronxcc.nki.nccl has no {name!r} here, but {', '.join(__all__)}; nki.collectives has more", name=name
    )
