# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own decompositions, made once for as long as nobody registers operators.

PyTorch makes the table anew whenever it is asked, and looks up every operator of every library for it: 60 ms, more
than all else that the program of a single operator needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trnlab.frontends.torch.pytorch import dispatcher, splitting

_ALSO = (  # operators that split well, though PyTorch's core has them or nobody else wants them apart
    "elu",
    "leaky_relu",
    "hardtanh",
    "native_group_norm",
    "dist",
    "ldexp",
)
_Table = dict[Any, Callable[..., Any]]
_Registered = tuple[Any, ...]
_kept: tuple[_Registered, _Table] | None = None


def pytorchs() -> _Table:
    """By operator: those of PyTorch's core set, those of other libraries that PyTorch itself splits for autograd, and
    `_ALSO`."""
    return dict(kept())


def kept() -> _Table:
    """The same, which is not the caller's own: the same object until somebody registers operators."""
    global _kept
    known = _kept
    if known is None or known[0] != _registered():
        table = _made()
        # Looking for operators loads some: these count as registered from now on.
        known = _kept = _registered(), table
    return known[1]


def _registered() -> _Registered:
    """What the table is made of, as far as a program adds to it while it runs: kernels that split an operator, which
    operators of libraries are loaded, and decompositions. PyTorch itself keeps the part of aten."""
    libraries = [
        (name, tuple(getattr(getattr(torch.ops, name), "_dir", ())))
        for name in dispatcher.namespaces()
        if name != "aten"
    ]
    kernels = dispatcher.kernels_under("CompositeImplicitAutograd")
    return kernels, libraries, len(splitting.global_decomposition_table["post_autograd"])


def _made() -> _Table:
    aten = torch.ops.aten
    packets = [getattr(aten, name + suffix, None) for name in _ALSO for suffix in ("", "_backward")]
    return {
        **splitting.core_aten_decompositions(),
        **splitting.get_decompositions([packet for packet in packets if packet is not None]),
    }
