# SPDX-License-Identifier: Apache-2.0
"""Instructions of the older nki.isa that move data."""

from __future__ import annotations

from typing import Any

from trnlab.lang.storage import refuse
from trnlab.lang.tensor import Tensor
from trnlab.nki import isa as new
from trnlab.nki.enums import dge_mode, oob_mode
from trnlab.nki.neuronxcc.defined import record
from trnlab.nki.neuronxcc.elementwise import result
from trnlab.nki.neuronxcc.masked import boxed, cut, trimmed
from trnlab.nki.operators import alu_name


def dma_copy(
    *,
    dst: Tensor,
    src: Tensor,
    mask: Any = None,
    dst_rmw_op: Any = None,
    oob_mode: Any = oob_mode.error,
    mode: Any = None,
    dge_mode: Any = dge_mode.unknown,
    **_: Any,
) -> None:
    """Move elements between HBM and SBUF; dst_rmw_op=np.add adds them to what dst holds."""
    parts = trimmed(mask, dst, src)
    if not parts:
        return
    if dst_rmw_op is not None:
        accumulated(parts[0], parts[1], dst_rmw_op)
    else:
        new.dma_copy(parts[0], parts[1], oob_mode=mode or oob_mode, dge_mode=dge_mode)


def accumulated(dst: Tensor, value: Tensor, op: Any) -> None:
    """dst = dst + value, added while it moves. Raises ConstraintError for another operator."""
    if alu_name(op) != "add":
        refuse(
            "a transfer can only add to what it overwrites",
            limit="np.add",
            got=op,
            remedy="load, compute and store",
            code="TRN411",
        )
    new.dma_compute(dst, [value, dst], "add", scales=[1.0, 1.0])


def dma_transpose(
    src: Tensor, *, axes: Any = None, mask: Any = None, dtype: Any = None, dge_mode: Any = dge_mode.unknown, **_: Any
) -> Tensor:
    """The transpose, moved by DMA into SBUF."""
    order = tuple(axes) if axes else {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}[src.ndim]
    out = result(tuple(src.shape[a] for a in order), dtype or src.format)
    box = boxed(mask, src.shape)
    if not any(low >= high for low, high in box.values()):
        into = {order.index(a): edges for a, edges in box.items()}
        new.dma_transpose(cut(out, into), cut(src, box), order, dge_mode=dge_mode)
        record(out, into)
    return out


def local_gather(
    src_buffer: Tensor,
    index: Tensor,
    num_elem_per_idx: int = 1,
    num_valid_indices: Any = None,
    *,
    mask: Any = None,
    **_: Any,
) -> Tensor:
    """Each GpSimd core gathers along the free dimension for its 16 partitions."""
    count = num_valid_indices or index.shape[1] * 16
    out = result((src_buffer.shape[0], count, num_elem_per_idx), src_buffer.format)
    new.local_gather(out, src_buffer, index, num_elem_per_idx, num_valid_indices)
    record(out, {})
    return out


def nc_stream_shuffle(
    src: Tensor, dst: Tensor, shuffle_mask: Any, *, dtype: Any = None, mask: Any = None, **_: Any
) -> None:
    """Shuffle partitions within each 32."""
    parts = trimmed(mask, dst, src)
    if parts:
        new.nc_stream_shuffle(parts[0], parts[1], shuffle_mask)


def sequence_bounds(*, segment_ids: Tensor, dtype: Any = None, **_: Any) -> Tensor:
    """Start and end of each element's segment."""
    out = result((1, 2, *segment_ids.shape[1:]), dtype or segment_ids.format)
    new.sequence_bounds(out, segment_ids)
    record(out, {})
    return out
