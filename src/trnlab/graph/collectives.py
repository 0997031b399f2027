# SPDX-License-Identifier: Apache-2.0
"""What the ops mean that ranks execute together: who meets whom, and how tensors become the flat buffers of
`trnlab.collectives` and come back."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from trnlab.collectives import Collective, Communicator, perform
from trnlab.errors import GraphError
from trnlab.graph.ir import Graph, Op
from trnlab.graph.ops import COLLECTIVE, OPS

Array = np.ndarray[Any, Any]
_REDUCTIONS = {"add": "sum", "maximum": "max", "minimum": "min", "multiply": "prod"}


def asked(op: Op) -> Collective:
    """What an op asks of the ranks."""
    if op.name == "collective_permute":
        ends = op.attrs["source_target_pairs"]
        return Collective(op.name, pairs=tuple(zip(ends[::2], ends[1::2])))
    ranks, size = op.attrs["replica_groups"], op.attrs["group_size"]
    groups = tuple(ranks[i : i + size] for i in range(0, len(ranks), size))
    if op.attrs.get("sent"):
        row = prod(op.result.shape[1:])
        gives, takes = (tuple(n * row for n in op.attrs[name]) for name in ("sent", "received"))
        return Collective(op.name, groups, gives=gives, takes=takes, position=op.attrs["position"])
    return Collective(op.name, groups, _REDUCTIONS[op.attrs.get("kind", "add")])


def has_collectives(graph: Graph) -> bool:
    """Whether ranks meet in it, in rounds of its loops too."""
    bodies = (op.attrs["body"].graph for op in graph.ops if op.name == "loop")
    return any(OPS[op.name].kind == COLLECTIVE for op in graph.ops) or any(map(has_collectives, bodies))


def meets(op: Op) -> bool:
    """Whether ranks wait for each other in it."""
    return OPS[op.name].kind == COLLECTIVE and op.name != "partition_id"


def exchanges_own_parts(graph: Graph) -> bool:
    """Whether parts differ somewhere, so that each rank has a program of its own.

    Then collectives stay as the script has them, all of them and in its order: what one rank may leave out, merge or
    move, since nothing there reads it or waits for it, others may not.
    """
    return any(op.attrs.get("sent") for op in graph.ops if OPS[op.name].kind == COLLECTIVE)


def execute(op: Op, arrays: Sequence[Array], ranks: Communicator | None) -> list[Array]:
    """Results of an op on this rank. Raises GraphError (TRN308) where nobody else is there."""
    if ranks is None:
        raise GraphError(
            f"{op.name} is executed by several ranks together, and there is one",
            code="TRN308",
            where=op.loc,
            limit="a connection with the other ranks",
            got="none",
            remedy="interpret the graph on all of them",
        )
    if op.name == "partition_id":
        return [np.asarray(ranks.rank, np.uint32)]
    what = asked(op)
    laid = [_laid(op, array, what.ranks) for array in arrays]
    found = perform(ranks, what, [array.reshape(-1) for array in laid])
    return [_taken(op, flat, array, v.shape, what.ranks) for flat, array, v in zip(found, laid, op.results)]


def _laid(op: Op, array: Array, ranks: int) -> Array:
    """The tensor with the dimension first whose parts belong to ranks."""
    axis = {"all_gather": "all_gather_dim", "reduce_scatter": "scatter_dimension", "all_to_all": "split_dimension"}
    return np.moveaxis(array, op.attrs[axis[op.name]], 0) if op.name in axis else array


def _taken(op: Op, flat: Array, laid: Array, shape: tuple[int, ...], ranks: int) -> Array:
    """The result in its shape from the buffer that arrived."""
    if op.name in ("all_gather", "reduce_scatter"):
        axis = op.attrs["all_gather_dim" if op.name == "all_gather" else "scatter_dimension"]
        first = shape[axis]
        return np.moveaxis(flat.reshape(first, *laid.shape[1:]), 0, axis)
    if op.name == "all_to_all" and not op.attrs["sent"]:
        split, concat = op.attrs["split_dimension"], op.attrs["concat_dimension"]
        parts = flat.reshape(ranks, laid.shape[0] // ranks, *laid.shape[1:])
        return np.concatenate([np.moveaxis(part, 0, split) for part in parts], axis=concat)
    return flat.reshape(shape)
