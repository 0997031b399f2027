# SPDX-License-Identifier: Apache-2.0
"""neuronxcc.nki._private.private_api: what published kernels import from it and the public interface has, too.

The module was never described; what is not here is refused by name when it is imported.

Source: uses in aws-neuron/nki-samples (3a99c91, contributed/neuron-team-kernels), and nki.isa for the meaning.
"""

from __future__ import annotations

from typing import Any

from trnlab.lang.storage import refuse
from trnlab.lang.tensor import Tensor
from trnlab.nki import isa as new
from trnlab.nki.language import float4_e2m1fn_x4, float8_e4m3fn_x4, float8_e5m2_x4
from trnlab.nki.neuronxcc.zeros import settle

__all__ = ["core_barrier", "do_while", "float4_e2m1fn_x4", "float8_e4m3fn_x4", "float8_e5m2_x4", "sendrecv"]


def core_barrier(data: Tensor, cores: Any, **_: Any) -> None:
    """Wait until all these cores have come here and written `data`; nothing to wait for where there is one."""
    if len(tuple(cores)) > 1:
        new.core_barrier(data, cores)


def sendrecv(*, src: Tensor, dst: Tensor, send_to_rank: int, recv_from_rank: int, pipe_id: int, **_: Any) -> None:
    """Exchange tiles with the other core of the logical core."""
    settle(src)
    new.sendrecv(src, dst, send_to_rank, recv_from_rank, pipe_id)


def do_while(condition: Tensor, **_: Any) -> Any:
    """Refused: a `with` block cannot be recorded a second time. Raises ConstraintError."""
    refuse(
        "with do_while(...) is a loop whose body only the vendor's compiler can repeat, not trnlab",
        limit="loops of Python",
        got=condition,
        remedy="in the new dialect write nl.while_loop, or a for loop over the most rounds",
        code="TRN414",
    )


def __getattr__(name: str) -> Any:
    """Raises ImportError, which scripts expect of a name that their release lacks."""
    if name.startswith("__"):
        raise AttributeError(name)
    raise ImportError(
        f"neuronxcc.nki._private.private_api is internal to the vendor's compiler and undescribed; trnlab has "
        f"{', '.join(__all__)} of it, and not {name!r}: write that part with nki.isa",
        name=name,
    )
