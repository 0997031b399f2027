# SPDX-License-Identifier: Apache-2.0
"""A recording that the host computes, operator by operator: what the chip has no form of, and what is no step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trnlab import host_ops
from trnlab.frontends.torch.device import batch_norms
from trnlab.frontends.torch.geometry import seen_as
from trnlab.frontends.torch.recording.memory import Memories, SlotMemory
from trnlab.frontends.torch.recording.operators import OperatorSchema, plain
from trnlab.frontends.torch.recording.recorder import HostNumber, RecordedOperator, Ref
from trnlab.frontends.torch.recording.tracing import follower


def run(
    nodes: Sequence[RecordedOperator], done: list[RecordedOperator], memories: Memories, counts: bool = True
) -> None:
    """Compute what was recorded, on the memory that it was recorded for. done: gets what came through. memories: of
    what was computed before, and gets what is met."""
    followed = follower()
    if followed is not None:
        followed.on_host(nodes, counts, memories)
        return
    for node in nodes:
        if counts:
            host_ops.current().add(node.about.name)
        compute(node, memories)
        done.append(node)


def compute(node: RecordedOperator, memories: Memories) -> None:
    """Compute one operator. memories: of the slots so far."""
    given = node.made.arguments([_tensor(ref, memories) for ref in node.refs], node.numbers)
    with torch.no_grad():
        result = _result(node.about, given)
    for ref, tensor in zip(node.results, node.made.results(node.about, result)):
        _tensor(ref, memories).copy_(tensor)


def _result(about: OperatorSchema, given: dict[str, Any]) -> Any:
    if about.op not in batch_norms.OPERATORS:
        return plain(about, given)
    return batch_norms.called(about.op, [given[argument.name] for argument in about.op._schema.arguments])


def _tensor(ref: Ref, memories: Memories) -> Tensor:
    slot, form, offset = ref
    if isinstance(slot, HostNumber):
        return seen_as(slot.value, form)
    if slot not in memories:
        memories[slot] = SlotMemory(slot)
    lies = form.memory
    return seen_as(memories[slot].view(lies.shape, lies.strides, offset), form)
