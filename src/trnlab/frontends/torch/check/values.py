# SPDX-License-Identifier: Apache-2.0
"""Which recorded operators are worth computing while a script is followed, and what stands for all other results.

Small results have values. So have large ones that small ones, masks and whole numbers are made of, as long as
everything that they are made of is known: a mask of attention that a model makes of the lengths of a batch is a large
tensor, and says which way the model goes. Weights and what is computed with them are never known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from trnlab.frontends.torch.check.unmaterialized import (
    KEEP,
    LARGE,
    has_values,
    is_known_memory,
    is_made_up_memory,
    keep_values,
    make_up,
    memory_of,
)
from trnlab.frontends.torch.recording import on_host
from trnlab.frontends.torch.recording.memory import Memories, SlotMemory
from trnlab.frontends.torch.recording.recorder import RecordedOperator, Ref, Slot

MOST = 1 << 26  # bytes of a result that is computed for what is made of it (assumed: a tenth of a second)
_OVERWRITE = ("aten::copy_", "aten::fill_", "aten::zero_")
_Form = tuple[int, torch.Size, tuple[int, ...]]
_sizes: dict[int, dict[_Form, int]] = {}  # how many a mask chooses that nobody knows, by memory and form
_masks: dict[int, Tensor] = {}  # those, which keeps their memory


def compute(nodes: Sequence[RecordedOperator], memories: Memories) -> None:
    """Give results values: those of what somebody computed, or what is made up for it. memories: of slots that were
    met before."""
    worth = _worth(nodes)
    for i, node in enumerate(nodes):
        made = list(_made(node))
        keeps = node.about.name.startswith(KEEP)
        if i in worth:
            on_host.compute(node, memories)
            for slot in made:
                if slot.nbytes >= LARGE and not slot.weak.expired():
                    keep_values(slot.key, slot.weak)
            continue
        if any(slot.nbytes >= LARGE for slot in (*_slots(node.refs), *made)):
            if not keeps and not node.about.in_place:
                _fill(made, memories)
        else:
            _try(node, made, memories)
        if not keeps:
            for slot in made:
                if not slot.weak.expired():
                    make_up(slot.key, slot.weak)
        if node.about.name == "aten::all":  # what a script insists on, as on finite gradients, holds
            for slot in made:
                memories.setdefault(slot, SlotMemory(slot)).flat.fill_(1)


def _try(node: RecordedOperator, made: Sequence[Slot], memories: Memories) -> None:
    """Compute of what is made up; where that leads nowhere, as an index beyond its table does, make the result up."""
    try:
        on_host.compute(node, memories)
    except (IndexError, RuntimeError):
        _fill(made, memories)


def count_of(mask: Tensor, numbers: Tensor, assumed: int) -> tuple[int, bool]:
    """How many places a mask chooses, and whether that is known: where it is not, as many each time as the first.

    numbers: of each place how many are chosen up to it.
    """
    if has_values(numbers):
        return int(numbers[-1].item()), True
    form = mask.storage_offset(), mask.shape, mask.stride()
    _masks[memory_of(mask)] = mask
    return _sizes.setdefault(memory_of(mask), {}).setdefault(form, assumed), False


def forget_masks() -> None:
    """No script is followed any more."""
    _sizes.clear()
    _masks.clear()


def _worth(nodes: Sequence[RecordedOperator]) -> set[int]:
    """Places of operators whose operands all have values, and whose results do small ones or whole numbers good."""
    known: dict[Slot, bool] = {}
    able = []
    for node in nodes:
        able.append(
            all(known[slot] if slot in known else slot.fresh or _is_known(slot) for slot in _read(node))
            and all(slot.nbytes <= MOST for slot in _made(node))
        )
        known.update(dict.fromkeys(_made(node), able[-1]))
    needed: set[Slot] = set()
    worth = set()
    for i in range(len(nodes) - 1, -1, -1):
        if able[i] and any(slot in needed or _is_wanted(slot) for slot in _made(nodes[i])):
            worth.add(i)
            needed.update(_read(nodes[i]))
    return worth


def _is_wanted(slot: Slot) -> bool:
    """Whether memory is to have values for its own sake."""
    return slot.nbytes < LARGE or not (slot.kind.is_floating_point or slot.kind.is_complex or slot.weak.expired())


def _is_known(slot: Slot) -> bool:
    if slot.weak.expired():
        return slot.nbytes < LARGE
    return is_known_memory(slot.key) if slot.nbytes >= LARGE else not is_made_up_memory(slot.key)


def _slots(refs: Iterable[Ref]) -> list[Slot]:
    return [ref[0] for ref in refs if isinstance(ref[0], Slot)]


def _read(node: RecordedOperator) -> list[Slot]:
    """The memory that an operator reads; of its own results it may be given some, which nobody has written yet."""
    whole = node.about.name in _OVERWRITE and _is_whole(node.refs[0])
    return _slots(node.refs[1:] if whole else node.refs)


def _is_whole(ref: Ref) -> bool:
    slot, form, _ = ref
    return isinstance(slot, Slot) and form.dense and form.size * form.dtype.itemsize == slot.nbytes


def _made(node: RecordedOperator) -> Iterable[Slot]:
    """The memory that an operator writes."""
    return (*_slots(node.refs[i] for i in node.made.written), *_slots(node.results))


def _fill(made: Sequence[Slot], memories: Memories) -> None:
    """Make up small results, as `room` does: PyTorch's own kernels have their memory from `empty`."""
    for slot in made:
        if slot.nbytes < LARGE:
            floats = slot.kind.is_floating_point or slot.kind.is_complex
            memories.setdefault(slot, SlotMemory(slot)).flat.fill_(int(floats))
