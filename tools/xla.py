# SPDX-License-Identifier: Apache-2.0
"""XLA on the host's CPU as who runs graphs: a second opinion on what a captured step computes.

with use(XlaEngine()):
    loss = step(x, y)           # the same graph, written as StableHLO, compiled by XLA
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jaxlib import xla_client

from trnlab.errors import UnsupportedOpError
from trnlab.frontends.common.engine import Program, checked
from trnlab.graph.ir import Graph
from trnlab.graph.stablehlo import to_stablehlo
from trnlab.numerics.dtypes import bool_

Array = np.ndarray[Any, Any]


class XlaEngine:
    """Runs graphs with XLA on the CPU. `graphs`: those it compiled."""

    def __init__(self) -> None:
        self.graphs: list[Graph] = []

    def compile(self, graph: Graph) -> Program:
        """See `GraphEngine`. Raises UnsupportedOpError for a graph that calls a kernel."""
        for op in graph.ops:
            if op.name == "custom_call":
                raise UnsupportedOpError(
                    f"XLA cannot run kernel {op.attrs['callee'].name!r}",
                    where=op.loc,
                    remedy="leave kernels out of what is compared with XLA",
                )
        self.graphs.append(graph)
        device = _cpu()
        # Whoever calls donates nothing to XLA: its outputs are copied over the inputs that they replace.
        text = to_stablehlo(graph).replace(" {tf.aliasing_output", " {trn.ignored")
        program = device.client.compile_and_load(text, xla_client.DeviceList((device,)), xla_client.CompileOptions())

        def run(inputs: Sequence[Array]) -> list[Array]:
            given = [a.astype(np.bool_) if v.dtype is bool_ else a for a, v in zip(inputs, graph.inputs)]
            found = program.execute_sharded([jax.device_put(a, device) for a in given])
            held = [np.asarray(r[0]) for r in found.disassemble_into_single_device_arrays()]
            results = [np.array(a).astype(v.dtype.numpy, copy=False) for a, v in zip(held, graph.outputs)]
            for i, j in graph.aliases.items():
                inputs[j][...] = results[i]
                results[i] = inputs[j]
            return results

        return checked(graph, run)

    def step_done(self, loss: float, tokens: int) -> None:
        """See `GraphEngine`."""


@lru_cache(maxsize=1)
def _cpu() -> Any:
    return jax.devices("cpu")[0]
