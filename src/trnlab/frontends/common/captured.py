# SPDX-License-Identifier: Apache-2.0
"""A captured program: a graph, and what each of its inputs and outputs means to the framework it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trnlab.graph.ir import Graph


@dataclass(frozen=True)
class Role:
    """What an input or output of a captured graph is.

    kind: "batch", "parameter", "buffer", "state", "count", "rate", "seed", "outside", "kept", "scale" (what the next
    scale of a format is made of, the program's own), "loss", "aux" or "gradient". `name` is for people. `place` finds
    the value: a parameter, buffer or batch by position, state by (parameter position, key), a count by the positions
    of its parameters, a rate by the place of that number among its optimizer's, a tensor from outside by its number.
    """

    kind: str
    name: str
    place: Any = None


@dataclass
class Captured:
    """A graph with the meaning of its inputs and outputs; `kinds` are the framework's dtypes of the outputs.

    An output that overwrites an input is an alias of the graph.
    """

    graph: Graph
    inputs: list[Role]
    outputs: list[Role]
    kinds: list[Any]
