# SPDX-License-Identifier: Apache-2.0
"""A recording that the host computes, operator by operator: what the chip has no form of, and what is no step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trnlab import host_ops
from trnlab.frontends.torch.recording.memory import Memories, SlotMemory
from trnlab.frontends.torch.recording.operators import plain
from trnlab.frontends.torch.recording.recorder import HostNumber, RecordedOperator, Ref
from trnlab.frontends.torch.recording.tracing import follower

_HALVES = (torch.bfloat16, torch.float16)
_MIXED = "mixed dtype (CPU)"  # formats together that norms on devices take, and the host's do not


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
    tensors = [_tensor(ref, memories) for ref in node.refs]
    with torch.no_grad():
        try:
            result = plain(node.about, node.made.arguments(tensors, node.numbers))
        except RuntimeError as error:
            if _MIXED not in str(error):
                raise
            wide = [
                t if i in node.made.written or t.dtype not in _HALVES else t.float() for i, t in enumerate(tensors)
            ]
            result = plain(node.about, node.made.arguments(wide, node.numbers))
    for ref, tensor in zip(node.results, node.made.results(node.about, result)):
        _tensor(ref, memories).copy_(tensor)


def _tensor(ref: Ref, memories: Memories) -> Tensor:
    slot, form, offset = ref
    if isinstance(slot, HostNumber):
        return slot.value
    if slot not in memories:
        memories[slot] = SlotMemory(slot)
    return memories[slot].view(form.shape, form.strides, offset)
