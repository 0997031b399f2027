# SPDX-License-Identifier: Apache-2.0
"""Loops over dense float32 scratch: the ALU's operators, the functions of ScalarE, folds.

All take addresses. The switch on the operator is outside of the loops, so each loop vectorises on its own.
"""

from __future__ import annotations

import numpy as np

from trnlab.isa.activations import ACTIVATIONS
from trnlab.isa.alu import ALU
from trnlab.loops.kinds import float32, i64, void
from trnlab.sim.functional import functions as fn
from trnlab.sim.functional.linking import exported, inline
from trnlab.sim.functional.native import load_f32, read_f32, sqrt, store_f32, write_f32

ZERO, ONE = np.float32(0), np.float32(1)

ADD, SUBTRACT, MULTIPLY, DIVIDE, MAX, MIN = (
    ALU[name].code for name in ("add", "subtract", "multiply", "divide", "max", "min")
)
EQ, NE, GT, GE, LT, LE = (ALU[n].code for n in ("is_equal", "not_equal", "is_gt", "is_ge", "is_lt", "is_le"))
AND, OR, XOR, NOT = (ALU[n].code for n in ("logical_and", "logical_or", "logical_xor", "logical_not"))
BYPASS, ABS, RSQRT = (ALU[n].code for n in ("bypass", "abs", "rsqrt"))
REVERSED = 64  # added to the code of an operator whose sides are swapped
FROM, INTO = SUBTRACT + REVERSED, DIVIDE + REVERSED  # scalar - x, scalar / x

BINARY = frozenset({ADD, SUBTRACT, MULTIPLY, DIVIDE, MAX, MIN, EQ, NE, GT, GE, LT, LE, AND, OR, XOR})
WITH_SCALAR = BINARY | {BYPASS, ABS, RSQRT, NOT, FROM, INTO}
FOLDS = frozenset({ADD, MULTIPLY, MAX, MIN})
MIRRORED = {GT: LT, GE: LE, LT: GT, LE: GE, SUBTRACT: FROM, DIVIDE: INTO}  # the operator with its sides swapped

_CODE = {name: a.code for name, a in ACTIVATIONS.items()}
SQUARE, SIGMOID, RELU, TANH, EXP, LOG, ERF, ERF_DX = (
    _CODE[n] for n in ("square", "sigmoid", "relu", "tanh", "exp", "log", "erf", "erf_dx")
)
GELU, GELU_DX, GELU_TANH, GELU_TANH_DX, GELU_SIGMOID, GELU_SIGMOID_DX = (
    _CODE[n]
    for n in (
        "gelu",
        "gelu_dx",
        "gelu_apprx_tanh",
        "gelu_apprx_tanh_dx",
        "gelu_apprx_sigmoid",
        "gelu_apprx_sigmoid_dx",
    )
)
SILU, SILU_DX, SOFTPLUS, MISH, SQRT, ACT_RSQRT, RECIPROCAL, SIGN, ACT_ABS = (
    _CODE[n] for n in ("silu", "silu_dx", "softplus", "mish", "sqrt", "rsqrt", "reciprocal", "sign", "abs")
)
NO_FUNCTION = _CODE["copy"]  # `identity` is given this code as well
CHEAP_FUNCTIONS = frozenset({NO_FUNCTION, SQUARE, SQRT, RELU, RECIPROCAL, ACT_RSQRT, SIGN, ACT_ABS})
SLOW_FUNCTIONS = frozenset({_CODE["sin"], _CODE["arctan"]})  # no fast loop: the instruction's meaning is used


@inline
def truth(flag):
    """1.0 or 0.0."""
    return ONE if flag else ZERO


@inline
def larger(x, y):
    """Maximum; NaN when either is NaN."""
    return x if x > y or x != x else y


@inline
def smaller(x, y):
    """Minimum; NaN when either is NaN."""
    return x if x < y or x != x else y


@exported(void(i64, i64, i64, i64, i64))
def compare(op, a, b, out, n):
    """`combine` for operators that give a truth value."""
    if op == EQ:
        for i in range(n):
            write_f32(out, i, truth(read_f32(a, i) == read_f32(b, i)))
    elif op == NE:
        for i in range(n):
            write_f32(out, i, truth(read_f32(a, i) != read_f32(b, i)))
    elif op == GT:
        for i in range(n):
            write_f32(out, i, truth(read_f32(a, i) > read_f32(b, i)))
    elif op == GE:
        for i in range(n):
            write_f32(out, i, truth(read_f32(a, i) >= read_f32(b, i)))
    elif op == LT:
        for i in range(n):
            write_f32(out, i, truth(read_f32(a, i) < read_f32(b, i)))
    elif op == LE:
        for i in range(n):
            write_f32(out, i, truth(read_f32(a, i) <= read_f32(b, i)))
    elif op == AND:
        for i in range(n):
            write_f32(out, i, truth(read_f32(a, i) != ZERO and read_f32(b, i) != ZERO))
    elif op == OR:
        for i in range(n):
            write_f32(out, i, truth(read_f32(a, i) != ZERO or read_f32(b, i) != ZERO))
    elif op == XOR:
        for i in range(n):
            write_f32(out, i, truth((read_f32(a, i) != ZERO) != (read_f32(b, i) != ZERO)))


@exported(void(i64, i64, i64, i64, i64))
def combine(op, a, b, out, n):
    """out = a op b, element by element."""
    if op == ADD:
        for i in range(n):
            write_f32(out, i, read_f32(a, i) + read_f32(b, i))
    elif op == MULTIPLY:
        for i in range(n):
            write_f32(out, i, read_f32(a, i) * read_f32(b, i))
    elif op == SUBTRACT:
        for i in range(n):
            write_f32(out, i, read_f32(a, i) - read_f32(b, i))
    elif op == DIVIDE:
        for i in range(n):
            write_f32(out, i, read_f32(a, i) / read_f32(b, i))
    elif op == MAX:
        for i in range(n):
            write_f32(out, i, larger(read_f32(a, i), read_f32(b, i)))
    elif op == MIN:
        for i in range(n):
            write_f32(out, i, smaller(read_f32(a, i), read_f32(b, i)))
    else:
        compare(op, a, b, out, n)


@exported(void(i64, i64, float32, i64, i64))
def compare_scalar(op, a, s, out, n):
    """`combine_scalar` for truth values and for operators of one operand."""
    if op == EQ:
        for i in range(n):
            write_f32(out, i, truth(read_f32(a, i) == s))
    elif op == NE:
        for i in range(n):
            write_f32(out, i, truth(read_f32(a, i) != s))
    elif op == GT:
        for i in range(n):
            write_f32(out, i, truth(read_f32(a, i) > s))
    elif op == GE:
        for i in range(n):
            write_f32(out, i, truth(read_f32(a, i) >= s))
    elif op == LT:
        for i in range(n):
            write_f32(out, i, truth(read_f32(a, i) < s))
    elif op == LE:
        for i in range(n):
            write_f32(out, i, truth(read_f32(a, i) <= s))
    elif op == AND:
        for i in range(n):
            write_f32(out, i, truth(read_f32(a, i) != ZERO and s != ZERO))
    elif op == OR:
        for i in range(n):
            write_f32(out, i, truth(read_f32(a, i) != ZERO or s != ZERO))
    elif op == XOR:
        for i in range(n):
            write_f32(out, i, truth((read_f32(a, i) != ZERO) != (s != ZERO)))
    elif op == NOT:
        for i in range(n):
            write_f32(out, i, truth(read_f32(a, i) == ZERO))
    elif op == BYPASS:
        for i in range(n):
            write_f32(out, i, read_f32(a, i))
    elif op == ABS:
        for i in range(n):
            write_f32(out, i, fn.absolute(read_f32(a, i)))
    elif op == RSQRT:
        for i in range(n):
            write_f32(out, i, fn.rsqrt(read_f32(a, i)))


@exported(void(i64, i64, float32, i64, i64))
def combine_scalar(op, a, s, out, n):
    """out = a op s, for one scalar."""
    if op == ADD:
        for i in range(n):
            write_f32(out, i, read_f32(a, i) + s)
    elif op == MULTIPLY:
        for i in range(n):
            write_f32(out, i, read_f32(a, i) * s)
    elif op == SUBTRACT:
        for i in range(n):
            write_f32(out, i, read_f32(a, i) - s)
    elif op == FROM:
        for i in range(n):
            write_f32(out, i, s - read_f32(a, i))
    elif op == DIVIDE:
        for i in range(n):
            write_f32(out, i, read_f32(a, i) / s)
    elif op == INTO:
        for i in range(n):
            write_f32(out, i, s / read_f32(a, i))
    elif op == MAX:
        for i in range(n):
            write_f32(out, i, larger(read_f32(a, i), s))
    elif op == MIN:
        for i in range(n):
            write_f32(out, i, smaller(read_f32(a, i), s))
    else:
        compare_scalar(op, a, s, out, n)


@exported(void(i64, float32, float32, i64, i64))
def scale_and_shift(a, scale, shift, out, n):
    """out = a * scale + shift, with both roundings."""
    for i in range(n):
        write_f32(out, i, read_f32(a, i) * scale + shift)


@exported(void(i64, i64, i64, i64))
def activate_gates(op, a, out, n):
    """`activate` for further functions that networks use as gates."""
    if op == GELU_TANH:
        for i in range(n):
            write_f32(out, i, fn.gelu_tanh(read_f32(a, i)))
    elif op == GELU_TANH_DX:
        for i in range(n):
            write_f32(out, i, fn.gelu_tanh_dx(read_f32(a, i)))
    elif op == GELU_SIGMOID:
        for i in range(n):
            write_f32(out, i, fn.gelu_sigmoid(read_f32(a, i)))
    elif op == GELU_SIGMOID_DX:
        for i in range(n):
            write_f32(out, i, fn.gelu_sigmoid_dx(read_f32(a, i)))
    elif op == SILU:
        for i in range(n):
            write_f32(out, i, fn.silu(read_f32(a, i)))
    elif op == SILU_DX:
        for i in range(n):
            write_f32(out, i, fn.silu_dx(read_f32(a, i)))
    elif op == SOFTPLUS:
        for i in range(n):
            write_f32(out, i, fn.softplus(read_f32(a, i)))
    elif op == MISH:
        for i in range(n):
            write_f32(out, i, fn.mish(read_f32(a, i)))


@exported(void(i64, i64, i64, i64))
def activate_erf(op, a, out, n):
    """`activate` for erf and the function made of it."""
    if op == GELU:
        for i in range(n):
            write_f32(out, i, fn.gelu(read_f32(a, i)))
    elif op == GELU_DX:
        for i in range(n):
            write_f32(out, i, fn.gelu_dx(read_f32(a, i)))
    elif op == ERF:
        for i in range(n):
            write_f32(out, i, fn.erf(read_f32(a, i)))
    elif op == ERF_DX:
        for i in range(n):
            write_f32(out, i, fn.erf_dx(read_f32(a, i)))
    else:
        activate_gates(op, a, out, n)


@exported(void(i64, i64, i64, i64))
def activate_sigmoid(op, a, out, n):
    """`activate` for the functions of recurrent networks, and those that few use."""
    if op == TANH:
        for i in range(n):
            write_f32(out, i, fn.tanh(read_f32(a, i)))
    elif op == SIGMOID:
        for i in range(n):
            write_f32(out, i, fn.sigmoid(read_f32(a, i)))
    elif op == ACT_RSQRT:
        for i in range(n):
            write_f32(out, i, fn.rsqrt(read_f32(a, i)))
    elif op == SIGN:
        for i in range(n):
            write_f32(out, i, fn.sign(read_f32(a, i)))
    elif op == ACT_ABS:
        for i in range(n):
            write_f32(out, i, fn.absolute(read_f32(a, i)))
    else:
        activate_erf(op, a, out, n)


@exported(void(i64, i64, i64, i64))
def activate(op, a, out, n):
    """out = function(a). Each group of functions is a loop by itself, so that it is compiled where it is used."""
    if op == NO_FUNCTION:
        for i in range(n):
            write_f32(out, i, read_f32(a, i))
    elif op == EXP:
        for i in range(n):
            write_f32(out, i, fn.exp(read_f32(a, i)))
    elif op == SQUARE:
        for i in range(n):
            write_f32(out, i, read_f32(a, i) * read_f32(a, i))
    elif op == SQRT:
        for i in range(n):
            write_f32(out, i, sqrt(read_f32(a, i)))
    elif op == RECIPROCAL:
        for i in range(n):
            write_f32(out, i, ONE / read_f32(a, i))
    elif op == LOG:
        for i in range(n):
            write_f32(out, i, fn.log(read_f32(a, i)))
    elif op == RELU:
        for i in range(n):
            write_f32(out, i, fn.relu(read_f32(a, i)))
    else:
        activate_sigmoid(op, a, out, n)


@exported(float32(i64, i64, i64, i64))
def fold(op, a, n, scratch):
    """a[0] op a[1] op ... op a[n-1], halving the row until one value is left: precise, the same on any machine."""
    if n == 1:
        return load_f32(a, 0)
    rest = n - (n >> 1)
    combine(op, a, a + 4 * rest, scratch, n - rest)
    if rest > n - rest:
        store_f32(scratch, rest - 1, load_f32(a, rest - 1))
    while rest > 1:
        n = rest
        rest = n - (n >> 1)
        combine(op, scratch, scratch + 4 * rest, scratch, n - rest)
    return load_f32(scratch, 0)


@exported(void(i64, i64, i64, i64, i64, i64, i64))
def select(predicate, on_true, on_false, step, reverse, out, n):
    """out = on_true where predicate is not zero (is, when reversed), else on_false, its elements `step` apart."""
    for i in range(n):
        taken = (read_f32(predicate, i) != ZERO) != (reverse != 0)
        write_f32(out, i, read_f32(on_true, i) if taken else read_f32(on_false, i * step))
