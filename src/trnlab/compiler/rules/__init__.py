# SPDX-License-Identifier: Apache-2.0
"""How each op becomes instructions on one tile: rules in order, of which the first that covers the op is taken.

A rule declares the formats, and where whole numbers are concerned the ranges, for which its instructions mean what
the op means (`selection.Rule`). What no rule covers is rewritten before (`compiler.legalize`), or refused.
"""

from __future__ import annotations

from trnlab.compiler.analysis.ranges import Ranges
from trnlab.compiler.analysis.selection import BOOLS, EVERY, FLOATS, INTEGERS, WORDS, Rule, first_that_covers
from trnlab.compiler.rules import (
    arithmetic,
    casts,
    choices,
    functions,
    integers,
    quotients,
    reductions,
    rounding,
    sources,
    waves,
)
from trnlab.compiler.rules.conditions import (
    bounds_fit_float32,
    comparable_in_float32,
    distance_is_legal,
    extreme_fits_float32,
    fits_float32,
    fits_target,
    indices_are_words,
    is_bitwise,
    is_float_reduction,
    is_whole,
    operands_fit_float32,
    reduces_rows,
    sum_fits_float32,
    sums_few_rows,
    sums_in_memory,
    sums_whole_numbers,
)
from trnlab.graph.ir import Op
from trnlab.numerics.dtypes import tfloat32

_WORDS_ON_GPSIMD = Rule(integers.words, WORDS)
_BITS = Rule(integers.bits, INTEGERS)
_LOGIC = Rule(arithmetic.binary, BOOLS)
_ALU = Rule(arithmetic.binary, FLOATS)
_KERNEL = Rule(None, FLOATS)
MOVED = Rule(None, EVERY)
SUMS_OF_WHOLE_NUMBERS = Rule(None, FLOATS, when=sums_whole_numbers)
SUMS_IN_MEMORY = Rule(None, FLOATS, when=sums_in_memory)

RULES: dict[str, tuple[Rule, ...]] = {
    **dict.fromkeys(
        ("add", "subtract", "multiply"),
        (_ALU, Rule(arithmetic.binary, INTEGERS, when=fits_float32), _WORDS_ON_GPSIMD),
    ),
    **dict.fromkeys(
        ("maximum", "minimum"),
        (_ALU, Rule(arithmetic.binary, INTEGERS, when=operands_fit_float32), _WORDS_ON_GPSIMD),
    ),
    "compare": (
        _ALU,
        Rule(arithmetic.binary, INTEGERS | BOOLS, when=comparable_in_float32),
        _WORDS_ON_GPSIMD,
    ),
    "remainder": (_ALU,),
    **dict.fromkeys(("and", "or", "xor"), (_LOGIC, _BITS)),
    **dict.fromkeys(("shift_left", "shift_right_logical"), (Rule(integers.bits, INTEGERS, when=distance_is_legal),)),
    "shift_right_arithmetic": (),
    "not": (Rule(arithmetic.logical_not, BOOLS), Rule(integers.invert, INTEGERS)),
    "negate": (Rule(arithmetic.negate, FLOATS),),
    "divide": (
        Rule(quotients.product_on_scalar, FLOATS, when=quotients.by_small),
        Rule(quotients.product_of_roots, FLOATS, when=quotients.by_positive),
        Rule(quotients.product_of_negative_roots, FLOATS, when=quotients.by_negative),
        Rule(quotients.product, FLOATS, when=quotients.by_moderate),
        Rule(quotients.scaled, FLOATS),
    ),
    "power": (Rule(arithmetic.power, FLOATS),),
    **dict.fromkeys((*functions.ACTIVATION, "trn.gelu", "trn.gelu_dx"), (Rule(functions.unary, FLOATS),)),
    **dict.fromkeys(("floor", "ceil", "round_nearest_even"), (Rule(rounding.rounding, FLOATS),)),
    "exponential_minus_one": (Rule(functions.exponential_minus_one, FLOATS),),
    "log_plus_one": (Rule(functions.log_plus_one, FLOATS),),
    "atan": (Rule(functions.arctangent, FLOATS),),
    "trn.copysign": (Rule(functions.with_sign_of, FLOATS),),
    **dict.fromkeys(
        ("sine", "cosine"), (Rule(waves.near_wave, FLOATS, when=waves.of_near), Rule(waves.any_wave, FLOATS))
    ),
    "is_finite": (Rule(functions.is_finite, FLOATS),),
    "convert": (
        Rule(casts.copy, EVERY, FLOATS),
        Rule(casts.truth, EVERY, BOOLS),
        Rule(casts.copy, INTEGERS | BOOLS, INTEGERS, fits_target),
        Rule(casts.reinterpret, WORDS, WORDS),
        Rule(casts.copy, FLOATS, WORDS, is_whole),
        Rule(casts.truncate, FLOATS, WORDS),
    ),
    "bitcast_convert": (Rule(casts.bits, EVERY - BOOLS),),
    "select": (Rule(choices.select, EVERY - WORDS - {tfloat32}), Rule(choices.select_bits, WORDS | {tfloat32})),
    "clamp": (Rule(choices.clamp, FLOATS), Rule(choices.clamp, INTEGERS, when=bounds_fit_float32)),
    "reduce": (
        Rule(reductions.reduce, FLOATS, when=is_float_reduction),
        Rule(reductions.reduce, BOOLS, when=reduces_rows),
        Rule(reductions.reduce, INTEGERS, when=is_bitwise),
        Rule(reductions.reduce, INTEGERS, when=sum_fits_float32),
        Rule(reductions.reduce, INTEGERS, when=extreme_fits_float32),
    ),
    "trn.moments": (Rule(reductions.moments, FLOATS),),
    "gather": (Rule(sources.gather, EVERY, when=indices_are_words),),
    "trn.rng_uniform": (Rule(sources.random, WORDS),),
    "trn.rng_philox": (Rule(sources.random_words, WORDS),),
    **dict.fromkeys(
        ("dot_general", "trn.dot_sum", "trn.dot_and_sums", "convolution", "trn.max_pool", "trn.max_pool_backward"),
        (_KERNEL,),
    ),
    "scatter": (SUMS_OF_WHOLE_NUMBERS, Rule(None, FLOATS, when=sums_few_rows), SUMS_IN_MEMORY),
}


def select(op: Op, known: Ranges) -> Rule | None:
    """The rule that computes the op; None when no rule covers it. Ops that only move elements have MOVED."""
    rules = RULES.get(op.name)
    return MOVED if rules is None else first_that_covers(rules, op, known)
