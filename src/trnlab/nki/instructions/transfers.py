# SPDX-License-Identifier: Apache-2.0
"""Instructions of nki.isa that move data between memories, cores and registers."""

from __future__ import annotations

from typing import Any

from trnlab.isa.base import Engine
from trnlab.lang import registers, transfers
from trnlab.lang.registers import VirtualRegister
from trnlab.lang.tensor import Tensor
from trnlab.nki.enums import chip_engine, dge_mode, dma_engine, engine, oob_mode
from trnlab.nki.handles import NkiInstruction, issue
from trnlab.nki.operators import alu_name


def dma_copy(
    dst: Tensor,
    src: Tensor,
    priority: int | None = None,
    oob_mode: Any = oob_mode.error,
    dge_mode: Any = dge_mode.unknown,
    engine: engine = engine.unknown,
    name: str | None = None,
) -> NkiInstruction:
    """Move elements between HBM and SBUF, with a cast where the formats differ."""
    on, options = _transfer(dge_mode, oob_mode, priority, chip_engine(engine))
    transfers.dma_copy(dst, src, engine=on, **options)
    return NkiInstruction(name)


def dma_transpose(
    dst: Tensor,
    src: Tensor,
    axes: Any = None,
    priority: int | None = None,
    dge_mode: Any = dge_mode.unknown,
    oob_mode: Any = oob_mode.error,
    name: str | None = None,
) -> NkiInstruction:
    """Move elements with their dimensions reversed as the rank says."""
    order = tuple(axes) if axes else {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}.get(src.ndim, (1, 0))
    on, options = _transfer(dge_mode, oob_mode, priority, None)
    transfers.dma_transpose(dst, src, order, engine=on, **options)
    return NkiInstruction(name)


def _transfer(made_by: dge_mode, outside: oob_mode, priority: Any, on: Engine | None) -> tuple[Engine | None, Any]:
    """The engine that triggers a transfer, and those attributes that are not what they would be anyway."""
    options: dict[str, Any] = {} if priority is None else {"priority": priority}
    made_by = dge_mode(made_by) if isinstance(made_by, int) else made_by  # by its number
    if outside is _SKIP:
        options["oob_mode"] = "skip"
    if made_by not in (_OPEN, None):
        options["dge_mode"] = made_by.name
        on = Engine.GPSIMD if made_by is _SOFTWARE else on
    return on, options


_SKIP, _OPEN, _SOFTWARE = oob_mode.skip, dge_mode.unknown, dge_mode.swdge


def dma_compute(
    dst: Tensor,
    srcs: list[Tensor],
    reduce_op: Any,
    scales: Any = None,
    unique_indices: bool = True,
    oob_mode: Any = oob_mode.error,
    name: str | None = None,
) -> NkiInstruction:
    """dst = the sum of the sources, added while they move."""
    options: dict[str, Any] = {} if scales is None else {"scales": tuple(float(s) for s in scales)}
    if not unique_indices:
        options["unique_indices"] = False
    if oob_mode is _SKIP:
        options["oob_mode"] = "skip"
    transfers.dma_compute(dst, srcs, alu_name(reduce_op), **options)
    return NkiInstruction(name)


def core_barrier(data: Tensor, cores: Any, engine: engine = engine.gpsimd, name: str | None = None) -> NkiInstruction:
    """Wait for the other core of the pair."""
    return issue("core_barrier", name, on=engine, data=data, cores=tuple(cores))


def sendrecv(
    src: Tensor,
    dst: Tensor,
    send_to_rank: int,
    recv_from_rank: int,
    pipe_id: int,
    dma_engine: dma_engine = dma_engine.dma,
    name: str | None = None,
) -> NkiInstruction:
    """Exchange tiles with the other core of the pair; pipe_id tells exchanges apart that may pass each other.

    dma_engine.gpsimd_dma uses the one inside GpSimd, which then triggers it.
    """
    on = engine.gpsimd if dma_engine.name == "gpsimd_dma" else None
    return issue(
        "sendrecv",
        name,
        on=on,
        dst=dst,
        src=src,
        send_to_rank=send_to_rank,
        recv_from_rank=recv_from_rank,
        pipe_id=pipe_id,
        dma_engine=dma_engine.name,
    )


def register_alloc(x: Any = None) -> VirtualRegister:
    """A register, holding nothing yet, a number, or the one element of a tensor."""
    return registers.allocate(x)


def register_move(dst: VirtualRegister, src: Any) -> None:
    """dst = src, a number or another register."""
    registers.move(dst, src)


def register_load(dst: VirtualRegister, src: Tensor) -> None:
    """dst = the one element of src, in HBM or SBUF."""
    registers.load(dst, src)


def register_store(dst: Tensor, src: VirtualRegister) -> None:
    """The one element of dst, in HBM or SBUF, = src."""
    registers.store(dst, src)
