# SPDX-License-Identifier: Apache-2.0
"""A recording that the host computes, operator by operator: what the chip has no form of, and what is no step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trnlab import host_ops
from trnlab.frontends.torch.recording.memory import SlotMemory
from trnlab.frontends.torch.recording.operators import plain
from trnlab.frontends.torch.recording.recorder import HostNumber, RecordedOperator, Ref, Slot
from trnlab.frontends.torch.recording.tracing import follower


def run(nodes: Sequence[RecordedOperator], counts: bool = True, done: list[RecordedOperator] | None = None) -> None:
    """Compute what was recorded, on the memory that it was recorded for. done: gets what came through."""
    followed = follower()
    if followed is not None:
        followed.on_host(nodes, counts)
        return
    memories: dict[Slot, SlotMemory] = {}
    for node in nodes:
        if counts:
            host_ops.current().add(node.about.name)
        compute(node, memories)
        if done is not None:
            done.append(node)


def compute(node: RecordedOperator, memories: dict[Slot, SlotMemory]) -> None:
    """Compute one operator. memories: of the slots so far."""
    given = node.made.arguments([_tensor(ref, memories) for ref in node.refs], node.numbers)
    with torch.no_grad():
        result = plain(node.about, given)
    for ref, tensor in zip(node.results, node.made.results(node.about, result)):
        _tensor(ref, memories).copy_(tensor)


def _tensor(ref: Ref, memories: dict[Slot, SlotMemory]) -> Tensor:
    slot, form, offset = ref
    if isinstance(slot, HostNumber):
        return slot.value
    if slot not in memories:
        memories[slot] = SlotMemory(slot)
    return memories[slot].view(form.shape, form.strides, offset)
