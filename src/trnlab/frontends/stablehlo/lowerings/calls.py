# SPDX-License-Identifier: Apache-2.0
"""Calls of code outside of the module, and of libraries that the chip does not have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trnlab.frontends.stablehlo import mlir
from trnlab.frontends.stablehlo.entries import TracedValue
from trnlab.frontends.stablehlo.registry import OpSite, UnsupportedForm, lowers

Handler = Callable[[OpSite], Sequence[TracedValue]]
TARGETS: dict[str, Handler] = {}
"""What stands behind the name of a custom call; front ends add theirs."""

_IDENTITY = ("Sharding", "annotate_device_placement", "LayoutConstraint", "SPMDFullToShardShape", "mhlo.copy")
_WAYS_OUT = {
    "xla_ffi_python_cpu_callback": "move what the host does (io_callback, jax.debug.print) outside of the step",
    "xla_python_cpu_callback": "move what the host does (io_callback, jax.debug.print) outside of the step",
    "lapack": "compute decompositions on the host, before the step",
}


@lowers("stablehlo.custom_call")
def custom_call(site: OpSite) -> Sequence[TracedValue]:
    """What is registered under the target's name; others are refused by it."""
    target = mlir.text(site.raw, "call_target_name")
    if target in _IDENTITY:
        return site.operands
    if target in TARGETS:
        return TARGETS[target](site)
    do = next((way for start, way in _WAYS_OUT.items() if target.startswith(start)), "compute it on the host")
    raise UnsupportedForm(f"it calls {target!r}, which is code of the host", do, "TRN234")


@lowers("stablehlo.cholesky", "stablehlo.triangular_solve")
def of_linear_algebra(site: OpSite) -> TracedValue:
    """Refused: the chip solves no systems."""
    raise UnsupportedForm("the chip has no decompositions of matrices", "compute them on the host, before the step")


@lowers(*(f"stablehlo.{name}" for name in ("replica_id", "send", "recv", "infeed", "outfeed")))
def of_others(site: OpSite) -> Any:
    """Refused: what meets others by other means than collectives."""
    raise UnsupportedForm(
        "a program here is for one core", "run the step without pmap and without the host's queues", "TRN235"
    )
