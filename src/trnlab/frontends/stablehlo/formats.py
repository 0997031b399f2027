# SPDX-License-Identifier: Apache-2.0
"""The session's precision on a program that was read from StableHLO: JAX's, TensorFlow's, or a file's."""

from __future__ import annotations

from trnlab.frontends.common.formats import backward_values, begin, choose_formats
from trnlab.frontends.stablehlo.program import GraphRun, SegmentedProgram, WhileLoop
from trnlab.graph.ir import Graph, Op
from trnlab.graph.passes.narrow import narrow
from trnlab.precision import EVERYTHING
from trnlab.runtime.session import Session

MODEL = "model"  # the module of products that no module is known of


def in_precision(program: SegmentedProgram, now: Session | None) -> SegmentedProgram:
    """Give all graphs of a program the formats of a session; the program itself."""
    if now is None:
        return program
    slots = [*program.constants, *(s for s in program.inputs if s is not None)]
    for step in program.steps:
        if isinstance(step, WhileLoop):
            in_precision(step.condition, now)
            in_precision(step.body, now)
        else:
            slots += [*step.inputs, *step.outputs]
    free = max(slots, default=-1) + 1
    for step in program.steps:
        if isinstance(step, WhileLoop):
            free = max(free, *step.start, *step.state, *step.condition_shared, *step.body_shared) + 1
    for step in program.steps:
        if isinstance(step, GraphRun):
            free += _formatted(step, program, free, now)
    return program


def _formatted(step: GraphRun, program: SegmentedProgram, free: int, now: Session) -> int:
    """One graph; a state of its own gets the slot `free`. Returns how many slots were taken."""
    graph = step.graph
    if now.precision == EVERYTHING:
        narrow(graph)
    known = _is_differentiated(graph)

    def module_of(op: Op) -> str:
        where = op.loc
        if where is None:
            return "" if known else MODEL
        return where.layer or ("" if known and not where.phase else MODEL)

    checks = graph.checks
    flags = (graph.outputs.pop(), graph.output_names.pop()) if checks else None
    found = choose_formats(graph, now, module_of, backward_values(graph).__contains__)
    if flags is not None:
        graph.outputs.append(flags[0])
        graph.output_names.append(flags[1])
    if found.state is None:
        return 0
    begin(graph, found)
    step.inputs.append(free)
    step.outputs.append(free)
    program.states[free] = found.state.shape
    return 1


def _is_differentiated(graph: Graph) -> bool:
    """Whether the framework says of some ops that they are of a differentiated function; the others are then no part
    of the model."""
    return any(op.loc is not None and op.loc.phase for op in graph.ops)
