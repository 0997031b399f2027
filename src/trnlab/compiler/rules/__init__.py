# SPDX-License-Identifier: Apache-2.0
"""How each op becomes instructions on one tile: rules in order, of which the first that covers the op is taken.

A rule declares the formats, and where whole numbers are concerned the ranges, for which its instructions mean what
the op means (`selection.SelectionRule`). What no rule covers is rewritten before (`compiler.legalize`), or refused.
"""

from __future__ import annotations

from trnlab.compiler.analysis.ranges import Ranges
from trnlab.compiler.analysis.selection import BOOLS, EVERY, FLOATS, INTEGERS, WORDS, SelectionRule, first_that_covers
from trnlab.compiler.rules import (
    arithmetic,
    casts,
    choices,
    functions,
    integers,
    quotients,
    reductions,
    rotations,
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
    sums_rows,
    sums_whole_numbers,
)
from trnlab.graph.ir import Op
from trnlab.graph.ops import OPS, WINDOW
from trnlab.numerics.dtypes import tfloat32

_WORDS_ON_GPSIMD = SelectionRule(integers.words, WORDS)
_BITS = SelectionRule(integers.bits, INTEGERS)
_LOGIC = SelectionRule(arithmetic.binary, BOOLS)
_ALU = SelectionRule(arithmetic.binary, FLOATS)
_KERNEL = SelectionRule(None, FLOATS)
MOVED = SelectionRule(None, EVERY)
SUMS_OF_WHOLE_NUMBERS = SelectionRule(None, FLOATS, when=sums_whole_numbers)
SUMS_IN_MEMORY = SelectionRule(None, FLOATS, when=sums_in_memory)

RULES: dict[str, tuple[SelectionRule, ...]] = {
    **dict.fromkeys(
        ("add", "subtract", "multiply"),
        (_ALU, SelectionRule(arithmetic.binary, INTEGERS, when=fits_float32), _WORDS_ON_GPSIMD),
    ),
    **dict.fromkeys(
        ("maximum", "minimum"),
        (_ALU, SelectionRule(arithmetic.binary, INTEGERS, when=operands_fit_float32), _WORDS_ON_GPSIMD),
    ),
    "compare": (
        _ALU,
        SelectionRule(arithmetic.binary, INTEGERS | BOOLS, when=comparable_in_float32),
        _WORDS_ON_GPSIMD,
    ),
    "remainder": (_ALU,),
    **dict.fromkeys(("and", "or", "xor"), (_LOGIC, _BITS)),
    **dict.fromkeys(
        ("shift_left", "shift_right_logical"), (SelectionRule(integers.bits, INTEGERS, when=distance_is_legal),)
    ),
    "shift_right_arithmetic": (),
    "not": (SelectionRule(arithmetic.logical_not, BOOLS), SelectionRule(integers.invert, INTEGERS)),
    "negate": (SelectionRule(arithmetic.negate, FLOATS),),
    "divide": (
        SelectionRule(quotients.product_on_scalar, FLOATS, when=quotients.by_small),
        SelectionRule(quotients.product_of_roots, FLOATS, when=quotients.by_positive),
        SelectionRule(quotients.product_of_negative_roots, FLOATS, when=quotients.by_negative),
        SelectionRule(quotients.product, FLOATS, when=quotients.by_moderate),
        SelectionRule(quotients.scaled, FLOATS),
    ),
    "power": (SelectionRule(arithmetic.power, FLOATS),),
    **dict.fromkeys((*functions.ACTIVATION, "trn.gelu", "trn.gelu_dx"), (SelectionRule(functions.unary, FLOATS),)),
    "abs": (SelectionRule(functions.magnitude, FLOATS),),
    **dict.fromkeys(("floor", "ceil", "round_nearest_even"), (SelectionRule(rounding.rounding, FLOATS),)),
    "exponential_minus_one": (SelectionRule(functions.exponential_minus_one, FLOATS),),
    "log_plus_one": (SelectionRule(functions.log_plus_one, FLOATS),),
    "atan": (SelectionRule(functions.arctangent, FLOATS),),
    "trn.rotate_half": (SelectionRule(rotations.rotate_half, FLOATS),),
    "trn.copysign": (SelectionRule(functions.with_sign_of, FLOATS),),
    **dict.fromkeys(
        ("sine", "cosine"),
        (SelectionRule(waves.near_wave, FLOATS, when=waves.of_near), SelectionRule(waves.any_wave, FLOATS)),
    ),
    "is_finite": (SelectionRule(functions.is_finite, FLOATS),),
    "convert": (
        SelectionRule(casts.copy, EVERY, FLOATS),
        SelectionRule(casts.truth, EVERY, BOOLS),
        SelectionRule(casts.copy, INTEGERS | BOOLS, INTEGERS, fits_target),
        SelectionRule(casts.reinterpret, WORDS, WORDS),
        SelectionRule(casts.copy, FLOATS, WORDS, is_whole),
        SelectionRule(casts.truncate, FLOATS, WORDS),
    ),
    "bitcast_convert": (SelectionRule(casts.bits, EVERY - BOOLS),),
    "select": (
        SelectionRule(choices.select, EVERY - WORDS - {tfloat32}),
        SelectionRule(choices.select_bits, WORDS | {tfloat32}),
    ),
    "clamp": (SelectionRule(choices.clamp, FLOATS), SelectionRule(choices.clamp, INTEGERS, when=bounds_fit_float32)),
    "reduce": (
        SelectionRule(reductions.reduce, FLOATS, when=is_float_reduction),
        SelectionRule(reductions.reduce, BOOLS, when=reduces_rows),
        SelectionRule(reductions.reduce, INTEGERS, when=is_bitwise),
        SelectionRule(reductions.reduce, INTEGERS, when=sum_fits_float32),
        SelectionRule(reductions.reduce, INTEGERS, when=extreme_fits_float32),
    ),
    "trn.moments": (SelectionRule(reductions.moments, FLOATS),),
    "trn.softmax_statistics": (SelectionRule(reductions.softmax_statistics, FLOATS),),
    "trn.sum_of_squares": (SelectionRule(reductions.sum_of_squares, FLOATS),),
    "gather": (SelectionRule(sources.gather, EVERY, when=indices_are_words),),
    "trn.rng_uniform": (SelectionRule(sources.random, WORDS),),
    "trn.rng_philox": (SelectionRule(sources.random_words, WORDS),),
    "trn.take_along": (SelectionRule(None, EVERY, when=indices_are_words),),
    "trn.sum_along": (SelectionRule(None, FLOATS, when=indices_are_words),),
    **dict.fromkeys(("dot_general", "trn.dot_sum", "trn.dot_and_sums", "convolution"), (_KERNEL,)),
    **dict.fromkeys((name for name, op in OPS.items() if op.kind == WINDOW), (_KERNEL,)),
    **dict.fromkeys(("trn.grouped_dot", "trn.grouped_outer"), (_KERNEL,)),
    "trn.sum_rows": (SelectionRule(None, FLOATS, when=sums_rows),),
    "trn.put_rows": (SelectionRule(None, EVERY, when=indices_are_words),),
    "scatter": (SUMS_OF_WHOLE_NUMBERS, SelectionRule(None, FLOATS, when=sums_few_rows), SUMS_IN_MEMORY),
}


def select(op: Op, known: Ranges) -> SelectionRule | None:
    """The rule that computes the op; None when no rule covers it. Ops that only move elements have MOVED."""
    rules = RULES.get(op.name)
    return MOVED if rules is None else first_that_covers(rules, op, known)
