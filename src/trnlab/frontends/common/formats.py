# SPDX-License-Identifier: Apache-2.0
"""What the session's precision makes of an imported graph, whatever front end it comes from: which format the
products of which module get, and which stay as they are, and why."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable

from trnlab.graph.ir import Graph, Op, Start, Value
from trnlab.graph.loops import Body
from trnlab.graph.passes.quantize import IsGradient, Quantized, place_of, quantize
from trnlab.numerics.dtypes import float8_e4m3, float8_e4m3fn
from trnlab.precision import EVERYTHING, ModulePrecision
from trnlab.runtime.notices import say
from trnlab.runtime.session import Session

ENDS = "first and last layers stay in bf16"
NO_MODULE = "it belongs to no module"
_SHOWN = 4


def choose_formats(
    graph: Graph, now: Session | None, module_of: Callable[[Op], str], is_gradient: IsGradient
) -> Quantized:
    """Give the products of a graph their formats. module_of: the path of an op's module, empty where it has none."""
    if now is None or (now.precision in ("bf16", "fp32", EVERYTHING) and not now.rules.rules):
        return Quantized()
    base = now.compile_options()["precision"]
    left: Counter[tuple[str, str]] = Counter()
    scaled = now.precision in ("fp8", "mxfp8")

    def choose(op: Op) -> ModulePrecision | None:
        if op.attrs["precision"] != "DEFAULT":
            return None
        module = module_of(op)
        if not module:  # of an optimizer, or a function of the loss
            left[place_of(op.loc), NO_MODULE] += scaled
            return None
        choice = now.rules.choose(module, now.precision)
        if scaled and not choice.is_scaled and not any(rule.fits(module) for rule in now.rules.rules):
            left[module, ENDS] += 1
        return None if choice.format == base else choice

    e4m3 = float8_e4m3fn if now.chip.has("fp8_e4m3fn") else float8_e4m3
    found = quantize(graph, choose, is_gradient, e4m3, now.rules.history)
    found.left.update(left)
    _note(graph.name, found, now)
    return found


def begin(graph: Graph, found: Quantized) -> None:
    """Once the graph is finished: what to run in place of it as long as no scale has a step to look back on."""
    if found.state is not None and found.histories is not None:
        graph.start = Start(graph.inputs.index(found.state), found.histories.first_step(graph))


def backward_values(graph: Graph, known: Iterable[Value] = ()) -> set[Value]:
    """The values of a graph, and of the rounds of its loops, that are of the backward pass: `known` inputs, results
    of ops whose location says so, and all that is computed from these."""
    found = set(known)
    for op in graph.ops:
        told = op.loc is not None and op.loc.phase == "backward"
        if op.name == "loop":
            body: Body = op.attrs["body"]
            back = [i for i, v in enumerate(op.operands) if v in found]
            inner = [v for v, read in zip(body.graph.inputs, body.reads) if read.operand in back]
            found |= backward_values(body.graph, inner)
        if told or any(v in found for v in op.operands):
            found.update(op.results)
    return found


def _note(name: str, found: Quantized, now: Session) -> None:
    """Keep for the summary what became of the products, and say once which were meant to be narrower."""
    left: Counter[tuple[str, str]] = Counter()
    for (place, reason), count in found.left.items():
        if count:
            left[re.sub(r"\.\d+(?=\.|$)", ".*", place), reason] += count
    known = now.counters.products.get(name)
    kept = [{"module": module, "reason": reason, "count": count} for (module, reason), count in left.items()]
    now.counters.products[name] = made = {"formats": dict(found.counts), "left": kept}
    if left and (known is None or known["left"] != made["left"]):
        parts = [f"{module} x{count} ({reason})" for (module, reason), count in left.most_common(_SHOWN)]
        more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
        say(
            f"{name!r} in {now.precision}: {sum(found.counts.values())} products as chosen; as they were: "
            f"{', '.join(parts)}{more}"
        )
