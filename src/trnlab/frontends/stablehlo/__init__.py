# SPDX-License-Identifier: Apache-2.0
"""StableHLO in: what JAX, TensorFlow and other front ends of XLA write becomes graphs.

    program = import_module(text)              # MLIR text, bytecode, or a module of jaxlib's bindings
    run = program.load(engine.current().compile)
    results = run(arrays)

One of two ways: `graph.stablehlo` writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trnlab.errors import Location, UsageError
from trnlab.frontends.stablehlo import lowerings as lowerings
from trnlab.frontends.stablehlo import mlir
from trnlab.frontends.stablehlo.program import SegmentedProgram
from trnlab.frontends.stablehlo.tracer import MOST_OPS, Tracer
from trnlab.graph.ir import TensorType
from trnlab.numerics.dtypes import uint32

__all__ = ["SegmentedProgram", "import_module"]


def import_module(
    module: Any,
    name: str = "main",
    *,
    names: Sequence[str] | None = None,
    donated: Mapping[int, int] | None = None,
    most_ops: int = MOST_OPS,
    ranks: int = 1,
    locate: Callable[[Any], Location | None] = mlir.location,
    tells_rank: bool = False,
) -> SegmentedProgram:
    """The program of a module's public function.

    module: MLIR text, bytecode, or an `ir.Module`. names: of the arguments, for people. donated: for an argument's
    number the result's that takes its place, beside those that the module says (tf.aliasing_output).
    most_ops: of a loop that is unrolled; a longer one runs round by round. ranks: that run the module together.
    tells_rank: the program has one more argument, the number of the rank that runs it, in place of partition-id.
    locate: the user's line of an op of MLIR. An op that is refused matters only where a result needs it.
    Raises UsageError (TRN230) for what is no module, UnsupportedOpError (TRN231 to TRN235) with the line of what
    cannot run.
    """
    if isinstance(module, (str, bytes)):
        module = mlir.parse(module)
    functions = mlir.functions(module)
    main = functions.get("main") or next(iter(functions.values()), None)
    if main is None:
        raise UsageError("the module has no function", code="TRN230", remedy="export one with a public @main")
    tracer = Tracer(name, functions, most_ops=most_ops, ranks=ranks, locate=locate)
    block = main.regions[0].blocks[0]
    shown = names if names is not None else [f"arg{i}" for i in range(len(block.arguments))]
    arguments = [tracer.argument(mlir.type_of(a.type), n) for a, n in zip(block.arguments, shown)]
    if tells_rank:
        tracer.rank = tracer.argument(TensorType((), uint32), "rank")
    results = tracer.block(block, arguments, {})
    return tracer.finish(results, {**mlir.aliases(main), **(donated or {})})
