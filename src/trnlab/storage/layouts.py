# SPDX-License-Identifier: Apache-2.0
"""Layouts of models over ranks, and which slices of a tensor each rank has: arithmetic on shapes alone.

A layout has dp x tp x pp ranks. Stages of a pipeline hold whole layers; tensor parallelism cuts a weight along one of
its dimensions, by columns (0) or by rows (1); what is left of it may be cut along its first dimension over the ranks
of data parallelism, as FSDP and ZeRO do. Slices are those of `torch.chunk`: of equal size, rounded up, the last ones
smaller or empty. Ranks count tensor parallelism fastest, then data, then the pipeline, as in the vendor's library.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from trnlab.errors import UsageError

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|layer|block)\.(\d+)\.")
# Megatron's way, which the vendor's converter has, too: the first of two products by columns, the second by rows
_COLUMNS = r"(q_proj|k_proj|v_proj|gate_proj|up_proj|embed_tokens|lm_head|c_fc|fc1|wi|up)\.(weight|bias)$"
_ROWS = r"(o_proj|out_proj|down_proj|fc2|wo|down)\.weight$"
_FIRST, _LAST = r"embed_tokens|wte|wpe|word_embeddings", r"lm_head|model\.norm|norm_f|ln_f|head\."
USUAL = ((_COLUMNS, 0), (_ROWS, 1))
Slice = tuple[tuple[int, ...], tuple[int, ...]]  # where it begins, and its size


@dataclass(frozen=True)
class RankPosition:
    """Which rank of each kind of parallelism."""

    dp: int = 0
    tp: int = 0
    pp: int = 0


@dataclass(frozen=True)
class ParallelDegrees:
    """Degrees of data, tensor and pipeline parallelism."""

    dp: int = 1
    tp: int = 1
    pp: int = 1

    @property
    def ranks(self) -> int:
        """How many there are."""
        return self.dp * self.tp * self.pp

    def places(self) -> list[RankPosition]:
        """Places of rank 0, 1, ..."""
        return [RankPosition(d, t, p) for p, d, t in product(range(self.pp), range(self.dp), range(self.tp))]

    def rank(self, place: RankPosition) -> int:
        """The rank at a place."""
        return (place.pp * self.dp + place.dp) * self.tp + place.tp

    def __str__(self) -> str:
        return f"dp{self.dp},tp{self.tp},pp{self.pp}"


def parse(text: str) -> ParallelDegrees:
    """Such as dp2,tp4,pp1; what is not named is 1. Raises UsageError (TRN542)."""
    degrees: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"(dp|tp|pp)(\d{1,5})", part.strip())
        if match is None or match[1] in degrees or not int(match[2]):
            raise UsageError(
                f"{text!r} is no layout",
                code="TRN542",
                got=part,
                limit="dp, tp and pp, each once, with its degree",
                remedy="such as dp2,tp4,pp1",
            )
        degrees[match[1]] = int(match[2])
    return ParallelDegrees(**degrees)


@dataclass(frozen=True)
class ShardingRules:
    """Along which dimension tensor parallelism cuts a tensor: by the first pattern that its name has."""

    patterns: tuple[tuple[str, int], ...] = USUAL

    def dimension(self, name: str, shape: Sequence[int]) -> int | None:
        """The dimension, or None for a tensor that every rank has whole."""
        for pattern, dim in self.patterns:
            if re.search(pattern, name):
                return dim if dim < len(shape) else None
        return None


def rules(texts: Iterable[str]) -> ShardingRules:
    """PATTERN=DIM, before the usual ones; PATTERN=none for what stays whole. Raises UsageError (TRN542)."""
    found = []
    for text in texts:
        pattern, _, dim = text.rpartition("=")
        try:
            re.compile(pattern)
            valid = bool(pattern) and (dim == "none" or 0 <= int(dim) < 8)
        except (re.error, ValueError):
            valid = False
        if not valid:
            raise UsageError(
                f"{text!r} says of no tensor how it is cut",
                code="TRN542",
                limit="PATTERN=DIM or PATTERN=none",
                got=text,
                remedy=r"such as --cut 'attn\.qkv\.weight$=0'",
            )
        found.append((pattern, 1 << 30 if dim == "none" else int(dim)))
    return ShardingRules((*found, *USUAL))


def stages(names: Iterable[str], pp: int) -> dict[str, int]:
    """The stage of each tensor: layers in equal numbers, earlier stages with one more; what stands before the layers
    in the first, norm and head behind them in the last. Raises UsageError (TRN542) for fewer layers than stages."""
    names = list(names)
    layers = sorted({int(m[1]) for name in names if (m := _LAYER.search(name))})
    if pp > 1 and len(layers) < pp:
        raise UsageError(
            "there are fewer layers than stages of the pipeline",
            code="TRN542",
            limit=len(layers),
            got=pp,
            remedy="choose a smaller pp; layers are what is called layers.N., h.N. or blocks.N.",
        )
    each, more = divmod(len(layers), pp)
    firsts = [s * each + min(s, more) for s in range(pp)]
    stage = {layer: sum(i >= first for first in firsts) - 1 for i, layer in enumerate(layers)}
    return {name: _stage(name, stage, pp) for name in names}


def _stage(name: str, stage: dict[int, int], pp: int) -> int:
    if match := _LAYER.search(name):
        return stage[int(match[1])]
    return pp - 1 if re.search(_LAST, name) and not re.search(_FIRST, name) else 0


def chunk(length: int, parts: int, which: int) -> tuple[int, int]:
    """Where slice `which` begins, and how long it is, as `torch.chunk` cuts, with empty ones at the end."""
    each = math.ceil(length / parts) if length else 0
    begin = min(which * each, length)
    return begin, min(each, length - begin)


def cut(shape: Sequence[int], dim: int | None, tp: tuple[int, int], dp: tuple[int, int] = (0, 1)) -> Slice:
    """The slice of a rank. tp: which of how many along `dim`; dp: which of how many of that, along the first."""
    offsets, sizes = [0] * len(shape), list(shape)
    if dim is not None:
        offsets[dim], sizes[dim] = chunk(shape[dim], tp[1], tp[0])
    if shape and dp[1] > 1:
        begin, sizes[0] = chunk(sizes[0], dp[1], dp[0])
        offsets[0] += begin
    return tuple(offsets), tuple(sizes)


def common(a: Slice, b: Slice) -> Slice | None:
    """What two slices of a tensor have in common; None for nothing."""
    begins = [max(x, y) for x, y in zip(a[0], b[0])]
    ends = [min(x + n, y + m) for x, n, y, m in zip(a[0], a[1], b[0], b[1])]
    if any(end <= begin for begin, end in zip(begins, ends)):
        return None
    return tuple(begins), tuple(end - begin for begin, end in zip(begins, ends))


def within(part: Slice, whole: Slice) -> tuple[slice, ...]:
    """Where a part stands in a slice that has it, as an index."""
    return tuple(slice(x - begin, x - begin + n) for x, n, begin in zip(part[0], part[1], whole[0]))


def covering(wanted: Slice, having: Sequence[Slice]) -> Iterator[tuple[int, Slice]]:
    """Which of the slices have parts of what is wanted; none where they are not the whole of it.

    A part that several have comes from the first. Slices either are equal or do not overlap, as ranks cut them.
    """
    found, seen = [], set()
    for i, each in enumerate(having):
        part = common(wanted, each)
        if part is not None and part not in seen:
            seen.add(part)
            found.append((i, part))
    if sum(math.prod(size) for _, size in seen) == math.prod(wanted[1]):
        yield from found
