# SPDX-License-Identifier: Apache-2.0
"""Attention: the graph's composites are library kernels, of which there are several.

The fused one keeps all keys of a head on chip; it takes masks that only hide, and a bias that is shifted. Where a
sequence does not fit, both passes are those of its segments, joined. The one by blocks takes every mask and any
length, and gives no gradient of a bias. The first that applies and fits is taken (`forms.LOWERINGS`). Heads wider
than 128 are fused where calls are put in order: stacks whose instructions are as recorded have them by blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from trnlab.compiler.fusing.groups import FusionGroup
from trnlab.compiler.lowerings.context import Lowering
from trnlab.graph.ir import Op, Value
from trnlab.kernels.attention import attention_forward
from trnlab.kernels.attention_backward import attention_backward
from trnlab.kernels.attention_backward_segments import attention_backward_segments
from trnlab.kernels.attention_blocks import WIDEST, attention_forward_blocks
from trnlab.kernels.attention_blocks_backward import attention_backward_blocks
from trnlab.kernels.attention_segments import attention_forward_segments
from trnlab.kernels.attention_tiles import is_fused
from trnlab.kernels.blocks import P
from trnlab.kernels.view import HbmView
from trnlab.stacks import SCHEDULED


def lower_attention(low: Lowering) -> None:
    """Record trn.attention or trn.attention_backward, everything of a head on chip."""
    ordered = low.chosen["order"] == SCHEDULED  # otherwise instructions are as they have been
    _record(low, partial(attention_forward, side_by_side=ordered), attention_backward)


def lower_attention_by_segments(low: Lowering) -> None:
    """Record trn.attention or trn.attention_backward, the fused kernels on segments of the sequences."""
    _record(low, attention_forward_segments, attention_backward_segments)


def lower_attention_by_blocks(low: Lowering) -> None:
    """Record trn.attention or trn.attention_backward, keys going by in strips."""
    _record(low, attention_forward_blocks, attention_backward_blocks, shifts=False)


def fits_fused(group: FusionGroup, chosen: Mapping[str, str] | None = None) -> bool:
    """Whether the fused kernels compute what the group's op means, by the choices of a compilation; None: by any."""
    op = group.anchor
    q, _, v = op.operands[:3] if op.name == "trn.attention" else op.operands[1:4]
    masked = len(op.operands) > plain_operands(op)
    widest = WIDEST if chosen is not None and chosen["order"] == SCHEDULED else P
    return is_fused(q.shape[3], v.shape[3], q.dtype, op.attrs["scale"], widest) and (
        op.attrs["hides"] or op.attrs["shifted"] or not masked
    )


def fits_blocks(group: FusionGroup, chosen: Mapping[str, str]) -> bool:
    """Whether the kernels by blocks compute what the group's op means: no gradient of a bias, and all queries
    heard."""
    op = group.anchor
    return not op.attrs.get("dbias") and len(op.operands) <= plain_operands(op) + 1


def plain_operands(op: Op) -> int:
    """How many operands come before the bias and what follows it."""
    return 3 if op.name == "trn.attention" else 6


def _record(low: Lowering, forward: object, backward: object, shifts: bool = True) -> None:
    """shifts: whether the kernels know of shifted biases, which lie the other way round forward."""
    op = low.group.anchor
    plain, options = plain_operands(op), {"causal": op.attrs["causal"], "scale": op.attrs["scale"]}
    operands = [low.view(v) for v in op.operands]
    *results, last = [_result(low, v) for v in op.results]
    options |= zip(("bias", "heard"), operands[plain:])
    if op.attrs["shifted"] and shifts:
        options["shifted"] = True
    elif op.attrs["shifted"] and op.name == "trn.attention":
        options["bias"] = operands[plain].permute(0, 1, 3, 2)
    if op.attrs.get("dbias"):
        options["dbias"] = last
    else:
        results.append(last)
    kernel = forward if op.name == "trn.attention" else backward
    kernel(low.b, *operands[:plain], *results, **options)  # type: ignore[operator]


def _result(low: Lowering, value: Value) -> HbmView | None:
    """Where a result goes; None for one that nobody reads."""
    return low.view(value) if value in low.stores else None
