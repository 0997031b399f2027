# SPDX-License-Identifier: Apache-2.0
"""nki-library's own reference of attention, called for some queries at a time.

The reference holds all scores several times over: 32,768 queries and keys are 4 GiB each time. Rows of scores do not
depend on each other, so that the same function, called on slices of the queries, gives the same rows.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

ATTENTION = "nkilib_src.nkilib.core.attention.attention_cte_torch"
ROWS = 2048  # queries at a time, a multiple of the 128 that statistics are grouped by


def install() -> None:
    """Put the sliced form in the place of the reference; tests that import it afterwards get that."""
    try:
        module: Any = importlib.import_module(ATTENTION)
    except ImportError:
        return
    module.attention_cte_torch_ref = in_slices(module.attention_cte_torch_ref)


def in_slices(reference: Callable[..., Any]) -> Callable[..., Any]:
    """The reference with `q` [batch, queries, d] ([batch, d, queries] without tp_q) cut along the queries."""
    signature = inspect.signature(reference)

    @functools.wraps(reference)
    def sliced(*args: Any, **kwargs: Any) -> Any:
        import torch

        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        arguments = given.arguments
        axis = 1 if arguments["tp_q"] else 2
        count = arguments["q"].shape[axis]
        if count <= ROWS:
            return reference(**arguments)
        parts = [reference(**_part(arguments, axis, first)) for first in range(0, count, ROWS)]
        if not isinstance(parts[0], tuple):
            return torch.cat(parts, dim=2 if arguments["tp_out"] else 1)
        out, *statistics = zip(*parts)  # statistics are [batch, 128, groups]
        joined = torch.cat(out, dim=2 if arguments["tp_out"] else 1)
        return (joined, *(torch.cat(s, dim=2) for s in statistics))

    return sliced


def _part(arguments: dict[str, Any], axis: int, first: int) -> dict[str, Any]:
    """The arguments for the queries from `first` on: their part of q and of the bounds, and where they stand."""
    import torch

    offset = arguments["cp_offset"]
    step = arguments["global_cp_deg"] if offset is not None and arguments["cp_strided_q_slicing"] else 1
    start = (0 if offset is None else int(offset.item())) + first * step
    part = {**arguments, "q": arguments["q"].narrow(axis, first, min(ROWS, arguments["q"].shape[axis] - first))}
    part["cp_offset"] = torch.tensor([start])
    part["cp_strided_q_slicing"] = step != 1
    for bound in ("bound_min", "bound_max"):
        if arguments[bound] is not None:
            part[bound] = arguments[bound].reshape(-1)[first : first + ROWS]
    return part
