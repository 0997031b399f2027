# SPDX-License-Identifier: Apache-2.0
"""What the runtime calls below itself, in one place, so that a test can put something else there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.graph.ir import Graph
from trnlab.graph.text import to_text
from trnlab.program.routine import Program
from trnlab.runtime.session import Session
from trnlab.sim.timing import time_program
from trnlab.timeline import Timeline

Bindings = Mapping[int, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Toolchain:
    """The steps from a graph to numbers and time.

    canonical: bytes that decide a graph's identity. text: the graph for readers. execute: fills the outputs' arrays.
    """

    canonical: Callable[[Graph], bytes]
    text: Callable[[Graph], str]
    compile: Callable[[Graph, Chip, Mapping[str, Any]], Program]
    execute: Callable[[Program, Bindings, Session], None]
    time: Callable[[Program, Chip], Timeline]


def _canonical(graph: Graph) -> bytes:
    from trnlab.graph.canonical import canonical

    return canonical(graph)


def _text(graph: Graph) -> str:
    return to_text(graph, locations=True, whole=False)


def _compile(graph: Graph, chip: Chip, options: Mapping[str, Any]) -> Program:
    from trnlab.compiler import compile

    return compile(graph, chip, options)


def _execute(program: Program, bindings: Bindings, session: Session) -> None:
    from trnlab.sim.functional import run_program

    run_program(program, bindings)


STANDARD = Toolchain(_canonical, _text, _compile, _execute, time_program)
