# SPDX-License-Identifier: Apache-2.0
"""A recording that the host computes, operator by operator: what the chip has no form of, and what is no step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trnlab import host_ops
from trnlab.frontends.torch.recording.memory import Memory
from trnlab.frontends.torch.recording.operators import Operator
from trnlab.frontends.torch.recording.recorder import Node, Number, Ref, Slot


def run(nodes: Sequence[Node]) -> None:
    """Compute what was recorded, on the memory that it was recorded for."""
    memories: dict[Slot, Memory] = {}
    for node in nodes:
        host_ops.current().add(node.about.name)
        given = node.made.arguments([_tensor(ref, memories) for ref in node.refs], node.numbers)
        with torch.no_grad():
            result = called(node.about, given)
        results = [result] if len(node.about.returned) == 1 else list(result or ())
        new = [t for r, same in zip(results, node.about.returned) if same is None
               for t in (r if isinstance(r, (list, tuple)) else [r]) if t is not None]  # fmt: skip
        for ref, tensor in zip(node.results, new):
            _tensor(ref, memories).copy_(tensor)


def called(about: Operator, named: dict[str, Any]) -> Any:
    """The operator on arguments by name, of which one that is a tensor in the schema may be a number."""
    schema = about.op._schema.arguments
    numbers = any(isinstance(named.get(a.name), (int, float)) and str(a.type) == "Tensor" for a in schema)
    if not numbers:
        return about.op(**named)
    positional = [a.name for a in schema if not a.kwarg_only and a.name in named]
    rest = {k: v for k, v in named.items() if k not in positional}
    return about.op.overloadpacket(*(named[name] for name in positional), **rest)


def _tensor(ref: Ref, memories: dict[Slot, Memory]) -> Tensor:
    slot, form, offset = ref
    if isinstance(slot, Number):
        return slot.value
    if slot not in memories:
        memories[slot] = Memory(slot)
    return memories[slot].view(form.shape, form.strides, offset)
