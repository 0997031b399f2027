# SPDX-License-Identifier: Apache-2.0
"""How each op becomes instructions on one tile: a rule per op, `rule(emitter, op)`."""

from __future__ import annotations

from collections.abc import Callable

from trnlab.compiler.emitter import Emitter
from trnlab.compiler.rules import arithmetic, choices, functions, reductions, sources
from trnlab.graph.ir import Op

RULES: dict[str, Callable[[Emitter, Op], None]] = {
    **dict.fromkeys((*arithmetic.ALU, *arithmetic.LOGICAL, "compare"), arithmetic.binary),
    **dict.fromkeys((*functions.ACTIVATION, "trn.gelu", "trn.gelu_dx"), functions.unary),
    **dict.fromkeys(("floor", "ceil", "round_nearest_even"), functions.rounding),
    **dict.fromkeys(("exponential_minus_one", "log_plus_one"), functions.shifted),
    **dict.fromkeys(("sine", "cosine"), functions.wave),
    "negate": arithmetic.negate,
    "not": arithmetic.logical_not,
    "divide": arithmetic.divide,
    "power": arithmetic.power,
    "convert": choices.convert,
    "select": choices.select,
    "clamp": choices.clamp,
    "is_finite": functions.is_finite,
    "gather": sources.gather,
    "reduce": reductions.reduce,
    "trn.rng_uniform": sources.random,
}
