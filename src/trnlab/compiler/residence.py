# SPDX-License-Identifier: Apache-2.0
"""Which tensors stay in SBUF between the calls of a program, and where.

A tensor stays if the loop that makes it has its rows on partitions, all that read it read blocks of such rows (a
product its operand, a loop over rows or an epilogue what it meets, attention its tokens), and SBUF has the room for
as long as it lives. All of them lie at the end of SBUF, placed by their lifetimes as temporaries are in HBM; calls
that meet any of them divide what is left among each other as all calls divide SBUF otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trnlab.chips.spec import Chip
from trnlab.compiler.analysis.strided import split_rows
from trnlab.compiler.fusing.fusion import Partition
from trnlab.compiler.fusing.groups import FusionGroup, GroupKind, ValueClass
from trnlab.compiler.fusing.packing import Unit
from trnlab.compiler.lowerings.attention import fits_fused, plain_operands
from trnlab.compiler.lowerings.dot import arranged
from trnlab.compiler.lowerings.rows import parts_of_rows
from trnlab.compiler.placement import ALIGN, Lifetime, place_in_turn
from trnlab.graph.ir import Op, Value
from trnlab.kernels.residence import Home, P

SHARE = 0.375  # of SBUF at most: products need room for their blocks
# Of SBUF that one tensor may take. Every call has what is left: with tensors of 2,048 x 1,024 bf16 in it, attention
# over 2,048 tokens took twice as long (3.6 ms of a step of 12.5 on Trainium 1, where all else gained 0.7).
LARGEST = 1 / 8
# Units from a tensor's maker to its last reader at most: within a layer. What waits for the backward pass would take
# the room from what is read soon, the more of it the more layers there are; it waits in HBM, in every layer alike.
LIFE = 24
FOREIGN = (GroupKind.CALL, GroupKind.LOOP)  # whose calls lie where they like


@dataclass(frozen=True)
class Residence:
    """Which tensors stay in SBUF, and where."""

    homes: Mapping[Value, Home]  # addresses are counted from the first byte of SBUF
    first: int  # where they begin
    meets: Sequence[bool]  # for each unit whether any of them lives then


class SbufRing:
    """Where calls have their own tiles while others stay: one behind the other, and from the first byte on again."""

    def __init__(self) -> None:
        self._next, self._latest = 0, (0, 0)  # the byte behind the last call's tiles, and which bytes they have
        self._known: dict[Any, list[int]] = {}

    def fill(self, low: int, high: int) -> None:
        """A call that lies where it likes has these bytes to its end."""
        self._next, self._latest = -(-high // 64) * 64, (low, high)

    def place(self, key: Any, size: int, room: int) -> int:
        """The first byte for a call of some kind with tiles of `size` bytes, of `room`: where those of the same call
        in an earlier layer began, unless the call just before has these bytes, for which its loads would wait; else
        behind the call before. What half the room can hold lies in one half, so that there is the other one for the
        next."""
        known = self._known.setdefault(key, [])
        low, high = self._latest
        half = room // 2 // 64 * 64
        behind = half if size <= half and self._next < half < self._next + size else self._next
        behind = behind if behind + size <= room else 0
        base = next((b for b in known if b + size <= low or high <= b), behind)
        if base not in known:
            known.append(base)
        self._next = -(-(base + size) // 64) * 64
        self._latest = base, base + size
        return base


def settle(
    part: Partition, units: Sequence[Unit], candidates: Iterable[Value], chip: Chip, spoilt: Iterable[int] = ()
) -> Residence:
    """The homes of some of the candidates, values that a group stores and the user does not see.

    spoilt: numbers of units that have no room beside what stays: nothing stays then.
    """
    usable = chip.sbuf.usable_bytes_per_partition
    foreign = {i for i, unit in enumerate(units) if unit[0].kind in FOREIGN} | set(spoilt)
    spans, homes = _spans(part, units), {}
    for value in candidates:
        first, last = spans[value][0], spans[value][-1]
        stays = last - first <= LIFE and not any(first <= i <= last for i in foreign)
        home = _home(part, units, spans[value], value) if stays else None
        if home is not None and home.nbytes <= usable * LARGEST:
            homes[value] = home
    lives = {v: Lifetime(i, home.nbytes, spans[v][0], spans[v][-1]) for i, (v, home) in enumerate(homes.items())}
    offsets, top = place_in_turn(lives.values(), int(usable * SHARE))
    first = usable - top
    settled = {v: replace(homes[v], address=first + offsets[t.id]) for v, t in lives.items() if t.id in offsets}
    alive = [(spans[v][0], spans[v][-1]) for v in settled]
    meets = [any(a <= i <= b for a, b in alive) for i in range(len(units))]
    return Residence(settled, first // ALIGN * ALIGN, meets)


def _spans(part: Partition, units: Sequence[Unit]) -> dict[Value, list[int]]:
    """For each value that a group makes the numbers of the units that make and read it, in order."""
    found: dict[Value, list[int]] = {}
    for i, unit in enumerate(units):
        for group in unit:
            for op in group.ops:
                for value in op.results:
                    if part.owner[value] is group:
                        found.setdefault(value, []).insert(0, i)
                for value in op.operands:
                    root = part.root(value)
                    if not part.inside(root, group):
                        found.setdefault(root, []).append(i)
    return found


def _home(part: Partition, units: Sequence[Unit], span: Sequence[int], value: Value) -> Home | None:
    """The layout in which a value's maker leaves it, and all its readers find it."""
    maker, *readers = dict.fromkeys(span)
    if not readers or any(len(units[i]) > 1 and units[i][0].kind is not GroupKind.DOT for i in (maker, *readers)):
        return None
    home = _made(part, part.owner[value], value)
    if home is None:
        return None
    for group in (group for i in readers for group in units[i]):
        for op in group.ops:
            for place_, operand in enumerate(op.operands):
                if part.root(operand) is value and not _found(part, group, op, place_, home):
                    return None
    return home


def _made(part: Partition, group: FusionGroup, value: Value) -> Home | None:
    """The layout in which a group can leave one of its results."""
    if group.kind is GroupKind.ATTENTION:
        op = group.anchor
        if op.name != "trn.attention" or value is not op.results[0] or not fits_fused(group):
            return None
        batch, heads, tokens, size = value.shape
        side_by_side = part.strided(value).strides == (tokens * heads * size, size, heads * size, 1)
        whole = batch == 1 or tokens % P == 0
        return Home((batch * tokens, heads * size), (0,), value.dtype) if side_by_side and whole else None
    if group.cols is None or value.type.size != group.size or group.classes[value] is not ValueClass.FULL:
        return None
    rows = group.size // group.cols
    if group.kind is GroupKind.ROWS:
        fits = parts_of_rows(group, part, rows) == 1
    else:
        fits = group.kind is GroupKind.DOT and (group.anchor.name == "trn.dot_sum" or not _batched(group.anchor))
    return Home((rows, group.cols), (0,), value.dtype) if fits else None


def _batched(op: Op) -> bool:
    return bool(op.attrs.get("lhs_batching_dimensions"))


def _found(part: Partition, group: FusionGroup, op: Op, place_: int, home: Home) -> bool:
    """Whether a group can read an operand of one of its ops as it lies at home."""
    value = op.operands[place_]
    if group.kind is GroupKind.ATTENTION:
        if op.name != "trn.attention" or place_ >= plain_operands(op) or not fits_fused(group):
            return False
        seen, row_dims = part.strided(value).permute(0, 2, 1, 3), 2
        if seen.shape[0] > 1 and seen.shape[1] % P:
            return False
    elif group.kind is GroupKind.DOT and op is group.anchor:
        side = ("lhs", "rhs")[place_] if op.name == "dot_general" and place_ < 2 else ""
        if not side or _batched(op) or op.attrs.get("lhs_mx") or op.attrs.get(f"{side}_cast"):
            return False
        view, _, row_dims, _ = arranged(part.strided(value), op.attrs, side)
        seen = view
    else:
        if group.kind not in (GroupKind.ROWS, GroupKind.DOT) or group.cols is None or op.name == "gather":
            return False
        rows = group.size // group.cols
        split = split_rows(part.strided(value), rows, group.cols) if value.type.size == group.size else None
        if split is None or group.outer.get(value) is not ValueClass.FULL:
            return False
        if group.kind is GroupKind.ROWS and parts_of_rows(group, part, rows) > 1:
            return False
        seen, row_dims = split
    found = home.matrix(seen, row_dims)
    return found is not None and found.row == 0 and found.rows == home.rows
